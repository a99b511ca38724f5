"""A generator of prediction files that are damaged, hostile or only strange, each with the error that it must give."""

import gzip
import io
import json
import math
import os
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import torch

ROWS, CLASSES = 6, 3
LOGITS = np.random.default_rng(0).normal(size=(ROWS, CLASSES))
TARGET = np.arange(ROWS) % CLASSES
TABLE = "logit_a,logit_b,logit_c,label\n" + "".join(
    f"{a:.3f},{b:.3f},{c:.3f},{'abc'[k]}\n" for (a, b, c), k in zip(LOGITS, TARGET, strict=True)
)
ESCAPE, REVERSED = "\x1b[2J\x1b]0;owned\x07", "\u202e"
MB = 10**6
LIMITED, TRUSTED = ["--max-memory", "50MB"], ["--max-memory", "1TB"]


@dataclass(frozen=True)
class BadFile:
    """A file, and what `dualfocal evaluate` must say about it.

    Args:
        name: name of the case; its end is the suffix of the file.
        write: writes the file.
        message: regular expression within the one line of the error (None: the file is harmless and is evaluated).
        options: options of the command; {folder} is that of the file.
    """

    name: str
    write: Callable[[Path], object]
    message: str | None
    options: list[str] = field(default_factory=list)


# Writers


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def npz(compress: bool = False, **arrays: np.ndarray) -> Callable[[Path], object]:
    save = np.savez_compressed if compress else np.savez
    return lambda path: save(path, **({"logits": LOGITS, "target": TARGET} | arrays))


def parquet(*, plain: bool = False, **columns: object) -> Callable[[Path], object]:
    """Write columns; ``plain`` does not store that a column is categorical, so that it is read as text."""
    return lambda path: pq.write_table(pa.table(columns), path, store_schema=not plain)


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> Callable[[Path], object]:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack("<Q", len(content) if length is None else length)
    return text(size + content + data)


