"""Prediction files that are damaged, hostile or only strange, and the words of the error that each must give."""

import gzip
import io
import json
import math
import os
import random
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
LIMITED, TRUSTED = ("--max-memory", "50MB"), ("--max-memory", "1TB")


Writer = Callable[[Path], object]
Case = tuple[Writer | str | bytes, str | None]  # how to write the file, or its content; words of the error
REFUSED = ""  # any error will do


@dataclass(frozen=True)
class BadFile:
    """A file, and what `dualfocal evaluate` must say about it.

    Args:
        name: name of the case; its end is the suffix of the file.
        write: writes the file.
        words: regular expression within the one line of the error (None: the file is harmless and is evaluated).
        options: options of the command; {folder} is that of the file.
        code: exit code of the error.
        may_pass: whether the file may be harmless, too.
    """

    name: str
    write: Writer
    words: str | None
    options: Sequence[str] = ()
    code: int = 2
    may_pass: bool = False


def table(cases: Mapping[str, Case], options: Sequence[str] = (), ending: str = "{}") -> list[BadFile]:
    """The files of a table, whose names become part of ``ending``."""
    return [
        BadFile(ending.format(name), content if callable(content) else text(content), words, options)
        for name, (content, words) in cases.items()
    ]


# Writers


def text(content: str | bytes) -> Writer:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def npz(compress: bool = False, **arrays: np.ndarray) -> Writer:
    save = np.savez_compressed if compress else np.savez
    return lambda path: save(path, **({"logits": LOGITS, "target": TARGET} | arrays))


def parquet(*, plain: bool = False, **columns: object) -> Writer:
    """Write columns; ``plain`` does not store that a column is categorical, so that it is read as text."""
    return lambda path: pq.write_table(pa.table(columns), path, store_schema=not plain)


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> Writer:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack("<Q", len(content) if length is None else length)
    return text(size + content + data)


