"""The risk-coverage curve: the error among the most confident samples, by their share.

With N samples and coverage c, the c N most confident samples are answered, and the others are left to somebody else.
Samples of equal confidence count as in random order, as in :func:`~dualfocal.metrics.aurc`, the mean of the curve. So
the curve is defined at every coverage: the expected number of errors is linear within a group of equal confidences.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics._sorting import tie_groups

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve of a set of samples.

    Attributes:
        mass: number of samples (sum of weights) up to each distinct confidence, highest confidence first; from 0.
        wrong: number of wrong samples (sum of weights) among them; from 0.
        confidence: the distinct confidences; one fewer than ``mass``.

    >>> curve = RiskCoverage.from_uncertainty(torch.tensor([1.0, 4.0, 2.0, 2.5]), torch.tensor([1, 0, 1, 0]) == 1)
    >>> curve.risk(0.5), curve.risk(1.0), curve.threshold(0.5)
    (0.0, 0.5, 0.5)
    """

    mass: Floats
    wrong: Floats
    confidence: Floats

    @classmethod
    def from_uncertainty(cls, uncertainty: Tensor, right: Tensor, weight: Tensor | None = None) -> Self:
        """Sort samples by their uncertainty.

        Args:
            uncertainty: ``(N,)``, 1 / confidence of the predicted class.
            right: ``(N,)`` bool, whether the prediction is right.
            weight: ``(N,)`` weights of the samples (None: all count once).
        """
        order = torch.from_numpy(np.argsort(uncertainty.cpu().numpy()))
        ordered = uncertainty.cpu()[order]
        group = tie_groups(ordered)
        last = torch.cat([group[1:] != group[:-1], torch.ones(1, dtype=torch.bool)])
        weights = torch.ones(len(order), dtype=torch.float64) if weight is None else weight.cpu()[order]
        mass, wrong = weights.cumsum(0)[last], (weights * ~right.cpu()[order]).cumsum(0)[last]
        start = np.zeros(1)
        return cls(
            np.concatenate([start, mass.numpy()]), np.concatenate([start, wrong.numpy()]), 1 / ordered[last].numpy()
        )

    def risk(self, coverage: float) -> float:
        """Return the error rate among the most confident samples; ``coverage`` is their share, above 0, up to 1."""
        return float(self.risks(np.array([coverage]))[0])

    def risks(self, coverage: Floats) -> Floats:
        """Return the error rates for several coverages.

        Raises:
            ValueError: a coverage is not above 0 and at most 1.
        """
        if not bool(((coverage > 0) & (coverage <= 1)).all()):
            raise ValueError(f"coverage must be above 0 and at most 1, got {coverage.tolist()}")
        samples = coverage * self.mass[-1]
        risks: Floats = np.interp(samples, self.mass, self.wrong) / samples
        return risks

    def threshold(self, coverage: float) -> float:
        """Return the confidence of the last sample that is answered."""
        index = np.searchsorted(self.mass[1:], coverage * self.mass[-1] * (1 - 1e-12))
        return float(self.confidence[min(int(index), len(self.confidence) - 1)])
