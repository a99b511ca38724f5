"""The test of the probabilities of all classes."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, stdtr

from dualfocal.metrics.cells import BinStats, Floats
from dualfocal.metrics.draws import (
    LEAST,
    LEAST_TOTAL,
    SAME,
    Settings,
    draw_cells,
    floor_of,
    p_of_gap,
    third_cumulant,
)
from dualfocal.metrics.inference_result import SIGNIFICANCE, ClassGap, ClasswiseTest, Floor, holm
from dualfocal.metrics.units import UnitSums, unit_factor

FIRST_DRAWS = 200  # of the classes; more while the decision at 5 % is uncertain
FEW_NUMBERS, MOST_NUMBERS = 1 << 19, 1 << 22  # drawn in all, and in memory at a time
UNCERTAIN = (0.006, 0.15)  # p-values for which 200 draws do not decide at 2.5 or 5 %
LEAST_VARIANCE = 5.0  # of the number of labels in a merged bin of a class; one with less counts less
FAR_BELOW = 1e-4  # a bound below this is used; so rarely met by chance that the level of the test stays the same
MOST_GAPS = 10  # in a result


@dataclass(frozen=True, eq=False)
class Wild:
    """A wild bootstrap of sums by unit.

    A sum of (p - y) is divided by its variance under calibration: the sum of squares over units, or the variance for
    independent samples times the design effect if that is larger, because a few units can have a small variance by
    chance.

    Args:
        units: sums by unit.
        signs: random signs of the units, ``(R, K)``.
        design_effect: of the units.
    """

    units: UnitSums
    signs: Floats
    design_effect: float


def classwise_test(classes: BinStats, settings: Settings, wild: Wild | None = None) -> tuple[ClasswiseTest, Floor]:
    """Test the probabilities of all classes; also return the noise floor of the classwise ECE.

    Args:
        classes: bins of all classes, ``(C, 2, B)``.
        settings: how the inference is made.
        wild: a wild bootstrap; None for the draws of the model.
    """
    problem = _Classes(classes, 1.0 if wild is None else max(wild.design_effect, 1.0))
    draws, seed = min(FIRST_DRAWS, settings.draws), settings.seed
    # Few numbers are drawn quickly: then a small p-value is computed more precisely, too.
    lowest = 0.0 if int((classes.count > 0).sum()) * settings.draws <= FEW_NUMBERS else UNCERTAIN[0]
    while True:
        parts = problem.model_parts(draws, seed) if wild is None else problem.wild_parts(wild.units, wild.signs[:draws])
        p_value, errors = problem.test(parts)
        if draws == settings.draws or not lowest < p_value < UNCERTAIN[1]:
            break
        draws = settings.draws
    p_values = problem.p_values(None if wild is None else wild.units)
    if (bound := float(p_values.min()) * p_values.size) < FAR_BELOW:
        p_value = min(p_value, bound)
    gaps = [gap for gap in problem.gaps(p_values) if gap.p_value <= SIGNIFICANCE]
    gaps.sort(key=lambda gap: -abs(gap.probability - gap.share))
    return ClasswiseTest(p_value, tuple(gaps[:MOST_GAPS]), draws), floor_of(errors)


def class_gaps(classes: BinStats, units: UnitSums | None = None, design_effect: float = 1.0) -> list[ClassGap]:
    """Compare the mean probability of each class with its share, for all samples and for those predicted as the class.

    The p-values are adjusted for all classes (Holm). Those of independent samples come from a shifted gamma
    distribution with the same first three cumulants as the number of labels, those of units from t-tests. Classes that
    are never predicted have no second entry.
    """
    problem = _Classes(classes, max(design_effect, 1.0))
    return problem.gaps(problem.p_values(units))


@dataclass(frozen=True, eq=False)
class _Part:
    """Draws of the gaps of some classes: ``(R, classes, B + 1)``, last over the samples predicted as the class."""

    classes: slice
    drawn: Floats
    variance: Floats  # (classes, B + 1), for a calibrated model
    total_variance: Floats  # (classes,), of the sum over all bins
    third: Floats  # (2, classes): third cumulants of the totals of all samples, and of those predicted as the class
    errors: Floats  # (R,) sums of the absolute gaps of the bins


class _Classes:
    """The class-wise test of bins of all classes, ``(C, 2, B)``."""

    def __init__(self, classes: BinStats, design_effect: float) -> None:
        self.classes, self.design_effect = classes, design_effect
        self.num_classes, _, self.num_bins = classes.count.shape
        self.two = self.num_classes == 2
        self.tested = np.arange(self.num_classes) >= self.two  # of two classes, one mirrors the other
        self.gap = _with_predicted(classes.gap)
        self.variance = _with_predicted(classes.variance)
        scale = np.where(classes.count > 0, classes.squares / np.maximum(classes.count, LEAST), 1.0)
        third = _with_predicted(third_cumulant(classes, scale))
        self.third = np.stack([third[:, :-1].sum(1), third[:, -1]])
        self.num_samples = float(classes.count[0].sum())
        # Weights make all variances larger by about this factor, and with them the least variance that counts.
        self.spread = float(classes.squares[0].sum()) / self.num_samples

    def model_parts(self, draws: int, seed: int) -> Iterator[_Part]:
        """Draw the gaps of independent samples. Draws of different classes are independent."""
        rng, width = np.random.default_rng(seed), self.num_bins
        step = max(1, MOST_NUMBERS // (2 * width * draws))
        for start in range(1 if self.two else 0, self.num_classes, step):
            part = slice(start, min(start + step, self.num_classes))
            drawn = draw_cells(self.classes[part], draws, rng)
            if self.two:  # a sample of bin b of class 1 is in bin B - 1 - b of class 0
                part, drawn = slice(0, 2), np.concatenate([-drawn[:, :, ::-1, ::-1], drawn], axis=1)
            drawn = _with_predicted(drawn)
            variance = self.variance[part]
            errors = np.abs(drawn[..., :-1]).sum((1, 2))
            yield _Part(part, drawn, variance, variance[:, :-1].sum(1), self.third[:, part], errors)

    def wild_parts(self, units: UnitSums, signs: Floats) -> Iterator[_Part]:
        """Draw the gaps by a wild bootstrap."""
        for part, sums in units.parts(self.num_classes, self.num_bins):
            drawn = (signs @ sums.reshape(len(sums), -1)).reshape(len(signs), *sums.shape[1:])
            variance, total = self._variances(part, sums)
            # A miscalibrated class has sums with another mean than 0, which are no noise.
            squares, number = (sums**2).sum(0), np.count_nonzero(sums, axis=0)
            share = 1 - sums.sum(0) ** 2 / (np.maximum(number, 1) * squares + LEAST)
            share = np.sqrt(np.maximum(share, 0.0) * unit_factor(sums))
            errors = (np.abs(drawn[..., :-1]) * share[:, :-1]).sum((1, 2))
            yield _Part(part, drawn, variance, total, np.zeros_like(self.third[:, part]), errors)

    def _variances(self, part: slice, sums: Floats) -> tuple[Floats, Floats]:
        """Return the variances of sums by unit, at least those of independent samples times the design effect."""
        least = self.variance[part] * self.design_effect
        variance = np.maximum((sums**2).sum(0), least)
        total = np.maximum((sums[..., :-1].sum(2) ** 2).sum(0), least[:, :-1].sum(1))
        return variance, total

    def test(self, parts: Iterable[_Part]) -> tuple[float, Floats]:
        """Return the p-value, and the classwise ECE of each draw."""
        totals = bins = summed = errors = np.zeros(1)
        for part in parts:
            here, observed = self.tested[part.classes], self.gap[part.classes]
            gaps = np.concatenate([part.drawn, observed[None]])
            both = np.concatenate([gaps[:, here, :-1].sum(2), gaps[..., -1]], axis=1)
            variance = np.concatenate([part.total_variance[here], part.variance[:, -1]])
            third = np.concatenate([part.third[0][here], part.third[1]])
            totals = np.maximum(totals, np.abs(_normal_score(both, variance, third)).max(1, initial=0.0))
            if here.any():
                x = self._squares(gaps[:, here, :-1], part.variance[here, :-1])
                bins = np.maximum(bins, _chi_score(x).max(1))
                summed = summed + x.sum(1)
            errors = errors + part.errors
        number, tested = self.num_classes, int(self.tested.sum())
        # Each sample has one label: the sum over all classes has a larger variance than that of independent classes.
        factor = 1.0 if self.two or len(summed) == 1 else 1 + 1 / (3 * (number - 1))
        log_p = np.minimum(
            math.log(2 * (tested + number)) + log_ndtr(-np.broadcast_to(totals, errors.shape[0] + 1)),
            math.log(tested) + log_ndtr(-np.broadcast_to(bins, errors.shape[0] + 1)),
        )
        if len(summed) > 1:
            log_p = np.minimum(log_p, log_ndtr(-_chi_score(summed[:, None], factor)[:, 0]))
        return float((log_p <= log_p[-1] + SAME).mean()), errors / (self.num_samples * number)

    def _squares(self, gaps: Floats, variance: Floats) -> Floats:
        """Return X_c = sum of gap^2 / V over the bins of each class; bins are merged until V is 5, if that is possible.

        Merging depends on the probabilities alone, not on the labels.

        Args:
            gaps: gaps of the bins, ``(R + 1, classes, B)``.
            variance: their variances, ``(classes, B)``.
        """
        least = LEAST_VARIANCE * self.spread * self.design_effect
        ends = _merged_ends(variance, least)
        cumulative = np.pad(gaps.cumsum(2), ((0, 0), (0, 0), (1, 0)))
        merged = np.diff(np.take_along_axis(cumulative, ends[None], axis=2), axis=2, prepend=0.0)
        total = np.pad(variance.cumsum(1), ((0, 0), (1, 0)))
        spread = np.diff(np.take_along_axis(total, ends, axis=1), axis=1, prepend=0.0)
        squares: Floats = (merged**2 / np.maximum(spread, least)).sum(2)
        return squares

    def p_values(self, units: UnitSums | None) -> Floats:
        """Return the p-values of the totals of all samples and of those predicted as each class, ``(2, C)``."""
        totals = np.stack([self.gap[:, :-1].sum(1), self.gap[:, -1]])
        variance = np.stack([self.variance[:, :-1].sum(1), self.variance[:, -1]])
        p = p_of_gap(totals, variance, self.third)
        if units is not None:
            for part, sums in units.parts(self.num_classes, self.num_bins):
                by_bin, total = self._variances(part, sums)
                ratio = totals[:, part] / np.sqrt(np.maximum(np.stack([total, by_bin[:, -1]]), LEAST))
                p[:, part] = 2 * stdtr(max(len(sums) - 1, 1), -np.abs(ratio))
        p[0, ~self.tested] = 1.0
        return p

    def gaps(self, p_values: Floats) -> list[ClassGap]:
        """Return the totals of all tested classes beside their expectations, with Holm-adjusted p-values."""
        count = np.stack([np.full(self.num_classes, self.num_samples), self.classes.count[:, 1].sum(1)])
        predicted = np.stack([self.classes.confidence.sum((1, 2)), self.classes.confidence[:, 1].sum(1)])
        observed = np.stack([self.classes.correct.sum((1, 2)), self.classes.correct[:, 1].sum(1)])
        tested = np.stack([self.tested, np.ones_like(self.tested)])
        adjusted = np.ones_like(p_values)
        adjusted[tested] = holm(p_values[tested].tolist())
        return [
            ClassGap(c, bool(k), float(predicted[k, c] / n), float(observed[k, c] / n), float(adjusted[k, c]))
            for k in (0, 1)
            for c in range(self.num_classes)
            if tested[k, c] and (n := count[k, c]) > 0
        ]


def _merged_ends(variance: Floats, least: float) -> NDArray[np.int64]:
    """Return where each merged bin ends, (C, G). Classes with fewer merged bins have empty ones."""
    group, index = np.zeros(variance.shape, dtype=np.int64), np.zeros(len(variance), dtype=np.int64)
    total = np.zeros(len(variance))
    for b in range(variance.shape[1]):
        group[:, b] = index
        total += variance[:, b]
        full = total >= least
        index, total = index + full, np.where(full, 0.0, total)
    group = np.minimum(group, np.maximum(index - 1, 0)[:, None])  # what is left joins the last merged bin
    return np.stack([(group <= g).sum(1) for g in range(int(group.max()) + 1)], axis=1)


def _with_predicted(cells: Floats) -> Floats:
    """Turn (..., C, 2, B) into (..., C, B + 1): sums over the axis of size 2, and of its entry 1 over the bins."""
    return np.concatenate([cells.sum(-2), cells[..., 1, :].sum(-1, keepdims=True)], axis=-1)


def _normal_score(gaps: Floats, variance: Floats, third: Floats) -> Floats:
    """Turn sums of (p - y), ``(R, n)``, into about normal numbers, by the cube root of a shifted gamma variable."""
    deviation = np.sqrt(np.maximum(variance, LEAST_TOTAL))
    skewness = np.where(variance > LEAST_TOTAL, third, 0.0) / deviation**3
    z, size = -gaps / deviation, np.maximum(np.abs(skewness), 1e-4)
    shape = 4 / size**2
    argument = np.maximum(np.sign(skewness) * z * 2 / size + shape, 0.0)
    score: Floats = np.where(np.abs(skewness) < 1e-3, z, _cube_root_score(argument, shape))
    return score


def _chi_score(x: Floats, factor: float = 1.0) -> Floats:
    """Turn positive numbers, ``(R + 1, n)``, into about normal ones, by a gamma distribution with their moments.

    The last number is the data, which counts like a draw, so that their order stays fair; ``factor`` multiplies the
    variance of the draws.
    """
    mean, variance = x.mean(0), factor * x.var(0)
    if factor != 1:
        x = np.concatenate([mean + math.sqrt(factor) * (x[:-1] - mean), x[-1:]])
    varies = (mean > 0) & (variance > 0)
    shape = np.where(varies, mean**2 / np.where(varies, variance, 1.0), 1.0)
    score = _cube_root_score(np.maximum(x, 0.0) / np.where(varies, mean, 1.0) * shape, shape)
    return np.where(varies, score, np.where(x > mean * (1 + SAME), np.inf, 0.0))


def _cube_root_score(value: Floats, shape: Floats) -> Floats:
    """Return normal scores of a gamma variable (Wilson and Hilferty 1931)."""
    score: Floats = (np.cbrt(value / shape) - (1 - 1 / (9 * shape))) * 3 * np.sqrt(shape)
    return score