def npy_header(descr: str, shape: object) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def members(
    contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, level: int | None = None
) -> Callable[[Path], object]:
    """Write a zip archive with these members, which need not be arrays."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method, compresslevel=level) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)

    return write


def lying_directory(descr: str, shape: tuple[int, ...], claimed: int) -> Callable[[Path], object]:
    """Write an npz whose directory and header agree on a size that the data do not have."""

    def write(path: Path) -> None:
        header = npy_header(descr, shape)
        members({"logits.npy": header + bytes(100), "target.npy": npy_header("<i8", (1,)) + bytes(8)}, 0)(path)
        content = bytearray(path.read_bytes())
        entry = content.index(b"PK\x01\x02")  # of the first member, in the directory
        content[entry + 24 : entry + 28] = struct.pack("<I", len(header) + claimed)
        path.write_bytes(content)

    return write


def jsonl(**columns: object) -> str:
    """Return a line of JSON for each row."""
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def feather(compression: str = "uncompressed", **columns: object) -> Callable[[Path], object]:
    return lambda path: pyarrow.feather.write_feather(pa.table(columns), path, compression=compression)


def overlapping_views(count: int) -> Callable[[Path], object]:
    """Write an Arrow file with texts that are all parts of one text, of a megabyte each."""
    view = struct.pack("<i4sii", MB, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(b"x" * MB)]
    texts = pa.Array.from_buffers(pa.string_view(), count, buffers)
    return feather("zstd", logit_0=np.zeros(count), logit_1=np.ones(count), label=texts)


def tensors(content: object) -> Callable[[Path], object]:
    return lambda path: torch.save(content, path)


def torch_pickle(program: bytes, method: int = zipfile.ZIP_STORED) -> Callable[[Path], object]:
    """Write a file of torch.save with this pickle."""
    return members({"archive/data.pkl": program, "archive/version": b"3\n", "archive/data/0": bytes(144)}, method)


def wide(count: int) -> str:
    values = ",".join(["0.5"] * count)
    return ",".join(f"logit_{k}" for k in range(count)) + f",label\n{values},0\n{values},1\n"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zeros(count: int, num_classes: int) -> Callable[[Path], object]:
    """Write a compressed npz of zeros."""
    contents = {
        "logits.npy": npy_header("<f8", (count, num_classes)) + bytes(8 * count * num_classes),
        "target.npy": npy_header("<i8", (count,)) + bytes(8 * count),
    }
    return members(contents, level=1)


# Files


def text_files() -> Iterator[BadFile]:
    yield BadFile("empty.csv", text(""), "is empty")
    yield BadFile("header only.csv", text(TABLE.splitlines()[0] + "\n"), "at least one row")
    yield BadFile("no header.csv", text("1,2,3\n1,2,3\n"), "needs a header line")
    yield BadFile("byte order mark.csv", text(b"\xef\xbb\xbf" + TABLE.encode()), None)
    yield BadFile("utf-16.csv", text(TABLE.encode("utf-16")), "cannot be read")
    yield BadFile("latin-1.csv", text("logit_é,logit_b,label\n1,2,é\n".encode("latin-1")), "cannot be read")
    yield BadFile("nul bytes.csv", text(TABLE.replace("0.", "\0.")), "cannot be read|must hold numbers")
    yield BadFile("only nul bytes.csv", text(bytes(10_000)), "no column")
    yield BadFile("duplicate columns.csv", text(TABLE.replace("logit_b", "logit_a")), "more than one column 'logit_a'")
    yield BadFile("short line.csv", text(TABLE + "1,2\n"), "line 8 has 2 fields, but the header has 4")
    yield BadFile("unclosed quote.csv", text(TABLE + '"1,2,3,a\n' * 3), "cannot be read|fields|must hold numbers")
    yield BadFile("words for numbers.csv", text(TABLE + "one,2,3,a\n"), "must hold numbers, got 'one' in line 8")
    yield BadFile("hexadecimal.csv", text(TABLE + "0x1p3,2,3,a\n"), "must hold numbers, got '0x1p3'")
    yield BadFile("carriage returns.csv", text(TABLE.replace("\n", "\r")), None)
    noted = "note,logit_a,logit_b,label\n" + "x" * 200_000 + ",1.0,2.0,{}\n"
    yield BadFile("long field.csv", text(noted.format("a") + "y,2.0,1.0,b\n"), None)
    yield BadFile("long field, bad label.csv", text(noted.format("zebra")), "label 'zebra' in line 2 is none of")
    yield BadFile("long field, no label.csv", text(noted.format("")), "column 'label' is empty in line 2")
    yield BadFile("long field, bad number.csv", text(noted.replace("2.0", "two").format("a")), "got 'two' in line 2")
    yield BadFile("long name.csv", text(TABLE.replace("logit_b", "logit_" + "b" * 10**6)), "label 'b' in line")
    yield BadFile("long label.csv", text(TABLE + "1,2,3," + "z" * 10**6 + "\n"), "label 'zzz.*in line 8 is none")
    yield BadFile("digits.csv", text(f"logit_{'9' * 5000},logit_1,label\n1,2,0\n1,2,1\n"), "cannot be read: .*digits")
    yield BadFile("wide.csv", text(wide(200_000)), None)
    named = wide(50_000).replace("logit_", "logit_c")
    yield BadFile("wide, bad label.csv", text(named[:-2] + "x\n"), "label 'x' in line 3 is none of the classes")
    yield BadFile("wide, twice.csv", text(wide(200_000).replace("logit_7,", "logit_8,")), "more than one column")
    yield BadFile("escapes.csv", text(TABLE.replace("logit_a", f"logit_a{ESCAPE}")), "label 'a' .*x1b")
    yield BadFile("escapes in a label.csv", text(TABLE + f"1,2,3,{ESCAPE}\n"), r"label '.x1b")
    classes = TABLE.replace("logit_a", f"logit_{ESCAPE}").replace(",a\n", f",{ESCAPE}\n")
    yield BadFile("escapes in a class.csv", text(classes), None)
    yield BadFile(
        "reversed class.csv", text(TABLE.replace("_a", "_" + REVERSED).replace(",a\n", f",{REVERSED}\n")), None
    )
    packed = gzip.compress(TABLE.encode())
    yield BadFile("truncated.csv.gz", text(packed[:-9]), "cannot be read")
    yield BadFile("not packed.csv.gz", text(TABLE), "cannot be read")
    yield BadFile("garbage behind.csv.gz", text(packed + b"garbage"), "cannot be read")
    yield BadFile("wrong checksum.csv.gz", text(packed[:-8] + bytes(8)), "cannot be read")


def npz_files() -> Iterator[BadFile]:
    plain = npy(LOGITS)
    yield BadFile("empty.npz", text(""), "not an .npz archive")
    yield BadFile("noise.npz", text(b"noise" * 100), "not an .npz archive")
    yield BadFile("no arrays.npz", members({}), "holds no array")
    yield BadFile("other files.npz", members({"logits.npy": b"text", "target.npy": npy(TARGET)}), "'logits' cannot be")
    yield BadFile("pickle.npz", npz(logits=np.array([[{}, {}]] * ROWS)), "'logits' cannot be read: .*pickles")
    yield BadFile("pickled labels.npz", npz(target=np.array([{}] * ROWS)), "'target' cannot be read: .*pickles")
    yield BadFile("pickled names.npz", npz(class_names=np.array([{}] * CLASSES)), None)
    yield BadFile("complex.npz", npz(logits=LOGITS * 1j), "must be float16")
    yield BadFile("dates.npz", npz(logits=LOGITS.astype("M8[s]")), "must be float16")
    yield BadFile("records.npz", npz(logits=np.zeros(ROWS, "f8,f8")), "must be float16")
    yield BadFile("no rows.npz", npz(logits=LOGITS[:0], target=TARGET[:0]), "at least one row")
    yield BadFile("scalar.npz", npz(logits=np.array(1.0)), "at least one row")
    yield BadFile("other byte order.npz", npz(logits=LOGITS.astype(">f8"), target=TARGET.astype(">i4")), None)
    yield BadFile(
        "uint64 that wraps.npz", npz(target=np.full(ROWS, 2**64 - 100, "u8")), "label 18446744073709551516 in"
    )
    yield BadFile("uint64 label.npz", npz(target=np.array([2**63, 0, 1, 2, 0, 1], "u8")), r"must be below 2\*\*63")
    yield BadFile("uint64.npz", npz(target=TARGET.astype("u8")), None)
    shape = (ROWS, CLASSES)
    target = {"target.npy": npy(TARGET)}
    for name, descr, claimed in (
        ("too large", "<f8", (10**6, 10**9)),
        ("overflowing", "<f8", (2**62, 2**62)),
        ("negative", "<f8", (-ROWS, -CLASSES)),
        ("too small", "<f4", shape),
        ("without bytes", "<U0", (10**12,)),
        ("of objects", "|O", shape),
    ):
        content = npy_header(descr, claimed) + plain[128:]
        yield BadFile(f"header {name}.npz", members({"logits.npy": content, **target}), "'logits' cannot be read")
    yield BadFile(
        "version 9.npz", members({"logits.npy": plain[:6] + b"\x09\x00" + plain[8:], **target}), "version 9.0"
    )
    code = plain.replace(b"(6, 3)", b"exit()")
    yield BadFile("header with code.npz", members({"logits.npy": code, **target}), "'logits' cannot be read")
    nested = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000
    yield BadFile("nested header.npz", members({"logits.npy": nested, **target}), "'logits' cannot be read")
    yield BadFile("lzma.npz", members({"logits.npy": plain, **target}, zipfile.ZIP_LZMA), "compression method 14")
    yield BadFile("bzip2.npz", members({"logits.npy": plain, **target}, zipfile.ZIP_BZIP2), "compression method 12")
    yield BadFile("directory lies.npz", lying_directory("<f8", (10**7, 3), 24 * 10**7), "needs 240.0 MB", LIMITED)
    yield BadFile("data missing.npz", lying_directory("<f8", (10**5, 3), 24 * 10**5), "'logits' cannot be read")
    many = {f"array{i}.npy": b"" for i in range(20_000)}
    yield BadFile("many arrays.npz", members({"logits.npy": plain, **target, **many}, 0), None)
    yield BadFile("many arrays, no logits.npz", members(many, 0), "and 19988 more")
    yield BadFile("escapes.npz", members({f"{ESCAPE}.npy": plain}), r"holds no array .*'.x1b")
    names = np.array([ESCAPE, f"b{REVERSED}", "c\nline\r\u2028!"])
    yield BadFile("escapes in classes.npz", npz(class_names=names, target=names[TARGET]), None)


def parquet_files() -> Iterator[BadFile]:
    rows = {f"logit_{k}": LOGITS[:, k] for k in range(CLASSES)}
    yield BadFile("empty.parquet", text(""), "cannot be read")
    yield BadFile("noise.parquet", text(b"PAR1" + b"noise" * 100 + b"PAR1"), "cannot be read")
    yield BadFile("footer too long.parquet", text(b"PAR1" + struct.pack("<I", 2**31) + b"PAR1"), "cannot be read")
    structs = pa.array([{"a": 1.0, "b": [2.0]}] * ROWS)
    yield BadFile("structs.parquet", parquet(logits=structs, label=TARGET), "cannot be read")
    maps = pa.array([[(1, 2.0)]] * ROWS, pa.map_(pa.int32(), pa.float64()))
    yield BadFile("maps.parquet", parquet(logits=maps, label=TARGET), "cannot be read")
    texts = pa.array([["a", "b"]] * ROWS)
    yield BadFile("lists of texts.parquet", parquet(logits=texts, label=TARGET), "lists must hold numbers")
    yield BadFile(
        "uneven lists.parquet", parquet(logits=[[1.0, 2.0], [1.0]], label=[0, 1]), "must have the same length"
    )
    yield BadFile("empty cells.parquet", parquet(logits=[[1.0, 2.0], None], label=[0, 1]), "is empty in row 1")
    yield BadFile("texts.parquet", parquet(**rows | {"logit_1": ["x"] * ROWS}, label=TARGET), "must be float16")
    yield BadFile("uint64 that wraps.parquet", parquet(**rows, label=np.full(ROWS, 2**64 - 100, "u8")), "below 2")
    yield BadFile("escapes.parquet", parquet(**{ESCAPE: TARGET}), r"holds no column .*'.x1b")
    lines = {f"logit_{name}": LOGITS[:, k] for k, name in enumerate(["a\nb", ESCAPE, "c"])}
    yield BadFile("lines in classes.parquet", parquet(**lines, label=["a\nb", ESCAPE, "c"] * 2), None)
    slow = "logit" + "_" * 50_000 + "\n"  # takes hours if a regular expression tries every length
    yield BadFile("slow name.parquet", parquet(**{slow: TARGET, "label": TARGET}), "has only one class column")


def safetensors_files() -> Iterator[BadFile]:
    logits = {"dtype": "F64", "shape": [ROWS, CLASSES], "data_offsets": [0, LOGITS.nbytes]}
    target = {"dtype": "I64", "shape": [ROWS], "data_offsets": [LOGITS.nbytes, LOGITS.nbytes + TARGET.nbytes]}
    data = LOGITS.tobytes() + TARGET.tobytes()
    good = {"logits": logits, "target": target}
    for name, header, size in (
        ("huge header", good, 2**40),
        ("header beyond the file", good, 10**6),
        ("not json", b"{" * 1000, None),
        ("overlap", {"logits": logits, "target": target | {"data_offsets": [0, TARGET.nbytes]}}, None),
        ("offsets beyond the file", {"logits": logits | {"data_offsets": [0, 2**50]}}, None),
        ("shape that overflows", {"logits": logits | {"shape": [2**40, 2**40]}}, None),
        ("negative shape", {"logits": logits | {"shape": [-6, 3]}}, None),
        ("unknown dtype", {"logits": logits | {"dtype": "X9"}}, None),
    ):
        yield BadFile(f"{name}.safetensors", safetensors(header, data, size), "cannot be read")
    yield BadFile("empty.safetensors", text(""), "cannot be read")
    wrapping = LOGITS.tobytes() + np.full(ROWS, 2**64 - 100, "u8").tobytes()
    unsigned = {"logits": logits, "target": target | {"dtype": "U64"}}
    yield BadFile("uint64 that wraps.safetensors", safetensors(unsigned, wrapping), "below 2")
    named = {**good, "__metadata__": {"class_names": json.dumps([ESCAPE, "b\n", REVERSED])}}
    yield BadFile("escapes in classes.safetensors", safetensors(named, data), None)


def npy_files() -> Iterator[BadFile]:
    """Arrays, whose name is 'file', and whose labels are in another file."""

    def labelled(content: bytes) -> Callable[[Path], object]:
        return lambda path: [path.with_name("y.npy").write_bytes(npy(TARGET)), path.write_bytes(content)]

    options = ["--logits", "file", "--target", "{folder}/y.npy"]
    for name, content, message in (
        ("good", npy(LOGITS), None),
        ("empty", b"", "cannot be read"),
        ("noise", b"noise" * 100, "cannot be read"),
        ("claims more", npy_header("<f8", (10**6, 10**9)) + bytes(100), "its header promises"),
        ("objects", npy(np.array([{}] * ROWS)), "Object arrays are pickles.*astype"),
        ("truncated", npy(LOGITS)[:-8], "its header promises"),
        ("version 9", b"\x93NUMPY\x09" + npy(LOGITS)[7:], "version 9.0"),
    ):
        yield BadFile(f"{name}.npy", labelled(content), message, options)
    yield BadFile("no name.npy", text(npy(LOGITS)), "file can be logits or probabilities.*no labels")


def json_files() -> Iterator[BadFile]:
    good = jsonl(logits=LOGITS, label=TARGET)
    yield BadFile("good.jsonl", text(good), None)
    yield BadFile("good.jsonl.gz", text(gzip.compress(good.encode())), None)
    yield BadFile(
        "byte order mark, blank lines.jsonl", text(b"\xef\xbb\xbf" + good.replace("\n", "\r\n\n").encode()), None
    )
    yield BadFile("empty.jsonl", text("\n\n"), "is empty")
    yield BadFile("noise.jsonl", text(b"\xff\xfe" * 100), "cannot be read")
    yield BadFile("a list.jsonl", text("[1, 2]\n"), "line 1 must be an object")
    yield BadFile("one array.jsonl", text('[{"logits": [1, 2], "label": 0},\n'), "line 1 is not JSON")
    yield BadFile("cut.jsonl", text(good[:-20]), "line 6 is not JSON")
    yield BadFile("nested.jsonl", text('{"logits": ' + "[" * 100_000 + "\n"), "cannot be read|not JSON")
    yield BadFile("nested lists.jsonl", text('{"logits": [[1, 2]], "label": 0}\n'), "'logits' must hold numbers, got")
    yield BadFile(
        "texts.jsonl", text('{"logits": ["1", "2"], "label": 0}\n'), "'logits' must hold numbers, got '1' in line 1"
    )
    yield BadFile("booleans.jsonl", text('{"logits": [true, 2], "label": 0}\n'), "must hold numbers, got True")
    yield BadFile("uneven.jsonl", text(good + '{"logits": [1, 2], "label": 0}\n'), "same length, got 3 and 2 in line 7")
    yield BadFile("numbers and lists.jsonl", text(good + '{"logits": 1, "label": 0}\n'), "not both.* in line 7")
    yield BadFile("no label.jsonl", text(good + '{"logits": [1, 2, 3]}\n'), "'label' is empty in line 7; 1 of 7 rows")
    yield BadFile("null.jsonl", text(good + '{"logits": [1, null, 3], "label": 0}\n'), "'logits' is empty in line 7")
    yield BadFile(
        "digits.jsonl", text(f'{{"logits": [{"9" * 5000}, 2], "label": 0}}\n'), "line 1 is not JSON: .*digits"
    )
    yield BadFile("large.jsonl", text(f'{{"logits": [1{"0" * 400}, 2], "label": 0}}\n'), "in line 1|cannot be read")
    yield BadFile("infinite.jsonl", text('{"logits": [1e999, 2], "label": 0}\n'), "row 0 holds .inf")
    yield BadFile("large label.jsonl", text(f'{{"logits": [1, 2], "label": {2**70}}}\n'), "cannot be read")
    yield BadFile("twice.jsonl", text('{"a": {"b": 1}, "a.b": 2}\n'), "more than one value of 'a.b'")
    names = {ESCAPE: 0.5, f"b{REVERSED}": 0.5}
    yield BadFile("escapes.jsonl", text(json.dumps({"probs": names, "label": ESCAPE}) + "\n"), None)
    yield BadFile("escapes in names.jsonl", text(json.dumps({ESCAPE: 1}) + "\n"), r"holds no column .*'.x1b")
    many = json.dumps({"logits": {f"c{k}": 1.0 for k in range(20_000)}, "label": "c1"})
    yield BadFile("many classes.jsonl", text(many + "\n"), None)
    packed = gzip.compress(good.encode())
    yield BadFile("truncated.jsonl.gz", text(packed[:-9]), "cannot be read")


def arrow_files() -> Iterator[BadFile]:
    rows = {"logits": list(LOGITS), "label": TARGET}
    for compression in ("uncompressed", "lz4", "zstd"):
        yield BadFile(f"{compression}.feather", feather(compression, **rows), None)
    yield BadFile("empty.arrow", text(""), "cannot be read")
    yield BadFile("noise.arrow", text(b"noise" * 100), "cannot be read")
    yield BadFile("noise.feather", text(b"ARROW1\0\0" + b"noise" * 100 + b"ARROW1"), "cannot be read")
    yield BadFile("version 1.feather", text(b"FEA1" + bytes(100)), "version 1 of Feather")
    yield BadFile("structs.feather", feather(logits=[{"a": 1.0}] * ROWS, label=TARGET), "must hold numbers, texts or")
    yield BadFile(
        "lists of texts.feather", feather(logits=[["a", "b"]] * ROWS, label=TARGET), "must hold numbers, texts"
    )
    nothing = pa.array([[]] * ROWS, pa.list_(pa.float64(), 0))  # a row takes no byte
    yield BadFile("lists of nothing.feather", feather(logits=nothing, label=TARGET), "must hold numbers, texts or")
    yield BadFile("nulls.feather", feather(logits=pa.nulls(ROWS), label=TARGET), "must hold numbers, texts or")
    yield BadFile(
        "uneven lists.feather", feather(logits=[[1.0, 2.0], [1.0]], label=[0, 1]), "must have the same length"
    )
    yield BadFile("empty cells.feather", feather(logits=[[1.0, 2.0], None], label=[0, 1]), "is empty in row 1; 1 of 2")
    texts = pa.array([["a"], ["b"]] * 3, pa.list_(pa.string_view()))
    yield BadFile("lists of views.arrow", feather(logits=texts, label=TARGET), "must hold numbers")
    rows = {f"logit_{text}": LOGITS[:, k] for k, text in enumerate("abc")}
    yield BadFile("views.arrow", feather(**rows, label=pa.array(["a", "b", "c"] * 2, pa.string_view())), None)


def torch_files() -> Iterator[BadFile]:
    logits, target = torch.tensor(LOGITS), torch.tensor(TARGET)
    yield BadFile("good.pt", tensors({"logits": logits, "target": target}), None)
    yield BadFile("parameter.pth", tensors({"logits": torch.nn.Parameter(logits), "target": target}), None)
    yield BadFile("empty.pt", text(""), "is not a file of torch.save")
    yield BadFile("noise.pt", text(b"noise" * 100), "is not a file of torch.save")
    yield BadFile("a pickle.pt", text(b"\x80\x02]."), "is not a file of torch.save")
    yield BadFile(
        "numpy.pt", tensors({"logits": LOGITS, "target": TARGET}), "holds Python objects .*numpy.*never loaded"
    )
    yield BadFile("a module.pt", tensors(torch.nn.Linear(2, 2)), "holds Python objects")
    yield BadFile("sparse.pt", tensors({"logits": logits.to_sparse(), "target": target}), "holds Python objects")
    yield BadFile("nested.pt", tensors({"logits": [logits], "target": target}), "it is a list, but not of numbers")
    yield BadFile("a set.pt", tensors({1, 2}), "holds Python objects")
    yield BadFile("a number.pt", tensors(3), "must hold a dict or tuple of tensors, or one tensor, got int")
    yield BadFile("code.pt", torch_pickle(b"cos\nsystem\n(S'exit 3'\ntR."), "holds Python objects .*os system")
    yield BadFile(
        "code on the stack.pt", torch_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "holds Python objects"
    )
    yield BadFile("bytes.pt", torch_pickle(b"cbuiltins\nbytearray\n(I99999999999\ntR."), "holds Python objects")
    yield BadFile("packed.pt", torch_pickle(b"}." + bytes(999), zipfile.ZIP_DEFLATED), "is compressed")
    yield BadFile("no pickle.pt", members({"a/b": b""}, 0), "is not a file of torch.save")
    yield BadFile("half a pickle.pt", torch_pickle(b"\x80\x02}("), "cannot be read")
    huge = logits[:1, :1].expand(10**6, 10**6)  # 8 bytes in the file
    yield BadFile("expanded.pt", tensors({"logits": huge, "target": target}), "needs 8.0 TB of memory")
    yield BadFile("escapes.pt", tensors({ESCAPE: logits}), r"can be logits or probabilities.*'.x1b")


def other_files() -> Iterator[BadFile]:
    yield BadFile("pipe.csv", os.mkfifo, "must be a regular file, not a pipe")
    yield BadFile("folder.csv", Path.mkdir, "is not a run folder")
    yield BadFile("missing.csv", lambda path: None, "there is no such file")
    yield BadFile("link to itself.csv", lambda path: path.symlink_to(path), "[Tt]oo many|no such file|loop")
    yield BadFile("pickle.pkl", text(b"\x80\x04."), "is a pickle, .* never read")


def rows_of(count: int) -> dict[str, np.ndarray]:
    return {"logit_0": np.zeros(count), "logit_1": np.zeros(count), "label": np.zeros(count, np.int8)}


def bombs() -> Iterator[BadFile]:
    """Small files that need hundreds of megabytes: refused beyond a limit of 50 MB."""
    message = "needs (more than )?[0-9.]+ [MG]B of memory, but the limit is 50.0 MB"
    count = 3 * MB
    yield BadFile("bomb.npz", zeros(count, 4), message, LIMITED)
    claimed = lying_directory("<f8", (100 * MB, 3), 2400 * MB)
    yield BadFile("not enough memory.npz", claimed, "'logits' cannot be read: there is not enough memory", TRUSTED)
    yield BadFile("names.npz", npz(True, class_names=np.full(2 * MB, "name")), message, LIMITED)
    column = np.zeros(count, np.float32)
    columns = {"logit_0": column, "logit_1": column, "label": column}
    yield BadFile("bomb.parquet", parquet(**columns), message, LIMITED)
    repeated = pa.DictionaryArray.from_arrays(np.zeros(5000, "i4"), pa.array(["x" * MB]))  # five gigabytes
    columns = {"logit_0": column[:5000], "logit_1": column[:5000], "label": repeated}
    yield BadFile("repeated text.parquet", parquet(**columns, plain=True), "label 'x", TRUSTED)
    for compression in ("lz4", "zstd"):
        yield BadFile(f"{compression}.feather", feather(compression, **rows_of(8 * MB)), message, LIMITED)
    names = pa.DictionaryArray.from_arrays(np.zeros(ROWS, "i4"), pa.array(["x" * 60 * MB]))
    yield BadFile("dictionary.feather", feather("zstd", **{**rows_of(ROWS), "label": names}), message, LIMITED)
    yield BadFile("views.arrow", overlapping_views(200), "needs 800.0 MB of memory, but the limit is 50.0 MB", LIMITED)
    lines = b'{"logits": [0, 1], "label": 0}\n' * 100_000
    for name, start, part in (
        ("bomb", b"", lines),
        ("one line", b'{"logits": [0, 1], "label": 0}\n{"a": "', b"a" * MB),
        ("one list", b'{"logits": [', b"0," * MB),
        ("empty lists", b'{"logits": [0, 1], "label": 0}\n{"a": [', b"[]," * MB),
    ):
        packed = gzip.compress(start) + gzip.compress(part) * 40
        yield BadFile(f"{name}.jsonl.gz", text(packed), message, LIMITED)
    head, rows = b"logit_0,logit_1,label\n", b"0,0,0\n" * MB
    for name, start, part in (
        ("bomb", head, rows),
        ("one field", head + b"0,", b"0" * MB),
        ("one quoted field", head + b'0,"', b'""\n' * MB),
        ("one header", b"logit_0,", b"a" * MB),
        ("many columns", b"logit_0", b",a" * MB),
    ):
        packed = gzip.compress(start) + gzip.compress(part) * 40
        yield BadFile(f"{name}.csv.gz", text(packed), f"{message}|unpacks to more than 200 times its size", LIMITED)


def mutants(count: int) -> Iterator[BadFile]:
    """Good files with random damage. Some are still good: any message, or none, but never a traceback."""
    writers = {
        ".csv": text(TABLE),
        ".csv.gz": text(gzip.compress(TABLE.encode())),
        ".npz": npz(True, class_names=np.array(["a", "b", "c"])),
        ".parquet": parquet(logits=list(LOGITS), label=TARGET),
        ".feather": feather("lz4", logits=list(LOGITS), label=TARGET),
        ".arrow": feather(**{f"logit_{text}": LOGITS[:, k] for k, text in enumerate("abc")}, label=["a", "b", "c"] * 2),
        ".jsonl": text(jsonl(logits=LOGITS, label=TARGET)),
        ".pt": tensors({"logits": torch.tensor(LOGITS), "target": torch.tensor(TARGET)}),
    }

    def damaged(write: Callable[[Path], object], seed: int) -> Callable[[Path], object]:
        def write_damaged(path: Path) -> None:
            write(path)
            content, random_ = bytearray(path.read_bytes()), random.Random(seed)
            for _ in range(random_.choice([1, 1, 2, 8])):
                place = random_.randrange(len(content))
                kind = random_.randrange(4)
                if kind == 0:
                    content[place] ^= 1 << random_.randrange(8)
                elif kind == 1:
                    content[place] = random_.choice(b"\0\xff\n\"',;\x1b")
                elif kind == 2:
                    del content[place : place + random_.randrange(1, 20)]
                else:
                    content[place:place] = random_.randbytes(random_.randrange(1, 20))
                if not content:
                    break
            path.write_bytes(content)

        return write_damaged

    for seed in (*range(count), 839):  # 839: metadata of a parquet file that pyarrow 26 ends the process for
        for suffix, write in writers.items():
            yield BadFile(f"mutant {seed}{suffix}", damaged(write, seed), "")


def choice_line(number: int = 0, log_probs: object = ("-1.5", "-0.5"), **changes: object) -> str:
    """Return a line of a log of lm-evaluation-harness."""
    options = len(log_probs) if isinstance(log_probs, tuple) else 2
    record = {
        "doc_id": number,
        "doc": {"passage": "p"},
        "target": str(number % 2),
        "arguments": {f"gen_args_{i}": {"arg_0": "Q", "arg_1": f" {i}"} for i in range(options)},
        "filtered_resps": [[value, "False"] for value in log_probs] if isinstance(log_probs, tuple) else log_probs,
        "acc": 1.0,
    }
    return json.dumps(record | changes) + "\n"


def eval_archive(*samples: str, method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], object]:
    """Write a log of inspect_ai."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("header.json", '{"eval": {"task": "t"}}')
            for i, sample in enumerate(samples):
                archive.writestr(f"samples/../../{i}.json", sample)

    return write


