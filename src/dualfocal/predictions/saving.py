"""Save predictions in the formats, and with the names, that ``load_predictions`` reads."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._extras import import_extra
from dualfocal.checks import check_choice
from dualfocal.files import atomic_path, check_place
from dualfocal.predictions._class_columns import unless_indices
from dualfocal.predictions._formats.arrow import import_pyarrow
from dualfocal.predictions._formats.interface import (
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
from dualfocal.predictions._formats.readers import open_prediction_file
from dualfocal.predictions._labels import WHOLE
from dualfocal.predictions.loading import Predictions

Names = tuple[str, ...]

# How programs write floats: "67.59" or "1e-05"; "007", "1e5" and "+1.0" may be names.
DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?|-?[1-9](\.[0-9]+)?e[-+][0-9]{2,3}")
BLOCK = 10_000  # rows of a csv converted to text at a time


class Categories(NamedTuple):
    """A column of repeated texts."""

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
    """Write predictions to a file that ``load_predictions(path)`` reads back.

    Arrays are named ``logits`` or ``probs``, ``target`` and ``class_names``. Columns are named ``logit_0``,
    ``logit_1``, ... or, with class names, ``logit_cat``, ``logit_dog``, ... (``prob_...`` for probabilities), and
    ``target``. Values do not change, but dtypes can: a ``.csv`` is read as float64, and bfloat16, which only
    ``.safetensors`` supports, becomes float32.

    Args:
        path: ends in ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet``. An existing file is replaced only when the
            new one is complete.
        values: floats, ``(N, C)``; ``(N,)`` or ``(N, 1)`` for one score per sample, read back as ``(N,)``; or
            ``(N, C, d1, ...)``, not for tables.
        input: whether the values are ``"logits"`` or ``"probs"``.
        target: integers, ``(N,)`` or ``(N, d1, ...)``; or 0 and 1 for each label of a multi-label problem, ``(N, L)``,
            in a table one column per label, ``target_cat``, ``target_dog``, ... In a table, class indices are written
            as class names if these are given; values that are not a class, such as -100, stay numbers.
        class_names: one name per class.

    Raises:
        ValueError: the file cannot be written, or could not be read back.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_predictions(f"{folder}/a.csv", torch.tensor([[2.0, 1.0]]), input="logits", target=torch.tensor([0]))
    ...     print(Path(folder, "a.csv").read_text())
    logit_0,logit_1,target
    2.0,1.0,0
    <BLANKLINE>
    """
    path = Path(path)
    check_place(path)
    suffix = check_suffix(path)
    check_choice("input", input, ("logits", "probs"))
    check_values(f"{path}: {input}", values)
    values = without_axis_of_one(values.detach().cpu())
    if target is not None:
        # A target of the shape of (N, L) values is that of a multi-label problem.
        of_labels = target.shape == values.shape and values.ndim == 2
        if dtype_name(target) not in INTEGERS or not (of_labels or target.shape == values.shape[:1] + values.shape[2:]):
            rule = "labels must be integers, (N,) for (N, C) or (N,) and (N, d1, ...) for (N, C, d1, ...)"
            raise PredictionsError(f"{path}: {rule}, got {form(target)} for {form(values)}")
        target = target.cpu()
        if target.dtype == torch.uint64 and (target.numpy() >= 2**63).any():
            raise PredictionsError(f"{path}: labels must be below 2**63, got {target.numpy().max()}")
        target = target.to(torch.int64)
    names = None if class_names is None else unless_indices(class_names)
    if names is not None and (values.ndim == 1 or len(names) != values.shape[1] or len(set(names)) < len(names)):
        raise PredictionsError(
            f"{path}: class_names must be one distinct name per class, got {names} for {form(values)}"
        )
    if suffix in TABLE_WRITERS:
        _write(path, TABLE_WRITERS[suffix], _columns(path, input, values, target, names))
    else:
        tensors = {input: values} if target is None else {input: values, "target": target}
        _write(path, ARRAY_WRITERS[suffix], tensors, names)


def rewrite_predictions(
    path: str | os.PathLike[str], original: Predictions, values: Tensor, *, max_memory: int | str | None = None
) -> None:
    """Write predictions that were loaded from a file to a new file, with new values.

    If both files are tables, the new one keeps all other columns unchanged: ids, groups, labels. In a csv, a column of
    lists becomes one column per class, named as by ``save_predictions``. All other files are written by
    ``save_predictions``. Probabilities that were loaded from percent are written in percent.

    Args:
        path: the new file, see ``save_predictions``.
        original: the loaded predictions.
        values: the new values, with the shape of the old ones.
        max_memory: the most memory that reading the other columns may take, as in ``load_predictions``.

    Raises:
        ValueError: the file cannot be written, or two of its columns would have the same name.
    """
    path, columns = Path(path), original.columns
    suffix = check_suffix(path)
    values = 100 * values if original.percent else values
    source = None if original.path is None else open_prediction_file(original.path, max_memory)
    in_table = isinstance(source, Table) and set(columns) <= source.name_set  # values may come from another file
    if suffix not in TABLE_WRITERS or not isinstance(source, Table) or not in_table:
        names = original.class_names
        return save_predictions(path, values, input=original.input, target=original.labels, class_names=names)
    check_place(path)
    values = values.detach().cpu()
    rows = _as_numpy(values)
    new: dict[str, dict[str, Any]]  # columns that replace each column of values
    if len(columns) > 1:
        new = {name: {name: column} for name, column in zip(columns, rows.T, strict=True)}
    elif rows.ndim > 1 and suffix == ".csv":
        new = {columns[0]: _class_columns(path, original.input, values, original.class_names)}
    else:
        new = {columns[0]: {columns[0]: rows}}
    replaced = set(columns)
    old = source.carried([name for name in source.names if name not in replaced])
    if original.kept is not None:
        old = {name: _rows(column, original.kept) for name, column in old.items()}
    if both := old.keys() & {name for part in new.values() for name in part}:
        raise PredictionsError(f"{path}: the new values need a column {min(both)!r}, which already exists")
    parts = [new.get(name) or {name: old[name]} for name in source.names]
    _write(path, TABLE_WRITERS[suffix], {name: column for part in parts for name, column in part.items()})


def check_suffix(path: Path) -> str:
    """Return the suffix in lower case, or raise a PredictionsError if no format has it."""
    suffix, known = path.suffix.lower(), (*ARRAY_WRITERS, *TABLE_WRITERS)
    if suffix not in known:
        raise PredictionsError(f"{path}: must end in {', '.join(known)}, got {suffix!r}")
    return suffix


# Contents of the files


def _columns(path: Path, kind: str, values: Tensor, target: Tensor | None, class_names: Names | None) -> dict[str, Any]:
    """Return the columns of a table: one per class, and the labels, as class names if there are names."""
    columns: dict[str, Any] = _class_columns(path, kind, values, class_names)
    if target is None:
        return columns
    if target.ndim == 2:  # 0 or 1 for each label
        names = class_names or tuple(map(str, range(target.shape[1])))
        return columns | {f"target_{name}": column for name, column in zip(names, target.numpy().T, strict=True)}
    labels = columns["target"] = target.numpy()
    if class_names is not None:
        classes = np.arange(len(class_names))
        others = np.setdiff1d(labels, classes)  # such as -100
        if all(map(str.isdecimal, class_names)) and labels.max() >= len(classes):
            rule = f"labels that are not a class must be negative if classes are numbers ({', '.join(class_names)})"
            raise PredictionsError(f"{path}: {rule}, got {labels.max()}")
        indices = np.where(np.isin(labels, classes), labels, len(classes) + np.searchsorted(others, labels))
        columns["target"] = Categories(indices, [*class_names, *map(str, others)])
    return columns


def _class_columns(path: Path, kind: str, values: Tensor, class_names: Names | None) -> dict[str, NDArray[Any]]:
    """Return the columns of the values, named so that they are read back as the same classes."""
    if values.ndim == 1:
        return {kind: _as_numpy(values)}
    if values.ndim > 2:
        raise PredictionsError(
            f"{path}: {kind} of a table must be (N, C) or (N,), got {form(values)}: use .npz or .safetensors"
        )
    numbered = class_names == tuple(str(k + 1) for k in range(values.shape[1]))  # from 1, which the reader recognises
    for name in class_names or ():
        odd = name != name.strip() or name.startswith(("_", ".")) or len(name.splitlines()) != 1
        if odd or (is_number(name) and not numbered):
            raise PredictionsError(
                f"{path}: a class name in a table must be one line, not a number, not start with '_', '.' or a space, "
                f"and not end with a space, got {name!r}"
            )
    names = [f"{kind.removesuffix('s')}_{name}" for name in class_names or range(values.shape[1])]
    return dict(zip(names, _as_numpy(values).T, strict=True))


def _quoted(text: str) -> str:
    """Return a csv field, quoted if it contains any character that a reader could take for a delimiter."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"\r\n') else text


