"""What Python and numpy write is read back; whatever else the bytes say, nothing runs and nothing grows."""

import builtins
import hashlib
import operator
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dualfocal.data import _unpickle
from dualfocal.data._unpickle import RULE, UnpicklingRefused, read_plain

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray)


def same(a: object, b: object) -> bool:
    """Equal values of equal types, all the way down; a NaN equals itself and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return (
            list(a) == list(b)
            and all(type(k) is type(m) for k, m in zip(a, b, strict=True))
            and same([*a.values()], [*b.values()])
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return repr(a) == repr(b)


def assert_plain(value: object, depth: int = 0) -> None:
    assert type(value) in PLAIN
    assert depth <= 32
    if isinstance(value, dict):
        assert all(type(key) in (int, str, bytes) for key in value)
        value = list(value.values())
    if isinstance(value, np.ndarray):
        assert value.dtype.kind in "biuf"
        assert type(value) is np.ndarray
        assert not value.flags.writeable
        value.tobytes()  # reads all of its memory
    elif isinstance(value, list | tuple):
        for item in value:
            assert_plain(item, depth + 1)


def assert_harmless(data: bytes) -> None:
    """The bytes give plain values or a ValueError, of no subclass but ours."""
    try:
        value = read_plain(data)
    except ValueError as error:
        kind, message = type(error), str(error)
    else:
        assert_plain(value)
        return
    assert kind in (ValueError, UnpicklingRefused)
    assert message.startswith("is damaged: ") if kind is ValueError else message.endswith(RULE)
    assert len(message) < 2000


def assert_small(data: bytes) -> None:
    """No more memory than a plain list of the opcodes would take, on top of what the machine itself needs."""
    tracemalloc.start()
    try:
        assert_harmless(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**18 + 200 * len(data)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)


DTYPE_STATE = b"(K\x03%bNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def dtype(code: str = "u1", order: str = "|") -> bytes:
    return b"cnumpy\ndtype\n" + text(code) + b"\x89\x88\x87R" + DTYPE_STATE % text(order)


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"


def array(
    shape: bytes, content: bytes, kind: bytes = dtype(), version: bytes = b"K\x01", fortran: bytes = b"\x89"
) -> bytes:
    """The opcodes of an array; everything in it can be made wrong."""
    return RECONSTRUCT + b"(" + version + b"(" + shape + b"t" + kind + fortran + content + b"tb"


# ---- What is read


arrays = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(endianness="?"),
        hnp.unsigned_integer_dtypes(endianness="?"),
        hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    ),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
).flatmap(
    # every order: C, Fortran, permuted, reversed, read-only
    lambda a: st.sampled_from(
        [a, np.asfortranarray(a), a.T, np.moveaxis(a, 0, -1) if a.ndim else a, a[::-1] if a.ndim else a]
    )
)
keys = st.text(max_size=20) | st.binary(max_size=20) | st.integers(-(2**16) + 1, 2**16 - 1)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**2038), 2**2038) | st.integers() | st.floats() | st.text() | st.binary()
)
values = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=values)
def test_round_trip(protocol: int, value: object) -> None:
    assert same(read_plain(pickle.dumps(value, protocol=protocol)), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_values(protocol: int) -> None:
    """More than 255 bytes, entries and memo places have opcodes of their own."""
    value = {
        "text": "ü" * 300,
        "bytes": bytes(range(256)) * 2,
        "list": [str(i) for i in range(3000)],
        "ints": list(range(-2000, 2000)),
    }
    assert same(read_plain(pickle.dumps(value, protocol=protocol)), value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_and_scalars(protocol: int) -> None:
    data = pickle.dumps([np.eye(3), np.float32(1.5), np.int64(-3), np.bool_(True)], protocol=protocol)
    old = data.replace(b"\x16numpy._core.multiarray", b"\x15numpy.core.multiarray").replace(
        b"\x13numpy._core.numeric", b"\x12numpy.core.numeric"
    )
    old = old.replace(b"numpy._core", b"numpy.core")
    assert b"_core" not in old
    for written in (data, old):
        assert same(read_plain(written), [np.eye(3), 1.5, -3, True])


def test_arrays_are_read_only_views_of_the_file() -> None:
    data = pickle.dumps(np.arange(1000), protocol=5)
    value = read_plain(data)
    assert isinstance(value, np.ndarray)
    assert np.shares_memory(value, np.frombuffer(data, np.uint8))
    assert not value.flags.writeable


def test_a_list_used_twice_becomes_two() -> None:
    labels = [1, 2, 3]
    value: Any = read_plain(pickle.dumps({"labels": labels, "fine_labels": labels}))
    value["labels"].append(4)
    assert value == {"labels": [1, 2, 3, 4], "fine_labels": [1, 2, 3]}


META = (
    b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03]q\x04(U\x08airplaneq\x05U\nautomobileq\x06"
    b"U\x04birdq\x07U\x03catq\x08U\x04deerq\tU\x03dogq\nU\x04frogq\x0bU\x05horseq\x0cU\x04shipq\rU\x05truckq\x0ee"
    b"U\x07num_visq\x0fM\x00\x0cu."
)


def test_the_official_batches_meta() -> None:
    # the sum that torchvision checks cifar-10-batches-py/batches.meta with
    assert hashlib.md5(META, usedforsecurity=False).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert same(read_plain(META), {"num_cases_per_batch": 10000, "label_names": names, "num_vis": 3072})


PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
BATCH = (
    b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\x09e"
    b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    b"T\x00\x18\x00\x00" + PIXELS.tobytes() + b"tbU\tfilenamesq\x0c]q\r(U\x0ba_s_001.pngq\x0eU\x0bb_s_002.pngq\x0feu."
)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "ascii"])
def test_a_batch_of_python_2(encoding: str) -> None:
    batch = {
        "batch_label": "training batch 1 of 5",
        "labels": [6, 9],
        "data": PIXELS,
        "filenames": ["a_s_001.png", "b_s_002.png"],
    }
    assert same(read_plain(BATCH, encoding=encoding), batch)
    assert same(pickle.loads(BATCH, encoding="latin-1"), batch)  # the bytes above are what Python takes them for


def test_text_protocol_of_python_2() -> None:
    data = b"(dp1\nS'a\\n\\'\\x00\\xff'\np2\n(lp3\n"
    data += b"I1\naI01\naI00\naL5L\naF1.5\naS\"it's\"\np4\nag4\naV\\u20ac\nasS'n'\nNs."
    assert same(read_plain(data), {"a\n'\x00ÿ": [1, True, False, 5, 1.5, "it's", "it's", "€"], "n": None})


def test_encoding() -> None:
    assert read_plain(b"U\x02\xc3\xbc.") == "Ã¼"
    assert read_plain(b"U\x02\xc3\xbc.", encoding="utf-8") == "ü"
    with pytest.raises(ValueError, match=r"^is damaged: STOP at byte 4: 'ascii' codec"):
        read_plain(b"U\x02\xc3\xbc.", encoding="ascii")
    with pytest.raises(ValueError, match=r"^encoding must be latin-1, utf-8 or ascii, got 'rot13'"):
        read_plain(b"N.", encoding="rot13")


# ---- What is refused


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported, and a folder where any command would leave one."""
    (tmp_path / "trap_module.py").write_text("open('sprung', 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trap_module", raising=False)
    return tmp_path / "sprung"


