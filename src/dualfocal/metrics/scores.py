"""Scores without bins: error rate, negative log-likelihood, Brier score, AURC, out-of-distribution AUROC."""

from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.checks import check_choice
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.auroc import placements
from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.ranking import TIE, RiskCoverage
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import scan

LEAST = 1e-300
OOD_SCORES = ("entropy", "max_prob")


class BrierDecomposition(NamedTuple):
    """Brier score and its parts, ``score = calibration + refinement + within_bins``, summed over classes."""

    score: float
    calibration: float  # sum_b |B|/N (mean probability - frequency)^2: recalibrating the bins would remove it
    refinement: float  # sum_b |B|/N frequency (1 - frequency): recalibration does not change it
    within_bins: float  # rest: variance of the probabilities within bins, and their covariance with the outcome


def error_rate(
    logits: Array | Samples,
    target: Array | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    """Error rate: the share of samples whose predicted class is not the target. Ties go to the first class.

    Takes the arguments of :func:`~dualfocal.metrics.ece`.

    >>> import torch
    >>> error_rate(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))
    0.5
    """
    stats = scan(as_samples(logits, target, options))
    return 1 - stats.mean(stats.right)


def nll(
    logits: Array | Samples,
    target: Array | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Mean negative log-likelihood of the targets, in nats; infinite if a target has probability 0.

    $$\text{NLL} = -\operatorname{mean} \log p_k$$

    The paper's tables print it times 100. Takes the arguments of :func:`~dualfocal.metrics.ece`.

    >>> import torch
    >>> round(nll(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])), 4)
    1.6809
    """
    samples = as_samples(logits, target, options)
    samples.check_classes("nll")
    stats = scan(samples, scores=True)
    return stats.mean(stats.nll)


def brier_score(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    root: bool = False,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Brier score, from 0 to 2; with ``root`` its square root (RBS of Gruber et al.).

    $$\text{BS} = \operatorname{mean} \sum_c (p_c - y_c)^2$$

    The paper's table "RBS" prints the score without the root. With ``binary="positive"`` it is the mean of
    $(p_1 - y)^2$, as in scikit-learn. The other arguments are those of :func:`~dualfocal.metrics.ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    >>> round(brier_score(probs, torch.tensor([0, 1]), input="probs"), 3)
    0.05
    """
    samples = as_samples(logits, target, options)
    samples.check_classes("brier_score")
    stats = scan(samples, scores=True)
    score = stats.mean(stats.brier)
    return float(score**0.5) if root else score


def brier_decomposition(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    **options: Unpack[SampleOptions],
) -> BrierDecomposition:
    """Decompose the Brier score into calibration and refinement, over the classwise bins.

    Takes the arguments of :func:`~dualfocal.metrics.ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]])
    >>> parts = brier_decomposition(probs, torch.tensor([0, 1, 1, 1]), input="probs")
    >>> [round(part, 3) for part in parts[:3]]
    [0.42, 0.17, 0.25]
    """
    samples = as_samples(logits, target, options)
    samples.check_classes("brier_decomposition")
    stats = scan(samples, num_bins=num_bins, scores=True, classwise=True)
    assert stats.classes is not None
    return decompose(stats.mean(stats.brier), stats.classes.sum(1))


