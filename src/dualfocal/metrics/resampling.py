"""Bootstrap of the metrics of several models, with the same resamples for all, so that differences are paired."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._several import tracked
from dualfocal.metrics._sorting import risk_coverage, tie_ends, tie_groups
from dualfocal.metrics.bins import debiased_square, weighted_debiased_square
from dualfocal.metrics.inference.cluster_noise import Grouping
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.units import ONE, Binner, equal_edges, from_units, scatter_sum

DRAWS = 1000
BLOCKS = 4096  # with more samples, random blocks of them are drawn, whose sums have the same variance
LEAST_DRAWS, LOOP_SAMPLES = 200, 100_000_000  # metrics with a loop over draws: at least, and draws times samples
SLOW = ("classwise_ece", "adaptive_ece", "aurc")  # metrics that are not functions of a few sums
CLASS_COLUMNS = 1024  # classwise bins resampled at a time

Models = Sequence[tuple[Rows, Scan]]
ShareDone = Callable[[float], None]  # called with the share of the work that is done, from 0 to 1


def resample(
    models: Models,
    num_bins: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    slow: Collection[str] = SLOW,
    progress: ShareDone | None = None,
) -> dict[str, Tensor]:
    """Draw samples, or clusters of them, with replacement, and compute every metric of every model on the same draws.

    How often a sample is drawn is multiplied by its weight, if samples have weights.

    The draws depend only on the seed and the number of samples or clusters. ``slow`` names the slow metrics to include:
    classwise ECE, adaptive ECE and AURC.

    Returns:
        For each metric a float64 tensor (draws, models); ``"squared_error"`` is the square of the debiased error. With
        very many samples, the adaptive ECE has fewer draws, because each draw needs a sorted pass; the rest is NaN. The
        AURC is then linear in the numbers of copies of the samples, up to terms of order 1/N.
    """
    n, device = len(models[0][0]), models[0][0].values.device
    rng = np.random.default_rng(seed)
    clusters = models[0][0].cluster
    if clusters is None:
        num_blocks = min(n, BLOCKS)
        block = torch.from_numpy(np.arange(n) if n <= BLOCKS else rng.permutation(n) % num_blocks)
    else:
        grouping = Grouping(int(clusters.max()) + 1, rng)
        block, num_blocks = grouping.group_of(clusters), grouping.groups
    picks = rng.integers(num_blocks, size=(draws, num_blocks)) + num_blocks * np.arange(draws)[:, None]
    weight = torch.from_numpy(np.bincount(picks.ravel(), minlength=draws * num_blocks)).view(draws, num_blocks).double()
    block, weight = block.to(device), weight.to(device)

    columns: list[dict[str, Tensor]] = []
    for rows, stats in models:

        def report(share: float, done: int = len(columns)) -> None:
            if progress is not None:
                progress((done + share) / len(models))

        result = _sums(rows, stats, block, weight, num_bins)
        if "classwise_ece" in slow:
            result["classwise_ece"] = _classwise(rows, block, weight, num_bins)
        report(0.5)
        if wanted := [name for name in ("adaptive_ece", "aurc") if name in slow]:
            result |= _sorted_metrics(rows, stats, block, weight, num_bins, wanted, report)
        columns.append(result)
    return {name: torch.stack([column[name] for column in columns], dim=1).cpu() for name in columns[0]}


def _by_block(block: Tensor, values: Tensor, num_blocks: int, index: Tensor | int = 0, width: int = 1) -> Tensor:
    """Sum values by block, and by index within each block: (blocks, width)."""
    return scatter_sum(block * width + index, values.double(), num_blocks * width).view(num_blocks, width)


def _sums(rows: Rows, stats: Scan, block: Tensor, weight: Tensor, num_bins: int) -> dict[str, Tensor]:
    """Compute the metrics that are functions of sums: all draws are one product of weights and sums by block."""
    blocks, sample_weight = weight.shape[1], _sample_weight(rows)
    size = weight @ _by_block(block, sample_weight, blocks)  # (draws, 1)
    means = {
        name: (weight @ _by_block(block, sample_weight * values, blocks) / size)[:, 0]
        for name, values in (("error", ~stats.right), ("nll", stats.nll), ("brier", stats.brier))
    }
    index = Binner(equal_edges(num_bins, rows.dtype, block.device))(stats.confidence)
    gap = from_units(stats.confidence) - stats.correct.double()

    def by_bin(values: Tensor) -> Tensor:
        return weight @ _by_block(block, values, blocks, index, num_bins)

    count, gaps, correct = (by_bin(sample_weight * values) for values in (torch.ones_like(gap), gap, stats.correct))
    if rows.weight is None:
        square = debiased_square(count, gaps, correct / count)
    else:
        squares = torch.stack([by_bin(sample_weight**2 * values) for values in (~stats.correct, stats.correct)])
        square = weighted_debiased_square(count, gaps, correct / count, squares)
    return means | {
        "ece": gaps.abs().sum(1) / size[:, 0],
        "mce": (gaps.abs() / count).nan_to_num(0.0).amax(1),
        "squared_error": square,
    }


def _sample_weight(rows: Rows) -> Tensor:
    """Return the weight of each row; 1 if they have none."""
    return torch.ones(len(rows), dtype=torch.float64, device=rows.values.device) if rows.weight is None else rows.weight


def _classwise(rows: Rows, block: Tensor, weight: Tensor, num_bins: int) -> Tensor:
    blocks = weight.shape[1]
    binner = Binner(equal_edges(num_bins, rows.dtype, block.device))
    log_total = rows.values.double().logsumexp(1) if rows.input == "logits" else None
    step = max(1, CLASS_COLUMNS // num_bins)
    total = weight.new_zeros(len(weight))
    for start in range(0, rows.num_classes, step):
        p = rows.values[:, start : start + step].double()
        if log_total is not None:
            p = (p - log_total[:, None]).exp_()  # not in place: p is a view of float64 logits
        width = p.shape[1] * num_bins
        index = binner((p * ONE).round_().reshape(-1)).view_as(p) + num_bins * torch.arange(p.shape[1], device=p.device)
        hit = rows.target[:, None] == torch.arange(start, start + p.shape[1], device=p.device)
        column = (block[:, None] * width + index).reshape(-1)
        residual = p - hit.double()
        if rows.weight is not None:
            residual *= rows.weight[:, None]
        sums = scatter_sum(column, residual.reshape(-1), blocks * width).view(blocks, width)
        total += (weight @ sums).abs().sum(1)
    return total / (weight @ _by_block(block, _sample_weight(rows), blocks))[:, 0] / rows.num_classes


def _sorted_metrics(
    rows: Rows,
    stats: Scan,
    block: Tensor,
    weight: Tensor,
    num_bins: int,
    wanted: Collection[str],
    report: ShareDone,
) -> dict[str, Tensor]:
    draws = min(len(weight), max(LEAST_DRAWS, LOOP_SAMPLES // len(block)))
    results, sample_weight = {}, _sample_weight(rows)
    # Every metric has the same number of rows: draws that are not made stay NaN.
    if "adaptive_ece" in wanted:
        units, ascending = stats.confidence.sort()
        gap, last, order = from_units(units) - stats.correct[ascending].double(), tie_ends(units)[1], block[ascending]
        own = sample_weight[ascending]
        results["adaptive_ece"] = weight.new_full((len(weight),), torch.nan)
        for r in tracked(range(draws), lambda share: report(0.5 + share / 4)):
            results["adaptive_ece"][r] = _adaptive_error(gap, weight[r][order] * own, last, num_bins)
    if "aurc" in wanted:
        uncertainty, certain_first = stats.uncertainty.sort()
        wrong, ends = (~stats.right[certain_first]).double(), tie_ends(tie_groups(uncertainty))
        order, own = block[certain_first], sample_weight[certain_first]
        if draws < len(weight) and rows.weight is None:
            results["aurc"] = _linear_aurc(wrong, ends, order, weight)
            return results
        tied = ends if bool((ends[0] != ends[1]).any()) else None
        results["aurc"] = weight.new_full((len(weight),), torch.nan)
        for r in tracked(range(draws), lambda share: report(0.75 + share / 4)):
            results["aurc"][r] = risk_coverage(wrong, weight[r][order] * own, tied)
    return results


def _linear_aurc(wrong: Tensor, ends: tuple[Tensor, Tensor], block: Tensor, weight: Tensor) -> Tensor:
    """Return the AURC of each draw, to first order in the numbers of copies of the samples.

    The arguments are sorted by descending confidence. One more copy of sample j changes the AURC A by
    (r_j - A + sum over k >= j of (wrong_j - r_k) / k) / N, where r_k is the error among the k most confident samples.
    Tied samples are in random order: they share the mean of what depends on their place.
    """
    first, last = ends
    ones = torch.ones_like(wrong)
    place = ones.cumsum(0)
    sums = torch.cat([wrong.new_zeros(1), wrong.cumsum(0)])
    rate = (sums[last + 1] - sums[first]) / (last + 1 - first)
    risk = (sums[first] + rate * (place - first)) / place
    area = risk.mean()

    def shared(values: Tensor) -> Tensor:
        total = torch.cat([values.new_zeros(1), values.cumsum(0)])
        return (total[last + 1] - total[first]) / (last + 1 - first)

    after, risk_after = ((x / place).flip(0).cumsum(0).flip(0) for x in (ones, risk))
    influence = shared(risk - risk_after) - area + wrong * shared(after)
    blocks = weight.shape[1]
    size = weight @ _by_block(block, ones, blocks)
    return area + (weight @ _by_block(block, influence, blocks) / size)[:, 0]


def _adaptive_error(gap: Tensor, weight: Tensor, last: Tensor, num_bins: int) -> Tensor:
    """Compute the adaptive ECE of a draw from ascending confidences; equal confidences share a bin."""
    mass, gap = weight.cumsum(0), (weight * gap).cumsum(0)
    quantile = mass[-1] * torch.arange(1, num_bins + 1, dtype=mass.dtype, device=mass.device) / num_bins
    ends = last[torch.searchsorted(mass, quantile).clamp_max_(len(mass) - 1)]
    return torch.cat([gap.new_zeros(1), gap[ends]]).diff().abs().sum() / mass[-1]


def quantiles(draws: Tensor, level: float) -> tuple[float, float]:
    """Return the central interval with this share of the draws; NaN draws are left out."""
    draws = draws[~draws.isnan()]
    return float(draws.quantile((1 - level) / 2)), float(draws.quantile((1 + level) / 2))
