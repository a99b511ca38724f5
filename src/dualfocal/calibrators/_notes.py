"""What fits have to say of classes without samples and of probabilities of 0; and the fits of all folds together."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

MOST_LISTED = 8  # absent classes that a note names

COUNTED = re.compile(r"([\d,]+) of ([\d,]+) (classes have no sample|true classes have probability 0)(?: \(.*?\))?(.*)")


def absent_classes(target: Tensor, num_classes: int) -> list[int]:
    """The classes that no label names."""
    return (torch.bincount(target, minlength=num_classes) == 0).nonzero()[:, 0].tolist()


def absent_note(target: Tensor, num_classes: int) -> tuple[str, ...]:
    """On the classes that no label names, if there are any."""
    absent = absent_classes(target, num_classes)
    if not absent:
        return ()
    some = ", ".join(map(str, absent[:MOST_LISTED])) + (", ..." if len(absent) > MOST_LISTED else "")
    return (f"{len(absent)} of {num_classes} classes have no sample ({some}): the fit all but rules them out",)


def zero_note(count: int, num_samples: int, zeros: tuple[float, ...]) -> tuple[str, ...]:
    """On true classes of probability 0, if there are any."""
    if not count:
        return ()
    counts_as = " or ".join(f"{zero:.2g}" for zero in sorted(set(zeros)))
    return (f"{count:,} of {num_samples:,} true classes have probability 0: a 0 counts as {counts_as} in the fit",)


def of_all_folds(notes: Iterable[str]) -> tuple[str, ...]:
    """Without repetitions: where the folds differ in a count alone, the largest.

    >>> of_all_folds(["2 of 9 classes have no sample (4, 6): x", "3 of 9 classes have no sample (1, 4): x", "y", "y"])
    ('up to 3 of 9 classes have no sample in a fold: x', 'y')
    """
    groups: dict[str, dict[str, int]] = {}
    for note in notes:
        found = COUNTED.fullmatch(note)
        groups.setdefault(found[3] if found else note, {})[note] = int(found[1].replace(",", "")) if found else 0
    merged = []
    for texts in groups.values():
        most = max(texts, key=texts.__getitem__)
        merged.append(most if len(texts) == 1 else COUNTED.sub(r"up to \1 of \2 \3 in a fold\4", most))
    return tuple(merged)
