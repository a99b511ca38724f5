"""Compare calibrators of multi-label predictions by cross-validation."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist, fmean

import torch
from torch import Tensor

from dualfocal._checks import check_count, check_known, check_level
from dualfocal._table import Table
from dualfocal.calibrators._fit_report import MIN_SAMPLES
from dualfocal.calibrators.comparison import UNCALIBRATED, advise, nats, recommend
from dualfocal.calibrators.inputs import log_probs
from dualfocal.calibrators.multilabel import MULTILABEL_CALIBRATORS, entry_nll, make_multilabel_calibrator
from dualfocal.calibrators.notes import Note, merge_folds
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.multilabel.entries import Entries, as_entries
from dualfocal.metrics.result import finite
from dualfocal.metrics.units import Binner, equal_edges, scatter_sum, to_units

FLOOR_DRAWS = 20  # of the targets of a calibrated model; each is a mean over all labels, which hardly scatters
NO_CHANGE = Difference(math.nan, math.nan, -math.inf, math.inf)


@dataclass(frozen=True)
class MultilabelScore:
    """Scores of a calibrator, or of the uncalibrated model, on held-out samples.

    Attributes:
        name: name of the method.
        scores: ``nll`` (mean over entries), ``macro_ece`` and ``macro_floor``, averaged over the repeats.
        changes: ``nll``: difference from the uncalibrated model (a) to this method (b).
        behind: difference in NLL from the best method (a) to this method (b).
        notes: notes of the fits.
    """

    name: str
    scores: dict[str, float]
    changes: dict[str, Difference] = field(default_factory=dict)
    behind: Difference = NO_CHANGE
    notes: tuple[Note, ...] = ()
    losses: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)  # sum of each cluster
    optimism: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MultilabelComparison:
    """Scores of multi-label calibrators and of the uncalibrated model on the same samples, cross-validated.

    Attributes:
        methods: scores of all methods, including the uncalibrated model, sorted by NLL, lowest first.
        recommended: simplest method that helps significantly and is not significantly worse than the best.
        num_samples: number of samples.
        num_labels: number of labels.
        folds: number of folds of the cross-validation.
        repeats: number of repeats of the cross-validation.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds.
    """

    methods: tuple[MultilabelScore, ...]
    recommended: str
    num_samples: int
    num_labels: int
    folds: int
    repeats: int
    level: float
    seed: int

    def __getitem__(self, name: str) -> MultilabelScore:
        return {method.name: method for method in self.methods}[name]

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

    def remarks(self) -> list[str]:
        """One line per distinct note of the fits, with the methods it concerns."""
        names: dict[Note, list[str]] = {}
        for method in self.methods:
            for note in method.notes:
                names.setdefault(note, []).append(method.name)
        return [f"{', '.join(methods)}: {note}" for note, methods in names.items()]

    def table(self) -> Table:
        """Table of the methods; macro ECE and its noise floor are in percent."""
        rows = []
        for method in self.methods:
            change, cell = method.changes["nll"], ""
            if method.name != UNCALIBRATED and math.isfinite(change.difference):
                cell = f"{nats(change.difference, '+')} ± {nats((change.high - change.low) / 2)}"
            ece, floor = (f"{100 * method.scores[name]:.2f}" for name in ("macro_ece", "macro_floor"))
            rows.append([method.name, nats(method.scores["nll"]), cell, ece, floor])
        headings = ["method", "NLL", f"change ± {100 * self.level:.4g} %", "macro ECE", "floor"]
        return Table(headings, rows, "calibrators per label, cross-validated, lowest NLL first; ECE in percent")

    def to_dict(self) -> dict[str, object]:
        """JSON-serialisable dictionary: fractions, NLL in nats, None for values that are not finite."""

        def plain(d: Difference) -> dict[str, object]:
            return {"difference": finite(d.difference), "interval": [finite(d.low), finite(d.high)]}

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
                    "change": {name: plain(d) for name, d in method.changes.items()},
                    "nll_behind_best": plain(method.behind),
                    "notes": list(map(str, method.notes)),
                }
                for method in self.methods
            ],
        }

    def __str__(self) -> str:
        return "\n".join([self.table().text(), *self.remarks(), self.caveat(), self.verdict()])

    def _repr_html_(self) -> str:
        remarks = "<br>".join(map(html.escape, [*self.remarks(), self.caveat()]))
        return f"{self.table().html()}<p>{remarks}</p><p><b>{html.escape(self.verdict())}</b></p>"


def compare_multilabel_calibrators(
    logits: Array,
    target: Array,
    methods: Sequence[str] = tuple(MULTILABEL_CALIBRATORS),
    *,
    input: str | None = None,
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    ignore_index: int = -100,
    clusters: Array | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> MultilabelComparison:
    """Cross-validate calibrators of multi-label predictions, and recommend the simplest one that helps.

    Samples, or clusters of samples, are split into folds; each fold is calibrated by a calibrator fitted on the others.
    Methods are compared by their NLL. Its differences have confidence intervals from the sums of whole samples, or of
    whole clusters; they are widened because the calibrator for all samples will be another fit.

    Args:
        logits: log-odds of each label, ``(N, L)``.
        target: 0 or 1 for each sample and label, ``(N, L)``.
        methods: names from ``MULTILABEL_CALIBRATORS``.
        input: ``"logits"`` or ``"probs"``, as in ``MultilabelCalibrator.fit``.
        folds: number of folds.
        repeats: number of repetitions with new folds, over which scores are averaged.
        num_bins: number of bins of the macro ECE.
        ignore_index: entries with this target are ignored.
        clusters: the cluster of each sample, see :func:`~dualfocal.metrics.evaluate`.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds.
        progress: callback, called with the fraction of the work done.

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
    for name in methods:
        check_known("the calibrator of multi-label predictions", name, MULTILABEL_CALIBRATORS)
    entries = as_entries(logits, target, input=input, ignore_index=ignore_index, clusters=clusters)
    cluster = torch.arange(len(entries))
    if entries.cluster is not None:
        cluster = torch.unique(entries.cluster.cpu(), return_inverse=True)[1]
    number = int(cluster.max()) + 1
    if len(entries) < max(MIN_SAMPLES, folds) or number < folds:
        raise ValueError(
            f"cross-validation needs at least {max(MIN_SAMPLES, folds)} samples, and {folds} clusters if given, "
            f"got {len(entries)} samples in {number} clusters"
        )
    run = _CrossValidation(entries, cluster, folds, repeats, num_bins, seed)
    scores = [run.score(UNCALIBRATED)]
    for i, name in enumerate(methods):
        scores.append(run.score(name, None if progress is None else partial(_share, progress, i, len(methods))))
    ranking = run.ranked(scores, level)
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


