"""Arguments of a model that is exported to ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

SEED = 0


@dataclass(frozen=True)
class Inputs:
    """Arguments of the model by name or position, and which of their dimensions may vary."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    dynamic_dims: tuple[int, ...]

    @classmethod
    def of(cls, example: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor], dynamic_dims: Sequence[int]) -> "Inputs":
        """Check the example. A single row is doubled: torch.export takes a size of 1 for a constant."""
        args: tuple[Tensor, ...] = ()
        kwargs: dict[str, Tensor] = {}
        if isinstance(example, Mapping):
            kwargs = dict(example)
        else:
            args = tuple(example) if isinstance(example, tuple | list) else (example,)
        tensors = (*args, *kwargs.values())
        if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
            kinds = ", ".join(type(value).__name__ for value in tensors) or "nothing"
            raise ValueError(
                f"example_inputs must be a tensor, or a tuple or dictionary of tensors, got {kinds}; convert arrays "
                "with torch.as_tensor"
            )
        if any(tensor.ndim == 0 or len(tensor) != len(tensors[0]) or len(tensor) == 0 for tensor in tensors):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(f"example_inputs must have the same number of rows, at least one, got shapes {shapes}")
        if any(dim < 0 for dim in dynamic_dims):
            raise ValueError(f"dynamic_dims must not be negative, got {tuple(dynamic_dims)}")
        most = max(tensor.ndim for tensor in tensors)
        if any(dim >= most for dim in dynamic_dims):
            raise ValueError(
                f"dynamic_dims must be below {most}, as no example input has more dimensions, got {tuple(dynamic_dims)}"
            )
        inputs = cls(args, kwargs, tuple(dynamic_dims))
        return inputs.resized(2) if 0 in dynamic_dims and len(tensors[0]) == 1 else inputs

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All arguments, in the order of the inputs of the file."""
        return (*self.args, *self.kwargs.values())

    def __len__(self) -> int:
        return len(self.tensors[0])

    def replaced(self, tensors: Sequence[Tensor]) -> "Inputs":
        """The same arguments with other values."""
        args = tuple(tensors[: len(self.args)])
        return Inputs(args, dict(zip(self.kwargs, tensors[len(args) :], strict=True)), self.dynamic_dims)

    def resized(self, rows: int) -> "Inputs":
        """Repeat or drop rows."""
        index = torch.tensor(list(islice(cycle(range(len(self))), rows)), dtype=torch.int64)
        return self.replaced([tensor[index.to(tensor.device)] for tensor in self.tensors])

    def perturbed(self, scale: float) -> "Inputs":
        """Add noise to floating point arguments, in units of their standard deviation."""
        generator = torch.Generator().manual_seed(SEED)

        def noisy(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or tensor.numel() < 2:
                return tensor
            noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
            return tensor + (scale * float(tensor.float().std()) * noise).to(tensor)

        return self.replaced([noisy(tensor) for tensor in self.tensors])

    def dynamic_shapes(self) -> dict[str, Any]:
        """Argument of ``torch.export`` for a forward function with the parameters ``*args``."""
        sizes = {dim: torch.export.Dim("batch") if dim == 0 else torch.export.Dim.DYNAMIC for dim in self.dynamic_dims}

        def varying(tensor: Tensor) -> dict[int, Any]:
            return {dim: size for dim, size in sizes.items() if dim < tensor.ndim}

        return {"args": tuple(varying(tensor) for tensor in self.tensors)}
