"""Read CIFAR's pickled batches safely, without running any code of the pickle.

A pickle is a program that can import and call any function. Here, the few names that a batch needs are replaced by
classes of this file, which only store their arguments; all other names are refused. The array is made afterwards, from
the stored and checked bytes.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

RULE = "only arrays of bytes, strings, numbers, lists and dictionaries are read"

# The largest official file has a quarter of a million opcodes, and three tuples.
MAX_OPCODES = 2**21
MAX_TUPLES = 1_000  # hashing deeply nested tuples recurses in C


class _DType:
    """Stand-in for ``numpy.dtype``."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "u1":
            raise ValueError(f"has an array of dtype {str(code)[:20]!a}; {RULE}")

    def __setstate__(self, state: object) -> None:  # byte order, irrelevant for bytes
        pass


class _Array:
    """Stand-in for ``numpy.ndarray``: stores shape and content until the pickle has been read."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> npt.NDArray[np.uint8]:
        """Return the content as a read-only array; numpy raises an error if the shape does not fit."""
        _, shape, dtype, fortran, content = self.state
        if not isinstance(dtype, _DType) or not isinstance(content, str | bytes | bytearray):
            raise ValueError(f"has an array without dtype or content; {RULE}")
        if isinstance(content, str):  # a Python 2 byte string
            content = content.encode("latin-1")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _FromBuffer(_Array):
    """Stand-in for the function that makes arrays in protocol 5."""

    def __init__(self, content: object, dtype: object, shape: object, order: object) -> None:
        self.state = 1, shape, dtype, order == "F", content


_STAND_INS: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): None,  # an argument of _reconstruct, never called
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
    ("_codecs", "encode"): lambda text, encoding: text,  # how Python 3 pickles bytes for Python 2
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _STAND_INS:
            raise ValueError(f"uses the name {f'{module}.{name}'[:160]!a}; {RULE}")
        return _STAND_INS[module, name]


def read_batch(content: bytes) -> dict[Any, Any]:
    r"""Return the dictionary in a pickle of Python 2 or 3, of any protocol.

    Python 2 byte strings are decoded as Latin-1. The array "data" is a read-only view. Memory use is proportional to
    the size of the file.

    Raises:
        ValueError: the pickle is damaged, uses a name that no batch needs, or does not hold a dictionary.

    Example:
        >>> read_batch(b"}(U\x06labels](K\x06K\x09eU\x0bbatch_labelU\x07batch 1u.")
        {'labels': [6, 9], 'batch_label': 'batch 1'}
        >>> read_batch(b"cos\nsystem\n(S'true'\ntR.")
        Traceback (most recent call last):
        ValueError: is damaged, or not a CIFAR batch: uses the name 'os.system'; only arrays of bytes, ...
    """
    try:
        _check_opcodes(content)
        batch = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        if not isinstance(batch, dict):
            raise ValueError(f"must hold a dictionary, but holds a {type(batch).__name__}")
        if isinstance(array := batch.get("data"), _Array):
            batch["data"] = array.pixels()
        return batch
    except Exception as error:  # a damaged pickle can raise anything
        text = str(error) or type(error).__name__
        raise ValueError(f"is damaged, or not a CIFAR batch: {text[:300]}") from error


def _check_opcodes(content: bytes) -> None:
    """Refuse opcodes that find_class does not see: those that need much memory or stack, and registered extensions."""
    tuples = 0
    for step, (opcode, argument, place) in enumerate(pickletools.genops(content)):
        tuples += opcode.name.startswith("TUPLE")
        # Python allocates memory for as many memo entries as the argument says.
        far = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > step
        if step > MAX_OPCODES or tuples > MAX_TUPLES or far or opcode.name.startswith("EXT"):
            raise ValueError(f"{opcode.name} at byte {place} is too large, or not used by any batch")
