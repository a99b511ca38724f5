"""Custom objects, written ``package.module:object``. Only :func:`load_object` imports anything."""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dualfocal.checks import did_you_mean

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def is_object_name(name: str) -> bool:
    """Return whether a name has the form ``package.module:object``.

    >>> [is_object_name(name) for name in ("my_losses:Tilted", "dual_focal", "C:/images", "nets.py:net/mine")]
    [True, False, False, False]
    """
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def unknown_name(kind: str, name: str, known: Iterable[str], form: str = "package.module:object") -> str:
    """Return the message for an unknown name: it lists the known names and suggests the nearest."""
    names = [*known]
    return f"{kind} must be one of {', '.join(names)}, or {form}, got {name!r}{did_you_mean(name, names)}"


@contextmanager
def current_folder_first() -> Iterator[None]:
    """Import from the current folder first, like ``python -m`` and unlike a console script."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    importlib.invalidate_caches()  # the file may just have been written
    try:
        yield
    finally:
        with suppress(ValueError):  # the custom module may have removed the entry
            sys.path.remove(here)


def load_object(kind: str, name: str) -> Any:
    """Import the object that ``package.module:object`` names; the module may be in the current folder.

    Raises:
        ValueError: the name has another form, the module cannot be imported, or it has no such object.
    """
    if not is_object_name(name):
        raise ValueError(f"{kind} {name!r}: a custom {kind} is written package.module:object")
    module_name, _, attributes = name.partition(":")
    with current_folder_first():
        try:
            value: Any = importlib.import_module(module_name)
        except Exception as error:  # any code of the user
            raise ValueError(
                f"{kind} {name!r}: cannot import {module_name!r} from {str(Path.cwd())!r} or the installed packages: "
                f"{type(error).__name__}: {error}"
            ) from error
    for attribute in attributes.split("."):
        if not hasattr(value, attribute):
            offered = [key for key, member in vars(value).items() if callable(member) and not key.startswith("_")]
            raise ValueError(
                f"{kind} {name!r}: module {module_name!r} has no {attribute!r}{did_you_mean(attribute, offered)}"
            )
        value = getattr(value, attribute)
    return value


def source_of(kind: str, name: str) -> dict[str, str | None]:
    """Return the qualified name of a custom object, and the SHA-256 of the file that defines it. Imports the object."""
    value = load_object(kind, name)
    named = isinstance(getattr(value, "__qualname__", None), str)  # classes and functions
    module = value.__module__ if named and value.__module__ in sys.modules else name.partition(":")[0]
    file = getattr(sys.modules[module], "__file__", None)
    digest = None
    with suppress(OSError):
        digest = None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return {"object": f"{module}:{value.__qualname__ if named else name.partition(':')[2]}", "sha256": digest}


def takes(function: Callable[..., Any], keyword: str) -> bool:
    """Return whether a function accepts a keyword argument, by its name or as one of ``**options``."""
    parameters = inspect.signature(function).parameters
    by_name = keyword in parameters and parameters[keyword].kind in NAMED
    return by_name or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def check_options(
    kind: str, name: str, function: Callable[..., Any], options: Mapping[str, Any], reserved: Container[str]
) -> None:
    """Raise a ValueError if a function has no such option, or if true or false is given for another type.

    Args:
        kind: kind of the object, for messages.
        name: name of the object, for messages.
        function: the class or function that the options are passed to.
        options: the options.
        reserved: arguments of the function that are no options.
    """
    parameters = inspect.signature(function).parameters
    known = [key for key, value in parameters.items() if key not in reserved and value.kind in NAMED]
    for option, value in options.items():
        if option in reserved or (option not in known and not takes(function, option)):
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ValueError(f"{kind} {name} {has}; got {option}{did_you_mean(option, known)}")
        is_flag = option in known and isinstance(parameters[option].default, bool)
        if option in known and is_flag != isinstance(value, bool):
            rule = "must be" if is_flag else "must not be"
            raise ValueError(f"{kind} {name}: {option} {rule} true or false, got {value!r}")
