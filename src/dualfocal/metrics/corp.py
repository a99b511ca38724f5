"""Reliability without bins: CORP, isotonic regression of correctness on confidence.

Dimitriadis, Gneiting and Jordan, *Stable reliability diagrams for probabilistic classifiers*, PNAS 2021.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal._checks import check_count, check_level
from dualfocal.metrics.bins import ONE
from dualfocal.metrics.inference import Floor
from dualfocal.metrics.rows import Array, as_rows
from dualfocal.metrics.scan import scan

Floats = NDArray[np.float64]

POINTS = 201  # where the band is computed, evenly from the lowest confidence to the highest


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Corp:
    """The recalibrated confidence, where it would lie for a calibrated model, and what that does to the Brier score.

    The score is that of the predicted class, mean (confidence - correct)^2 = ``mcb - dsc + unc``: what the isotonic fit
    would win (miscalibration), what that fit wins over a constant (discrimination), and the constant's own score
    (uncertainty).
    """

    confidence: Floats  # (U,) the different confidences, ascending
    count: NDArray[np.int64]  # (U,) samples of each
    recalibrated: Floats  # (U,) non-decreasing: the least-squares fit to correctness
    band_at: Floats  # (P,) confidences
    low: Floats  # (P,) ends of the consistency band there
    high: Floats
    level: float  # of the band, at each point for itself
    score: float
    mcb: float
    dsc: float
    unc: float
    mcb_floor: Floor  # what the fit would win from a calibrated model by chance
    draws: int
    seed: int

    @property
    def num_samples(self) -> int:
        """How many there are."""
        return int(self.count.sum())


def corp(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    ignore_index: int = -100,
    binary: str | None = None,
    level: float = 0.9,
    draws: int = 500,
    seed: int = 0,
) -> Corp:
    """The CORP reliability curve of the predicted class, its consistency band, and MCB, DSC, UNC.

    The band is that of consistency resampling: outcomes are drawn with the model's own confidences, ``draws`` times,
    and each time the curve is fitted anew; between two confidences curves are straight. It holds ``level`` of a
    calibrated model's curves at each point, not along the whole curve at once.

    Args:
        logits: as :func:`~dualfocal.metrics.ece`.
        target: likewise.
        input: likewise.
        ignore_index: likewise.
        binary: likewise.
        level: of the band.
        draws: of outcomes, at least 100.
        seed: of the draws.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> found = corp(logits, target, draws=100)
    >>> round(found.mcb, 3), found.mcb_floor.q95 < 0.01
    (0.062, True)
    """
    check_level(level)
    check_count("draws", draws, 100)
    seen = scan(as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary))
    units, place = torch.unique(seen.confidence.cpu(), return_inverse=True)
    count = torch.bincount(place).numpy()
    hits = torch.bincount(place, weights=seen.correct.cpu().double()).numpy()
    confidence = np.minimum(units.numpy() / ONE, 1.0)
    recalibrated = isotonic(hits, count)

    at = np.linspace(confidence[0], confidence[-1], POINTS)
    rng = np.random.default_rng(seed)
    curves, wins = np.empty((draws, POINTS)), np.empty(draws)
    for i in range(draws):
        drawn = rng.binomial(count, confidence)
        curve = isotonic(drawn, count)
        curves[i] = np.interp(at, confidence, curve)
        wins[i] = _score(confidence, drawn, count) - _score(curve, drawn, count)
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
        mcb_floor=Floor(float(wins.mean()), float(np.quantile(wins, 0.95))),
        draws=draws,
        seed=seed,
    )


def isotonic(hits: NDArray[Any], count: NDArray[np.int64]) -> Floats:
    """The non-decreasing sequence nearest to ``hits / count``, squares weighted by ``count`` (pool adjacent violators).

    >>> isotonic(np.array([1, 0, 3]), np.array([1, 3, 3]))
    array([0.25, 0.25, 1.  ])
    """
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(hits / count, weights=count.astype(np.float64)).x)


def _score(p: Floats, hits: NDArray[Any], count: NDArray[np.int64]) -> float:
    """Mean (p - correct)^2, where of ``count`` samples with one p ``hits`` are correct."""
    return float((hits * (1 - p) ** 2 + (count - hits) * p**2).sum()) / int(count.sum())
