"""Dual focal loss of a linear head, without the logits of the whole batch in memory.

The logits of a large vocabulary take far more memory than the hidden states they come from. Here they are computed for
some rows at a time, turned into the gradients of hidden states and head at once, and forgotten.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dualfocal import kernels
from dualfocal._tensors import check_head, compute_dtype, under_transform
from dualfocal.checks import check_choice, check_ignore_index
from dualfocal.losses._arguments import REDUCTIONS, check_module_gamma
from dualfocal.losses._flat import flatten, gamma_of_rows
from dualfocal.losses._modulated import dual_loss_and_gradient
from dualfocal.losses.dual_focal import dual_focal_loss

CHUNK_BYTES = 2**30  # of logits at a time, at most
MIN_ROWS = 128  # at a time, however many classes there are: a matrix product of fewer is slow


class _Head(NamedTuple):
    """A head and the options of the loss."""

    hidden: Tensor  # (M, H)
    weight: Tensor  # (C, H)
    bias: Tensor | None  # (C,)
    target: Tensor  # (M,)
    gamma: float | Tensor
    ignore_index: int

    def chunks(self) -> list[slice]:
        """Rows whose logits are computed together.

        Their logits take no more memory than the weight, whose gradient has to be stored anyway.
        """
        num_classes, size = self.weight.shape
        row_bytes = num_classes * torch.promote_types(self.hidden.dtype, self.weight.dtype).itemsize
        step = max(MIN_ROWS, min(size, CHUNK_BYTES // row_bytes))
        return [slice(start, start + step) for start in range(0, len(self.hidden), step)]

    def logits(self, part: slice) -> Tensor:
        """Logits of some rows."""
        return nn.functional.linear(self.hidden[part], self.weight, self.bias)

    def gamma_of(self, part: slice) -> float | Tensor:
        """Gamma of some rows."""
        return self.gamma[part, None] if isinstance(self.gamma, Tensor) and self.gamma.ndim else self.gamma

    def losses(self, part: slice, logits: Tensor) -> Tensor:
        """Loss of each of some rows."""
        target, gamma = self.target[part], self.gamma_of(part)
        return dual_focal_loss(logits, target, gamma, ignore_index=self.ignore_index, reduction="none")

    def loss_and_gradient(self, part: slice) -> tuple[Tensor, Tensor]:
        """Summed loss of some rows, and the gradient of their logits."""
        flat = flatten(self.logits(part), self.target[part], None, self.ignore_index, "sum")
        return dual_loss_and_gradient(flat, gamma_of_rows(self.gamma_of(part), flat))

    def kept(self) -> Tensor:
        """Number of rows that are not ignored."""
        return (self.target != self.ignore_index).sum()


class _Gradients:
    """Gradients of hidden states, weight and bias; the last two are summed over chunks in float32."""

    def __init__(self, head: _Head, needed: tuple[bool, ...]) -> None:
        self.head, self.needed = head, needed
        self.hidden = _contiguous_like(head.hidden) if needed[0] else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, part: slice, grad: Tensor) -> None:
        """Take in the gradient of the logits of some rows."""
        if self.hidden is not None:
            torch.mm(grad, self.head.weight.to(grad.dtype), out=self.hidden[part])
        if self.needed[1]:
            self.weight = _add_product(self.weight, grad.T, self.head.hidden[part].to(grad.dtype))
        if self.needed[2]:
            total = grad.sum(0, dtype=compute_dtype(grad))
            self.bias = total if self.bias is None else self.bias.add_(total)

    def scaled(self, factor: Tensor | None) -> list[Tensor | None]:
        """All gradients times a number, in the dtypes of their tensors; those in here may be overwritten."""
        pairs = (self.hidden, self.head.hidden), (self.weight, self.head.weight), (self.bias, self.head.bias)
        return [
            _scaled(grad, tensor, factor) if needed and tensor is not None else None
            for (grad, tensor), needed in zip(pairs, self.needed, strict=True)
        ]


def _scaled(grad: Tensor | None, tensor: Tensor, factor: Tensor | None) -> Tensor:
    if grad is None:  # there were no rows
        return torch.zeros_like(tensor)
    if factor is None:
        return grad.to(tensor.dtype)
    out = grad if grad.dtype == tensor.dtype else _contiguous_like(tensor)
    if grad.is_cuda and grad.dtype in kernels.DTYPES and kernels.available():
        from dualfocal.kernels import modulated  # imports triton

        return modulated.scale(grad, factor, out)  # torch is slow if the dtype changes, too
    return torch.mul(grad, factor, out=out)


def _contiguous_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b, summed in float32 at least, in the memory of the total."""
    wide = compute_dtype(a)
    if a.dtype == wide or not a.is_cuda:
        return a.to(wide) @ b.to(wide) if total is None else total.addmm_(a.to(wide), b.to(wide))
    if total is None:
        return torch.mm(a, b, out_dtype=wide)
    return torch.addmm(total, a, b, out_dtype=wide, out=total)


