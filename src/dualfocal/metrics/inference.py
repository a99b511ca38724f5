"""What a calibration error can bear: its floor, a test, an interval that keeps its promise, and what could be seen.

Everything rests on the squared error over the bins of the ECE, S = sum_b |B|/N (mean confidence - accuracy)^2, on T,
the same with its noise taken out (:meth:`BinStats.squared_error`), and on drawing outcomes anew, confidences fixed:

- the *floor*: outcomes drawn with the model's own confidences (consistency resampling, Broecker and Smith 2007) give
  the errors that a perfectly calibrated model of this size shows by chance;
- the *p-value* of "calibrated": how often such draws are as rare as what is seen, by S or by S of a single bin, the
  squared distance of mean confidence and accuracy, whichever is rarer. S alone sees any shape of miscalibration, but
  the noise of 15 bins hides the commonest, too much confidence by a little everywhere. (Not T: the noise that it takes
  out is that of the accuracy seen, and where errors are rare a single one would take itself out);
- the *interval* of the root of the true squared error: all values theta that a test at 1 - level does not reject,
  outcomes being drawn with a miscalibration of size theta and of the shape seen. Near zero the test is one-sided, far
  from it two-sided, and in between a mixture, after the unified intervals of Feldman and Cousins (1998): it covers a
  true 0 as often as it should, and is never empty or negative (compare Sun et al., arXiv:2408.08998);
- the *smallest detectable* error: the uniform gap that the test at 5 % would find in 80 % of samples like this one.

``benchmarks/inference_coverage.py`` shows by simulation that interval and test keep what they promise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._ranked import Ranked
from dualfocal.metrics.bins import ONE, Binner, BinStats, debiased_square, equal_edges
from dualfocal.metrics.rows import Rows

DRAWS = 1000  # of outcomes, for floor and p-value
CELLS = 256  # groups of neighbours in confidence that are drawn together: far finer than a bin
GRID, GRID_DRAWS = 25, 800  # sizes of miscalibration tried for the interval, and draws at each
CLASS_DRAWS, CLASS_ROWS = 200, 20_000  # label draws for the classwise floor, and the rows they are made for
MOST_COUNTS = 1 << 23  # of labels by draw, class and bin, held at a time
SIGNIFICANCE, POWER = 0.05, 0.8
TIE = 1e-12  # values of T this close are the same but for rounding
SAME = 1e-7  # likewise of squares, relative: confidences are rounded, which sets apart what is equal


@dataclass(frozen=True)
class Floor:
    """What a perfectly calibrated model with the same confidences would score by chance."""

    mean: float
    q95: float  # the 95 % quantile


@dataclass(frozen=True)
class Inference:
    """What the numbers can bear, see :mod:`dualfocal.metrics.inference`."""

    floors: dict[str, Floor]
    p_value: float  # of "the model is calibrated"
    debiased_ece: tuple[float, float]  # interval
    level: float  # its nominal coverage
    detectable: float  # smallest uniform gap found with 80 % power at 5 %; infinite if there is none at this N
    draws: int
    seed: int
    published: dict[str, tuple[float, float]] = field(default_factory=dict)  # pivotal bootstrap intervals, on request

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, fractions; what is not finite is None."""
        result: dict[str, Any] = {
            "floors": {name: asdict(floor) for name, floor in self.floors.items()},
            "p_value": self.p_value,
            "debiased_ece": {"interval": list(self.debiased_ece), "level": self.level},
            "detectable": self.detectable if math.isfinite(self.detectable) else None,
            "draws": self.draws,
            "seed": self.seed,
        }
        if self.published:
            result["published_intervals"] = {name: list(ends) for name, ends in self.published.items()}
        return result

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            floors={name: Floor(**floor) for name, floor in content["floors"].items()},
            p_value=content["p_value"],
            debiased_ece=tuple(content["debiased_ece"]["interval"]),
            level=content["debiased_ece"]["level"],
            detectable=math.inf if content["detectable"] is None else content["detectable"],
            draws=content["draws"],
            seed=content["seed"],
            published={name: tuple(ends) for name, ends in content.get("published_intervals", {}).items()},
        )


