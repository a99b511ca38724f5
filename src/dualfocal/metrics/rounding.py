"""Probabilities that were rounded to a few decimals: recognised, made to sum to 1, and described.

Rounding to d decimals moves each probability by at most half a step, 10^-d / 2. So the sum of a row of C probabilities
is at least 1 - C/2 steps and, because only those that are printed above 0 can have been rounded up, at most 1 plus half
a step for each of them. A row outside of this range was not made by rounding.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype

WORDS = ("zero", "one", "two", "three", "four")
MOST_DECIMALS = {torch.float16: 2, torch.bfloat16: 1}  # their own precision is too low for finer grids; others: 4
FEW_ROWS = (4, 256)  # looked at first: ordinary probabilities are not on a grid
TILE = 1 << 20  # elements per tile
LEAST_ERROR = 5e-4  # a smaller one is 0.0 points
LEAST_VALUES = 20  # above 0, of rounded probabilities that do not sum to 1
EXACT = 20  # rows of three or more probabilities; if each of so many sums to 1 exactly, the values are not rounded


@dataclass(frozen=True)
class Rounding:
    """How probabilities were rounded, and how much that can matter.

    Args:
        decimals: number of decimals.
        num_rows: number of rows.
        adjusted: number of rows that did not sum to 1; the difference was spread over their classes.
        error: largest root mean square error of the confidences: half a step, and what was spread.

    >>> rounding = Rounding(decimals=2, num_rows=1000, adjusted=102, error=0.0061)
    >>> print(rounding.sentence())  # doctest: +NORMALIZE_WHITESPACE
    Probabilities look rounded to two decimals, which alone can cause gaps of up to 0.61 points; 102 of 1,000 rows did
    not sum to 1; the difference was spread over their classes.
    """

    decimals: int
    num_rows: int
    adjusted: int
    error: float

    def __add__(self, other: "Rounding | None") -> "Rounding":
        """Return the rounding of two sets of rows; None: they were not rounded, or their number is not known."""
        if other is None:
            return self
        num_rows = self.num_rows + other.num_rows
        squares = self.num_rows * self.error**2 + other.num_rows * other.error**2
        return Rounding(
            max(self.decimals, other.decimals), num_rows, self.adjusted + other.adjusted, math.sqrt(squares / num_rows)
        )

    @property
    def matters(self) -> bool:
        """Whether rounding can cause a gap that is printed: that of four decimals hardly ever does."""
        return self.error >= LEAST_ERROR

    def explains(self, gap: float) -> bool:
        """Whether rounding alone can cause a gap between confidence and accuracy of this size."""
        return gap <= self.error

    def sentence(self) -> str:
        """Say how the probabilities were rounded, and what that can cause."""
        text = (
            f"Probabilities look rounded to {decimals_text(self.decimals)}, which alone can cause gaps of up to "
            f"{self.error_text} points"
        )
        if self.adjusted:
            verb = "row did" if self.num_rows == 1 else "rows did"
            text += f"; {self.adjusted:,} of {self.num_rows:,} {verb} not sum to 1"
            text += "; the difference was spread over their classes"
        return f"{text}."

    @property
    def error_text(self) -> str:
        """The largest error in points, with two digits, rounded up."""
        points = 100 * self.error
        digits = 1 - math.floor(math.log10(points))
        rounded_up = math.ceil(points * 10.0**digits - 1e-6) / 10.0**digits
        return f"{rounded_up:.{max(digits, 0)}f}"


@dataclass(frozen=True)
class SumError:
    """A row whose sum rounding does not explain.

    Args:
        rule: what must hold for all rows.
        row: the row.
        problem: what the row holds instead.
    """

    rule: str
    row: int
    problem: str


def decimals_text(decimals: int) -> str:
    """Return "one decimal" or "two decimals"."""
    return f"{WORDS[decimals]} decimal{'' if decimals == 1 else 's'}"


def find_decimals(values: Tensor, dtype: torch.dtype) -> int | None:
    """Return the smallest number of decimals that all probabilities, (N, C), have; None if they are not rounded.

    Args:
        values: the probabilities.
        dtype: in which they were stored.

    >>> find_decimals(torch.tensor([[0.25, 0.75], [0.3, 0.7]]), torch.float32)
    2
    """
    most, decimals = MOST_DECIMALS.get(dtype, 4), 0
    for part in _parts(values):
        if not _on_grid(part, most, dtype):
            return None
        while not _on_grid(part, decimals, dtype):
            decimals += 1
    return decimals or None  # of only zeros and ones, nothing is known


def renormalise(
    values: Tensor, dtype: torch.dtype, *, weight: Tensor | None = None
) -> tuple[Tensor, Rounding | None] | SumError:
    """Make rows of rounded probabilities sum to 1. Other probabilities are returned as they are.

    Args:
        values: the probabilities, (N, C). They are not changed in place.
        dtype: in which they were stored.
        weight: weight of each row, with mean 1 (None: all count the same).

    Returns:
        The probabilities, and how they were rounded (None: they were not). Or else the first row that is an error.
    """
    decimals = find_decimals(values, dtype)
    if decimals is None:
        return values, None
    one = 10**decimals
    total, nonzero = _sums(values, one)
    if float(nonzero.sum()) < LEAST_VALUES and bool((total != one).any()):
        return values, None  # few values can lie on a grid by chance: the rule for all other probabilities holds
    good = _explained(total, nonzero, values.shape[1], one)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        return _sum_error(row, int(total[row]), int(nonzero[row]), values.shape[1], decimals)
    off = total != one
    adjusted = int(off.sum())
    if not adjusted and int((nonzero > 2).sum()) >= EXACT:  # such as shares of votes
        return values, None
    # What is missing in a row is spread over all classes, an excess over those above 0. Dividing by the sum would give
    # most of it to the largest: 50 times the bias with 100 classes (benchmarks/rounded_probabilities.py).
    share = (one - total) / torch.where(total < one, float(values.shape[1]), nonzero.clamp(min=1.0))
    if adjusted:
        values = values.clone()
        for part in _tiles(values):
            rows = off[part].nonzero()[:, 0] + part.start
            units, missing = _units(values[rows], one), share[rows, None]
            values[rows] = ((units + missing.where((missing > 0) | (units > 0), 0.0)) / one).to(values.dtype)
    squares = ((0.5 + share.abs()) / one).square()
    error = float((squares if weight is None else squares * weight.to(squares.device)).mean().sqrt())
    return values, Rounding(decimals, len(values), adjusted, error)


def are_rounded_probabilities(values: Tensor) -> bool:
    """Whether all values, (N, C), look rounded, and rounding explains the sums of all rows.

    >>> are_rounded_probabilities(torch.tensor([[0.33, 0.33, 0.33], [0.5, 0.26, 0.24]]))
    True
    """
    decimals = find_decimals(values, values.dtype)
    if decimals is None:
        return False
    total, nonzero = _sums(values, 10**decimals)
    return bool(_explained(total, nonzero, values.shape[1], 10**decimals).all())


def _sums(values: Tensor, one: int) -> Tensor:
    """Return the sum and the number of entries above 0 of each row, (2, N); sums in units of 1 / one."""
    numbers = torch.empty(2, len(values), dtype=wide_dtype(values), device=values.device)
    for part in _tiles(values):
        units = _units(values[part], one)
        numbers[0, part], numbers[1, part] = units.sum(1), (units > 0).sum(1)
    return numbers


def _explained(total: Tensor, nonzero: Tensor, num_classes: int, one: int) -> Tensor:
    """Whether rounding explains the sum of each row, and something is left of it."""
    return (total >= one - num_classes / 2) & (total <= one + nonzero / 2) & (total > 0)


def _parts(values: Tensor) -> list[Tensor]:
    """Split the rows into few to look at first, and tiles."""
    first, second = FEW_ROWS
    rest = values[second:]
    parts = [values[:first], values[first:second], *(rest[part] for part in _tiles(rest))]
    return [part for part in parts if len(part)]


def _tiles(values: Tensor) -> list[slice]:
    step = max(1, TILE // values.shape[1])
    return [slice(start, min(start + step, len(values))) for start in range(0, len(values), step)]


def _on_grid(values: Tensor, decimals: int, dtype: torch.dtype) -> bool:
    """Whether all values are from 0 to 1 and multiples of 10^-decimals, up to the rounding of their dtype."""
    tolerance = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) / 2
    scaled = values.to(wide_dtype(values)) * 10**decimals
    units = scaled.round()
    on_grid = (scaled - units).abs_() <= tolerance * 10**decimals
    return bool((on_grid & (units >= 0) & (units <= 10**decimals)).all())


def _units(values: Tensor, one: int) -> Tensor:
    return (values.to(wide_dtype(values)) * one).round_()


def _sum_error(row: int, total: int, nonzero: int, num_classes: int, decimals: int) -> SumError:
    one = 10**decimals
    rule = (
        f"probabilities must sum to 1; these are rounded to {decimals_text(decimals)}, which moves each by at most "
        f"{0.5 / one:g}"
    )
    if total == 0 and num_classes / 2 >= one:
        return SumError(
            rule,
            row,
            f"sums to 0: all {num_classes} probabilities were rounded to 0, and the predicted class is lost; write "
            "the probabilities with more decimals, or write logits",
        )
    low, high = max(0.0, 1 - num_classes / 2 / one), 1 + nonzero / 2 / one
    return SumError(
        rule,
        row,
        f"sums to {total / one:.6g}, but must lie between {low:.6g} and {high:.6g}; write the probabilities with more "
        "decimals. If they belong to a multi-label problem, pass task='multilabel'",
    )