def choice_logs() -> Iterator[BadFile]:
    lm_eval, inspect = ["--format", "lm-eval"], ["--format", "inspect"]
    good = choice_line(0) + choice_line(1)
    many = tuple(f"-{i % 97 + 1}" for i in range(5000))
    cases: dict[str, tuple[str, str | None]] = {
        "good": (good, None),
        "thousands of options": (choice_line(0, many) + choice_line(1, many), None),
        "control characters": (good + choice_line(2, doc_id=ESCAPE + REVERSED), None),
        "zero probability": (good + choice_line(2, ("-inf", "-1")), None),
        "truncated": (good + choice_line(2)[:-40], "line 3 is not JSON"),
        "nan": (good + choice_line(2, (math.nan, -1.0)), "line 3: a log-probability must be at most 0, got nan"),
        "inf": (good + choice_line(2, (math.inf, -1.0)), "line 3: a log-probability must be at most 0, got inf"),
        "all -inf": (good + choice_line(2, ("-inf", "-inf")), "line 3: the log-probabilities of all options are -inf"),
        "no number": (choice_line(0, (ESCAPE, "-1")), "line 1: filtered_resps must be log-probabilities"),
        "objects": (choice_line(0, [{}, {}]), "line 1: filtered_resps must be log-probabilities"),
        "a text": (choice_line(0, "abc"), "line 1: filtered_resps must be a list"),
        "no options": (choice_line(0, [], arguments=[]), "only tasks with output_type multiple_choice"),
        "arguments": (choice_line(0, arguments={ESCAPE: 3}), "arguments must be pairs"),
        "accuracy": (choice_line(0, acc=[]), "accuracy of sum must be a number"),
        "deep": ('{"doc_id": ' + "[" * 100_000 + "\n", "cannot be read|not JSON"),
        "a list": ("[1, 2]\n", "line 1 must be an object"),
        "other keys": ('{"a": 1}\n', "has no doc_id, doc, arguments, filtered_resps"),
        "empty": ("", "has no questions"),
        "twice": (choice_line(0) + choice_line(0), "line 2: document 0 occurs more than once"),
    }
    for name, (content, message) in cases.items():
        yield BadFile(f"choices, {name}.jsonl", text(content), message, lm_eval)
    huge = choice_line(0, doc={"passage": "x" * 2 * MB})
    limit = "needs more than [0-9.]+ MB of memory, but the limit is 50.0 MB"
    yield BadFile("choices, long line.jsonl", text(huge), limit, lm_eval + LIMITED)
    yield BadFile("inspect, no log.json", text("{}"), "no eval.task", inspect)
    yield BadFile("inspect, truncated.json", text('{"eval": {"task": "t"}, "samples": ['), "is not JSON", inspect)
    yield BadFile(
        "inspect, samples.json", text('{"eval": {"task": "t"}, "samples": [[]]}'), "sample 1 must be", inspect
    )
    yield BadFile("inspect, no samples.eval", eval_archive(), "has no questions", inspect)
    yield BadFile(
        "inspect, types.eval",
        eval_archive('{"id": 1, "choices": ["a", "b"], "output": 3}'),
        "sample 1 is not as",
        inspect,
    )
    yield BadFile("inspect, no json.eval", eval_archive("{"), "is not JSON", inspect)
    yield BadFile("inspect, lzma.eval", eval_archive("{}", method=zipfile.ZIP_LZMA), "method 14 is not", inspect)
    bomb = eval_archive('{"a": "' + "x" * 20 * MB + '"}')
    limit = "needs 800.0 MB of memory, but the limit is 50.0 MB"
    yield BadFile("inspect, bomb.eval", bomb, limit, inspect + LIMITED)


