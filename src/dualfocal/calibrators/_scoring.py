"""Calibrate held-out samples, score them, and compare methods by paired differences."""

import copy
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import FitReport
from dualfocal.calibrators.inputs import given_values
from dualfocal.calibrators.notes import Note, merge_folds
from dualfocal.calibrators.temperature import TemperatureScaling
from dualfocal.metrics.comparison import LEAST, Difference, interval
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.label_noise import label_noise
from dualfocal.metrics.multilabel.entries import Entries
from dualfocal.metrics.resampling import Array, ShareDone, resample
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.samples import Samples
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
    repeats: Sequence[Samples],
    *,
    num_bins: int,
    level: float,
    seed: int,
    uncalibrated: Samples | None = None,
) -> MethodScore:
    """Score one method; ``repeats`` holds the samples as calibrated in each repeat of the cross-validation.

    ``uncalibrated`` holds the samples before calibration (None: these are they). The resampling draws depend only on
    the seed, so they are the same for all methods.
    """
    scanned = [(samples, scan(samples, num_bins=num_bins, scores=True, classwise=True)) for samples in repeats]
    evaluation = evaluate_samples(*scanned[0], num_bins, settings=Settings(level=level, seed=seed))
    evaluations = [evaluation, *(evaluate_samples(*repeat, num_bins) for repeat in scanned[1:])]
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
    """Calibrated logits of all samples for each repeat, with notes of the fits.

    ``fitted`` is the calibrator if it was fitted only once, ``fitted_nll`` otherwise the mean NLL of all fits on the
    samples of the fit.
    """

    logits: list[Tensor]
    notes: tuple[Note, ...]
    fitted: Calibrator | None = None
    fitted_nll: float = math.inf


def fit_once(calibrator: Calibrator, validation: Samples, samples: Samples) -> Calibrated:
    """Fit a copy of the calibrator on validation data and calibrate the samples."""
    fitted, report = _fitted(calibrator, _to_fit(validation))
    notes = report.notes if report.converged else (*report.notes, Note("not_converged"))
    return Calibrated([fitted(given_values(samples), input=samples.input)], notes, fitted)


def fit_folds(
    calibrator: Calibrator,
    data: Samples | Entries,
    splits: Sequence[Tensor],
    folds: int,
    progress: ShareDone | None = None,
) -> Calibrated:
    """For each split into folds, calibrate every fold by a calibrator fitted on the others, without weights.

    Args:
        calibrator: an unfitted calibrator.
        data: the predictions and targets.
        splits: the fold of each sample, (N,), for each repeat.
        folds: number of folds.
        progress: called with the share of the fits that are done.
    """
    values = data.values
    if isinstance(data, Samples):
        data, values = _to_fit(data), given_values(data)
    results, notes, losses = list[Tensor](), list[Note](), list[float]()
    for repeat, fold in enumerate(splits):
        result = torch.empty(values.shape, dtype=compute_dtype(values), device=values.device)
        for k in range(folds):
            here = fold == k
            fitted, report = _fitted(calibrator, data.at(~here))
            result[here] = fitted(values[here], input=data.input)
            notes += report.notes
            if not report.converged:
                notes.append(Note("fold_not_converged"))
            losses.append(report.nll_after)
            if progress is not None:
                progress((repeat + (k + 1) / folds) / len(splits))
        results.append(result)
    return Calibrated(results, merge_folds(notes), fitted_nll=fmean(losses))


def _to_fit(samples: Samples) -> Samples:
    """Return samples to fit on: without weights, and with logits of both classes also of one score per sample."""
    return replace(samples, weight=None, one_score=False)


def _fitted(calibrator: Calibrator, data: Any) -> tuple[Calibrator, FitReport]:
    fitted = copy.deepcopy(calibrator).fit(data)
    assert fitted.report is not None
    return fitted, fitted.report


def share_of(progress: ShareDone | None, done: int, total: int) -> ShareDone:
    """Progress of one of several equal tasks: a function that reports the share of all tasks that is done."""

    def report(share: float) -> None:
        if progress is not None:
            progress((done + share) / total)

    return report


def assign_folds(samples: Samples, *, folds: int, seeds: range) -> list[Tensor]:
    """Fold of each sample, for each seed. Folds are stratified by class; clusters and images stay whole.

    Raises:
        ValueError: there are fewer clusters or images than folds.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    if samples.cluster is not None:
        if (samples.num_clusters or 0) < folds:
            raise ValueError(
                f"{folds} folds of whole clusters (images of dense predictions) need at least {folds} of them, got "
                f"{samples.num_clusters} with labels"
            )
        return [_folds_of_clusters(samples.cluster, folds, generator) for generator in generators]
    if samples.pixels == 1:
        return [_stratified_folds(samples.target, folds, generator) for generator in generators]
    images, image = np.unique(samples.image(), return_inverse=True)  # images without labels are not counted
    if (count := len(images)) < folds:
        raise ValueError(f"{folds} folds of whole images need at least {folds} images with labels, got {count}")
    of_pixel = torch.from_numpy(image).to(samples.values.device)
    return [
        (torch.randperm(count, generator=generator).to(of_pixel.device) % folds)[of_pixel] for generator in generators
    ]


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
