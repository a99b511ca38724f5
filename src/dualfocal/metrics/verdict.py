"""The verdict of an evaluation, in words."""

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from dualfocal.metrics.inference_result import POWER, SIGNIFICANCE, ClasswiseTest, Inference, WeightSummary
from dualfocal.tables import printable, quantity

if TYPE_CHECKING:
    from dualfocal.metrics.result import Evaluation

CONFIDENCE_ONLY = (
    "Only the confidence of the predicted class is known: NLL, Brier score, classwise ECE and the test of class "
    "probabilities need all probabilities."
)
BEYOND_ROUNDING = "no miscalibration beyond what the rounding of the input can cause"
TOP_LABEL_ONLY = "Only the confidence of the predicted class was tested, not the probabilities of the other classes."


def samples_text(num_samples: int, num_clusters: int | None, weights: WeightSummary | None) -> str:
    """Say how many samples there are, in how many clusters, and how much information their weights leave.

    >>> samples_text(1000, 40, None)
    '1,000 samples in 40 clusters'
    """
    weighted = "" if weights is None else f" (weighted, effective {round(weights.effective):,})"
    clusters = "" if num_clusters is None else f" in {quantity(num_clusters, 'cluster')}"
    return f"{quantity(num_samples, 'sample')}{weighted}{clusters}"


def confidence_verdict(
    evaluation: "Evaluation",
    inference: Inference,
    significant: bool,
    names: Sequence[str] | None = None,
    tolerance: float = 0.0,
) -> str:
    """Say whether the confidences of an evaluation are calibrated, and whether a gap is below the tolerance."""
    ece, floor = f"ECE is {points_text(evaluation.ece)} points", points_text(inference.floors["ece"].mean)
    chance = f"a calibrated model would show {floor} by chance ({_p(inference.p_value, significant, inference.draws)})."
    if not significant:
        between = "probability and frequency" if evaluation.positive else "confidence and accuracy"
        gap = f"a gap of {points_text(inference.detectable)} points or more between {between} in every bin"
        few_clusters = inference.clusters is not None and not inference.clusters.reliable
        power = (
            f"{gap} would have been detected ({100 * POWER:.0f} % power)"
            if math.isfinite(inference.detectable)
            else f"too few {'clusters' if few_clusters else 'samples'} to detect a gap of any size"
        )
        return f"No miscalibration detectable at N = {evaluation.num_samples:,}: {power}. {ece}; {chance}"
    largest = max(evaluation.debiased_ece, abs(evaluation.overconfidence))
    least = max(inference.debiased_ece[0], _least_gap(largest, inference.p_value))
    if evaluation.rounding is not None and evaluation.rounding.explains(least):
        return f"{BEYOND_ROUNDING[0].upper()}{BEYOND_ROUNDING[1:]}: {ece}; {chance}"
    share = evaluation.overconfidence / evaluation.ece
    side, kind, size = ("above", "Over-confident", "high") if share > 0 else ("below", "Under-confident", "low")
    if evaluation.positive:
        kind = f"Probabilities of class {_name(1, names)} too {size}"
    kind = kind if abs(share) > 0.5 else "Miscalibrated in both directions"
    if evaluation.positive:
        kind += f" ({_predicted(evaluation.confidence, evaluation.accuracy)})"
    elif evaluation.ece <= inference.floors["ece"].q95 and abs(share) > 0.5:  # the evidence is the mean, not the ECE
        ece = f"mean confidence is {points_text(abs(evaluation.overconfidence))} points {side} accuracy, {ece}"
    small = ""
    if inference.debiased_ece[1] < tolerance:
        small = f" The gap is statistically clear, but practically small: below {points_text(tolerance)} points."
    return f"{kind}: {ece}; {chance}{small}"