def multilabel_files() -> Iterator[BadFile]:
    """Files for ``--task multilabel``: three labels, each 0 or 1."""
    task = ["--task", "multilabel"]
    hot = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 1]])
    probs = 1 / (1 + np.exp(-LOGITS))
    arrays: dict[str, tuple[dict[str, np.ndarray], str | None]] = {
        "good": ({}, None),
        "class indices": ({"target": TARGET}, "got one value per sample in 'target'.*leave out --task"),
        "labels 1 and 2": ({"target": hot + 1}, "must be 0 or 1, got 2 in row 0"),
        "halves": ({"target": hot / 2}, "must be 0 or 1, got 0.5 in row 0"),
        "nan target": ({"target": np.where(hot == 1, np.nan, 0.0)}, "must be 0 or 1, got nan in row 0"),
        "uint64 that wraps": ({"target": np.full(hot.shape, 2**64 - 100, "u8")}, "must be 0 or 1, got 1.84467e.19"),
        "fewer labels": ({"target": hot[:, :2]}, r"for each sample and label, \(6, 3\), got 'target' \(6 x 2"),
        "fewer rows": ({"target": hot[:4]}, r"for each sample and label, \(6, 3\), got 'target' \(4 x 3"),
        "no rows": ({"logits": LOGITS[:0], "target": hot[:0]}, "at least one row"),
        "nan logits": ({"logits": np.where(hot == 1, np.nan, LOGITS)}, "must not be NaN"),
        "probabilities": ({"logits": probs}, "all values lie in .0, 1.: .*--probs logits"),
        "pickled": ({"target": np.array([[{}] * CLASSES] * ROWS)}, "'target' cannot be read: .*pickles"),
        "texts": ({"target": np.where(hot == 1, ESCAPE, "no")}, "must hold 0 and 1, one per label"),
        "ignored": ({"target": np.full(hot.shape, -100)}, "every target is ignore_index = -100"),
        "escapes": ({"class_names": np.array([ESCAPE, f"b{REVERSED}", "c\nline\r\u2028!"])}, None),
    }
    for name, (changes, message) in arrays.items():
        yield BadFile(f"multilabel, {name}.npz", npz(**{"target": hot} | changes), message, task)
    columns = {f"prob_{c}": probs[:, k] for k, c in enumerate("abc")}
    columns |= {f"target_{c}": hot[:, k] for k, c in enumerate("abc")}
    lines = [",".join(columns), *(",".join(f"{x:.6g}" for x in row) for row in zip(*columns.values(), strict=True))]
    table = "\n".join(lines) + "\n"
    tables: dict[str, tuple[str, str | None]] = {
        "good": (table, None),
        "empty": ("", "is empty"),
        "header only": (lines[0] + "\n", "at least one row"),
        "other names": (
            table.replace("target_c", "target_d"),
            "labels of scores .a,b,c. and of targets .a,b,d. differ",
        ),
        "a label without target": (table.replace("target_c", "note"), "got 3 of scores .* and 2 of targets"),
        "twice": (table.replace("target_c", "target_a"), "more than one column 'target_a'"),
        "words": (table + "0.1,0.2,0.3,yes,0,1\n", "must be 0 or 1, got 'yes' in line 8 of 'target_a'"),
        "empty cell": (table + "0.1,0.2,0.3,,0,1\n", "column 'target_a' is empty in line 8"),
        "above one": (table + "1.1,0.2,0.3,1,0,1\n", "must lie in .0, 1. .*got 1.1"),
        "escapes": (table.replace("_a", f"_{ESCAPE}"), None),
    }
    for name, (content, message) in tables.items():
        yield BadFile(f"multilabel, {name}.csv", text(content), message, task)
    yield BadFile("multilabel, folder.csv", Path.mkdir, "reads files, not folders", task)
    yield BadFile("multilabel, pickle.pkl", text(b"\x80\x04."), "is a pickle, .* never read", task)


FILES = [
    *text_files(),
    *choice_logs(),
    *multilabel_files(),
    *npz_files(),
    *npy_files(),
    *json_files(),
    *parquet_files(),
    *arrow_files(),
    *safetensors_files(),
    *torch_files(),
    *other_files(),
]