@pytest.fixture
def refuses(trap: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, str], None]:
    """Checks that bytes are refused by name, and that nothing was imported, called or written."""

    def no_import(name: str, *_: object) -> None:
        raise AssertionError(f"imports {name}")

    def check(data: bytes, what: str) -> None:
        modules = set(sys.modules)
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "__import__", no_import)
            with pytest.raises(UnpicklingRefused) as caught:
                read_plain(data)
        assert what in str(caught.value)
        assert RULE in str(caught.value)
        assert " at byte " in str(caught.value)
        assert set(sys.modules) == modules
        assert not trap.exists()

    return check


class Payload:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Payload(os.system, "touch sprung"), f"{os.name}.system"),
        (Payload(os.mkdir, "sprung"), f"{os.name}.mkdir"),
        (Payload(subprocess.call, ["touch", "sprung"]), ".call"),
        (Payload(eval, "open('sprung', 'w')"), ".eval"),
        (Payload(exec, "open('sprung', 'w')"), ".exec"),
        (Payload(__import__, "trap_module"), ".__import__"),
        (Payload(getattr, "", "join"), ".getattr"),
        (Payload(open, "sprung", "w"), ".open"),
        (Payload(partial, os.mkdir, "sprung"), "functools.partial"),
        (Payload(operator.attrgetter, "system"), "operator.attrgetter"),
        (Payload(np.load, "sprung"), "numpy.load"),
        (Payload(np.fromfile, "sprung"), "fromfile"),
        (Payload(np.frombuffer, b"abc"), "frombuffer"),
        (Payload(np.array, [1]), "array"),
        (Path("sprung"), "pathlib"),
        ({1, 2}, "set"),
        (1j, ".complex"),
        (Exception("x"), "Exception"),
        (print, ".print"),
    ],
)
def test_reduce_payloads(refuses: Callable[[bytes, str], None], protocol: int, payload: object, name: str) -> None:
    refuses(
        pickle.dumps({"labels": [1], "data": payload}, protocol=protocol),
        "EMPTY_SET" if protocol > 3 and name == "set" else name,
    )


