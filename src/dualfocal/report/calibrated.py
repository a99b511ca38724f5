"""Before and after each calibrator: fitted on a run's validation part, or cross-fitted where there is none."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dualfocal.calibrators import (
    CalibratorComparison,
    MethodScore,
    TemperatureScaling,
    compare_calibrators,
    make_calibrator,
)
from dualfocal.calibrators.comparison import UNCALIBRATED
from dualfocal.metrics import Evaluation
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.rows import Rows
from dualfocal.report.inputs import ReportInput
from dualfocal.runs.source import Reading

DEFAULT = ("temperature", "vector", "isotonic")


@dataclass(frozen=True)
class Calibration:
    """The calibrators of one subject of a report."""

    comparison: CalibratorComparison | None  # None: no calibrator was asked for, or could be tried
    how: str
    remarks: list[str]
    temperature: float | None  # for the slider of the page
    temperature_from: str
    advice: str = ""
    scaled: MethodScore | None = None  # by a temperature, if that was tried
    evaluations: dict[str, Evaluation] = field(default_factory=dict)  # by NLL, each by its first repeat


def calibrate(subject: ReportInput, names: Sequence[str], reading: Reading, progress: ShareDone) -> Calibration:
    """Score calibrators on the samples of a report, by fits that have not seen them."""
    validation, remark = reading.validation(subject.path, subject.rows)
    remarks = [remark] if remark else []
    rows, origin = (subject.rows, "these same samples") if validation is None else (validation, "the validation part")
    calibrators = {name: make_calibrator(name) for name in names}
    try:
        comparison = compare_calibrators(
            subject.data.values,
            subject.data.target,
            calibrators,
            input=subject.data.input,
            validation=validation,
            part=subject.part,
            evaluation=subject.evaluation,
            progress=progress,
            **reading.scoring,
        )
    except ValueError as error:  # too few samples, or images, to be dealt into folds
        how = f"No calibrator was tried: {error}." if names else ""
        return Calibration(None, how, remarks, best_temperature(rows), origin)
    scaled = next((method for method in comparison.methods if method.name == "temperature"), None)
    # The table of calibrators has means over repeats, so that single evaluations must say that they have not.
    repeat = "" if comparison.repeats == 1 else ", repeat 1"
    means = "" if comparison.held_out else " Scores in the table of calibrators are means over the repeats."
    return Calibration(
        comparison,
        f"{comparison.caveat()}{means}",
        remarks + comparison.remarks(),
        best_temperature(rows) if scaled is None or scaled.temperature is None else scaled.temperature,
        origin,
        comparison.verdict() if comparison.held_out else f"{comparison.verdict()}{comparison.choice()}",
        scaled,
        {f"{of.name}{repeat}": of.evaluation for of in comparison.methods if of.name != UNCALIBRATED},
    )


def best_temperature(rows: Rows) -> float | None:
    """Of the rows that calibrators were fitted on, or could have been; None: a true class is ruled out."""
    try:
        return float(TemperatureScaling().fit(rows.values, rows.target, input=rows.input).temperature)
    except ValueError:
        return None
