"""Scores that need no bins: error, negative log-likelihood, Brier score, area under the risk-coverage curve."""

from typing import NamedTuple

from torch import Tensor

from dualfocal._checks import check_count
from dualfocal.metrics._ranked import Ranked
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.rows import Array, as_rows
from dualfocal.metrics.scan import scan


class BrierDecomposition(NamedTuple):
    """``score = calibration + refinement + within_bins``, summed over classes."""

    score: float
    calibration: float  # sum_b |B|/N (mean probability - frequency)^2: what a recalibration of the bins would save
    refinement: float  # sum_b |B|/N frequency (1 - frequency): what stays, and only better features lower
    within_bins: float  # what bins blur: spread of the probabilities within them, less its covariance with the outcome


def error_rate(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Share of samples whose predicted class, the first of the largest, is not the target. See :func:`ece`.

    >>> import torch
    >>> error_rate(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    0.5
    """
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, sample_weight=sample_weight)
    return mean((~scan(rows).right).double(), rows.weight)


def nll(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Mean negative log-likelihood of the targets, in nats; infinite if a target has probability 0. See :func:`ece`.

    The paper's tables show it times 100.

    >>> import torch
    >>> round(nll(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])), 4)
    1.6809
    """
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, sample_weight=sample_weight)
    return mean(_wanted(scan(rows, scores=True).nll), rows.weight)


def brier_score(
    logits: Array,
    target: Array,
    *,
    root: bool = False,
    input: str = "logits",
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
) -> float:
    """Brier score, mean of sum_c (p_c - y_c)^2, from 0 to 2; with ``root`` its square root, Gruber's RBS.

    The paper's table "RBS" shows the score without the root. With ``binary="positive"`` it is the score of that one
    event, mean of (p_1 - y)^2, as scikit-learn's. See :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> round(brier_score(probs, torch.tensor([0, 1]), input="probs"), 3)
    0.05
    """
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, sample_weight=sample_weight)
    score = mean(_wanted(scan(rows, scores=True).brier), rows.weight)
    return float(score**0.5) if root else score


def brier_decomposition(
    logits: Array, target: Array, *, input: str = "logits", num_bins: int = 15, ignore_index: int = -100
) -> BrierDecomposition:
    """The Brier score as a calibration and a refinement part, over the classwise bins. See :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    >>> parts = brier_decomposition(probs, torch.tensor([0, 1, 1, 1]), input="probs")
    >>> [round(part, 3) for part in parts[:3]]
    [0.42, 0.17, 0.25]
    """
    check_count("num_bins", num_bins)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index)
    seen = scan(rows, num_bins=num_bins, scores=True, classwise=True)
    assert seen.classes is not None
    return decompose(mean(_wanted(seen.brier), None), seen.classes)


def aurc(
    logits: Array, target: Array, *, input: str = "logits", ignore_index: int = -100, binary: str | None = None
) -> float:
    """Area under the risk-coverage curve: mean over k of the error among the k most confident samples.

    Equal confidences count as if in random order. See :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> round(aurc(probs, torch.tensor([0, 0, 1]), input="probs"), 4)
    0.1111
    """
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary)
    seen = scan(rows)
    return Ranked.by_certainty(seen.uncertainty, seen.right).aurc()


def mean(values: Tensor, weight: Tensor | None) -> float:
    """Mean, weighted where there are weights."""
    return float(values.mean() if weight is None else (values * weight).sum() / weight.sum())


def decompose(score: float, classes: BinStats) -> BrierDecomposition:
    """Calibration and refinement of the Brier score from the classwise bins."""
    count, gap, frequency = classes.count, classes.gap, classes.accuracy
    total = count[0].sum()
    calibration = float((gap * gap / count).nan_to_num_(0.0).sum() / total)
    refinement = float((count * frequency * (1 - frequency)).nan_to_num_(0.0).sum() / total)
    return BrierDecomposition(score, calibration, refinement, score - calibration - refinement)


def _wanted(values: Tensor | None) -> Tensor:
    assert values is not None
    return values
