"""How much information weighted samples carry."""

from dataclasses import dataclass

from dualfocal.tables import quantity

ENOUGH_SAMPLES = 100  # effective samples; with fewer, tests and intervals are not reliable
LARGE_SHARE = 0.05  # of the sum of all weights; a sample with more decides too much


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
