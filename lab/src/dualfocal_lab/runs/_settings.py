"""Check the values of a recipe's fields, and parse them from text."""

import json
import math
import re
from types import NoneType
from typing import Any, get_args, get_origin

WHOLE = 2**53  # whole floats below this are written as integers
LIMIT = 2**63  # larger integers cannot be read by other programs
TYPES: dict[Any, str] = {
    str: "text",
    int: "a whole number below 2^63",
    float: "a number",
    bool: "true or false",
    float | None: "a number, or none",
    bool | None: "true or false, or none",
    tuple[int, ...]: "whole numbers below 2^63, as 150,250",
    dict[str, Any]: "a JSON object",
}
WORDS: dict[str, Any] = {"true": True, "yes": True, "false": False, "no": False, "none": None, "null": None}


def checked(name: str, value: Any, hint: Any) -> Any:
    """Return the value, converted to the type of its field: integers to floats, lists to tuples.

    Raises:
        ValueError: the value has another type.
    """
    kinds = get_args(hint) if NoneType in get_args(hint) else (get_origin(hint) or hint,)
    converted = tuple(value) if kinds == (tuple,) and isinstance(value, list) else value
    if float in kinds and type(value) is int and abs(value) < LIMIT:
        converted = float(value)
    numbers: Any = converted if type(converted) is tuple else [converted] if type(converted) is int else []
    if type(converted) not in kinds or any(type(number) is not int or number >= LIMIT for number in numbers):
        raise ValueError(f"{name} must be {TYPES[hint]}, got {value!r}")
    try:
        return plain(name, converted) if type(converted) is dict else converted
    except RecursionError as error:
        raise ValueError(f"{name} must not contain itself") from error


def plain(name: str, value: Any) -> Any:
    """Return the value in its unique JSON form: 5.0 becomes 5, tuples become lists.

    Raises:
        ValueError: the value has no JSON form.
    """
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {key: plain(name, part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(name, part) for part in value]
    if type(value) is float and math.isfinite(value):
        return int(value) if value.is_integer() and abs(value) < WHOLE else value
    if value is None or type(value) in (bool, str) or (type(value) is int and abs(value) < LIMIT):
        return value
    raise ValueError(f"{name} must hold text, numbers, true, false, none, lists and objects of them, got {value!r}")


def from_text(name: str, text: str, hint: Any) -> Any:
    """Parse the value of a field from the text of a setting.

    Raises:
        ValueError: the text does not have the type of the field.
    """
    if hint is str:
        return text
    value = option_from_text(text)
    if hint == tuple[int, ...] and not isinstance(value, list):  # 150,250 or none
        numbers = option_from_text("[]" if text.lower() in ("none", "") else f"[{text}]")
        value = numbers if isinstance(numbers, list) else text
    if hint is int and type(value) is float and value.is_integer():
        value = int(value)  # 1e3
    return checked(name, value, hint)


def option_from_text(text: str) -> Any:
    """Parse a number, true, false, none or JSON; anything else is text.

    >>> [option_from_text(text) for text in (".1", "yes", "none", "[1, 2]", "NHWC")]
    [0.1, True, None, [1, 2], 'NHWC']
    """
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # .1 and 1. are not JSON; 007 is a name.
        return float(text) if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", text.lower()) else text