def test_the_trap_works(trap: Path) -> None:
    """Python's own unpickler falls into it, so that the other tests would see it."""
    pickle.loads(pickle.dumps(Payload(os.mkdir, "sprung")))
    assert trap.is_dir()
    trap.rmdir()
    with pytest.raises(AttributeError):
        pickle.loads(b"ctrap_module\nanything\n.")
    assert trap.is_file()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("trap_module", "anything"),
        ("trap_module.sub", "anything"),
        ("os", "system"),
        ("os", "path.join"),
        ("os.path", "join"),
        ("nt", "system"),
        ("importlib", "import_module"),
        ("builtins", "bytearray"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "core.multiarray._reconstruct"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.type"),
        ("numpy.core.multiarray", "fromstring"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy.core.multiarray._reconstruct", ""),
        ("numpy.testing._private.utils", "runstring"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("codecs", "encode"),
        ("_codecs", "decode"),
        ("copyreg", "_reconstructor"),
        ("", ""),
        ("\x1b[2J", "x\ty"),
    ],
)
def test_names(refuses: Callable[[bytes, str], None], module: str, name: str) -> None:
    asked = f"asks for {module}.{name}".replace("\x1b", "\\x1b").replace("\t", "\\t") + " at byte"
    refuses(f"c{module}\n{name}\n(S'touch sprung'\ntR.".encode(), f"{asked} 0")
    refuses(b"\x80\x04" + text(module) + b"\x94" + text(name) + b"\x94\x93\x94)R.", asked)
    refuses(f"(S'touch sprung'\ni{module}\n{name}\n.".encode(), "uses INST at byte 17")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"(cnumpy\nndarray\nK\x00o.", "uses OBJ at byte 18"),
        (b"cnumpy\nndarray\n)\x81.", "uses NEWOBJ at byte 16"),
        (b"cnumpy\nndarray\n)}\x92.", "uses NEWOBJ_EX at byte 17"),
        (b"Ptrap_module\n.", "uses PERSID"),
        (b"K\x01Q.", "uses BINPERSID"),
        (b"\x82\x01.", "uses EXT1"),
        (b"\x83\x01\x00.", "uses EXT2"),
        (b"\x84\x01\x00\x00\x00.", "uses EXT4"),
        (b"\x97.", "uses NEXT_BUFFER"),
        (b"\x96" + bytes(8) + b"\x98.", "uses READONLY_BUFFER"),
        (b"\x8b\x01\x00\x00\x00\x01.", "uses LONG4"),
        (b"\x8f.", "uses EMPTY_SET"),
        (b"(\x91.", "uses FROZENSET"),
        (b"\x8f(K\x01\x90.", "uses EMPTY_SET"),
        (b"NN0.", "uses POP"),
        (b"N2.", "uses DUP"),
        (b"(1.", "uses POP_MARK"),
        (b"\xff.", "uses opcode '\\xff'"),
        (b"}}b.", "sets a state"),
        (b"]}b.", "sets a state"),
        (b"]U\x08__dict__}\x86b.", "sets a state"),
        (b"N)R.", "calls what is no function"),
        (b"U\x09os.system)R.", "calls what is no function"),
        (b"}U\x01xR.", "calls what is no function"),
        (b"cnumpy\nndarray\n(K\x01tR.", "calls numpy.ndarray"),
        (b"cnumpy\nndarray\n)R.", "calls numpy.ndarray"),
        (b"cnumpy\nndarray\n}b.", "sets a state"),
        (b"cnumpy\ndtype\n.", "a function"),
        (b"(cnumpy\ndtype\nl.", "a function"),
        (dtype() + b".", "a dtype"),
        (dtype() + DTYPE_STATE % text("|") + b".", "sets a state"),
        (RECONSTRUCT + b".", "an array never built"),
        (RECONSTRUCT + b"q\x00" + RECONSTRUCT + b"\x86.", "an array never built"),
        (RECONSTRUCT + b"Nb.", "sets a state"),
        (array(b"K\x01", b"U\x01a") + b"q\x00h\x00" + b"(K\x01(K\x01t" + dtype() + b"\x89U\x01atb.", "sets a state"),
        (array(b"K\x01", b"]") + b".", "sets a state"),  # what numpy writes for objects
        (array(b"K\x01", text("a")) + b".", "sets a state"),
        (array(b"K\x01", b"U\x01a", version=b"K\x02") + b".", "sets a state"),
        (array(b"K\x01", b"U\x01a", kind=text("u1")) + b".", "sets a state"),
        (array(b"K\x01", b"U\x01a", fortran=b"K\x02") + b".", "sets a state"),
        (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.", "calls numpy.core.multiarray"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R.",
            "calls numpy.core",
        ),
        (b"c_codecs\nencode\n" + text("a") + text("rot13") + b"\x86R.", "calls _codecs.encode"),
        (b"c_codecs\nencode\n" + text("a") + b"\x85R.", "calls _codecs.encode"),
        (b"c__builtin__\nbytes\nK\x05\x85R.", "calls __builtin__.bytes"),
        (b"cnumpy\ndtype\n" + text("u1") + b"\x88\x88\x87R.", "calls numpy.dtype"),
        (b"cnumpy\ndtype\n](U\x01aU\x02u1e\x89\x88\x87R.", "calls numpy.dtype"),
        (b"\x96\x00\x00\x00\x00\x00\x00\x00\x00.", "a bytearray"),
        (b"}\x96\x00\x00\x00\x00\x00\x00\x00\x00Ns.", "dict key"),
        (b"})Ns.", "dict key"),
        (b"}NNs.", "dict key"),
        (b"}\x88Ns.", "dict key"),
        (b"}G" + bytes(8) + b"Ns.", "dict key"),
        (b"}" + text("k" * 257) + b"Ns.", "dict key"),
        (b"}T\x01\x01\x00\x00" + bytes(257) + b"Ns.", "dict key"),
        (b"}" + number(2**16) + b"Ns.", "dict key"),
        (b"}" + number(-(2**16)) + b"Ns.", "dict key"),
        (b"}" + array(b"K\x01", b"U\x01a") + b"Ns.", "dict key"),
        (b"(Nq\x02h\x01t.", "a function"),  # a place in the memo that was never filled
    ],
)
def test_opcodes_and_states(refuses: Callable[[bytes, str], None], data: bytes, what: str) -> None:
    refuses(data, what)


