"""A calibrator that was fitted on unshifted data, on shifted data: does it still help?"""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._scoring import assign_folds, fit_folds, fit_once, share_of
from dualfocal.calibrators.comparison import has_interval, plain_difference
from dualfocal.calibrators.registry import make_calibrator
from dualfocal.checks import check_count
from dualfocal.metrics.comparison import LEAST, Difference, interval
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.resampling import ShareDone, resample
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples, with_logits
from dualfocal.metrics.scan import scan
from dualfocal.metrics.shift.evaluation import TEST, ShiftSamples, ShiftSet, evaluate_shift_samples, shift_samples
from dualfocal.metrics.shift.scores import ShiftEvaluation
from dualfocal.tables import Table


@dataclass(frozen=True)
class ShiftCalibration:
    """Result of :func:`calibrate_shift`: shifted sets before and after calibration. ``print`` it.

    Args:
        method: name of the calibrator.
        before: scores of the uncalibrated model.
        after: scores of the calibrated model.
        nll_changes: change of the NLL of each set with labels, with its confidence interval.
        validation_samples: number of validation samples that the calibrator was fitted on (None: it was fitted on the
            test samples, and those are scored by cross-validation).
        folds: number of folds of the cross-validation.
    """

    method: str
    before: ShiftEvaluation
    after: ShiftEvaluation
    nll_changes: Mapping[str, Difference]
    validation_samples: int | None
    folds: int

    def table(self) -> Table:
        """Return a table with NLL and ECE of each set before and after calibration."""
        nll, ece = METRICS["nll"], METRICS["ece"]
        rows = []
        for before, after in zip(self.before.sets, self.after.sets, strict=True):
            if before.evaluation is None or after.evaluation is None:
                continue
            change = self.nll_changes[before.name]
            shown = nll.text(change.difference, sign=True) if math.isfinite(change.difference) else ""
            ends = ""
            if has_interval(change):
                ends = f"{nll.text(change.low, sign=True)} to {nll.text(change.high, sign=True)}"
            inference = after.evaluation.inference
            assert inference is not None
            rows.append(
                [
                    before.name,
                    nll.text(before.evaluation.nll),
                    nll.text(after.evaluation.nll),
                    shown,
                    ends,
                    ece.text(before.evaluation.ece),
                    ece.text(after.evaluation.ece),
                    ece.text(inference.floors["ece"].mean),
                ]
            )
        level = f"{100 * self.before.level:.4g} % interval"
        headings = ["set", "NLL before", "after", "change", level, "ECE before [%]", "after", "floor"]
        return Table(headings, rows, f"before and after {self.method}")

    def caveat(self) -> str:
        """Say what the calibrator was fitted on."""
        if self.validation_samples is not None:
            return f"{self.method} was fitted on the validation split ({self.validation_samples:,} samples)."
        return (
            f"{self.method} was fitted on all {self.before.test.num_samples:,} test samples and applied to the shifted "
            f"sets, the test set is scored by {self.folds}-fold cross-validation. If the shifted samples are distorted "
            "test samples, their labels were used in the fit: prefer validation data."
        )

    def verdict(self) -> str:
        """Say on which shifted sets the calibrator changes the NLL significantly."""
        changes = {name: change for name, change in self.nll_changes.items() if name != self.before.test.name}
        if not changes:
            return "No shifted set has labels: what the calibrator does to their NLL is unknown."
        better = [name for name, change in changes.items() if change.better() == "B"]
        worse = [name for name, change in changes.items() if change.better() == "A"]
        clauses = [
            f"{verb} the NLL significantly on {_count(names, len(changes))}"
            for verb, names in (("lowers", better), ("raises", worse))
            if names
        ]
        text = " and ".join(clauses) or f"changes the NLL significantly on none of {len(changes)} shifted sets"
        return f"{self.method}, fitted without shift, {text}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON: fractions, NLL in nats; values that are not finite are None."""
        how = {"folds": self.folds}
        if self.validation_samples is not None:
            how = {"validation_samples": self.validation_samples}
        return {
            "method": self.method,
            **how,
            "nll_changes": {name: plain_difference(change) for name, change in self.nll_changes.items()},
            "after": self.after.to_dict(),
            "verdict": self.verdict(),
        }

    def __str__(self) -> str:
        return "\n".join([self.table().text(), self.caveat(), self.verdict()])

    def _repr_html_(self) -> str:
        words = f"<p>{html.escape(self.caveat())}</p><p><b>{html.escape(self.verdict())}</b></p>"
        return self.table().html() + words


