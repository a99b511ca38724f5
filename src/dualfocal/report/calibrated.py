"""Before and after each calibrator: fitted on a run's validation part, or cross-fitted where there is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualfocal.calibrators import CALIBRATORS, Calibrator, TemperatureScaling, cross_fit, log_probs, make_calibrator
from dualfocal.calibrators.ranking import AS_IS, Scored, Unranked, advice, ranked, recommend, unranked
from dualfocal.metrics._rows import Rows
from dualfocal.predictions import PredictionsError
from dualfocal.report.subjects import Reading, Subject

DEFAULT = ("temperature", "vector", "isotonic")
FOLDS, REPEATS = 5, 2

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Calibrated:
    """The model as it is and every method, how they were fitted, and what follows."""

    methods: tuple[Scored, ...]  # the model as it is first, then by NLL
    repeats: int  # of cross-fitting, over which scores are means; 1: there was one fit
    how: str
    advice: str
    remarks: tuple[str, ...]  # methods that refused the data, and what fits had to say
    temperatures: dict[str, float]  # by method, where it is one number
    temperature: float | None  # for the slider of the page
    temperature_from: str


def parse_methods(text: str) -> tuple[str, ...]:
    """Names of calibrators, from ``"none"``, ``"all"`` or names separated by commas.

    >>> parse_methods("temperature, temperature+isotonic")
    ('temperature', 'temperature+isotonic')
    >>> parse_methods("none")
    ()
    """
    if text in ("none", "all"):
        return () if text == "none" else tuple(CALIBRATORS)
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        make_calibrator(name)
        if names.count(name) > 1:
            raise ValueError(f"calibrators must differ, {name} is given more than once")
    return names


def calibrate(subject: Subject, names: Sequence[str], reading: Reading, progress: Progress) -> Calibrated:
    """Score calibrators on the samples of a report, by fits that have not seen them."""
    validation, remark = _validation(subject, reading)
    fitted_on = validation if validation is not None else subject.rows
    found = Calibrated(
        methods=ranked([_as_it_is(subject, reading)], reading.level),
        repeats=1,
        how="",
        advice="",
        remarks=(remark,) if remark else (),
        temperatures={},
        temperature=_temperature(fitted_on),
        temperature_from="the validation part" if validation is not None else "these same samples",
    )
    if not names:
        return found
    if validation is not None:
        return _of_validation(found, subject, validation, names, reading, progress)
    return _cross_fitted(found, subject, names, reading, progress)


def _cross_fitted(
    found: Calibrated, subject: Subject, names: Sequence[str], reading: Reading, progress: Progress
) -> Calibrated:
    calibrators = {name: make_calibrator(name) for name in names}
    try:
        crossed = cross_fit(
            subject.data.values,
            subject.data.target,
            calibrators,
            input=subject.data.input,
            folds=FOLDS,
            repeats=REPEATS,
            num_bins=reading.num_bins,
            ignore_index=reading.ignore_index,
            binary=reading.binary,
            level=reading.level,
            seed=reading.seed,
            progress=progress,
        )
    except ValueError as error:  # too few samples, or images, to be dealt into folds
        return replace(found, how=f"No calibrator was tried: {error}.")
    remarks = [f"{name} refused: {reason}" for name, reason in crossed.refused.items()]
    remarks += [f"{', '.join(of)}: {note}" for note, of in crossed.notes().items()]
    return replace(
        found,
        methods=_as_it_is_first(crossed.methods),
        repeats=REPEATS,
        how=f"{crossed.caveat()} Scores in the table of calibrators are means over the repeats.",
        advice=f"{crossed.verdict()}{_choice(crossed.methods)}",
        remarks=(*found.remarks, *remarks),
    )


def _of_validation(
    found: Calibrated, subject: Subject, validation: Rows, names: Sequence[str], reading: Reading, progress: Progress
) -> Calibrated:
    methods, remarks, temperatures = [_as_it_is(subject, reading)], list[str](), dict[str, float]()
    for done, name in enumerate(names):
        calibrator = make_calibrator(name)
        try:
            calibrator.fit(_as_logits(validation), validation.target)
            methods.append(_applied(name, calibrator, subject, reading))
        except ValueError as error:
            remarks.append(f"{name} refused: {error}")
        else:
            assert calibrator.report is not None
            remarks += [f"{name}: {note}" for note in calibrator.report.notes]
            if isinstance(calibrator, TemperatureScaling):
                temperatures[name] = float(calibrator.temperature)
        progress((done + 1) / len(names))
    by_nll = ranked(methods, reading.level)
    simple_first = [*(name for name in CALIBRATORS if name in names), *names]
    return replace(
        found,
        methods=_as_it_is_first(by_nll),
        how=f"Fitted on the run's validation part ({len(validation):,} samples), scored on its "
        f"{subject.part(reading)} part ({len(subject.rows):,}), which no fit has seen.",
        advice=f"{advice(by_nll, recommend(by_nll, simple_first), reading.level)}{_choice(by_nll)}",
        remarks=tuple(remarks),
        temperatures=temperatures,
    )


def _as_it_is(subject: Subject, reading: Reading) -> Unranked:
    seen = [(subject.rows, subject.seen)]
    return unranked(AS_IS, [subject.evaluation], seen, num_bins=reading.num_bins, seed=reading.seed)


def _applied(name: str, calibrator: Calibrator, subject: Subject, reading: Reading) -> Unranked:
    given = _as_logits(subject.rows)
    calibrated = calibrator(given)
    rows = replace(subject.rows, values=calibrated, input="logits", dtype=torch.float64)
    seen = reading.scan(rows)
    return unranked(
        name,
        [reading.evaluate(rows, seen)],
        [(rows, seen)],
        num_bins=reading.num_bins,
        seed=reading.seed,
        changed=float((given.argmax(1) != calibrated.argmax(1)).double().mean()),
    )


def _as_it_is_first(methods: Sequence[Scored]) -> tuple[Scored, ...]:
    return tuple(sorted(methods, key=lambda of: of.name != AS_IS))


def _choice(methods: Sequence[Scored]) -> str:
    """A choice by the numbers that it is then praised with looks better than it is."""
    tried = len(methods) - 1
    return f" (Chosen among {tried} methods on these same samples.)" if tried > 1 else ""


def _validation(subject: Subject, reading: Reading) -> tuple[Rows | None, str]:
    """The validation part of a run, unless the report is of it; and why it cannot be used, if it is there."""
    named = reading.logits or reading.probs or reading.target
    if subject.run is None or named or subject.part(reading) == "val":
        return None, ""
    try:
        data = reading.load(subject.path, "val")
    except PredictionsError:  # a run without one
        return None, ""
    try:
        rows = reading.rows(data)
        if rows.num_classes != subject.rows.num_classes:
            raise ValueError(f"it has {rows.num_classes} classes, the samples have {subject.rows.num_classes}")
    except (ValueError, IndexError) as error:
        return None, f"The run's validation part cannot be used: {error}."
    return rows, ""


def _as_logits(rows: Rows) -> Tensor:
    return rows.values if rows.input == "logits" else log_probs(rows.values)


def _temperature(rows: Rows) -> float | None:
    try:
        return float(TemperatureScaling().fit(_as_logits(rows), rows.target).temperature)
    except ValueError:  # a true class that is ruled out has no best temperature
        return None