@pytest.mark.parametrize(
    "code", ["O", "O8", "V8", "M8[ns]", "m8", "S5", "U3", "c8", "f16", ">i2", "u1,u1", "(2,)u1", "", "i8" * 50]
)
def test_dtypes(refuses: Callable[[bytes, str], None], code: str) -> None:
    refuses(array(b"K\x01", b"U\x01a", kind=dtype(code)) + b".", f"asks for the dtype {code[:20]!r}")
    py2 = b"cnumpy\ndtype\nU" + bytes([len(code)]) + code.encode() + b"K\x00K\x01\x87R."
    refuses(py2, f"asks for the dtype {code[:20]!r}")


@pytest.mark.parametrize(
    "value",
    [
        np.array([None, {}], dtype=object),
        np.zeros(2, dtype=[("a", "u1"), ("b", "f8")]),
        np.array(["a", "b"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(2, dtype=np.dtype("u1", metadata={"a": 1})),
        np.dtype("u1"),
        np.uint8,
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.filterwarnings("ignore:.*metadata:UserWarning")
def test_other_arrays(value: object, protocol: int) -> None:
    with pytest.raises(UnpicklingRefused):
        read_plain(pickle.dumps(value, protocol=protocol))


# ---- What is damaged


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", r"end at byte 0: the file ends too early"),
        (b"N", r"end at byte 1: the file ends too early"),
        (b"U\x02a", r"SHORT_BINSTRING at byte 0: the file ends too early"),
        (b"I1", r"INT at byte 0: the file ends too early"),
        (b"T\xff\xff\xff\xff.", r"BINSTRING at byte 0: a length below 0"),
        (b".", r"STOP at byte 0: one value"),
        (b"NN.", r"STOP at byte 2: one value"),
        (b"N(.", r"STOP at byte 2: one value"),
        (b"(N.", r"STOP at byte 2: one value"),
        (b"N.N", r"STOP at byte 1: one value"),
        (b"N\x85(\x85.", r"TUPLE1 at byte 3: no such entry"),  # below a mark is out of reach
        (b"](a.", r"APPEND at byte 2"),
        (b"(]e.", r"APPENDS at byte 2"),
        (b"Nt.", r"TUPLE at byte 1"),
        (b"}Na.", r"APPEND at byte 2: a list expected"),
        (b"]NNs.", r"SETITEM at byte 3: a dict expected"),
        (b"}(Nu.", r"SETITEMS at byte 3"),
        (b"q\x00N.", r"BINPUT at byte 0"),
        (b"h\x00.", r"BINGET at byte 0"),
        (b"Nq\x00g-1\n.", r"GET at byte 3: cannot be b'-1'"),
        (b"Np-1\n.", r"PUT at byte 1: cannot be b'-1'"),
        (b"Np0", r"PUT at byte 1"),
        (b"I\n.", r"INT at byte 0"),
        (b"I1_0\n.", r"INT at byte 0"),
        (b"L" + b"9" * 615 + b"L\n.", r"LONG at byte 0: cannot be b'999"),
        (b"Ix\n.", r"INT at byte 0"),
        (b"Fnot\n.", r"FLOAT at byte 0"),
        (b"F" + b"1" * 65 + b"\n.", r"FLOAT at byte 0"),
        (b"S'a\n.", r"STRING at byte 0"),
        (b"S'\n.", r"STRING at byte 0"),
        (b"S'\\d'\n.", r"STRING at byte 0"),
        (b"V\\ud800\n.", r"UNICODE at byte 0"),
        (b"V\\U00110000\n.", r"UNICODE at byte 0"),
        (b"X\x01\x00\x00\x00\xff.", r"BINUNICODE at byte 0: 'utf-8' codec"),
        (b"X\x03\x00\x00\x00\xed\xa0\x80.", r"BINUNICODE at byte 0: 'utf-8' codec"),
        (b"c_codecs\nencode\n" + text("€") + text("latin1") + b"\x86R.", r"REDUCE at byte \d+: 'latin-1' codec"),
        (b"NN\x93.", r"STACK_GLOBAL at byte 2: a name expected"),
        (array(b"K\x02", b"U\x01a") + b".", r"BUILD at byte \d+: an array of shape \(2,\) cannot have 1 bytes"),
        (array(b"K\x01", b"U\x02ab") + b".", r"BUILD at byte \d+: an array of shape \(1,\) cannot have 2 bytes"),
        (array(b"", b"U\x00") + b".", r"an array of shape \(\) cannot have 0 bytes"),
        (array(b"J\xff\xff\xff\xff", b"U\x00") + b".", r"dimensions of 0 and more"),
        (array(b"J\xff\xff\xff\xff" * 2, b"U\x01a") + b".", r"dimensions of 0 and more"),
        (array(b"\x88", b"U\x01a") + b".", r"dimensions of 0 and more"),
        (array(b"G?\xf0" + bytes(6), b"U\x01a") + b".", r"dimensions of 0 and more"),
        (array(b"K\x01" * 33, b"U\x01a") + b".", r"at most 32 dimensions"),
        (array(number(2**32) * 2, b"U\x00") + b".", r"cannot have 0 bytes"),  # 2**64 is 0 in a machine word
        (array(number(2**64) * 2, b"U\x00") + b".", r"dimensions of 0 and more"),
        (array(b"K\x00" + number(2**62), b"U\x00") + b".", r"cannot have 0 bytes"),
        (array(number(2**40) + b"K\x00", b"U\x00") + b".", r"cannot have 0 bytes"),
        (array(b"K\x01", b"U\x01\x02", kind=dtype("b1")) + b".", r"a bool is 0 or 1"),
        (array(b"K\x01", b"U\x01a", kind=dtype("u1", "<")) + b".", r"a byte order expected"),
        (array(b"K\x01", b"U\x02ab", kind=dtype("u2", "|")) + b".", r"a byte order expected"),
        (array(b"K\x01", b"U\x02ab", kind=dtype("u2", "<>")) + b".", r"a byte order expected"),
        (array(b"K\x01", b"U\x01a", kind=b"cnumpy\ndtype\nU\x02u1\x89\x88\x87R") + b".", r"a dtype and"),  # not built
    ],
)
def test_damaged(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"^is damaged: .*{why}") as caught:
        read_plain(data)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    "axes",
    [b"K\x00K\x00", b"K\x00", b"K\x00K\x02", b"K\x00J\xff\xff\xff\xff", b"K\x00N", b"K\x00]", b"K\x01K\x00K\x02"],
)
def test_damaged_axes(axes: bytes) -> None:
    call = b"cnumpy._core.numeric\n_frombuffer\n(C\x02ab%b(K\x01K\x02t" % dtype() + text("K") + b"(%bttR."
    assert same(read_plain(call % b"K\x01K\x00"), np.array([[97], [98]], np.uint8))
    with pytest.raises(ValueError, match="an order of the axes expected"):
        read_plain(call % axes)


@pytest.mark.parametrize(
    "data", [META, BATCH[:200] + BATCH[-80:], *(pickle.dumps([1.5, {"a": np.eye(2)}], protocol=p) for p in PROTOCOLS)]
)
def test_truncated(data: bytes) -> None:
    for stop in range(len(data)):
        with pytest.raises(ValueError, match=r"^is damaged: ") as caught:
            read_plain(data[:stop])
        assert type(caught.value) is ValueError


# ---- What is neither

SEEDS = [
    META,
    BATCH.replace(PIXELS.tobytes(), b"p" * 8)
    .replace(b"\x00\x18\x00\x00", b"\x08\x00\x00\x00")
    .replace(b"M\x00\x0c", b"M\x04\x00"),
    array(b"K\x02K\x01", b"U\x04abcd", kind=dtype("f2", ">"), fortran=b"\x88") + b".",
    *(
        pickle.dumps({"a": [1, -2, 2**70, 0.5, None, True], "b": (b"\xff", "ü", ()), 3: np.eye(2)[:, :1]}, protocol=p)
        for p in PROTOCOLS
    ),
]
FRAGMENTS = [
    *(bytes([code]) for code in _unpickle._OPCODES),
    *(b"K" + bytes([n]) for n in range(4)),
    *(op + bytes([n]) for op in (b"q", b"h") for n in range(4)),
    *(
        b"U\x01b",
        b"U\x04abcd",
        b"C\x01a",
        b"\x96\x01" + bytes(8),
        b"I01\n",
        b"I7\n",
        b"L7L\n",
        b"F1.5\n",
        b"S'a'\n",
        b"Va\n",
        b"p1\n",
        b"g1\n",
    ),
    *(f"c{module}\n{name}\n".encode() for module, name in _unpickle._NAMES),
    *(text(word) for word in ("latin1", "u1", "f8", "|", "<", "C", "K", "numpy", "dtype")),
    *(dtype(), dtype("f4", ">"), RECONSTRUCT, array(b"K\x04", b"U\x04abcd"), DTYPE_STATE % b"U\x01|"),
]


def test_the_seeds_are_read() -> None:
    for seed in SEEDS:
        assert_plain(read_plain(seed))


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.2), st.binary(max_size=4) | st.sampled_from(FRAGMENTS))),
)
def test_mutated(data: bytes, cuts: list[tuple[float, float, bytes]]) -> None:
    for start, width, patch in cuts:
        at = int(start * len(data))
        data = data[:at] + patch + data[at + int(width * len(data)) :]
    assert_harmless(data)