class _LinearDualFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        gamma: float | Tensor,
        ignore_index: int,
        reduction: str,
    ) -> Tensor:
        head = _Head(
            hidden.detach(), weight.detach(), None if bias is None else bias.detach(), target, gamma, ignore_index
        )
        ctx.reduction, ctx.head, ctx.needed = reduction, head, ctx.needs_input_grad[:3]
        ctx.save_for_backward(hidden, weight, bias, target, gamma if isinstance(gamma, Tensor) else None)
        if reduction == "none":
            losses = [head.losses(part, head.logits(part)) for part in head.chunks()]
            return torch.cat(losses) if losses else hidden.new_zeros(0, dtype=compute_dtype(hidden))
        total, ctx.grads = _sum_and_gradients(head, ctx.needed)
        ctx.factor = 1 / head.kept().clamp_min(1) if reduction == "mean" else None
        return total if ctx.factor is None else total * ctx.factor

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            raise RuntimeError(
                "linear_dual_focal_loss has no second derivatives, which create_graph=True is for; use dual_focal_loss "
                "of the logits"
            )
        _ = ctx.saved_tensors  # raises an error if they were modified in place
        if ctx.reduction == "none":
            grads, factor = _Gradients(ctx.head, ctx.needed), None
            for part in ctx.head.chunks():
                logits = ctx.head.logits(part).requires_grad_()
                with torch.enable_grad():
                    losses = ctx.head.losses(part, logits)
                grads.add(part, torch.autograd.grad(losses, logits, upstream[part])[0])
        else:
            # The gradients are given away; a second backward through the same graph computes them again.
            grads, ctx.grads = ctx.grads or _sum_and_gradients(ctx.head, ctx.needed)[1], None
            factor = upstream if ctx.factor is None else upstream * ctx.factor
        return *grads.scaled(factor), None, None, None, None


def _sum_and_gradients(head: _Head, needed: tuple[bool, ...]) -> tuple[Tensor, _Gradients]:
    grads = _Gradients(head, needed)
    total = torch.zeros((), dtype=compute_dtype(head.hidden), device=head.hidden.device)
    for part in head.chunks():
        loss, grad = head.loss_and_gradient(part)
        grads.add(part, grad)
        total += loss
        del grad  # before the next logits are computed
    return total, grads


def linear_dual_focal_loss(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    gamma: float | Tensor = 5.0,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Dual focal loss of ``F.linear(hidden, weight, bias)``, without storing the logits.

    Equal to ``dual_focal_loss(F.linear(hidden, weight, bias), target, gamma)``, but only a slice of the logits is in
    memory at any time, which matters for large vocabularies. The gradients are computed together with the loss; that of
    ``weight`` is summed in float32. Second derivatives and ``torch.func`` are not supported.

    Args:
        hidden: inputs of the head, shape ``(N, H)`` or ``(N, T, H)``.
        weight: weight of the head, shape ``(C, H)``, as in ``nn.Linear``.
        target: class indices, shape ``(N,)`` or ``(N, T)``.
        gamma: focusing parameter, at least 0: a number, or a tensor with one value or one per target.
        bias: bias of the head, shape ``(C,)``.
        ignore_index: class index to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. For ``"none"``, the logits are computed again in the backward
            pass.

    Returns:
        The loss in float32: a scalar, or the shape of ``target`` for ``reduction="none"``.

    >>> import torch
    >>> hidden, weight = torch.eye(3), torch.tensor([[2.0, 0.0, 1.0], [1.0, 3.0, 0.0]])
    >>> linear_dual_focal_loss(hidden, weight, torch.tensor([0, 1, 0]), gamma=0.0)
    tensor(0.2250)
    """
    check_choice("reduction", reduction, REDUCTIONS)
    check_head(hidden, weight, target, bias)
    if under_transform():
        raise ValueError("linear_dual_focal_loss does not support torch.func; use dual_focal_loss of the logits")
    if isinstance(gamma, Tensor):
        if gamma.requires_grad:
            raise ValueError("gamma must not need a gradient; use dual_focal_loss of the logits to learn it")
        gamma = gamma.reshape(-1) if gamma.ndim else gamma
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):  # it would round the float32 sums
        loss: Tensor = _LinearDualFocal.apply(  # type: ignore[no-untyped-call]
            hidden.reshape(-1, hidden.shape[-1]), weight, bias, target.reshape(-1), gamma, ignore_index, reduction
        )
    return loss.reshape(target.shape) if reduction == "none" else loss


class LinearDualFocalLoss(nn.Module):
    """Dual focal loss of a linear head as a Module; see :func:`linear_dual_focal_loss`.

    Args:
        gamma: focusing parameter, at least 0.
        ignore_index: class index to ignore.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> criterion = LinearDualFocalLoss(gamma=3.0)
    >>> head = nn.Linear(8, 1000)
    >>> hidden, target = torch.randn(4, 8, requires_grad=True), torch.tensor([1, 2, 3, 4])
    >>> criterion(hidden, head.weight, target, head.bias).backward()
    """

    def __init__(self, gamma: float = 5.0, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        check_ignore_index(ignore_index)
        check_module_gamma(gamma)
        self.gamma, self.ignore_index, self.reduction = gamma, ignore_index, reduction

    def forward(self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the loss of the head ``weight``, ``bias`` on ``hidden``."""
        return linear_dual_focal_loss(
            hidden, weight, target, self.gamma, bias, ignore_index=self.ignore_index, reduction=self.reduction
        )

    def extra_repr(self) -> str:
        """Options, for ``repr``."""
        return f"gamma={self.gamma}, ignore_index={self.ignore_index}, reduction={self.reduction!r}"
