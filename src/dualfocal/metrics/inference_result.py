"""The result of statistical inference: noise floors, tests, confidence interval and smallest detectable error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dualfocal.tables import quantity

SIGNIFICANCE = 0.05  # of all verdicts
POWER = 0.8  # of the smallest detectable error
ENOUGH_CLUSTERS = 40  # effective clusters; with fewer, tests and intervals are not reliable
NEGLIGIBLE = 1.05  # design effects below this one hardly matter
ENOUGH_SAMPLES = 100  # effective weighted samples; with fewer, tests and intervals are not reliable
LARGE_SHARE = 0.05  # of the sum of all weights; a sample with more decides too much


@dataclass(frozen=True)
class Floor:
    """Noise floor of a metric: its value for a perfectly calibrated model with the same confidences, by chance."""

    mean: float
    q95: float  # the 95 % quantile


@dataclass(frozen=True)
class ClassGap:
    """The mean probability of a class beside the share of samples that belong to it.

    Args:
        index: the class.
        among_predicted: whether only the samples predicted as this class are counted, instead of all samples.
        probability: mean probability of the class.
        share: share of the samples that belong to the class.
        p_value: p-value of the difference, Holm-adjusted for all classes.
    """

    index: int
    among_predicted: bool
    probability: float
    share: float
    p_value: float


@dataclass(frozen=True)
class ClasswiseTest:
    """Result of the class-wise test, see :mod:`dualfocal.metrics.inference`.

    Args:
        p_value: p-value of the hypothesis that the probabilities of all classes are calibrated.
        gaps: the significant differences between probability and share of a class, the largest first, at most ten.
        draws: number of times that all labels were drawn.
    """

    p_value: float
    gaps: tuple[ClassGap, ...]
    draws: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, as fractions."""
        return {"p_value": self.p_value, "gaps": [asdict(gap) for gap in self.gaps], "draws": self.draws}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        return cls(content["p_value"], tuple(ClassGap(**gap) for gap in content["gaps"]), content["draws"])


@dataclass(frozen=True)
class ClusterSummary:
    """How much the clusters of the samples matter.

    Args:
        number: number of clusters.
        effective: effective number of clusters: fewer if a few large clusters, or a few clusters with most of the
            errors, make up most of the noise. Below 40, tests and intervals are not reliable.
        design_effect: variance of the mean of (confidence - correctness), relative to independent samples.

    >>> print(ClusterSummary(number=500, effective=480.0, design_effect=4.0).sentence(num_samples=10_000))
    500 clusters, design effect 4.0: the 10,000 samples carry the information of 2,500 independent ones.
    """

    number: int
    effective: float
    design_effect: float

    @property
    def reliable(self) -> bool:
        """Whether there are enough clusters for tests and intervals."""
        return self.effective >= ENOUGH_CLUSTERS

    @property
    def negligible(self) -> bool:
        """Whether the clusters add hardly any noise: the design effect is printed as 1.0, or below."""
        return self.design_effect < NEGLIGIBLE

    def information(self, num_samples: float) -> float:
        """Return the number of independent samples that would give the same variance, at most ``num_samples``."""
        return num_samples / max(self.design_effect, 1.0)

    def sentence(self, num_samples: int, effective: float | None = None) -> str:
        """Say in words how much information the samples carry, and whether there are enough clusters.

        ``effective`` is the effective sample size of weighted samples.
        """
        independent = round(self.information(num_samples if effective is None else effective))
        samples = f"the {quantity(num_samples, 'sample')}"
        meaning = f"{samples} carry the information of {independent:,} independent ones."
        if self.negligible and effective is None:
            meaning = f"clusters add hardly any noise, and {samples} count as independent."
        text = f"{quantity(self.number, 'cluster')}, design effect {self.design_effect:.1f}: {meaning}"
        if self.reliable:
            return text
        return (
            f"{text} Most of the noise comes from so few clusters that they count as {self.effective:.0f} equal ones, "
            f"fewer than {ENOUGH_CLUSTERS}: p-values and intervals are not reliable."
        )


