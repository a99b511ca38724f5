"""What every loss module holds: class weights, ignore_index and reduction."""

import torch
from torch import Tensor, nn

from dualfocal._checks import WEIGHT_HINT, check_choice
from dualfocal.losses._common import REDUCTIONS, check_gamma_values


class ClassificationLoss(nn.Module):
    """Base of the loss modules. ``options`` names the arguments beyond the common three, for ``repr``."""

    options: tuple[str, ...] = ()
    weight: Tensor | None
    gamma: float | Tensor
    per_sample: bool = True  # whether the sum over a batch is the sum over its parts

    def __init__(self, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def set_gamma(self, gamma: float | Tensor) -> None:
        """Keep gamma as what it is: a number, a parameter to learn, or a tensor that moves with the module."""
        if isinstance(gamma, Tensor) and gamma.ndim > 0:
            raise ValueError(
                f"gamma of a module must be a number or a scalar tensor, got shape {tuple(gamma.shape)}; "
                f"{WEIGHT_HINT}, and one gamma per target to the function"
            )
        if isinstance(gamma, Tensor) and not isinstance(gamma, nn.Parameter):
            self.register_buffer("gamma", gamma)
        else:
            self.gamma = gamma
        check_gamma_values(gamma)

    def extra_repr(self) -> str:
        """Arguments as they were given; tensors by shape."""
        shown = {name: getattr(self, name) for name in self.options}
        if self.weight is not None:
            shown["weight"] = self.weight
        if self.ignore_index != -100:
            shown["ignore_index"] = self.ignore_index
        if self.reduction != "mean":
            shown["reduction"] = self.reduction
        return ", ".join(f"{name}={_show(value)}" for name, value in shown.items())


def _show(value: object) -> str:
    return f"<tensor {tuple(value.shape)}>" if isinstance(value, torch.Tensor) else repr(value)
