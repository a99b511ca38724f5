"""Work on several sets of samples: progress, and errors that name the set."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


def tracked(items: Collection[Item], progress: Callable[[float], None] | None) -> Iterator[Item]:
    """Yield the items; after the work on each of them, report the share that is done.

    >>> for name in tracked(["a", "b"], print):
    ...     print(name)
    a
    0.5
    b
    1.0
    """
    for done, item in enumerate(items, start=1):
        yield item
        if progress is not None:
            progress(done / len(items))


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Put a name in front of the message of a ValueError or an IndexError.

    >>> with named_errors("model a"):
    ...     raise ValueError("no samples")
    Traceback (most recent call last):
    ValueError: model a: no samples
    """
    try:
        yield
    except (ValueError, IndexError) as error:
        kind = IndexError if isinstance(error, IndexError) else ValueError
        raise kind(f"{name}: {error}") from error
