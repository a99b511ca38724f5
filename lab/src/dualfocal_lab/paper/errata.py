"""Inconsistencies in the paper and its public code, what this package does, and how to get the published behaviour.

The texts are in ``errata.json``. Tables are named "table1" to "table13" in the order of the paper, as in
:mod:`dualfocal_lab.paper.published`. "Before" and "after" mean before and after temperature scaling, and calibration
errors are in percent. "The authors' code" is the code published by the paper's authors; "the older code" is that of
Mukhoti et al., on which it is based.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from dualfocal.checks import did_you_mean


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
    """How to get the published behaviour: a command, or an expression of names from ``losses``, ``metrics``,
    ``calibrators``, ``models``, ``train.presets`` and ``paper.published``. Empty if there is no way."""


_CONTENT = json.loads((resources.files("dualfocal_lab.paper") / "errata.json").read_text("utf-8"))

GROUPS: dict[str, tuple[Erratum, ...]] = {
    kind: tuple(Erratum(**erratum) for erratum in group) for kind, group in _CONTENT["errata"].items()
}
"""Kind, such as "paper: tables" -> errata."""

ERRATA: tuple[Erratum, ...] = tuple(erratum for group in GROUPS.values() for erratum in group)

OUT_OF_SCOPE: tuple[str, ...] = tuple(_CONTENT["out_of_scope"])
"""Methods that the paper only cites, without numbers; this package does not implement them."""


def find_errata(keys: Iterable[str] = ()) -> dict[str, list[Erratum]]:
    """Return the errata with the given keys, by kind.

    Args:
        keys: keys of errata (default: all).

    Returns:
        Kind -> errata; kinds without errata are left out.

    >>> [erratum.where for erratum in find_errata(["rbs-root"])["paper: tables"]]
    ['table11, Calibration Assessment with Metrics RBS']

    Raises:
        ValueError: a key is unknown; the message suggests the nearest one.
    """
    known = [erratum.key for erratum in ERRATA]
    wanted = list(keys) or known
    for key in wanted:
        if key not in known:
            raise ValueError(f"unknown erratum {key!r}; `dualfocal paper errata` lists all{did_you_mean(key, known)}")
    chosen = {kind: [erratum for erratum in group if erratum.key in wanted] for kind, group in GROUPS.items()}
    return {kind: group for kind, group in chosen.items() if group}
