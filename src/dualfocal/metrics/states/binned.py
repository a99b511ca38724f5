"""An evaluation of any number of predictions, from sums of whole numbers that merge exactly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal._checks import check_count, check_level
from dualfocal.metrics._wide import WideSum
from dualfocal.metrics.bins import ONE, SUMS, BinStats, equal_edges, to_units
from dualfocal.metrics.evaluation import evaluate_bins, infer_both
from dualfocal.metrics.inference.cluster_sums import ClusterSums
from dualfocal.metrics.inference.clusters import cluster_inference, cluster_squared_error
from dualfocal.metrics.inference.label_counts import CellLabels
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Array, as_rows
from dualfocal.metrics.scan import scan
from dualfocal.metrics.states._binned_table import read_table, write_table
from dualfocal.metrics.states.cells import CellConfidences, bins_of_cells, fine_edges

SCHEMA = 1
LARGEST_NLL = 2.0**31  # of a sample; larger values count as infinite
MOST_EMPTY = 1 << 16  # classes of a table with fewer rows


@dataclass(frozen=True, eq=False)
class BinnedPredictions:
    """What an evaluation needs of a set of predictions, in whole numbers.

    ``a + b`` merges two of them exactly, in any order. Make one with :meth:`from_predictions`, :meth:`from_table` or
    :meth:`from_dict`. All tensors are int64 (edges: float64) and lie on the CPU.

    Args:
        fine: confidences of the predicted class, in fine cells, see :func:`~dualfocal.metrics.states.cells.fine_edges`.
        classes: probabilities of each class, ``(C, 2, B)``: by class, by whether the class is the predicted class (0
            or 1), and by bin. ``correct`` is the number of samples whose label is the class.
        squares: sum of p^2 in the cells of ``classes``.
        cubes: sum of p^3 in the cells of ``classes``.
        nll: sum of the finite negative log-likelihoods, in units of 2^-32.
        infinite_nll: number of samples whose negative log-likelihood is infinite.
        brier: sum of the Brier scores of the samples, in units of 2^-32.

    >>> import torch
    >>> logits, target = torch.tensor([[2.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
    >>> first = BinnedPredictions.from_predictions(logits[:2], target[:2])
    >>> second = BinnedPredictions.from_predictions(logits[2:], target[2:])
    >>> first + second
    BinnedPredictions(3 samples, 2 classes, 15 bins)
    >>> first + second == second + first == BinnedPredictions.from_predictions(logits, target)
    True
    """

    fine: BinStats
    classes: BinStats
    squares: WideSum
    cubes: WideSum
    nll: int = 0
    infinite_nll: int = 0
    brier: int = 0

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.fine.count.sum())

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.classes.count.shape[0]

    @property
    def num_bins(self) -> int:
        """Number of bins of the calibration errors."""
        return self.classes.num_bins

    @property
    def edges(self) -> Tensor:
        """Edges of the bins, ``(B + 1,)`` float64, rounded to the dtype of the probabilities."""
        return self.classes.edges

    @property
    def num_wrong(self) -> int:
        """Number of samples whose predicted class is not the true class."""
        return self.num_samples - int(self.fine.correct.sum())

    @property
    def bins(self) -> BinStats:
        """Bins of the confidence of the predicted class, for ECE and reliability diagram."""
        return bins_of_cells(self.fine, self.edges)

    @classmethod
    def empty(cls, num_classes: int, num_bins: int = 15, *, edges: Tensor | None = None) -> Self:
        """Return the state without samples.

        Args:
            num_classes: number of classes.
            num_bins: number of bins.
            edges: edges of the bins, if they are not ``equal_edges(num_bins)``.

        Raises:
            ValueError: a number is too small or too large, or edges do not increase from 0 to 1.
        """
        check_count("num_classes", num_classes, 2)
        edges = equal_edges(num_bins) if edges is None else edges.cpu().double()
        check_count("num_bins", len(edges) - 1)
        if edges[0] != 0 or edges[-1] != 1 or not bool((edges.diff() >= 0).all()):
            raise ValueError(f"edges must increase from 0 to 1, got {edges.tolist()}")
        zeros = torch.zeros(num_classes, 2, len(edges) - 1, dtype=torch.int64)
        fine, classes = BinStats.empty(edges=fine_edges(edges)), BinStats.empty(num_classes, 2, edges=edges)
        return cls(fine, classes, WideSum(zeros, zeros), WideSum(zeros, zeros))

    @classmethod
    def from_predictions(
        cls,
        logits: Array,
        target: Array,
        *,
        input: str | None = None,
        num_bins: int = 15,
        ignore_index: int = -100,
        binary: str | None = None,
    ) -> Self:
        """Sum up predictions.

        Args:
            logits: see :func:`~dualfocal.metrics.ece`.
            target: see :func:`~dualfocal.metrics.ece`.
            input: see :func:`~dualfocal.metrics.ece`.
            num_bins: number of bins of the calibration errors.
            ignore_index: target value of samples to leave out.
            binary: ``"top_label"`` for one score per sample, see :func:`~dualfocal.metrics.ece`.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
            IndexError: a target is not a class index.
        """
        check_count("num_bins", num_bins)
        rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary)
        if rows.positive:
            raise ValueError(
                'binary="positive" needs the predictions themselves: call evaluate, or use binary="top_label"'
            )
        stats = scan(rows, num_bins=num_bins, scores=True, classwise=True, moments=True)
        assert stats.moments is not None
        edges = fine_edges(stats.moments.bins.edges)
        fine = BinStats.from_units(stats.confidence.cpu(), stats.correct.cpu(), edges)
        finite = stats.nll < LARGEST_NLL
        return cls(
            fine,
            stats.moments.bins,
            stats.moments.squares,
            stats.moments.cubes,
            nll=sum_of_units(stats.nll[finite]),
            infinite_nll=int((~finite).sum()),
            brier=sum_of_units(stats.brier),
        )

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, BinnedPredictions):
            return NotImplemented
        if self.num_classes != other.num_classes or self.num_bins != other.num_bins:
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same numbers of classes and bins")
        if not torch.equal(self.edges, other.edges):
            raise ValueError(
                "cannot merge predictions whose bins have different edges: those of probabilities are rounded to their "
                "dtype, so give all of them in one dtype (logits: in any)"
            )
        return type(self)(
            self.fine + other.fine,
            self.classes + other.classes,
            self.squares + other.squares,
            self.cubes + other.cubes,
            self.nll + other.nll,
            self.infinite_nll + other.infinite_nll,
            self.brier + other.brier,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BinnedPredictions):
            return NotImplemented
        names = ("fine", "classes", "squares", "cubes", "nll", "infinite_nll", "brier")
        return torch.equal(self.edges, other.edges) and all(getattr(self, x) == getattr(other, x) for x in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BinnedPredictions({self.num_samples:,} samples, {self.num_classes} classes, {self.num_bins} bins)"

    def evaluate(self, *, inference: bool = True, level: float = 0.9, draws: int = 1000, seed: int = 0) -> Evaluation:
        """Compute what :func:`~dualfocal.metrics.evaluate` computes from the predictions themselves.

        Error, ECE, MCE, debiased and classwise ECE, confidence and accuracy are the same, to the bit. NLL and Brier
        score differ by at most 2^-33 for the rounding of each sample. Adaptive ECE and AURC are computed from fine
        cells; the field ``bounds`` of the result holds their largest possible differences, from the data. The test of
        the confidence and the class-wise test are approximated, see
        :class:`~dualfocal.metrics.states.cells.CellConfidences` and
        :class:`~dualfocal.metrics.inference.label_counts.CellLabels`.

        Args:
            inference: whether to compute noise floors, tests and interval, too.
            level: nominal coverage of the interval.
            draws: number of draws for floors and p-value.
            seed: seed of the draws.

        Raises:
            ValueError: there are no samples, or an option is invalid.
        """
        return evaluate_binned(self, inference=inference, level=level, draws=draws, seed=seed)

    def to_table(self) -> dict[str, np.ndarray]:
        """Return the state as columns of equal length, without empty cells; see :meth:`from_table`."""
        return write_table(self)

    @classmethod
    def from_table(
        cls, columns: Mapping[str, Any], *, num_classes: int, num_bins: int = 15, edges: Tensor | None = None
    ) -> Self:
        """Read the state from columns, such as those of :meth:`to_table` or of a database.

        Each row holds the sums of some samples. Rows of the same cell are added, so the tables of several states can be
        concatenated. The rows come in any order; a cell without a row is empty. u is a probability p in units of 2^-32,
        ``round(p * 2**32)``, where a half is rounded to the even number; confidences above 1 count as 1.

        ============  ================================================================================================
        column        meaning
        ============  ================================================================================================
        kind          ``"confidence"``: samples in a fine cell of the confidence of the predicted class; ``"class"``:
                      samples in a bin of the probability of one class (every sample is in one bin of each class);
                      ``"scores"``: sums over all samples
        class         class: the class; otherwise 0
        predicted     class: 1 for samples whose predicted class (of several: the first) is that class, 0 for the others
        cell          confidence: number of the fine cell, see ``cells.fine_edges``; class:
                      number of the bin ``(lo, hi]``, where u is compared with ``round(edges * 2**32)``; 0 is in bin 0
        count         number of samples
        correct       confidence: number of samples whose prediction is right; class: whose label is the class
        units         sum of u
        squares       class: sum of ``floor(u * u / 2**32)``, computed in double precision
        cubes         class: sum of ``floor(square * u / 2**32)``, where square is the term of ``squares``
        nll           scores: sum of ``round(-log(p) * 2**32)`` of the true class, over the samples where it is finite
        infinite_nll  scores: number of the other samples (also those whose -log(p) is 2**31 or more)
        brier         scores: sum of ``round(b * 2**32)``, where b is the Brier score of a sample
        ============  ================================================================================================

        Columns hold integers of any size, also as ``Decimal``; None counts as 0, and a missing column is 0 everywhere.
        A sum may be split over two columns, ``units + 2**32 * units_whole``, as :meth:`to_table` does (``squares``,
        ``cubes``, ``nll`` and ``brier`` likewise), so that 64 bits are enough.

        Args:
            columns: the columns, by name.
            num_classes: number of classes.
            num_bins: number of bins.
            edges: edges of the bins, if they are not ``equal_edges(num_bins)``.

        Raises:
            ValueError: a column is missing, has another length or holds something else, or the sums contradict each
                other.
        """
        rows = len(columns["kind"]) if "kind" in columns else 0
        if num_classes > max(rows, MOST_EMPTY):  # before memory is reserved
            raise ValueError(f"num_classes is {num_classes}, but the table has {rows} rows: each class needs one")
        return read_table(cls.empty(num_classes, num_bins, edges=edges), columns)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON, to be kept in a file and merged later."""
        return {
            "schema": SCHEMA,
            "num_classes": self.num_classes,
            "edges": self.edges.tolist(),
            "columns": {name: column.tolist() for name, column in self.to_table().items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema, or its sums contradict each other.
            KeyError: an entry is missing.
        """
        if content["schema"] != SCHEMA:
            raise ValueError(f"binned predictions have schema {content['schema']}, this version reads schema {SCHEMA}")
        edges = torch.tensor(content["edges"], dtype=torch.float64)
        return cls.from_table(content["columns"], num_classes=content["num_classes"], edges=edges)


def evaluate_binned(
    state: BinnedPredictions,
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
    bins, classes, samples = state.bins, all_of_class(state.classes), CellConfidences(state.fine)
    adaptive, adaptive_bound = samples.adaptive_bins(state.num_bins)
    inferred = None
    if inference:
        labels = CellLabels(state.classes, state.squares.double(), state.cubes.double(), seed)
        inferred = infer_both(samples, bins, adaptive, labels, level=level, draws=draws, seed=seed)
        if clusters is not None:
            inferred = cluster_inference(inferred, clusters, labels, bins, adaptive)
    aurc, scale = samples.aurc(), ONE * state.num_samples
    return evaluate_bins(
        bins,
        classes,
        squared=None if clusters is None else cluster_squared_error(clusters, bins),
        error=state.num_wrong / state.num_samples,
        nll=math.inf if state.infinite_nll else state.nll / scale,
        brier=state.brier / scale,
        aurc=aurc.value,
        adaptive_ece=float(adaptive.ece()),
        inference=inferred,
        bounds={"aurc": aurc.bound, "adaptive_ece": adaptive_bound},
    )


def all_of_class(classes: BinStats) -> BinStats:
    """Merge samples that are predicted as the class and others: (C, B)."""
    count, whole, units, correct = (getattr(classes, name).sum(1) for name in SUMS)
    return BinStats.from_sums(count, units, correct, classes.edges, whole)


def sum_of_units(values: Tensor) -> int:
    """Round each value to a multiple of 2^-32, and sum them exactly."""
    whole = values.floor()
    return int(whole.long().sum()) * ONE + int(to_units(values - whole).sum())
