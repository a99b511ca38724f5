"""Batches of CIFAR are read in every protocol; other pickles are refused, run nothing and need little memory."""

import hashlib
import operator
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from official import python2_pickle

from dualfocal_lab.data import _unpickle
from dualfocal_lab.data._unpickle import RULE, read_batch

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
BATCH = {"batch_label": "batch 1 of 5", "labels": [6, 9], "data": PIXELS, "filenames": ["a_s_001.png", "b_s_002.png"]}
PYTHON_2 = python2_pickle(BATCH)
META = (
    b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03]q\x04(U\x08airplaneq\x05U\nautomobileq\x06"
    b"U\x04birdq\x07U\x03catq\x08U\x04deerq\tU\x03dogq\nU\x04frogq\x0bU\x05horseq\x0cU\x04shipq\rU\x05truckq\x0ee"
    b"U\x07num_visq\x0fM\x00\x0cu."
)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def array(shape: bytes, content: bytes, dtype: bytes = b"u1") -> bytes:
    """The opcodes of a dictionary with an array; everything in it can be made wrong."""
    call = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = b"cnumpy\ndtype\nU\x02" + dtype + b"\x85R"
    return b"}U\x04data" + call + b"(K\x01(" + shape + b"t" + kind + b"\x89" + content + b"tbs."


def assert_same(batch: dict, expected: dict) -> None:
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(batch[key], value, strict=True)
        else:
            assert batch[key] == value


# Reading


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_batch_is_read_in_every_protocol_of_either_numpy(protocol: int) -> None:
    fortran = {"data": np.asfortranarray(PIXELS)}
    assert_same(read_batch(pickle.dumps(fortran, protocol=protocol)), fortran)
    data = pickle.dumps(BATCH, protocol=protocol)
    assert_same(read_batch(data), BATCH)
    data = data[:2] + data[11:] if protocol >= 4 else data  # without the frame, which would have another length
    for module in (b"multiarray", b"numeric"):  # which numpy 1 called otherwise
        new, old = (b"numpy._core." + module, b"numpy.core." + module)
        data = data.replace(bytes([len(new)]) + new, bytes([len(old)]) + old).replace(new, old)
    assert b"_core" not in data
    assert_same(read_batch(data), BATCH)


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_a_batch_of_python_2() -> None:
    assert_same(read_batch(PYTHON_2), BATCH)
    assert_same(pickle.loads(PYTHON_2, encoding="latin-1"), BATCH)  # Python reads the same from them


def test_the_official_batches_meta() -> None:
    # the sum that torchvision checks cifar-10-batches-py/batches.meta with
    assert hashlib.md5(META, usedforsecurity=False).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert read_batch(META) == {"num_cases_per_batch": 10000, "label_names": names, "num_vis": 3072}


def test_the_largest_official_file_has_room() -> None:
    labels, names = list(range(20)) * 2_500, [f"name_{i}.png" for i in range(50_000)]
    batch = {"coarse_labels": labels, "fine_labels": labels[::-1], "filenames": names}
    assert read_batch(pickle.dumps(batch, protocol=2)) == batch


# Hostile pickles


def refusal(data: bytes) -> str:
    """Message with which a pickle is refused, after the words that are common to all."""
    try:
        batch = read_batch(data)
    except ValueError as error:
        message = str(error)
        assert message.startswith("is damaged, or not a CIFAR batch: "), message
        return message.removeprefix("is damaged, or not a CIFAR batch: ")
    return pytest.fail(f"read {batch} from {data[:40]!r}")


