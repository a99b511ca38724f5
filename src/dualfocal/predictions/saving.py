"""Save predictions in the formats and under the names that the readers know. Never a pickle."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal._files import atomic_path, check_place
from dualfocal.predictions._formats import (
    INTEGERS,
    PredictionsError,
    Table,
    check_values,
    dtype_name,
    form,
    is_number,
    one_line_errors,
    without_axis_of_one,
)
from dualfocal.predictions._labels import WHOLE
from dualfocal.predictions._names import unless_indices
from dualfocal.predictions._tables import import_pyarrow
from dualfocal.predictions.loading import Predictions, open_prediction_file

Names = tuple[str, ...]

BLOCK = 10_000  # rows of a csv that are text at one time


class Categories(NamedTuple):
    """A column of texts that repeat."""

    indices: NDArray[np.int64]
    texts: list[str]


def save_predictions(
    path: str | os.PathLike[str],
    values: Tensor,
    *,
    input: str,
    target: Tensor | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write predictions such that ``load_predictions(path)`` gives them back.

    Arrays are called ``logits`` or ``probs`` and ``target``, with ``class_names`` beside them. Columns are called
    ``logit_0``, ``logit_1``, ... or by class names, ``logit_cat``, ``logit_dog``, ... (``prob_...``), and ``target``.
    No value changes, but dtypes may: a ``.csv`` is read as float64, and bfloat16, which only ``.safetensors`` has,
    becomes float32.

    Args:
        path: ends in ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet``. A file that is there is replaced once the
            new one is complete; after an error it is as it was.
        values: floats, ``(N, C)``; ``(N,)`` or ``(N, 1)``, one score per sample, read back as ``(N,)``; or
            ``(N, C, d1, ...)``, which no table can hold.
        input: what the values are, ``"logits"`` or ``"probs"``.
        target: integers, ``(N,)`` or ``(N, d1, ...)``. A table has them as class names where there are any; what is no
            class, such as -100, stays a number.
        class_names: one per class.

    Raises:
        ValueError: the file cannot be written, or could not be read back.
    """
    path = Path(path)
    check_place(path)
    suffix = check_suffix(path)
    check_choice("input", input, ("logits", "probs"))
    check_values(f"{path}: {input}", values)
    values = without_axis_of_one(values.detach().cpu())
    if target is not None:
        if dtype_name(target) not in INTEGERS or target.shape != values.shape[:1] + values.shape[2:]:
            rule = "labels must be integers, (N,) for (N, C) or (N,) and (N, d1, ...) for (N, C, d1, ...)"
            raise PredictionsError(f"{path}: {rule}, got {form(target)} for {form(values)}")
        target = target.cpu().to(torch.int64)
    names = None if class_names is None else unless_indices(class_names)
    if names is not None and (values.ndim == 1 or len(names) != values.shape[1] or len(set(names)) < len(names)):
        raise PredictionsError(f"{path}: each class must have a name of its own, got {names} for {form(values)}")
    if suffix in TABLE_WRITERS:
        _write(path, TABLE_WRITERS[suffix], _columns(path, input, values, target, names))
    else:
        tensors = {input: values} if target is None else {input: values, "target": target}
        _write(path, ARRAY_WRITERS[suffix], tensors, names)


def rewrite_predictions(path: str | os.PathLike[str], original: Predictions, values: Tensor) -> None:
    """Write predictions that were loaded from a file again, with other values.

    A table made from a table keeps the names, order and content of all its other columns: ids, groups, labels as they
    were. A column of lists becomes one column per class in a csv, named as by ``save_predictions``. Any other file is
    written by ``save_predictions``.

    Args:
        path: the new file, see ``save_predictions``.
        original: the predictions as they were loaded.
        values: the new values, in the shape of the old ones.

    Raises:
        ValueError: the file cannot be written, or its columns would not have names of their own.
    """
    path, columns = Path(path), original.columns
    suffix = check_suffix(path)
    source = None if original.path is None else open_prediction_file(original.path)
    if suffix not in TABLE_WRITERS or not isinstance(source, Table):
        names = original.class_names
        return save_predictions(path, values, input=original.input, target=original.labels, class_names=names)
    check_place(path)
    values = values.detach().cpu()
    rows = _as_numpy(values)
    new: dict[str, dict[str, Any]]  # what takes the place of each column of values
    if len(columns) > 1:
        new = {name: {name: column} for name, column in zip(columns, rows.T, strict=True)}
    elif rows.ndim > 1 and suffix == ".csv":
        new = {columns[0]: _class_columns(path, original.input, values, original.class_names)}
    else:
        new = {columns[0]: {columns[0]: rows}}
    old = source.carried([name for name in source.names if name not in columns])
    if both := old.keys() & {name for part in new.values() for name in part}:
        raise PredictionsError(f"{path}: has a column {min(both)!r} already, which calibrated values would need")
    parts = [new.get(name) or {name: old[name]} for name in source.names]
    _write(path, TABLE_WRITERS[suffix], {name: column for part in parts for name, column in part.items()})


