"""Reliability curves without bins (CORP): isotonic regression of correctness on confidence.

Dimitriadis, Gneiting and Jordan, *Stable reliability diagrams for probabilistic classifiers*, PNAS 2021.
"""

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dualfocal.checks import check_count, check_level
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.inference_result import Floor
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import scan

Floats = NDArray[np.float64]

DIGITS = 10  # confidences that differ by rounding only are equal
POINTS = 201  # points of the band, evenly spaced from the lowest to the highest confidence


@dataclass(frozen=True, eq=False)  # == of arrays is not a bool
class Corp:
    """Result of :func:`corp`: reliability curve, consistency band and decomposition of the Brier score.

    The score is the Brier score of the predicted class, mean (confidence - correct)^2 = ``mcb - dsc + unc``. ``mcb``
    (miscalibration) is how much the isotonic fit improves the score, ``dsc`` (discrimination) how much better the fit
    is than a constant, and ``unc`` (uncertainty) the score of that constant.
    """

    confidence: Floats  # (U,) distinct confidences, ascending
    count: NDArray[np.int64]  # (U,) samples with each confidence
    recalibrated: Floats  # (U,) isotonic fit of correctness, non-decreasing
    band_at: Floats  # (P,) confidences at which the band is computed
    low: Floats  # (P,) lower end of the consistency band
    high: Floats  # (P,) upper end
    level: float  # pointwise coverage of the band
    score: float
    mcb: float
    dsc: float
    unc: float
    mcb_floor: Floor  # noise floor of mcb: its value for a calibrated model, by chance
    draws: int
    seed: int
    positive: bool = False  # whether binary="positive": the probability of class 1 is scored

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.count.sum())


def corp(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    level: float = 0.9,
    draws: int = 500,
    seed: int = 0,
    **options: Unpack[SampleOptions],
) -> Corp:
    """Compute the CORP reliability curve of the predicted class, its consistency band, and MCB, DSC and UNC.

    The band comes from consistency resampling: outcomes are drawn ``draws`` times from the model's own confidences, and
    the curve is fitted to each draw, with linear interpolation between confidences. At each point, the band contains
    the curve of a calibrated model with probability ``level``; it does not cover the whole curve at once.

    Args:
        logits: see :func:`~dualfocal.metrics.ece`.
        target: see :func:`~dualfocal.metrics.ece`.
        level: pointwise coverage of the band.
        draws: number of draws, at least 100.
        seed: seed of the draws.
        **options: see :func:`~dualfocal.metrics.ece`; without ``clusters`` and ``sample_weight``.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> curve = corp(logits, target, draws=100)
    >>> round(curve.mcb, 3), curve.mcb_floor.q95 < 0.01
    (0.062, True)
    """
    check_level(level)
    check_count("draws", draws, 100)
    samples = as_samples(logits, target, options)
    if samples.weight is not None or samples.cluster is not None:
        raise ValueError("corp is for independent samples of equal weight: leave out sample_weight and clusters")
    stats = scan(samples)
    confidence, index, count = np.unique(stats.confidence.round(DIGITS), return_inverse=True, return_counts=True)
    hits = np.bincount(index, stats.correct)
    recalibrated = isotonic(hits, count)

    at = np.linspace(confidence[0], confidence[-1], POINTS)
    rng = np.random.default_rng(seed)
    curves, gains = np.empty((draws, POINTS)), np.empty(draws)
    for i in range(draws):
        drawn = rng.binomial(count, confidence)
        curve = isotonic(drawn, count)
        curves[i] = np.interp(at, confidence, curve)
        gains[i] = _score(confidence, drawn, count) - _score(curve, drawn, count)
    low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)

    score, recalibrated_score = _score(confidence, hits, count), _score(recalibrated, hits, count)
    unc = _score(np.full_like(confidence, hits.sum() / count.sum()), hits, count)
    return Corp(
        confidence=confidence,
        count=count,
        recalibrated=recalibrated,
        band_at=at,
        low=low,
        high=high,
        level=level,
        score=score,
        mcb=score - recalibrated_score,
        dsc=unc - recalibrated_score,
        unc=unc,
        mcb_floor=Floor(float(gains.mean()), float(np.quantile(gains, 0.95))),
        draws=draws,
        seed=seed,
        positive=samples.positive and not samples.confidence_only,
    )


def isotonic(hits: NDArray[Any], count: NDArray[np.int64]) -> Floats:
    """Fit a non-decreasing sequence to ``hits / count`` by least squares, weighted by ``count``.

    >>> isotonic(np.array([1, 0, 3]), np.array([1, 3, 3]))
    array([0.25, 0.25, 1.  ])
    """
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(hits / count, weights=count.astype(np.float64)).x)


def _score(p: Floats, hits: NDArray[Any], count: NDArray[np.int64]) -> float:
    """Return the mean of (p - correct)^2, where ``hits`` of the ``count`` samples with each p are correct."""
    return float((hits * (1 - p) ** 2 + (count - hits) * p**2).sum()) / int(count.sum())
