"""How much the clusters of the samples matter."""

from dataclasses import dataclass

from dualfocal.tables import quantity

ENOUGH_CLUSTERS = 40  # effective clusters; with fewer, tests and intervals are not reliable
NEGLIGIBLE = 1.05  # design effects below this one hardly matter


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