@dataclass(frozen=True)
class WeightSummary:
    """How much information weighted samples carry.

    Args:
        effective: effective sample size (sum w)^2 / sum w^2: the variance of a weighted mean is that of the mean of so
            many samples, if the weights do not depend on what is averaged. If they depend on the label, the samples can
            carry more or less information than that; tests and intervals allow for it.
        largest: share of the sum of all weights that the sample with the largest weight has.
        by_label: whether the weights depend on the label alone, as under label shift.

    >>> print(WeightSummary(effective=3100.0, largest=0.002, by_label=False).sentence(num_samples=10_000))
    Weighted: the 10,000 samples carry the information of 3,100; the uncertainty of estimated weights is not included.
    """

    effective: float
    largest: float
    by_label: bool

    @property
    def reliable(self) -> bool:
        """Whether there is enough information for tests and intervals, and no sample has a large share of it."""
        return self.effective >= ENOUGH_SAMPLES and self.largest <= LARGE_SHARE

    def sentence(self, num_samples: int) -> str:
        """Say in words how much information the samples carry, and whether it is enough."""
        effective = f"{round(self.effective):,}"
        text = (
            f"Weighted by label: the effective sample size of the {quantity(num_samples, 'sample')} is {effective}"
            if self.by_label
            else f"Weighted: the {quantity(num_samples, 'sample')} carry the information of {effective}"
        )
        text += "; the uncertainty of estimated weights is not included."
        if self.effective < ENOUGH_SAMPLES:
            return f"{text} With fewer than {ENOUGH_SAMPLES}, p-values and intervals are not reliable."
        if not self.reliable:
            return (
                f"{text} One sample has {100 * self.largest:.0f} % of the weight: p-values and intervals are not "
                "reliable."
            )
        return text


@dataclass(frozen=True)
class Inference:
    """Noise floors, test, confidence interval and smallest detectable error of an evaluation.

    See :mod:`dualfocal.metrics.inference` for how they are computed.

    Args:
        floors: the noise floor of each calibration error, by name.
        p_value: p-value of the hypothesis that the model is calibrated.
        debiased_ece: confidence interval of the debiased error.
        level: nominal coverage of the interval.
        detectable: smallest gap between confidence and accuracy, the same in every bin, that the test detects with
            80 % power; infinite if it detects none at this N. The test has 5 % significance, or 2.5 % beside the
            class-wise test.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.
        published: pivotal bootstrap intervals as in the published code, if they were asked for.
        classwise: test of the probabilities of all classes; None with ``binary="positive"``, where ``p_value`` is that
            of the probabilities of class 1.
        clusters: how much the clusters of the samples matter; None if the samples are independent.
    """

    floors: dict[str, Floor]
    p_value: float
    debiased_ece: tuple[float, float]
    level: float
    detectable: float
    draws: int
    seed: int
    published: dict[str, tuple[float, float]] = field(default_factory=dict)
    classwise: ClasswiseTest | None = None
    clusters: ClusterSummary | None = None

    @property
    def adjusted(self) -> list[float]:
        """P-values of the predicted class and, if it was tested, of all classes, Holm-adjusted for the two tests."""
        return holm([self.p_value] if self.classwise is None else [self.p_value, self.classwise.p_value])

    @property
    def joint_p_value(self) -> float:
        """P-value of the hypothesis that confidences and class probabilities are calibrated.

        The test of the confidence gets four fifths of the significance: groups of samples are compared by it.
        """
        if self.classwise is None:
            return self.p_value
        return min(holm([self.p_value, self.classwise.p_value], weights=[4, 1]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, as fractions; values that are not finite are None."""
        result: dict[str, Any] = {
            "floors": {name: asdict(floor) for name, floor in self.floors.items()},
            "p_value": self.p_value,
            "debiased_ece": {"interval": list(self.debiased_ece), "level": self.level},
            "detectable": self.detectable if math.isfinite(self.detectable) else None,
            "draws": self.draws,
            "seed": self.seed,
        }
        if self.classwise is not None:
            result["classwise"] = self.classwise.to_dict()
        if self.clusters is not None:
            result["clusters"] = asdict(self.clusters)
        if self.published:
            result["published_intervals"] = {name: list(ends) for name, ends in self.published.items()}
        return result

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        return cls(
            floors={name: Floor(**floor) for name, floor in content["floors"].items()},
            p_value=content["p_value"],
            debiased_ece=tuple(content["debiased_ece"]["interval"]),
            level=content["debiased_ece"]["level"],
            detectable=math.inf if content["detectable"] is None else content["detectable"],
            draws=content["draws"],
            seed=content["seed"],
            published={name: tuple(ends) for name, ends in content.get("published_intervals", {}).items()},
            classwise=ClasswiseTest.from_dict(content["classwise"]) if "classwise" in content else None,
            clusters=ClusterSummary(**content["clusters"]) if "clusters" in content else None,
        )


def holm(p_values: Sequence[float], weights: Sequence[int] | None = None) -> list[float]:
    """Adjust p-values for multiple tests by Holm's method, which controls the family-wise error rate.

    Args:
        p_values: p-value of each test.
        weights: share of the significance that each test gets, relative to the others (None: equal shares).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    >>> holm([0.02, 0.01, 0.04], weights=[2, 1, 1])  # the first test gets half of the significance
    [0.04, 0.04, 0.04]
    """
    shares = [1] * len(p_values) if weights is None else weights
    adjusted, largest, rest = [0.0] * len(p_values), 0.0, sum(shares)
    for i in sorted(range(len(p_values)), key=lambda i: p_values[i] / shares[i]):
        largest = max(largest, min(1.0, rest * p_values[i] / shares[i]))
        adjusted[i] = largest
        rest -= shares[i]
    return adjusted
