"""Base class of the loss modules."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dualfocal._tensors import Weight, check_number
from dualfocal.checks import check_choice
from dualfocal.losses._arguments import REDUCTIONS, as_weight, check_module_gamma

COMMON = ("weight", "ignore_index", "reduction")  # arguments of every loss


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

    def __init__(self, *, weight: Weight | None = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__()
        check_choice("reduction", reduction, REDUCTIONS)
        self.register_buffer("weight", None if weight is None else as_weight(weight, torch.get_default_dtype()))
        self.ignore_index = ignore_index
        self.reduction = reduction

    def set_options(self, **options: Any) -> None:
        """Store the options as attributes; a tensor that is not a parameter becomes a buffer."""
        check_module_gamma(options.get("gamma", 0.0))
        check_number("label_smoothing", options.get("label_smoothing", 0.0), 0.0, 1.0)
        self.options = tuple(options)
        for name, value in options.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, logits: Tensor, target: Tensor, *, num_items_in_batch: object = None) -> Tensor:
        """Compute the loss of ``logits`` (N, C, ...) for ``target``, class indices or probabilities.

        ``num_items_in_batch``, an argument that ``Trainer`` of Hugging Face adds, raises a TypeError that says what to
        write.
        """
        if num_items_in_batch is not None:
            raise TypeError(
                "a loss takes logits and target, but Trainer passes outputs, labels and num_items_in_batch: wrap the "
                f"loss, compute_loss_func=dualfocal.integrations.hf.loss_func({type(self).__name__}(...))"
            )
        return self.function(logits, target, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``function``."""
        return {name: getattr(self, name) for name in (*self.options, *COMMON)}

    def extra_repr(self) -> str:
        """Constructor arguments, for ``repr``; tensors are shown by their shape."""
        defaults = {"label_smoothing": "0.0", "weight": "None", "ignore_index": "-100", "reduction": "'mean'"}
        values = {name: getattr(self, name) for name in (*self.options, *COMMON)}
        texts = {name: f"<tensor {tuple(v.shape)}>" if isinstance(v, Tensor) else repr(v) for name, v in values.items()}
        return ", ".join(f"{name}={text}" for name, text in texts.items() if text != defaults.get(name))