class Payload:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.arguments


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported, and a folder where any command would leave one."""
    (tmp_path / "trap_module.py").write_text("open('sprung', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_module", raising=False)
    return tmp_path / "sprung"


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Payload(os.system, "touch sprung"), f"{os.name}.system"),
        (Payload(subprocess.call, ["touch", "sprung"]), ".call"),
        (Payload(eval, "open('sprung', 'w')"), ".eval"),
        (Payload(exec, "open('sprung', 'w')"), ".exec"),
        (Payload(__import__, "trap_module"), ".__import__"),
        (Payload(getattr, "", "join"), ".getattr"),
        (Payload(open, "sprung", "w"), ".open"),
        (Payload(partial, os.mkdir, "sprung"), "functools.partial"),
        (Payload(operator.attrgetter, "system"), "operator.attrgetter"),
        (Payload(np.fromfile, "sprung"), "fromfile"),
        (Payload(bytes, 10**13), ".bytes"),
        (Payload(np.float64, 1.5), "float64"),
        (Path("sprung"), "pathlib"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_name_that_is_not_on_the_list_is_refused_and_named(trap: Path, payload: object, name: str) -> None:
    for protocol in PROTOCOLS:
        message = refusal(pickle.dumps({"labels": [1], "data": payload}, protocol=protocol))
        assert message.startswith("uses the name '"), protocol
        assert name in message, protocol
        assert RULE in message, protocol
        assert not trap.exists(), protocol


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trap_module", "anything"),
        ("os", "path.join"),
        ("numpy", "dtype.type"),
        ("numpy", "core.multiarray._reconstruct"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy.core.multiarray", "scalar"),
        ("_codecs", "decode"),
    ],
)
def test_modules_are_not_imported_nor_attributes_looked_up(trap: Path, module: str, name: str) -> None:
    for data in (
        f"c{module}\n{name}\n(S'touch sprung'\ntR.".encode(),
        f"(S'touch sprung'\ni{module}\n{name}\n.".encode(),
        b"\x80\x04" + text(module) + text(name) + b"\x93)R.",
    ):
        assert f"uses the name '{module}.{name}'" in refusal(data)
    assert not trap.exists()


HOSTILE = [
    b"cnumpy\nndarray\n\x8a\x08" + bytes(6) + b"\x01\x00\x85R.",  # an array of 2**48 entries, called
    b"cnumpy\nndarray\n\x8a\x08" + bytes(6) + b"\x01\x00\x85\x81.",  # and made by NEWOBJ
    array(b"\x8a\x06" + bytes(5) + b"\x01", b"U\x01a"),  # 2**40 entries of one byte
    array(b"K\x02", b"U\x01a"),
    array(b"K\x01", b"U\x02ab"),
    array(b"K\x01" * 100, b"U\x01a"),
    array(text("a") + b"\x8a\x06" + bytes(5) + b"\x01", b"U\x01a"),  # text times 2**40
    array(b"K\x01", b"K\x01"),
    array(b"K\x01", b"]"),
    array(b"K\x01", b"U\x08abcdefgh", dtype=b"O8"),
    array(b"K\x01", b"U\x08abcdefgh", dtype=b"f8"),
    b"}U\x04datacnumpy.core.multiarray\n_reconstruct\n)Rs.",  # never built
    b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR.",
    b"Nr\xff\xff\xff\xff.",  # 64 GB of memo
    b"Np999999999999\n.",
    b"T\xff\xff\xff\x7f.",
    b"\x96" + b"\xff" * 7 + b"\x7f.",
    b"\x8d" + b"\xff" * 8 + b".",
    b"\x82\x01.",
    b"K\x01Q.",
    b"\x97.",
    b"]}b.",
    b"})" + b"\x85" * 100_000 + b"Ns.",  # whose hash would be deeper than the stack
    b"]" * 100_000 + b"a" * 99_999 + b".",
    b"}L" + b"9" * 100_000 + b"L\nNs.",
    b"K\x01.",
]


def test_hostile_sizes_and_types_are_refused_in_little_memory() -> None:
    for data in HOSTILE:
        tracemalloc.start()
        try:
            assert refusal(data)
            assert tracemalloc.get_traced_memory()[1] < 2**21 + 200 * len(data), data[:40]
        finally:
            tracemalloc.stop()


def test_the_same_bytes_in_many_places_stay_one() -> None:
    call = b"q\x00" + text("latin1") + b"q\x01c_codecs\nencode\nq\x02" + b"h\x02h\x00h\x01\x86R" * 900
    data = b"}U\x01a(X\x00\x00\x10\x00" + bytes(2**20) + call + b"ls."
    tracemalloc.start()
    try:
        assert len(read_batch(data)["a"]) == 903
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_too_many_opcodes_are_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_unpickle, "MAX_OPCODES", 10_000)
    for flood in (b"}", b"]", b"(", b"N"):
        assert "at byte 10001 is too large" in refusal(flood * 20_000 + b"."), flood


def test_other_arrays_are_refused() -> None:
    values = [
        np.array([None, {}], dtype=object),
        np.zeros(2, dtype=[("a", "u1"), ("b", "f8")]),
        np.array(["a", "b"]),
        np.arange(3),
        np.ma.masked_array([1, 2], [True, False]),
    ]
    for value in values:
        for protocol in PROTOCOLS:
            message = refusal(pickle.dumps({"data": value}, protocol=protocol))
            assert re.search("has an array of dtype|uses the name", message), (value, protocol)


# Damaged pickles

SMALL = {"labels": [6, 9], "data": PIXELS[:, :4], "names": ["ü"]}


def test_a_pickle_that_is_cut_off_is_refused() -> None:
    for data in (META, *(pickle.dumps(SMALL, protocol=protocol) for protocol in PROTOCOLS)):
        for stop in range(len(data)):
            assert refusal(data[:stop]), stop


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3)), min_size=1, max_size=4)


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from([META, PYTHON_2[:200] + PYTHON_2[-80:], *(pickle.dumps(SMALL, p) for p in PROTOCOLS)]), CHANGES)
def test_changed_bytes_are_refused_or_read(data: bytes, changes: list[tuple[float, bytes]]) -> None:
    for share, patch in changes:
        place = int(share * len(data))
        data = data[:place] + patch + data[place + len(patch) :]
    try:
        assert type(read_batch(data)) is dict
    except ValueError as error:
        assert str(error).startswith("is damaged, or not a CIFAR batch: ")  # noqa: PT017 it need not be raised
