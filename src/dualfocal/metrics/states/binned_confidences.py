"""Sums of the confidences of predicted classes, in whole numbers that merge exactly, and their evaluation."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from dualfocal.checks import check_count, check_level
from dualfocal.metrics.bins import SUMS, BinStats
from dualfocal.metrics.evaluation import evaluate_bins, infer_both
from dualfocal.metrics.inference.cluster_sums import ClusterSums
from dualfocal.metrics.inference.clusters import cluster_inference, cluster_squared_error
from dualfocal.metrics.inference.label_counts import CellLabels
from dualfocal.metrics.result import Evaluation, check_schema
from dualfocal.metrics.states.cells import CellConfidences, bins_of_cells, fine_edges, number_of_bins
from dualfocal.metrics.units import ONE, equal_edges, to_units
from dualfocal.tables import quantity

SCHEMA = 1
LARGEST_NLL = 2.0**31  # of a sample; larger values count as infinite


@dataclass(frozen=True, eq=False, repr=False)
class BinnedConfidences:
    """What an evaluation of the predicted class needs of a set of predictions, in whole numbers.

    ``a + b`` merges two of them exactly, in any order. All tensors are int64 (edges: float64) and lie on the CPU.

    Args:
        fine: confidences of the predicted class, in fine cells, see :func:`~dualfocal.metrics.states.cells.fine_edges`.
        nll: sum of the finite negative log-likelihoods, in units of 2^-32; None if that of a sample is unknown.
        infinite_nll: number of samples whose negative log-likelihood is infinite.
        brier: sum of the Brier scores of the samples, in units of 2^-32; None if that of a sample is unknown.
    """

    fine: BinStats
    _: KW_ONLY
    nll: int | None = 0
    infinite_nll: int = 0
    brier: int | None = 0

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.fine.count.sum())

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if only the predicted class is known."""
        return 0

    @property
    def num_bins(self) -> int:
        """Number of bins of the calibration errors."""
        return number_of_bins(self.fine)

    @property
    def edges(self) -> Tensor:
        """Edges of the bins, ``(B + 1,)`` float64."""
        return equal_edges(self.num_bins)

    @property
    def bins(self) -> BinStats:
        """Bins of the confidence of the predicted class, for ECE and reliability diagram."""
        return bins_of_cells(self.fine, self.edges)

    @property
    def error(self) -> float:
        """Share of samples whose predicted class is not the true class."""
        return 1 - int(self.fine.correct.sum()) / self.num_samples

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        if self.num_classes != other.num_classes or self.num_bins != other.num_bins:
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same numbers of classes and bins")
        if not torch.equal(self.edges, other.edges):
            raise ValueError(
                "cannot merge predictions whose bins have different edges: those of probabilities are rounded to their "
                "dtype, so give all of them in one dtype (logits: in any)"
            )
        names = [field.name for field in fields(self)]
        return type(self)(**{name: _sum(getattr(self, name), getattr(other, name)) for name in names})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        names = [field.name for field in fields(self)]
        same_edges = torch.equal(self.edges, other.edges)
        return same_edges and all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        classes = f"{self.num_classes} classes, " if self.num_classes else ""
        return (
            f"{type(self).__name__}({quantity(self.num_samples, 'sample')}, {classes}{quantity(self.num_bins, 'bin')})"
        )

    @property
    def class_bins(self) -> BinStats | None:
        """Bins of the probabilities of all classes, ``(C, B)``; None if only the predicted class is known."""
        return None

    def labels(self, seed: int) -> CellLabels | None:
        """Return the counts of labels for the class-wise test; None if only the predicted class is known."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON; empty cells are left out."""
        cell = self.fine.count.nonzero()[:, 0]
        sums = {name: getattr(self.fine, name)[cell].tolist() for name in SUMS}
        scores = {"nll": self.nll, "infinite_nll": self.infinite_nll, "brier": self.brier}
        return {"schema": SCHEMA, "num_bins": self.num_bins, "cell": cell.tolist(), **sums, **scores}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema.
            KeyError, TypeError, IndexError: an entry is missing or invalid.
        """
        check_schema("a state of confidences", content, SCHEMA)
        empty = empty_cells(equal_edges(content["num_bins"]))
        cell = torch.tensor(content["cell"], dtype=torch.int64)
        count, whole, units, correct = (
            torch.zeros_like(empty.count).index_add_(0, cell, torch.tensor(content[name], dtype=torch.int64))
            for name in SUMS
        )
        scores = {name: content[name] for name in ("nll", "infinite_nll", "brier")}
        return cls(BinStats(count, whole, units, correct, empty.edges), **scores)


def evaluate_binned(
    state: BinnedConfidences,
    clusters: ClusterSums | None = None,
    *,
    inference: bool = True,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Compute the metrics of a state, see :meth:`BinnedPredictions.evaluate`.

    Args:
        state: sums of all samples.
        clusters: sums by cluster, if the samples are not independent.
        inference: whether to compute noise floors, tests and interval, too.
        level: nominal coverage of the interval.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.
    """
    check_count("draws", draws, 100)
    check_level(level)
    if not state.num_samples:
        raise ValueError("no samples: add some predictions first")
    bins, samples = state.bins, CellConfidences(state.fine)
    adaptive, adaptive_bound = samples.adaptive_bins(state.num_bins)
    inferred = None
    if inference:
        labels = state.labels(seed)
        inferred = infer_both(samples, bins, adaptive, labels, level=level, draws=draws, seed=seed)
        if clusters is not None:
            inferred = cluster_inference(inferred, clusters, labels, bins, adaptive)
    (aurc, aurc_bound), scale = samples.aurc(), ONE * state.num_samples
    nll, brier = (math.nan if total is None else total / scale for total in (state.nll, state.brier))
    return evaluate_bins(
        bins,
        state.class_bins,
        squared=None if clusters is None else cluster_squared_error(clusters, bins),
        error=state.error,
        nll=nll + math.inf if state.infinite_nll else nll,
        brier=brier,
        aurc=aurc,
        adaptive_ece=float(adaptive.ece()),
        inference=inferred,
        bounds={"aurc": aurc_bound, "adaptive_ece": adaptive_bound},
    )


def empty_cells(edges: Tensor) -> BinStats:
    """Return the fine cells of bins with these edges, without samples."""
    return BinStats.empty(edges=fine_edges(edges))


def sums_of_scores(nll: Tensor | None, brier: Tensor | None) -> dict[str, Any]:
    """Return the fields of a state that hold sums of scores."""
    finite = None if nll is None else nll < LARGEST_NLL
    return {
        "nll": None if nll is None else sum_of_units(nll[finite]),
        "infinite_nll": 0 if finite is None else int((~finite).sum()),
        "brier": None if brier is None else sum_of_units(brier),
    }


def sum_of_units(values: Tensor) -> int:
    """Round each value to a multiple of 2^-32, and sum them exactly."""
    whole = values.floor()
    return int(whole.long().sum()) * ONE + int(to_units(values - whole).sum())


def _sum(a: Any, b: Any) -> Any:
    """Return a + b, or None if one of them is unknown."""
    return None if a is None or b is None else a + b
