"""Export of a calibrated model to ONNX."""

import inspect
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dualfocal._extras import import_extra
from dualfocal._tensors import compute_dtype
from dualfocal.calibrators import CalibratedModel, Calibrator
from dualfocal.files import atomic_path, check_place
from dualfocal.integrations._evaluation_mode import evaluation_mode
from dualfocal.integrations.onnx._inputs import Inputs
from dualfocal.integrations.onnx._operators import translations
from dualfocal.integrations.onnx._verification import LOGITS, OnnxAgreement, verify

MOST_BYTES = 2**31 - 1  # of a protobuf message, so of an ONNX file without external data


def export_onnx(
    model: CalibratedModel | Calibrator,
    example_inputs: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    dynamic_dims: Sequence[int] = (0,),
    input_names: Sequence[str] | None = None,
    opset: int | None = None,
) -> OnnxAgreement:
    """Write a calibrated model to one ONNX file, after onnxruntime has reproduced its results.

    The model is exported in evaluation mode. Before the file is written, onnxruntime runs the exported calibrator on
    random, saturated, tied and missing logits and on the knots of binning methods, and the whole model on the example,
    on perturbed copies of it and on other batch sizes. On equal logits, every calibrated probability must agree with
    torch within ``BOUNDS[dtype of the logits]`` plus :meth:`~dualfocal.calibrators.Calibrator.sensitivity`, which is
    above 0 only beside jumps and on steep parts of binning methods.

    Args:
        model: a :class:`~dualfocal.calibrators.CalibratedModel`; or a fitted calibrator, to export the calibrator
            alone, from logits to probabilities (or from probabilities, if it was fitted on them).
        example_inputs: arguments of the model: a tensor, a tuple of tensors, or a dictionary of keyword arguments.
        path: file name, ending in ``.onnx``.
        dynamic_dims: dimensions of the inputs whose size may vary: ``(0,)`` for the batch, ``(0, 1)`` for batch and
            sequence length, ``(0, 2, 3)`` for batch, height and width, ``()`` for fixed sizes.
        input_names: names of the inputs in the file. Default: those of the arguments.
        opset: ONNX opset version. Default: that of ``torch.onnx.export``.

    Returns:
        What was verified, with the largest differences. ``print`` shows it.

    Raises:
        ImportError: onnx, onnxscript or onnxruntime is not installed.
        ValueError: an argument is invalid, or the model returns probabilities on the example although the calibrator
            takes logits.
        RuntimeError: onnxruntime cannot run the model, or its results differ too much. No file is written.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"{path}: the name of the file must end in .onnx")
    check_place(path)
    onnx = import_extra("onnx")
    import_extra("onnxruntime")
    if isinstance(model, Calibrator):
        model = CalibratedModel(nn.Identity(), model)
    if not isinstance(model, CalibratedModel):
        raise TypeError(f"model must be a CalibratedModel or a calibrator, got {type(model).__name__}")
    inputs = Inputs.of(example_inputs, dynamic_dims)
    names = _names(model, inputs, input_names)
    output = f"calibrated_{model.output}" if model.output in names else model.output
    with evaluation_mode(model), torch.no_grad():
        model(*inputs.args, **inputs.kwargs)  # shows the model's own error without the exporter's text
        proto = _convert(model, inputs, names, output, opset)
        proto.metadata_props.extend(_metadata(onnx, model))
        if proto.ByteSize() > MOST_BYTES:
            raise ValueError(f"{path}: the model takes {proto.ByteSize():,} bytes, more than the 2 GB of an ONNX file")
        agreement = verify(model, proto, inputs, path)
    # The uncalibrated logits are an output for the verification only.
    del proto.graph.output[1]
    with atomic_path(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
    return agreement


class _WithLogits(nn.Module):
    """A calibrated model that also returns the uncalibrated logits, in the precision of the calibrator.

    All arguments are positional, the last ones are those of ``keywords``.
    """

    def __init__(self, model: CalibratedModel, keywords: Sequence[str]) -> None:
        super().__init__()
        self.calibrated, self.keywords = model, tuple(keywords)

    def forward(self, *args: Tensor) -> tuple[Tensor, Tensor]:
        first = len(args) - len(self.keywords)
        logits = self.calibrated.uncalibrated(*args[:first], **dict(zip(self.keywords, args[first:], strict=True)))
        wide = logits.double()
        return self.calibrated.calibrate(wide).to(compute_dtype(logits)), wide


def _names(model: CalibratedModel, inputs: Inputs, given: Sequence[str] | None) -> list[str]:
    """Names of the inputs in the file: the given ones, or those of the arguments of the model."""
    number = len(inputs.tensors)
    if given is not None:
        if len(given) != number or len(set(given)) < number:
            raise ValueError(f"input_names must be {number} different names, one per example input, got {list(given)}")
        return list(given)
    if isinstance(model.model, nn.Identity):
        return [model.input]
    parameters = inspect.signature(model.model.forward).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    positional = len(inputs.args)
    if len(known) < positional:  # def forward(self, *args)
        known = [f"input_{i}" for i in range(positional)]
    return [*known[:positional], *inputs.kwargs]


def _convert(model: CalibratedModel, inputs: Inputs, names: list[str], output: str, opset: int | None) -> Any:
    """Return the ONNX model, with two outputs: calibrated, and the uncalibrated logits."""
    with _silent_exporter():
        program = torch.onnx.export(
            _WithLogits(model, tuple(inputs.kwargs)),
            inputs.tensors,
            dynamic_shapes=inputs.dynamic_shapes(),
            input_names=names,
            output_names=[output, LOGITS],
            opset_version=opset,
            custom_translation_table=translations(),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _silent_exporter() -> Iterator[None]:
    """Hide warnings of the exporter about packages and features that are not used here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _metadata(onnx: Any, model: CalibratedModel) -> list[Any]:
    """Calibrator, kind of output and class names, for whoever reads the file."""
    facts = {"dualfocal.calibrator": repr(model.calibrator), "dualfocal.output": model.output}
    if model.calibrator.class_names is not None:
        facts["dualfocal.class_names"] = json.dumps(model.calibrator.class_names)
    return [onnx.StringStringEntryProto(key=key, value=value) for key, value in facts.items()]
