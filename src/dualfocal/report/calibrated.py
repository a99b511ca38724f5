"""Before and after each calibrator: fitted on a run's validation part, or cross-fitted where there is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dualfocal.calibrators import CALIBRATORS, TemperatureScaling, cross_fit, make_calibrator
from dualfocal.calibrators.held_out import choice, fit_and_score
from dualfocal.calibrators.ranking import AS_IS, Scored, ranked, unranked
from dualfocal.calibrators.tried import Tried
from dualfocal.metrics.rows import Rows
from dualfocal.predictions import PredictionsError
from dualfocal.report.subjects import Reading, Subject
from dualfocal.runs import Run

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
    validation, remark = validation_part(subject.path, subject.rows, reading)
    fitted_on = validation if validation is not None else subject.rows
    seen = [(subject.rows, subject.seen)]
    as_is = unranked(AS_IS, [subject.evaluation], seen, num_bins=reading.num_bins, seed=reading.seed)
    found = Calibrated(
        methods=ranked([as_is], reading.level),
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
    return replace(
        found,
        methods=_as_it_is_first(crossed.methods),
        repeats=REPEATS,
        how=f"{crossed.caveat()} Scores in the table of calibrators are means over the repeats.",
        advice=f"{crossed.verdict()}{choice(crossed)}",
        remarks=(*found.remarks, *_remarks(crossed)),
    )


def _of_validation(
    found: Calibrated, subject: Subject, validation: Rows, names: Sequence[str], reading: Reading, progress: Progress
) -> Calibrated:
    scored = fit_and_score(
        validation,
        subject.rows,
        {name: make_calibrator(name) for name in names},
        part=subject.part(reading),
        num_bins=reading.num_bins,
        level=reading.level,
        seed=reading.seed,
        known=(subject.seen, subject.evaluation),
        progress=progress,
    )
    scaled = {name: of for name, of in scored.fitted.items() if isinstance(of, TemperatureScaling)}
    return replace(
        found,
        methods=_as_it_is_first(scored.methods),
        how=scored.caveat(),
        advice=scored.verdict(),
        remarks=_remarks(scored),
        temperatures={name: float(of.temperature) for name, of in scaled.items()},
    )


def _remarks(tried: Tried) -> tuple[str, ...]:
    refused = [f"{name} refused: {reason}" for name, reason in tried.refused.items()]
    return (*refused, *(f"{', '.join(of)}: {note}" for note, of in tried.notes().items()))


def _as_it_is_first(methods: Sequence[Scored]) -> tuple[Scored, ...]:
    return tuple(sorted(methods, key=lambda of: of.name != AS_IS))


def validation_part(path: Path, rows: Rows, reading: Reading) -> tuple[Rows | None, str]:
    """The validation part of a run, unless ``rows`` are of it; and why it cannot be used, if it is there."""
    named = reading.logits or reading.probs or reading.target
    if not Run(path).exists or named or reading.split == "val":
        return None, ""
    try:
        data = reading.load(path, "val")
    except PredictionsError:  # a run without one
        return None, ""
    try:
        validation = reading.rows(data)
        if validation.num_classes != rows.num_classes:
            raise ValueError(f"it has {validation.num_classes} classes, the samples have {rows.num_classes}")
    except (ValueError, IndexError) as error:
        return None, f"The run's validation part cannot be used: {error}."
    return validation, ""


def _temperature(rows: Rows) -> float | None:
    try:
        return float(TemperatureScaling().fit(rows.values, rows.target, input=rows.input).temperature)
    except ValueError:  # a true class that is ruled out has no best temperature
        return None
