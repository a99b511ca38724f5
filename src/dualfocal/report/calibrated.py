"""Score calibrators for a report: fitted on a run's validation split, or cross-validated if there is none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from dualfocal.metrics.samples import Samples
from dualfocal.predictions import Reading
from dualfocal.report.inputs import ReportInput

LEAST_CLUSTERS = 100  # clusters in such a subset
MOST_SAMPLES = 100_000  # calibrators are compared on a random subset of more samples than this,
MOST_VALUES = 15_000_000  # or of more probabilities (samples x classes),
LEAST_SAMPLES = 1000  # but of no fewer samples than this


@dataclass(frozen=True)
class Calibration:
    """The calibrators that were scored on one input of a report.

    Attributes:
        comparison: The scores (None: no calibrator was requested, or none could be scored).
        temperature: Fitted temperature, for the slider of the page.
        temperature_from: Samples that the temperature was fitted on.
        remarks: Remarks on the validation split and of the comparison.
        subset: Sentence about the random subset that calibrators were compared on; empty if it was all samples.
        problem: Why no calibrator was scored; empty if none was requested.
    """

    comparison: CalibratorComparison | None
    temperature: float | None
    temperature_from: str
    remarks: list[str]
    subset: str = ""
    problem: str = ""

    @property
    def how(self) -> str:
        """Which samples the calibrators were fitted and scored on."""
        if self.comparison is None:
            return self.problem
        means = " The table of calibrators shows means over the repeats." if self.comparison.repeats > 1 else ""
        return f"{self.subset}{self.comparison.caveat()}{means}"

    @property
    def advice(self) -> str:
        """Which calibrator to use."""
        return "" if self.comparison is None else self.comparison.verdict()

    @property
    def recommended(self) -> MethodScore | None:
        """The calibrator to use (None: no calibrator helps, or none was scored)."""
        if self.comparison is None or self.comparison.recommended == UNCALIBRATED:
            return None
        return self.comparison[self.comparison.recommended]

    @property
    def scaled(self) -> MethodScore | None:
        """Scores of temperature scaling, if it was among the calibrators."""
        methods = [] if self.comparison is None else self.comparison.methods
        return next((method for method in methods if method.name == "temperature"), None)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Calibrator -> evaluation, in the order of the NLL.

        The table of calibrators has means over repeats. These are evaluations of the first repeat, and their names say
        so.
        """
        if self.comparison is None:
            return {}
        repeat = ", repeat 1" if self.comparison.repeats > 1 else ""
        methods = [method for method in self.comparison.methods if method.name != UNCALIBRATED]
        return {f"{method.name}{repeat}": method.evaluation for method in methods}


def calibrate(source: ReportInput, names: Sequence[str], reading: Reading, progress: ShareDone) -> Calibration:
    """Score calibrators on samples that they were not fitted on."""
    validation, remark = (None, "") if source.path is None else reading.validation(source.path, source.samples)
    remarks = [remark] if remark else []
    samples, origin = (
        (source.samples, "these same samples") if validation is None else (validation, "the validation split")
    )
    if samples.weight is not None:
        origin += ", without weights"
    calibrators = {name: make_calibrator(name) for name in names}
    chosen = subset(source.samples, reading.seed)
    try:
        comparison = compare_calibrators(
            source.samples if chosen is None else source.samples.part(chosen),
            methods=calibrators,
            validation=validation,
            repeats=2 if chosen is None else 1,  # with so many samples, the split matters little
            progress=progress,
            **reading.scoring,
        )
    except ValueError as error:  # too few samples, or images, for the folds
        problem = f"No calibrator was scored: {error}." if names else ""
        return Calibration(None, best_temperature(samples), origin, remarks, problem=problem)
    fitted = next((method.temperature for method in comparison.methods if method.name == "temperature"), None)
    return Calibration(
        comparison,
        best_temperature(samples) if fitted is None else fitted,
        origin,
        remarks + comparison.remarks(),
        subset="" if chosen is None else _subset_text(source, comparison),
    )


def subset(samples: Samples, seed: int) -> NDArray[np.bool_] | None:
    """Return which samples a random subset for the comparison of calibrators has (None: all samples).

    Whole clusters are drawn, such as images; of too few clusters, all samples are used.
    """
    most = min(MOST_SAMPLES, max(LEAST_SAMPLES, MOST_VALUES // samples.num_classes))
    if len(samples) <= most:
        return None
    rng = np.random.default_rng(seed)
    if samples.cluster is None:
        return np.isin(np.arange(len(samples)), rng.permutation(len(samples))[:most])
    cluster = samples.cluster.cpu().numpy()
    sizes = np.bincount(cluster)
    order = rng.permutation(len(sizes))
    taken = order[sizes[order].cumsum() <= most]
    return np.isin(cluster, taken) if len(taken) >= LEAST_CLUSTERS else None


def _subset_text(source: ReportInput, comparison: CalibratorComparison) -> str:
    """Say on how many samples calibrators were compared, and what that means for those that learn class by class."""
    text = (
        f"To limit the time, calibrators were compared on a random subset of {comparison.num_samples:,} of the "
        f"{len(source.samples):,} samples"
    )
    if comparison.held_out:
        return f"{text}. "
    return f"{text}: fitted on all of them, calibrators with parameters for each class can be better than shown here. "


def best_temperature(samples: Samples) -> float | None:
    """Fit a temperature (None if the fit is impossible, since a true class has probability 0)."""
    try:
        return float(TemperatureScaling().fit(replace(samples, weight=None)).temperature)
    except ValueError:
        return None