def npy_header(descr: str, shape: object) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def members(contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, level: int | None = None) -> Writer:
    """Write a zip archive with these members, which need not be arrays."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method, compresslevel=level) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)

    return write


def lying_directory(descr: str, shape: tuple[int, ...], claimed: int) -> Writer:
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


def feather(compression: str = "uncompressed", **columns: object) -> Writer:
    return lambda path: pyarrow.feather.write_feather(pa.table(columns), path, compression=compression)


def overlapping_views(count: int) -> Writer:
    """Write an Arrow file with texts that are all parts of one text, of a megabyte each."""
    view = struct.pack("<i4sii", MB, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(b"x" * MB)]
    texts = pa.Array.from_buffers(pa.string_view(), count, buffers)
    return feather("zstd", logit_0=np.zeros(count), logit_1=np.ones(count), label=texts)


def tensors(content: object) -> Writer:
    return lambda path: torch.save(content, path)


def torch_pickle(program: bytes, method: int = zipfile.ZIP_STORED) -> Writer:
    """Write a file of torch.save with this pickle."""
    return members({"archive/data.pkl": program, "archive/version": b"3\n", "archive/data/0": bytes(144)}, method)


def wide(count: int) -> str:
    values = ",".join(["0.5"] * count)
    return ",".join(f"logit_{k}" for k in range(count)) + f",label\n{values},0\n{values},1\n"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zeros(count: int, num_classes: int) -> Writer:
    """Write a compressed npz of zeros."""
    contents = {
        "logits.npy": npy_header("<f8", (count, num_classes)) + bytes(8 * count * num_classes),
        "target.npy": npy_header("<i8", (count,)) + bytes(8 * count),
    }
    return members(contents, level=1)


# Files


def text_files() -> list[BadFile]:
    noted = "note,logit_a,logit_b,label\n" + "x" * 200_000 + ",1.0,2.0,{}\n"
    packed = gzip.compress(TABLE.encode())
    escaped = TABLE.replace("logit_a", f"logit_{ESCAPE}").replace(",a\n", f",{ESCAPE}\n")
    cases: dict[str, Case] = {
        "empty.csv": ("", REFUSED),
        "header only.csv": (TABLE.splitlines()[0] + "\n", "row"),
        "no header.csv": ("1,2,3\n1,2,3\n", "header"),
        "byte order mark.csv": (b"\xef\xbb\xbf" + TABLE.encode(), None),
        "utf-16.csv": (TABLE.encode("utf-16"), REFUSED),
        "latin-1.csv": ("logit_é,logit_b,label\n1,2,é\n".encode("latin-1"), REFUSED),
        "nul bytes.csv": (TABLE.replace("0.", "\0."), REFUSED),
        "only nul bytes.csv": (bytes(10_000), REFUSED),
        "duplicate columns.csv": (TABLE.replace("logit_b", "logit_a"), "'logit_a'"),
        "short line.csv": (TABLE + "1,2\n", "line 8 .*2 .*4"),
        "unclosed quote.csv": (TABLE + '"1,2,3,a\n' * 3, REFUSED),
        "words for numbers.csv": (TABLE + "one,2,3,a\n", "'one' in line 8"),
        "hexadecimal.csv": (TABLE + "0x1p3,2,3,a\n", "'0x1p3'"),
        "carriage returns.csv": (TABLE.replace("\n", "\r"), None),
        "long field.csv": (noted.format("a") + "y,2.0,1.0,b\n", None),
        "long field, bad label.csv": (noted.format("zebra"), "'zebra' in line 2"),
        "long field, no label.csv": (noted.format(""), "'label' .*line 2"),
        "long field, bad number.csv": (noted.replace("2.0", "two").format("a"), "'two' in line 2"),
        "long name.csv": (TABLE.replace("logit_b", "logit_" + "b" * 10**6), "'b' in line"),
        "long label.csv": (TABLE + "1,2,3," + "z" * 10**6 + "\n", "'zzz.*in line 8"),
        "digits.csv": (f"logit_{'9' * 5000},logit_1,label\n1,2,0\n1,2,1\n", "digits"),
        "wide.csv": (wide(200_000), None),
        "wide, bad label.csv": (wide(50_000).replace("logit_", "logit_c")[:-2] + "x\n", "'x' in line 3"),
        "wide, twice.csv": (wide(200_000).replace("logit_7,", "logit_8,"), "'logit_8'"),
        "escapes.csv": (TABLE.replace("logit_a", f"logit_a{ESCAPE}"), "'a' .*x1b"),
        "escapes in a label.csv": (TABLE + f"1,2,3,{ESCAPE}\n", "x1b"),
        "escapes in a class.csv": (escaped, None),
        "reversed class.csv": (TABLE.replace("_a", f"_{REVERSED}").replace(",a\n", f",{REVERSED}\n"), None),
        "truncated.csv.gz": (packed[:-9], REFUSED),
        "not packed.csv.gz": (TABLE, REFUSED),
        "garbage behind.csv.gz": (packed + b"garbage", REFUSED),
        "wrong checksum.csv.gz": (packed[:-8] + bytes(8), REFUSED),
    }
    return table(cases)


def npz_files() -> list[BadFile]:
    plain, target = npy(LOGITS), {"target.npy": npy(TARGET)}
    headers = {
        "too large": ("<f8", (10**6, 10**9)),
        "overflowing": ("<f8", (2**62, 2**62)),
        "negative": ("<f8", (-ROWS, -CLASSES)),
        "too small": ("<f4", (ROWS, CLASSES)),
        "without bytes": ("<U0", (10**12,)),
        "of objects": ("|O", (ROWS, CLASSES)),
    }
    contents = {f"header {name}": npy_header(*claim) + plain[128:] for name, claim in headers.items()} | {
        "other files": b"text",
        "version 9": plain[:6] + b"\x09\x00" + plain[8:],
        "header with code": plain.replace(b"(6, 3)", b"exit()"),
        "nested header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    }
    many = {f"array{i}.npy": b"" for i in range(20_000)}
    names = np.array([ESCAPE, f"b{REVERSED}", "c\nline\r\u2028!"])
    cases: dict[str, Case] = {
        **{name: (members({"logits.npy": content, **target}), "'logits'") for name, content in contents.items()},
        "empty": ("", REFUSED),
        "noise": (b"noise" * 100, REFUSED),
        "no arrays": (members({}), REFUSED),
        "pickle": (npz(logits=np.array([[{}, {}]] * ROWS)), "'logits' .*pickle"),
        "pickled labels": (npz(target=np.array([{}] * ROWS)), "'target' .*pickle"),
        "pickled names": (npz(class_names=np.array([{}] * CLASSES)), None),
        "complex": (npz(logits=LOGITS * 1j), "complex"),
        "dates": (npz(logits=LOGITS.astype("M8[s]")), "datetime"),
        "records": (npz(logits=np.zeros(ROWS, "f8,f8")), "f8"),
        "no rows": (npz(logits=LOGITS[:0], target=TARGET[:0]), "row"),
        "scalar": (npz(logits=np.array(1.0)), "row"),
        "other byte order": (npz(logits=LOGITS.astype(">f8"), target=TARGET.astype(">i4")), None),
        "uint64 that wraps": (npz(target=np.full(ROWS, 2**64 - 100, "u8")), "18446744073709551516"),
        "uint64 label": (npz(target=np.array([2**63, 0, 1, 2, 0, 1], "u8")), r"2\*\*63"),
        "uint64": (npz(target=TARGET.astype("u8")), None),
        "lzma": (members({"logits.npy": plain, **target}, zipfile.ZIP_LZMA), "14"),
        "bzip2": (members({"logits.npy": plain, **target}, zipfile.ZIP_BZIP2), "12"),
        "data missing": (lying_directory("<f8", (10**5, 3), 24 * 10**5), "'logits'"),
        "many arrays": (members({"logits.npy": plain, **target, **many}, 0), None),
        "many arrays, no logits": (members(many, 0), "19988 more"),
        "escapes": (members({f"{ESCAPE}.npy": plain}), "'.x1b"),
        "escapes in classes": (npz(class_names=names, target=names[TARGET]), None),
    }
    lying = BadFile("directory lies.npz", lying_directory("<f8", (10**7, 3), 24 * 10**7), "240.0 MB", LIMITED)
    return [*table(cases, ending="{}.npz"), lying]


def parquet_files() -> list[BadFile]:
    rows = {f"logit_{k}": LOGITS[:, k] for k in range(CLASSES)}
    maps = pa.array([[(1, 2.0)]] * ROWS, pa.map_(pa.int32(), pa.float64()))
    lines = {f"logit_{name}": LOGITS[:, k] for k, name in enumerate(["a\nb", ESCAPE, "c"])}
    slow = "logit" + "_" * 50_000 + "\n"  # takes hours if a regular expression tries every length
    cases: dict[str, Case] = {
        "empty": ("", REFUSED),
        "noise": (b"PAR1" + b"noise" * 100 + b"PAR1", REFUSED),
        "footer too long": (b"PAR1" + struct.pack("<I", 2**31) + b"PAR1", REFUSED),
        "structs": (parquet(logits=pa.array([{"a": 1.0, "b": [2.0]}] * ROWS), label=TARGET), REFUSED),
        "maps": (parquet(logits=maps, label=TARGET), REFUSED),
        "lists of texts": (parquet(logits=pa.array([["a", "b"]] * ROWS), label=TARGET), "'logits'"),
        "uneven lists": (parquet(logits=[[1.0, 2.0], [1.0]], label=[0, 1]), "length"),
        "empty cells": (parquet(logits=[[1.0, 2.0], None], label=[0, 1]), "row 1"),
        "texts": (parquet(**rows | {"logit_1": ["x"] * ROWS}, label=TARGET), "object"),
        "uint64 that wraps": (parquet(**rows, label=np.full(ROWS, 2**64 - 100, "u8")), r"2\*\*63"),
        "escapes": (parquet(**{ESCAPE: TARGET}), "'.x1b"),
        "lines in classes": (parquet(**lines, label=["a\nb", ESCAPE, "c"] * 2), None),
        "slow name": (parquet(**{slow: TARGET, "label": TARGET}), "column"),
    }
    return table(cases, ending="{}.parquet")


def safetensors_files() -> list[BadFile]:
    logits = {"dtype": "F64", "shape": [ROWS, CLASSES], "data_offsets": [0, LOGITS.nbytes]}
    target = {"dtype": "I64", "shape": [ROWS], "data_offsets": [LOGITS.nbytes, LOGITS.nbytes + TARGET.nbytes]}
    data, good = LOGITS.tobytes() + TARGET.tobytes(), {"logits": logits, "target": target}
    wrapping = LOGITS.tobytes() + np.full(ROWS, 2**64 - 100, "u8").tobytes()
    named = {**good, "__metadata__": {"class_names": json.dumps([ESCAPE, "b\n", REVERSED])}}
    cases: dict[str, Case] = {
        "empty": ("", REFUSED),
        "huge header": (safetensors(good, data, 2**40), REFUSED),
        "not json": (safetensors(b"{" * 1000, data), REFUSED),
        "shape that overflows": (safetensors({"logits": logits | {"shape": [2**40, 2**40]}}, data), REFUSED),
        "uint64 that wraps": (safetensors({**good, "target": target | {"dtype": "U64"}}, wrapping), r"2\*\*63"),
        "escapes in classes": (safetensors(named, data), None),
    }
    return table(cases, ending="{}.safetensors")


def npy_files() -> list[BadFile]:
    """Arrays, whose name is 'file', and whose labels are in another file."""

    def labelled(content: bytes) -> Writer:
        return lambda path: [path.with_name("y.npy").write_bytes(npy(TARGET)), path.write_bytes(content)]

    cases: dict[str, Case] = {
        "good": (labelled(npy(LOGITS)), None),
        "empty": (labelled(b""), REFUSED),
        "noise": (labelled(b"noise" * 100), REFUSED),
        "claims more": (labelled(npy_header("<f8", (10**6, 10**9)) + bytes(100)), "header"),
        "objects": (labelled(npy(np.array([{}] * ROWS))), "pickle"),
        "truncated": (labelled(npy(LOGITS)[:-8]), "header"),
        "version 9": (labelled(b"\x93NUMPY\x09" + npy(LOGITS)[7:]), "9.0"),
    }
    without_labels = BadFile("no name.npy", text(npy(LOGITS)), "labels")
    return [*table(cases, ("--logits", "file", "--target", "{folder}/y.npy"), "{}.npy"), without_labels]


def json_files() -> list[BadFile]:
    good = jsonl(logits=LOGITS, label=TARGET)
    names = {ESCAPE: 0.5, f"b{REVERSED}": 0.5}
    many = json.dumps({"logits": {f"c{k}": 1.0 for k in range(20_000)}, "label": "c1"})
    cases: dict[str, Case] = {
        "good.jsonl": (good, None),
        "good.jsonl.gz": (gzip.compress(good.encode()), None),
        "truncated.jsonl.gz": (gzip.compress(good.encode())[:-9], REFUSED),
        "byte order mark, blank lines.jsonl": (b"\xef\xbb\xbf" + good.replace("\n", "\r\n\n").encode(), None),
        "empty.jsonl": ("\n\n", REFUSED),
        "noise.jsonl": (b"\xff\xfe" * 100, REFUSED),
        "a list.jsonl": ("[1, 2]\n", "line 1"),
        "one array.jsonl": ('[{"logits": [1, 2], "label": 0},\n', "line 1"),
        "cut.jsonl": (good[:-20], "line 6"),
        "nested.jsonl": ('{"logits": ' + "[" * 100_000 + "\n", REFUSED),
        "nested lists.jsonl": ('{"logits": [[1, 2]], "label": 0}\n', "'logits'"),
        "texts.jsonl": ('{"logits": ["1", "2"], "label": 0}\n', "'logits' .*'1' in line 1"),
        "booleans.jsonl": ('{"logits": [true, 2], "label": 0}\n', "True"),
        "uneven.jsonl": (good + '{"logits": [1, 2], "label": 0}\n', "3 and 2 in line 7"),
        "numbers and lists.jsonl": (good + '{"logits": 1, "label": 0}\n', "line 7"),
        "no label.jsonl": (good + '{"logits": [1, 2, 3]}\n', "'label' .*line 7"),
        "null.jsonl": (good + '{"logits": [1, null, 3], "label": 0}\n', "'logits' .*line 7"),
        "digits.jsonl": (f'{{"logits": [{"9" * 5000}, 2], "label": 0}}\n', "line 1 .*digits"),
        "large.jsonl": (f'{{"logits": [1{"0" * 400}, 2], "label": 0}}\n', REFUSED),
        "infinite.jsonl": ('{"logits": [1e999, 2], "label": 0}\n', "row 0 .*inf"),
        "large label.jsonl": (f'{{"logits": [1, 2], "label": {2**70}}}\n', REFUSED),
        "twice.jsonl": ('{"a": {"b": 1}, "a.b": 2}\n', "'a.b'"),
        "escapes.jsonl": (json.dumps({"probs": names, "label": ESCAPE}) + "\n", None),
        "escapes in names.jsonl": (json.dumps({ESCAPE: 1}) + "\n", "'.x1b"),
        "many classes.jsonl": (many + "\n", None),
    }
    return table(cases)


def arrow_files() -> list[BadFile]:
    rows = {"logits": list(LOGITS), "label": TARGET}
    nothing = pa.array([[]] * ROWS, pa.list_(pa.float64(), 0))  # a row takes no byte
    views = pa.array([["a"], ["b"]] * 3, pa.list_(pa.string_view()))
    named = {f"logit_{text}": LOGITS[:, k] for k, text in enumerate("abc")}
    cases: dict[str, Case] = {
        **{f"{kind}.feather": (feather(kind, **rows), None) for kind in ("uncompressed", "lz4", "zstd")},
        "empty.arrow": ("", REFUSED),
        "noise.arrow": (b"noise" * 100, REFUSED),
        "noise.feather": (b"ARROW1\0\0" + b"noise" * 100 + b"ARROW1", REFUSED),
        "version 1.feather": (b"FEA1" + bytes(100), "version 1"),
        "structs.feather": (feather(logits=[{"a": 1.0}] * ROWS, label=TARGET), "logits"),
        "lists of texts.feather": (feather(logits=[["a", "b"]] * ROWS, label=TARGET), "logits"),
        "lists of nothing.feather": (feather(logits=nothing, label=TARGET), "logits"),
        "nulls.feather": (feather(logits=pa.nulls(ROWS), label=TARGET), "logits"),
        "uneven lists.feather": (feather(logits=[[1.0, 2.0], [1.0]], label=[0, 1]), "length"),
        "empty cells.feather": (feather(logits=[[1.0, 2.0], None], label=[0, 1]), "row 1"),
        "lists of views.arrow": (feather(logits=views, label=TARGET), "logits"),
        "views.arrow": (feather(**named, label=pa.array(["a", "b", "c"] * 2, pa.string_view())), None),
    }
    return table(cases)


def torch_files() -> list[BadFile]:
    logits, target = torch.tensor(LOGITS), torch.tensor(TARGET)
    huge = logits[:1, :1].expand(10**6, 10**6)  # 8 bytes in the file
    cases: dict[str, Case] = {
        "good.pt": (tensors({"logits": logits, "target": target}), None),
        "parameter.pth": (tensors({"logits": torch.nn.Parameter(logits), "target": target}), None),
        "empty.pt": ("", REFUSED),
        "noise.pt": (b"noise" * 100, REFUSED),
        "a pickle.pt": (b"\x80\x02].", REFUSED),
        "numpy.pt": (tensors({"logits": LOGITS, "target": TARGET}), "numpy"),
        "a module.pt": (tensors(torch.nn.Linear(2, 2)), "Linear"),
        "sparse.pt": (tensors({"logits": logits.to_sparse(), "target": target}), "sparse"),
        "nested.pt": (tensors({"logits": [logits], "target": target}), "list"),
        "a set.pt": (tensors({1, 2}), "set"),
        "a number.pt": (tensors(3), "int"),
        "code.pt": (torch_pickle(b"cos\nsystem\n(S'exit 3'\ntR."), "os system"),
        "code on the stack.pt": (torch_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "Python objects"),
        "bytes.pt": (torch_pickle(b"cbuiltins\nbytearray\n(I99999999999\ntR."), "bytearray"),
        "packed.pt": (torch_pickle(b"}." + bytes(999), zipfile.ZIP_DEFLATED), "compressed"),
        "no pickle.pt": (members({"a/b": b""}, 0), REFUSED),
        "half a pickle.pt": (torch_pickle(b"\x80\x02}("), REFUSED),
        "expanded.pt": (tensors({"logits": huge, "target": target}), "8.0 TB"),
        "escapes.pt": (tensors({ESCAPE: logits}), "'.x1b"),
    }
    return table(cases)


def other_files() -> list[BadFile]:
    cases: dict[str, Case] = {
        "pipe.csv": (os.mkfifo, "pipe"),
        "folder.csv": (Path.mkdir, "folder"),
        "missing.csv": (lambda path: None, "no such file"),
        "link to itself.csv": (lambda path: path.symlink_to(path), REFUSED),
        "pickle.pkl": (b"\x80\x04.", "pickle"),
    }
    return table(cases)


def rows_of(count: int) -> dict[str, np.ndarray]:
    return {"logit_0": np.zeros(count), "logit_1": np.zeros(count), "label": np.zeros(count, np.int8)}


def bombs() -> list[BadFile]:
    """Small files that need hundreds of megabytes: refused beyond a limit of 50 MB."""
    column, claimed = np.zeros(3 * MB, np.float32), lying_directory("<f8", (100 * MB, 3), 2400 * MB)
    repeated = pa.DictionaryArray.from_arrays(np.zeros(5000, "i4"), pa.array(["x" * MB]))  # five gigabytes
    names = pa.DictionaryArray.from_arrays(np.zeros(ROWS, "i4"), pa.array(["x" * 60 * MB]))
    line, head = b'{"logits": [0, 1], "label": 0}\n', b"logit_0,logit_1,label\n"
    packed = {
        "bomb.jsonl.gz": (b"", line * 100_000),
        "one line.jsonl.gz": (line + b'{"a": "', b"a" * MB),
        "one list.jsonl.gz": (b'{"logits": [', b"0," * MB),
        "empty lists.jsonl.gz": (line + b'{"a": [', b"[]," * MB),
        "bomb.csv.gz": (head, b"0,0,0\n" * MB),
        "one field.csv.gz": (head + b"0,", b"0" * MB),
        "one quoted field.csv.gz": (head + b'0,"', b'""\n' * MB),
        "one header.csv.gz": (b"logit_0,", b"a" * MB),
        "many columns.csv.gz": (b"logit_0", b",a" * MB),
    }
    cases: dict[str, Case] = {
        "bomb.npz": (zeros(3 * MB, 4), "50.0 MB"),
        "names.npz": (npz(True, class_names=np.full(2 * MB, "name")), "50.0 MB"),
        "bomb.parquet": (parquet(logit_0=column, logit_1=column, label=column), "50.0 MB"),
        "lz4.feather": (feather("lz4", **rows_of(8 * MB)), "50.0 MB"),
        "zstd.feather": (feather("zstd", **rows_of(8 * MB)), "50.0 MB"),
        "dictionary.feather": (feather("zstd", **{**rows_of(ROWS), "label": names}), "50.0 MB"),
        "views.arrow": (overlapping_views(200), "800.0 MB .*50.0 MB"),
        **{
            name: (gzip.compress(start) + gzip.compress(part) * 40, "50.0 MB|200 times")
            for name, (start, part) in packed.items()
        },
    }
    texts = parquet(logit_0=column[:5000], logit_1=column[:5000], label=repeated, plain=True)
    return [
        *table(cases, LIMITED),
        BadFile("not enough memory.npz", claimed, "'logits' .*memory", TRUSTED, code=1),
        BadFile("repeated text.parquet", texts, "'x", TRUSTED),
    ]


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

    def damaged(write: Writer, seed: int) -> Writer:
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
            yield BadFile(f"mutant {seed}{suffix}", damaged(write, seed), REFUSED, may_pass=True)


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


def eval_archive(*samples: str, method: int = zipfile.ZIP_DEFLATED) -> Writer:
    """Write a log of inspect_ai."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("header.json", '{"eval": {"task": "t"}}')
            for i, sample in enumerate(samples):
                archive.writestr(f"samples/../../{i}.json", sample)

    return write


