"""What a report is about: predictions of one file or run folder, checked, with what is known of them."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path

from torch import Tensor

from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan, scan
from dualfocal.predictions import Predictions
from dualfocal.runs import Run, find_runs
from dualfocal.runs.source import Reading

MOST_INPUTS = 32  # more could not be told apart on a page, nor fit into it
MOST_BINS = 1000  # more could not be drawn


@dataclass(frozen=True, eq=False)
class ReportInput:
    """One model's predictions, and the run they come from where they do."""

    name: str
    path: Path
    data: Predictions
    rows: Rows
    seen: Scan
    evaluation: Evaluation
    run: Run | None
    part: str  # of a run folder, which it is
    known_names: tuple[str, ...] = ()  # of the classes, where the data set is at hand

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """As the file says them, or the data set, cut to a readable length; or numbers."""
        names = self.data.class_names or self.known_names
        if len(names) != self.rows.num_classes:
            names = tuple(map(str, range(self.rows.num_classes)))
        return distinct(shortened(name) for name in names)

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted class of each row: the first of the largest."""
        largest = self.rows.values.amax(1, keepdim=True)
        return (self.rows.values == largest).int().argmax(1)  # of 0 and 1, equal ones: torch gives the first


def find_inputs(paths: Sequence[Path]) -> tuple[list[Path], list[Run]]:
    """The inputs, a folder of runs as its finished runs; and the runs in it that are not finished.

    Raises:
        ValueError: a folder holds no finished run.
    """
    inputs, unfinished = list[Path](), list[Run]()
    for path in paths:
        if not path.is_dir() or Run(path).exists or Run(path).has_predictions:
            inputs.append(path)
            continue
        states = [(run, run.state) for run in find_runs(path)]
        finished = [run.path for run, state in states if state == "finished"]
        if not finished:
            held = f"the {len(states)} in it are not" if states else "there is none in it"
            raise ValueError(f"{path}: must be a file, a run folder or a folder of finished runs, but {held}")
        inputs += finished
        unfinished += [run for run, state in states if state != "finished"]
    return inputs, unfinished


def load_inputs(paths: Sequence[Path], reading: Reading) -> list[ReportInput]:
    """Read everything a report is about.

    Raises:
        ValueError: nothing or too much is given, or a file cannot be read or scored; the message says which.
    """
    if not 1 <= reading.num_bins <= MOST_BINS:
        raise ValueError(f"num_bins of a report must be from 1 to {MOST_BINS:,}, got {reading.num_bins}")
    if not 1 <= len(paths) <= MOST_INPUTS:
        raise ValueError(f"a report is of 1 to {MOST_INPUTS} files or run folders, got {len(paths)}")
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{path} is given more than once")
    subjects = []
    for name, path in zip(input_names(paths), paths, strict=True):
        data = reading.load(path)
        try:
            rows = reading.rows(data)
            seen = scan(rows, num_bins=reading.num_bins, scores=True, classwise=True)
            evaluation = evaluate_rows(
                rows, seen, reading.num_bins, inference=True, level=reading.level, seed=reading.seed
            )
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: {error}") from error
        run = Run(path) if Run(path).exists else None
        subjects.append(ReportInput(name, path, data, rows, seen, evaluation, run, reading.split or "test"))
    return subjects


LONGEST_NAME = 60  # characters
# These turn the direction of whatever stands around them: marks, embeddings, overrides, isolates.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """The text without control characters, cut where it is longer than anybody reads.

    >>> shortened("a long name", 6)
    'a lon…'
    >>> shortened("5\\u202e6\\x07\\n7")
    '56 7'
    """
    text = plain(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(text: str) -> str:
    """The text without control characters; those that are white space become a space."""
    spaced = re.sub(r"[\t\n\v\f\r\x85]+", " ", text)
    return "".join(c for c in spaced if c not in BIDI and unicodedata.category(c) != "Cc")


def without_folders(text: str) -> str:
    """The text with the last part of every path in it: a page is sent to others.

    >>> without_folders("there is no '/home/me/data/cifar10'; see ../notes.txt")
    "there is no 'cifar10'; see notes.txt"
    """
    return re.sub(r"[^\s'\"(]*[/\\](?=[^\s/\\'\")])", "", text)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names, where one is there already with a number.

    >>> distinct(["a", "b", "a", "a (2)"])
    ('a', 'b', 'a (2)', 'a (2) (2)')
    """
    unique: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({number})" for number in count(2))
        unique[next(candidate for candidate in chain([name], numbered) if candidate not in unique)] = None
    return tuple(unique)


def input_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """File names without their folders; where these are the same, with as many of the folders as tell them apart.

    >>> input_names([Path("/a/runs/1/x"), Path("/b/runs/1/x"), Path("/a/y")])
    ('a/runs/1/x', 'b/runs/1/x', 'y')
    """
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    tails = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        tails.append(plain("/".join(own[-length:])))
    # Cut in front: the end of a path tells more, and so does that of a file name ("…seed1.npz").
    return distinct(tail if len(tail) <= LONGEST_NAME else f"…{tail[1 - LONGEST_NAME :]}" for tail in tails)
