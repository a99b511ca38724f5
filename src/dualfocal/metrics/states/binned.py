"""An evaluation of any number of predictions, from sums of whole numbers that merge exactly."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal.checks import check_count
from dualfocal.metrics._wide import WideSum
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.inference.label_counts import CellLabels
from dualfocal.metrics.result import Evaluation, check_schema
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan
from dualfocal.metrics.states._binned_table import read_table, write_table
from dualfocal.metrics.states.binned_confidences import (
    SCHEMA,
    BinnedConfidences,
    empty_cells,
    evaluate_binned,
    sums_of_scores,
)
from dualfocal.metrics.states.cells import fine_edges
from dualfocal.metrics.units import check_edges, equal_edges

MOST_EMPTY = 1 << 16  # classes of a table with fewer rows


@dataclass(frozen=True, eq=False, repr=False)
class BinnedPredictions(BinnedConfidences):
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

    Attributes:
        bins: bins of the confidence of the predicted class, for ECE and reliability diagram.
        num_bins: number of bins of the calibration errors.
        num_samples: number of samples.

    >>> import torch
    >>> logits, target = torch.tensor([[2.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
    >>> first = BinnedPredictions.from_predictions(logits[:2], target[:2])
    >>> second = BinnedPredictions.from_predictions(logits[2:], target[2:])
    >>> first + second
    BinnedPredictions(3 samples, 2 classes, 15 bins)
    >>> first + second == second + first == BinnedPredictions.from_predictions(logits, target)
    True
    """

    classes: BinStats
    squares: WideSum
    cubes: WideSum
    _: KW_ONLY
    nll: int = 0  # of every sample, the scores are known
    brier: int = 0

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.classes.count.shape[0]

    @property
    def edges(self) -> Tensor:
        """Edges of the bins, ``(B + 1,)`` float64, rounded to the dtype of the probabilities."""
        return self.classes.edges

    @property
    def num_wrong(self) -> int:
        """Number of samples whose predicted class is not the true class."""
        return self.num_samples - int(self.fine.correct.sum())

    @property
    def error(self) -> float:
        """Share of samples whose predicted class is not the true class."""
        return self.num_wrong / self.num_samples

    @property
    def class_bins(self) -> BinStats:
        """Bins of the probabilities of all classes, ``(C, B)``."""
        return self.classes.map(lambda sums: sums.sum(1))

    def labels(self, seed: int) -> CellLabels:
        """Return the counts of labels for the class-wise test."""
        return CellLabels(self.classes, self.squares.double(), self.cubes.double(), seed)

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
        check_edges(edges)
        zeros = torch.zeros(num_classes, 2, len(edges) - 1, dtype=torch.int64)
        classes = BinStats.empty(num_classes, 2, edges=edges)
        return cls(empty_cells(edges), classes, WideSum(zeros, zeros), WideSum(zeros, zeros))

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
        moments = stats.moments
        return cls(fine, moments.bins, moments.squares, moments.cubes, **sums_of_scores(stats.nll, stats.brier))

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
        check_schema("a state of binned predictions", content, SCHEMA)
        edges = torch.tensor(content["edges"], dtype=torch.float64)
        return cls.from_table(content["columns"], num_classes=content["num_classes"], edges=edges)
