"""All metrics of one set of predictions, from one pass over it."""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dualfocal._checks import check_choice, check_count, check_level
from dualfocal._table import Table
from dualfocal.metrics._ranked import Ranked
from dualfocal.metrics.bins import CONVENTIONS, ONE, BinStats
from dualfocal.metrics.calibration import adaptive_error, top_bins
from dualfocal.metrics.inference import Inference, classwise_floor, infer
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.resampling import quantiles, resample
from dualfocal.metrics.rows import Array, Rows, as_rows
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import decompose, mean

SCHEMA = 1


@dataclass(frozen=True)
class Evaluation:
    """Every metric of a set of predictions, as fractions; ``print`` it, or see :meth:`to_dict`."""

    num_samples: int
    num_classes: int
    num_bins: int
    error: float
    nll: float
    brier: float
    brier_calibration: float
    brier_refinement: float
    aurc: float
    ece: float
    adaptive_ece: float
    classwise_ece: float
    mce: float
    debiased_ece: float
    confidence: float  # mean, of the predicted class (of class 1 with binary="positive")
    accuracy: float  # share of samples where that class is the true one
    bins: BinStats  # of the ECE
    inference: Inference | None = None
    convention: str | None = None
    positive: bool = False  # whether it is about the probability of class 1

    @property
    def rbs(self) -> float:
        """Root of the Brier score (Gruber and Buettner, 2022)."""
        return math.sqrt(self.brier)

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy: above 0 the model claims too much, below 0 too little."""
        return self.confidence - self.accuracy

    def verdict(self) -> str:
        """The finding in one sentence; needs ``inference=True``."""
        found = self.inference
        if found is None:
            raise ValueError("a verdict needs evaluate(..., inference=True)")
        ece, floor = _points(self.ece), _points(found.floors["ece"].mean)
        if found.p_value > 0.05:
            seen = math.isfinite(found.detectable)
            would = f"a gap of {_points(found.detectable)} points everywhere would be" if seen else "none could be"
            return (
                f"No miscalibration detectable at N = {self.num_samples:,}; {would}. "
                f"(ECE is {ece} points, a calibrated model of this size would show {floor}; "
                f"{_p(found.p_value)})"
            )
        share = self.overconfidence / self.ece
        above, side = (True, "above") if share > 0 else (False, "below")
        what, of, kind = "mean confidence", "accuracy", "Over-confident" if above else "Under-confident"
        if self.positive:
            what, of, kind = "their mean", "the share", f"Probabilities of class 1 too {'high' if above else 'low'}"
        kind = kind if abs(share) > 0.5 else "Miscalibrated both ways"
        finding = f"ECE is {ece} points"
        if self.ece <= found.floors["ece"].q95 and abs(share) > 0.5:  # then it is the mean that tells
            finding = f"{what} is {_points(abs(self.overconfidence))} points {side} {of}, {finding}"
        return f"{kind}: {finding}; a calibrated model of this size would show {floor} ({_p(found.p_value)})."

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers under stable names: fractions, NLL in nats; what is not finite is None."""
        names = list(METRICS)
        names[3:3] = ["rbs", "brier_calibration", "brier_refinement"]
        scores = {name: getattr(self, name) for name in (*names, "confidence", "accuracy", "overconfidence")}
        content = {
            "schema": SCHEMA,
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "num_bins": self.num_bins,
            "convention": self.convention,
            **{name: finite(value) for name, value in scores.items()},
            "bins": self.bins.to_dict(),
            "inference": None if self.inference is None else self.inference.to_dict(),
        }
        return content | {"positive": True} if self.positive else content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote: ``from_dict(content).to_dict() == content``.

        Raises:
            ValueError: it has another schema.
            KeyError, TypeError: something is missing, or of another type.
        """
        if content["schema"] != SCHEMA:
            raise ValueError(f"an evaluation has schema {content['schema']}, this version reads schema {SCHEMA}")
        scores = (*METRICS, "brier_calibration", "brier_refinement", "confidence", "accuracy")
        values: dict[str, Any] = {name: math.inf if content[name] is None else float(content[name]) for name in scores}
        return cls(
            **{name: content[name] for name in ("num_samples", "num_classes", "num_bins", "convention")},
            **values,
            bins=BinStats.from_dict(content["bins"]),
            inference=None if content["inference"] is None else Inference.from_dict(content["inference"]),
            positive=content.get("positive", False),
        )

    def table(self) -> Table:
        """The metrics, with their noise floors where there is inference."""
        headings = ["", "value"]
        rows = [[metric.heading, metric.text(getattr(self, name))] for name, metric in METRICS.items()]
        if self.inference is not None:
            headings += ["floor", "its 95 % quantile"]
            for row, (name, metric) in zip(rows, METRICS.items(), strict=True):
                floor = self.inference.floors.get(name)
                row += ["", ""] if floor is None else [metric.text(floor.mean), metric.text(floor.q95)]
            low, high = (METRICS["debiased_ece"].text(end) for end in self.inference.debiased_ece)
            rows.append([f"  its {100 * self.inference.level:.4g} % interval [%]", f"{low} to {high}", "", ""])
        return Table(headings, rows, f"{self.num_samples:,} samples, {self.num_classes} classes, {self.num_bins} bins")

    def __str__(self) -> str:
        table = self.table()
        return "\n".join([table.title, table.text(), *([] if self.inference is None else [self.verdict()])])

    def _repr_html_(self) -> str:
        return self.table().html() + ("" if self.inference is None else f"<p><b>{html.escape(self.verdict())}</b></p>")


def evaluate(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    inference: bool = False,
    seed: int = 0,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
    level: float = 0.9,
    draws: int = 1000,
) -> Evaluation:
    """Every metric from one pass: error, NLL, Brier score, AURC, and the calibration errors.

    Args:
        logits: as :func:`~dualfocal.metrics.ece`.
        target: likewise.
        input: likewise.
        num_bins: likewise.
        inference: also say what the numbers can bear: for each calibration error the floor that a perfectly calibrated
            model of this size would show, the p-value of "calibrated", an interval for the debiased error, and the
            smallest error that could be detected; see :mod:`dualfocal.metrics.inference`.
        seed: of the draws for ``inference``.
        ignore_index: likewise.
        binary: likewise.
        convention: likewise, for ECE, MCE and adaptive ECE where that convention has them; bins and inference are
            ours. ``"published"`` with ``inference`` adds pivotal bootstrap intervals of the four errors (1000
            resamples) as they were published, which cover badly near zero.
        level: nominal coverage of the interval.
        draws: of a calibrated model's outcomes, for floors and p-value; the p-value is at least 1 / (draws + 1).

    Returns:
        The metrics, as fractions.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> evaluate(logits, target, inference=True).verdict()
    'Over-confident: ECE is 23.1 points; a calibrated model of this size would show 2.7 (p < 0.001).'
    """
    check_count("draws", draws, 100)
    check_choice("convention", convention, CONVENTIONS)
    check_level(level)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary)
    seen = scan(rows, num_bins=num_bins, scores=True, classwise=True)
    result = evaluate_rows(rows, seen, num_bins, inference=inference, level=level, draws=draws, seed=seed)
    if convention is None:
        return result
    if convention == "published" and result.inference is not None:
        drawn = resample([(rows, seen)], num_bins, seed=seed)
        for name in ("ece", "adaptive_ece", "classwise_ece", "mce"):
            twice, (low, high) = 2 * getattr(result, name), quantiles(drawn[name][:, 0], level)
            result.inference.published[name] = (twice - high, twice - low)
    rounded = scan(rows, as_given=True)
    theirs = top_bins(rounded, rows, num_bins, convention)
    result = replace(result, convention=convention, ece=float(theirs.ece()), mce=float(theirs.mce()))
    if convention == "published":
        ranked = Ranked.of(rounded.confidence, rounded.correct)
        result = replace(result, adaptive_ece=adaptive_error(ranked, num_bins, convention)[0])
    return result


def evaluate_rows(
    rows: Rows,
    seen: Scan,
    num_bins: int,
    *,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """The metrics of rows that have been scanned for scores and classwise bins."""
    bins = top_bins(seen, rows, num_bins, None)
    ranked = Ranked.of(seen.confidence, seen.correct)
    adaptive, adaptive_bins = adaptive_error(ranked, num_bins, None)
    brier = decompose(mean(seen.brier), seen.classes)
    found = None
    if inference:
        found = infer(ranked, bins, adaptive_bins, level=level, draws=draws, seed=seed)
        found.floors["classwise_ece"] = classwise_floor(rows, num_bins, seed)
    return Evaluation(
        num_samples=len(rows),
        num_classes=rows.num_classes,
        num_bins=num_bins,
        error=mean((~seen.right).double()),
        nll=mean(seen.nll),
        brier=brier.score,
        brier_calibration=brier.calibration,
        brier_refinement=brier.refinement,
        aurc=Ranked.by_certainty(seen.uncertainty, seen.right).aurc(),
        ece=float(bins.ece()),
        adaptive_ece=adaptive,
        classwise_ece=float(seen.classes.ece().mean()),
        mce=float(bins.mce()),
        debiased_ece=float(bins.squared_error().clamp_min(0).sqrt()),
        confidence=float(bins.confidence.sum()) / ONE / len(rows),
        accuracy=float(bins.correct.sum()) / len(rows),
        bins=bins,
        inference=found,
        positive=rows.positive,
    )


def finite(value: float) -> float | None:
    """The value, or None where JSON has no word for it."""
    return value if math.isfinite(value) else None


def _points(fraction: float) -> str:
    """One decimal; of what would be 0.0 with it, two digits."""
    return f"{100 * fraction:{'.1f' if fraction >= 5e-4 or fraction == 0 else '.2g'}}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"
