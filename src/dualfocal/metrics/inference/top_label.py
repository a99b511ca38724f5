"""Statistical inference for calibration errors: noise floor, test, confidence interval and smallest detectable error.

All of it uses the squared error over the bins of the ECE, S = sum_b |B|/N (mean confidence - accuracy)^2, its debiased
version T (:meth:`BinStats.squared_error`), and outcomes that are drawn at random while the confidences stay fixed:

- The *noise floor* is the error of a perfectly calibrated model with the same confidences, by chance. It is computed
  from outcomes drawn with the model's own confidences (consistency resampling, Broecker and Smith 2007).
- The *p-value* tests the hypothesis that the model is calibrated. It is the share of such draws that are at least as
  extreme as the data, by S or by the S of a single bin (the squared difference of mean confidence and accuracy),
  whichever is more extreme. S detects any shape of miscalibration, but the noise of 15 bins can hide the most common
  shape, a small over-confidence everywhere; the single bin detects that. (T is not used here: it subtracts the noise
  estimated from the observed accuracy, so that a single error among very confident samples would cancel itself.)
- The *interval* is a confidence interval of the root of the true squared error. It contains all values theta that a
  test at significance 1 - level does not reject, where outcomes are drawn with a miscalibration of size theta. Its
  shape (how the gaps of the bins relate) is drawn from the posterior of the accuracies: with a few hundred samples of
  a very confident model, the observed shape alone makes the interval too short. The test is one-sided near zero,
  two-sided far from zero, and a mixture in between, like the unified intervals of Feldman and Cousins (1998): the
  interval has the right coverage at a true value of 0, and is never empty or negative (compare Sun et al.,
  arXiv:2408.08998).
- The *smallest detectable error* is the gap between confidence and accuracy, the same in every bin, that the test
  detects with 80 % power.

All of this is about the confidence of the predicted class. :mod:`dualfocal.metrics.inference.classwise` tests the
probabilities of all classes. The verdict covers both tests, by Holm's method: at most 5 % of calibrated models are
called miscalibrated.

``benchmarks/inference_coverage.py`` checks the coverage of the interval and the level of the test by simulation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics.bins import SUMS, BinStats, debiased_square
from dualfocal.metrics.inference.classwise import SIGNIFICANCE, ClasswiseTest
from dualfocal.metrics.inference.cluster_summary import ClusterSummary
from dualfocal.metrics.inference.holm import holm

DRAWS = 1000  # draws of outcomes for floor and p-value
CELLS = 256  # groups of samples of similar confidence that are drawn together, much finer than bins
FEW_CELLS = 32  # the same for a p-value of many draws; with fewer cells the noise is slightly too large
GRID, GRID_DRAWS = 25, 800  # sizes of miscalibration on the grid for the interval, and draws at each
SHAPES = 100  # shapes of miscalibration for the interval, which share the draws
POWER = 0.8  # of the smallest detectable error
TIE = 1e-12  # values of T that differ by less are equal up to rounding
SAME = 1e-7  # relative tolerance of equal squares: confidences are rounded


class Confidences(Protocol):
    """Confidences in ascending order: of samples, or of fine cells that were counted."""

    def __len__(self) -> int: ...

    def cuts(self, most: int) -> np.ndarray:
        """Return ranks that cut the samples into about ``most`` groups of similar confidence."""

    def mean_confidence(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mean confidence of the samples between consecutive ranks; these include ends of bins."""


@dataclass(frozen=True)
class Floor:
    """Noise floor of a metric: its value for a perfectly calibrated model with the same confidences, by chance."""

    mean: float
    q95: float  # the 95 % quantile


