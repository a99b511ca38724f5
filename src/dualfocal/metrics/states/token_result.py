"""The result of an evaluation of next-token predictions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dualfocal.metrics.groups import GroupEvaluation, group_headings, group_row
from dualfocal.metrics.inference.classwise import SIGNIFICANCE
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.result import Evaluation, check_schema, finite, inference_of
from dualfocal.tables import Table, quantity

SCHEMA = 1
KINDS = {"by_frequency": "predicted token, count", "by_position": "position"}  # in tables


@dataclass(frozen=True)
class TokenEvaluation(Printed):
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
        clusters = inference_of(self.evaluation).clusters
        assert clusters is not None
        return clusters.number

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
        rows = [group_row("all tokens", self.evaluation, inference_of(self.evaluation).p_value)]
        rows += [group_row(name, group.evaluation, group.p_adjusted) for name, group in self.groups()]
        headings = ["", "tokens", *group_headings(self.evaluation), "p"]
        title = (
            f"{quantity(self.num_tokens, 'token')} in {quantity(self.num_sequences, 'sequence')}, perplexity "
            f"{self.perplexity:.4g}; percent; p of groups is adjusted"
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

        return cls(
            Evaluation.from_dict(content["evaluation"]),
            tuple(map(GroupEvaluation.from_dict, content["by_frequency"])),
            tuple(map(GroupEvaluation.from_dict, content["by_position"])),
            tuple(content["omitted"]),
        )
