"""Cross-entropy plus the maximum mean calibration error (MMCE) of the batch: Kumar, Sarawagi, Jain, ICML 2018."""

import torch
from torch import Tensor

from dualfocal._tensors import Weight, check_number
from dualfocal.losses._flat import Flat, flatten, reduce, weight_rows
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
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy plus a kernel calibration error, with weight ``strength``.

    $$L = -\log p_k + \text{strength} \cdot \text{MMCE}$$

    With $r$ the top-1 confidence, $k(r, r') = \exp(-|r - r'| / \text{width})$, and c and i the correct and incorrect
    rows, this is MMCE_w if ``weighted``, else MMCE_m, which has no root:

    $$\text{MMCE}_w^2 = \operatorname{mean}_{cc} (1 - r)(1 - r') k + \operatorname{mean}_{ii} r r' k
    - 2 \operatorname{mean}_{ci} (1 - r) r' k$$

    $$\text{MMCE}_m = \frac{1}{B^2} \sum (c - r)(c' - r') k$$

    MMCE_w is 0 if all rows are correct or all are incorrect. The penalty is a property of the batch and is added to
    each row: the sum is B * (mean cross-entropy + strength * MMCE), and the losses of split batches do not add up.
    Memory is quadratic in the number of rows.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``; a row is then correct to the degree y[argmax].
        strength: factor of the penalty, at least 0; 2 in the paper's tables.
        weighted: whether to use MMCE_w; otherwise MMCE_m.
        as_published: multiply the three means once more by 1/m^2, 1/n^2 and 1/(mn), as in the public implementations.
            This reduces the penalty to about a tenth on a batch of 128 normal logits.
        width: width of the Laplacian kernel.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

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
    # Rounding can make the squared norm negative.
    return torch.where(m * n > 0, (square.clamp_min(0) + 1e-10).sqrt(), 0.0)


class MMCELoss(ClassificationLoss):
    """Cross-entropy plus the maximum mean calibration error of the batch as a Module; see :func:`mmce_loss`.

    Args:
        strength: factor of the penalty, at least 0.
        weighted: whether to use the weighted form of the penalty.
        as_published: scale the weighted penalty as in the public implementations.
        width: width of the Laplacian kernel.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> MMCELoss(strength=1.0)
    MMCELoss(strength=1.0, weighted=True, as_published=False, width=0.4)
    """

    function = staticmethod(mmce_loss)
    per_sample = False

    def __init__(
        self,
        strength: float = 2.0,
        *,
        weighted: bool = True,
        as_published: bool = False,
        width: float = 0.4,
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check(strength, width)
        self.set_options(strength=strength, weighted=weighted, as_published=as_published, width=width)


def _check(strength: float, width: float) -> None:
    check_number("strength", strength)
    check_number("width", width, 1e-6)
