"""Base class of the calibrators."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from dualfocal._tensors import compute_dtype, first_true, is_concrete, wide_dtype
from dualfocal.calibrators._fit_report import Fit, FitReport
from dualfocal.calibrators._tiles import tile_slices
from dualfocal.calibrators.inputs import (
    NAMES,
    FittedOn,
    class_columns,
    digest,
    impossible_labels,
    kind_of,
    log_probs,
    log_values,
    names_of_fit,
    zero_values,
)
from dualfocal.calibrators.notes import Note, absent_classes
from dualfocal.checks import check_choice
from dualfocal.metrics.arrays import Array, are_numbered, as_tensor, class_targets
from dualfocal.metrics.inputs import INPUTS, ROUNDING, are_probabilities
from dualfocal.metrics.samples import Samples, as_samples, with_logits
from dualfocal.metrics.scan import scan

CHUNK_CPU, CHUNK_DEVICE = 1 << 20, 1 << 23  # elements mapped at a time, unless gradients are needed


class Calibrator(nn.Module, ABC):
    """A map from logits to calibrated logits, learned from held-out data.

    ``fit(logits, target)`` learns the map and returns the calibrator; calling the calibrator applies the map. A
    calibrator that was fitted on probabilities, with ``input="probs"``, is called with probabilities. The learned
    parameters are float64 buffers that move with ``.to(device)``; a ``state_dict`` of any size can be loaded into an
    unfitted calibrator. ``repr`` shows the options, and the temperature of a fit.
    """

    # A subclass names its buffers and the buffer with one row per class (if any), and implements _fit and _map.
    learned: ClassVar[tuple[str, ...]]
    by_class: ClassVar[str | None] = None
    noun: ClassVar[str] = "classes"  # what the columns of the logits are, in messages
    report_type: ClassVar[type[FitReport]] = FitReport
    # Effect of adding a constant to all logits of a row: "removed" from the output, "kept" in the output without
    # effect on probabilities, or "seen" by the map, so that the calibrated probabilities change.
    offset: Literal["removed", "kept", "seen"] = "seen"

    keeps_argmax: bool = False  # True: predicted classes never change, except for ties within rounding

    def __init__(self) -> None:
        super().__init__()
        # Saved by save_calibrator, but not part of the state_dict.
        self.report: FitReport | None = None
        self.fitted_on: FittedOn | None = None
        self.class_names: tuple[str, ...] | None = None
        for name in self.learned:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    @property
    def is_fitted(self) -> bool:
        """Whether the calibrator has been fitted or loaded."""
        return all(getattr(self, name).numel() > 0 for name in self.learned)

    @property
    def num_classes(self) -> int | None:
        """Number of classes of the fit; None before the fit, or if the map takes any number of classes."""
        return len(getattr(self, self.by_class)) if self.by_class and self.is_fitted else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Constructor arguments by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def extra_repr(self) -> str:
        """Constructor arguments and, after the fit, what was learned if it is one number, for ``repr``."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        buffers = {name: getattr(self, name) for name in self.learned}
        learned = ", ".join(f"{name}={float(value):.4g}" for name, value in buffers.items() if value.ndim == 0)
        return "; ".join(text for text in (options, learned) if text)

    @torch.no_grad()
    def fit(
        self,
        logits: Array | Samples,
        target: Array | None = None,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Fit the calibrator to held-out predictions (not those of the training data, which are over-confident).

        Args:
            logits: tensor, numpy array or data frame of shape ``(N, C)`` or ``(N, C, d1, ...)``, or ``(N,)`` with the
                log-odds of class 1. The columns of a data frame name the classes. Or
                :class:`~dualfocal.metrics.Samples`, without the other arguments.
            target: class indices, ``(N,)`` or ``(N, d1, ...)``.
            input: ``"logits"`` or ``"probs"``, whichever ``logits`` holds. None means logits, and raises an error if
                the values look like probabilities. Probabilities are converted to logarithms; a probability of 0 is
                replaced by half of the smallest non-zero one, at most 1 / C^2, here and in later calls.
            ignore_index: samples with this target are ignored.
            class_names: names of the classes if the labels are texts, see
                :meth:`~dualfocal.metrics.Samples.from_arrays`.

        Returns:
            The calibrator itself, with a new ``report``.

        Raises:
            ValueError: the data do not fit the method. An earlier fit is kept.
        """
        if isinstance(logits, Samples):
            options = {"input": input, "class_names": class_names}
            given: Any = {name: value for name, value in options.items() if value is not None}
            given |= {} if ignore_index == -100 else {"ignore_index": ignore_index}
            samples = as_samples(logits, target, given)  # samples have their own options
            names = None if are_numbered(samples.class_names or ()) else samples.class_names
        else:
            names, values = names_of_fit(logits, class_names), as_tensor("logits", logits)
            target = None if target is None else class_targets(logits, target, class_names)
            binary = "top_label" if values.ndim == 1 else None
            samples = as_samples(values, target, {"input": input, "ignore_index": ignore_index, "binary": binary})
        samples.check_classes(f"{type(self).__name__}.fit")
        if samples.weight is not None:
            raise ValueError(f"{type(self).__name__} is fitted without weights: leave out sample_weight")
        kind = "log-odds" if samples.one_score else samples.input
        data_digest, zeros, impossible, given_nll = digest(samples.values), None, list[Note](), None
        if samples.input == "probs":
            given_nll = float(scan(samples, scores=True).nll.mean())  # raises if the values are not probabilities
            zeros = zero_values(samples)
            impossible = impossible_labels(samples, zeros)
            samples = with_logits(samples, log_values(samples, zeros))
        fit = self._fit(samples)
        self._store(fit, samples.values.device)
        notes = list(fit.notes)
        if self.by_class and (absent := absent_classes(samples.target, samples.num_classes)):
            notes.append(Note("absent_classes", len(absent), samples.num_classes, absent))
        before, after, changed = self._effect(samples) if fit.nll is None else (*fit.nll, 0)
        self.report = FitReport(
            num_samples=len(samples),
            num_classes=samples.num_classes,
            nll_before=before if given_nll is None else given_nll,
            nll_after=after,
            argmax_changed=changed,
            iterations=fit.iterations,
            gradient=fit.gradient,
            converged=fit.converged,
            notes=(*notes, *impossible),
        )
        self.fitted_on, self.class_names = FittedOn(kind, zeros, data_digest), names
        return self

    def _store(self, fit: Fit, device: torch.device) -> None:
        for name in self.learned:
            setattr(self, name, fit.learned[name].to(device))

    def forward(self, logits: Array, *, input: str | None = None) -> Tensor:
        """Apply the calibrator.

        Args:
            logits: tensor, numpy array or data frame of any shape that :meth:`fit` takes. The columns of a data frame
                may have another order than ``class_names``.
            input: whether ``logits`` holds ``"logits"`` or ``"probs"``. None means the kind of the fit, and raises an
                error if the values look like the other kind.

        Returns:
            Calibrated logits (some methods: log-probabilities) of the shape of ``logits``, float32 or float64. The
            classes have the order of the fit.

        Raises:
            RuntimeError: the calibrator is not fitted.
            ValueError: the values do not fit the calibrator.
        """
        if not self.is_fitted:
            raise RuntimeError(f"this {type(self).__name__} is not fitted: call fit(logits, target) first")
        check_choice("input", input, (None, *INPUTS))
        logits = class_columns(logits, self.class_names)
        if not logits.is_floating_point() or logits.ndim == 0:
            raise ValueError(f"logits must be floating point (N, C), got {logits.dtype} {tuple(logits.shape)}")
        if input is None:
            self.check_values(logits)
            input = self.fitted_input
        kind = kind_of(logits, input)
        if not (logits.ndim == 1 and self.num_classes not in (None, 2)):  # otherwise a clearer error is raised below
            self.check_kind(kind)
        rows = self._as_rows(logits, input)
        mapped = self._apply_rows(rows)
        if logits.ndim == 1:
            return mapped[:, 1] - mapped[:, 0]
        shape = logits.movedim(1, -1).shape
        return mapped.view(shape).movedim(-1, 1)

    @property
    def fitted_input(self) -> str:
        """Kind of the values of the fit, ``"logits"`` or ``"probs"``; ``"logits"`` if it is unknown."""
        return "logits" if self.fitted_on is None else self.fitted_on.input

    def check_values(self, values: Tensor) -> None:
        """Raise a ValueError if the values look like probabilities, but the fit was on logits, or the reverse.

        Values are not read while a model is compiled, exported, traced or transformed.
        """
        capturing = values.is_cuda and torch.cuda.is_current_stream_capturing()
        if not is_concrete(values) or capturing:
            return
        name, values = type(self).__name__, values.detach()
        if self.fitted_input == "logits":
            if self._look_like_probabilities(values):
                raise ValueError(
                    f"this {name} takes logits, but the values look like probabilities: pass logits, or say what the "
                    'values are, with input="probs" or input="logits"'
                )
        elif (i := first_true((values < -ROUNDING) | (values > 1 + ROUNDING))) is not None:
            self.check_kind(kind_of(values, "logits"))  # raises if the map cannot take logits
            raise ValueError(
                f"this {name} was fitted on probabilities, but got the value {float(values.reshape(-1)[i]):g}: pass "
                'probabilities, or input="logits" for logits'
            )

    def _look_like_probabilities(self, values: Tensor) -> bool:
        if values.ndim == 1:
            return False
        rows = _class_rows(values)
        return len(rows) > 1 and are_probabilities(rows)  # one row of logits can sum to 1 by chance

    def check_kind(self, kind: str) -> None:
        """Raise a ValueError if the map depends on the kind of its input, and was fitted on another kind.

        Args:
            kind: ``"logits"``, ``"probs"``, or ``"log-odds"`` for one score per sample.
        """
        if self.fitted_on and self.offset == "seen" and self.fitted_on.kind != kind:
            fitted, given = NAMES[self.fitted_on.kind], NAMES[kind]
            raise ValueError(
                f"this {type(self).__name__} was fitted on {fitted}, but got {given}: they differ by a constant per "
                f"row, which changes the output of this method; pass {fitted}, or fit a calibrator on {given}"
            )

    def sensitivity(self, logits: Tensor, *, input: str | None = None, margin: float = 1e-13) -> Tensor:
        """Bound on the change of the calibrated probabilities if rounding moves each class probability by ``margin``.

        The maps of histogram and Bayesian binning have jumps, that of isotonic regression has steep parts. There, two
        correct implementations of softmax, which differ in the last bits, lead to different results. All other
        methods are smooth: their bound is 0, which stands for a change of the order of ``margin``.

        Args:
            logits: tensor of any shape that :meth:`fit` takes.
            input: whether ``logits`` holds ``"logits"`` or ``"probs"``, as in a call of the calibrator.
            margin: relative change of the class probabilities.

        Returns:
            One value per row, float64: ``(N,)``, or ``(N * d1 * ...,)`` for ``(N, C, d1, ...)``.

        >>> from dualfocal.calibrators import HistogramBinning
        >>> logits, target = torch.tensor([[0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1, 0])
        >>> calibrator = HistogramBinning(2, bins="width").fit(logits, target)  # a jump at p = 0.5
        >>> (calibrator.sensitivity(torch.tensor([[0.0, 0.1], [0.0, 0.0]])) > 0).tolist()
        [False, True]
        """
        if input is None:
            self.check_values(logits)
            input = self.fitted_input
        return self._sensitivity(self._as_rows(logits, input), margin)

    def _as_rows(self, logits: Tensor, input: str) -> Tensor:
        """Logits as (N, C) rows, float32 or float64."""
        if input == "probs":
            logits = log_probs(logits, None if self.fitted_on is None else self.fitted_on.zeros)
        logits = logits.to(compute_dtype(logits))
        if logits.ndim == 1:  # sigmoid(z) = softmax(0, z)[1]
            return torch.stack([torch.zeros_like(logits), logits], dim=1)
        return _class_rows(logits)

    @abstractmethod
    def _fit(self, samples: Samples) -> Fit:
        """Learn from samples with logits, (N, C), which have not been checked for NaN and infinities."""

    @abstractmethod
    def _map(self, logits: Tensor) -> Tensor:
        """Calibrated logits of (N, C) logits in float32 or float64, as a new tensor of that dtype."""

    def _sensitivity(self, logits: Tensor, margin: float) -> Tensor:
        """See :meth:`sensitivity`, for (N, C) logits. A map with jumps overrides it."""
        return torch.zeros(len(logits), dtype=wide_dtype(logits), device=logits.device)

    def _apply_rows(self, logits: Tensor) -> Tensor:
        if self.num_classes not in (None, logits.shape[1]):
            raise ValueError(
                f"this {type(self).__name__} was fitted for {self.num_classes} {self.noun}, "
                f"logits of shape {tuple(logits.shape)} have {logits.shape[1]}"
            )
        differentiable = torch.compiler.is_compiling() or (torch.is_grad_enabled() and logits.requires_grad)
        if differentiable or len(logits) <= _chunk(logits):
            return self._map(logits)
        result = torch.empty_like(logits, memory_format=torch.contiguous_format)
        for part in tile_slices(logits, step=_chunk(logits)):
            result[part] = self._map(logits[part])
        return result

    def _effect(self, samples: Samples) -> tuple[float, float, int]:
        """NLL before and after, and the number of samples whose predicted class changed."""
        changed, total = 0, torch.zeros(2, dtype=wide_dtype(samples.values), device=samples.values.device)
        for part in tile_slices(samples.values, step=_chunk(samples.values)):
            before = samples.values[part].to(compute_dtype(samples.values))
            after = self._map(before)
            changed += int((before.argmax(1) != after.argmax(1)).sum())
            for i, logits in enumerate((before, after)):
                total[i] += nn.functional.cross_entropy(logits, samples.target[part], reduction="sum")
        return (*(total / len(samples)).tolist(), changed)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # model.half() must not round knots and temperatures: the buffers change device, but stay float64.
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self.learned:
            loaded, current = state_dict.get(prefix + name), getattr(self, name)
            if isinstance(loaded, Tensor) and loaded.shape != current.shape:
                setattr(self, name, torch.empty(loaded.shape, dtype=current.dtype, device=current.device))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.report = self.fitted_on = None


def _class_rows(logits: Tensor) -> Tensor:
    return logits.movedim(1, -1).reshape(-1, logits.shape[1])


def _chunk(values: Tensor) -> int:
    return max(1, (CHUNK_CPU if values.is_cpu else CHUNK_DEVICE) // values.shape[1])