@settings(max_examples=20)
@given(st.sampled_from(SEEDS), st.data())
def test_one_byte_changed(seed: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(seed) - 1))
    for value in range(256):
        assert_harmless(seed[:at] + bytes([value]) + seed[at + 1 :])


@given(st.sampled_from(SEEDS), st.sampled_from(SEEDS), st.floats(0, 1), st.floats(0, 1))
def test_spliced(a: bytes, b: bytes, cut_a: float, cut_b: float) -> None:
    assert_harmless(a[: int(cut_a * len(a))] + b[int(cut_b * len(b)) :])


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_opcode_soup(fragments: list[bytes]) -> None:
    assert_harmless(b"".join(fragments) + b".")
    assert_harmless(b"(" + b"".join(fragments) + b"l.")


def test_much_opcode_soup() -> None:
    """Most soups stop early; many short ones get further, from a stack that has a bit of all."""
    rng = np.random.default_rng(0)
    pantry = b"]q\x00}q\x01)q\x02" + RECONSTRUCT + b"q\x03" + dtype() + b"q\x04" + array(b"K\x01", b"U\x01a") + b"("
    for _ in range(2000):
        picked = rng.integers(0, len(FRAGMENTS), rng.integers(1, 5))
        assert_harmless(b"(" + pantry + b"".join(FRAGMENTS[i] for i in picked) + b"tt.")