def check_suffix(path: Path) -> str:
    """Return the suffix in lower case; raise a PredictionsError if there is no format for it."""
    suffix, known = path.suffix.lower(), (*ARRAY_WRITERS, *TABLE_WRITERS)
    if suffix not in known:
        raise PredictionsError(f"{path}: must end in {', '.join(known)}, got {suffix!r}")
    return suffix


# Contents of the files


def _columns(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> dict[str, Any]:
    """Return the columns of a table: one per class, and the labels by class name where there are names."""
    columns: dict[str, Any] = _class_columns(path, kind, values, class_names)
    if target is None:
        return columns
    labels = columns["target"] = target.numpy()
    if class_names is not None:
        classes = np.arange(len(class_names))
        strange = np.setdiff1d(labels, classes)  # such as -100
        if all(map(str.isdecimal, class_names)) and labels.max() >= len(classes):
            rule = f"labels that are no class must be negative where classes are numbers ({', '.join(class_names)})"
            raise PredictionsError(f"{path}: {rule}, got {labels.max()}")
        indices = np.where(np.isin(labels, classes), labels, len(classes) + np.searchsorted(strange, labels))
        columns["target"] = Categories(indices, [*class_names, *map(str, strange)])
    return columns


def _class_columns(path: Path, kind: str, values: Tensor, class_names: Names | None) -> dict[str, NDArray[Any]]:
    """Return the columns of the values, under names that the reader takes for the same classes."""
    if values.ndim == 1:
        return {kind: _as_numpy(values)}
    if values.ndim > 2:
        raise PredictionsError(
            f"{path}: {kind} of a table must be (N, C) or (N,), got {form(values)}: use .npz or .safetensors"
        )
    numbered = class_names == tuple(str(k + 1) for k in range(values.shape[1]))  # from 1, as the reader knows them
    for name in class_names or ():
        odd = name != name.strip() or name.startswith(("_", ".")) or len(name.splitlines()) != 1
        if odd or (is_number(name) and not numbered):
            raise PredictionsError(
                f"{path}: class names of a table must be one line, no number, not begin with '_', '.' or space or end "
                f"with space, got {name!r}"
            )
    names = [f"{kind.removesuffix('s')}_{name}" for name in class_names or range(values.shape[1])]
    return dict(zip(names, _as_numpy(values).T, strict=True))


def _quoted(text: str) -> str:
    """Return a field of a csv; with quotes also where another reader could take a mark for the delimiter."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"\r\n') else text


def _as_numpy(values: Tensor) -> NDArray[Any]:
    """Return the same numbers; numpy has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


# Formats


def _write(path: Path, writer: Callable[..., None], *content: object) -> None:
    with atomic_path(path) as temporary, one_line_errors(path, "cannot be written"):
        writer(temporary, *content)


def _write_npz(path: Path, tensors: dict[str, Tensor], class_names: Names | None) -> None:
    arrays = {name: _as_numpy(tensor) for name, tensor in tensors.items()}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    with path.open("wb") as file:  # np.savez would add .npz to the name of a .NPZ
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_safetensors(path: Path, tensors: dict[str, Tensor], class_names: Names | None) -> None:
    metadata = None if class_names is None else {"class_names": json.dumps(class_names)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)


def _write_csv(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(map(_quoted, columns)) + "\n")
        file.writelines(",".join(line) + "\n" for line in zip(*map(_fields, columns.values()), strict=True))


def _fields(column: Any) -> Iterator[str]:
    if isinstance(column, np.ndarray):
        # repr is the shortest text that reads back as the same float64. In blocks: text needs much memory.
        for start in range(0, len(column), BLOCK):
            yield from map(repr, column[start : start + BLOCK].tolist())
    elif isinstance(column, Categories):
        texts = list(map(_quoted, column.texts))
        yield from (texts[index] for index in column.indices)
    else:
        for item in column if isinstance(column, list) else column.to_pylist():
            yield "" if item is None else _quoted(str(item))


def _write_parquet(path: Path, columns: dict[str, Any]) -> None:
    arrow = import_pyarrow()

    def typed(column: Any) -> Any:
        if isinstance(column, np.ndarray):
            return arrow.array(column if column.ndim == 1 else list(column))
        if isinstance(column, Categories):
            return arrow.DictionaryArray.from_arrays(*column)
        if isinstance(column, list) and all(WHOLE.fullmatch(text.strip()) for text in set(column)):
            return arrow.array([int(text) for text in column])  # of a csv: "007" is a name, not a number
        return column

    arrow.parquet.write_table(arrow.table({name: typed(column) for name, column in columns.items()}), path)


ARRAY_WRITERS = {".npz": _write_npz, ".safetensors": _write_safetensors}
TABLE_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}
