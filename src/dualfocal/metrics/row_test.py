"""The test of one row of cells: the bins of the confidence, or of the probability of one label."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtr

from dualfocal.metrics.cells import BinStats, Floats
from dualfocal.metrics.draws import (
    LEAST,
    Settings,
    crossing,
    draw_cells,
    floor_of,
    p_of_gap,
    rank_of_last,
    rarity,
    rounded,
    third_cumulant,
)
from dualfocal.metrics.inference_result import POWER, Floor
from dualfocal.metrics.units import centred_sums, wild_signs

GRID = 25  # sizes of miscalibration on the grid for intervals and power
SHAPES, SHAPE_DRAWS = 100, 5  # shapes of miscalibration for the interval, and draws of each
POWER_DRAWS = 500  # of a model with a gap
FEW_OUTCOMES = 10.0  # variance of a number of outcomes; with less, it is not drawn as a normal number
TIE = 1e-12  # debiased errors that differ by less are equal up to rounding
SHARE = 0.8  # of the significance, for the sum of all gaps where the draws end
FAR_BELOW = 2e-3  # a p-value below this that needs no draws is used; too rare by chance to change the level much
SMALL_P = 0.02  # p-values up to this one are computed again, if they are one of many


@dataclass(frozen=True, eq=False)
class GapDraws:
    """Gaps of the bins that are not empty, with random draws of them.

    Args:
        count: number of samples, or sum of their weights, ``(B,)``.
        gap: sum of confidence - correctness, ``(B,)``.
        variance: variance of the gaps about their expectation, ``(B,)``; infinite if it is not known.
        null: gaps of a calibrated model, ``(R, B)``.
        noise: difference of the gaps to their expectation, ``(R, B)``, for the noise floors.
        shapes: possible gaps per sample, around the observed ones, ``(S, B)``.
        shifted: returns gaps of a model with these gaps per sample, ``(R, B)``, the gaps per sample that were possible,
            and the variances of the gaps.
        carried: how much larger the draws of the test become for a gap of 1 in every bin, ``(R, B)`` or 0.
        p_of_sum: p-value of the sum of all gaps, without draws.
        draw: returns another so many gaps of a calibrated model, for a seed.
        sign: 1 to detect over-confidence; -1, under-confidence, if the confidences are too low for that.
    """

    count: Floats
    gap: Floats
    variance: Floats
    null: Floats
    noise: Floats
    shapes: Floats
    shifted: Callable[[Floats], tuple[Floats, Floats, Floats]]
    carried: Floats | float
    p_of_sum: float
    draw: Callable[[int, int], Floats]
    sign: float = 1.0

    @property
    def total(self) -> float:
        """Number of samples, or sum of their weights."""
        return float(self.count.sum())

    def floors(self) -> dict[str, Floor]:
        """Return the noise floors of ECE and MCE."""
        noise = np.abs(self.noise)
        return {"ece": floor_of(noise.sum(1) / self.total), "mce": floor_of((noise / self.count).max(1))}

    def p_value(self, settings: Settings) -> float:
        """Return the rank of the data among the draws, or the p-value of the sum where the draws end."""
        p = rank_of_last(self.squares(np.concatenate([self.null, self.gap[None]])))
        bound = self.p_of_sum / SHARE
        if p <= SMALL_P and settings.fine_draws > len(self.null) and bound > FAR_BELOW / settings.tests:
            starts = range(len(self.null), settings.fine_draws, len(self.null))
            parts = [self.squares(self.draw(len(self.null), settings.seed + start)) for start in starts]
            parts += [self.squares(self.null), self.squares(self.gap[None])]
            p = rank_of_last([np.concatenate(squares) for squares in zip(*parts, strict=True)])
        return min(p, bound) if bound < FAR_BELOW else p

    def squares(self, gaps: Floats) -> tuple[Floats, Floats]:
        """Return the square over all bins, and that of the sum over the bins, of each draw of the gaps."""
        return (gaps**2 / self.count).sum(-1), gaps.sum(-1) ** 2

    def debiased(self, gaps: Floats, variance: Floats) -> Floats:
        """Return the squared error over the bins, less its noise, of each draw of the gaps."""
        known = np.isfinite(self.variance)
        squares: Floats = (known * (gaps**2 - np.where(known, variance, 0.0)) / self.count).sum(-1) / self.total
        return squares

    def interval(self, p_value: float, alpha: float) -> tuple[float, float]:
        """Return the interval of the root of the squared error; ``p_value`` is that of an error of 0."""
        known = np.isfinite(self.variance)
        if not known.any():
            return 0.0, 1.0  # no bin has a known variance: there is no information
        gap, n, variance = self.gap / self.count, self.total, np.where(known, self.variance, 0.0)
        observed = float(self.debiased(self.gap, variance))
        spread = float(self.debiased(self.null, (self.null**2).mean(0)).std())
        half = 6 * math.sqrt(spread**2 + 4 * float((gap**2 * variance).sum()) / n**2)
        low, high = math.sqrt(max(observed - half, 0.0)) - 10 / n, math.sqrt(max(observed, 0.0) + half) + 10 / n
        high = max(high, 1.5 * math.sqrt(float((self.count * gap**2).sum()) / n))
        sizes = np.append(0.0, np.linspace(max(low, 0.0), high, GRID - 1))
        shapes = self.shapes / np.sqrt((self.count * self.shapes**2).sum(1, keepdims=True) / n + LEAST)
        shapes = np.repeat(shapes, min(SHAPE_DRAWS, len(self.null) // len(shapes)), axis=0)

        @cache
        def tails(place: int) -> tuple[float, float, float]:
            """Return theta, and by how much each tail exceeds its significance; those in the middle are not needed."""
            drawn, possible, variances = self.shifted(sizes[place] * shapes)
            theta = float(np.sqrt((self.count * possible**2).sum(1) / n).mean())
            statistic = self.debiased(drawn, variances)
            as_high, as_low = (statistic >= observed - TIE).mean(), (statistic <= observed + TIE).mean()
            if sizes[place] == 0:
                as_high = p_value  # so that the interval excludes 0 if the test rejects it
            below = alpha / 2 * (1 - math.exp(-(theta**2) / max(spread, LEAST)))  # significance of the lower tail
            return theta, float(as_high - (alpha - below)), float(as_low - below)

        lower = crossing(range(GRID), lambda place: tails(place)[:2])
        upper = crossing(reversed(range(GRID)), lambda place: tails(place)[::2])
        return min(lower, 1.0), min(max(lower, upper), 1.0)

    def detectable(self, significance: float) -> float:
        """Return the gap, the same in every bin, that the test detects in 80 % of the draws; infinite if none is."""
        limits = [float(np.quantile(square, 1 - significance)) for square in self.squares(self.null)]
        widest = 4 * math.sqrt(max(limits[0] / self.total, limits[1] / self.total**2)) + 10 / self.total
        sizes = min(1.0, widest) * np.linspace(0, 1, GRID) ** 2
        own_null = self.squares(self.null)
        own_limit = np.sort(rarity(own_null, own_null))
        powers: list[float] = []

        def power(place: int) -> tuple[float, float]:
            """Return theta, and by how much the power exceeds that which is asked for."""
            gap = np.full((min(POWER_DRAWS, len(self.null)), len(self.gap)), self.sign * sizes[place])
            drawn, possible, _ = self.shifted(gap)
            null, limit = own_null, own_limit
            if not isinstance(self.carried, float):  # a wild bootstrap draws the gap, too
                null = self.squares(self.noise + sizes[place] * self.carried)
                limit = np.sort(rarity(null, null))
            rank = np.searchsorted(limit, rarity(self.squares(drawn), null), side="right")
            powers.append(float((rank <= significance * len(limit)).mean()))
            return float(np.sqrt((self.count * possible**2).sum(1) / self.total).mean()), powers[-1] - POWER

        gap = crossing(range(GRID), power)
        return gap if max(powers) >= POWER else math.inf


@dataclass(frozen=True)
class RowTest:
    """P-value, interval and smallest detectable error of one row of cells."""

    p_value: float
    interval: tuple[float, float]
    detectable: float

    @classmethod
    def of(cls, gaps: GapDraws, settings: Settings, significance: float, least_p: float = 0.0) -> "RowTest":
        """Compute them from draws; the p-value is at least ``least_p``."""
        p_value = max(gaps.p_value(settings), least_p) if least_p < 1 else 1.0
        return cls(p_value, gaps.interval(p_value, 1 - settings.level), gaps.detectable(significance))


def model_gaps(bins: BinStats, settings: Settings) -> GapDraws:
    """Return draws for independent samples.

    Possible accuracies come from their posterior (Jeffreys' prior): with a few hundred samples of a very confident
    model, the observed ones alone make the interval too short. The noise of a miscalibrated model is binomial, or
    normal where it has enough outcomes of both kinds.
    """
    rng = np.random.default_rng(settings.seed)
    bins = bins[bins.count > 0]
    null = draw_cells(bins, settings.draws, rng)
    number, confidence, accuracy = np.maximum(bins.effective_count(), 1.0), bins.mean_confidence, bins.accuracy
    right, wrong = rounded(accuracy * number), rounded((1 - accuracy) * number)
    likely = rng.beta(right + 0.5, wrong + 0.5, size=(SHAPES, len(number)))
    normal = rng.standard_normal(null.shape)

    def shifted(gap: Floats) -> tuple[Floats, Floats, Floats]:
        # If the accuracy would leave [0, 1], the gap has the opposite sign, if that leaves more room.
        low, high = np.clip(confidence - gap, 0.0, 1.0), np.clip(confidence + gap, 0.0, 1.0)
        expected = np.where(np.abs(high - confidence) > np.abs(low - confidence) + TIE, high, low)
        spread = expected * (1 - expected) * number
        drawn = np.clip(expected + normal[: len(gap)] * np.sqrt(spread) / number, 0.0, 1.0)
        few = spread < FEW_OUTCOMES  # where the number of right or wrong outcomes is far from normal
        if few.any():  # bin by bin, where the same probability comes many times in a row
            trials = np.broadcast_to(np.maximum(np.rint(number), 1.0), few.shape).T[few.T]
            hits = np.random.default_rng(settings.seed).binomial(trials.astype(np.int64), rounded(expected.T[few.T]))
            drawn.T[few.T] = hits / trials
        variance = bins.count**2 * drawn * (1 - drawn) / np.maximum(number - 1, 1.0)
        return bins.count * (confidence - drawn), confidence - expected, variance

    third = third_cumulant(bins, bins.squares / bins.count)
    return GapDraws(
        count=bins.count,
        gap=bins.gap,
        variance=bins.gap_variance,
        null=null,
        noise=null,
        shapes=confidence - likely,
        shifted=shifted,
        carried=0.0,
        p_of_sum=float(p_of_gap(bins.gap.sum(), bins.variance.sum(), third.sum())),
        draw=lambda draws, seed: draw_cells(bins, draws, np.random.default_rng(seed)),
        sign=1.0 if bins.confidence.sum() >= bins.count.sum() / 2 else -1.0,
    )


def wild_gaps(sums: Floats, sizes: Floats, signs: Floats) -> GapDraws:
    """Return draws of a wild bootstrap of sums by unit, ``(K, B)``; ``signs`` are those of the units, ``(R, K)``."""
    full = sizes.any(0)
    sums, sizes = sums[:, full], sizes[:, full]
    count, gap, centred = sizes.sum(0), sums.sum(0), centred_sums(sums, sizes)
    null, noise, carried = np.split(signs @ np.concatenate([sums, centred, sizes], axis=1), 3, axis=1)
    variance = (centred**2).sum(0)
    squares = float((sums.sum(1) ** 2).sum())
    return GapDraws(
        count=count,
        gap=gap,
        variance=np.where(np.count_nonzero(sizes, axis=0) > 1, variance, np.inf),
        null=null,
        noise=noise,
        shapes=(gap + noise[::-1][:SHAPES]) / count,  # reversed: no shape with the noise of its draw
        shifted=lambda shift: (noise[: len(shift)] + shift * count, shift, variance),
        carried=carried,
        p_of_sum=2 * float(stdtr(max(len(sums) - 1, 1), -abs(gap.sum()) / math.sqrt(max(squares, LEAST)))),
        draw=lambda draws, seed: wild_signs(len(sums), draws, seed) @ sums,
    )