# ---- What would grow

MEGABYTE = b"T\x00\x00\x10\x00" + bytes(2**20)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"]q\x00h\x00a.", "nested over 32 deep"),
        (b"}q\x00K\x01h\x00s.", "nested over 32 deep"),
        (b"]q\x00h\x00\x85a.", "nested over 32 deep"),
        (b"]q\x00" + b"h\x00a" * 5_000 + b".", "nested over 32 deep"),  # in itself, in 5,000 places
        (b"(]q\x00" + b"".join(b"](h%ceh%caq%c" % (i, i, i + 1) for i in range(30)) + b"t.", "too many places"),
        (b"](" + b"N" * 1000 + b"eq\x00(" + b"h\x00" * 4_000 + b"t\x86.", "too many places"),
        (b"]" * 5_000 + b"a" * 4_999 + b".", "nested over 32 deep"),
        (b")" + b"\x85" * 5_000 + b".", "nested over 32 deep"),
        (b"}K\x00" * 10_000 + b"N" + b"s" * 10_000 + b".", "nested over 32 deep"),
        (b"(" * 5_000 + b"t" * 5_000 + b".", "nested over 32 deep"),
        (b"})" + b"\x85" * 5_000 + b"Ns.", "dict key"),  # whose hash would be a recursion
        (b"}(" + b"".join(number(i * (2**61 - 1)) + b"N" for i in range(1, 1000)) + b"u.", "dict key"),  # hashes: all 0
    ],
)
def test_refused_while_small(data: bytes, what: str) -> None:
    assert_small(data)
    with pytest.raises(UnpicklingRefused, match=what):
        read_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b")" + b"\x85" * 100_000 + b".",
        b"}K\x00" * 100_000 + b"N" + b"s" * 100_000 + b".",
        b"})" + b"\x85" * 100_000 + b"Ns.",
    ],
)
def test_deeper_than_the_stack_of_c(data: bytes) -> None:
    with pytest.raises(UnpicklingRefused):
        read_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"(" * 5_000,
        b"N" + b"\x94" * 5_000,
        b"\x8b\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\xff1",
        b"\x8b" + struct.pack("<I", 5_000) + b"\x7f" * 5_000 + b".",
        b"\x8a\xff1.",
        b"I" + b"9" * 5_000 + b"\n.",
        b"L" + b"9" * 5_000 + b"L\n.",
        b"F" + b"9" * 5_000 + b"\n.",
        b"T\xff\xff\xff\x7f.",
        b"T\xff\xff\xff\xff.",
        b"X\xff\xff\xff\xff.",
        b"B\xff\xff\xff\xff.",
        b"\x8d" + b"\xff" * 8 + b".",
        b"\x8e" + b"\xff" * 8 + b".",
        b"\x96" + b"\xff" * 8 + b".",
        b"\x96" + b"\xff" * 7 + b"\x7f.",
        b"U\xff.",
        b"Nr\xff\xff\xff\xff.",
        b"Np999999999999999999\n.",
        b"Np" + b"9" * 5000 + b"\n.",
        b"j\xff\xff\xff\xff.",
        b"g9999999999999999999\n.",
        array(b"K\x01" * 10_000, b"U\x01a") + b".",
        array(number(2**62) * 32, b"U\x00") + b".",
        b"\x80\x04" + text("m" * 5_000) + text("n" * 5_000) + b"\x93.",
        b"\x80\x04" + text("\U0001f600" * 10_000) + b"\x8c\x01n\x93.",
    ],
)
def test_errors_while_small(data: bytes) -> None:
    assert_small(data)
    with pytest.raises(ValueError, match=f"^is damaged: |{RULE}"):
        read_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"(" + b"]" * 5_000 + b"t.",
        b"(" + b"}" * 5_000 + b"t.",
        b"(" + b"U\x00" * 4_000 + b"t.",
        b"(" + b"C\x02aa" * 4_000 + b"t.",
        b"(" + b"T\x00\x00\x00\x00" * 4_000 + b"t.",
        b"(" + b"M\xff\xff" * 4_000 + b"t.",
        b"S'" + b"\\x00" * 10_000 + b"'\n.",
        b"S'" + b"a" * 5_000 + b"'\n.",
        b"V" + b"\\u20ac" * 5_000 + b"\n.",
    ],
)
def test_read_while_small(data: bytes) -> None:
    assert_small(data)
    assert_plain(read_plain(data))


