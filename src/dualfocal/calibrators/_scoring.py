"""Calibrate held-out samples, score them, and compare methods by paired differences."""

import copy
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import TypeVar

import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import FitReport
from dualfocal.calibrators.notes import Note, merge_folds
from dualfocal.calibrators.temperature import TemperatureScaling
from dualfocal.metrics.comparison import LEAST, Difference, interval
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.label_noise import label_noise
from dualfocal.metrics.resampling import Array, ShareDone, resample
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import scan

COMPARED = ("nll", "brier", "error", "ece")
NOT_COMPARED = Difference(math.nan, math.nan, -math.inf, math.inf)

AnyScore = TypeVar("AnyScore", bound="Score")


@dataclass(frozen=True, kw_only=True)
class Score:
    """Scores of a method on held-out samples; :class:`MethodScore` explains the attributes."""

    name: str
    scores: dict[str, float]
    changes: dict[str, Difference] = field(default_factory=dict)
    behind: Difference = NOT_COMPARED
    notes: tuple[Note, ...] = ()
    optimism: float = 0.0
    noise: dict[str, float] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class MethodScore(Score):
    """Scores of a calibrator, or of the uncalibrated model, on held-out samples.

    Attributes:
        name: name of the method.
        scores: nll, brier, error and ece, averaged over the repeats.
        changes: differences from the uncalibrated model (a) to this method (b), for each score.
        behind: difference in NLL from the best method that may be recommended (a) to this method (b).
        notes: notes of the fits.
        optimism: with cross-validation, how much lower the NLL is on the samples that the calibrators were fitted on
            than on held-out samples.
        evaluation: all metrics of the first repeat, with noise floors.
        argmax_changed: share of samples whose predicted class changed.
        fitted: the fitted calibrator; None with cross-validation.
        draws: scores on resampled data.
        noise: standard deviation of the difference of each score from the uncalibrated model, over labels drawn from
            the stated probabilities.
    """

    evaluation: Evaluation
    argmax_changed: float = 0.0
    fitted: Calibrator | None = None
    draws: dict[str, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ece_floor(self) -> float:
        """Noise floor: the expected ECE of a perfectly calibrated model with these confidences."""
        assert self.evaluation.inference is not None
        return self.evaluation.inference.floors["ece"].mean

    @property
    def temperature(self) -> float | None:
        """Fitted temperature; None for other methods and for cross-validation."""
        return float(self.fitted.temperature) if isinstance(self.fitted, TemperatureScaling) else None


def score(
    name: str,
    repeats: Sequence[Rows],
    *,
    num_bins: int,
    level: float,
    seed: int,
    uncalibrated: Rows | None = None,
    evaluation: Evaluation | None = None,
) -> MethodScore:
    """Score one method; ``repeats`` holds the samples as calibrated in each repeat of the cross-validation.

    ``uncalibrated`` holds the samples before calibration (None: these are they), ``evaluation`` a precomputed
    evaluation of the first repeat. The resampling draws depend only on the seed, so they are the same for all methods.
    """
    scanned = [(rows, scan(rows, num_bins=num_bins, scores=True, classwise=True)) for rows in repeats]
    if evaluation is None:
        evaluation = evaluate_rows(*scanned[0], num_bins, settings=Settings(level=level, seed=seed))
    evaluations = [evaluation, *(evaluate_rows(*repeat, num_bins) for repeat in scanned[1:])]
    scores = {metric: sum(getattr(e, metric) for e in evaluations) / len(evaluations) for metric in COMPARED}
    draws, noise = {}, dict[str, float]()
    if min(len(repeats[0]), repeats[0].num_clusters or LEAST) >= LEAST:
        resampled = resample(scanned, num_bins, seed=seed, classwise=False)
        draws = {metric: resampled[metric].mean(1) for metric in COMPARED}
        if uncalibrated is not None:
            before = uncalibrated, scan(uncalibrated, num_bins=num_bins, scores=True)
            noise = label_noise([before], scanned, num_bins, seed=seed)
    return MethodScore(name=name, scores=scores, evaluation=evaluation, draws=draws, noise=noise)


def rank_methods(
    methods: Sequence[AnyScore],
    difference: Callable[[AnyScore, AnyScore, str], Difference],
    metrics: Sequence[str] = ("nll",),
    left_out: Collection[str] = (),
) -> tuple[AnyScore, ...]:
    """Compare each method with the uncalibrated model and with the best method, and sort them by NLL.

    Args:
        methods: scores; those of the uncalibrated model come first.
        difference: returns the difference from one method to another in a metric.
        metrics: metrics in which a method is compared with the uncalibrated model.
        left_out: methods that cannot be the best, whatever their NLL.
    """
    uncalibrated = methods[0]
    best = min((method for method in methods if method.name not in left_out), key=lambda method: method.scores["nll"])
    compared = [
        replace(
            method,
            changes={metric: difference(uncalibrated, method, metric) for metric in metrics},
            behind=difference(best, method, "nll"),
        )
        for method in methods
    ]
    return tuple(sorted(compared, key=lambda method: method.scores["nll"]))


def resampled_difference(a: MethodScore, b: MethodScore, metric: str, *, level: float) -> Difference:
    """Difference from a to b in a metric; its interval comes from the resampled scores."""
    change = Difference(a.scores[metric], b.scores[metric], -math.inf, math.inf)
    if not a.draws:  # too few samples
        return change
    # The noise of two calibrators differs by at least the difference of their noises from the uncalibrated model.
    noise = abs(b.noise.get(metric, 0.0) - a.noise.get(metric, 0.0))
    low, high = interval(b.draws[metric] - a.draws[metric], change.difference, level, noise)
    if metric == "nll" and a is not b and math.isfinite(change.difference):
        low, high = _with_variance_of_fits(change.difference, low, high, a, b, level)
    return replace(change, low=low, high=high)


def _with_variance_of_fits(
    centre: float, low: float, high: float, a: MethodScore, b: MethodScore, level: float
) -> tuple[float, float]:
    """Widen a cross-validated interval of the NLL, because the calibrator for all samples will be another fit.

    The optimism of a maximum-likelihood fit with k parameters to N samples is about k / N nats. The fits add a variance
    of k / N^2, the optimism / N, to that of the resampled scores if N is large. Twice as much covers better from N =
    200 (``benchmarks/cross_fit_coverage.py``). Of samples in clusters or with weights, N is the number of independent
    samples that carry the same information.
    """
    assert a.evaluation.inference is not None
    clusters, weights = a.evaluation.inference.clusters, a.evaluation.weights
    num_samples = float(a.evaluation.num_samples) if weights is None else weights.effective
    if clusters is not None:
        num_samples = clusters.information(num_samples)
    deviation = math.sqrt(2 * max(a.optimism, b.optimism) / num_samples)
    extra = NormalDist().inv_cdf((1 + level) / 2) * deviation
    return centre - math.hypot(centre - low, extra), centre + math.hypot(high - centre, extra)


@dataclass(frozen=True)
class Calibrated:
    """Calibrated logits of all rows for each repeat, with notes of the fits.

    ``fitted`` is the calibrator if it was fitted only once, ``fitted_nll`` otherwise the mean NLL of all fits on the
    samples of the fit.
    """

    logits: list[Tensor]
    notes: tuple[Note, ...]
    fitted: Calibrator | None = None
    fitted_nll: float = math.inf


def fit_once(calibrator: Calibrator, validation: Rows, rows: Rows) -> Calibrated:
    """Fit a copy of the calibrator on validation data and calibrate the rows."""
    fitted, report = _fitted(calibrator, validation.values, validation.target, validation.input)
    notes = report.notes if report.converged else (*report.notes, Note("not_converged"))
    return Calibrated([fitted(rows.values, input=rows.input)], notes, fitted)


def fit_folds(
    calibrator: Calibrator,
    values: Tensor,
    target: Tensor,
    input: str,
    splits: Sequence[Tensor],
    folds: int,
    progress: ShareDone | None = None,
) -> Calibrated:
    """For each split into folds, calibrate every fold by a calibrator fitted on the others.

    Args:
        calibrator: an unfitted calibrator.
        values: logits or probabilities, (N, C).
        target: labels, in the form that the calibrator takes.
        input: whether the values are ``"logits"`` or ``"probs"``.
        splits: the fold of each sample, (N,), for each repeat.
        folds: number of folds.
        progress: called with the share of the fits that are done.
    """
    results, notes, losses = list[Tensor](), list[Note](), list[float]()
    for repeat, fold in enumerate(splits):
        result = torch.empty(values.shape, dtype=compute_dtype(values), device=values.device)
        for k in range(folds):
            here = fold == k
            fitted, report = _fitted(calibrator, values[~here], target[~here], input)
            result[here] = fitted(values[here], input=input)
            notes += report.notes
            if not report.converged:
                notes.append(Note("fold_not_converged"))
            losses.append(report.nll_after)
            if progress is not None:
                progress((repeat + (k + 1) / folds) / len(splits))
        results.append(result)
    return Calibrated(results, merge_folds(notes), fitted_nll=fmean(losses))


def _fitted(calibrator: Calibrator, values: Tensor, target: Tensor, input: str) -> tuple[Calibrator, FitReport]:
    fitted = copy.deepcopy(calibrator).fit(values, target, input=input)
    assert fitted.report is not None
    return fitted, fitted.report


def share_of(progress: ShareDone | None, done: int, total: int) -> ShareDone:
    """Progress of one of several equal tasks: a function that reports the share of all tasks that is done."""

    def report(share: float) -> None:
        if progress is not None:
            progress((done + share) / total)

    return report


def assign_folds(rows: Rows, target: Tensor, *, ignore_index: int, folds: int, seeds: range) -> list[Tensor]:
    """Fold of each row, for each seed. Folds are stratified by class; clusters and images stay whole.

    Raises:
        ValueError: there are fewer clusters or images than folds.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    if rows.cluster is not None:
        if (rows.num_clusters or 0) < folds:
            raise ValueError(
                f"{folds} folds of whole clusters (images of dense predictions) need at least {folds} of them, got "
                f"{rows.num_clusters} with labels"
            )
        return [_folds_of_clusters(rows.cluster, folds, generator) for generator in generators]
    if target.ndim < 2:
        return [_stratified_folds(rows.target, folds, generator) for generator in generators]
    kept = target != ignore_index
    labelled = kept.flatten(1).any(1)
    count = int(labelled.sum())
    if count < folds:
        raise ValueError(f"{folds} folds of whole images need at least {folds} images with labels, got {count}")
    number = labelled.cumsum(0) - 1  # images without labels are not counted
    image = number.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)[kept]
    return [(torch.randperm(count, generator=generator).to(image.device) % folds)[image] for generator in generators]


def _folds_of_clusters(cluster: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Put whole clusters into folds of similar size: the largest first, each into the fold with the fewest samples."""
    size = torch.bincount(cluster).cpu()
    number = len(size)
    shuffled = torch.randperm(number, generator=generator)
    order = shuffled[size[shuffled].argsort(descending=True, stable=True)]
    fold, total = torch.empty(number, dtype=torch.int64), [0] * folds
    for index, count in zip(order.tolist(), size[order].tolist(), strict=True):
        smallest = total.index(min(total))
        fold[index] = smallest
        total[smallest] += count
    return fold.to(cluster.device)[cluster]


def _stratified_folds(target: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    shuffled = torch.randperm(len(target), generator=generator).to(target.device)
    order = shuffled[target[shuffled].argsort(stable=True)]
    return order.argsort() % folds
