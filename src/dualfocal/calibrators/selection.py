"""Compare calibrators with the uncalibrated model on held-out samples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

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
from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Rows, as_rows, image_clusters
from dualfocal.metrics.scores import nll


def compare_calibrators(
    logits: Array,
    target: Array,
    methods: str | Sequence[str] | Mapping[str, Calibrator] = tuple(CALIBRATORS),
    *,
    input: str | None = None,
    validation: tuple[Array, Array] | Rows | None = None,
    part: str = "test",
    evaluation: Evaluation | None = None,
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    clusters: Array | str | None = None,
    sample_weight: Array | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
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
        logits: predictions to score, in any shape that :func:`~dualfocal.metrics.ece` takes.
        target: class indices.
        methods: one or several names from ``CALIBRATORS``, joined by ``+`` for a chain; or a mapping from names of your
            choice to unfitted calibrators.
        input: ``"logits"`` or ``"probs"``, as in ``Calibrator.fit``.
        validation: predictions in the form of ``logits`` and class indices, to fit on (None: cross-validation).
        part: name of the scored split, used in texts if ``validation`` is given.
        evaluation: precomputed evaluation of the uncalibrated model on these samples, with inference (optional).
        folds: number of folds of the cross-validation.
        repeats: number of repetitions of the cross-validation, over which scores are averaged.
        num_bins: number of bins, as in :func:`~dualfocal.metrics.ece`.
        ignore_index: samples with this target are ignored.
        binary: as in :func:`~dualfocal.metrics.ece`; defaults to ``"top_label"`` for one score per sample.
        clusters: the cluster of each sample of ``logits``, see :func:`~dualfocal.metrics.evaluate`; by default the
            images of dense predictions.
        sample_weight: weight of each sample of ``logits``, see :func:`~dualfocal.metrics.evaluate`: scores and
            intervals are weighted. Calibrators are fitted without weights.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds and of the resampling.
        progress: callback, called with the fraction of the work done.

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
    values, target = as_tensor("logits", logits), as_tensor("target", class_targets(logits, target))
    binary = "top_label" if values.ndim == 1 and binary is None else binary
    rows = as_rows(
        values,
        target,
        input=input,
        ignore_index=ignore_index,
        binary=binary,
        clusters=image_clusters(values, clusters),
        sample_weight=sample_weight,
    )
    if validation is not None and not isinstance(validation, Rows):
        validation = as_rows(*validation, input=input, ignore_index=ignore_index, binary=binary)
    if validation is not None and validation.num_classes != rows.num_classes:
        raise ValueError(f"validation has {validation.num_classes} classes, but logits have {rows.num_classes}")
    labels, splits = rows.target, list[Tensor]()
    if validation is None:
        splits = _splits(rows, target, sample_weight, ignore_index, folds, range(seed, seed + repeats))
    else:
        labels, repeats = torch.cat([validation.target, rows.target]), 1

    def calibrate(calibrator: Calibrator, report: ShareDone) -> Calibrated:
        if isinstance(validation, Rows):
            return fit_once(calibrator, validation, rows)
        return fit_folds(calibrator, rows.values, rows.target, rows.input, splits, folds, report)

    score_rows = partial(score, num_bins=num_bins, level=level, seed=seed)
    if evaluation is not None and not _usable(evaluation, rows):
        evaluation = None
    uncalibrated = score_rows(UNCALIBRATED, [rows], evaluation=evaluation)
    scores, refused = _score_all(rows, calibrators, calibrate, score_rows, progress)
    absent = absent_classes(labels, rows.num_classes)
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
        num_samples=len(rows),
        validation_samples=None if validation is None else len(validation),
        part=part,
        folds=folds,
        repeats=repeats,
        level=level,
        seed=seed,
        num_clusters=rows.num_clusters,
    )


def _usable(evaluation: Evaluation, rows: Rows) -> bool:
    """Whether an evaluation of the uncalibrated model has what a comparison needs."""
    inference = evaluation.inference
    if inference is None or evaluation.convention is not None:
        return False
    same_clusters = (inference.clusters is None) == (rows.cluster is None)
    return same_clusters and (evaluation.weights is None) == (rows.weight is None)


def _splits(
    rows: Rows, target: Tensor, sample_weight: Array | None, ignore_index: int, folds: int, seeds: range
) -> list[Tensor]:
    """Fold of each row, for each seed."""
    if len(rows) < max(MIN_SAMPLES, folds):
        fewer = f": choose fewer folds than {folds} (--folds)" if folds > MIN_SAMPLES else ""
        raise ValueError(f"cross-validation needs at least {max(MIN_SAMPLES, folds)} samples, got {len(rows)}{fewer}")
    if sample_weight is not None and target.ndim > 1:  # pixels of weight 0 are no rows
        target = torch.where(_positive(sample_weight, target), target, ignore_index)
    return assign_folds(rows, target, ignore_index=ignore_index, folds=folds, seeds=seeds)


def _positive(sample_weight: Array, target: Tensor) -> Tensor:
    """Return which samples have a positive weight, in the shape of the target; weights of images are repeated."""
    weight = as_tensor("sample_weight", sample_weight)
    weight = weight.view(*weight.shape, *[1] * (target.ndim - weight.ndim)).expand(target.shape)
    return (weight > 0).to(target.device)


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
    rows: Rows,
    calibrators: Mapping[str, Calibrator],
    calibrate: Callable[[Calibrator, ShareDone], Calibrated],
    score_rows: Callable[..., MethodScore],
    progress: ShareDone | None,
) -> tuple[list[MethodScore], dict[str, str]]:
    """Scores of the calibrators, and the reasons why others could not be fitted."""
    scores, refused = list[MethodScore](), dict[str, str]()
    predicted = (rows.values if rows.input == "logits" else log_probs(rows.values)).argmax(1)
    for i, (name, calibrator) in enumerate(calibrators.items()):
        report = share_of(progress, i, len(calibrators))
        try:
            calibrated = calibrate(calibrator, report)
            repeats = [
                replace(rows, values=logits, input="logits", dtype=torch.float64) for logits in calibrated.logits
            ]
            scored = score_rows(name, repeats, uncalibrated=rows)
        except ValueError as error:
            refused[name] = str(error)
        else:
            changed = torch.stack([logits.argmax(1) != predicted for logits in calibrated.logits])
            held_out = scored.scores["nll"]
            if rows.weight is not None:  # calibrators are fitted without weights
                held_out = fmean(nll(logits, rows.target, input="logits") for logits in calibrated.logits)
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
