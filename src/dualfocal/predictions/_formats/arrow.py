"""Tables that pyarrow reads, and the first of them: parquet."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualfocal._extras import import_extra
from dualfocal.predictions._formats.interface import Column, Content, Look, Table, one_line_errors, shortened

PARQUET_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
PARQUET_WIDTHS["BYTE_ARRAY"] = 16  # an index and a reference per row; the texts are counted by their size

BUFFER = 1 << 20  # bytes of a column that are read at a time; otherwise all of a row group

Converted = tuple[NDArray[Any], NDArray[np.bool_] | None]  # an array, and which of its rows are missing


class ArrowTable(Table):
    """A table that pyarrow reads. Each format is a subclass that sets ``names`` and ``schema``."""

    schema: Any

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path):
            self.arrow = import_pyarrow()

    @abstractmethod
    def columns(self, names: list[str]) -> dict[str, Any]:
        """Read columns, after checking that they fit into memory."""

    def describe(self, names: list[str]) -> list[str]:
        return [f"{shortened(repr(name))} ({self.schema.field(name).type})" for name in names]

    def looks(self) -> dict[str, Look]:
        types = self.arrow.types
        looks = {}
        for field in self.schema:
            kind, ndim = field.type, 1
            while types.is_nested(kind) and hasattr(kind, "value_type"):
                kind, ndim = kind.value_type, ndim + 1
            if types.is_floating(kind):
                name = "float"
            elif types.is_integer(kind) or types.is_boolean(kind):
                name = "integer"
            else:
                text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
                name = "text" if text else "other"
            looks[field.name] = Look(name, ndim)
        return looks

    def read(self, values: list[str], others: list[str]) -> Content:
        names = list(dict.fromkeys(values + others))
        with one_line_errors(self.path):
            return self._content(self.columns(names), values, others)

    def _content(self, columns: dict[str, Any], values: list[str], others: list[str]) -> Content:
        converted = {name: self._convert(name, column) for name, column in columns.items()}
        missing = {name: mask for name, (_, mask) in converted.items() if mask is not None}
        arrays = {name: array for name, (array, _) in converted.items()}
        return Content(
            {name: arrays[name] for name in values}, {name: _plain(arrays[name]) for name in others}, missing
        )

    def carried(self, names: list[str]) -> dict[str, Any]:
        with one_line_errors(self.path):
            columns = self.columns(names)
            repeated = [name for name in names if columns[name].type != self.schema.field(name).type]
            self.check_memory(sum(_num_bytes_repeated(columns[name]) for name in repeated))
            return columns | {name: columns[name].cast(self.schema.field(name).type) for name in repeated}

    def _convert(self, name: str, column: Any) -> Converted:
        """Return a column as (N,), or a column of lists of length K as (N, K); and which rows have empty cells."""
        types = self.arrow.types
        if types.is_dictionary(column.type):  # text or categorical
            return _categories(column)
        missing = np.asarray(column.is_null()) if column.null_count else None
        if types.is_nested(column.type):
            return self._lists(name, column, missing)
        if missing is not None and (types.is_integer(column.type) or types.is_boolean(column.type)):
            column = column.fill_null(0 if types.is_integer(column.type) else False)  # stay integers and booleans
        return np.asarray(column), missing

    def _lists(self, name: str, column: Any, missing: NDArray[np.bool_] | None) -> Converted:
        filled = np.arange(len(column)) if missing is None else np.flatnonzero(~missing)
        lengths = np.asarray(self.arrow.compute.list_value_length(column).fill_null(0))[filled]
        if len(odd := np.flatnonzero(lengths != lengths[:1])):
            raise self.error(
                f"the lists of column {name!r} must have the same length, got {lengths[0]} in "
                f"{self.place(filled[0])} and {lengths[odd[0]]} in {self.place(filled[odd[0]])}"
            )
        width = int(lengths[0]) if len(lengths) else 1
        array, empty = self._convert(name, self.arrow.compute.list_flatten(column))
        array = array.reshape(len(filled), width)
        if missing is not None:
            rows = np.zeros((len(column), width), array.dtype)
            rows[filled] = array
            array = rows
        if empty is not None:
            missing = np.zeros(len(column), bool) if missing is None else missing.copy()
            missing[filled] |= empty.reshape(len(filled), width).any(1)
        return array, missing


class ParquetFile(ArrowTable):
    """A ``.parquet`` file."""

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path):
            metadata = self.arrow.parquet.read_metadata(path)
            self.schema = metadata.schema.to_arrow_schema()
            self.leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        self.names = list(self.schema.names)

    def read(self, values: list[str], others: list[str]) -> Content:
        self._check_lists({*values, *others})
        return super().read(values, others)

    def columns(self, names: list[str]) -> dict[str, Any]:
        with self._open(names) as file:
            self.check_memory(_num_bytes(file.metadata, {leaf.path for leaf in self._leaves(names)}))
            table = file.read(columns=names)
        return dict(zip(table.column_names, table.columns, strict=True))

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        names = list(dict.fromkeys(values + others))
        self._check_lists(set(names))
        with one_line_errors(self.path), self._open(names) as file:
            start = 0
            # One row group at a time, in one thread: for a file of 230 MB, reading took 219 MB instead of 355 MB.
            groups = range(file.metadata.num_row_groups)
            batches = (
                batch
                for group in groups
                for batch in file.iter_batches(num_rows, row_groups=[group], columns=names, use_threads=False)
            )
            for table in self._tables(batches, num_rows):
                self.first_row, start = start, start + len(table)
                self.fraction = start / file.metadata.num_rows
                yield self._content(dict(zip(table.column_names, table.columns, strict=True)), values, others)

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        paths = {leaf.path for leaf in self._leaves(values + others)}
        with one_line_errors(self.path), self.arrow.parquet.ParquetFile(self.path) as file:
            return int(_num_bytes(file.metadata, paths) / max(1, file.metadata.num_rows))

    def _tables(self, batches: Iterator[Any], num_rows: int) -> Iterator[Any]:
        """Turn batches, which end where a row group ends, into tables of equal length."""
        waiting: list[Any] = []
        for batch in batches:
            waiting.append(batch)
            while sum(map(len, waiting)) >= num_rows:
                table = self.arrow.Table.from_batches(waiting)
                yield table[:num_rows]
                waiting = table[num_rows:].to_batches()
        if sum(map(len, waiting)):
            yield self.arrow.Table.from_batches(waiting)

    def _check_lists(self, names: set[str]) -> None:
        for leaf in self.leaves:
            if leaf.path not in names and leaf.path.split(".")[0] in names and leaf.physical_type == "BYTE_ARRAY":
                name = leaf.path.split(".")[0]
                raise self.error(f"lists must hold numbers, but {name!r} is {self.schema.field(name).type}")

    def _leaves(self, names: list[str]) -> list[Any]:
        wanted = set(names)
        # "logits.list.element" is a part of the column "logits"; a name may have dots, too.
        return [leaf for leaf in self.leaves if leaf.path in wanted or leaf.path.split(".")[0] in wanted]

    @contextmanager
    def _open(self, names: list[str]) -> Iterator[Any]:
        """Open the file to read columns, after a check that they are not damaged."""
        leaves, wanted = self._leaves(names), set(names)
        # Texts are read as dictionaries: each text once, and an index per row. A repeated text can fill any memory.
        texts = [leaf.path for leaf in leaves if leaf.path in wanted and leaf.physical_type == "BYTE_ARRAY"]
        with self.arrow.parquet.ParquetFile(self.path, read_dictionary=texts, buffer_size=BUFFER) as file:
            if leaves:
                # Scanning needs little memory and a sixth of the time of reading. Without it, the metadata of a column
                # are not checked, and damaged ones would abort the process instead of raising an error.
                file.scan_contents(columns=[leaf.path for leaf in leaves])
            yield file


def _categories(column: Any) -> Converted:
    """Return a column of texts or categories, and which rows are empty."""
    arrays, masks = [], []
    for part in column.chunks if hasattr(column, "chunks") else [column]:
        values = _stripped(np.asarray(part.dictionary)) if len(part.dictionary) else np.array([""], object)
        indices = np.asarray(part.indices.fill_null(0))
        empty = np.asarray(part.dictionary.is_null()) if part.dictionary.null_count else np.zeros(len(values), bool)
        arrays.append(values[indices])
        masks.append(empty[indices] | np.asarray(part.indices.is_null()))
    if not arrays:
        return np.array([], object), None
    missing = np.concatenate(masks)
    return np.concatenate(arrays), missing if missing.any() else None


def _num_bytes(metadata: Any, paths: set[str]) -> int:
    """Return the memory that columns of a parquet file need, measured: arrow keeps what it has freed."""
    total = 0
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        if column.path not in paths:
            continue
        width = PARQUET_WIDTHS.get(column.physical_type, column.length)
        for group in range(metadata.num_row_groups):
            part = metadata.row_group(group).column(i)
            total += 4 * width * max(part.num_values, 0)
            if column.physical_type == "BYTE_ARRAY":
                total += 2 * max(part.total_uncompressed_size, 0)
    return total


def _num_bytes_repeated(column: Any) -> int:
    """Return the size of a column of texts if each row has a text of its own."""
    return sum(
        int(np.array([len(text) for text in part.dictionary.to_pylist()], np.int64)[np.asarray(part.indices)].sum())
        for part in column.drop_null().chunks
        if len(part)
    )


def _stripped(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects (strings, dates, decimals) as stripped texts; other arrays do not change."""
    if array.dtype != object:
        return array
    texts = np.empty(len(array), object)
    texts[:] = [str(item).strip() for item in array.tolist()]
    return texts


def _plain(array: NDArray[Any]) -> Column:
    """Return an array of objects as a list of texts."""
    texts: list[str] = _stripped(array).tolist()
    return texts if array.dtype == object else array


def import_pyarrow() -> Any:
    """Import pyarrow, an optional dependency, with the modules that are used."""
    for module in ("compute", "ipc", "parquet"):
        import_extra(f"pyarrow.{module}")
    return import_extra("pyarrow")
