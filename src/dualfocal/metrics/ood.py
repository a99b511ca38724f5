"""Telling inputs of another distribution by the model's own uncertainty."""

import torch
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal._tensors import wide_dtype
from dualfocal.metrics._ranked import runs
from dualfocal.metrics.rows import Array, as_rows, as_tensor
from dualfocal.metrics.scan import scan

SCORES = ("entropy", "max_prob")


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
    check_choice("score", score, SCORES)
    known, foreign = (_uncertainty(values, input, score) for values in (logits, ood_logits))
    if known.device != foreign.device:
        raise ValueError(f"logits are on {known.device}, ood_logits on {foreign.device}: move one to the other")
    ordered, order = torch.cat([known, foreign]).sort()
    rank = runs(ordered)
    is_known = order < len(known)
    known, foreign = rank[is_known], rank[~is_known]  # ascending both
    below, up_to = (torch.searchsorted(known, foreign, right=right).sum() for right in (False, True))
    return float(below + up_to) / (2 * len(known) * len(foreign))


def _uncertainty(values: Array, input: str, score: str) -> Tensor:
    """One number per sample, larger for less certain."""
    tensor = as_tensor("logits", values)
    if tensor.ndim < 2:
        raise ValueError(f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(tensor.shape)}")
    labels = torch.zeros(tensor.shape[:1] + tensor.shape[2:], dtype=torch.int64, device=tensor.device)
    rows = as_rows(tensor, labels, input=input)
    scan(rows)  # for its checks
    step = max(1, (1 << 20) // rows.num_classes)
    of_part = _of_logits if input == "logits" else _of_probabilities
    wide = wide_dtype(rows.values)
    return torch.cat([of_part(part.to(wide), score) for part in torch.split(rows.values, step)])


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
