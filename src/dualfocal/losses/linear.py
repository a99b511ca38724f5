"""Dual focal loss of a linear head, without the logits of the whole batch in memory.

The logits of a large vocabulary take far more memory than the hidden states they come from. Here they are computed for
some rows at a time, turned into the gradients of hidden states and head at once, and forgotten.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dualfocal._checks import check_choice
from dualfocal._tensors import compute_dtype, under_transform
from dualfocal.losses._common import REDUCTIONS
from dualfocal.losses.dual_focal import dual_focal_loss

CHUNK_BYTES = 2**28  # of logits at a time; their gradient takes as much again


class _Head(NamedTuple):
    """A head and the options of the loss."""

    hidden: Tensor  # (M, H)
    weight: Tensor  # (C, H)
    bias: Tensor | None  # (C,)
    target: Tensor  # (M,)
    gamma: float | Tensor
    ignore_index: int

    def chunks(self) -> list[slice]:
        """Rows whose logits are computed together."""
        size = self.weight.shape[0] * torch.promote_types(self.hidden.dtype, self.weight.dtype).itemsize
        step = max(1, CHUNK_BYTES // max(1, size))
        return [slice(start, start + step) for start in range(0, len(self.hidden), step)]

    def loss(self, part: slice, reduction: str, *, with_grad: bool) -> tuple[Tensor, Tensor]:
        """Loss of some rows, and their logits, with respect to which it can be differentiated."""
        logits = nn.functional.linear(self.hidden[part], self.weight, self.bias).requires_grad_(with_grad)
        gamma = self.gamma[part, None] if isinstance(self.gamma, Tensor) and self.gamma.ndim else self.gamma
        with torch.set_grad_enabled(with_grad):
            options = {"ignore_index": self.ignore_index, "reduction": reduction}
            return dual_focal_loss(logits, self.target[part], gamma, **options), logits  # type: ignore[arg-type]

    def kept(self) -> Tensor:
        """Number of rows that are not ignored."""
        return (self.target != self.ignore_index).sum()


class _Gradients:
    """Gradients of hidden states, weight and bias; the last two are summed over chunks in float32."""

    def __init__(self, head: _Head, needed: tuple[bool, ...]) -> None:
        self.head = head
        wide = compute_dtype(head.weight)
        self.hidden = torch.empty_like(head.hidden) if needed[0] else None
        self.weight = torch.zeros_like(head.weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(head.bias, dtype=wide) if needed[2] and head.bias is not None else None

    def add(self, part: slice, grad: Tensor) -> None:
        """Take in the gradient of the logits of some rows."""
        if self.hidden is not None:
            torch.mm(grad, self.head.weight.to(grad.dtype), out=self.hidden[part])
        if self.weight is not None:
            _add_product(self.weight, grad.T, self.head.hidden[part].to(grad.dtype))
        if self.bias is not None:
            self.bias += grad.sum(0, dtype=self.bias.dtype)

    def scaled(self, factor: Tensor | None = None) -> list[Tensor | None]:
        """All gradients times a number, in the dtypes of their tensors."""
        tensors = (self.head.hidden, self.head.weight, self.head.bias)
        grads = (self.hidden, self.weight, self.bias)
        return [
            None if grad is None or tensor is None else (grad if factor is None else grad * factor).to(tensor.dtype)
            for grad, tensor in zip(grads, tensors, strict=True)
        ]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, summed in the dtype of the total."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a.to(total.dtype) @ b.to(total.dtype)


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
            losses = [head.loss(part, "none", with_grad=False)[0] for part in head.chunks()]
            return torch.cat(losses) if losses else hidden.new_zeros(0, dtype=compute_dtype(hidden))
        ctx.grads = _Gradients(head, ctx.needed) if any(ctx.needed) else None
        total = torch.zeros((), dtype=compute_dtype(hidden), device=hidden.device)
        for part in head.chunks():
            loss, logits = head.loss(part, "sum", with_grad=ctx.grads is not None)
            if ctx.grads is not None:
                ctx.grads.add(part, torch.autograd.grad(loss, logits)[0])
            total += loss.detach()
        ctx.factor = 1 / head.kept().clamp_min(1) if reduction == "mean" else None
        return total if ctx.factor is None else total * ctx.factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # raises an error if they were modified in place
        if ctx.reduction == "none":
            grads, factor = _Gradients(ctx.head, ctx.needed), None
            for part in ctx.head.chunks():
                loss, logits = ctx.head.loss(part, "none", with_grad=True)
                grads.add(part, torch.autograd.grad(loss, logits, upstream[part])[0])
        else:
            grads, factor = ctx.grads, upstream if ctx.factor is None else upstream * ctx.factor
        return *grads.scaled(factor), None, None, None, None


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
    if hidden.ndim < 2 or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1] or target.shape != hidden.shape[:-1]:
        raise ValueError(
            "hidden must have shape (N, H) or (N, T, H), weight (C, H) and target that of hidden without H, got "
            f"{tuple(hidden.shape)}, {tuple(weight.shape)} and {tuple(target.shape)}"
        )
    if under_transform():
        raise ValueError("linear_dual_focal_loss does not support torch.func; use dual_focal_loss of the logits")
    if isinstance(gamma, Tensor):
        if gamma.requires_grad:
            raise ValueError("gamma must not need a gradient; use dual_focal_loss of the logits to learn it")
        gamma = gamma.reshape(-1) if gamma.ndim else gamma
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
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
        self.gamma, self.ignore_index, self.reduction = gamma, ignore_index, reduction

    def forward(self, hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the loss of the head ``weight``, ``bias`` on ``hidden``."""
        options = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        return linear_dual_focal_loss(hidden, weight, target, self.gamma, bias, **options)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """Options, for ``repr``."""
        return f"gamma={self.gamma}, ignore_index={self.ignore_index}, reduction={self.reduction!r}"