@dataclass(frozen=True)
class Inference:
    """Noise floors, test, confidence interval and smallest detectable error of an evaluation.

    See :mod:`dualfocal.metrics.inference.top_label` for how they are computed.

    Args:
        floors: the noise floor of each calibration error, by name.
        p_value: p-value of the hypothesis that the model is calibrated.
        debiased_ece: confidence interval of the debiased error.
        level: nominal coverage of the interval.
        detectable: smallest gap between confidence and accuracy, the same in every bin, that the test detects with
            80 % power; infinite if it detects none at this N. The test has 5 % significance, or 2.5 % beside the
            class-wise test.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.
        published: pivotal bootstrap intervals as in the published code, if they were asked for.
        classwise: test of the probabilities of all classes; None with ``binary="positive"``, where ``p_value`` is that
            of the probabilities of class 1.
        clusters: how much the clusters of the samples matter; None if the samples are independent.
    """

    floors: dict[str, Floor]
    p_value: float
    debiased_ece: tuple[float, float]
    level: float
    detectable: float
    draws: int
    seed: int
    published: dict[str, tuple[float, float]] = field(default_factory=dict)
    classwise: ClasswiseTest | None = None
    clusters: ClusterSummary | None = None

    @property
    def adjusted(self) -> list[float]:
        """P-values of the predicted class and, if it was tested, of all classes, Holm-adjusted for the two tests."""
        return holm([self.p_value] if self.classwise is None else [self.p_value, self.classwise.p_value])

    @property
    def joint_p_value(self) -> float:
        """P-value of the hypothesis that confidences and class probabilities are calibrated."""
        return min(self.adjusted)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, as fractions; values that are not finite are None."""
        result: dict[str, Any] = {
            "floors": {name: asdict(floor) for name, floor in self.floors.items()},
            "p_value": self.p_value,
            "debiased_ece": {"interval": list(self.debiased_ece), "level": self.level},
            "detectable": self.detectable if math.isfinite(self.detectable) else None,
            "draws": self.draws,
            "seed": self.seed,
        }
        if self.classwise is not None:
            result["classwise"] = self.classwise.to_dict()
        if self.clusters is not None:
            result["clusters"] = asdict(self.clusters)
        if self.published:
            result["published_intervals"] = {name: list(ends) for name, ends in self.published.items()}
        return result

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        return cls(
            floors={name: Floor(**floor) for name, floor in content["floors"].items()},
            p_value=content["p_value"],
            debiased_ece=tuple(content["debiased_ece"]["interval"]),
            level=content["debiased_ece"]["level"],
            detectable=math.inf if content["detectable"] is None else content["detectable"],
            draws=content["draws"],
            seed=content["seed"],
            published={name: tuple(ends) for name, ends in content.get("published_intervals", {}).items()},
            classwise=ClasswiseTest.from_dict(content["classwise"]) if "classwise" in content else None,
            clusters=ClusterSummary(**content["clusters"]) if "clusters" in content else None,
        )


def infer(
    samples: Confidences,
    bins: BinStats,
    adaptive: BinStats,
    *,
    level: float = 0.9,
    draws: int = DRAWS,
    seed: int = 0,
    significance: float = SIGNIFICANCE,
) -> Inference:
    """Compute noise floors, p-value, interval and smallest detectable error of top-label or positive confidences.

    ``significance`` is that of the smallest detectable error.
    """
    rng = np.random.default_rng(seed)
    bins, adaptive = _occupied(bins), _occupied(adaptive)
    drawn, drawn_adaptive = _calibrated_outcomes(samples, (bins, adaptive), draws, rng)
    square, single_bin = _squares(bins, drawn)
    p_value = _p_value(bins, (square, single_bin))
    gaps = {"ece": _gaps(bins, drawn), "adaptive_ece": _gaps(adaptive, drawn_adaptive)}
    errors = {name: gap.abs().sum(1) / len(samples) for name, gap in gaps.items()}
    errors["mce"] = (gaps["ece"].abs() / bins.count).amax(1)
    return Inference(
        floors={name: noise_floor(values) for name, values in errors.items()},
        p_value=p_value,
        debiased_ece=_interval(bins, _debiased(bins, drawn), p_value, 1 - level, rng),
        level=level,
        detectable=_detectable(bins, (square, single_bin), significance, rng),
        draws=draws,
        seed=seed,
    )


def fine_p_value(samples: Confidences, bins: BinStats, *, draws: int, seed: int = 0) -> float:
    """Compute the p-value of :func:`infer` alone, from many draws, as the first of many tests needs it."""
    bins = _occupied(bins)
    (drawn,) = _calibrated_outcomes(samples, (bins,), draws, np.random.default_rng(seed), FEW_CELLS)
    return _p_value(bins, _squares(bins, drawn))


def _p_value(bins: BinStats, squares: tuple[Tensor, Tensor]) -> float:
    """Return the share of draws, the data among them, that are as extreme as the data; see :func:`_squares`."""
    pool = [torch.cat(pair) for pair in zip(squares, _squares(bins, bins.correct[None]), strict=True)]
    rarity = _rarity(pool, pool)  # draws and data are exchangeable if the model is calibrated
    return float((rarity <= rarity[-1]).double().mean())


def _occupied(bins: BinStats) -> BinStats:
    """Return the bins that are not empty, on the CPU."""
    full = (bins.count > 0).nonzero()[:, 0]
    count, whole, units, correct = (getattr(bins, name)[full].cpu() for name in SUMS)
    return BinStats(count, whole, units, correct, torch.cat([bins.edges[full], bins.edges[-1:]]).cpu())


def _calibrated_outcomes(
    samples: Confidences, kinds: Sequence[BinStats], draws: int, rng: np.random.Generator, cells: int = CELLS
) -> list[Tensor]:
    """Draw how many samples of each bin a calibrated model gets right: (R, B) for each kind of bins.

    Samples of similar confidence are drawn together, as one binomial number with their mean confidence. The error of
    the variance is negligible: the squared spread of confidence within 1/256 of the samples.
    """
    ends = [np.concatenate([[0], stats.count.numpy().cumsum()]) for stats in kinds]
    cuts = np.unique(np.concatenate([samples.cuts(cells), *ends]))
    correct = _binomial(np.diff(cuts), np.minimum(samples.mean_confidence(cuts), 1.0), draws, rng)
    total = torch.from_numpy(np.pad(correct.cumsum(0), ((1, 0), (0, 0))))
    return [total[torch.from_numpy(np.searchsorted(cuts, end))].diff(dim=0).T for end in ends]


def _binomial(count: np.ndarray, p: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw binomial numbers along a new last axis, so that numpy sets up each distribution only once."""
    return rng.binomial(count[..., None], p[..., None], size=(*count.shape, draws))


