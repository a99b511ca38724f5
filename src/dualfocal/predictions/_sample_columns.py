"""Groups, clusters and weights: one value per sample."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._formats.interface import (
    FLOATS,
    INTEGERS,
    Column,
    PredictionFile,
    dtype_name,
    form,
    is_number,
    shortened,
)
from dualfocal.predictions._labels import WHOLE
from dualfocal.predictions._names import Roles

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def sample_columns(
    source: PredictionFile, roles: Roles, others: Mapping[str, Column], values: Tensor, origin: str
) -> tuple[dict[str, NDArray[Any]], str]:
    """Return the columns "group", "cluster" and "weight" that were requested, and a remark on their names.

    Args:
        source: the file.
        roles: which arrays or columns hold what.
        others: the arrays or columns besides the values, by name.
        values: the predictions.
        origin: where the predictions come from, for messages.

    Raises:
        PredictionsError: a column does not have one value per sample, or weights are not valid.
    """
    columns, remark = {}, ""
    for kind, name in (("group", roles.group), ("cluster", roles.cluster), ("weight", roles.weight)):
        if name is None:
            continue
        column = _plain_groups(source, name, others[name])
        per_pixel = kind == "weight" and column.shape == (len(values), *values.shape[2:])
        if column.shape != (len(values),) and not per_pixel:
            raise source.error(f"each row needs one {kind}, got {origin} and {name!r} {form(column)}")
        columns[kind] = _weights(source, name, column) if kind == "weight" else column
        remark += f", {kind}s from {name!r}"
    return columns, remark


def _plain_groups(source: PredictionFile, name: str, groups: Column) -> NDArray[Any]:
    """Return groups as an array of strings, numbers or booleans."""
    if isinstance(groups, list):  # from a table
        texts = set(groups)
        if all(WHOLE.fullmatch(text) for text in texts):
            dtype = "int64"
        elif all(NUMBER.fullmatch(text) and is_number(text) for text in texts):
            dtype = "float64"
        else:
            dtype = f"U{max(map(len, texts))}"
        source.check_memory(len(groups) * np.dtype(dtype).itemsize)
        return np.array(groups, dtype=dtype)
    if isinstance(groups, Tensor) and groups.is_floating_point():
        groups = groups.double()
    if dtype_name(groups) in (*FLOATS, *INTEGERS) or (isinstance(groups, np.ndarray) and groups.dtype.kind == "U"):
        return np.asarray(groups)
    raise source.error(f"groups must be strings, numbers or booleans, but {name!r} is {dtype_name(groups)}")


def _weights(source: PredictionFile, name: str, column: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights as numbers, which must be finite and not negative."""
    if column.dtype.kind not in "iufb":
        row = next((i for i, text in enumerate(column.tolist()) if not is_number(text) or "n" in text.lower()), 0)
        got = f"{name!r} is {shortened(repr(str(column[row])))} in {source.place(row)}"
        raise source.error(f"weights must be finite numbers, but {got}: name another column with --weight")
    weights = column.astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(bad.argmax()) // max(weights[0].size, 1)
        value = weights[row] if weights.ndim == 1 else weights[row][bad[row]][0]
        raise source.error(
            f"weights must be finite and not negative, but {name!r} is {value:g} in {source.place(row)}: correct it, "
            "or set it to 0 to leave the sample out"
        )
    if not weights.any():
        raise source.error(f"weights must not be 0 for all samples, but {name!r} is")
    return weights
