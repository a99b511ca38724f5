"""Comparison of an exported model with torch, by onnxruntime on the CPU."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal._extras import import_extra
from dualfocal.calibrators import CalibratedModel
from dualfocal.integrations.onnx._inputs import SEED, Inputs

# Largest difference of a calibrated probability on equal logits, by dtype of the logits. The calibrator computes in
# float64; results of all but float64 logits are then rounded to float32.
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-7, torch.float16: 2e-7, torch.bfloat16: 2e-7}
MARGIN = 1e-13  # relative difference of class probabilities between two implementations of softmax in float64
# Largest difference of the model itself, see ``model_difference``: what torch.onnx does to the uncalibrated logits.
LOGIT_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
LOGITS = "uncalibrated_logits"  # name of the second output
BATCHES = (1, 2, 7)
KNOTS = 256  # largest number of knots of a class that are tried


@dataclass(frozen=True)
class OnnxAgreement:
    """Differences between onnxruntime and torch.

    Attributes:
        inputs: names of the inputs of the file.
        output: name of the output of the file.
        opset: ONNX opset version of the file.
        dtype: dtype of the model's logits, for example ``"float32"``.
        bound: largest allowed difference of a calibrated probability on equal logits.
        difference: largest difference of a calibrated probability on equal logits, apart from rows at jumps.
        rows: number of rows on which the calibrator was compared.
        rows_at_jumps: number of these rows whose class probabilities lie so close to a jump or on so steep a part of a
            binning method that rounding can change the result by more than the bound.
        difference_at_jumps: largest difference in the rows at jumps.
        logit_difference: largest difference of a class probability before calibration, or of an uncalibrated logit
            (relative to that logit if it is beyond 1).
        batch_sizes: numbers of rows with which the whole model was run.
    """

    inputs: tuple[str, ...]
    output: str
    opset: int
    dtype: str
    bound: float
    difference: float
    rows: int
    rows_at_jumps: int
    difference_at_jumps: float
    logit_difference: float
    batch_sizes: tuple[int, ...]

    def __str__(self) -> str:
        lines = [
            f"inputs {', '.join(self.inputs)}; output {self.output}; opset {self.opset}; {self.dtype} logits",
            f"calibrated probabilities of {self.rows:,} rows agree with torch within {self.difference:.1e} "
            f"(bound {self.bound:.0e})",
            f"uncalibrated logits agree within {self.logit_difference:.1e}, "
            f"batch sizes {', '.join(map(str, self.batch_sizes))}",
        ]
        if self.rows_at_jumps:
            lines.append(
                f"{self.rows_at_jumps:,} of these rows lie at a jump or on a steep part of the calibrator, where "
                f"rounding decides: largest difference {self.difference_at_jumps:.1e}"
            )
        return "\n".join(lines)


class Comparison:
    """Largest differences of calibrated probabilities, over several calls."""

    def __init__(self, model: CalibratedModel, example: Tensor, path: Path) -> None:
        self.model, self.device, self.path = model, example.device, path
        self.bound = BOUNDS[example.dtype]
        self.rows = self.rows_at_jumps = 0
        self.difference = self.difference_at_jumps = 0.0

    def add(self, logits: Tensor, result: Tensor, what: str) -> None:
        """Compare the result of onnxruntime with that of torch on the same float64 logits.

        Raises:
            RuntimeError: they differ by more than the bound and the sensitivity of the calibrator.
        """
        logits, result = logits.to(self.device), result.to(self.device)
        expected = self.model.calibrate(logits).to(result.dtype)
        ours, theirs = (
            _probabilities(values, self.model.output, self.model.class_dim) for values in (expected, result)
        )
        if ours.shape != theirs.shape or not torch.equal(ours.isnan(), theirs.isnan()):
            raise RuntimeError(f"{self.path}: not written: onnxruntime gives other shapes or NaN than torch, {what}")
        difference = (ours - theirs).abs().nan_to_num(0.0).amax(1)
        columns = logits if logits.ndim == 1 else logits.movedim(self.model.class_dim, 1)
        allowed = self.model.calibrator.sensitivity(columns, input=self.model.input, margin=MARGIN)
        wrong = difference > self.bound + allowed
        if bool(wrong.any()):
            raise RuntimeError(
                f"{self.path}: not written: a calibrated probability of onnxruntime differs from torch by "
                f"{float(difference[wrong].max()):.1e}, more than {self.bound:.0e}, {what}"
            )
        jump = allowed > self.bound
        self.rows += len(difference)
        self.rows_at_jumps += int(jump.sum())
        self.difference = max(self.difference, _largest(difference[~jump]))
        self.difference_at_jumps = max(self.difference_at_jumps, _largest(difference[jump]))


def verify(model: CalibratedModel, proto: Any, inputs: Inputs, path: Path) -> OnnxAgreement:
    """Compare an ONNX model, which has the uncalibrated logits as its second output, with torch.

    Raises:
        RuntimeError: onnxruntime cannot run the model, or its results differ too much.
    """
    logits = model.uncalibrated(*inputs.args, **inputs.kwargs)
    comparison = Comparison(model, logits, path)
    _verify_calibrator(comparison, proto, inputs, logits)
    full, alone = _session(proto, path), _session(_without_logits(proto), path)
    batches = [inputs, *(inputs.perturbed(scale) for scale in (0.1, 3.0))]
    batches += [inputs.resized(rows) for rows in BATCHES if 0 in inputs.dynamic_dims]
    logit_difference = 0.0
    for batch in batches:
        what = f"on example_inputs, or on noise added to them, with {len(batch)} rows"
        feed = dict(zip((value.name for value in proto.graph.input), batch.tensors, strict=True))
        result, wide = _run(full, feed, path)
        comparison.add(wide, result, what)
        expected = model.uncalibrated(*batch.args, **batch.kwargs)
        difference = model_difference(expected.cpu().double(), wide, model.input, model.class_dim)
        logit_difference = max(logit_difference, difference)
        comparison.add(wide, _run(alone, feed, path)[0], what)
    if logit_difference > LOGIT_BOUNDS[logits.dtype]:
        raise RuntimeError(
            f"{path}: not written: the uncalibrated logits of onnxruntime differ from torch by {logit_difference:.1e}, "
            f"more than {LOGIT_BOUNDS[logits.dtype]:.0e}: check torch.onnx.export of the model itself"
        )
    return OnnxAgreement(
        inputs=tuple(value.name for value in proto.graph.input),
        output=proto.graph.output[0].name,
        opset=next(entry.version for entry in proto.opset_import if not entry.domain),
        dtype=str(logits.dtype).removeprefix("torch."),
        bound=comparison.bound,
        difference=comparison.difference,
        rows=comparison.rows,
        rows_at_jumps=comparison.rows_at_jumps,
        difference_at_jumps=comparison.difference_at_jumps,
        logit_difference=logit_difference,
        batch_sizes=tuple(dict.fromkeys(len(batch) for batch in batches)),
    )


def model_difference(expected: Tensor, actual: Tensor, kind: str, class_dim: int) -> float:
    """Largest difference of a class probability or of a logit, which is relative to that logit if it is beyond 1.

    One huge logit, such as that of a masked class, allows no error of the others. The difference is infinite if other
    numbers are NaN or infinite.

    Args:
        expected: what the model returns in torch, float64.
        actual: what it returns in onnxruntime.
        kind: ``"logits"`` or ``"probs"``, whichever the model returns.
        class_dim: dimension of the classes.

    >>> inf, nan = math.inf, math.nan
    >>> model_difference(torch.tensor([[8.0, -inf], [nan, 0.0]]), torch.tensor([[6.0, -inf], [nan, 0.0]]), "logits", 1)
    0.25
    >>> round(model_difference(torch.tensor([[5000.0, 5001.0]]), torch.tensor([[5001.0, 5000.0]]), "logits", 1), 3)
    0.462
    >>> model_difference(torch.tensor([[10.0, -inf]]), torch.tensor([[10.0, -9e9]]), "logits", 1)
    inf
    """
    if not torch.equal(expected.isnan(), actual.isnan()):
        return math.inf
    scale = expected.abs().nan_to_num(1.0, 1.0).clamp_min(1.0)
    of_logits = torch.where(expected == actual, 0.0, expected - actual).abs() / scale
    ours, theirs = (_probabilities(values, kind, class_dim) for values in (expected, actual))
    return max(_largest(difference.nan_to_num(0.0, math.inf)) for difference in (of_logits, (ours - theirs).abs()))


def _probabilities(values: Tensor, kind: str, class_dim: int) -> Tensor:
    """Return rows of probabilities in float64, (n, C), or (n, 1) for log-odds."""
    values = values.double()
    if values.ndim == 1:
        return (values if kind == "probs" else values.sigmoid())[:, None]
    rows = values.movedim(class_dim, -1)
    rows = rows.reshape(-1, rows.shape[-1])
    return rows if kind == "probs" else rows.softmax(1)


def _verify_calibrator(comparison: Comparison, proto: Any, inputs: Inputs, example: Tensor) -> None:
    """Compare the calibrator's part of the graph on hard logits."""
    model, dtype = comparison.model, example.dtype
    graph, start = _calibrator_graph(proto)
    session = _session(graph, comparison.path)
    classes = 1 if example.ndim == 1 else example.shape[model.class_dim]
    for what, rows in hard_rows(model, classes):
        if model.input == "probs":
            rows = rows.sigmoid() if classes == 1 else rows.softmax(1)
        rows = rows.to(dtype).double()  # values that the model can return
        for logits in _shaped(rows, example, model.class_dim, dynamic=0 in inputs.dynamic_dims):
            names = [value.name for value in proto.graph.input]
            feed = dict(zip(names, inputs.resized(len(logits)).tensors, strict=True)) | {start: logits}
            comparison.add(logits, _run(session, feed, comparison.path)[0], f"on {what}")


