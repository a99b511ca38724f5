"""Shell completion of values: names of presets, losses, calibrators, data sets, models and tables.

Where no name fits, the shells complete file names. Nothing here imports torch: Tab must not take seconds.
"""

import re
from collections.abc import Callable, Iterable


def names_of(names: Iterable[str], separators: str = "", *, alone: Iterable[str] = ()) -> Callable[[str], list[str]]:
    """Return a completion function for an option or argument of typer.

    Args:
        names: the values.
        separators: characters that separate the values of a list, whose last value is completed.
        alone: values that cannot be part of a list.

    >>> complete = names_of(["focal", "flsd", "brier"], ",", alone=["all"])
    >>> complete("brier,f"), complete("focal,f"), complete("a"), complete("brier,a")
    (['brier,focal', 'brier,flsd'], ['focal,flsd'], ['all'], [])
    """
    listed, single = list(names), list(alone)

    def complete(incomplete: str) -> list[str]:
        words = re.split(f"[{re.escape(separators)}]", incomplete) if separators else [incomplete]
        before = incomplete.removesuffix(words[-1])
        fitting = [name for name in listed if name not in words[:-1]] + ([] if before else single)
        return [before + name for name in fitting if name.startswith(words[-1])]

    return complete
