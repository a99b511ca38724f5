"""Compare calibrators with the uncalibrated model on held-out samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import MIN_SAMPLES
from dualfocal.calibrators._scoring import (
    COMPARED,
    Calibrated,
    MethodScore,
    assign_folds,
    fit_folds,
    fit_once,
    rank_methods,
    resampled_difference,
    score,
    share_of,
)
from dualfocal.calibrators.comparison import UNCALIBRATED, CalibratorComparison, recommend
from dualfocal.calibrators.inputs import log_probs
from dualfocal.calibrators.notes import absent_classes
from dualfocal.calibrators.registry import CALIBRATORS, make_calibrator
from dualfocal.checks import check_count, check_level
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples, with_logits
from dualfocal.metrics.scores import nll


def compare_calibrators(
    logits: Array | Samples,
    target: Array | None = None,
    methods: str | Sequence[str] | Mapping[str, Calibrator] = tuple(CALIBRATORS),
    *,
    validation: tuple[Array, Array] | Samples | None = None,
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
    **options: Unpack[SampleOptions],
) -> CalibratorComparison:
    """Score calibrators and the uncalibrated model on samples that were not used for fitting, and recommend one.

    With ``validation``, each calibrator is fitted on the validation data and scored on ``logits``. Without it,
    ``logits`` are cross-validated: the samples are split into folds, each fold is calibrated by a calibrator fitted on
    the other folds, and all folds are scored together. Folds are stratified by class; but clusters, or else images of
    dense predictions, stay whole.

    Confidence intervals are for paired differences of the expected scores on new data. They come from resampling the
    samples, with the same weights for all methods. With ``validation``, they are about the calibrators fitted to the
    validation data. With cross-validation, those of the NLL are about the calibrators fitted to all N samples, and
    include the variation of the fits: nominal 90 % intervals contained the truth in 85 to 99 % of simulated samples
    (``benchmarks/cross_fit_coverage.py``). Those of the other scores do not include it and are slightly too short. ECE
    differences include differences of the noise floors. Each pixel of a dense prediction counts as an independent
    sample, unless ``clusters`` are given: then whole clusters are resampled.

    A bootstrap cannot draw errors that were not observed: the intervals of changes from the uncalibrated model are at
    least as long as labels drawn from the probabilities before and after calibration allow, so that no calibrator is
    recommended because errors are absent by chance.

    Args:
        logits: predictions to score; or :class:`~dualfocal.metrics.Samples`.
        target: class indices; None with samples.
        methods: one or several names from ``CALIBRATORS``, joined by ``+`` for a chain; or a mapping from names of your
            choice to unfitted calibrators.
        validation: predictions in the form of ``logits`` and class indices, to fit on (None: cross-validation).
        folds: number of folds of the cross-validation.
        repeats: number of repetitions of the cross-validation, over which scores are averaged.
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds and of the resampling.
        progress: callback, called with the fraction of the work done.
        **options: what predictions and targets mean, see :meth:`~dualfocal.metrics.Samples.from_arrays`. Scores and
            intervals are weighted by ``sample_weight``; calibrators are fitted without weights. For one score per
            sample, ``binary`` is ``"top_label"`` unless it is given.

    Returns:
        The scores, sorted by NLL, lowest first. Methods that could not be fitted are in ``refused`` with the reason.

    Raises:
        ValueError: there are too few samples, or the arguments contradict each other.

    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> compare_calibrators(logits, target, ["temperature", "vector", "isotonic"]).recommended
    'temperature'
    """
    check_count("folds", folds, 2)
    check_count("repeats", repeats)
    check_level(level)
    calibrators = _calibrators(methods)
    if not isinstance(logits, Samples) and np.ndim(logits) == 1:
        options["binary"] = options.get("binary") or "top_label"
    samples = as_samples(logits, target, options).by_image()
    samples.check_classes("compare_calibrators")
    if isinstance(validation, tuple):
        of_classes = ("input", "ignore_index", "binary", "class_names")
        own = {name: value for name, value in options.items() if name in of_classes}
        validation = Samples.from_arrays(*validation, **own)  # type: ignore[arg-type]
    if validation is not None and validation.num_classes != samples.num_classes:
        raise ValueError(f"validation has {validation.num_classes} classes, but logits have {samples.num_classes}")
    labels, splits = samples.target, list[Tensor]()
    if validation is None:
        splits = _splits(samples, folds, range(seed, seed + repeats))
    else:
        labels, repeats = torch.cat([validation.target, samples.target]), 1

    def calibrate(calibrator: Calibrator, report: ShareDone) -> Calibrated:
        if validation is not None:
            return fit_once(calibrator, validation, samples)
        return fit_folds(calibrator, samples, splits, folds, report)

    score_samples = partial(score, num_bins=num_bins, level=level, seed=seed)
    uncalibrated = score_samples(UNCALIBRATED, [samples])
    scores, refused = _score_all(samples, calibrators, calibrate, score_samples, progress)
    absent = absent_classes(labels, samples.num_classes)
    # Scores reward giving a class without samples zero probability, so such methods are not recommended.
    by_class = {name for name, calibrator in calibrators.items() if absent and _learns_by_class(calibrator)}
    ranking = rank_methods(
        [uncalibrated, *scores], partial(resampled_difference, level=level), COMPARED, left_out=by_class
    )
    simple_first = [*(name for name in CALIBRATORS if name in calibrators), *calibrators]
    return CalibratorComparison(
        methods=ranking,
        refused=refused,
        recommended=recommend([method for method in ranking if method.name not in by_class], simple_first),
        absent=absent,
        left_out=tuple(method.name for method in ranking if method.name in by_class),
        num_samples=len(samples),
        validation_samples=None if validation is None else len(validation),
        folds=folds,
        repeats=repeats,
        level=level,
        seed=seed,
        num_clusters=samples.num_clusters,
    )


def _splits(samples: Samples, folds: int, seeds: range) -> list[Tensor]:
    """Fold of each sample, for each seed."""
    if len(samples) < max(MIN_SAMPLES, folds):
        fewer = f": choose fewer folds than {folds}" if folds > MIN_SAMPLES else ""
        raise ValueError(
            f"cross-validation needs at least {max(MIN_SAMPLES, folds)} samples, got {len(samples)}{fewer}"
        )
    return assign_folds(samples, folds=folds, seeds=seeds)


def _calibrators(methods: str | Sequence[str] | Mapping[str, Calibrator]) -> dict[str, Calibrator]:
    if isinstance(methods, Mapping):
        calibrators = dict(methods)
    else:
        names = [methods] if isinstance(methods, str | Calibrator) else methods
        if no_texts := [type(name).__name__ for name in names if not isinstance(name, str)]:
            raise TypeError(
                f"methods must be names of calibrators, got {no_texts[0]}; for calibrators of your own, pass a mapping "
                f"from names to calibrators, such as {{'mine': {no_texts[0]}()}}"
            )
        calibrators = {name: make_calibrator(name) for name in names}
    others = {name: type(value).__name__ for name, value in calibrators.items() if not isinstance(value, Calibrator)}
    if others:
        raise TypeError(f"methods must map names to calibrators, got {others}")
    if not calibrators or UNCALIBRATED in calibrators:
        raise ValueError(
            f"methods must name at least one calibrator; {UNCALIBRATED!r} is a reserved name; got {list(calibrators)}"
        )
    return calibrators


def _score_all(
    samples: Samples,
    calibrators: Mapping[str, Calibrator],
    calibrate: Callable[[Calibrator, ShareDone], Calibrated],
    score_samples: Callable[..., MethodScore],
    progress: ShareDone | None,
) -> tuple[list[MethodScore], dict[str, str]]:
    """Scores of the calibrators, and the reasons why others could not be fitted."""
    scores, refused = list[MethodScore](), dict[str, str]()
    predicted = (samples.values if samples.input == "logits" else log_probs(samples.values)).argmax(1)
    for i, (name, calibrator) in enumerate(calibrators.items()):
        report = share_of(progress, i, len(calibrators))
        try:
            calibrated = calibrate(calibrator, report)
            repeats = [with_logits(samples, logits) for logits in calibrated.logits]
            scored = score_samples(name, repeats, uncalibrated=samples)
        except ValueError as error:
            refused[name] = str(error)
        else:
            changed = torch.stack([logits.argmax(1) != predicted for logits in calibrated.logits])
            held_out = scored.scores["nll"]
            if samples.weight is not None:  # calibrators are fitted without weights
                held_out = fmean(nll(logits, samples.target, input="logits") for logits in calibrated.logits)
            scores.append(
                replace(
                    scored,
                    argmax_changed=float(changed.double().mean()),
                    notes=calibrated.notes,
                    fitted=calibrated.fitted,
                    optimism=max(0.0, held_out - calibrated.fitted_nll),
                )
            )
        report(1.0)
    return scores, refused


def _learns_by_class(calibrator: Calibrator) -> bool:
    return any(isinstance(step, Calibrator) and step.by_class is not None for step in calibrator.modules())
