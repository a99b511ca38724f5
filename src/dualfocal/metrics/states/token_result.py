"""The result of an evaluation of next-token predictions."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dualfocal._table import Table
from dualfocal.metrics.groups import GroupEvaluation
from dualfocal.metrics.inference.classwise import SIGNIFICANCE
from dualfocal.metrics.result import Evaluation, check_schema, finite

SCHEMA = 1
KINDS = {"by_frequency": "predicted token, count", "by_position": "position"}  # in tables


@dataclass(frozen=True)
class TokenEvaluation:
    """Calibration of next-token predictions: of all tokens, by token frequency and by position.

    Args:
        evaluation: all tokens, with sequences as clusters. Only the confidence of the predicted token is tested.
        by_frequency: groups by the count of the predicted token in another text, by decades; empty without counts.
        by_position: groups by the number of tokens of the sequence before the predicted one, by powers of two.
        omitted: groups that are left out because all their tokens are in one sequence.
    """

    evaluation: Evaluation
    by_frequency: tuple[GroupEvaluation, ...]
    by_position: tuple[GroupEvaluation, ...]
    omitted: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return self.evaluation.num_samples

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        assert self.evaluation.inference is not None
        assert self.evaluation.inference.clusters is not None
        return self.evaluation.inference.clusters.number

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative log-likelihood of a token."""
        return math.exp(self.evaluation.nll) if self.evaluation.nll < 700 else self.evaluation.nll + math.inf

    def groups(self) -> list[tuple[str, GroupEvaluation]]:
        """Return all groups, with names that say what they are."""
        return [(f"{text} {group.name}", group) for name, text in KINDS.items() for group in getattr(self, name)]

    def verdict(self) -> str:
        """Say in a few sentences whether the confidences are calibrated, for all tokens and in the groups."""
        groups = self.groups()
        bad = [(name, group) for name, group in groups if group.p_adjusted <= SIGNIFICANCE]
        tests = (
            f"{len(groups)} group{'s' * (len(groups) != 1)} by position{' and frequency' if self.by_frequency else ''}"
        )
        if not bad:
            return f"{self.evaluation.verdict()} No miscalibration detectable in any of {tests}."
        name, worst = max(bad, key=lambda pair: pair[1].inference.debiased_ece[0])
        result = worst.evaluation
        return (
            f"{self.evaluation.verdict()} {len(bad)} of {tests} {'is' if len(bad) == 1 else 'are'} significantly "
            f"miscalibrated; worst: {name}, ECE {100 * result.ece:.1f} points (confidence "
            f"{100 * result.confidence:.1f} %, right {100 * result.accuracy:.1f} %)."
        )

    def table(self) -> Table:
        """Return a table with a row for all tokens and one for each group, in percent."""
        assert self.evaluation.inference is not None
        rows = [_row("all tokens", self.evaluation, self.evaluation.inference.p_value)]
        rows += [_row(name, group.evaluation, group.p_adjusted) for name, group in self.groups()]
        level = f"debiased, {100 * self.evaluation.inference.level:.4g} %"
        headings = ["", "tokens", "error", "conf - acc", "ECE", "floor", level, "p"]
        title = (
            f"{self.num_tokens:,} tokens in {self.num_sequences:,} sequences, perplexity {self.perplexity:.4g}; "
            "percent; p of groups is adjusted"
        )
        omitted = f"; left out, in one sequence only: {', '.join(self.omitted)}" if self.omitted else ""
        return Table(headings, rows, title + omitted)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON: fractions, values that are not finite are None."""
        return {
            "schema": SCHEMA,
            "num_tokens": self.num_tokens,
            "num_sequences": self.num_sequences,
            "perplexity": finite(self.perplexity),
            "evaluation": self.evaluation.to_dict(),
            "by_frequency": [group.to_dict() for group in self.by_frequency],
            "by_position": [group.to_dict() for group in self.by_position],
            "omitted": list(self.omitted),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema.
            KeyError: an entry is missing.
        """
        check_schema("a token evaluation", content, SCHEMA)

        def groups(entries: Sequence[Mapping[str, Any]]) -> tuple[GroupEvaluation, ...]:
            return tuple(GroupEvaluation(e["group"], Evaluation.from_dict(e), e["p_adjusted"]) for e in entries)

        return cls(
            Evaluation.from_dict(content["evaluation"]),
            groups(content["by_frequency"]),
            groups(content["by_position"]),
            tuple(content["omitted"]),
        )

    def __str__(self) -> str:
        table = self.table()
        return "\n".join([table.title, table.text(), self.verdict()])

    def _repr_html_(self) -> str:
        return f"{self.table().html()}<p><b>{html.escape(self.verdict())}</b></p>"


def _row(name: str, evaluation: Evaluation, p_value: float) -> list[str]:
    assert evaluation.inference is not None
    low, high = evaluation.inference.debiased_ece
    return [
        name,
        f"{evaluation.num_samples:,}",
        f"{100 * evaluation.error:.1f}",
        f"{100 * evaluation.overconfidence:+.1f}",
        f"{100 * evaluation.ece:.1f}",
        f"{100 * evaluation.inference.floors['ece'].mean:.1f}",
        f"{100 * low:.1f} - {100 * high:.1f}",
        f"{p_value:.3f}",
    ]
