"""Reads the plain data in a pickle and can run nothing: it has no import, no call and no attribute to offer.

CIFAR's "python layout" is pickles, and a pickle is a program. This stack machine knows the opcodes that build None,
bool, int, float, str, bytes, list, tuple, dict and numpy arrays, and refuses every other one. The few names that numpy
writes stand for fixed code in this file, never for what Python would import under that name. `pickletools.genops` is
not used: it warns of odd escapes, reads ints of any length and copies each string twice.
"""

import codecs
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pickletools import opcodes
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

RULE = "only arrays, strings, numbers, lists and dicts are read"

# The limits keep time and memory proportional to the size of the file, whatever the file says.
_DEPTH = 32  # of lists in lists: the value is made by recursion
_KEY_LENGTH = 256  # a long key would be compared anew at each use
_KEY_INT = 2**16  # the hashes of ints, unlike those of strings, can be made to collide
_DIMENSIONS = 32
_STEPS = 2**21  # opcodes: each may keep a hundred bytes; the largest official file has a quarter of a million
_EMPTY_BYTES = 2**31  # of an empty array, counted without its zeros: numpy has a limit here

_DTYPES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_U1, _U2, _U4, _U8, _I4, _F8 = map(Struct, ("<B", "<H", "<I", "<Q", "<i", ">d"))
_INDEX, _INTEGER = re.compile(rb"[0-9]{1,19}"), re.compile(rb"-?[0-9]{1,614}L?")  # 614: 255 bytes, as in LONG1
_FLOAT, _ANY = re.compile(rb"[-+.0-9a-z]{1,64}"), re.compile(rb".*", re.DOTALL)
_ESCAPE = rb"\\(?:x[0-9a-fA-F]{2}|[\\'\"nrt])"  # all that repr() of Python 2 writes; Python warns of others
_QUOTED = re.compile(rb"'(?:[^'\\]++|%b)*+'|\"(?:[^\"\\]++|%b)*+\"" % (_ESCAPE, _ESCAPE))


class UnpicklingRefused(ValueError):
    """The pickle asks for more than plain data; the message names what, at which byte, and the rule."""


class _Name(Enum):
    """The names a pickle may ask for. They are only tokens: `_Machine.reduce` is the code behind them."""

    RECONSTRUCT = "numpy.core.multiarray._reconstruct"
    FROMBUFFER = "numpy.core.numeric._frombuffer"
    SCALAR = "numpy.core.multiarray.scalar"
    NDARRAY = "numpy.ndarray"
    DTYPE = "numpy.dtype"
    ENCODE = "_codecs.encode"  # Python 3 writes bytes so under protocols 0 to 2
    BYTES = "__builtin__.bytes"  # and b"" so


_NAMES = {tuple(name.value.rsplit(".", 1)): name for name in _Name}
_NAMES |= {(module.replace(".core.", "._core."), name): token for (module, name), token in _NAMES.items()}  # numpy 2


@dataclass(slots=True, eq=False)
class _Raw:
    """Bytes of the file: a `str` of Python 2, `bytes`, or a `bytearray`, which is an array's and never a value."""

    data: bytes | memoryview  # a view costs 200 bytes itself, so short strings are copied
    kind: type
    value: str | bytes | None = None  # made once: a string in many places costs one string


@dataclass(slots=True, eq=False)
class _DType:
    code: str
    value: np.dtype[Any] | None = None  # until BUILD tells the byte order


@dataclass(slots=True, eq=False)
class _Array:
    value: NDArray[Any] | None = None  # until BUILD tells the rest


