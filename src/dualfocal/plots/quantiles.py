"""Bins with equally many samples, for reliability diagrams of models whose confidences lie close together."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics import BinStats, Corp, Evaluation, corp
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan

Floats = NDArray[np.float64]

ROUNDING = 1e-9  # of sums of weights, relative to their total


class Outcomes(NamedTuple):
    """What diagrams need that an evaluation does not keep."""

    confidence: Floats  # (N,)
    correct: NDArray[np.bool_]  # (N,)
    weight: Floats | None = None  # (N,)

    @classmethod
    def from_samples(cls, samples: Samples) -> Self:
        """Return the confidence of each sample, and whether its prediction is right."""
        stats = scan(samples)
        return cls(stats.confidence, stats.correct, stats.weight)

    def corp(self, *, positive: bool, seed: int = 0) -> Corp:
        """Return the CORP curve; its band is for independent samples of equal weight."""
        curve = corp(self.confidence, self.correct.astype(np.int64), input="probs", binary="positive", seed=seed)
        return replace(curve, positive=positive)

    def quantile_edges(self, num_bins: int) -> Floats:
        """Return the edges of bins ``(lo, hi]`` of equal mass, from 0 to 1; equal confidences share a bin.

        >>> Outcomes(np.array([0.1, 0.2, 0.2, 0.2, 0.3, 0.9]), np.ones(6, bool)).quantile_edges(3)
        array([0. , 0.2, 0.3, 1. ])
        """
        values, index = np.unique(self.confidence, return_inverse=True)
        mass = np.bincount(index, weights=self.weight)
        before, shares = mass.cumsum() - mass, np.arange(1, num_bins) / num_bins
        inner = np.searchsorted(before, mass.sum() * (shares + ROUNDING), side="right") - 1
        return np.concatenate([[0.0], values[inner], [1.0]])


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantileEvaluation(Evaluation):
    """An evaluation whose ``bins`` hold equally many samples: those of its adaptive ECE."""

    outcomes: Outcomes

    @classmethod
    def of(cls, evaluation: Evaluation, outcomes: Outcomes) -> Self:
        """Return the evaluation with these bins."""
        confidence, correct, weight = outcomes
        edges = outcomes.quantile_edges(evaluation.num_bins)
        bins = BinStats.from_confidence(confidence, correct, edges=edges, sample_weight=weight)
        # The outer bins end at the lowest and the highest confidence.
        shown = replace(bins, edges=edges.clip(confidence.min(), confidence.max()))
        return cls(**{**vars(evaluation), "bins": shown}, outcomes=outcomes)
