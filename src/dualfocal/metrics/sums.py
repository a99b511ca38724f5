"""Sums of predictions from which everything is evaluated: for files, databases and streams of any size.

The size of the sums depends on the numbers of classes, bins and clusters, not on the number of samples. They can be
made of any parts of the samples, in any order, and added: every number agrees to 1e-12.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from dualfocal.checks import check_count, check_level
from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.cells import SUMS, BinStats, Floats, check_edges
from dualfocal.metrics.cluster_sums import ClusterSums, check_clusters, names_and_codes, with_clusters
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import Summary
from dualfocal.metrics.ranking import NUM_FINE, RiskCoverage, adaptive_bins_of, fine_sums
from dualfocal.metrics.result import Evaluation, check_schema
from dualfocal.metrics.rounding import Rounding
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.units import unit_sums
from dualfocal.tables import quantity

SCHEMA = 2
ONE_CLUSTER = (
    "1 cluster does not show how much clusters differ, inference needs at least two: add more, or evaluate with "
    "inference=False"
)


@dataclass(frozen=True, eq=False)
class CalibrationSums:
    """Everything that an evaluation needs of a set of predictions. ``a + b`` merges two sets.

    Make one with :meth:`from_predictions` or :meth:`from_confidences`.

    Args:
        top: bins of the confidence, ``(B,)``.
        classes: bins of the probabilities of all classes, ``(C, 2, B)``: by class, by whether it is the predicted class
            (0 or 1), and by bin; None if only the confidence is known.
        fine: number of samples, sum of confidences and number of right ones in fine bins of the confidence,
            ``(3, F)``, for adaptive ECE and AURC.
        nll: sum of the finite negative log-likelihoods; NaN if one is unknown.
        infinite_nll: number of samples whose negative log-likelihood is infinite.
        brier: sum of the Brier scores; NaN if one is unknown.
        clusters: sums by cluster; None if samples are independent.
        positive: whether the confidence is the probability of class 1.
        class_names: names of the classes, if they are known.
        rounding: how the probabilities were rounded (None: they were not).

    >>> import torch
    >>> logits, target = torch.tensor([[2.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), torch.tensor([0, 0, 1])
    >>> first = CalibrationSums.from_predictions(logits[:2], target[:2])
    >>> second = CalibrationSums.from_predictions(logits[2:], target[2:])
    >>> first + second
    CalibrationSums(3 samples, 2 classes, 15 bins)
    >>> round((first + second).evaluate(inference=False).error, 4)
    0.6667
    """

    top: BinStats
    classes: BinStats | None
    fine: Floats
    nll: float
    infinite_nll: int
    brier: float
    clusters: ClusterSums | None = None
    positive: bool = False
    class_names: tuple[str, ...] | None = None
    rounding: Rounding | None = None

    @classmethod
    def from_predictions(
        cls,
        logits: Array,
        target: Array,
        *,
        input: str | None = None,
        num_bins: int = 15,
        ignore_index: int = -100,
        binary: str | None = None,
        clusters: Array | int | str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Sum up predictions.

        Args:
            logits: predictions, see :meth:`~dualfocal.metrics.Samples.from_arrays`.
            target: class indices, or whether confidences are right; likewise.
            input: ``"logits"``, ``"probs"`` or ``"confidence"``; likewise.
            num_bins: number of bins of the calibration errors.
            ignore_index: target value of samples to leave out.
            binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`.
            clusters: the cluster of each sample or image, ``(N,)``, whole numbers or texts; or one cluster for all
                samples. A cluster can be added in several parts. None: samples are independent.
            class_names: names of the classes, if labels are texts.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
            IndexError: a target is not a class index.
        """
        check_count("num_bins", num_bins)
        target = as_tensor("target", class_targets(logits, target, class_names))
        samples = Samples.from_arrays(
            logits, target, input=input, ignore_index=ignore_index, binary=binary, class_names=class_names
        )
        stats = scan(samples, num_bins=num_bins, scores=True, classwise=True)
        sums = None
        if clusters is not None:
            names, codes = names_and_codes(clusters, tuple(target.shape))
            codes = codes if samples.index is None else codes[samples.index.cpu().numpy()]
            names, keys, stats = with_clusters(stats, names, codes)
            sums = ClusterSums.of(names, keys, unit_sums(stats, stats.bins(num_bins), samples=samples))
        result = cls._of(
            stats,
            num_bins,
            sums,
            confidence_only=samples.confidence_only,
            positive=samples.positive and not samples.confidence_only,
            class_names=samples.class_names,
        )
        return replace(result, rounding=samples.rounding)

    @classmethod
    def from_confidences(
        cls,
        confidence: Array,
        right: Array,
        *,
        num_bins: int = 15,
        clusters: Array | int | str | None = None,
        nll: Array | None = None,
        brier: Array | None = None,
    ) -> Self:
        """Sum up confidences of predicted classes, for predictions with very many classes.

        Args:
            confidence: probability of the predicted class of each sample, ``(N,)``, in [0, 1].
            right: whether the predicted class is the true class, ``(N,)``, bool or 0 and 1.
            num_bins: number of bins of the calibration errors.
            clusters: see :meth:`from_predictions`.
            nll: negative log-likelihood of each sample, ``(N,)``. The NLL of the evaluation is NaN unless all samples
                have one.
            brier: Brier score of each sample over all classes, ``(N,)``; likewise.

        Raises:
            ValueError: a shape, dtype or value breaks one of these rules.
        """
        BinStats.from_confidence(confidence, right, num_bins=num_bins)  # checks the arguments
        p = as_tensor("confidence", confidence).detach()
        correct = as_tensor("right", right).cpu().numpy().astype(bool)
        number = len(correct)
        confidences = p.cpu().double().numpy()
        stats = Scan(
            confidence=confidences,
            correct=correct,
            certainty=confidences,
            right=correct,
            predicted=np.zeros(number, np.int64),
            weight=None,
            noise=None,
            cluster=None,
            dtype=p.dtype,
            nll=_scores("nll", nll, number),
            brier=_scores("brier", brier, number),
        )
        sums = None
        if clusters is not None:
            names, codes = names_and_codes(clusters, (number,))
            names, keys, stats = with_clusters(stats, names, codes)
            sums = ClusterSums.of(names, keys, unit_sums(stats, stats.bins(num_bins)))
        return cls._of(stats, num_bins, sums, confidence_only=False, positive=False, class_names=None)

    @classmethod
    def _of(
        cls,
        stats: Scan,
        num_bins: int,
        clusters: ClusterSums | None,
        *,
        confidence_only: bool,
        positive: bool,
        class_names: tuple[str, ...] | None,
    ) -> Self:
        """Sum up scanned samples."""
        finite = np.isfinite(stats.nll) | np.isnan(stats.nll)
        return cls(
            top=stats.bins(num_bins),
            classes=stats.classes,
            fine=fine_sums(stats.confidence, stats.correct),
            nll=math.nan if confidence_only else float(stats.nll[finite].sum()),
            infinite_nll=0 if confidence_only else int((~finite).sum()),
            brier=math.nan if confidence_only else float(stats.brier.sum()),
            clusters=clusters,
            positive=positive,
            class_names=class_names,
        )

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return round(float(self.top.count.sum()))

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 if only the confidence is known."""
        return 0 if self.classes is None else len(self.classes.count)

    @property
    def num_bins(self) -> int:
        """Number of bins of the calibration errors."""
        return self.top.num_bins

    @property
    def num_clusters(self) -> int | None:
        """Number of clusters; None if samples are independent."""
        return None if self.clusters is None else len(self.clusters.names)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, CalibrationSums):
            return NotImplemented
        known = {names for names in (self.class_names, other.class_names) if names is not None}
        same = (self.num_bins, self.num_classes, self.positive) == (other.num_bins, other.num_classes, other.positive)
        if not same or (self.clusters is None) != (other.clusters is None) or len(known) > 1:
            raise ValueError(
                f"cannot merge {self!r} and {other!r}: they need the same numbers of bins and classes, the same names "
                "of classes, and both clusters or none"
            )
        return type(self)(
            top=self.top + other.top,
            classes=None if self.classes is None or other.classes is None else self.classes + other.classes,
            fine=self.fine + other.fine,
            nll=self.nll + other.nll,
            infinite_nll=self.infinite_nll + other.infinite_nll,
            brier=self.brier + other.brier,
            clusters=None if self.clusters is None or other.clusters is None else self.clusters + other.clusters,
            positive=self.positive,
            class_names=next(iter(known), None),
            rounding=self.rounding if other.rounding is None else other.rounding + self.rounding,
        )

    def __radd__(self, other: int) -> Self:
        return self if other == 0 else NotImplemented  # for sum()

    def __repr__(self) -> str:
        parts = [quantity(self.num_samples, "sample")]
        if self.num_clusters is not None:
            parts[0] += f" in {quantity(self.num_clusters, 'cluster')}"
        parts += [quantity(self.num_classes, "class")] if self.num_classes else []
        return f"CalibrationSums({', '.join([*parts, quantity(self.num_bins, 'bin')])})"

    def evaluate(self, *, inference: bool = True, level: float = 0.9, draws: int = 1000, seed: int = 0) -> Evaluation:
        """Compute what :func:`~dualfocal.metrics.evaluate` computes from the predictions themselves.

        All numbers agree to rounding, except adaptive ECE and AURC, which are computed from fine bins of the
        confidence: with N samples, they differ by up to about 0.2 / sqrt(N) and 0.01 / sqrt(N), less than their noise.

        Args:
            inference: whether to compute noise floors, tests and interval, too.
            level: nominal coverage of the interval.
            draws: number of draws for floors and p-value.
            seed: seed of the draws.

        Raises:
            ValueError: there are no samples, only one cluster, or an option is invalid.
        """
        check_count("draws", draws, 100)
        check_level(level)
        return self.summarize(Settings(level, draws, seed) if inference else None)

    def summarize(self, settings: Settings | None) -> Evaluation:
        """Compute the evaluation; without inference if there are no settings."""
        if not self.num_samples:
            raise ValueError("no samples: add some first, or all of them were ignored")
        if settings is not None and self.num_clusters == 1:
            raise ValueError(ONE_CLUSTER)
        clusters = None if self.clusters is None or self.num_clusters == 1 else self.clusters.unit_sums()
        right = self.top.correct if self.classes is None else self.classes[:, 1].correct  # of the predicted class
        summary = Summary(
            bins=self.top,
            adaptive=adaptive_bins_of(self.fine, self.num_bins),
            classes=self.classes,
            units=clusters,
            clustered=clusters is not None,
            positive=self.positive,
            weights=None,
            rounding=self.rounding,
            scores={
                "error": 1 - float(right.sum()) / self.num_samples,
                "nll": math.inf if self.infinite_nll else self.nll / self.num_samples,
                "brier": self.brier / self.num_samples,
                "aurc": self.risk_coverage().area(),
            },
            streamed=True,
        )
        return summary.evaluation(settings, class_names=self.class_names)

    def risk_coverage(self) -> RiskCoverage:
        """Return the risk-coverage curve, as if the confidences of a fine bin were equal."""
        count, confidence, correct = self.fine
        if self.positive:  # the confidence of the predicted class is that of class 1, or of class 0
            half = NUM_FINE // 2
            low = (count[:half], count[:half] - confidence[:half], count[:half] - correct[:half])
            mirrored = (np.append(np.zeros(half), values[::-1]) for values in low)
            count, confidence, correct = (
                np.where(np.arange(NUM_FINE) < half, 0.0, values) + other
                for values, other in zip(self.fine, mirrored, strict=True)
            )
        full = np.flatnonzero(count)[::-1]
        return RiskCoverage.from_groups(
            count[full], (count - correct)[full], confidence[full] / count[full], count[full]
        )

    def without_clusters(self) -> Self:
        """Return the sums as if all samples were independent."""
        return replace(self, clusters=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON, to be kept in a file and merged later."""
        used = np.flatnonzero(self.fine[0])
        return {
            "schema": SCHEMA,
            "edges": self.top.edges.tolist(),
            "top": _sums(self.top),
            "classes": None if self.classes is None else _sums(self.classes),
            "fine": [used.tolist(), *self.fine[:, used].tolist()],
            "nll": None if math.isnan(self.nll) else self.nll,
            "infinite_nll": self.infinite_nll,
            "brier": None if math.isnan(self.brier) else self.brier,
            "clusters": None if self.clusters is None else self.clusters.to_dict(),
            "positive": self.positive,
            "class_names": None if self.class_names is None else list(self.class_names),
            "rounding": None if self.rounding is None else asdict(self.rounding),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema, or its sums contradict each other.
            KeyError, TypeError: an entry is missing or has another type.
        """
        check_schema("sums of predictions", content, SCHEMA)
        edges, fine = np.array(content["edges"], np.float64), np.zeros((3, NUM_FINE))
        place, *sums = content["fine"]
        fine[:, place] = np.array(sums, np.float64).reshape(3, -1)
        nll, brier = (math.nan if content[name] is None else float(content[name]) for name in ("nll", "brier"))
        names, clusters = content["class_names"], content["clusters"]
        result = cls(
            top=_bins("top", content["top"], edges, 1),
            classes=None if content["classes"] is None else _bins("classes", content["classes"], edges, 3),
            fine=fine,
            nll=nll,
            infinite_nll=int(content["infinite_nll"]),
            brier=brier,
            clusters=None if clusters is None else ClusterSums.from_dict(clusters),
            positive=bool(content["positive"]),
            class_names=None if names is None else tuple(names),
            rounding=None if content["rounding"] is None else Rounding(**content["rounding"]),
        )
        _check(result)
        return result


def _scores(name: str, values: Array | None, number: int) -> Floats:
    """Return the scores of the samples; NaN if they are unknown."""
    if values is None:
        return np.full(number, np.nan)
    scores: Floats = as_tensor(name, values).detach().cpu().double().numpy()
    if scores.shape != (number,) or not (scores >= 0).all():
        raise ValueError(f"{name} must have shape ({number},) and hold no NaN or negative value")
    return scores


def _sums(bins: BinStats) -> dict[str, Any]:
    return {name: getattr(bins, name).tolist() for name in SUMS[:4]}  # the others follow: there are no weights


def _bins(name: str, content: Mapping[str, Any], edges: Floats, ndim: int) -> BinStats:
    count, confidence, correct, variance = (np.array(content[key], np.float64) for key in SUMS[:4])
    bins = BinStats(count, confidence, correct, variance, count, correct, edges)
    shapes = {getattr(bins, key).shape for key in SUMS}
    if len(shapes) > 1 or count.ndim != ndim or count.shape[-1] != len(edges) - 1:
        raise ValueError(f"{name}: all sums must have {len(edges) - 1} bins in {ndim} dimension(s)")
    return bins


def _check(sums: CalibrationSums) -> None:
    """Raise a ValueError unless the sums can be those of one set of samples."""
    check_edges(sums.top.edges)
    for bins in (sums.top, sums.classes):
        if bins is not None and not bool(((bins.correct >= 0) & (bins.correct <= bins.count)).all()):
            raise ValueError("a count is negative, or correct is larger than count")
        if bins is not None and not bool(
            (np.abs(bins.confidence - bins.count / 2) <= 0.50001 * bins.count + 1e-5).all()
        ):
            raise ValueError("a sum of confidences is negative, or larger than count")
    if sums.clusters is not None:
        check_clusters(sums.clusters, sums.num_bins, sums.num_classes)
    totals = [float(sums.fine[0].sum())]
    if sums.classes is not None:
        totals += sums.classes.count.sum((1, 2)).tolist()
        totals.append(float(sums.classes.correct.sum()))
    if sums.clusters is not None:
        totals.append(float(sums.clusters.size.sum()))
    if any(round(total) != sums.num_samples for total in totals):
        raise ValueError(f"the parts count {min(totals):,.0f} to {max(totals):,.0f} samples, not {sums.num_samples:,}")