class _Machine:
    """Raises ValueError or IndexError on damage and UnpicklingRefused on the rest; `read_plain` adds the place."""

    def __init__(self, data: bytes, encoding: str) -> None:
        self.data, self.view, self.encoding = data, memoryview(data), encoding
        self.pos = self.at = self.steps = 0  # the next byte, the opcode at work, and how many were before it
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below the marks, out of reach
        self.memo: list[Any] = []
        # Without these a file could ask for the same megabytes, or lists of the same lists, again and again.
        self.bytes_left = self.values_left = 2 * len(data)

    def run(self) -> object:
        while (code := self.data[self.skip(1)]) != ord("."):
            if code not in _OPCODES:
                raise UnpicklingRefused(f"uses {self.opcode()}")
            _OPCODES[code](self)
            self.at = self.pos
            self.steps += 1
            if self.steps > _STEPS:
                raise UnpicklingRefused(f"has more than {_STEPS:,} opcodes")
        if len(self.stack) != 1 or self.outer or self.pos != len(self.data):
            raise ValueError("one value and the end of the file expected")
        return self.plain(self.stack[0])

    def opcode(self) -> str:
        code = self.data[self.at : self.at + 1].decode("latin-1")
        return next((known.name for known in opcodes if known.code == code), f"opcode {code!a}" if code else "end")

    def plain(self, node: Any, depth: int = 0) -> object:
        """The value to return: a tree of plain types. A list that the file uses twice becomes two lists."""
        self.values_left -= 1
        if depth > _DEPTH or self.values_left < 0:
            raise UnpicklingRefused(f"holds lists nested over {_DEPTH} deep, in themselves or in too many places")
        if node is None or type(node) in (bool, int, float, str):
            return node
        if type(node) in (list, tuple):
            return type(node)([self.plain(item, depth + 1) for item in node])
        if type(node) is dict:
            return {key: self.plain(item, depth + 1) for key, item in node.items()}
        if type(node) is _Raw and node.kind is not bytearray:
            return self.string(node)
        if type(node) is _Array and node.value is not None:
            return node.value
        raise UnpicklingRefused("holds an array never built, a dtype, a bytearray or a function")

    def skip(self, count: int) -> int:
        start = self.pos
        if not 0 <= count <= len(self.data) - start:
            raise ValueError("the file ends too early" if count >= 0 else "a length below 0")
        self.pos += count
        return start

    def number(self, layout: Struct) -> Any:
        return layout.unpack_from(self.data, self.skip(layout.size))[0]

    def counted(self, layout: Struct) -> memoryview:
        start = self.skip(self.number(layout))
        return self.view[start : self.pos]

    def line(self, pattern: re.Pattern[bytes] = _ANY) -> bytes:
        end = self.data.find(b"\n", self.pos)
        if end < 0:
            raise ValueError("the file ends too early")
        line = self.data[self.skip(end + 1 - self.pos) : end]
        if not pattern.fullmatch(line):
            raise ValueError(f"cannot be {line[:40]!r}")
        return line

    def integer(self) -> int:
        line = self.line(_INTEGER)
        return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))

    def escaped(self) -> str:
        text = codecs.raw_unicode_escape_decode(self.line(), "strict")[0]
        text.encode()  # half a surrogate pair is an error, as in UTF-8
        return text

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        return [self.stack.pop() for _ in range(count)][::-1]

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def pop_marked(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def put(self, index: int) -> None:
        if index > self.steps:  # each entry took an opcode to make: no pickler gives a higher number
            raise ValueError("no such place in the memo")
        self.memo.extend([...] * (index + 1 - len(self.memo)))  # Ellipsis is refused wherever it turns up
        self.memo[index] = self.stack[-1]

    def extend(self, items: list[Any], target: Any) -> None:
        if type(target) is not list:
            raise ValueError("a list expected")
        target.extend(items)

    def update(self, items: list[Any], target: Any) -> object:
        if type(target) is not dict:
            raise ValueError("a dict expected")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is _Raw and key.kind is not bytearray:
                key = self.string(key)
            short = type(key) in (str, bytes) and len(key) <= _KEY_LENGTH
            if not short and (type(key) is not int or abs(key) >= _KEY_INT):
                raise UnpicklingRefused("has a dict key that is neither a short string nor a small int")
            target[key] = value
        return target

    def string(self, raw: _Raw) -> str | bytes:
        if raw.value is None:
            raw.value = str(raw.data, self.encoding) if raw.kind is str else bytes(raw.data)
        return raw.value

    def find(self, module: Any, name: Any) -> _Name:
        if type(module) is not str or type(name) is not str:
            raise ValueError("a name expected")
        if (module, name) not in _NAMES:
            raise UnpicklingRefused("asks for " + ascii(f"{module[:80]}.{name[:80]}")[1:-1])
        return _NAMES[module, name]

    def reduce(self, name: Any, arguments: Any) -> object:
        match name, arguments:
            case _Name.BYTES, ():
                return _Raw(b"", bytes)
            case _Name.ENCODE, (str() as text, "latin1"):
                self.spend(len(text))
                return _Raw(text.encode("latin-1"), bytes)
            case _Name.DTYPE, (str() | _Raw() as code, 0, 1):
                if (code := _short(code)) not in _DTYPES:
                    raise UnpicklingRefused(f"asks for the dtype {code!a}")
                return _DType(code)
            case _Name.RECONSTRUCT, (_Name.NDARRAY, (0,), _Raw()):
                return _Array()
            case _Name.FROMBUFFER, (_Raw() as raw, _DType() as dtype, tuple() as shape, "C" | "F" as order):
                return _Array(self.array(raw, dtype, shape, order))
            case _Name.FROMBUFFER, (_Raw() as raw, _DType() as dtype, tuple() as shape, "K", tuple() as axes):
                if any(type(axis) is not int for axis in axes) or sorted(axes) != list(range(len(shape))):
                    raise ValueError("an order of the axes expected")
                return _Array(self.array(raw, dtype, shape, "C").transpose(axes))
            case _Name.SCALAR, (_DType() as dtype, _Raw() as raw):
                return self.array(raw, dtype, (), "C").item()
        called = name.value if type(name) is _Name else "what is no function"
        raise UnpicklingRefused(f"calls {called} in a way that numpy does not")

    def build(self, state: Any, target: Any) -> None:
        match target, state:
            case _DType(value=None), (3, str() | _Raw() as order, None, None, None, -1, -1, 0):
                if (order := _short(order)) not in (("|",) if target.code[1] == "1" else ("<", ">", "=")):
                    raise ValueError("a byte order expected")
                target.value = np.dtype(order + target.code)
            case _Array(value=None), (1, tuple() as shape, _DType() as dtype, 0 | 1 as fortran, _Raw() as raw):
                target.value = self.array(raw, dtype, shape, "F" if fortran else "C")
            case _:
                raise UnpicklingRefused("sets a state that numpy does not set")

    def array(self, raw: _Raw, dtype: _DType, shape: tuple[Any, ...], order: Any) -> NDArray[Any]:
        """A view of the bytes, never a copy: a thousand arrays of the same bytes are still small."""
        if dtype.value is None or len(shape) > _DIMENSIONS or any(type(d) is not int or d >> 63 for d in shape):
            raise ValueError(f"a dtype and at most {_DIMENSIONS} dimensions of 0 and more expected")
        size, full = (math.prod(sizes) * dtype.value.itemsize for sizes in (shape, filter(None, shape)))
        if size != len(raw.data) or (size == 0 and full > _EMPTY_BYTES):
            raise ValueError(f"an array of shape {shape} cannot have {len(raw.data)} bytes")
        if dtype.code == "b1":
            self.spend(size)
            if np.frombuffer(raw.data, np.uint8).max(initial=0) > 1:
                raise ValueError("a bool is 0 or 1")
        return np.frombuffer(raw.data, dtype.value).reshape(shape, order=order)

    def spend(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise UnpicklingRefused("asks for the same bytes too often")


def _short(node: str | _Raw) -> str:
    return node[:20] if isinstance(node, str) else str(node.data[:20], "latin-1")


# Python evaluates arguments from left to right: what is popped comes before what is then on top.
_OPCODES: dict[int, Callable[[_Machine], object]] = {
    0x80: lambda m: m.skip(1),  # PROTO
    0x95: lambda m: m.skip(8),  # FRAME
    ord("("): lambda m: m.mark(),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(m.integer()),
    ord("L"): lambda m: m.push(m.integer()),
    ord("K"): lambda m: m.push(m.number(_U1)),
    ord("M"): lambda m: m.push(m.number(_U2)),
    ord("J"): lambda m: m.push(m.number(_I4)),
    0x8A: lambda m: m.push(int.from_bytes(m.counted(_U1), "little", signed=True)),  # LONG1
    ord("F"): lambda m: m.push(float(m.line(_FLOAT))),
    ord("G"): lambda m: m.push(m.number(_F8)),
    ord("V"): lambda m: m.push(m.escaped()),
    0x8C: lambda m: m.push(str(m.counted(_U1), "utf-8")),
    ord("X"): lambda m: m.push(str(m.counted(_U4), "utf-8")),
    ord("S"): lambda m: m.push(_Raw(codecs.escape_decode(m.line(_QUOTED)[1:-1])[0], str)),
    ord("U"): lambda m: m.push(_Raw(bytes(m.counted(_U1)), str)),
    ord("T"): lambda m: m.push(_Raw(m.counted(_I4), str)),
    ord("C"): lambda m: m.push(_Raw(bytes(m.counted(_U1)), bytes)),
    ord("B"): lambda m: m.push(_Raw(m.counted(_U4), bytes)),
    0x96: lambda m: m.push(_Raw(m.counted(_U8), bytearray)),  # BYTEARRAY8
    ord(")"): lambda m: m.push(()),
    0x85: lambda m: m.push(tuple(m.pop(1))),
    0x86: lambda m: m.push(tuple(m.pop(2))),
    0x87: lambda m: m.push(tuple(m.pop(3))),
    ord("t"): lambda m: m.push(tuple(m.pop_marked())),
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.pop_marked()),
    ord("a"): lambda m: m.extend(m.pop(1), m.stack[-1]),
    ord("e"): lambda m: m.extend(m.pop_marked(), m.stack[-1]),
    ord("}"): lambda m: m.push({}),
    ord("d"): lambda m: m.push(m.update(m.pop_marked(), {})),
    ord("s"): lambda m: m.update(m.pop(2), m.stack[-1]),
    ord("u"): lambda m: m.update(m.pop_marked(), m.stack[-1]),
    ord("p"): lambda m: m.put(int(m.line(_INDEX))),
    ord("q"): lambda m: m.put(m.number(_U1)),
    ord("r"): lambda m: m.put(m.number(_U4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("g"): lambda m: m.push(m.memo[int(m.line(_INDEX))]),
    ord("h"): lambda m: m.push(m.memo[m.number(_U1)]),
    ord("j"): lambda m: m.push(m.memo[m.number(_U4)]),
    ord("c"): lambda m: m.push(m.find(str(m.line(), "latin-1"), str(m.line(), "latin-1"))),
    0x93: lambda m: m.push(m.find(*m.pop(2))),
    ord("R"): lambda m: m.push(m.reduce(*m.pop(2))),
    ord("b"): lambda m: m.build(m.pop(1)[0], m.stack[-1]),
}


def read_plain(data: bytes, *, encoding: str = "latin-1") -> object:
    r"""The plain value in a pickle that Python 2 or 3 wrote, under any protocol.

    A byte string of Python 2 is a str, by `encoding`, wherever it is a value or a key; as the content of an array it is
    never decoded. A numpy scalar is a Python number. An array is a read-only view of `data`, not always aligned: copy
    it before torch gets it. Lists are nested at most 32 deep, ints have at most 255 bytes, and the keys of a dict are
    strings of at most 256 characters or ints below 65,536 in magnitude.

    Raises:
        UnpicklingRefused: the pickle asks for anything else.
        ValueError: the pickle is damaged. No other error is raised, whatever the bytes.

    Example:
        >>> read_plain(b"}(U\x06labels](K\x06K\x09eU\x0bbatch_labelU\x07batch 1u.")
        {'labels': [6, 9], 'batch_label': 'batch 1'}
        >>> read_plain(b"cos\nsystem\n(S'true'\ntR.")
        Traceback (most recent call last):
        dualfocal.data._unpickle.UnpicklingRefused: asks for os.system at byte 0: only arrays, strings, ...
    """
    if encoding not in ("latin-1", "utf-8", "ascii"):
        raise ValueError(f"encoding must be latin-1, utf-8 or ascii, got {encoding!r}")
    machine = _Machine(data, encoding)
    try:
        return machine.run()
    except UnpicklingRefused as error:
        raise UnpicklingRefused(f"{error} at byte {machine.at}: {RULE}") from None
    except (ValueError, IndexError) as error:
        why = error if isinstance(error, ValueError) else "no such entry on the stack or in the memo"
        raise ValueError(f"is damaged: {machine.opcode()} at byte {machine.at}: {why}") from None
