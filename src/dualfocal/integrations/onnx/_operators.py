"""ONNX translations of operators that torch.onnx does not have, or has in an imprecise form."""

from collections.abc import Callable
from typing import Any

import torch

from dualfocal._extras import import_extra


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the ``custom_translation_table`` of ``torch.onnx.export``."""
    return {torch.ops.aten.searchsorted.Tensor: search_sorted, torch.ops.aten.log_sigmoid.default: log_sigmoid}


def search_sorted(
    knots: Any, values: Any, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """Number of knots below each value, row by row, by an unrolled binary search.

    With knots (C, M), padded by infinities to 2^s - 1 columns, s steps are enough. A step adds 2^i to the position of
    a value if the last knot that would be skipped is below the value. Each step costs one gather and one comparison
    of float64 numbers, so the positions are those of torch, to the bit. NaN comes last, as in torch.

    Args:
        knots: sorted rows (C, M), of known shape.
        values: (C, n).
        out_int32: must be False, as ``right``: the calibrators use neither. The names are those of torch.
        right: must be False.
        side: must be None or ``"left"``.
        sorter: must be None.
    """
    if out_int32 or right or side not in (None, "left") or sorter is not None:
        raise ValueError("only torch.searchsorted(sorted_sequence, values) can be exported to ONNX")
    op = import_extra("onnxscript").opset18
    num_knots = int(knots.shape[1])
    steps = num_knots.bit_length()
    missing = 2**steps - 1 - num_knots
    if missing:
        infinity = op.CastLike(op.Constant(value_float=float("inf")), knots)
        knots = op.Pad(knots, op.Constant(value_ints=[0, 0, 0, missing]), infinity)
    position = op.Expand(op.Constant(value_int=0), op.Shape(values))
    for step in reversed(range(steps)):
        last_skipped = op.Add(position, op.Constant(value_int=2**step - 1))
        stays = op.GreaterOrEqual(op.GatherElements(knots, last_skipped, axis=1), values)
        position = op.Where(stays, position, op.Add(position, op.Constant(value_int=2**step)))
    return op.Min(position, op.Constant(value_int=num_knots))


def log_sigmoid(x: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|)), finite for every finite x.

    The translation of torch.onnx is log(sigmoid(x)), which is -inf below -745 and off by 0.001 at -30 in onnxruntime.
    """
    op = import_extra("onnxscript").opset18
    zero, one = (op.CastLike(op.Constant(value_float=value), x) for value in (0.0, 1.0))
    return op.Sub(op.Min(x, zero), op.Log(op.Add(one, op.Exp(op.Neg(op.Abs(x))))))
