"""Cross-entropy with the maximum mean calibration error of the batch: Kumar, Sarawagi, Jain, ICML 2018."""

import torch
from torch import Tensor

from dualfocal._tensors import check_number
from dualfocal.losses._common import Flat, flatten, reduce, weight_rows
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.cross_entropy import cross_entropy_rows


def mmce_loss(
    logits: Tensor,
    target: Tensor,
    strength: float = 2.0,
    *,
    weighted: bool = True,
    as_published: bool = False,
    width: float = 0.4,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy plus a kernel calibration error, L = -log p_k + strength * MMCE(batch).

    With r the top-1 confidence, k(a, b) = exp(-|a - b| / width), c and i the correct and incorrect rows:

        MMCE_w^2 = mean_cc (1 - r)(1 - r') k + mean_ii r r' k - 2 mean_ci (1 - r) r' k     (``weighted``)
        MMCE_m   = sum (c - r)(c' - r') k / B^2                                            (otherwise; no root)

    MMCE_w is 0 when all rows are correct or all wrong. It belongs to the whole batch: each kept row carries the same
    penalty, so the sum is B * (mean cross-entropy + strength * MMCE), and the losses of split batches do not add up.
    It takes memory quadratic in the number of rows.

    Args:
        logits: as :func:`~dualfocal.losses.cross_entropy_loss`.
        target: likewise; with class probabilities y a row is correct to the degree y[argmax].
        strength: factor of the penalty, at least 0; 2 in the paper's tables.
        weighted: which of the two forms.
        as_published: multiply the three means once more by 1/m^2, 1/n^2 and 1/(mn), as the public implementations
            do; on a batch of 128 normal logits the penalty is then about a tenth.
        width: of the Laplacian kernel.
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.cross_entropy_loss`.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    >>> mmce_loss(logits, torch.tensor([0, 2]))
    tensor(2.6489)
    """
    _check(strength, width)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    z = flat.z
    penalty = _mmce(flat, z, weighted, as_published, width)
    rows = cross_entropy_rows(flat, z)
    return reduce(rows + weight_rows((strength * penalty).expand_as(rows), flat), flat, reduction)


def _mmce(flat: Flat, z: Tensor, weighted: bool, as_published: bool, width: float) -> Tensor:
    top = z.argmax(1, keepdim=True)
    r = z.softmax(1).gather(1, top)[:, 0]
    correct = flat.one_hot.gather(1, top)[:, 0]
    kept = torch.ones_like(correct) if flat.keep is None else flat.keep.to(correct.dtype)
    kernel = (-(r[:, None] - r).abs() / width).exp()

    def pairs(left: Tensor, right: Tensor) -> Tensor:
        return (left[:, None] * right * kernel).sum()

    if not weighted:
        gap = (correct - r) * kept
        return pairs(gap, gap) / kept.sum().square().clamp_min(1)
    correct, wrong = correct * kept, (1 - correct) * kept
    m, n = correct.sum(), wrong.sum()
    under, over = correct * (1 - r), wrong * r

    def mean(left: Tensor, right: Tensor, count: Tensor) -> Tensor:
        value = pairs(left, right) / count.clamp_min(torch.finfo(count.dtype).tiny)
        return value / (count + 1e-5) if as_published else value

    square = mean(under, under, m * m) + mean(over, over, n * n) - 2 * mean(under, over, m * n)
    # A squared norm, which rounding can make negative.
    return torch.where(m * n > 0, (square.clamp_min(0) + 1e-10).sqrt(), 0.0)


class MMCELoss(ClassificationLoss):
    """Module form of :func:`mmce_loss`."""

    function = staticmethod(mmce_loss)
    per_sample = False

    def __init__(
        self,
        strength: float = 2.0,
        *,
        weighted: bool = True,
        as_published: bool = False,
        width: float = 0.4,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check(strength, width)
        self.set_options(strength=strength, weighted=weighted, as_published=as_published, width=width)


def _check(strength: float, width: float) -> None:
    check_number("strength", strength)
    check_number("width", width, 1e-6)