def choice_logs() -> list[BadFile]:
    good = choice_line(0) + choice_line(1)
    many = tuple(f"-{i % 97 + 1}" for i in range(5000))
    cases: dict[str, Case] = {
        "good": (good, None),
        "thousands of options": (choice_line(0, many) + choice_line(1, many), None),
        "control characters": (good + choice_line(2, doc_id=ESCAPE + REVERSED), None),
        "zero probability": (good + choice_line(2, ("-inf", "-1")), None),
        "truncated": (good + choice_line(2)[:-40], "line 3"),
        "nan": (good + choice_line(2, (math.nan, -1.0)), "line 3: .*nan"),
        "inf": (good + choice_line(2, (math.inf, -1.0)), "line 3: .*inf"),
        "all -inf": (good + choice_line(2, ("-inf", "-inf")), "line 3: .*-inf"),
        "no number": (choice_line(0, (ESCAPE, "-1")), "line 1: filtered_resps"),
        "objects": (choice_line(0, [{}, {}]), "line 1: filtered_resps"),
        "a text": (choice_line(0, "abc"), "line 1: filtered_resps"),
        "no options": (choice_line(0, [], arguments=[]), "multiple_choice"),
        "arguments": (choice_line(0, arguments={ESCAPE: 3}), "arguments"),
        "accuracy": (choice_line(0, acc=[]), "accuracy"),
        "deep": ('{"doc_id": ' + "[" * 100_000 + "\n", REFUSED),
        "a list": ("[1, 2]\n", "line 1"),
        "other keys": ('{"a": 1}\n', "doc_id, doc, arguments, filtered_resps"),
        "empty": ("", REFUSED),
        "twice": (choice_line(0) + choice_line(0), "line 2: document 0"),
    }
    inspect: dict[str, Case] = {
        "no log.json": ("{}", "eval.task"),
        "truncated.json": ('{"eval": {"task": "t"}, "samples": [', "JSON"),
        "samples.json": ('{"eval": {"task": "t"}, "samples": [[]]}', "sample 1"),
        "no samples.eval": (eval_archive(), REFUSED),
        "types.eval": (eval_archive('{"id": 1, "choices": ["a", "b"], "output": 3}'), "sample 1"),
        "no json.eval": (eval_archive("{"), "JSON"),
        "lzma.eval": (eval_archive("{}", method=zipfile.ZIP_LZMA), "14"),
    }
    lm_options, inspect_options = ("--format", "lm-eval"), ("--format", "inspect")
    line = text(choice_line(0, doc={"passage": "x" * 2 * MB}))
    bomb = eval_archive('{"a": "' + "x" * 20 * MB + '"}')
    return [
        *table(cases, lm_options, "choices, {}.jsonl"),
        *table(inspect, inspect_options, "inspect, {}"),
        BadFile("choices, long line.jsonl", line, "50.0 MB", lm_options + LIMITED),
        BadFile("inspect, bomb.eval", bomb, "800.0 MB .*50.0 MB", inspect_options + LIMITED),
    ]


