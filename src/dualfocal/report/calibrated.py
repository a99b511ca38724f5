"""Score calibrators for a report: fitted on a run's validation split, or cross-validated if there is none."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
from dualfocal.metrics.rows import Rows, cluster_codes
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
    validation, remark = (None, "") if source.path is None else reading.validation(source.path, source.rows)
    remarks = [remark] if remark else []
    rows, origin = (source.rows, "these same samples") if validation is None else (validation, "the validation split")
    if rows.weight is not None:
        origin += ", without weights"
    calibrators = {name: make_calibrator(name) for name in names}
    chosen = subset(source, reading.seed)
    values, target = source.data.values, source.data.target
    clusters, weights = reading.clusters(source.data), source.data.weights
    if chosen is not None:
        values, target = values[chosen], target[chosen]
        clusters = clusters[chosen.numpy()] if isinstance(clusters, np.ndarray) else clusters
        weights = None if weights is None else weights[chosen.numpy()]
    try:
        comparison = compare_calibrators(
            values,
            target,
            calibrators,
            input=source.data.input,
            validation=validation,
            part=source.part,
            evaluation=source.evaluation if chosen is None else None,
            clusters=clusters,
            sample_weight=weights,
            repeats=2 if chosen is None else 1,  # with so many samples, the split matters little
            progress=progress,
            **reading.scoring,
        )
    except ValueError as error:  # too few samples, or images, for the folds
        problem = f"No calibrator was scored: {error}." if names else ""
        return Calibration(None, best_temperature(rows), origin, remarks, problem=problem)
    fitted = next((method.temperature for method in comparison.methods if method.name == "temperature"), None)
    return Calibration(
        comparison,
        best_temperature(rows) if fitted is None else fitted,
        origin,
        remarks + comparison.remarks(),
        subset="" if chosen is None else _subset_text(source, comparison),
    )


def subset(source: ReportInput, seed: int) -> Tensor | None:
    """Return a random subset of the samples for the comparison of calibrators (None: all samples).

    Whole images of dense predictions are drawn, and whole clusters; of too few clusters, all samples are used.
    """
    count = len(source.data.values)
    each = len(source.rows) / count  # labelled samples per image, on average
    most = min(MOST_SAMPLES, max(LEAST_SAMPLES, MOST_VALUES // source.rows.num_classes))
    if len(source.rows) <= most:
        return None
    rng = np.random.default_rng(seed)
    if source.data.clusters is None:
        chosen = rng.permutation(count)[: max(1, int(most / each))]
        return torch.from_numpy(np.sort(chosen))
    codes = cluster_codes(source.data.clusters, (count,)).numpy()
    sizes = np.bincount(codes) * each
    order = rng.permutation(len(sizes))
    taken = order[sizes[order].cumsum() <= most]
    return torch.from_numpy(np.isin(codes, taken).nonzero()[0]) if len(taken) >= LEAST_CLUSTERS else None


def _subset_text(source: ReportInput, comparison: CalibratorComparison) -> str:
    """Say on how many samples calibrators were compared, and what that means for those that learn class by class."""
    text = (
        f"To limit the time, calibrators were compared on a random subset of {comparison.num_samples:,} of the "
        f"{len(source.rows):,} samples"
    )
    if comparison.held_out:
        return f"{text}. "
    return f"{text}: fitted on all of them, calibrators with parameters for each class can be better than shown here. "


def best_temperature(rows: Rows) -> float | None:
    """Fit a temperature (None if the fit is impossible, since a true class has probability 0)."""
    try:
        return float(TemperatureScaling().fit(rows.values, rows.target, input=rows.input).temperature)
    except ValueError:
        return None