def calibrate_shift(
    test: ShiftSet,
    shifted: Mapping[str, ShiftSet],
    method: str | Calibrator = "temperature",
    *,
    validation: ShiftSet | None = None,
    folds: int = 5,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
    **options: Unpack[SampleOptions],
) -> ShiftCalibration:
    """Evaluate a model on shifted data before and after a calibrator that was fitted on unshifted data.

    With ``validation``, the calibrator is fitted on it. Without it, it is fitted on the test set for the shifted sets,
    and the test set itself is scored by cross-validation. If the shifted samples are distorted test samples, give
    validation data: otherwise the calibrator has seen the labels of the shifted samples.

    Args:
        test: see :func:`~dualfocal.metrics.evaluate_shift`.
        shifted: see :func:`~dualfocal.metrics.evaluate_shift`.
        method: a name from ``CALIBRATORS``, joined by ``+`` for a chain; or an unfitted calibrator.
        validation: unshifted predictions and class indices to fit on (None: see above).
        folds: number of folds of the cross-validation.
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the intervals. Those of the changes come from a paired bootstrap and are about the
            fitted calibrator.
        seed: seed of the folds and of the draws.
        progress: called with the share of the work that is done.
        **options: see :func:`~dualfocal.metrics.evaluate_shift`.

    Raises:
        ValueError: a set is invalid, or the calibrator cannot be fitted.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(2000, 5, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> noisy = logits + 2 * torch.randn(2000, 5, generator=generator)
    >>> print(calibrate_shift((logits, target), {"noise-2": (noisy, target)}).verdict())
    temperature, fitted without shift, lowers the NLL significantly on noise-2 (1 of 1).
    """
    check_count("folds", folds, 2)
    calibrator = make_calibrator(method) if isinstance(method, str) else method
    sets = shift_samples(test, shifted, options)
    samples = sets[TEST].samples
    if isinstance(validation, tuple):
        validation = as_samples(*validation, {**options, "clusters": None})
    if validation is not None and validation.num_classes != samples.num_classes:
        raise ValueError(f"validation has {validation.num_classes} classes, but the test set has {samples.num_classes}")
    calibrated = fit_once(calibrator, samples if validation is None else validation, samples)
    fitted = calibrated.fitted
    assert fitted is not None
    if validation is None:
        splits = assign_folds(samples, folds=folds, seeds=range(seed, seed + 1))
        calibrated = fit_folds(calibrator, samples, splits, folds)
    after = {TEST: _with_logits(sets[TEST], calibrated.logits[0])}
    for label, shift_set in list(sets.items())[1:]:
        after[label] = _with_logits(shift_set, fitted(shift_set.samples.values, input=shift_set.samples.input))
    scoring: dict[str, Any] = {"num_bins": num_bins, "level": level, "seed": seed}
    changes = {
        label: _nll_change(shift_set.samples, after[label].samples, **scoring)
        for label, shift_set in sets.items()
        if shift_set.samples.labelled
    }
    return ShiftCalibration(
        method if isinstance(method, str) else type(method).__name__,
        evaluate_shift_samples(sets, progress=share_of(progress, 0, 2), **scoring),
        evaluate_shift_samples(after, progress=share_of(progress, 1, 2), **scoring),
        changes,
        None if validation is None else len(validation),
        folds,
    )


def _count(names: list[str], number: int) -> str:
    if len(names) == number > 1:
        return f"all {number} shifted sets"
    return f"{', '.join(names)} ({len(names)} of {number})"


def _with_logits(shift_set: ShiftSamples, logits: torch.Tensor) -> ShiftSamples:
    return replace(shift_set, samples=with_logits(shift_set.samples, logits))


def _nll_change(before: Samples, after: Samples, num_bins: int, level: float, seed: int) -> Difference:
    """Change of the NLL, with an interval of the paired differences; none with too few samples or an infinite NLL."""
    scanned = [(samples, scan(samples, scores=True)) for samples in (before, after)]
    first, second = (float(stats.nll.mean()) for _, stats in scanned)
    if min(len(before), before.num_clusters or LEAST) < LEAST or not math.isfinite(second - first):
        return Difference(first, second, -math.inf, math.inf)
    drawn = resample(scanned, num_bins, seed=seed, classwise=False)["nll"]
    return Difference(first, second, *interval(drawn[:, 1] - drawn[:, 0], second - first, level))