def hard_rows(model: CalibratedModel, classes: int) -> Iterator[tuple[str, Tensor]]:
    """Logits that are hard to calibrate, (n, C) in float64, with their description."""
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(500, classes, dtype=torch.float64, generator=generator)
    for scale in (1.0, 5.0, 50.0):
        yield f"random logits of scale {scale:g}", scale * noise
    one = torch.eye(classes, dtype=torch.float64)[:64]
    yield "saturated logits", torch.cat([sign * size * one for size in (15, 40, 500, 6e4) for sign in (1, -1)])
    pairs = noise[:100].clone()
    pairs[:, : min(2, classes)] = 3.0
    yield "ties", torch.cat([torch.zeros(1, classes), torch.full((1, classes), -3.25), pairs])
    for name, knots in model.calibrator.named_buffers():
        if name.rpartition(".")[2] == "knots":
            yield "knots", _rows_at_knots(knots.double().cpu(), classes)
    holes = noise[:6].clone()
    holes[:2, 0], holes[2:4, 0] = math.nan, -math.inf
    yield "NaN and -inf", holes


def _rows_at_knots(knots: Tensor, classes: int) -> Tensor:
    """Logits whose probability of one class is a knot, or next to it; the other classes share the rest."""
    parts = []
    for k, row in enumerate(knots[:64]):
        p = row.unique()
        p = p[:: max(1, len(p) // KNOTS)]
        p = torch.cat([p * (1 + shift) for shift in (0.0, 2e-16, -2e-16, 1e-9, -1e-9)]).clamp(1e-300, 1 - 1e-16)
        if classes == 1:
            parts.append((p.log() - (-p).log1p())[:, None] * (1 if k else -1))
        else:
            rest = (-p).log1p() - math.log(classes - 1)
            parts.append(rest[:, None].repeat(1, classes).index_copy(1, torch.tensor([k]), p.log()[:, None]))
    return torch.cat(parts)


def _shaped(rows: Tensor, example: Tensor, class_dim: int, dynamic: bool) -> Iterator[Tensor]:
    """Arrange (n, C) rows as outputs of the model: one tensor of any batch size, or several of that of the example."""
    shape = torch.Size([len(example)]) if example.ndim == 1 else example.movedim(class_dim, -1).shape[:-1]
    size = shape.numel() // shape[0] * (1 if dynamic else shape[0])
    rows = rows[torch.arange(math.ceil(len(rows) / size) * size) % len(rows)]
    for part in [rows] if dynamic else torch.split(rows, size):
        if example.ndim == 1:
            yield part[:, 0]
        else:
            yield part.reshape(-1, *shape[1:], rows.shape[1]).movedim(-1, class_dim).contiguous()


def _calibrator_graph(proto: Any) -> tuple[Any, str]:
    """Return the graph from the uncalibrated logits to the calibrated output, and the name of these logits.

    The inputs of the model remain inputs: the exporter takes the number of rows from them.
    """
    utils = import_extra("onnx.utils")
    [source] = [node for node in proto.graph.node if LOGITS in node.output]
    start = source.input[0] if source.op_type == "Identity" else LOGITS  # float64 logits are not converted
    names = dict.fromkeys([start, *(value.name for value in proto.graph.input)])
    return utils.Extractor(proto).extract_model(list(names), [proto.graph.output[0].name]), start


def _without_logits(proto: Any) -> Any:
    file = import_extra("onnx").ModelProto()
    file.CopyFrom(proto)
    del file.graph.output[1]
    return file


def _session(proto: Any, path: Path) -> Any:
    runtime = import_extra("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        return runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class of its own for each kind
        raise RuntimeError(
            f"{path}: not written: onnxruntime cannot load the model on the CPU: {error}; "
            "if the model is in half precision, export it in float32: model.float()"
        ) from error


def _run(session: Any, feed: Mapping[str, Tensor], path: Path) -> tuple[Tensor, ...]:
    try:
        outputs = session.run_with_ort_values(None, {name: _ort_value(tensor) for name, tensor in feed.items()})
    except Exception as error:  # as above
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in feed.values())
        raise RuntimeError(f"{path}: not written: onnxruntime fails for inputs of shape {shapes}: {error}") from error
    return tuple(torch.from_numpy(output.numpy()) for output in outputs)


def _ort_value(tensor: Tensor) -> Any:
    runtime = import_extra("onnxruntime")
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        bits, kind = tensor.view(torch.int16).numpy(), import_extra("onnx").TensorProto.BFLOAT16
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
    return runtime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
