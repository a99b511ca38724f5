"""Remarks of a fit on its data: what was odd about them, and what follows."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

MOST_LISTED = 8  # absent classes that a note names

# Kind of a note -> what was found, and what follows from it.
TEXTS = {
    "all_correct": (
        "all samples are predicted correctly",
        "each label counts as wrong with probability 1 / (N + 2)",
    ),
    "no_help": ("no temperature helps", "the best one is infinite"),
    "equal_logits": ("all logits of each row are equal", "temperature changes nothing"),
    "end_of_grid": ("T = {values[0]} is the end of the grid", ""),
    "absent_classes": ("{count} of {total} classes have no sample{where}", "the fit all but rules them out"),
    "impossible_labels": (
        "{count:,} of {total:,} true classes have probability 0{where}",
        "a 0 counts as {zeros} in the fit",
    ),
    "not_converged": ("the fit did not converge", ""),
    "fold_not_converged": ("a fit did not converge", ""),
}


@dataclass(frozen=True, eq=False)
class Note:
    """A remark of a fit; ``str`` gives its text.

    Two notes are equal if they read the same: a calibrator's file keeps their text alone.

    >>> str(Note("absent_classes", count=2, total=9, values=(4, 6)))
    '2 of 9 classes have no sample (4, 6): the fit all but rules them out'
    """

    kind: str  # a key of TEXTS; or "saved", read from a file
    count: int = 0  # classes or samples that it is about
    total: int = 0  # of so many
    values: tuple[float, ...] = ()  # the absent classes, what a 0 counts as, or the temperature
    of_folds: bool = False  # whether other folds have smaller counts
    saved: str = ""  # the text that was read from a file

    @property
    def finding(self) -> str:
        """What was found, without what follows."""
        return self._render(TEXTS[self.kind][0])

    def _render(self, template: str) -> str:
        where = " in a fold" if self.of_folds else ""
        if self.kind == "absent_classes" and not self.of_folds:
            some = ", ".join(map(str, self.values[:MOST_LISTED]))
            where = f" ({some}{', ...' if len(self.values) > MOST_LISTED else ''})"
        zeros = " or ".join(f"{zero:.2g}" for zero in sorted(set(self.values)))
        return template.format(count=self.count, total=self.total, values=self.values, where=where, zeros=zeros)

    def __str__(self) -> str:
        if self.kind == "saved":
            return self.saved
        parts = [self._render(part) for part in TEXTS[self.kind] if part]
        return f"{'up to ' if self.of_folds else ''}{': '.join(parts)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def absent_classes(target: Tensor, num_classes: int) -> tuple[int, ...]:
    """The classes that no label names."""
    return tuple((torch.bincount(target, minlength=num_classes) == 0).nonzero()[:, 0].tolist())


def merge_folds(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes of all folds without repetitions; of those that differ in a count, the one with the largest.

    >>> two, three = (Note("absent_classes", len(classes), 9, classes) for classes in ((4, 6), (1, 4, 6)))
    >>> [str(note) for note in merge_folds([two, three, two])]
    ['up to 3 of 9 classes have no sample in a fold: the fit all but rules them out']
    """
    groups: dict[Hashable, list[Note]] = {}
    for note in notes:
        groups.setdefault(note.kind if note.total else note, []).append(note)
    largest = [(max(group, key=lambda note: note.count), len(set(group)) > 1) for group in groups.values()]
    return tuple(replace(note, of_folds=True) if differ else note for note, differ in largest)
