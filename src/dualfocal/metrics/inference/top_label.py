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
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics.bins import BinStats, debiased_square
from dualfocal.metrics.inference import ranks
from dualfocal.metrics.inference.classwise import SIGNIFICANCE
from dualfocal.metrics.inference.ranks import Array
from dualfocal.metrics.inference.result import Floor, Inference, noise_floor

DRAWS = 1000  # draws of outcomes for floor and p-value
CELLS = 256  # groups of samples of similar confidence that are drawn together, much finer than bins
FEW_CELLS = 32  # the same for a p-value of many draws; with fewer cells the noise is slightly too large
GRID_DRAWS = 800  # at each size of miscalibration on the grid for the interval

Squares = tuple[Array, Array]  # of each draw: S, and the S of a single bin with all samples


class Confidences(Protocol):
    """Confidences in ascending order: of samples, or of fine cells that were counted."""

    def __len__(self) -> int: ...

    def cuts(self, most: int) -> np.ndarray:
        """Return ranks that cut the samples into about ``most`` groups of similar confidence."""

    def mean_confidence(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mean confidence of the samples between consecutive ranks; these include ends of bins."""


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
    squares = _squares(bins, drawn)
    p_value = _p_value(bins, squares)
    gaps = {"ece": _gaps(bins, drawn), "adaptive_ece": _gaps(adaptive, drawn_adaptive)}
    errors = {name: gap.abs().sum(1) / len(samples) for name, gap in gaps.items()}
    errors["mce"] = (gaps["ece"].abs() / bins.count).amax(1)
    return Inference(
        floors={name: noise_floor(values) for name, values in errors.items()},
        p_value=p_value,
        debiased_ece=_interval(bins, _debiased(bins, drawn), p_value, 1 - level, rng),
        level=level,
        detectable=_detectable(bins, squares, significance, rng),
        draws=draws,
        seed=seed,
    )


def floor_of_ece(
    samples: Confidences, bins: BinStats, adaptive: BinStats, *, draws: int = DRAWS, seed: int = 0
) -> Floor:
    """Compute the noise floor of the ECE alone; the draws are those of :func:`infer`."""
    bins, adaptive = _occupied(bins), _occupied(adaptive)
    drawn, _ = _calibrated_outcomes(samples, (bins, adaptive), draws, np.random.default_rng(seed))
    return noise_floor(_gaps(bins, drawn).abs().sum(1) / len(samples))


def fine_p_value(samples: Confidences, bins: BinStats, *, draws: int, seed: int = 0) -> float:
    """Compute the p-value of :func:`infer` alone, from many draws, as the first of many tests needs it."""
    bins = _occupied(bins)
    (drawn,) = _calibrated_outcomes(samples, (bins,), draws, np.random.default_rng(seed), FEW_CELLS)
    return _p_value(bins, _squares(bins, drawn))


def _p_value(bins: BinStats, null: Squares) -> float:
    """Return the share of draws, the data among them, that are as extreme as the data."""
    observed = _squares(bins, bins.correct[None])
    return ranks.last_rank([np.concatenate(pair) for pair in zip(null, observed, strict=True)])


def _occupied(bins: BinStats) -> BinStats:
    """Return the bins that are not empty, on the CPU."""
    full = (bins.count > 0).nonzero()[:, 0]
    return bins.map(lambda sums: sums[full].cpu(), torch.cat([bins.edges[full], bins.edges[-1:]]).cpu())


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


def _squares(bins: BinStats, correct: Tensor) -> Squares:
    """Return S, and the S of a single bin with all samples, for each row of ``correct``."""
    gaps, n = _gaps(bins, correct.contiguous()), bins.count.sum()
    return ((gaps * gaps / bins.count).sum(-1) / n).numpy(), ((gaps.sum(-1) / n) ** 2).numpy()


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
    sizes = ranks.size_grid(observed, spread, linear, (count * gap**2).sum(), n)
    likely = rng.beta(
        correct + 0.5, count - correct + 0.5, size=(ranks.SHAPES, len(count))
    )  # accuracies, by Jeffreys' prior
    shape = bins.mean_confidence.numpy() - likely
    shape /= np.sqrt((count * shape**2).sum(1, keepdims=True) / n)
    outcomes, theta = _shifted(bins, sizes[:, None, None] * shape, max(1, _grid_draws(bins) // ranks.SHAPES), rng)
    return ranks.unified_interval(theta, _debiased(bins, outcomes), observed, spread, p_value, alpha)


def _grid_draws(bins: BinStats) -> int:
    """Return the number of draws per grid point, fewer with very many bins."""
    return max(100, min(GRID_DRAWS, 100 * GRID_DRAWS // bins.num_bins))


def _detectable(bins: BinStats, null: Squares, significance: float, rng: np.random.Generator) -> float:
    """Return the gap, the same in every bin, that the test detects in 80 % of the draws.

    ``null`` holds the squares of calibrated models.
    """
    square, n = torch.from_numpy(null[0]), int(bins.count.sum())
    # Over-confidence, or under-confidence if the confidences are too low for that.
    sign = 1.0 if float(bins.confidence.sum()) / n >= 0.5 else -1.0
    excess = max(float(square.quantile(1 - significance)) - float(square.mean()), 0.0) + 2 * float(square.std())
    widest = min(1.0, 3 * math.sqrt(excess) + 10 / n)  # from S alone, which makes it wide enough
    sizes = sign * widest * np.linspace(0, 1, ranks.GRID)[:, None, None] ** 2 * np.ones(bins.num_bins)
    outcomes, theta = _shifted(bins, sizes, _grid_draws(bins) // 2, rng)
    return ranks.detectable_size(theta, ranks.power(_squares(bins, outcomes), null, significance))
