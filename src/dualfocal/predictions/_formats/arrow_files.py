"""Arrow's own files, ``.arrow`` and ``.feather``: how much memory they need is known before they are unpacked."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dualfocal.predictions._formats.arrow import ArrowTable
from dualfocal.predictions._formats.interface import STREAMED, one_line_errors

BYTES_PER_CELL = 16  # an index and a reference, or a number and its copy
COPIES = 4  # of a column, at most, while it is converted


class ArrowFile(ArrowTable):
    """An ``.arrow`` or ``.feather`` file: record batches, with a directory at the end or as a stream."""

    how_to_stream = (
        f"dualfocal evaluate reads {STREAMED} in one pass, so write the table as .parquet, for example with "
        "polars.scan_ipc(file).sink_parquet('predictions.parquet')"
    )

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path):
            with path.open("rb") as file:
                start = file.read(6)
            if start[:4] == b"FEA1":
                raise self.error("is version 1 of Feather, which is no longer written: save it again")
            self.has_directory = start == b"ARROW1"
            with self._open() as reader:
                self.schema = reader.schema
        self.names = list(self.schema.names)

    def columns(self, names: list[str]) -> dict[str, Any]:
        for name in names:
            self._check_type(name)
        self.check_memory(sum(map(_unpacked_size, self._messages())))
        options = self.arrow.ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(name) for name in names])
        with self._open(options) as reader:
            table = reader.read_all()
        self.check_memory(len(table) * BYTES_PER_CELL * len(names))
        table.validate(full=True)  # the offsets of a damaged file can point anywhere
        self.check_memory(table.nbytes * COPIES)
        columns = dict(zip(table.column_names, table.columns, strict=True))
        for name, column in columns.items():
            if self.arrow.types.is_string_view(column.type):
                self.check_memory(_num_bytes_viewed(column) * COPIES)
                columns[name] = column = column.cast(self.arrow.large_string())
            if self.arrow.types.is_string(column.type) or self.arrow.types.is_large_string(column.type):
                columns[name] = column.dictionary_encode()  # each text once
        return columns

    def _check_type(self, name: str) -> None:
        """Raise an error for columns that are not needed, and whose memory is not known in advance."""
        types, kind = self.arrow.types, self.schema.field(name).type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        cell = kind.value_type if lists or types.is_dictionary(kind) else kind
        number = types.is_integer(cell) or types.is_floating(cell) or types.is_boolean(cell)
        text = types.is_string(cell) or types.is_large_string(cell) or (types.is_string_view(cell) and cell == kind)
        if not (number or (text and not lists)) or (types.is_fixed_size_list(kind) and kind.list_size < 1):
            raise self.error(f"columns must hold numbers, texts or lists of numbers, but {name!r} is {kind}")

    def _buffer(self) -> Any:
        with self.arrow.memory_map(str(self.path)) as file:
            return file.read_buffer()

    def _open(self, options: Any = None) -> Any:
        return (self.arrow.ipc.open_file if self.has_directory else self.arrow.ipc.open_stream)(
            self._buffer(), options=options
        )

    def _messages(self) -> Iterator[Any]:
        """Return the dictionaries and record batches, packed: those that ``_open`` reads."""
        buffer = self._buffer()
        if not self.has_directory:
            return iter(self.arrow.ipc.MessageReader.open_stream(buffer))
        return (self.arrow.ipc.read_message(buffer[offset:]) for offset in _blocks(memoryview(buffer)))


def _blocks(data: memoryview) -> Iterator[int]:
    """Yield the places of the dictionaries and record batches of an Arrow file, from the directory at its end.

    It is a flatbuffer: Footer = (version, schema, dictionaries, record batches, ...), with blocks of 24 bytes that
    start with a place in the file.
    """
    (size,) = struct.unpack("<i", data[-10:-6])
    footer = data[-10 - size : -10]
    for index in (2, 3):
        if field := _field(footer, _table_at(footer, 0), index):
            start = _table_at(footer, field)
            (count,) = struct.unpack_from("<I", footer, start)
            yield from (
                offset for offset, _, _ in struct.iter_unpack("<qqq", footer[start + 4 : start + 4 + 24 * count])
            )


def _unpacked_size(message: Any) -> int:
    """Return the memory that the columns of a message of Arrow's stream take when they are unpacked.

    pyarrow has no function for this. The metadata are a flatbuffer: Message = (version, type, header, ...), where
    header is RecordBatch = (length, nodes, buffers, compression, ...), or DictionaryBatch = (id, RecordBatch, ...).
    A compressed buffer starts with its unpacked size, or with -1 if it is stored as it is.
    """
    if message.type not in ("record batch", "dictionary"):
        return 0
    data, body = memoryview(message.metadata), memoryview(message.body)
    batch = _table_at(data, _field(data, _table_at(data, 0), 2))
    if message.type == "dictionary":
        batch = _table_at(data, _field(data, batch, 1))
    packed = _field(data, batch, 3) != 0
    start = _table_at(data, _field(data, batch, 2))
    (count,) = struct.unpack_from("<I", data, start)
    total = 0
    for offset, length in struct.iter_unpack("<qq", data[start + 4 : start + 4 + 16 * count]):
        if length:
            size = struct.unpack_from("<q", body, offset)[0] if packed else -1
            total += length if size == -1 else abs(size)
    return total


def _table_at(data: memoryview, place: int) -> int:
    """Follow the offset that is stored at a place of a flatbuffer."""
    return place + int(struct.unpack_from("<I", data, place)[0])


def _field(data: memoryview, table: int, index: int) -> int:
    """Return the place of a field of a table in a flatbuffer; 0 if it has none."""
    names = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, names)
    place = 4 + 2 * index
    offset = int(struct.unpack_from("<H", data, names + place)[0]) if place < size else 0
    return table + offset if offset else 0


def _num_bytes_viewed(column: Any) -> int:
    """Return the size of all texts of a column of views, which may be parts of the same text."""
    total = 0
    for part in column.chunks:
        views = np.frombuffer(part.buffers()[1], np.int32)[: 4 * (part.offset + len(part))]  # length, start, ...
        total += int(np.clip(views[::4], 0, None).sum(dtype=np.int64))
    return total