def infer(
    ranked: Ranked, bins: BinStats, adaptive: BinStats, *, level: float = 0.9, draws: int = DRAWS, seed: int = 0
) -> Inference:
    """Floors, p-value, interval and smallest detectable error of top-label (or positive-class) confidences."""
    rng = np.random.default_rng(seed)
    bins, adaptive = _occupied(bins), _occupied(adaptive)
    # How many would be right in each bin, (R, B).
    drawn, drawn_adaptive = _calibrated_outcomes(ranked, bins, adaptive, draws, rng)
    square, of_one = _squares(bins, drawn)
    pool = [torch.cat(pair) for pair in zip((square, of_one), _squares(bins, bins.correct[None]), strict=True)]
    rarity = _rarity(pool, pool)  # all are exchangeable, if the model is calibrated
    p_value = float((rarity <= rarity[-1]).double().mean())
    gaps = {"ece": _gaps(bins, drawn), "adaptive_ece": _gaps(adaptive, drawn_adaptive)}
    errors = {name: gap.abs().sum(1) / len(ranked) for name, gap in gaps.items()}
    errors["mce"] = (gaps["ece"].abs() / bins.count).amax(1)
    return Inference(
        floors={name: _floor(values) for name, values in errors.items()},
        p_value=p_value,
        debiased_ece=_interval(bins, _debiased(bins, drawn), p_value, 1 - level, rng),
        level=level,
        detectable=_detectable(bins, (square, of_one), rng),
        draws=draws,
        seed=seed,
    )