def _share(progress: Callable[[float], None], done: int, number: int, share: float) -> None:
    """Report the share of all methods that are done, from that of one method."""
    progress((done + share) / number)


class _CrossValidation:
    """Calibrate every sample by calibrators fitted on other folds, and score the result."""

    def __init__(self, entries: Entries, cluster: Tensor, folds: int, repeats: int, num_bins: int, seed: int) -> None:
        self.entries, self.folds, self.num_bins, self.seed = entries, folds, num_bins, seed
        self.cluster, self.number = cluster.to(entries.values.device), int(cluster.max()) + 1
        self.hit, self.keep = entries.target == 1, entries.keep
        self.target = entries.target.where(entries.keep, -100)
        self.num_entries = int(self.keep.sum())
        self.splits = []
        for repeat in range(repeats):
            generator = torch.Generator().manual_seed(seed + repeat)
            self.splits.append(
                (torch.randperm(self.number, generator=generator) % folds)[cluster].to(self.cluster.device)
            )

    def score(self, name: str, progress: Callable[[float], None] | None = None) -> MultilabelScore:
        """Score one method, or the uncalibrated model."""
        values, input = self.entries.values, self.entries.input
        repeats, notes, fitted_nll = list[Tensor](), list[Note](), list[float]()
        if name == UNCALIBRATED:
            odds = values if input == "logits" else log_probs(values.reshape(-1)).view(values.shape)
            repeats.append(odds.double())
        else:
            for repeat, fold in enumerate(self.splits):
                result = torch.empty(values.shape, dtype=torch.float64, device=values.device)
                for k in range(self.folds):
                    here = fold == k
                    calibrator = make_multilabel_calibrator(name)
                    calibrator.fit(values[~here], self.target[~here], input=input)
                    result[here] = calibrator(values[here], input=input).double()
                    assert calibrator.report is not None
                    notes += calibrator.report.notes
                    fitted_nll.append(calibrator.report.nll_after)
                    if progress is not None:
                        progress((repeat + (k + 1) / self.folds) / len(self.splits))
                repeats.append(result)
        losses = [self._losses(z) for z in repeats]
        nll = float(fmean(float(loss.sum()) for loss in losses)) / self.num_entries
        errors = [self._macro_error(z.sigmoid(), self.hit) for z in repeats]
        scores = {"nll": nll, "macro_ece": fmean(errors), "macro_floor": self._macro_floor(repeats[0].sigmoid())}
        optimism = nll - fmean(fitted_nll) if fitted_nll else 0.0
        total = torch.stack(losses).mean(0)
        return MultilabelScore(name, scores, notes=merge_folds(notes), losses=total, optimism=optimism)

    def _losses(self, z: Tensor) -> Tensor:
        """Return the summed NLL of each cluster."""
        losses = entry_nll(z, self.hit).where(self.keep, 0.0).sum(1)
        return scatter_sum(self.cluster, losses, self.number)

    def _macro_error(self, p: Tensor, hit: Tensor) -> float:
        """Return the mean ECE of the labels that have entries."""
        num_labels, bins = p.shape[1], self.num_bins
        units = to_units(p.T[self.keep.T].contiguous())  # label by label
        label = torch.arange(num_labels, device=p.device)[:, None].expand(p.T.shape)[self.keep.T]
        index = label * bins + Binner(equal_edges(bins, device=p.device))(units)
        gap = scatter_sum(index, p.T[self.keep.T] - hit.T[self.keep.T].double(), num_labels * bins)
        count = self.keep.sum(0)
        ece = gap.view(num_labels, bins).abs().sum(1) / count.clamp(min=1)
        return float(ece[count > 0].mean())

    def _macro_floor(self, p: Tensor) -> float:
        """Return the mean ECE of a calibrated model with the same probabilities, by chance."""
        generator = torch.Generator(device=p.device).manual_seed(self.seed)

        def outcome() -> Tensor:
            return torch.rand(p.shape, generator=generator, device=p.device, dtype=p.dtype) < p

        return fmean(self._macro_error(p, outcome()) for _ in range(FLOOR_DRAWS))

    def ranked(self, scores: Sequence[MultilabelScore], level: float) -> tuple[MultilabelScore, ...]:
        """Compare each method with the uncalibrated model, which comes first, and with the best one; sort by NLL."""
        best = min(scores, key=lambda score: score.scores["nll"])
        compared = [
            replace(
                score,
                changes={"nll": self._difference(scores[0], score, level)},
                behind=self._difference(best, score, level),
            )
            for score in scores
        ]
        return tuple(sorted(compared, key=lambda score: score.scores["nll"]))

    def _difference(self, a: MultilabelScore, b: MultilabelScore, level: float) -> Difference:
        """Return the difference in NLL, with an interval from the variance of the sums of clusters and of the fits."""
        before, after = a.scores["nll"], b.scores["nll"]
        change = after - before
        if a is b or not math.isfinite(change):
            return Difference(
                before, after, *((0.0, 0.0) if a is b and math.isfinite(change) else (-math.inf, math.inf))
            )
        entries = scatter_sum(self.cluster, self.keep.sum(1).double(), self.number)
        scatter = b.losses - a.losses - change * entries
        variance = float((scatter**2).sum()) * self.number / (self.number - 1) / self.num_entries**2
        # As for one label per sample: twice the optimism, divided by the number of independent entries.
        variance += 2 * max(a.optimism, b.optimism, 0.0) * self._design_effect() / self.num_entries
        half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
        return Difference(before, after, change - half, change + half)

    def _design_effect(self) -> float:
        """Variance of the mean of (p - y), relative to independent entries; at least 1."""
        values = self.entries.values.double()
        p = values.sigmoid() if self.entries.input == "logits" else values
        residual = (p - self.hit.double()).where(self.keep, 0.0)
        sums = scatter_sum(self.cluster, residual.sum(1), self.number)
        return max(1.0, float((sums**2).sum() / (residual**2).sum().clamp(min=1e-300)))
