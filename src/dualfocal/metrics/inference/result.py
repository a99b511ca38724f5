"""The result of statistical inference: noise floors, tests, confidence interval and smallest detectable error."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from torch import Tensor

from dualfocal.metrics.inference.classwise import ClasswiseTest
from dualfocal.metrics.inference.cluster_summary import ClusterSummary
from dualfocal.metrics.inference.holm import holm


@dataclass(frozen=True)
class Floor:
    """Noise floor of a metric: its value for a perfectly calibrated model with the same confidences, by chance."""

    mean: float
    q95: float  # the 95 % quantile


@dataclass(frozen=True)
class Inference:
    """Noise floors, test, confidence interval and smallest detectable error of an evaluation.

    See :mod:`dualfocal.metrics.inference.top_label` for how they are computed.

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
        """P-value of the hypothesis that confidences and class probabilities are calibrated."""
        return min(self.adjusted)

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


def noise_floor(errors: Tensor) -> Floor:
    """Summarise the errors of calibrated draws."""
    return Floor(float(errors.mean()), float(errors.quantile(0.95)))
