"""Values of a recipe's fields: of the right type, and as people write them."""

import json
import math
import re
from types import NoneType
from typing import Any, get_args, get_origin

WHOLE = 2**53  # floats below it that are whole are as well said as integers
LIMIT = 2**63  # what other programs can read of integers


def checked(name: str, value: Any, hint: Any) -> Any:
    """The value as the type it should have: whole numbers are floats, too, and lists tuples.

    Raises:
        ValueError: it is of another type.
    """
    wanted = get_args(hint)[0] if NoneType in get_args(hint) else hint
    kind = get_origin(wanted) or wanted
    if value is None and wanted is not hint:
        return None
    if kind is float and type(value) is int and abs(value) < WHOLE:
        return float(value)
    if (
        kind is tuple
        and isinstance(value, list | tuple)
        and all(type(part) is int and abs(part) < LIMIT for part in value)
    ):
        return tuple(value)
    if kind is dict and isinstance(value, dict):
        try:
            return plain(name, value)
        except RecursionError as error:
            raise ValueError(f"{name} must not hold itself") from error
    if kind not in (tuple, dict) and type(value) is kind:
        if kind is int and abs(value) >= LIMIT:
            raise ValueError(f"{name} must be below 2^63, got {value}")
        return value
    raise ValueError(f"{name} must be {describe(hint)}, got {value!r}")


def plain(name: str, value: Any) -> Any:
    """What JSON can say, in one way only: 5.0 is 5, tuples are lists.

    Raises:
        ValueError: it cannot be said.
    """
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: plain(name, of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, of) for of in value]
    if type(value) is float and math.isfinite(value):
        return int(value) if value.is_integer() and abs(value) < WHOLE else value
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < LIMIT):
        return value
    raise ValueError(f"{name} must hold text, numbers, true, false, none, lists and objects of them, got {value!r}")


def from_text(name: str, text: str, hint: Any) -> Any:
    """A field's value as it is written in a setting.

    Raises:
        ValueError: it is not of the field's type; the message shows what was written.
    """
    if hint is str:
        return text
    written = text
    if get_origin(hint) is tuple and not text.startswith("["):
        written = "[]" if text.lower() in ("none", "") else f"[{text}]"
    value = option_from_text(written)
    if hint is int and type(value) is float and value.is_integer():
        value = int(value)  # 1e3
    try:
        return checked(name, value, hint)
    except ValueError as error:
        if type(value) is hint:  # it is the size that is wrong
            raise
        raise ValueError(f"{name} must be {describe(hint)}, got {text!r}") from error


def option_from_text(text: str) -> Any:
    """A number, true, false, none, or JSON; all else is text.

    >>> [option_from_text(text) for text in (".1", "yes", "none", "[1, 2]", "NHWC")]
    [0.1, True, None, [1, 2], 'NHWC']
    """
    words: dict[str, Any] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # JSON does not know .1 and 1., and 007 is a name.
        return float(text) if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", text.lower()) else text


def check_like(name: str, value: Any, default: Any) -> None:
    """Raise a ValueError if a flag is given for a number, or something else for a flag."""
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    if isinstance(value, bool) and not isinstance(default, bool):
        raise ValueError(f"{name} must not be true or false, got {value!r}")


def describe(hint: Any) -> str:
    """A type, in words."""
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if NoneType in get_args(hint):
        return f"{names[get_args(hint)[0]]}, or none"
    return names.get(hint, "whole numbers, as 150,250" if get_origin(hint) is tuple else "a JSON object")
