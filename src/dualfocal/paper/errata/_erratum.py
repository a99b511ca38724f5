"""What an erratum says."""

from dataclasses import dataclass


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
    ``losses``, ``metrics``, ``calibrators``, ``models``, ``paper.recipes`` and ``paper.published``. Empty: nothing
    does."""
