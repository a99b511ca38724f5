"""Statistical inference for calibration errors: noise floors, tests, confidence interval, smallest detectable error.

Data that are independent, weighted, clustered, multi-label, grouped or streamed are one problem here. All that is known
of the samples are *cells*: for the bins of the confidence, and for the bins of the probability of every class, the sums
of :class:`~dualfocal.metrics.cells.BinStats`; and, where samples depend on each other, the sums of (p - y) by *unit*.

**Draws.** The gap of a cell, the sum of (p - y), is drawn for a calibrated model in one of two ways:

- *model*: the number of outcomes is binomial, with the mean and the variance that the probabilities of its samples
  have. Samples with different weights count as equal ones with the same variance.
- *wild*: a wild bootstrap multiplies the sums of each unit by a random sign, which keeps the dependence within units
  and imposes calibration (with fewer than 50 units one of six values, Webb 2014).

The first knows the noise from the probabilities, but not the dependence; the second learns the noise from the data
alone, and sees too little of it where errors are rare. Where there are units, the more cautious result counts: the
larger p-value, noise floor and detectable gap, and the interval that contains both intervals. Without clusters and with
equal weights, the first is right. For weights that depend on the label alone (label shift), whose variance is known, it
counts for the confidence and for noise floors; the interval and the class-wise test allow for both.

**Noise floor.** The mean error of calibrated draws (consistency resampling, Broecker and Smith 2007).

**P-value** of the confidence: the rank of the data among calibrated draws, by S = sum_b gap_b^2 / n_b or by the square
of the sum of all gaps, whichever is more extreme. S detects any shape of miscalibration, but the noise of 15 bins can
hide the most common one, a small over-confidence everywhere; the sum detects that. A rank is at least 1 / (draws + 1):
the p-value of the sum alone, which needs no draws, counts below that.

**Interval** of the root of the true squared error. It contains all values theta that a test at significance 1 - level
does not reject, where theta is the size of a miscalibration whose shape (how the gaps of the bins relate) is drawn
around the observed one. The test is one-sided near zero, two-sided far from zero, and a mixture in between, like the
unified intervals of Feldman and Cousins (1998): the interval has the right coverage at a true value of 0, and is never
empty or negative (compare Sun et al., arXiv:2408.08998). It is about the confidences of these samples, not about those
of other samples of the population.

**Smallest detectable error**: the gap, the same in every bin, that the test detects with 80 % power.

**Class-wise test.** The labels of all classes, by three statistics: *totals*, the largest gap of a class among all
samples or among those predicted as it; *bins*, the class with the largest sum of gap^2 / V over its bins; and *sum*,
the sum of these over all classes, which finds small errors of many classes. Each becomes an approximate p-value, the
smallest counts, and its rank among the draws is the p-value of the test: approximations affect its power, but not its
level. The verdict covers both tests, by Holm's method: at most 5 % of calibrated models are called miscalibrated.

The scripts ``benchmarks/*_coverage.py``, ``multilabel_alarms.py``, ``token_groups.py`` and ``group_intervals.py`` check
levels and coverage by simulation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dualfocal.metrics.cells import BinStats, Floats
from dualfocal.metrics.classwise import Wild, classwise_test
from dualfocal.metrics.draws import LEAST, Settings, floor_of
from dualfocal.metrics.inference_result import SIGNIFICANCE, ClasswiseTest, Floor, Inference
from dualfocal.metrics.row_test import GapDraws, RowTest, model_gaps, wild_gaps
from dualfocal.metrics.units import UnitSums, centred_sums, wild_signs


@dataclass(frozen=True, eq=False)
class Evidence:
    """What an inference is made from.

    Args:
        top: bins of the confidence, ``(B,)``.
        adaptive: bins of equal mass.
        classes: bins of all classes, ``(C, 2, B)``; None if only the confidence is known.
        units: sums by unit; None if samples are independent and have equal weights.
        clustered: whether the units are clusters of samples, not single samples.
        known_weights: whether weights depend on the label alone.
        positive: whether the confidence is the probability of class 1, and classes are not tested.
    """

    top: BinStats
    adaptive: BinStats
    classes: BinStats | None = None
    units: UnitSums | None = None
    clustered: bool = False
    known_weights: bool = False
    positive: bool = False


def infer(
    evidence: Evidence, settings: Settings, published: Mapping[str, tuple[float, float]] | None = None
) -> Inference:
    """Compute noise floors, tests, interval and smallest detectable error; ``published`` becomes part of the result."""
    classes, classwise = None if evidence.positive else evidence.classes, None
    significance = SIGNIFICANCE if classes is None else SIGNIFICANCE / 2  # by Holm's method, for the first of two tests
    model = model_gaps(evidence.top, settings)
    tests = [RowTest.of(model, settings, significance)]
    floors = model.floors() | {"adaptive_ece": model_gaps(evidence.adaptive, settings).floors()["ece"]}
    if classes is not None:
        classwise, floors["classwise_ece"] = classwise_test(classes, settings)
    summary = None
    if (units := evidence.units) is not None:
        signs = wild_signs(len(units.gap), settings.draws, settings.seed)
        wild = wild_gaps(units.gap, units.size, signs)
        tests.append(RowTest.of(wild, settings, significance, tests[0].p_value))
        summary = units.summary()
        others = wild.floors() | {"adaptive_ece": _adaptive_floor(units, wild, floors, signs)}
        if classes is not None and classwise is not None:
            bootstrap = Wild(units, signs, summary.design_effect)
            test, others["classwise_ece"] = classwise_test(classes, settings, bootstrap)
            classwise = ClasswiseTest(max(classwise.p_value, test.p_value), test.gaps, test.draws)
        if evidence.clustered or not evidence.known_weights:
            floors = {name: _larger(floor, others[name]) for name, floor in floors.items()}
        else:
            tests[1] = replace(tests[0], interval=tests[1].interval)
    if evidence.positive:  # class 0 mirrors class 1
        floors["classwise_ece"] = floors["ece"]
    return Inference(
        floors=floors,
        p_value=max(test.p_value for test in tests),
        debiased_ece=(min(test.interval[0] for test in tests), max(test.interval[1] for test in tests)),
        level=settings.level,
        detectable=max(test.detectable for test in tests),
        draws=settings.draws,
        seed=settings.seed,
        published=dict(published or {}),
        classwise=classwise,
        clusters=summary if evidence.clustered else None,
    )


def _larger(floor: Floor, other: Floor) -> Floor:
    return Floor(max(floor.mean, other.mean), max(floor.q95, other.q95))


def _adaptive_floor(units: UnitSums, wild: GapDraws, floors: Mapping[str, Floor], signs: Floats) -> Floor:
    """Return the noise floor of the adaptive ECE by units; in proportion to that of the ECE if bins are not known."""
    if units.adaptive is None:
        factor = wild.floors()["ece"].mean / max(floors["ece"].mean, LEAST)
        return Floor(factor * floors["adaptive_ece"].mean, factor * floors["adaptive_ece"].q95)
    sums, sizes = (cells[:, units.adaptive[1].any(0)] for cells in units.adaptive)
    return floor_of(np.abs(signs @ centred_sums(sums, sizes)).sum(1) / sizes.sum())
