"""Scores that need no bins: error, negative log-likelihood, Brier score, area under the risk-coverage curve."""

from typing import NamedTuple

import torch
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal._tensors import wide_dtype
from dualfocal.metrics._ranked import Ranked, runs
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.rows import Array, as_rows, as_tensor
from dualfocal.metrics.scan import scan

OOD_SCORES = ("entropy", "max_prob")


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
    return mean(scan(rows, scores=True).nll, rows.weight)


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
    score = mean(scan(rows, scores=True).brier, rows.weight)
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
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index)
    seen = scan(rows, num_bins=num_bins, scores=True, classwise=True)
    return decompose(mean(seen.brier), seen.classes)


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


def ood_auroc(logits: Array, ood_logits: Array, *, input: str = "logits", score: str = "entropy") -> float:
    """Probability that an out-of-distribution sample looks more uncertain than one of the distribution; ties count 1/2.

    Args:
        logits: predictions for samples of the distribution, ``(N, C)`` or ``(N, C, d1, ...)``.
        ood_logits: predictions for samples that are not of it.
        input: what both hold, ``"logits"`` or ``"probs"``.
        score: the uncertainty, ``"entropy"`` of the distribution or ``"max_prob"``, one minus the confidence. The paper
            does not say which it printed.

    Returns:
        The area under the ROC curve: 0.5 for no separation, 1 for perfect.

    >>> import torch
    >>> known, foreign = torch.tensor([[4.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.5, 0.0], [3.0, 0.0]])
    >>> ood_auroc(known, foreign)
    0.875
    """
    check_choice("score", score, OOD_SCORES)
    known, foreign = (_uncertainty(values, input, score) for values in (logits, ood_logits))
    if known.device != foreign.device:
        raise ValueError(f"logits are on {known.device}, ood_logits on {foreign.device}: move one to the other")
    ordered, order = torch.cat([known, foreign]).sort()
    rank = runs(ordered)
    is_known = order < len(known)
    known, foreign = rank[is_known], rank[~is_known]  # ascending both
    below, up_to = (torch.searchsorted(known, foreign, right=right).sum() for right in (False, True))
    return float(below + up_to) / (2 * len(known) * len(foreign))


def mean(values: Tensor, weight: Tensor | None = None) -> float:
    """Mean, weighted where there are weights."""
    return float(values.mean() if weight is None else (values * weight).sum() / weight.sum())


def decompose(score: float, classes: BinStats) -> BrierDecomposition:
    """Calibration and refinement of the Brier score from the classwise bins."""
    count, gap, frequency = classes.count, classes.gap, classes.accuracy
    total = count[0].sum()
    calibration = float((gap * gap / count).nan_to_num_(0.0).sum() / total)
    refinement = float((count * frequency * (1 - frequency)).nan_to_num_(0.0).sum() / total)
    return BrierDecomposition(score, calibration, refinement, score - calibration - refinement)


def _uncertainty(values: Array, input: str, score: str) -> Tensor:
    """One number per sample, larger for less certain."""
    tensor = as_tensor("logits", values)
    if tensor.ndim < 2:
        raise ValueError(f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(tensor.shape)}")
    labels = torch.zeros(tensor.shape[:1] + tensor.shape[2:], dtype=torch.int64, device=tensor.device)
    rows = as_rows(tensor, labels, input=input)
    scan(rows)  # for its checks
    of_part = _of_logits if input == "logits" else _of_probabilities
    parts = torch.split(rows.values, max(1, (1 << 20) // rows.num_classes))
    return torch.cat([of_part(part.to(wide_dtype(part)), score) for part in parts])


def _of_logits(z: Tensor, score: str) -> Tensor:
    """Entropy, or the odds against the prediction, to the same relative precision however close to 0."""
    peak = z.max(1, keepdim=True)
    z = z - peak.values
    rest = z.exp().scatter(1, peak.indices, 0.0).sum(1, keepdim=True)
    if score == "max_prob":
        return rest[:, 0]
    log_p = z - rest.log1p()
    return -(log_p.exp() * log_p).nan_to_num_(0.0).sum(1)  # 0 log 0 is 0


def _of_probabilities(p: Tensor, score: str) -> Tensor:
    if score == "max_prob":
        return 1 / p.amax(1).clamp_max(1.0)
    return -(p * p.log()).nan_to_num_(0.0).sum(1)
