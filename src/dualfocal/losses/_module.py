"""Base class of the loss modules."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from dualfocal._checks import check_choice
from dualfocal._tensors import WEIGHT_HINT
from dualfocal.losses._common import REDUCTIONS, check_gamma_values


class ClassificationLoss(nn.Module):
    """Base class of the loss modules: ``forward`` calls ``function`` with the options and the common arguments.

    Args:
        weight: weight of each class, shape ``(C,)``.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """

    function: ClassVar[Callable[..., Tensor]]
    options: tuple[str, ...] = ()  # names of the other arguments, stored as attributes
    per_sample: bool = True  # whether the losses of split batches add up
    weight: Tensor | None

    def __init__(self, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def set_options(self, **options: Any) -> None:
        """Store the options as attributes; a tensor that is not a parameter becomes a buffer."""
        gamma = options.get("gamma", 0.0)
        if isinstance(gamma, Tensor) and gamma.ndim > 0:
            raise ValueError(
                f"gamma of a module must be a number or a scalar tensor, got shape {tuple(gamma.shape)}; "
                f"{WEIGHT_HINT}; one gamma per target can be passed to the function"
            )
        check_gamma_values(gamma)
        self.options = tuple(options)
        for name, value in options.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of ``logits`` (N, C, ...) for ``target``, class indices or probabilities."""
        options = {name: getattr(self, name) for name in self.options}
        common = {"weight": self.weight, "ignore_index": self.ignore_index, "reduction": self.reduction}
        return self.function(logits, target, **options, **common)

    def extra_repr(self) -> str:
        """Constructor arguments, for ``repr``; tensors are shown by their shape."""
        defaults = {"weight": "None", "ignore_index": "-100", "reduction": "'mean'"}
        values = {name: getattr(self, name) for name in (*self.options, *defaults)}
        texts = {name: f"<tensor {tuple(v.shape)}>" if isinstance(v, Tensor) else repr(v) for name, v in values.items()}
        return ", ".join(f"{name}={text}" for name, text in texts.items() if text != defaults.get(name))
