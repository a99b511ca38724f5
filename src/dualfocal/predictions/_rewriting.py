"""A table of predictions written again with other values; every other column stays as it is."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._files import check_place
from dualfocal.predictions._labels import WHOLE
from dualfocal.predictions._readers import open_source
from dualfocal.predictions._sources import PredictionsError, Table
from dualfocal.predictions._tables import import_pyarrow
from dualfocal.predictions._writers import BLOCK, as_numpy, class_columns, quoted, writing

TABLES = (".csv", ".parquet")


def rewrite_table(
    path: Path,
    original: Path,
    values: Tensor,
    *,
    input: str,
    columns: Sequence[str],
    class_names: Sequence[str] | None = None,
) -> bool:
    """Write the table ``original`` again with new values in ``columns``, if both it and ``path`` are tables.

    Columns keep their names, order and content: ids, groups, labels as they were. Where a column of lists goes into a
    csv, which has none, the columns in its place are called as ``save_predictions`` calls them.

    Returns:
        Whether it was written: False where one of the two is no table.

    Raises:
        PredictionsError: the file cannot be written, or its columns would not have names of their own.
    """
    if path.suffix.lower() not in TABLES or original.is_dir():
        return False
    source = open_source(original)
    if not isinstance(source, Table):
        return False
    check_place(path)
    rows = as_numpy(values.detach().cpu())
    new: dict[str, NDArray[Any]] = {columns[0]: rows}
    if len(columns) > 1:
        new = dict(zip(columns, rows.T, strict=True))
    elif rows.ndim > 1 and path.suffix.lower() == ".csv":
        names = None if class_names is None else tuple(class_names)
        new = dict(zip(class_columns(path, input, values, names), rows.T, strict=True))
    old = source.carried([name for name in source.names if name not in columns])
    if both := new.keys() & old.keys():
        raise PredictionsError(f"{path}: has a column {min(both)!r} already, which calibrated values would need")
    together: dict[str, Any] = {}
    for name in source.names:
        if name not in columns:
            together[name] = old[name]
        elif name in new:
            together[name] = new[name]
        else:
            together |= new
    {".csv": _write_csv, ".parquet": _write_parquet}[path.suffix.lower()](path, together)
    return True


def _write_csv(path: Path, columns: dict[str, Any]) -> None:
    with writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(map(quoted, columns)) + "\n")
        lines = zip(*map(_texts, columns.values()), strict=True)
        file.writelines(",".join(line) + "\n" for line in lines)


def _texts(column: Any) -> Iterator[str]:
    if isinstance(column, np.ndarray):
        # The shortest text that reads back as the same float64; not all as objects of Python at one time.
        for start in range(0, len(column), BLOCK):
            yield from map(repr, column[start : start + BLOCK].tolist())
    else:
        for item in column if isinstance(column, list) else column.to_pylist():
            yield "" if item is None else quoted(str(item))


def _write_parquet(path: Path, columns: dict[str, Any]) -> None:
    arrow = import_pyarrow(path)
    typed = {}
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            typed[name] = arrow.array(column if column.ndim == 1 else list(column))
        elif isinstance(column, list):  # of a csv: "007" is a name, not a number
            texts = [text.strip() for text in column]
            numbers = all(WHOLE.fullmatch(text) for text in set(texts))
            typed[name] = arrow.array([int(text) for text in texts] if numbers else column)
        else:
            typed[name] = column
    with writing(path) as temporary:
        arrow.parquet.write_table(arrow.table(typed), temporary)
