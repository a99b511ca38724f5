"""Compare calibrators of multi-label predictions by cross-validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist, fmean
from typing import Unpack

import torch
from torch import Tensor

from dualfocal.calibrators._fit_report import MIN_SAMPLES
from dualfocal.calibrators._scoring import Calibrated, Score, fit_folds, rank_methods, share_of
from dualfocal.calibrators.comparison import (
    UNCALIBRATED,
    MethodComparison,
    advise,
    change_cell,
    nats,
    plain_difference,
    recommend,
)
from dualfocal.calibrators.inputs import log_probs
from dualfocal.calibrators.multilabel import MULTILABEL_CALIBRATORS, entry_nll, make_multilabel_calibrator
from dualfocal.checks import check_count, check_known, check_level
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.cells import bin_index, equal_edges
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.multilabel.entries import Entries, as_entries
from dualfocal.metrics.multilabel.evaluation import macro_floor_mean
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.result import finite
from dualfocal.metrics.samples import SampleOptions
from dualfocal.tables import Table

LARGEST = 28.0  # log-odds for the noise of labels: a probability of about 1e-12


@dataclass(frozen=True, kw_only=True)
class MultilabelComparison(MethodComparison[Score]):
    """Scores of multi-label calibrators and of the uncalibrated model on the same samples, cross-validated.

    Attributes:
        methods: scores of all methods, including the uncalibrated model, sorted by NLL, lowest first. The scores are
            ``nll`` (mean over entries), ``macro_ece`` and ``macro_floor``.
        recommended: simplest method that helps significantly and is not significantly worse than the best.
        num_samples: number of samples.
        num_labels: number of labels.
        folds: number of folds of the cross-validation.
        repeats: number of repeats of the cross-validation.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds.
    """

    methods: tuple[Score, ...]
    recommended: str
    num_samples: int
    num_labels: int
    folds: int
    repeats: int
    level: float
    seed: int

    def verdict(self) -> str:
        """Recommendation in a few sentences."""
        text = advise(self.methods, self.recommended, self.level)
        if self.recommended == UNCALIBRATED:
            return text
        before, after = (100 * self[name].scores["macro_ece"] for name in (UNCALIBRATED, self.recommended))
        return f"{text} Macro ECE: {before:.2f} % before, {after:.2f} % after."

    def caveat(self) -> str:
        """Which samples were used for fitting and which for scoring."""
        repeated = "" if self.repeats == 1 else f", repeated {self.repeats} times"
        return (
            f"Cross-validated ({self.folds} folds of whole samples{repeated}): each sample is scored by calibrators "
            "fitted on the other folds. A calibrator fitted on all samples can score slightly differently on new data."
        )

    def table(self) -> Table:
        """Table of the methods; macro ECE and its noise floor are in percent."""
        rows = []
        for method in self.methods:
            ece, floor = (f"{100 * method.scores[name]:.2f}" for name in ("macro_ece", "macro_floor"))
            rows.append([method.name, nats(method.scores["nll"]), change_cell(method), ece, floor])
        headings = ["method", "NLL", f"change ± {100 * self.level:.4g} %", "macro ECE", "floor"]
        return Table(headings, rows, "calibrators per label, cross-validated, lowest NLL first; ECE in percent")

    def to_dict(self) -> dict[str, object]:
        """JSON-serialisable dictionary: fractions, NLL in nats, None for values that are not finite."""
        return {
            "schema": 1,
            "folds": self.folds,
            "repeats": self.repeats,
            "level": self.level,
            "seed": self.seed,
            "recommended": self.recommended,
            "methods": [
                {
                    "method": method.name,
                    **{name: finite(value) for name, value in method.scores.items()},
                    "change": {name: plain_difference(change) for name, change in method.changes.items()},
                    "nll_behind_best": plain_difference(method.behind),
                    "notes": list(map(str, method.notes)),
                }
                for method in self.methods
            ],
        }


def compare_multilabel_calibrators(
    logits: Array,
    target: Array,
    methods: str | Sequence[str] = tuple(MULTILABEL_CALIBRATORS),
    *,
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
    **options: Unpack[SampleOptions],
) -> MultilabelComparison:
    """Cross-validate calibrators of multi-label predictions, and recommend the simplest one that helps.

    Samples, or clusters of samples, are split into folds; each fold is calibrated by a calibrator fitted on the others.
    Methods are compared by their NLL. Its differences have confidence intervals from the sums of whole samples, or of
    whole clusters, and are at least as long as labels drawn from the stated probabilities allow; they are widened
    because the calibrator for all samples will be another fit.

    Args:
        logits: log-odds of each label, ``(N, L)``.
        target: 0 or 1 for each sample and label, ``(N, L)``.
        methods: one or several names from ``MULTILABEL_CALIBRATORS``.
        folds: number of folds.
        repeats: number of repetitions with new folds, over which scores are averaged.
        num_bins: number of bins of the macro ECE.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds.
        progress: callback, called with the fraction of the work done.
        **options: what predictions and targets mean, as in :func:`~dualfocal.metrics.evaluate` with
            ``task="multilabel"``.

    Raises:
        ValueError: there are too few samples or clusters, or an argument is invalid.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = torch.randn(2000, 4, generator=generator)
    >>> target = torch.rand(2000, 4, generator=generator) < logits.sigmoid()
    >>> compare_multilabel_calibrators(3 * logits, target).recommended
    'temperature'
    """
    check_count("folds", folds, 2)
    check_count("repeats", repeats)
    check_level(level)
    methods = [methods] if isinstance(methods, str) else methods
    for name in methods:
        check_known("the calibrator of multi-label predictions", name, MULTILABEL_CALIBRATORS)
    entries = as_entries(logits, target, options)
    cluster = torch.arange(len(entries))
    if entries.cluster is not None:
        cluster = torch.unique(entries.cluster.cpu(), return_inverse=True)[1]
    number = int(cluster.max()) + 1
    if len(entries) < max(MIN_SAMPLES, folds) or number < folds:
        fewer = f": choose fewer folds than {folds}" if folds > min(MIN_SAMPLES, number) else ""
        raise ValueError(
            f"cross-validation needs at least {max(MIN_SAMPLES, folds)} samples, and {folds} clusters if given, "
            f"got {len(entries)} samples in {number} clusters{fewer}"
        )
    validation = _CrossValidation(entries, cluster, folds, repeats, num_bins, seed)
    scores = [validation.score(UNCALIBRATED)]
    for i, name in enumerate(methods):
        scores.append(validation.score(name, share_of(progress, i, len(methods))))
    ranking = rank_methods(scores, partial(validation.difference, level=level))
    return MultilabelComparison(
        methods=ranking,
        recommended=recommend(ranking, list(MULTILABEL_CALIBRATORS)),
        num_samples=len(entries),
        num_labels=entries.num_labels,
        folds=folds,
        repeats=repeats,
        level=level,
        seed=seed,
    )


class _CrossValidation:
    """Calibrate every sample by calibrators fitted on other folds, and score the result."""

    def __init__(self, entries: Entries, cluster: Tensor, folds: int, repeats: int, num_bins: int, seed: int) -> None:
        self.entries, self.folds, self.num_bins, self.seed = entries, folds, num_bins, seed
        self.cluster, self.number = cluster.to(entries.values.device), int(cluster.max()) + 1
        self.hit, self.keep = entries.target == 1, entries.keep
        self.num_entries = int(self.keep.sum())
        values = entries.values
        logits = values if entries.input == "logits" else log_probs(values.reshape(-1)).view(values.shape)
        self.log_odds = logits.double()
        self.losses: dict[str, Tensor] = {}  # summed NLL of each cluster, by method
        self.splits = []
        for repeat in range(repeats):
            generator = torch.Generator().manual_seed(seed + repeat)
            fold_of_cluster = torch.randperm(self.number, generator=generator) % folds
            self.splits.append(fold_of_cluster[cluster].to(self.cluster.device))

    def score(self, name: str, progress: ShareDone | None = None) -> Score:
        """Score one method, or the uncalibrated model."""
        if name == UNCALIBRATED:
            calibrated = Calibrated([self.log_odds], ())
            scored = self.entries
        else:
            calibrator = make_multilabel_calibrator(name)
            calibrated = fit_folds(calibrator, self.entries, self.splits, self.folds, progress)
            scored = replace(self.entries, values=calibrated.logits[0], input="logits")
        repeats = [logits.double() for logits in calibrated.logits]
        losses = [self._losses(z) for z in repeats]
        self.losses[name] = torch.stack(losses).mean(0)
        nll = fmean(float(loss.sum()) for loss in losses) / self.num_entries
        scores = {
            "nll": nll,
            "macro_ece": fmean(self._macro_error(z.sigmoid(), self.hit) for z in repeats),
            "macro_floor": macro_floor_mean(scored, num_bins=self.num_bins, seed=self.seed),
        }
        optimism = max(0.0, nll - calibrated.fitted_nll)  # 0 for the uncalibrated model
        noise = {"nll": self._label_noise(torch.stack(repeats).mean(0))}
        return Score(name=name, scores=scores, notes=calibrated.notes, optimism=optimism, noise=noise)

    def _label_noise(self, z: Tensor) -> float:
        """Return the standard deviation of the change of the NLL over labels drawn from the stated probabilities.

        If a label is 1 instead of 0, the NLL changes by the negative log-odds.
        """
        before, after = self.log_odds.clamp(-LARGEST, LARGEST), z.clamp(-LARGEST, LARGEST)
        change = (after - before).where(self.keep, 0.0) ** 2
        variances = [float((p * (1 - p) * change).sum()) for p in (before.sigmoid(), after.sigmoid())]
        return math.sqrt(max(variances) * self._design_effect()) / self.num_entries

    def _losses(self, z: Tensor) -> Tensor:
        """Return the summed NLL of each cluster."""
        losses = entry_nll(z, self.hit).where(self.keep, 0.0).sum(1)
        return _summed(self.cluster, losses, self.number)

    def _macro_error(self, p: Tensor, hit: Tensor) -> float:
        """Return the mean ECE of the labels that have entries."""
        num_labels, bins = p.shape[1], self.num_bins
        entries = p.T[self.keep.T].double()  # label by label
        label = torch.arange(num_labels, device=p.device)[:, None].expand(p.T.shape)[self.keep.T]
        index = label * bins + torch.from_numpy(bin_index(entries.cpu().numpy(), equal_edges(bins))).to(p.device)
        gap = _summed(index, entries - hit.T[self.keep.T].double(), num_labels * bins)
        count = self.keep.sum(0)
        ece = gap.view(num_labels, bins).abs().sum(1) / count.clamp(min=1)
        return float(ece[count > 0].mean())

    def difference(self, a: Score, b: Score, metric: str, *, level: float) -> Difference:
        """Difference in NLL from a to b, with an interval from the variance of the sums of clusters and of the fits."""
        before, after = a.scores[metric], b.scores[metric]
        change = after - before
        if not math.isfinite(change):
            return Difference(before, after, -math.inf, math.inf)
        if a is b:
            return Difference(before, after, 0.0, 0.0)
        entries = _summed(self.cluster, self.keep.sum(1).double(), self.number)
        scatter = self.losses[b.name] - self.losses[a.name] - change * entries
        variance = float((scatter**2).sum()) * self.number / (self.number - 1) / self.num_entries**2
        variance = max(variance, (b.noise["nll"] - a.noise["nll"]) ** 2)
        # As for one label per sample: twice the optimism, divided by the number of independent entries.
        variance += 2 * max(a.optimism, b.optimism) * self._design_effect() / self.num_entries
        half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
        return Difference(before, after, change - half, change + half)

    def _design_effect(self) -> float:
        """Variance of the mean of (p - y), relative to independent entries; at least 1."""
        residual = (self.log_odds.sigmoid() - self.hit.double()).where(self.keep, 0.0)
        sums = _summed(self.cluster, residual.sum(1), self.number)
        return max(1.0, float((sums**2).sum() / (residual**2).sum().clamp(min=1e-300)))


def _summed(index: Tensor, values: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)