def aurc(
    logits: Array | Samples,
    target: Array | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Area under the risk-coverage curve: mean over k of the error among the k most confident samples.

    $$\text{AURC} = \frac{1}{N} \sum_{k=1}^{N} \text{error of the } k \text{ most confident}$$

    Samples with equal confidences count as if they were in random order. With ``sample_weight``, it is the weighted
    mean over all samples of the weighted error among those that are at least as confident. Takes the arguments of
    :func:`~dualfocal.metrics.ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> round(aurc(probs, torch.tensor([0, 0, 1]), input="probs"), 4)
    0.1111
    """
    stats = scan(as_samples(logits, target, options))
    return RiskCoverage.from_confidence(stats.certainty, stats.right, stats.weight).area()


def ood_auroc(logits: Array, ood_logits: Array, *, input: str | None = None, score: str = "entropy") -> float:
    """AUROC of out-of-distribution detection by the uncertainty of the predictions.

    It is the probability that an out-of-distribution sample is more uncertain than an in-distribution sample; ties
    count 1/2.

    Args:
        logits: predictions for in-distribution samples, ``(N, C)`` or ``(N, C, d1, ...)``.
        ood_logits: predictions for out-of-distribution samples.
        input: ``"logits"`` or ``"probs"``, see :meth:`~dualfocal.metrics.Samples.from_arrays`.
        score: the uncertainty: ``"entropy"`` of the predicted probabilities, or ``"max_prob"``, one minus the
            confidence. The paper does not say which one it used.

    Returns:
        The area under the ROC curve: 0.5 for no separation, 1 for perfect.

    >>> import torch
    >>> known, ood = torch.tensor([[4.0, 0.0], [3.0, 0.0]]), torch.tensor([[0.5, 0.0], [3.0, 0.0]])
    >>> ood_auroc(known, ood)
    0.875
    """
    check_choice("score", score, OOD_SCORES)
    known, ood = (_uncertainty(values, input, score) for values in (logits, ood_logits))
    if known.device != ood.device:
        raise ValueError(f"logits are on {known.device}, ood_logits are on {ood.device}: move one to the other")
    positive = torch.arange(len(known) + len(ood), device=ood.device) >= len(known)
    return placements(tied_ranks(torch.cat([known, ood])), positive).value


def decompose(score: float, bins: BinStats) -> BrierDecomposition:
    """Compute calibration and refinement of a Brier score: from the bins of all classes, or of class 1 alone."""
    total = float(bins.count.reshape(-1, bins.num_bins)[0].sum())
    full = np.maximum(bins.count, LEAST)
    calibration = float((bins.gap**2 / full).sum()) / total
    refinement = float((bins.correct * (1 - bins.correct / full)).sum()) / total
    return BrierDecomposition(score, calibration, refinement, score - calibration - refinement)


def uncertainty(samples: Samples, score: str) -> Tensor:
    """Return an uncertainty of each row: its ``"entropy"``, or with ``"max_prob"`` one that falls with the confidence.

    The values of the samples must have been checked by :func:`~dualfocal.metrics.scan.scan`.
    """
    of_values = _uncertainty_of_logits if samples.input == "logits" else _uncertainty_of_probabilities
    parts = torch.split(samples.values, max(1, (1 << 20) // samples.num_classes))
    return torch.cat([of_values(part.to(wide_dtype(part)), score) for part in parts])


def tied_ranks(values: Tensor) -> Tensor:
    """Number values in ascending order; values that differ by rounding only have equal ranks."""
    ordered, order = values.sort()
    step = ordered[1:] - ordered[:-1]
    new = step > (TIE * ordered[1:].abs() if ordered.dtype == torch.float64 else 0.0)
    return torch.empty_like(order).index_copy_(0, order, torch.cat([new.new_zeros(1), new]).cumsum(0))


def _uncertainty(values: Array, input: str | None, score: str) -> Tensor:
    """Check predictions without labels, and return the uncertainty of each sample."""
    tensor = as_tensor("logits", values)
    if tensor.ndim < 2:
        raise ValueError(f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(tensor.shape)}")
    samples = Samples.from_arrays(tensor, None, input=input)
    scan(samples)  # checks the values
    return uncertainty(samples, score)


def _uncertainty_of_logits(z: Tensor, score: str) -> Tensor:
    """Return the entropy, or the odds against the prediction, with full relative precision near 0."""
    peak = z.max(1, keepdim=True)
    z = z - peak.values
    rest = z.exp().scatter(1, peak.indices, 0.0).sum(1, keepdim=True)
    if score == "max_prob":
        return rest[:, 0]
    log_p = z - rest.log1p()
    return -(log_p.exp() * log_p).nan_to_num_(0.0).sum(1)  # 0 log 0 is 0


def _uncertainty_of_probabilities(p: Tensor, score: str) -> Tensor:
    if score == "max_prob":
        return 1 / p.amax(1).clamp_max(1.0)
    return -(p * p.log()).nan_to_num_(0.0).sum(1)
