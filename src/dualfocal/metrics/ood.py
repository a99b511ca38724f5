"""Telling inputs of another distribution by the model's own uncertainty."""

import torch
from torch import Tensor

from dualfocal.losses._common import check_choice
from dualfocal.metrics._rows import Array, as_rows, as_tensor
from dualfocal.metrics._scan import scan

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
    ordered = known.sort().values
    below = torch.searchsorted(ordered, foreign).double()
    up_to = torch.searchsorted(ordered, foreign, right=True).double()
    return float((below + up_to).mean() / (2 * len(known)))


def _uncertainty(values: Array, input: str, score: str) -> Tensor:
    """One number per sample, larger for less certain."""
    tensor = as_tensor("logits", values)
    if tensor.ndim < 2:
        raise ValueError(f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(tensor.shape)}")
    labels = torch.zeros(tensor.shape[:1] + tensor.shape[2:], dtype=torch.int64, device=tensor.device)
    rows = as_rows(tensor, labels, input=input)
    uncertainty = scan(rows).uncertainty  # with its checks
    if score == "max_prob":
        return uncertainty
    parts = []
    for start in range(0, len(rows), step := max(1, (1 << 20) // rows.num_classes)):
        part = rows.values[start : start + step].double()
        log_p = part.log_softmax(1) if input == "logits" else part.log()
        parts.append(-(log_p.exp() * log_p).nan_to_num_(0.0).sum(1))  # 0 log 0 is 0
    return torch.cat(parts)
