"""A model and its calibrator as one module, for serving and export."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dualfocal._tensors import compute_dtype, wide_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.checks import check_choice
from dualfocal.metrics.inputs import INPUTS

OUTPUTS = ("probs", "logits")


class CalibratedModel(nn.Module):
    """A model followed by a fitted calibrator: softmax(calibrator(model(x))).

    The module takes the arguments of the model and returns calibrated probabilities. It moves with ``.to(device)``,
    has a ``state_dict``, and works with ``torch.compile``, ``torch.export`` and
    :func:`dualfocal.integrations.onnx.export_onnx`. Gradients reach the model through temperature, ensemble
    temperature, vector, matrix, Dirichlet, Platt, beta and isotonic calibration; histogram and Bayesian binning are
    constant between jumps.

    The calibrator computes in float64 (float32 on mps) and the result is rounded once at the end, so that results on
    different devices and runtimes differ as little as possible. Call ``.eval()`` before predicting, as for any module:
    a calibrator fits the predictions of the model in evaluation mode.

    Args:
        model: returns a tensor of logits, or a dictionary or object with such ``logits``, as the models of
            Hugging Face do. The logits are ``(N, C)``, ``(N, C, d1, ...)``, or ``(N,)`` with the log-odds of class 1.
        calibrator: a fitted calibrator.
        output: ``"probs"`` to return probabilities (of class 1 if the model returns ``(N,)``), ``"logits"`` to return
            calibrated logits.
        input: whether the model returns ``"logits"`` or ``"probs"``. None means the kind of the calibrator's fit, and
            raises an error if an output of the model looks like the other kind.
        class_dim: dimension of the classes in the output of the model; -1 for token classification ``(N, T, C)``.

    Raises:
        RuntimeError: the calibrator is not fitted.
        ValueError: an argument is invalid, or the calibrator was fitted on another kind of input.
        TypeError: ``model`` is not a module, or ``calibrator`` not a calibrator.

    >>> import torch
    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> calibrator = TemperatureScaling().fit(logits, target)
    >>> model = CalibratedModel(nn.Linear(4, 2), calibrator).eval()
    >>> probs = model(torch.randn(5, 4))
    >>> probs.shape, torch.allclose(probs.sum(1), torch.ones(5))
    (torch.Size([5, 2]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        calibrator: Calibrator,
        *,
        output: str = "probs",
        input: str | None = None,
        class_dim: int = 1,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(calibrator, Calibrator):
            raise TypeError(f"calibrator must be a Calibrator, got {type(calibrator).__name__}")
        check_choice("output", output, OUTPUTS)
        check_choice("input", input, (None, *INPUTS))
        if not calibrator.is_fitted:
            raise RuntimeError(f"this {type(calibrator).__name__} is not fitted: call fit(logits, target) first")
        super().__init__()
        self.model, self.calibrator = model, calibrator
        self.output, self.input, self.class_dim = output, input or calibrator.fitted_input, class_dim
        self.checks_input = input is None
        if calibrator.fitted_on is not None and calibrator.fitted_on.kind in INPUTS:
            calibrator.check_kind(self.input)

    def extra_repr(self) -> str:
        """Options, for ``repr``."""
        return f"output={self.output!r}, input={self.input!r}, class_dim={self.class_dim}"

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run the model on its own arguments, then calibrate.

        Returns:
            Calibrated probabilities or logits of the shape of the model's logits; float64 if these are float64,
            otherwise float32.

        Raises:
            ValueError: the output of the model does not fit the calibrator.
        """
        logits = self.uncalibrated(*args, **kwargs)
        if self.checks_input:
            self.calibrator.check_values(self._classes_second(logits))
        return self.calibrate(logits)

    def uncalibrated(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the output of the model, as a tensor.

        Raises:
            TypeError: the model does not return floating point logits.
        """
        result = self.model(*args, **kwargs)
        logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", result)
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = logits.dtype if isinstance(logits, Tensor) else type(result).__name__
            raise TypeError(
                f"the model must return a floating point tensor of logits, or an object with .logits, got {kind}; "
                "wrap it in a module that returns only the logits"
            )
        return logits

    def calibrate(self, logits: Tensor) -> Tensor:
        """Calibrate what the model returned.

        Raises:
            ValueError: the number of classes is not that of the calibrator.
        """
        wide = self._classes_second(logits).to(wide_dtype(logits))
        result: Tensor = self.calibrator(wide, input=self.input)
        if self.output == "probs":
            result = result.sigmoid() if result.ndim == 1 else result.softmax(1)
        result = result if result.ndim == 1 else result.movedim(1, self.class_dim)
        return result.to(compute_dtype(logits))

    def _classes_second(self, logits: Tensor) -> Tensor:
        """Return logits with the classes in dimension 1; one score per sample stays as it is."""
        if logits.ndim == 1:
            return logits
        shape, expected = tuple(logits.shape), self.calibrator.num_classes
        if not -logits.ndim <= self.class_dim < logits.ndim:
            raise ValueError(f"class_dim is {self.class_dim}, but the model returned logits of shape {shape}")
        if expected not in (None, shape[self.class_dim]):
            raise ValueError(
                f"the calibrator was fitted for {expected} classes, but the model returned logits of shape {shape}, "
                f"with {shape[self.class_dim]} classes in dimension class_dim={self.class_dim}"
            )
        return logits.movedim(self.class_dim, 1)
