"""The gamblers of a monitor: one for each cell, that is for all samples or one bin, of one class, and one shift."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.monitor._bets import SHIFTS, log_cash, log_factors, log_investment, log_prior, log_sum

ARRAYS = {"log_wealth": np.float64, "since": np.int64, "count": np.int64, "confidence": np.float64, "correct": np.int64}
SINCE_START = ("count", "confidence", "correct")  # sums of the samples from the period `since` of a cell on
MOST_CELLS = 1 << 20  # 40 MB


@dataclass(frozen=True)
class Winner:
    """The cell with the largest part of the evidence; ``row`` 0 is the top label, ``place`` 0 all samples."""

    row: int
    place: int
    overconfident: bool
    since: int
    count: int
    confidence: float
    correct: int


class Gamblers:
    """Wealth of all gamblers, and what each has seen since the investment that is most of it.

    Args:
        num_classes: number of classes (0: the monitor is not class-wise).
        num_bins: number of bins.

    Raises:
        ValueError: there are too many cells.
    """

    def __init__(self, num_classes: int, num_bins: int) -> None:
        self.shape = (1 + num_classes, 1 + num_bins, len(SHIFTS))
        if math.prod(self.shape) > MOST_CELLS:
            raise ValueError(
                f"num_bins = {num_bins} for {num_classes} classes are too many: at most "
                f"{MOST_CELLS // len(SHIFTS) // (1 + num_classes) - 1} bins are possible"
            )
        self.num_periods = 0
        self.arrays: dict[str, NDArray[Any]] = {name: np.zeros(self.shape, kind) for name, kind in ARRAYS.items()}
        self.arrays["log_wealth"] += log_investment(1)
        self._log_prior = log_prior(num_classes, num_bins)

    @property
    def log_evidence(self) -> float:
        """Logarithm of cash and investments of all gamblers."""
        return float(np.logaddexp(log_cash(self.num_periods + 1), log_sum(self._log_prior + self.arrays["log_wealth"])))

    def play(self, rows: Sequence[BinStats], tolerance: float, cluster_size: int) -> None:
        """Bet on the samples of a period, then invest a part of the cash for the next one.

        Args:
            rows: bins of the confidence, ``(1, B)``, and of each class, ``(C, B)``, if the monitor is class-wise.
            tolerance: see :func:`~dualfocal.metrics.monitor._bets.log_factors`.
            cluster_size: likewise.
        """
        arrays = self.arrays
        arrays["log_wealth"] += np.concatenate([log_factors(bins, tolerance, cluster_size) for bins in rows])
        for name in SINCE_START:
            sums = np.concatenate([getattr(bins, name) for bins in rows])
            sums = np.concatenate([sums.sum(1, keepdims=True), sums], axis=1)[..., None]
            arrays[name] += sums if ARRAYS[name] is np.float64 else np.rint(sums).astype(np.int64)
        self.num_periods += 1
        investment = log_investment(self.num_periods + 1)
        poor = arrays["log_wealth"] <= investment  # the new investment outweighs all older ones: evidence starts here
        arrays["log_wealth"] = np.logaddexp(arrays["log_wealth"], investment)
        arrays["since"][poor] = self.num_periods
        for name in SINCE_START:
            arrays[name][poor] = 0

    def winner(self) -> Winner:
        """Return the cell with the largest wealth, of the bin and direction whose gamblers own most together."""
        weight = self._log_prior + self.arrays["log_wealth"]
        by_sign = weight.reshape(*weight.shape[:2], 2, -1)  # over-confident first
        totals = np.logaddexp.reduce(by_sign, axis=-1)
        row, place, sign = map(int, np.unravel_index(int(totals.argmax()), totals.shape))
        cell = (row, place, sign * by_sign.shape[-1] + int(by_sign[row, place, sign].argmax()))
        since, count, confidence, correct = (self.arrays[name][cell].item() for name in ("since", *SINCE_START))
        return Winner(row, place, sign == 0, since, count, confidence, correct)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return flat lists for JSON."""
        return {name: array.ravel().tolist() for name, array in self.arrays.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], num_classes: int, num_bins: int, num_periods: int) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: a list is missing, has another length, or holds something else than numbers of its kind.
        """
        if not isinstance(content, Mapping) or content.keys() != ARRAYS.keys():
            raise ValueError(f"cells must have the entries {', '.join(ARRAYS)}")
        size = (1 + num_classes) * (1 + num_bins) * len(SHIFTS)
        for name, kind in ARRAYS.items():  # before memory is reserved
            values, types = content[name], (int,) if kind is np.int64 else (int, float)
            if not isinstance(values, list) or len(values) != size:
                raise ValueError(f"cells: {name} must be a list of {size} numbers")
            if not all(type(value) in types for value in values):
                raise ValueError(f"cells: {name} must hold {'whole ' if kind is np.int64 else ''}numbers only")
        gamblers = cls(num_classes, num_bins)
        gamblers.num_periods = num_periods
        for name, kind in ARRAYS.items():
            array = gamblers.arrays[name] = np.array(content[name], dtype=kind).reshape(gamblers.shape)
            if not np.isfinite(array).all():
                raise ValueError(f"cells: {name} must hold finite numbers only")
            if name != "log_wealth" and array.min() < 0:
                raise ValueError(f"cells: {name} must not hold negative numbers")
        return gamblers
