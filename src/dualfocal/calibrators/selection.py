"""Which calibrator helps? Each is scored on samples that its fit has not seen, beside the uncalibrated model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from dualfocal._checks import check_count, check_level
from dualfocal.calibrators._base import MIN_SAMPLES, Calibrator
from dualfocal.calibrators._scoring import Calibrated, MethodScore, deal_folds, fit_folds, fit_once, ranked, score
from dualfocal.calibrators.comparison import UNCALIBRATED, CalibratorComparison, recommend
from dualfocal.calibrators.inputs import log_probs
from dualfocal.calibrators.notes import absent_classes
from dualfocal.calibrators.registry import CALIBRATORS, make_calibrator
from dualfocal.metrics.evaluation import Evaluation
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.rows import Array, Rows, as_rows, as_tensor


def compare_calibrators(
    logits: Array,
    target: Array,
    methods: Sequence[str] | Mapping[str, Calibrator] = tuple(CALIBRATORS),
    *,
    input: str = "logits",
    validation: tuple[Array, Array] | Rows | None = None,
    part: str = "test",
    evaluation: Evaluation | None = None,
    folds: int = 5,
    repeats: int = 2,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
) -> CalibratorComparison:
    """Score calibrators on samples that their fits have not seen, beside the uncalibrated model.

    With ``validation``, each calibrator is fitted on these data and scored on all of ``logits``. Without, it is
    cross-fitted: the samples are dealt into folds, each class evenly (images of a dense prediction stay whole), each
    fold is calibrated by a fit on the others, and all are scored together; and so again with other folds.

    Differences are paired: their intervals come from resampling the samples, with the same weights for all methods, and
    are for the fits that were made. The fits of a cross-fit share data, so that intervals are a little short: those of
    nominal 90 % held the truth in 81 to 87 % of simulated samples (``benchmarks/cross_fit_coverage.py``). ECE
    differences include that of the floors. Pixels of dense predictions count as samples.

    Args:
        logits: the predictions that are scored, as :func:`~dualfocal.metrics.ece`.
        target: class indices.
        methods: names from ``CALIBRATORS``, joined by ``+`` for a chain; or unfitted calibrators by names of your own.
        input: what ``logits`` holds, ``"logits"`` or ``"probs"``; as in ``Calibrator.fit``.
        validation: predictions to fit on, in the form of ``logits``, and their class indices (None: cross-fit).
        part: name of the scored samples, where there are validation data.
        evaluation: of the uncalibrated model on these samples with inference, without a convention, if it is at hand.
        folds: number of folds of the cross-fit.
        repeats: number of times that samples are dealt into folds; scores are means.
        num_bins: number of bins, as :func:`~dualfocal.metrics.ece`.
        ignore_index: samples of this target are left out.
        binary: as :func:`~dualfocal.metrics.ece`; ``"top_label"`` for one score per sample unless given.
        level: nominal coverage of the intervals.
        seed: seed of folds and resampling.
        progress: called with the share of the work done.

    Returns:
        The methods, the lowest NLL first. A method that refuses the data is listed with its reason.

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
    values, target = as_tensor("logits", logits), as_tensor("target", target)
    binary = "top_label" if values.ndim == 1 and binary is None else binary
    rows = as_rows(values, target, input=input, ignore_index=ignore_index, binary=binary)
    if validation is None and len(rows) < max(MIN_SAMPLES, folds):
        raise ValueError(f"cross-fitting needs at least {max(MIN_SAMPLES, folds)} samples, got {len(rows)}")
    if validation is not None and not isinstance(validation, Rows):
        validation = as_rows(*validation, input=input, ignore_index=ignore_index, binary=binary)
    if validation is not None and validation.num_classes != rows.num_classes:
        raise ValueError(f"validation has {validation.num_classes} classes, but logits have {rows.num_classes}")
    if evaluation is not None and (evaluation.inference is None or evaluation.convention is not None):
        evaluation = None
    score_rows = partial(score, num_bins=num_bins, level=level, seed=seed)
    uncalibrated = score_rows(UNCALIBRATED, [rows], evaluation=evaluation)
    labels = rows.target
    if validation is not None:
        labels, repeats = torch.cat([validation.target, rows.target]), 1
        calibrate = partial(fit_once, validation=validation, rows=rows)
    else:
        seeds = range(seed, seed + repeats)
        deals = deal_folds(rows, target, ignore_index=ignore_index, folds=folds, seeds=seeds)
        calibrate = partial(fit_folds, rows=rows, deals=deals, folds=folds)
    scores, refused = _score_all(rows, calibrators, calibrate, score_rows, progress)
    absent = absent_classes(labels, rows.num_classes)
    # What a method does to a class without samples does not show in the scores, and to rule the class out pays.
    by_class = {name for name, calibrator in calibrators.items() if absent and _learns_by_class(calibrator)}
    ranking = ranked([uncalibrated, *scores], level, by_class)
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
    )


def _calibrators(methods: Sequence[str] | Mapping[str, Calibrator]) -> dict[str, Calibrator]:
    calibrators = dict(methods) if isinstance(methods, Mapping) else {name: make_calibrator(name) for name in methods}
    if others := {name: type(of).__name__ for name, of in calibrators.items() if not isinstance(of, Calibrator)}:
        raise TypeError(f"methods must be calibrators by name, got {others}")
    if not calibrators or UNCALIBRATED in calibrators:
        raise ValueError(
            f"methods must name at least one calibrator, and none {UNCALIBRATED!r}, got {list(calibrators)}"
        )
    return calibrators


def _score_all(
    rows: Rows,
    calibrators: Mapping[str, Calibrator],
    calibrate: Callable[[Calibrator, ShareDone], Calibrated],
    score_rows: Callable[..., MethodScore],
    progress: ShareDone | None,
) -> tuple[list[MethodScore], dict[str, str]]:
    """The scores of the calibrators, and why others refuse the data."""
    scores, refused = list[MethodScore](), dict[str, str]()
    predicted = (rows.values if rows.input == "logits" else log_probs(rows.values)).argmax(1)
    for i, (name, calibrator) in enumerate(calibrators.items()):

        def tell(share: float, done: int = i) -> None:
            if progress is not None:
                progress((done + share) / len(calibrators))

        try:
            repeats, notes, fitted = calibrate(calibrator, tell)
            after = [replace(rows, values=logits, input="logits", dtype=torch.float64) for logits in repeats]
            changed = torch.stack([logits.argmax(1) != predicted for logits in repeats]).double().mean()
            scores.append(replace(score_rows(name, after), argmax_changed=float(changed), notes=notes, fitted=fitted))
        except ValueError as error:
            refused[name] = str(error)
        tell(1.0)
    return scores, refused


def _learns_by_class(calibrator: Calibrator) -> bool:
    return any(isinstance(step, Calibrator) and step.by_class is not None for step in calibrator.modules())
