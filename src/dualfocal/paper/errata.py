"""Inconsistencies in the paper and in the public code behind it, what this package does, and how to get the published
behaviour all the same.

The texts are in ``errata.json``. Tables have the names of :mod:`dualfocal.paper.published`, "table1" to "table13", in
the order of the paper; "before" and "after" are before and after temperature scaling, and calibration errors are in
percent. "The authors' code" is what the paper's authors have published; "the older code" is that of Mukhoti et al.,
which they built on.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from dualfocal._checks import did_you_mean


@dataclass(frozen=True)
class Erratum:
    """One inconsistency."""

    key: str
    """Short name, for the command line."""
    where: str
    """Table, section, lemma, or part of the code."""
    what: str
    """What is inconsistent."""
    ours: str
    """What this package does."""
    option: str
    """What gives the published behaviour: a command, or an expression of names that ``dualfocal`` exports from
    ``losses``, ``metrics``, ``calibrators``, ``models``, ``train.presets`` and ``paper.published``. Empty: nothing
    does."""


_CONTENT = json.loads((resources.files("dualfocal.paper") / "errata.json").read_text("utf-8"))

GROUPS: dict[str, tuple[Erratum, ...]] = {
    kind: tuple(Erratum(**erratum) for erratum in group) for kind, group in _CONTENT["errata"].items()
}
"""By kind."""

ERRATA: tuple[Erratum, ...] = tuple(erratum for group in GROUPS.values() for erratum in group)

OUT_OF_SCOPE: tuple[str, ...] = tuple(_CONTENT["out_of_scope"])
"""What the paper only cites: it has no numbers for these methods, and this package does not implement them."""


def find_errata(keys: Iterable[str] = ()) -> dict[str, list[Erratum]]:
    """Return the errata of these keys, or all of them, by kind; kinds without any are left out.

    >>> [erratum.where for erratum in find_errata(["rbs-root"])["paper: tables"]]
    ['table11, Calibration Assessment with Metrics RBS']

    Raises:
        ValueError: there is no such key; the message has the nearest one.
    """
    known = [erratum.key for erratum in ERRATA]
    wanted = list(keys) or known
    for key in wanted:
        if key not in known:
            raise ValueError(f"there is no erratum {key!r}, see `dualfocal paper errata`{did_you_mean(key, known)}")
    chosen = {kind: [erratum for erratum in group if erratum.key in wanted] for kind, group in GROUPS.items()}
    return {kind: group for kind, group in chosen.items() if group}