def test_the_same_bytes_in_many_places() -> None:
    """One megabyte, named ten thousand times, stays one megabyte, or is refused where each time makes a copy."""
    named = b"h\x00" * 10_000
    call = text("latin1") + b"q\x01c_codecs\nencode\nq\x02" + b"h\x02h\x00h\x01\x86R" * 1000
    as_array = RECONSTRUCT + b"(K\x01" + number(2**20) + b"\x85" + dtype() + b"\x89h\x00tb"
    as_bool = as_array.replace(dtype(), dtype("b1"))
    for rest, what in [
        (named, None),
        (as_array * 1000, None),
        (call, "the same bytes too often"),
        (as_bool * 1000, "the same bytes too often"),
        (named[:2] + b"}h\x00Ns", "dict key"),
    ]:
        opcode = b"X" if rest is call else b"T"
        data = b"(" + opcode + MEGABYTE[1:] + b"q\x00" + rest + b"l."
        tracemalloc.start()
        try:
            if what is None:
                assert len(read_plain(data)) > 1000  # type: ignore[arg-type]
            else:
                with pytest.raises(UnpicklingRefused, match=what):
                    read_plain(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 5 * 2**20


@pytest.mark.parametrize("flood", [b"}", b"]", b"(", b"N", b"K\x01"])
def test_a_flood_of_small_values_is_refused_before_it_fills_the_memory(flood, monkeypatch) -> None:
    monkeypatch.setattr("dualfocal.data._unpickle._STEPS", 10_000)
    data = flood * 1_000_000 + b"."
    tracemalloc.start()
    try:
        with pytest.raises(UnpicklingRefused, match="more than 10,000 opcodes"):
            read_plain(data)
        assert (
            tracemalloc.get_traced_memory()[1] < 4e6
        )  # 400 bytes for each, where the stack and its growth count twice
    finally:
        tracemalloc.stop()


def test_the_largest_official_file_has_room() -> None:
    labels = list(range(20)) * 2_500
    names = [f"name_{i}.png" for i in range(50_000)]
    data = pickle.dumps({"coarse_labels": labels, "fine_labels": labels, "filenames": names}, protocol=2)
    assert len(read_plain(data)["filenames"]) == 50_000