def _rows(column: Any, kept: NDArray[np.intp]) -> Any:
    """Return the kept rows of a list of texts or of a pyarrow column."""
    return [column[row] for row in kept.tolist()] if isinstance(column, list) else column.take(kept)


def _as_numpy(values: Tensor) -> NDArray[Any]:
    """Convert to numpy, which has no bfloat16."""
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


# Formats


def _write(path: Path, writer: Callable[..., None], *content: object) -> None:
    with atomic_path(path) as temporary, one_line_errors(path, "cannot be written"):
        writer(temporary, *content)


def _write_npz(path: Path, tensors: dict[str, Tensor], class_names: Names | None) -> None:
    arrays = {name: _as_numpy(tensor) for name, tensor in tensors.items()}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    with path.open("wb") as file:  # given a path, np.savez would append .npz to a name that ends in .NPZ
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_safetensors(path: Path, tensors: dict[str, Tensor], class_names: Names | None) -> None:
    metadata = None if class_names is None else {"class_names": json.dumps(class_names)}
    import_extra("safetensors")
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)


def _write_csv(path: Path, columns: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(map(_quoted, columns)) + "\n")
        file.writelines(",".join(line) + "\n" for line in zip(*map(_fields, columns.values()), strict=True))


def _fields(column: Any) -> Iterator[str]:
    if isinstance(column, np.ndarray):
        # repr is the shortest text that reads back as the same float64. Convert in blocks, because text needs memory.
        for start in range(0, len(column), BLOCK):
            yield from map(repr, column[start : start + BLOCK].tolist())
    elif isinstance(column, Categories):
        texts = list(map(_quoted, column.texts))
        yield from (texts[index] for index in column.indices)
    else:
        for item in column if isinstance(column, list) else column.to_pylist():
            yield "" if item is None else _quoted(str(item))


def _numbers(texts: list[str]) -> list[Any]:
    """Return a column of a csv as numbers, or unchanged if a text is not a number or if information would be lost."""
    distinct = {text.strip() for text in texts}
    if all(map(WHOLE.fullmatch, distinct)):
        return [int(text) for text in texts]
    if all(map(DECIMAL.fullmatch, distinct)) and len({*map(float, distinct)}) == len(distinct):  # not "1.1" and "1.10"
        return [float(text) for text in texts]
    return texts


def _write_parquet(path: Path, columns: dict[str, Any]) -> None:
    arrow = import_pyarrow()

    def typed(column: Any) -> Any:
        if isinstance(column, np.ndarray):
            return arrow.array(column if column.ndim == 1 else list(column))
        if isinstance(column, Categories):
            return arrow.DictionaryArray.from_arrays(*column)
        return arrow.array(_numbers(column)) if isinstance(column, list) else column

    arrow.parquet.write_table(arrow.table({name: typed(column) for name, column in columns.items()}), path)


ARRAY_WRITERS = {".npz": _write_npz, ".safetensors": _write_safetensors}
TABLE_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}