def multilabel_files() -> list[BadFile]:
    """Files for ``--task multilabel``: three labels, each 0 or 1."""
    hot = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 1]])
    probs = 1 / (1 + np.exp(-LOGITS))
    arrays: dict[str, tuple[dict[str, np.ndarray], str | None]] = {
        "good": ({}, None),
        "class indices": ({"target": TARGET}, "'target'.*--task"),
        "labels 1 and 2": ({"target": hot + 1}, "got 2 in row 0"),
        "halves": ({"target": hot / 2}, "got 0.5 in row 0"),
        "nan target": ({"target": np.where(hot == 1, np.nan, 0.0)}, "got nan in row 0"),
        "uint64 that wraps": ({"target": np.full(hot.shape, 2**64 - 100, "u8")}, "got 1.84467e.19"),
        "fewer labels": ({"target": hot[:, :2]}, r"\(6, 3\), got 'target' \(6 x 2"),
        "fewer rows": ({"target": hot[:4]}, r"\(6, 3\), got 'target' \(4 x 3"),
        "no rows": ({"logits": LOGITS[:0], "target": hot[:0]}, "row"),
        "nan logits": ({"logits": np.where(hot == 1, np.nan, LOGITS)}, "NaN"),
        "probabilities": ({"logits": probs}, "--probs logits"),
        "pickled": ({"target": np.array([[{}] * CLASSES] * ROWS)}, "'target' .*pickle"),
        "texts": ({"target": np.where(hot == 1, ESCAPE, "no")}, "0 and 1"),
        "ignored": ({"target": np.full(hot.shape, -100)}, "-100"),
        "escapes": ({"class_names": np.array([ESCAPE, f"b{REVERSED}", "c\nline\r\u2028!"])}, None),
    }
    columns = {f"prob_{c}": probs[:, k] for k, c in enumerate("abc")}
    columns |= {f"target_{c}": hot[:, k] for k, c in enumerate("abc")}
    lines = [",".join(columns), *(",".join(f"{x:.6g}" for x in row) for row in zip(*columns.values(), strict=True))]
    good = "\n".join(lines) + "\n"
    cases: dict[str, Case] = {
        **{f"{name}.npz": (npz(**{"target": hot} | changes), words) for name, (changes, words) in arrays.items()},
        "good.csv": (good, None),
        "empty.csv": ("", REFUSED),
        "header only.csv": (lines[0] + "\n", "row"),
        "other names.csv": (good.replace("target_c", "target_d"), "a,b,c.*a,b,d"),
        "a label without target.csv": (good.replace("target_c", "note"), "3 .* 2 "),
        "twice.csv": (good.replace("target_c", "target_a"), "'target_a'"),
        "words.csv": (good + "0.1,0.2,0.3,yes,0,1\n", "'yes' in line 8 of 'target_a'"),
        "empty cell.csv": (good + "0.1,0.2,0.3,,0,1\n", "'target_a' .*line 8"),
        "above one.csv": (good + "1.1,0.2,0.3,1,0,1\n", "got 1.1"),
        "escapes.csv": (good.replace("_a", f"_{ESCAPE}"), None),
        "folder.csv": (Path.mkdir, "folder"),
        "pickle.pkl": (b"\x80\x04.", "pickle"),
    }
    return table(cases, ("--task", "multilabel"), "multilabel, {}")


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
