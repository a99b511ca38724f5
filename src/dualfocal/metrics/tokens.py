"""Calibration of next-token predictions: sums by sequence, position and token frequency, which merge exactly.

The tokens of a sequence depend on each other, so that sequences are the clusters of the inference.

Groups must not be made from the label. Among the tokens whose *target* is rare, the model is right less often than it
is confident, and among those whose target is frequent more often, even if every probability is exact: a calibrated
model promises that of its predictions with confidence 0.7 seven in ten are right, not that of any set of targets seven
in ten were found. Tokens are therefore grouped by what is known before the label is:

- by the *frequency of the predicted token* in another text, such as the training text. A model whose probabilities are
  exact is calibrated in each of these groups. The text that is evaluated must not be counted: a predicted token that
  does not occur in it is wrong by construction, so that the group of tokens with count 0 would always look
  over-confident. ``benchmarks/token_groups.py`` shows both mistakes by simulation.
- by *position*: the number of tokens of the sequence before the predicted one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal.checks import check_count
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.groups import GroupEvaluation, group_headings, group_row
from dualfocal.metrics.inference_result import SIGNIFICANCE, holm
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.result import Evaluation, check_schema, finite, inference_of
from dualfocal.metrics.several import tracked
from dualfocal.metrics.sums import CalibrationSums
from dualfocal.tables import Table, quantity

DECADES = 10 ** torch.arange(18)  # lower ends of the groups of frequencies, after the group of 0
POWERS = 2 ** torch.arange(62)  # lower ends of the groups of positions

SCHEMA = 2
KINDS = {"by_frequency": "predicted token, count", "by_position": "position"}  # in tables

Groups = dict[int, CalibrationSums]


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


class TokenConfidences:
    """Sums of next-token predictions, for an evaluation of all tokens, and by position and token frequency.

    ``update`` adds tokens; ``a + b`` merges the states of two parts of the text. The size of a state depends on the
    number of sequences, not on their lengths.

    Args:
        token_counts: how often each token occurs in a text other than the evaluated one, such as the training text:
            one count per token, or a mapping from token to count; a missing token has count 0. None: no groups by
            frequency.
        num_bins: number of bins of the calibration errors.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> state = TokenConfidences(token_counts=[0, 5, 2000])
    >>> for text in range(50):
    ...     confidence = torch.rand(30, generator=generator)
    ...     right = torch.rand(30, generator=generator) < confidence
    ...     predicted = torch.randint(3, (30,), generator=generator)
    ...     state.update(confidence, right, sequence=text, position=torch.arange(1, 31), predicted=predicted)
    >>> state
    TokenConfidences(1,500 tokens in 50 sequences, 15 bins)
    >>> [group.name for group in state.evaluate().by_frequency]
    ['0', '1-9', '1,000-9,999']
    """

    def __init__(self, token_counts: Array | Mapping[int, int] | None = None, num_bins: int = 15) -> None:
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        self.decade = None if token_counts is None else _decades(token_counts)  # group of each token
        self.by_position: Groups = {}
        self.by_frequency: Groups = {}
        self.shards: set[str] = set()  # parts of the text whose sequences have numbers instead of ids

    @property
    def total(self) -> CalibrationSums | None:
        """Sums of all tokens; None without tokens."""
        if not self.by_position:
            return None
        first, *others = self.by_position.values()
        return sum(others, start=first)

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return sum(group.num_samples for group in self.by_position.values())

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return 0 if self.total is None else self.total.num_clusters or 0

    def update(
        self,
        confidence: Tensor,
        right: Tensor,
        *,
        sequence: Array | int | str,
        position: Tensor,
        predicted: Tensor | None = None,
        nll: Tensor | None = None,
        brier: Tensor | None = None,
    ) -> None:
        """Add tokens.

        Args:
            confidence: probability of the predicted token, ``(N,)``.
            right: whether it is the token of the text, ``(N,)``.
            sequence: the sequence of each token, ``(N,)``, whole numbers or texts; or one sequence for all tokens.
            position: number of tokens of the sequence before each token, ``(N,)``, at least 1.
            predicted: the predicted token, ``(N,)``; only needed with ``token_counts``.
            nll: negative log-likelihood of each token, ``(N,)``.
            brier: Brier score of each token, ``(N,)``.

        Raises:
            ValueError: a shape or value is invalid.
        """
        if not len(position):
            return
        if int(position.min()) < 1:
            raise ValueError(
                f"position must be at least 1, got {int(position.min())}: the first token is not predicted"
            )
        groups: list[tuple[Groups, Tensor]] = [
            (self.by_position, torch.searchsorted(POWERS, position.cpu(), right=True) - 1)
        ]
        if self.decade is not None:
            if predicted is None:
                raise ValueError("groups by token frequency need the predicted token of each token")
            groups.append((self.by_frequency, _lookup(self.decade, predicted.cpu())))
        arguments = {"confidence": confidence, "right": right, "nll": nll, "brier": brier}
        columns = {name: column.cpu() for name, column in arguments.items() if column is not None}
        names = sequence if isinstance(sequence, int | str) else np.asarray(sequence)
        for states, index in groups:
            for group in sorted(set(index.tolist())):
                here = index == group
                clusters = names if isinstance(names, int | str) else names[here.numpy()]
                part = {name: column[here] for name, column in columns.items()}
                sums = CalibrationSums.from_confidences(clusters=clusters, num_bins=self.num_bins, **part)
                states[group] = states[group] + sums if group in states else sums

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, TokenConfidences):
            return NotImplemented
        if self.num_bins != other.num_bins or not _equal(self.decade, other.decade):
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same num_bins and token_counts")
        if both := self.shards & other.shards:
            raise ValueError(
                f"cannot merge two states of shard {min(both)!r}: their sequences have the same numbers; give each "
                "part of the text another shard, or sequence_ids"
            )
        result = type(self)(num_bins=self.num_bins)
        result.decade, result.shards = self.decade, self.shards | other.shards
        result.by_position = _merged(self.by_position, other.by_position)
        result.by_frequency = _merged(self.by_frequency, other.by_frequency)
        return result

    def __repr__(self) -> str:
        size = f"{quantity(self.num_tokens, 'token')} in {quantity(self.num_sequences, 'sequence')}"
        return f"TokenConfidences({size}, {quantity(self.num_bins, 'bin')})"

    def evaluate(
        self,
        *,
        level: float = 0.9,
        draws: int = 1000,
        seed: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> TokenEvaluation:
        """Evaluate all tokens and each group.

        The p-values of the groups are adjusted for the number of groups of both kinds, by Holm's method.

        Args:
            level: nominal coverage of the intervals.
            draws: number of draws for floors and p-values; small p-values are computed from more draws.
            seed: seed of the draws.
            progress: called with the share of the work that is done.

        Raises:
            ValueError: there are no tokens, or only one sequence.
        """
        total = self.total
        if total is None:
            raise ValueError("no tokens: every label is ignored, or no sequence has two tokens")
        if total.num_clusters == 1:
            raise ValueError(
                "all tokens are in one sequence: the noise is learned from differences between sequences, so at least "
                "two are needed (40 or more for reliable tests); cut a long text into several documents"
            )
        named = [("frequency", frequency_name(k), group) for k, group in sorted(self.by_frequency.items())]
        named += [("position", position_name(k), group) for k, group in sorted(self.by_position.items())]
        tested = [(kind, name, group) for kind, name, group in named if group.num_clusters != 1]
        settings = Settings(level, draws, seed, tests=len(tested))
        evaluations = [group.summarize(settings) for _, _, group in tracked(tested, progress)]
        adjusted = holm([inference_of(result).joint_p_value for result in evaluations])
        groups: dict[str, list[GroupEvaluation]] = {"frequency": [], "position": []}
        for (kind, name, _), result, p in zip(tested, evaluations, adjusted, strict=True):
            groups[kind].append(GroupEvaluation(name, result, p))
        return TokenEvaluation(
            total.evaluate(level=level, draws=draws, seed=seed),
            tuple(groups["frequency"]),
            tuple(groups["position"]),
            tuple(f"{kind} {name}" for kind, name, group in named if group.num_clusters == 1),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON, to be kept in a file and merged with those of other machines."""
        return {
            "schema": SCHEMA,
            "num_bins": self.num_bins,
            "token_groups": None if self.decade is None else self.decade.tolist(),
            "shards": sorted(self.shards),
            "by_position": {str(k): group.to_dict() for k, group in sorted(self.by_position.items())},
            "by_frequency": {str(k): group.to_dict() for k, group in sorted(self.by_frequency.items())},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema, or its sums contradict each other.
            KeyError, TypeError, IndexError: an entry is missing or invalid.
        """
        check_schema("a state of next-token predictions", content, SCHEMA)
        state = cls(num_bins=content["num_bins"])
        state.decade = None if content["token_groups"] is None else torch.tensor(content["token_groups"])
        state.shards = set(content["shards"])
        state.by_position, state.by_frequency = (
            {int(k): CalibrationSums.from_dict(group) for k, group in content[name].items()}
            for name in ("by_position", "by_frequency")
        )
        return state


def frequency_name(index: int) -> str:
    """Return the name of a group of frequencies.

    >>> frequency_name(0), frequency_name(1), frequency_name(4)
    ('0', '1-9', '1,000-9,999')
    """
    return "0" if index == 0 else f"{10 ** (index - 1):,}-{10**index - 1:,}"


def position_name(index: int) -> str:
    """Return the name of a group of positions.

    >>> position_name(0), position_name(3)
    ('1', '8-15')
    """
    return "1" if index == 0 else f"{2**index:,}-{2 ** (index + 1) - 1:,}"


def _decades(token_counts: Array | Mapping[int, int]) -> Tensor:
    """Return the group of each token by its count."""
    if isinstance(token_counts, Mapping):
        counts = torch.zeros(max(token_counts, default=-1) + 1, dtype=torch.int64)
        for token, count in token_counts.items():
            counts[token] = count
    else:
        counts = as_tensor("token_counts", token_counts).cpu()
    if counts.ndim != 1 or counts.is_floating_point() or not len(counts) or int(counts.min()) < 0:
        raise ValueError(
            f"token_counts must hold one whole number per token, not negative, got {counts.dtype} of shape "
            f"{tuple(counts.shape)}"
        )
    return torch.searchsorted(DECADES, counts.long(), right=True)


def _lookup(decade: Tensor, tokens: Tensor) -> Tensor:
    """Return the group of each token; tokens beyond the table have count 0."""
    known = tokens < len(decade)
    return torch.where(known, decade[torch.where(known, tokens, 0)], 0)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    size = max(len(a), len(b))  # tokens beyond a table have count 0
    return torch.equal(*(torch.nn.functional.pad(decades, (0, size - len(decades))) for decades in (a, b)))


def _merged(a: Groups, b: Groups) -> Groups:
    return a | b | {key: a[key] + b[key] for key in a.keys() & b.keys()}
