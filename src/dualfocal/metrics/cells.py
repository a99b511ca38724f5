"""Bins of confidences, or of the probabilities of every class: sums over the samples of each bin that add up.

All sums are float64. Samples can be split into batches, processes or files and merged in any order: every number agrees
to 1e-12.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal.checks import check_count
from dualfocal.metrics.arrays import Array, as_tensor

Floats = NDArray[np.float64]

SUMS = ("count", "confidence", "correct", "variance", "squares", "correct_squares")
WEIGHTED = ("squares", "correct_squares")  # equal to count and correct, unless samples have weights
CONVENTIONS = (None, "published", "torchmetrics")
ROUNDING = 2.0**-33  # a probability that exceeds an edge by less lies on it
ONE_SAMPLE = 1e-9  # 1 - sum w^2 / (sum w)^2 of a bin with one sample, up to rounding


@dataclass(frozen=True, eq=False)
class BinStats:
    """Sums over the samples of each bin, float64 ``(B,)``, or ``(..., B)`` for several rows of bins.

    A sample has a probability p, an outcome y, 0 or 1, and a weight w, 1 if it is not given. ``a + b`` merges the bins
    of two sets of samples. Make one with :meth:`from_confidence`.

    Args:
        count: sum of w, the number of samples.
        confidence: sum of w p.
        correct: sum of w y.
        variance: variance of ``correct`` for a calibrated model, the sum of w^2 p (1 - p).
        squares: sum of w^2.
        correct_squares: sum of w^2 y.
        edges: ``(B + 1,)``; bin b is ``(edges[b], edges[b + 1]]``, and 0 is in the first bin.

    >>> a = BinStats.from_confidence([0.9, 0.8, 0.3], [True, False, True], num_bins=2)
    >>> b = BinStats.from_confidence([1.0], [True], num_bins=2)
    >>> (a + b).count, (a + b).accuracy
    (array([1., 3.]), array([1.        , 0.66666667]))
    """

    count: Floats
    confidence: Floats
    correct: Floats
    variance: Floats
    squares: Floats
    correct_squares: Floats
    edges: Floats

    @classmethod
    def from_confidence(
        cls,
        confidence: Array,
        correct: Array,
        *,
        num_bins: int = 15,
        edges: Array | None = None,
        sample_weight: Array | None = None,
    ) -> Self:
        """Bin confidences in [0, 1], with the correctness of each sample.

        Edges k/B are rounded to the dtype of the confidences, so that a float32 0.2 lies on the edge 1/5.

        Args:
            confidence: ``(N,)``, floating point.
            correct: ``(N,)``, bool or 0/1.
            num_bins: number of equal-width bins, if ``edges`` is not given.
            edges: ``(B + 1,)``, increasing from 0 to 1.
            sample_weight: ``(N,)``, not negative.

        Raises:
            ValueError: a shape, dtype or value breaks one of these rules; the message names it.
        """
        p, y = as_tensor("confidence", confidence).detach(), as_tensor("correct", correct)
        if p.ndim != 1 or y.shape != p.shape:
            raise ValueError(
                f"confidence and correct must have the same shape (N,), got {tuple(p.shape)} and {tuple(y.shape)}"
            )
        if not p.is_floating_point() or not bool(((p >= 0) & (p <= 1)).all()):
            raise ValueError(f"confidence must hold floating point values in [0, 1] and no NaN, got {p.dtype}")
        if y.is_floating_point() or not bool(((y == 0) | (y == 1)).all()):
            raise ValueError(f"correct must be bool or hold 0 and 1, got {y.dtype}")
        if edges is None:
            bounds = equal_edges(num_bins, p.dtype)
        else:
            bounds = as_tensor("edges", edges).cpu().double().numpy()
            check_edges(bounds)
        weight = None
        if sample_weight is not None:
            weights = as_tensor("sample_weight", sample_weight)
            if weights.shape != p.shape or not bool((weights >= 0).all()):
                raise ValueError(f"sample_weight must have shape {tuple(p.shape)} and not be negative")
            weight = weights.cpu().double().numpy()
        return cls.collect(p.cpu().double().numpy(), y.cpu().numpy().astype(bool), bounds, weight=weight)

    @classmethod
    def collect(
        cls,
        confidence: Floats,
        correct: NDArray[np.bool_],
        edges: Floats,
        *,
        weight: Floats | None = None,
        noise: Floats | None = None,
        index: NDArray[np.int64] | None = None,
    ) -> Self:
        """Sum samples by bin, without checks.

        Args:
            confidence: probability of each sample, ``(N,)``.
            correct: outcome of each sample, ``(N,)``.
            edges: edges of the bins.
            weight: weight of each sample (None: 1).
            noise: variance of w y of each sample for a calibrated model (None: w^2 p (1 - p)).
            index: bin of each sample, if it is not that of the edges.
        """
        size = len(edges) - 1
        index = bin_index(confidence, edges) if index is None else index
        both = np.bincount(2 * index + correct, weight, 2 * size).reshape(size, 2)
        noise = confidence * (1 - confidence) * (1.0 if weight is None else weight**2) if noise is None else noise
        squares = both if weight is None else np.bincount(2 * index + correct, weight**2, 2 * size).reshape(size, 2)
        return cls(
            count=both.sum(1, dtype=np.float64),
            confidence=tally(index, confidence if weight is None else weight * confidence, size),
            correct=both[:, 1].astype(np.float64),
            variance=tally(index, noise, size),
            squares=squares.sum(1, dtype=np.float64),
            correct_squares=squares[:, 1].astype(np.float64),
            edges=edges,
        )

    @classmethod
    def empty(cls, *shape: int, edges: Floats) -> Self:
        """Return bins without samples; ``shape`` is that of the rows of bins."""
        return cls.of(np.zeros((len(SUMS), *shape, len(edges) - 1)), edges)

    @classmethod
    def of(cls, sums: Iterable[Floats], edges: Floats) -> Self:
        """Return bins with these sums, in the order of ``SUMS``."""
        return cls(**dict(zip(SUMS, sums, strict=True)), edges=edges)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, BinStats):
            return NotImplemented
        # The edges of float32 and float64 inputs differ by rounding, which is allowed.
        if self.count.shape != other.count.shape or not np.allclose(self.edges, other.edges, atol=1e-2 / self.num_bins):
            raise ValueError(f"cannot merge {self!r} and {other!r}: their classes and edges must be the same")
        return self.of((getattr(self, name) + getattr(other, name) for name in SUMS), self.edges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BinStats):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in (*SUMS, "edges"))

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Self:
        """Return some rows of bins, or some bins; the edges stay those of all bins."""
        return self.of((getattr(self, name)[index] for name in SUMS), self.edges)

    def sum(self, axis: int) -> Self:
        """Add rows of bins along an axis."""
        return self.of((getattr(self, name).sum(axis) for name in SUMS), self.edges)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.count.shape))
        return f"BinStats({shape} bins{', weighted' if self.weighted else ''})"

    @property
    def num_bins(self) -> int:
        """Number of bins, per row of bins."""
        return int(self.count.shape[-1])

    @property
    def weighted(self) -> bool:
        """Whether samples have weights."""
        return not np.array_equal(self.squares, self.count)

    @property
    def mean_confidence(self) -> Floats:
        """Mean confidence of each bin; NaN for an empty bin."""
        return _ratio(self.confidence, self.count)

    @property
    def accuracy(self) -> Floats:
        """Accuracy of each bin; NaN for an empty bin."""
        return _ratio(self.correct, self.count)

    @property
    def gap(self) -> Floats:
        """Sum of confidence - correctness over each bin; positive if the bin is over-confident."""
        return self.confidence - self.correct

    @property
    def gap_variance(self) -> Floats:
        """Variance of ``gap`` about its expectation, estimated from the accuracy; infinite for a bin with one sample.

        It is sum w^2 (y - accuracy)^2 / (1 - sum w^2 / (sum w)^2): n^2 a (1 - a) / (n - 1) for n samples with equal
        weights and accuracy a, and right also if weights depend on the outcome.
        """
        accuracy = np.nan_to_num(self.accuracy)
        noise = (self.squares - self.correct_squares) * accuracy**2 + self.correct_squares * (1 - accuracy) ** 2
        rest = 1 - np.nan_to_num(_ratio(self.squares, self.count**2), nan=1.0)
        return np.where(rest > ONE_SAMPLE, noise / np.maximum(rest, ONE_SAMPLE), np.inf)

    def effective_count(self) -> Floats:
        """Return how many equally weighted samples of each bin would have the same noise; the count without weights.

        It is the smaller of (sum w)^2 / sum w^2 and the number that follows from the weights of wrong and of correct
        samples, which differ if weights depend on labels.
        """
        if not self.weighted:
            return self.count
        accuracy = np.nan_to_num(self.accuracy)
        noise = (self.squares - self.correct_squares) * accuracy**2 + self.correct_squares * (1 - accuracy) ** 2
        by_outcome = np.where(noise > 0, accuracy * (1 - accuracy) * self.count**2 / np.maximum(noise, 1e-300), np.inf)
        return np.where(self.count > 0, np.minimum(np.nan_to_num(_ratio(self.count**2, self.squares)), by_outcome), 0.0)

    def ece(self) -> Any:
        """Return the sum over bins of |B|/N |mean confidence - accuracy|; an array if there are several rows of bins.

        NaN without samples.
        """
        return _ratio(np.abs(self.gap).sum(-1), self.count.sum(-1))[()]

    def mce(self) -> Any:
        """Return the largest |mean confidence - accuracy| of the bins that are not empty; NaN without samples."""
        largest = np.nan_to_num(_ratio(np.abs(self.gap), self.count)).max(-1)
        return np.where(self.count.sum(-1) > 0, largest, np.nan)[()]

    def squared_error(self) -> float:
        """Return the debiased estimate of sum_b |B|/N (mean confidence - accuracy)^2, which can be negative.

        The expected noise of each bin is subtracted from its squared gap (Kumar et al., NeurIPS 2019). A bin with one
        sample counts as 0: its noise cannot be estimated.
        """
        known = np.isfinite(self.gap_variance) & (self.count > 0)
        squares = np.where(known, self.gap**2 - np.where(known, self.gap_variance, 0.0), 0.0)
        return float((squares / np.maximum(self.count, 1e-300)).sum() / self.count.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return edges, counts and means of the bins, for JSON; the means of an empty bin are None.

        With sample weights, counts are sums of weights, and the sums of their squares are there, too.
        """
        means = {"confidence": self.mean_confidence, "accuracy": self.accuracy}
        content: dict[str, Any] = {
            "edges": self.edges.tolist(),
            "count": [int(value) if value == int(value) else value for value in self.count.tolist()],
            **{name: [value if value == value else None for value in mean.tolist()] for name, mean in means.items()},
        }
        return content | ({name: getattr(self, name).tolist() for name in WEIGHTED} if self.weighted else {})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`; the variances are those of samples with equal confidences in a bin."""
        count = np.array(content["count"], np.float64)
        mean, accuracy = (np.array([value or 0.0 for value in content[name]]) for name in ("confidence", "accuracy"))
        weighted = "squares" in content
        correct = count * accuracy if weighted else np.rint(count * accuracy)
        squares = [np.array(content[name]) for name in WEIGHTED] if weighted else [count, correct]
        sums = (count, count * mean, correct, squares[0] * mean * (1 - mean), *squares)
        return cls.of(sums, np.array(content["edges"]))


def tally(index: NDArray[np.int64], values: NDArray[Any] | None, size: int) -> Floats:
    """Sum values by index; count them if there are no values."""
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def equal_edges(num_bins: int, dtype: torch.dtype = torch.float64) -> Floats:
    """Return the edges k/B, rounded to ``dtype`` but stored as float64."""
    check_count("num_bins", num_bins)
    edges: Floats = (
        (torch.arange(num_bins + 1, dtype=torch.float64, device="cpu") / num_bins).to(dtype).double().numpy()
    )
    return edges


def check_edges(edges: Floats) -> None:
    """Raise a ValueError unless the edges increase from 0 to 1."""
    if edges.ndim != 1 or len(edges) < 2 or edges[[0, -1]].tolist() != [0, 1] or (np.diff(edges) < 0).any():
        raise ValueError(f"edges must increase from 0 to 1, got {edges.tolist()}")


def bin_index(p: Floats, edges: Floats) -> NDArray[np.int64]:
    """Return the bin ``(lo, hi]`` of each probability; 0 is in the first bin.

    >>> bin_index(np.array([0.0, 0.25, 0.26, 1.0]), equal_edges(4))
    array([0, 0, 1, 3])
    """
    size = len(edges) - 1
    bounds = edges + ROUNDING
    if size == 1 or np.abs(edges * size - np.arange(size + 1)).max() > 0.25:
        return np.searchsorted(bounds[1:-1], p)
    low, high = bounds[:-1].copy(), bounds[1:].copy()
    low[0], high[-1] = -np.inf, np.inf
    index = (p * size).astype(np.int64)  # faster than a search, and at most one bin away
    np.minimum(index, size - 1, out=index)
    index -= p <= low[index]
    index += p > high[index]
    return index


def _ratio(values: Floats, count: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(values / count)