def classwise_floor(rows: Rows, num_bins: int, seed: int = 0) -> Floor:
    """The floor of the classwise ECE: labels drawn from the model's own distributions.

    Of more than ``CLASS_ROWS`` rows a random part is drawn for, and the result scaled by the square root of its share,
    as sampling noise scales; with so many classes that few samples fall in a bin it then comes out low, by 4 % at 1000
    classes and 40,000 rows.
    """
    n, num_classes, values, device = len(rows), rows.num_classes, rows.values, rows.values.device
    generator = torch.Generator(device).manual_seed(seed)
    if n > CLASS_ROWS:
        values = values[torch.randperm(n, generator=generator, device=device)[:CLASS_ROWS]]
    binner, cells = Binner(equal_edges(num_bins, device=device)), num_classes * num_bins
    offset = num_bins * torch.arange(num_classes, device=device)
    errors: list[Tensor] = []
    at_once = max(1, min(CLASS_DRAWS, MOST_COUNTS // cells))
    for first in range(0, CLASS_DRAWS, at_once):
        draws = min(at_once, CLASS_DRAWS - first)
        expected = torch.zeros(cells, dtype=torch.float64, device=device)
        counts = torch.zeros(draws * cells, dtype=torch.int32, device=device)
        draw = cells * torch.arange(draws, device=device)
        for start in range(0, len(values), step := max(1, (1 << 20) // num_classes)):
            p = values[start : start + step].double()
            p = p.softmax(1) if rows.input == "logits" else p / p.sum(1, keepdim=True)
            index = offset + binner((p * ONE).round_().reshape(-1)).view_as(p)  # (rows, C): the bin of every class
            expected.index_add_(0, index.reshape(-1), p.reshape(-1))
            uniform = torch.rand(len(p), draws, generator=generator, dtype=torch.float64, device=device)
            label = torch.searchsorted(p.cumsum(1), uniform).clamp_max_(num_classes - 1)
            hits = (index.gather(1, label) + draw).reshape(-1)
            counts.index_add_(0, hits, torch.ones_like(hits, dtype=torch.int32))
        gaps = counts.view(draws, cells).double().sub_(expected).abs_()
        errors.append(gaps.sum(1) / (len(values) * num_classes))
    return _floor(torch.cat(errors) * math.sqrt(len(values) / n))


def _occupied(bins: BinStats) -> BinStats:
    """Without the empty bins, on the host."""
    full = (bins.count > 0).nonzero()[:, 0]
    count, confidence, correct = (part[full].cpu() for part in (bins.count, bins.confidence, bins.correct))
    return BinStats(count, confidence, correct, torch.cat([bins.edges[full], bins.edges[-1:]]).cpu())


def _calibrated_outcomes(
    ranked: Ranked, bins: BinStats, adaptive: BinStats, draws: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """How many would be right in each bin, were the model calibrated: (R, B) for both kinds of bins.

    Neighbours in confidence are drawn together, by one binomial number of their mean: what that adds to the variance
    is their spread within 1/256 of the samples, squared.
    """
    n = len(ranked)
    ends = [np.concatenate([[0], of.count.numpy().cumsum()]) for of in (bins, adaptive)]
    fine = np.arange(n + 1) if n <= 2 * CELLS else np.linspace(0, n, CELLS + 1).astype(np.int64)
    cuts = np.unique(np.concatenate([fine, *ends]))
    count, units, _ = (of.cpu().numpy() for of in ranked.between(torch.from_numpy(cuts).to(ranked.units.device)))
    correct = _binomial(count, np.minimum(units / (ONE * count), 1.0), draws, rng)
    total = torch.from_numpy(np.pad(correct.cumsum(0), ((1, 0), (0, 0))))
    first, second = (total[torch.from_numpy(np.searchsorted(cuts, end))].diff(dim=0).T for end in ends)
    return first, second


def _binomial(count: np.ndarray, p: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws along a last axis of their own: numpy then prepares each distribution once."""
    return rng.binomial(count[..., None], p[..., None], size=(*count.shape, draws))


def _gaps(bins: BinStats, correct: Tensor) -> Tensor:
    """Summed confidence minus ``correct``, (R, B)."""
    return bins.confidence.double() / ONE - correct


def _debiased(bins: BinStats, correct: Tensor) -> Tensor:
    """T for each row of drawn numbers of correct samples."""
    correct = correct.contiguous()  # the same order of sums, and so the same bits, for the same outcome
    return debiased_square(bins.count, _gaps(bins, correct), correct.double() / bins.count)


def _squares(bins: BinStats, correct: Tensor) -> tuple[Tensor, Tensor]:
    """S, and S of one bin that holds all samples, likewise."""
    gaps, n = _gaps(bins, correct.contiguous()), bins.count.sum()
    return (gaps * gaps / bins.count).sum(-1) / n, (gaps.sum(-1) / n) ** 2


def _rarity(squares: Sequence[Tensor], among: Sequence[Tensor]) -> Tensor:
    """How many of ``among``, (..., R), have as large a square, for the rarer of the squares, (..., Q)."""
    as_large = [
        drawn.shape[-1] - torch.searchsorted(drawn.sort(-1).values, square * (1 - SAME))
        for square, drawn in zip(squares, among, strict=True)
    ]
    return torch.stack(as_large).amin(0)


def _floor(errors: Tensor) -> Floor:
    return Floor(float(errors.mean()), float(errors.quantile(0.95)))


def _shifted(bins: BinStats, shift: np.ndarray, draws: int, rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """Outcomes whose accuracy lies below the confidence by ``shift``, (G, B): (G, draws, B); and theta, (G,).

    Where there is no room below (or above) it lies above (below): a model that is right where it is certain can only be
    wrong to the other side.
    """
    count = bins.count.numpy()
    confidence = bins.confidence.numpy() / (ONE * count)
    # A sum's last bit can depend on where in memory it is made, and a binomial draw on the last bit of its probability:
    # rounded, a seed gives the same draws in (nearly) every run.
    shift = shift.astype(np.float32).astype(np.float64)
    accuracy, mirrored = np.clip(confidence - shift, 0.0, 1.0), np.clip(confidence + shift, 0.0, 1.0)
    accuracy = np.where(np.abs(mirrored - confidence) > np.abs(accuracy - confidence), mirrored, accuracy)
    theta = np.sqrt((count * (confidence - accuracy) ** 2).sum(1) / count.sum())
    correct = _binomial(np.broadcast_to(count, accuracy.shape), accuracy, draws, rng)
    return torch.from_numpy(correct).transpose(1, 2), theta


def _interval(
    bins: BinStats, null: Tensor, p_value: float, alpha: float, rng: np.random.Generator
) -> tuple[float, float]:
    """The values of theta that are not rejected; of 0 the p-value is known."""
    count, gap, seen = bins.count.numpy(), bins.gap.numpy(), float(bins.squared_error())
    if not (count > 1).any():
        return 0.0, 1.0  # nothing can be said
    n, accuracy = count.sum(), bins.accuracy.numpy()
    mean_gap = np.where(count > 1, gap / count, 0.0)
    size = math.sqrt((count * mean_gap**2).sum() / n)
    shape = mean_gap / size if size > 0 else np.ones_like(mean_gap)
    spread = float(null.std())  # 0 of a model that is always certain
    linear = 4 * (count * mean_gap**2 * accuracy * (1 - accuracy)).sum() / n**2
    noise = 6 * math.sqrt(spread**2 + linear)
    low, high = math.sqrt(max(seen - noise, 0.0)) - 10 / n, math.sqrt(max(seen, 0.0) + noise) + 10 / n
    sizes = np.concatenate([[0.0], np.linspace(max(low, 0.0), high, GRID - 1)])
    outcomes, theta = _shifted(bins, sizes[:, None] * shape, _grid_draws(bins), rng)
    statistic = _debiased(bins, outcomes)
    as_high = (statistic >= seen - TIE).double().mean(1).numpy()
    as_low = (statistic <= seen + TIE).double().mean(1).numpy()
    as_high[theta == 0] = p_value  # so that 0 is left out if the test rejects it
    below = alpha / 2 * (1 - np.exp(-(theta**2) / max(spread, 1e-300)))  # share of the level at the lower side
    low = _crossing(theta, as_high - (alpha - below))
    high = _crossing(theta[::-1], (as_low - below)[::-1])
    return low, max(low, high)


def _grid_draws(bins: BinStats) -> int:
    """Fewer where there are very many bins."""
    return max(100, min(GRID_DRAWS, 100 * GRID_DRAWS // bins.num_bins))


def _crossing(theta: np.ndarray, excess: np.ndarray) -> float:
    """The first theta at which the excess over the level is positive, interpolated; the last one if there is none."""
    if not (excess > 0).any():
        return float(theta[-1])
    i = max(1, int(np.argmax(excess > 0)))
    if excess[i - 1] > 0:
        return float(theta[0])
    return float(np.interp(0.0, excess[i - 1 : i + 1], theta[i - 1 : i + 1]))


def _detectable(bins: BinStats, null: tuple[Tensor, Tensor], rng: np.random.Generator) -> float:
    """The uniform gap that the test finds at 5 % in 80 % of the draws; null: squares of calibrated models."""
    of_bins, n = null[0], int(bins.count.sum())
    # Over-confidence, or under-confidence where the confidences are too low for that.
    sign = 1.0 if float(bins.confidence.sum()) / ONE / n >= 0.5 else -1.0
    beyond = max(float(of_bins.quantile(1 - SIGNIFICANCE)) - float(of_bins.mean()), 0.0) + 2 * float(of_bins.std())
    widest = min(1.0, 3 * math.sqrt(beyond) + 10 / n)  # by S alone, so that it is wide enough
    sizes = sign * widest * np.linspace(0, 1, GRID)[:, None] ** 2 * np.ones(bins.num_bins)
    outcomes, theta = _shifted(bins, sizes, _grid_draws(bins) // 2, rng)
    rarities = _rarity(null, null).sort().values
    as_rare = torch.searchsorted(rarities, _rarity(_squares(bins, outcomes), null), right=True)
    power = (as_rare <= SIGNIFICANCE * len(of_bins)).double().mean(1).numpy()
    return _crossing(theta, power - POWER) if power.max() >= POWER else math.inf
