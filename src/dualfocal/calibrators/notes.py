"""Notes of a fit: what was unusual about the data, and how the fit handled it."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualfocal.checks import listed

# Kind of a note -> (finding, consequence).
TEXTS = {
    "all_correct": (
        "all samples are predicted correctly",
        "the fit treats each label as wrong with probability 1 / (N + 2)",
    ),
    "no_help": ("the logits do not help to predict the labels", "the best temperature is infinite"),
    "equal_logits": ("all logits of each row are equal", "temperature scaling has no effect"),
    "end_of_grid": ("T = {values[0]} is at the end of the search grid, 0.1 to 10", ""),
    "absent_classes": (
        "{count} of {total} classes have no samples{where}",
        "the fit gives them almost zero probability",
    ),
    "rare_labels": (
        "{count} of {total} labels have fewer than 10 positive or negative samples{where}",
        "what the fit learns about them is uncertain",
    ),
    "impossible_labels": (
        "{count:,} of {total:,} true classes have probability 0{where}",
        "the fit replaces 0 by {zeros}",
    ),
    "not_converged": ("the fit did not converge", ""),
    "fold_not_converged": ("the fit of at least one fold did not converge", ""),
}


@dataclass(frozen=True, eq=False)
class Note:
    """A note of a fit; ``str(note)`` gives its text.

    Notes compare by text, because calibrator files store only the text.

    Args:
        kind: a key of ``TEXTS``, or ``"saved"`` for a note read from a file.
        count: number of affected classes or samples.
        total: number of all classes or samples.
        values: absent classes, rare labels, replacements of probability 0, or the temperature.
        of_folds: whether the count is the maximum over folds that differ.
        saved: text read from a file.

    >>> str(Note("absent_classes", count=2, total=9, values=(4, 6)))
    '2 of 9 classes have no samples (4, 6): the fit gives them almost zero probability'
    """

    kind: str
    count: int = 0
    total: int = 0
    values: tuple[float, ...] = ()
    of_folds: bool = False
    saved: str = ""

    @property
    def finding(self) -> str:
        """The finding, without its consequence."""
        return self._render(TEXTS[self.kind][0])

    def _render(self, template: str) -> str:
        where = " in a fold" if self.of_folds else ""
        if self.kind in ("absent_classes", "rare_labels") and not self.of_folds:
            where = f" ({listed(self.values)})"
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
    """Indices of the classes without samples."""
    return tuple((torch.bincount(target, minlength=num_classes) == 0).nonzero()[:, 0].tolist())


def merge_folds(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Merge the notes of all folds: drop duplicates, and keep the largest count of notes that differ in a count.

    >>> two, three = (Note("absent_classes", len(classes), 9, classes) for classes in ((4, 6), (1, 4, 6)))
    >>> [str(note) for note in merge_folds([two, three, two])]
    ['up to 3 of 9 classes have no samples in a fold: the fit gives them almost zero probability']
    """
    groups: dict[Hashable, list[Note]] = {}
    for note in notes:
        groups.setdefault(note.kind if note.total else note, []).append(note)
    largest = [(max(group, key=lambda note: note.count), len(set(group)) > 1) for group in groups.values()]
    return tuple(replace(note, of_folds=True) if differ else note for note, differ in largest)
