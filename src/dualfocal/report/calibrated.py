"""Before and after each calibrator: fitted on a run's validation part, or cross-fitted where there is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualfocal.calibrators import CALIBRATORS, Calibrator, TemperatureScaling, cross_fit, log_probs, make_calibrator
from dualfocal.calibrators.cross_fitting import AS_IS, LEAST, CrossFit
from dualfocal.metrics import Evaluation
from dualfocal.metrics._rows import Rows
from dualfocal.metrics.comparison import LEAST as LEAST_COMPARED
from dualfocal.metrics.comparison import Difference, interval
from dualfocal.metrics.resampling import resample
from dualfocal.predictions import PredictionsError
from dualfocal.report.subjects import Reading, Subject

DEFAULT = ("temperature", "vector", "isotonic")
FOLDS, REPEATS = 5, 2

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Method:
    """A calibrator's effect on the samples of a report."""

    name: str
    evaluation: Evaluation
    nll: float
    ece: float
    error: float
    change: Difference | None  # in NLL, from the model as it is; None: it is the model as it is
    moved: float  # share of samples whose predicted class is another
    temperature: float | None = None


@dataclass(frozen=True)
class Calibrated:
    """The model as it is and every method, how they were fitted, and what follows."""

    methods: tuple[Method, ...]  # the model as it is first
    how: str
    advice: str
    remarks: tuple[str, ...]  # methods that refused the data, and what fits had to say
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
    before = Method(AS_IS, *_scores(subject.evaluation), None, 0.0)
    validation = _validation(subject, reading)
    fitted_on = validation if validation is not None else subject.rows
    temperature = _temperature(fitted_on)
    where = "the validation part" if validation is not None else "these same samples"
    if not names:
        return Calibrated((before,), "", "", (), temperature, where)
    if validation is not None:
        return _of_validation(subject, validation, before, names, reading, progress, temperature)
    smallest = max(LEAST, FOLDS)
    if len(subject.rows) < smallest:
        how = f"No calibrator was tried: that needs {smallest} samples, there are {len(subject.rows)}."
        return Calibrated((before,), how, "", (), temperature, where)
    found = cross_fit(
        subject.data.values,
        subject.data.target,
        {name: make_calibrator(name) for name in names},
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
    return _of_cross_fit(found, before, temperature, where)


def _of_cross_fit(found: CrossFit, before: Method, temperature: float | None, where: str) -> Calibrated:
    methods = [
        Method(
            name=of.name,
            evaluation=of.evaluation,
            nll=of.scores["nll"],
            ece=of.scores["ece"],
            error=of.scores["error"],
            change=of.changes["nll"],
            moved=of.argmax_changed,
        )
        for of in found.methods
        if of.name != AS_IS
    ]
    remarks = [f"{name} refused: {reason}" for name, reason in found.refused.items()]
    remarks += [f"{', '.join(names)}: {note}" for note, names in found.notes().items()]
    how = f"{found.caveat()} Scores are means over the repeats; the table of all metrics is of the first."
    return Calibrated((before, *methods), how, found.verdict(), tuple(remarks), temperature, where)


def _of_validation(
    subject: Subject,
    validation: Rows,
    before: Method,
    names: Sequence[str],
    reading: Reading,
    progress: Progress,
    temperature: float | None,
) -> Calibrated:
    rows, methods, remarks = subject.rows, [before], list[str]()
    given = _as_logits(rows)
    for done, name in enumerate(names):
        calibrator = make_calibrator(name)
        try:
            calibrator.fit(_as_logits(validation), validation.target)
        except ValueError as error:
            remarks.append(f"{name} refused: {error}")
        else:
            methods.append(_applied(name, calibrator, given, subject, reading))
            assert calibrator.report is not None
            remarks += [f"{name}: {note}" for note in calibrator.report.notes]
        progress((done + 1) / len(names))
    how = (
        f"Fitted on the run's validation part ({len(validation):,} samples), scored on its "
        f"{subject.part(reading)} part ({len(rows):,}), which no fit has seen."
    )
    return Calibrated(
        tuple(methods), how, _advice(methods, reading.level), tuple(remarks), temperature, "the validation part"
    )


def _applied(name: str, calibrator: Calibrator, given: Tensor, subject: Subject, reading: Reading) -> Method:
    calibrated = calibrator(given)
    rows = replace(subject.rows, values=calibrated, input="logits", dtype=torch.float64)
    seen = reading.scan(rows)
    found = reading.evaluate(rows, seen)
    gain = found.nll - subject.evaluation.nll
    ends = (-torch.inf, torch.inf)
    if len(rows) >= LEAST_COMPARED:
        pair = [(subject.rows, subject.seen), (rows, seen)]
        drawn = resample(pair, reading.num_bins, seed=reading.seed, every_metric=False)["nll"]
        ends = interval(drawn[:, 1] - drawn[:, 0], gain, reading.level)
    return Method(
        name,
        found,
        *_scores(found)[1:],
        Difference(subject.evaluation.nll, found.nll, *ends),
        float((given.argmax(1) != calibrated.argmax(1)).double().mean()),
        float(calibrator.temperature) if isinstance(calibrator, TemperatureScaling) else None,
    )


def _scores(found: Evaluation) -> tuple[Evaluation, float, float, float]:
    return found, found.nll, found.ece, found.error


def _advice(methods: Sequence[Method], level: float) -> str:
    """What the best of them did, with the interval that it must be read with."""
    changes = [(of.name, of.change) for of in methods if of.change is not None]
    if not changes:
        return "No method could be fitted to these data."
    name, best = min(changes, key=lambda change: change[1].difference)
    if best.difference >= 0:
        return "No method lowers the NLL."
    ends = f"{-best.high:.4f} to {-best.low:.4f}, {100 * level:.4g} % interval"
    text = f"The lowest NLL has {name}: it saves {-best.difference:.4f} nats ({ends})"
    return f"{text}." if best.told_apart else f"{text}, which chance can explain."


def _validation(subject: Subject, reading: Reading) -> Rows | None:
    """The validation part of a run, unless the report is of it."""
    named = reading.logits or reading.probs or reading.target
    if subject.run is None or named or subject.part(reading) == "val":
        return None
    try:
        return reading.rows(reading.load(subject.path, "val"))
    except PredictionsError:  # a run without one
        return None


def _as_logits(rows: Rows) -> Tensor:
    return rows.values if rows.input == "logits" else log_probs(rows.values)


def _temperature(rows: Rows) -> float | None:
    try:
        return float(TemperatureScaling().fit(_as_logits(rows), rows.target).temperature)
    except ValueError:  # a true class that is ruled out has no best temperature
        return None