def _gaps(bins: BinStats, correct: Tensor) -> Tensor:
    """Return the summed confidence minus ``correct`` of each bin, (R, B)."""
    return bins.confidence - correct


def _debiased(bins: BinStats, correct: Tensor) -> Tensor:
    """Return T for each row of numbers of correct samples, (R, B)."""
    correct = correct.contiguous()  # so that sums have the same order, and equal outcomes the same bits
    return debiased_square(bins.count, _gaps(bins, correct), correct.double() / bins.count)


def _squares(bins: BinStats, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return S, and the S of a single bin with all samples, for each row of ``correct``."""
    gaps, n = _gaps(bins, correct.contiguous()), bins.count.sum()
    return (gaps * gaps / bins.count).sum(-1) / n, (gaps.sum(-1) / n) ** 2


def _rarity(squares: Sequence[Tensor], among: Sequence[Tensor]) -> Tensor:
    """Count the draws ``among``, (..., R), with a square at least as large; the minimum over both kinds of squares."""
    as_large = [
        drawn.shape[-1] - torch.searchsorted(drawn.sort(-1).values, square * (1 - SAME))
        for square, drawn in zip(squares, among, strict=True)
    ]
    return torch.stack(as_large).amin(0)


def noise_floor(errors: Tensor) -> Floor:
    """Summarise the errors of calibrated draws."""
    return Floor(float(errors.mean()), float(errors.quantile(0.95)))


def _shifted(bins: BinStats, shift: np.ndarray, draws: int, rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """Draw outcomes whose accuracy is ``shift``, (G, S, B), below the confidence: (G, S * draws, B).

    If the accuracy would leave [0, 1] in a bin, the shift has the opposite sign there, if that leaves more room. Also
    return theta, (G,), the size of the shifts that are possible, averaged over the shapes S.
    """
    count = bins.count.numpy()
    confidence = bins.mean_confidence.numpy()
    # The last bit of a sum can depend on memory alignment, and a binomial draw on the last bit of its probability:
    # rounding makes a seed give the same draws in (nearly) every run.
    shift = shift.astype(np.float32).astype(np.float64)
    accuracy, mirrored = np.clip(confidence - shift, 0.0, 1.0), np.clip(confidence + shift, 0.0, 1.0)
    accuracy = np.where(np.abs(mirrored - confidence) > np.abs(accuracy - confidence), mirrored, accuracy)
    theta = np.sqrt((count * (confidence - accuracy) ** 2).sum(-1) / count.sum()).mean(-1)
    correct = _binomial(np.broadcast_to(count, accuracy.shape), accuracy, draws, rng)
    return torch.from_numpy(correct).transpose(2, 3).flatten(1, 2), theta


def _interval(
    bins: BinStats, null: Tensor, p_value: float, alpha: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the smallest and the largest theta that the test does not reject; ``p_value`` is that of theta = 0."""
    count, correct, observed = bins.count.numpy(), bins.correct.numpy(), float(bins.squared_error())
    if not (count > 1).any():
        return 0.0, 1.0  # no bin has two samples: there is no information
    n, accuracy, gap = float(count.sum()), bins.accuracy.numpy(), bins.gap.numpy() / count
    spread = float(null.std())  # 0 if the model is always certain
    linear = 4 * (count * gap**2 * accuracy * (1 - accuracy)).sum() / n**2
    noise = 6 * math.sqrt(spread**2 + linear)
    low, high = math.sqrt(max(observed - noise, 0.0)) - 10 / n, math.sqrt(max(observed, 0.0) + noise) + 10 / n
    high = max(high, 1.5 * math.sqrt((count * gap**2).sum() / n))
    sizes = np.concatenate([[0.0], np.linspace(max(low, 0.0), high, GRID - 1)])
    likely = rng.beta(correct + 0.5, count - correct + 0.5, size=(SHAPES, len(count)))  # accuracies, by Jeffreys' prior
    shape = bins.mean_confidence.numpy() - likely
    shape /= np.sqrt((count * shape**2).sum(1, keepdims=True) / n)
    outcomes, theta = _shifted(bins, sizes[:, None, None] * shape, max(1, _grid_draws(bins) // SHAPES), rng)
    return unified_interval(theta, _debiased(bins, outcomes), observed, spread, p_value, alpha)


def unified_interval(
    theta: np.ndarray, statistic: Tensor, observed: float, spread: float, p_value: float, alpha: float
) -> tuple[float, float]:
    """Return the smallest and the largest theta, (G,), at which the draws of the statistic, (G, R), allow the observed.

    ``spread`` is the standard deviation of the statistic at theta = 0, ``p_value`` that of a test of theta = 0.
    """
    as_high = (statistic >= observed - TIE).double().mean(1).numpy()
    as_low = (statistic <= observed + TIE).double().mean(1).numpy()
    as_high[theta == 0] = p_value  # so that the interval excludes 0 if the test rejects it
    below = alpha / 2 * (1 - np.exp(-(theta**2) / max(spread, 1e-300)))  # significance of the lower tail
    low = crossing(theta, as_high - (alpha - below))
    high = crossing(theta[::-1], (as_low - below)[::-1])
    return low, max(low, high)


def _grid_draws(bins: BinStats) -> int:
    """Return the number of draws per grid point, fewer with very many bins."""
    return max(100, min(GRID_DRAWS, 100 * GRID_DRAWS // bins.num_bins))


def crossing(theta: np.ndarray, excess: np.ndarray) -> float:
    """Return the first theta with a positive excess, interpolated, or the last theta if there is none."""
    if not (excess > 0).any():
        return float(theta[-1])
    i = max(1, int(np.argmax(excess > 0)))
    if excess[i - 1] > 0:
        return float(theta[0])
    return float(np.interp(0.0, excess[i - 1 : i + 1], theta[i - 1 : i + 1]))


def _detectable(bins: BinStats, null: tuple[Tensor, Tensor], significance: float, rng: np.random.Generator) -> float:
    """Return the gap, the same in every bin, that the test detects in 80 % of the draws.

    ``null`` holds the squares of calibrated models, see :func:`_squares`.
    """
    square, n = null[0], int(bins.count.sum())
    # Over-confidence, or under-confidence if the confidences are too low for that.
    sign = 1.0 if float(bins.confidence.sum()) / n >= 0.5 else -1.0
    excess = max(float(square.quantile(1 - significance)) - float(square.mean()), 0.0) + 2 * float(square.std())
    widest = min(1.0, 3 * math.sqrt(excess) + 10 / n)  # from S alone, which makes it wide enough
    sizes = sign * widest * np.linspace(0, 1, GRID)[:, None, None] ** 2 * np.ones(bins.num_bins)
    outcomes, theta = _shifted(bins, sizes, _grid_draws(bins) // 2, rng)
    rarities = _rarity(null, null).sort().values
    as_rare = torch.searchsorted(rarities, _rarity(_squares(bins, outcomes), null), right=True)
    power = (as_rare <= significance * len(square)).double().mean(1).numpy()
    return crossing(theta, power - POWER) if power.max() >= POWER else math.inf
