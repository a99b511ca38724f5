"""What all calibrators share: the contract of ``fit`` and ``forward``, and buffers of any size."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from dualfocal._checks import check_choice
from dualfocal._tensors import compute_dtype, wide_dtype
from dualfocal.calibrators._passes import tile_parts
from dualfocal.calibrators.inputs import NAMES, FittedOn, digest, kind_of, log_probs, zero_values
from dualfocal.calibrators.notes import Note, absent_classes
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.rows import INPUTS, Array, Rows, as_rows, as_tensor
from dualfocal.metrics.scan import scan

MIN_SAMPLES = 20  # what is fitted to fewer is mostly chance
CHUNK_CPU, CHUNK_DEVICE = 1 << 20, 1 << 23  # elements that are mapped at a time, unless gradients are wanted


@dataclass(frozen=True)
class FitReport:
    """How a fit went. The likelihoods are of the data it was fitted on, and flatter it."""

    num_samples: int
    num_classes: int
    nll_before: float  # nats
    nll_after: float
    argmax_changed: int  # samples whose predicted class is another than before
    iterations: int | None  # None: the method does not iterate
    gradient: float | None  # size of the gradient where the iteration stopped
    converged: bool
    notes: tuple[Note, ...]  # what was odd about the data, and what was done about it

    def caution(self) -> str:
        """A warning where there were too few samples; empty otherwise.

        Raises:
            ValueError: too few, and what was learned is not in the data at all.
        """
        if self.num_samples >= MIN_SAMPLES:
            return ""
        few = f"{self.num_samples} sample{'s' if self.num_samples > 1 else ''}"
        if nothing := [note.finding for note in self.notes if note.kind in ("all_correct", "no_help")]:
            raise ValueError(f"{few} cannot be fitted to: {nothing[0]}; give at least {MIN_SAMPLES}")
        return f"{few}: what is fitted to fewer than {MIN_SAMPLES} is mostly chance"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; what is not finite is None."""
        content = {name: finite(value) if isinstance(value, float) else value for name, value in vars(self).items()}
        return content | {"notes": list(map(str, self.notes))}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote; of the notes only the text comes back."""
        losses = {name: math.inf if content[name] is None else content[name] for name in ("nll_before", "nll_after")}
        return cls(**{**content, **losses, "notes": tuple(Note("saved", saved=text) for text in content["notes"])})

    def __str__(self) -> str:
        lines = [
            f"{self.num_samples:,} samples, {self.num_classes} classes: NLL {self.nll_before:.4f} before, "
            f"{self.nll_after:.4f} after, on the data of the fit",
            f"{self.argmax_changed:,} of {self.num_samples:,} predicted classes changed",
        ]
        if self.iterations is not None:
            state = "converged" if self.converged else "did NOT converge"
            lines.append(f"{state} in {self.iterations} iterations, gradient {self.gradient:.1e}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Fit:
    """What one method learned, and what it has to say of that."""

    learned: dict[str, Tensor]
    iterations: int | None = None
    gradient: float | None = None
    converged: bool = True
    notes: tuple[Note, ...] = ()
    nll: tuple[float, float] | None = None  # before and after, where the method knows and moves no argmax


class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits, learned from held-out data.

    ``fit(logits, target)`` learns it and returns the calibrator itself; calling the calibrator applies the map. What
    is learned are buffers, which move with ``.to(device)`` and stay float64; a ``state_dict`` of any size loads into an
    unfitted object. Options are stored as given; ``repr`` shows them. Both take probabilities, too: ``input="probs"``.
    """

    # A method names its buffers, says which (if any) has a row for each class, and writes _fit and _map.
    learned: ClassVar[tuple[str, ...]]
    by_class: ClassVar[str | None] = None
    # What the map does with a constant added to all logits of a row, which their softmax does not see: it is removed,
    # stays without effect, or changes the calibrated probabilities.
    offset: Literal["removed", "kept", "seen"] = "seen"

    keeps_argmax: bool = False  # True: predicted classes stay, but for ties that rounding makes or breaks

    def __init__(self) -> None:
        super().__init__()
        # These travel with save_calibrator, not with state_dict: two of the last fit, and names to keep with it.
        self.report: FitReport | None = None
        self.fitted_on: FittedOn | None = None
        self.class_names: tuple[str, ...] | None = None
        for name in self.learned:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    @property
    def is_fitted(self) -> bool:
        """Whether there is a map to apply."""
        return all(getattr(self, name).numel() > 0 for name in self.learned)

    @property
    def num_classes(self) -> int | None:
        """Number of classes it was fitted for; None where it does not matter, or before."""
        return len(getattr(self, self.by_class)) if self.by_class and self.is_fitted else None

    @property
    def arguments(self) -> dict[str, Any]:
        """The options it was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def extra_repr(self) -> str:
        """The options, as in the call that made it."""
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())

    @torch.no_grad()
    def fit(self, logits: Array, target: Array, *, input: str = "logits", ignore_index: int = -100) -> Self:
        """Learn from held-out predictions; those for the training data would flatter the model.

        Args:
            logits: ``(N, C)`` or ``(N, C, d1, ...)``, a tensor or a numpy array; or ``(N,)``, the log-odds of class 1.
            target: class indices, ``(N,)`` or ``(N, d1, ...)``.
            input: what ``logits`` holds, ``"logits"`` or ``"probs"``. Of probabilities the logarithms are taken; one of
                0 counts as half of the smallest other one, at most 1 / C^2, here and in later calls.
            ignore_index: samples of this target are left out.

        Returns:
            The calibrator, with a ``report``. If it raises, an earlier fit stays as it was.
        """
        values = as_tensor("logits", logits)
        binary = "top_label" if values.ndim == 1 else None
        rows = as_rows(values, target, input=input, ignore_index=ignore_index, binary=binary)
        zeros, impossible, given = None, 0, digest(rows.values)
        if input == "probs":
            scan(rows)  # raises unless they are probabilities
            zeros = zero_values(rows)
            impossible = int((rows.values.gather(1, rows.target[:, None]) == 0).sum())
            logits = log_probs(values, zeros)
            rows = as_rows(logits, target, input="logits", ignore_index=ignore_index, binary=binary)
        fit = self._fit(rows)
        for name in self.learned:
            setattr(self, name, fit.learned[name].to(rows.values.device))
        notes = list(fit.notes)
        if self.by_class and (absent := absent_classes(rows.target, rows.num_classes)):
            notes.append(Note("absent_classes", len(absent), rows.num_classes, absent))
        if zeros is not None and impossible:
            notes.append(Note("impossible_labels", impossible, len(rows), zeros))
        before, after, changed = self._effect(rows) if fit.nll is None else (*fit.nll, 0)
        self.report = FitReport(
            num_samples=len(rows),
            num_classes=rows.num_classes,
            nll_before=math.inf if impossible else before,
            nll_after=after,
            argmax_changed=changed,
            iterations=fit.iterations,
            gradient=fit.gradient,
            converged=fit.converged,
            notes=tuple(notes),
        )
        self.fitted_on = FittedOn(kind_of(values, input), zeros, given)
        return self

    def forward(self, logits: Array, *, input: str = "logits") -> Tensor:
        """Calibrated logits of the shape of the given ones, float32 or float64; log-probabilities of some methods.

        ``input="probs"`` says that probabilities are given; the answer is logits all the same.
        """
        if not self.is_fitted:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(logits, target) first")
        check_choice("input", input, INPUTS)
        logits = as_tensor("logits", logits)
        if not logits.is_floating_point() or logits.ndim == 0:
            raise ValueError(f"logits must be floating point (N, C), got {logits.dtype} {tuple(logits.shape)}")
        kind = kind_of(logits, input)
        wrong_width = logits.ndim == 1 and self.num_classes not in (None, 2)  # an error that says more will follow
        if self.fitted_on and self.offset == "seen" and self.fitted_on.kind != kind and not wrong_width:
            theirs, ours = NAMES[self.fitted_on.kind], NAMES[kind]
            raise ValueError(
                f"this {type(self).__name__} was fitted on {theirs}, and these are {ours}: both mean the same "
                f"but for a number added to each row, which this map sees; give it {theirs}, or fit one on {ours}"
            )
        if input == "probs":
            logits = log_probs(logits, None if self.fitted_on is None else self.fitted_on.zeros)
        logits = logits.to(compute_dtype(logits))
        if logits.ndim == 1:  # sigmoid(z) = softmax(0, z)[1]
            pair = self._apply_rows(torch.stack([torch.zeros_like(logits), logits], dim=1))
            return pair[:, 1] - pair[:, 0]
        rows = logits.movedim(1, -1)
        return self._apply_rows(rows.reshape(-1, logits.shape[1])).view(rows.shape).movedim(-1, 1)

    @abstractmethod
    def _fit(self, rows: Rows) -> Fit:
        """Learn from rows of logits, (N, C); NaN and infinities have not been looked for."""

    @abstractmethod
    def _map(self, logits: Tensor) -> Tensor:
        """Calibrated logits of (N, C) logits in float32 or float64, as a new tensor of that dtype."""

    def _apply_rows(self, logits: Tensor) -> Tensor:
        if self.num_classes not in (None, logits.shape[1]):
            raise ValueError(
                f"this {type(self).__name__} was fitted for {self.num_classes} classes, "
                f"logits of shape {tuple(logits.shape)} have {logits.shape[1]}"
            )
        differentiable = torch.compiler.is_compiling() or (torch.is_grad_enabled() and logits.requires_grad)
        if differentiable or len(logits) <= _chunk(logits):
            return self._map(logits)
        result = torch.empty_like(logits, memory_format=torch.contiguous_format)
        for part in tile_parts(logits, step=_chunk(logits)):
            result[part] = self._map(logits[part])
        return result

    def _effect(self, rows: Rows) -> tuple[float, float, int]:
        """NLL before and after, and how many samples have another predicted class."""
        changed, total = 0, torch.zeros(2, dtype=wide_dtype(rows.values), device=rows.values.device)
        for part in tile_parts(rows.values, step=_chunk(rows.values)):
            before = rows.values[part].to(compute_dtype(rows.values))
            after = self._map(before)
            changed += int((before.argmax(1) != after.argmax(1)).sum())
            for i, logits in enumerate((before, after)):
                total[i] += nn.functional.cross_entropy(logits, rows.target[part], reduction="sum")
        return (*(total / len(rows)).tolist(), changed)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # The halves of model.half() would be too coarse for knots and temperatures: they move, but stay float64.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self.learned:
            theirs, ours = state_dict.get(prefix + name), getattr(self, name)
            if isinstance(theirs, Tensor) and theirs.shape != ours.shape:
                setattr(self, name, torch.empty(theirs.shape, dtype=ours.dtype, device=ours.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.report = self.fitted_on = None


def _chunk(values: Tensor) -> int:
    """Rows that are mapped at a time."""
    return max(1, (CHUNK_CPU if values.is_cpu else CHUNK_DEVICE) // values.shape[1])
