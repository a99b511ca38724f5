"""Before and after each calibrator: fitted on a run's validation part, or cross-fitted where there is none."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualfocal.calibrators import CalibratorComparison, TemperatureScaling, compare_calibrators, make_calibrator
from dualfocal.calibrators.comparison import UNCALIBRATED
from dualfocal.metrics import Evaluation
from dualfocal.metrics.resampling import Progress
from dualfocal.metrics.rows import Rows
from dualfocal.report.subjects import Subject
from dualfocal.runs.source import Reading

DEFAULT = ("temperature", "vector", "isotonic")


@dataclass(frozen=True)
class Calibration:
    """The calibrators of one subject of a report."""

    uncalibrated: Evaluation
    comparison: CalibratorComparison | None  # None: no calibrator was asked for, or could be tried
    how: str
    remarks: tuple[str, ...]
    temperature: float | None  # for the slider of the page
    temperature_from: str

    @property
    def advice(self) -> str:
        """Which calibrator to use."""
        if self.comparison is None:
            return ""
        verdict = self.comparison.verdict()
        return verdict if self.comparison.held_out else f"{verdict}{self.comparison.choice()}"

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """The uncalibrated model, then the calibrators by NLL, each by its first repeat."""
        if self.comparison is None:
            return {UNCALIBRATED: self.uncalibrated}
        # The table of calibrators has means over repeats, so that this one must say that it has not.
        repeat = "" if self.comparison.repeats == 1 else ", repeat 1"
        others = [method for method in self.comparison.methods if method.name != UNCALIBRATED]
        return {UNCALIBRATED: self.uncalibrated} | {f"{method.name}{repeat}": method.evaluation for method in others}


def calibrate(subject: Subject, names: Sequence[str], reading: Reading, progress: Progress) -> Calibration:
    """Score calibrators on the samples of a report, by fits that have not seen them."""
    validation, remark = reading.validation(subject.path, subject.rows)
    comparison, how, remarks = None, "", [remark] if remark else []
    calibrators = {name: make_calibrator(name) for name in names}
    if calibrators:
        try:
            comparison = compare_calibrators(
                subject.data.values,
                subject.data.target,
                calibrators,
                input=subject.data.input,
                validation=validation,
                part=subject.part(reading),
                evaluation=subject.evaluation,
                num_bins=reading.num_bins,
                ignore_index=reading.ignore_index,
                binary=reading.binary,
                level=reading.level,
                seed=reading.seed,
                progress=progress,
            )
        except ValueError as error:  # too few samples, or images, to be dealt into folds
            how = f"No calibrator was tried: {error}."
    if comparison is not None:
        means = " Scores in the table of calibrators are means over the repeats." if validation is None else ""
        how = f"{comparison.caveat()}{means}"
        remarks += comparison.remarks()
    return Calibration(
        subject.evaluation,
        comparison,
        how,
        tuple(remarks),
        _temperature(comparison, subject.rows if validation is None else validation),
        "these same samples" if validation is None else "the validation part",
    )


def _temperature(comparison: CalibratorComparison | None, rows: Rows) -> float | None:
    """The best temperature of the rows that calibrators were fitted on, or could have been."""
    methods = () if comparison is None else comparison.methods
    known = next((method.temperature for method in methods if method.name == "temperature"), None)
    if known is not None:
        return known
    try:
        return float(TemperatureScaling().fit(rows.values, rows.target, input=rows.input).temperature)
    except ValueError:  # a true class that is ruled out has no best temperature
        return None
