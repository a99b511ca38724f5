"""Bins of confidences: counts and sums that merge exactly. This is the only binning code.

Each confidence is rounded once, to a multiple of 2^-32. All sums are integer sums, so samples can be split into
batches, processes or files and merged in any order: the result has the same bits. Sample weights are the exception:
weighted sums are float64, and merge up to rounding.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.units import ONE, Binner, check_edges, equal_edges, from_units, scatter_sum, to_units

MOST_SAMPLES = 1 << 62  # per bin

BLOCK = 1 << 15  # samples binned at a time on a CPU, so that they stay in its cache

SUMS = ("count", "whole", "units", "correct")
CONVENTIONS = (None, "published", "torchmetrics")
ONE_SAMPLE = 1e-9  # 1 - sum w^2 / (sum w)^2 of a bin with one sample, up to rounding


@dataclass(frozen=True, eq=False)
class BinStats:
    """Number of samples, sum of confidences and number of correct samples in each bin.

    ``a + b`` merges the bins of two sets of samples exactly, in any order. Make one with :meth:`from_confidence`. With
    sample weights, all sums are float64: merging in another order, or other parts, can change the last bits.

    Args:
        count: samples in each bin, int64 ``(B,)``, or ``(C, B)`` for one row of bins per class; with sample weights,
            float64 sums of weights.
        whole: sum of confidences, rounded down, int64; with sample weights, their weighted sum, float64.
        units: the rest of the sum in units of 2^-32, int64, below 2^32; with sample weights, 0. With the whole part it
            makes an exact sum of up to 2^62 samples.
        correct: number of correct samples, int64; with sample weights, float64.
        edges: ``(B + 1,)`` float64; bin b is ``(edges[b], edges[b + 1]]``.
        squares: with sample weights, the sums of squared weights of the wrong and of the correct samples, ``(2, B)``,
            from which the noise of the bins follows; None for bins of classes.

    >>> import torch
    >>> a = BinStats.from_confidence(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([True, False, True]), num_bins=2)
    >>> b = BinStats.from_confidence(torch.tensor([1.0]), torch.tensor([True]), num_bins=2)
    >>> (a + b).count, (a + b).accuracy
    (tensor([1, 3]), tensor([1.0000, 0.6667], dtype=torch.float64))
    >>> a + b == b + a
    True
    """

    count: Tensor
    whole: Tensor
    units: Tensor
    correct: Tensor
    edges: Tensor
    squares: Tensor | None = None

    @classmethod
    def from_sums(
        cls, count: Tensor, units: Tensor, correct: Tensor, edges: Tensor, whole: Tensor | None = None
    ) -> Self:
        """Make bins from sums of confidences in units of 2^-32, int64, of any size, and an optional whole part."""
        carried = units >> 32
        return cls(count, carried if whole is None else carried + whole, units & (ONE - 1), correct, edges)

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

        Bins are ``(lo, hi]``; confidence 0 is in the first bin. An edge k/B is rounded to the dtype of the confidences,
        so that a float32 0.2 lies on the edge 1/5.

        Args:
            confidence: ``(N,)``, floating point.
            correct: ``(N,)``, bool or 0/1.
            num_bins: number of equal-width bins, if ``edges`` is not given.
            edges: ``(B + 1,)``, increasing from 0 to 1.
            sample_weight: ``(N,)``, not negative. Sums are then float64, and no longer exact.

        Raises:
            ValueError: a shape, dtype or value breaks one of these rules; the message names it.
        """
        confidence, correct = as_tensor("confidence", confidence), as_tensor("correct", correct)
        if confidence.ndim != 1 or correct.shape != confidence.shape:
            raise ValueError(
                f"confidence and correct must have the same shape (N,), got {tuple(confidence.shape)} and "
                f"{tuple(correct.shape)}"
            )
        if not confidence.is_floating_point() or not bool(((confidence >= 0) & (confidence <= 1)).all()):
            raise ValueError(f"confidence must hold floating point values in [0, 1] and no NaN, got {confidence.dtype}")
        if correct.is_floating_point() or not bool(((correct == 0) | (correct == 1)).all()):
            raise ValueError(f"correct must be bool or hold 0 and 1, got {correct.dtype}")
        bounds = equal_edges(num_bins, confidence.dtype, confidence.device)
        if edges is not None:
            bounds = as_tensor("edges", edges).double().to(confidence.device)
            check_edges(bounds)
        weight = None if sample_weight is None else as_tensor("sample_weight", sample_weight).double()
        if weight is not None and (weight.shape != confidence.shape or not bool((weight >= 0).all())):
            raise ValueError(f"sample_weight must have shape {tuple(confidence.shape)} and not be negative")
        return cls.from_units(to_units(confidence.detach()), correct, bounds, weight)

    @classmethod
    def from_units(cls, units: Tensor, correct: Tensor, edges: Tensor, weight: Tensor | None = None) -> Self:
        """Bin confidences that are given in int64 units of 2^-32."""
        binner = Binner(edges)
        if weight is not None:
            return cls.from_index(binner(units), units, correct, edges, weight)
        num_bins = binner.num_bins
        count, total, hits = torch.zeros(3, num_bins, dtype=torch.int64, device=units.device)
        block = BLOCK if units.is_cpu else max(1, len(units))
        for start in range(0, len(units), block):
            part = units[start : start + block]
            index = binner(part)
            both = (index << 1).bitwise_or_(correct[start : start + block])
            if both.is_cpu:
                counts = torch.from_numpy(np.bincount(both.numpy(), minlength=2 * num_bins))
            else:  # torch.bincount would synchronise with the device
                counts = scatter_sum(both, torch.ones_like(both), 2 * num_bins)
            counts = counts.view(num_bins, 2)
            count += counts.sum(1)
            hits += counts[:, 1]
            total += scatter_sum(index, part, num_bins)
        return cls.from_sums(count, total, hits, edges)

    @classmethod
    def from_index(
        cls, index: Tensor, units: Tensor, correct: Tensor, edges: Tensor, weight: Tensor | None = None
    ) -> Self:
        """Sum samples by the index of their bin."""
        values = (torch.ones_like(index), units, correct.long())
        if weight is not None:
            values = (weight, weight * from_units(units), weight * correct)
        count, confidence, hits = (scatter_sum(index, part, len(edges) - 1) for part in values)
        if weight is not None:
            square = weight * weight
            squares = torch.stack(
                [scatter_sum(index, part, len(edges) - 1) for part in (square * ~correct.bool(), square * correct)]
            )
            return cls(count, confidence, torch.zeros_like(confidence), hits, edges, squares)
        return cls.from_sums(count, confidence, hits, edges)

    @classmethod
    def from_table(
        cls, table: Iterable[Sequence[Any]], *, num_bins: int = 15, dtype: torch.dtype = torch.float64
    ) -> Self:
        """Read rows (bin, samples, sum of confidences in units of 2^-32, correct samples), as a database sums them.

        Empty bins may be missing. Rows of the same bin are added.

        Args:
            table: the rows; whole numbers of any size and type, such as ``Decimal``.
            num_bins: number of equal-width bins.
            dtype: dtype of the confidences, to which the edges k/B are rounded.

        Raises:
            ValueError: a number is not whole or out of range.

        >>> BinStats.from_table([(1, 2, 3 << 31, 1)], num_bins=2).mean_confidence
        tensor([   nan, 0.7500], dtype=torch.float64)
        """
        edges = equal_edges(num_bins, dtype)
        sums = [[0, 0, 0] for _ in range(num_bins)]
        for row in table:
            index, count, units, correct = (int(value) for value in row)
            if [index, count, units, correct] != list(row) or not (0 <= index < num_bins and 0 <= correct <= count):
                raise ValueError(
                    f"a row must be (bin below {num_bins}, count, units, correct), whole numbers with correct <= "
                    f"count, got {tuple(row)}"
                )
            if not 0 <= units <= count * ONE:
                raise ValueError(f"{count} confidences must sum to 0 to {count * ONE} units of 2^-32, got {units}")
            sums[index] = [a + b for a, b in zip(sums[index], (count, units, correct), strict=True)]
        rows = [(n, *divmod(total, ONE), hits) for n, total, hits in sums]
        counts, whole, rest, right = torch.tensor(rows, dtype=torch.int64).T.contiguous()
        return cls(counts, whole, rest, right, edges)

    @classmethod
    def empty(cls, *shape: int, edges: Tensor) -> Self:
        """Return bins without samples; give ``num_classes`` for one row of bins per class."""
        zeros = torch.zeros(*shape, len(edges) - 1, dtype=torch.int64, device=edges.device)
        return cls(zeros, zeros.clone(), zeros.clone(), zeros.clone(), edges)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, BinStats):
            return NotImplemented
        if self.count.shape != other.count.shape or self.weighted != other.weighted:
            raise ValueError(f"cannot merge {self!r} and {other!r}")
        # The edges of float32 and float64 inputs differ by rounding, which is allowed.
        if not torch.allclose(self.edges, other.edges.to(self.edges.device), atol=1e-2 / self.num_bins):
            raise ValueError("cannot merge bins with different edges")
        count, whole, units, correct = (getattr(self, name) + getattr(other, name) for name in SUMS)
        if self.weighted:
            squares = None if self.squares is None or other.squares is None else self.squares + other.squares
            return type(self)(count, whole, units, correct, self.edges, squares)
        return type(self).from_sums(count, units, correct, self.edges, whole)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BinStats):
            return NotImplemented
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in SUMS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.count.shape))
        return f"BinStats({shape} bins{', weighted' if self.weighted else ''})"

    @property
    def weighted(self) -> bool:
        """Whether the samples have weights."""
        return self.count.is_floating_point()

    @property
    def num_bins(self) -> int:
        """Number of bins, per class if there are classes."""
        return self.count.shape[-1]

    @property
    def confidence(self) -> Tensor:
        """Sum of the confidences in each bin, float64."""
        return self.whole + from_units(self.units)

    @property
    def mean_confidence(self) -> Tensor:
        """Mean confidence of each bin, float64; NaN for an empty bin."""
        return self.confidence / self.count

    @property
    def accuracy(self) -> Tensor:
        """Accuracy of each bin, float64; NaN for an empty bin."""
        return self.correct.to(wide_dtype(self.correct)) / self.count

    @property
    def gap(self) -> Tensor:
        """Sum of (confidence - correctness) over each bin, float64; positive if the bin is over-confident."""
        if self.count.is_cpu and bool((self.count >= MOST_SAMPLES).any()):
            raise OverflowError(f"a bin holds {int(self.count.max())} samples, at most {MOST_SAMPLES - 1} are possible")
        return (self.whole - self.correct) + from_units(self.units)  # rounded once, at the end

    def effective_count(self) -> Tensor:
        """Return how many equally weighted samples of each bin would have the same noise; the count without weights.

        It is the smaller of (sum w)^2 / sum w^2 and the number that follows from the weights of wrong and of correct
        samples, which differ if weights depend on labels.
        """
        if self.squares is None:
            return self.count
        square, accuracy = self.count**2, self.accuracy
        noise = self.squares[0] * accuracy**2 + self.squares[1] * (1 - accuracy) ** 2
        by_outcome = torch.where(noise > 0, accuracy * (1 - accuracy) * square / noise, torch.inf)
        return torch.where(self.count > 0, torch.minimum(square / self.squares.sum(0), by_outcome), 0.0)

    def ece(self) -> Tensor:
        """Return the sum over bins of |B|/N |mean confidence - accuracy|, one value per class if there are classes."""
        return self.gap.abs().sum(-1) / self.count.sum(-1)

    def mce(self) -> Tensor:
        """Return the largest |mean confidence - accuracy| of the bins that are not empty."""
        largest = (self.gap.abs() / self.count).nan_to_num(0.0).amax(-1)
        return torch.where(self.count.sum(-1) > 0, largest, torch.nan)

    def squared_error(self) -> Tensor:
        """Return the debiased estimate of sum_b |B|/N (mean confidence - accuracy)^2, which can be negative.

        The expected sampling noise, accuracy * (1 - accuracy) / (|B| - 1), is subtracted from the squared gap of each
        bin (Kumar et al., NeurIPS 2019); with sample weights, :func:`weighted_variance`. A bin with one sample counts
        as 0: its noise cannot be estimated.
        """
        if not self.weighted:
            return debiased_square(self.count, self.gap, self.accuracy)
        if self.squares is None:
            raise ValueError("the debiased error of weighted samples needs the sums of their squared weights")
        return weighted_debiased_square(self.count, self.gap, self.accuracy, self.squares)

    def map(self, function: Callable[[Tensor], Tensor], edges: Tensor | None = None) -> Self:
        """Return bins whose four sums are what a function makes of these sums: some of them, or sums of neighbours."""
        count, whole, units, correct = (function(getattr(self, name)) for name in SUMS)
        return type(self).from_sums(count, units, correct, self.edges if edges is None else edges, whole)

    def to(self, device: torch.device | str, *, copy: bool = False) -> Self:
        """Return these bins on a device; ``copy``: in memory of their own, even if they are there already."""
        squares = None if self.squares is None else self.squares.to(device, copy=copy)
        moved = {name: getattr(self, name).to(device, copy=copy) for name in (*SUMS, "edges")}
        return type(self)(**moved, squares=squares)

    def to_dict(self) -> dict[str, Any]:
        """Return edges, counts and means of the bins, for JSON; the means of an empty bin are None.

        With sample weights, counts are sums of weights, and the weighted sums are in ``"weighted"``.
        """
        means = {"confidence": self.mean_confidence, "accuracy": self.accuracy}
        content: dict[str, Any] = {
            "edges": self.edges.tolist(),
            "count": self.count.tolist(),
            **{name: [value if value == value else None for value in mean.tolist()] for name, mean in means.items()},
        }
        if self.weighted:
            squares = None if self.squares is None else self.squares.tolist()
            sums = {"confidence": self.whole.tolist(), "correct": self.correct.tolist(), "squares": squares}
            content["weighted"] = sums
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`. Sums of up to a million samples per bin are recovered exactly."""
        if "weighted" in content:
            sums = content["weighted"]
            values = (content["count"], sums["confidence"], sums["correct"], content["edges"])
            count, confidence, correct, edges = (torch.tensor(part, dtype=torch.float64) for part in values)
            squares = None if sums["squares"] is None else torch.tensor(sums["squares"], dtype=torch.float64)
            return cls(count, confidence, torch.zeros_like(confidence), correct, edges, squares)
        count = torch.tensor(content["count"])
        confidence, accuracy = (
            torch.tensor([value or 0.0 for value in content[name]], dtype=torch.float64)
            for name in ("confidence", "accuracy")
        )
        edges = torch.tensor(content["edges"], dtype=torch.float64)
        units = (confidence * count * ONE).round().long()
        return cls.from_sums(count, units, (accuracy * count).round().long(), edges)


def debiased_square(count: Tensor, gap: Tensor, accuracy: Tensor) -> Tensor:
    """Compute :meth:`BinStats.squared_error` from counts, summed gaps and accuracies of bins."""
    noise = accuracy * (1 - accuracy) / (count - 1)
    squares = torch.where(count > 1, gap * gap / count - count * noise, 0.0)
    return squares.sum(-1) / count.sum(-1)


def weighted_variance(count: Tensor, accuracy: Tensor, squares: Tensor) -> Tensor:
    """Return the variance of the summed (confidence - correctness) of bins of weighted samples.

    It is sum w^2 (y - accuracy)^2 / (1 - sum w^2 / (sum w)^2): of equal weights that of equally many samples, and right
    also if weights depend on the outcome. Infinite if a bin has one sample.

    Args:
        count: sums of weights, ``(..., B)``.
        accuracy: weighted accuracies, ``(..., B)``.
        squares: sums of squared weights of wrong and of correct samples, ``(2, ..., B)``.
    """
    noise = squares[0] * accuracy**2 + squares[1] * (1 - accuracy) ** 2
    rest = 1 - squares.sum(0) / (count * count)
    return torch.where(rest > ONE_SAMPLE, noise / rest, torch.inf)


def weighted_debiased_square(count: Tensor, gap: Tensor, accuracy: Tensor, squares: Tensor) -> Tensor:
    """Compute :meth:`BinStats.squared_error` of weighted samples."""
    variance = weighted_variance(count, accuracy, squares)
    known = (count > 0) & variance.isfinite()
    return torch.where(known, (gap * gap - variance) / count, 0.0).sum(-1) / count.sum(-1)