def suspicions(evaluation: "Evaluation", inference: Inference, names: Sequence[str] | None = None) -> list[str]:
    """Say what looks wrong with the predictions themselves, rather than with their calibration."""
    bins, sentences = evaluation.bins, []
    if bool(((bins.confidence == 0) | (bins.confidence == bins.count)).all()):
        sentences.append(
            "All probabilities are 0 or 1, as if they were predicted classes: calibration is about the probabilities "
            "that the classes were chosen by."
        )
    two_standard_errors = 1 / math.sqrt(evaluation.num_samples)
    worse_than_guessing = evaluation.error > 0.5 + two_standard_errors and inference.joint_p_value <= SIGNIFICANCE
    if evaluation.num_classes == 2 and worse_than_guessing:
        sentences.append(
            f"Most predictions are wrong (error {percent_text(evaluation.error)} %): check that the probability of "
            f"class {_name(1, names)} is not that of class {_name(0, names)}."
        )
    return sentences


def classes_verdict(
    evaluation: "Evaluation",
    inference: Inference,
    test: ClasswiseTest,
    significant: bool,
    names: Sequence[str] | None = None,
) -> str:
    """Say whether the probabilities of all classes are calibrated, and name the largest of the significant gaps.

    Of two classes, the probability of class 1 over all samples comes first.
    """
    num_classes = evaluation.num_classes
    subject = "Class probabilities" if num_classes > 2 else f"Probability of class {_name(1, names)}"
    p = _p(test.p_value, significant, test.draws)
    if not significant:
        return f"{subject}: no miscalibration detectable ({p})."
    gaps = test.gaps
    if (rounding := evaluation.rounding) is not None:
        least = [_least_gap(gap.probability - gap.share, gap.p_value, 2 * num_classes) for gap in gaps]
        gaps = tuple(gap for gap, size in zip(gaps, least, strict=True) if not rounding.explains(size))
        excess = evaluation.classwise_ece - inference.floors["classwise_ece"].mean
        if not gaps and (test.gaps or rounding.explains(excess)):
            return f"{subject}: {BEYOND_ROUNDING} ({p})."
    if not gaps:
        no_class = "no class's mean probability is" if num_classes > 2 else "its mean is not"
        return f"{subject}: miscalibrated ({p}); {no_class} significantly off."
    gap = gaps[0]
    if num_classes == 2:
        gap = next((other for other in gaps if not other.among_predicted), gap)
    name = f"class {_name(gap.index, names)}"
    if gap.among_predicted:
        worst = (
            f"predictions of {name}, confidence {percent_text(gap.probability)} %, right {percent_text(gap.share)} %"
        )
    else:
        worst = f"{name}, {_predicted(gap.probability, gap.share)}"
    return f"{subject}: miscalibrated ({p}); worst: {worst}."


def _least_gap(gap: float, p_value: float, num_tests: int = 1) -> float:
    """Return the lower end of the 95 % interval of a gap whose p-value is adjusted for a number of tests.

    The gap is treated as normal: its p-value shows how many standard errors it is from 0.
    """
    limit, errors = ndtri(np.array([SIGNIFICANCE, max(p_value, sys.float_info.min)]) / (2 * num_tests))
    return float(abs(gap) * (1 - limit / errors))


def _predicted(probability: float, share: float) -> str:
    """Return the mean probability of a class beside the share of samples that belong to it."""
    return f"predicted {percent_text(probability)} %, occurs {percent_text(share)} %"


def _name(index: int, names: Sequence[str] | None) -> str:
    return printable(names[index]) if names else str(index)


def percent_text(fraction: float) -> str:
    """Format with one decimal, or with two digits if that is too coarse."""
    return f"{100 * fraction:{'.1f' if fraction >= 0.01 or fraction == 0 else '.2g'}}"


def points_text(fraction: float) -> str:
    """Format with one decimal, or with two digits if it would be 0.0 otherwise."""
    return f"{100 * fraction:{'.1f' if fraction >= 5e-4 or fraction == 0 else '.2g'}}"


def p_text(value: float) -> str:
    """Format a p-value for a table."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _p(value: float, significant: bool, draws: int) -> str:
    """Format a p-value; that of data more extreme than all draws is only known to be at most 1 / (draws + 1)."""
    sign = "≤" if value * (draws + 1) < 1.001 else "="
    text = "p < 0.001" if value < 0.001 else f"p {sign} {value:.3f}" if value < 0.1 else f"p = {value:.2f}"
    two_tests = value <= SIGNIFICANCE and not significant
    return f"{text}, above {SIGNIFICANCE / 2:g}, the limit for two tests" if two_tests else text
