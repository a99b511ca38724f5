"""What a report is about: predictions of one file or run folder, checked, with what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from dualfocal.metrics import Evaluation
from dualfocal.metrics._rows import Rows, as_rows
from dualfocal.metrics._scan import Scan, scan
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.predictions import Predictions, load_predictions
from dualfocal.train import Run
from dualfocal.train.run import RECIPE

MOST_SUBJECTS = 32  # more could not be told apart on a page, nor fit into it
LONGEST_NAME = 60  # characters


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read and to score predictions; the same for all of a report."""

    logits: str | None = None
    probs: str | None = None
    target: str | None = None
    split: str | None = None
    num_bins: int = 15
    ignore_index: int = -100
    binary: str | None = None
    level: float = 0.9
    seed: int = 0

    def load(self, path: Path, split: str | None = None) -> Predictions:
        """The predictions of a file, or of a part of a run folder: the test part unless told."""
        return load_predictions(
            path,
            logits=self.logits,
            probs=self.probs,
            target=self.target,
            split=split or self.split,
            run_split="test",
        )

    def rows(self, data: Predictions) -> Rows:
        """The predictions as rows, without the ignored ones."""
        return as_rows(data.values, data.target, input=data.input, ignore_index=self.ignore_index, binary=self.binary)

    def evaluate(self, rows: Rows, seen: Scan) -> Evaluation:
        """Every metric, with what it can bear."""
        return evaluate_rows(rows, seen, self.num_bins, inference=True, level=self.level, seed=self.seed)

    def scan(self, rows: Rows) -> Scan:
        """What every table of a report starts from."""
        return scan(rows, num_bins=self.num_bins, scores=True, classwise=True)


@dataclass(frozen=True, eq=False)
class Subject:
    """One model's predictions, and the run they come from where they do."""

    name: str
    path: Path
    data: Predictions
    rows: Rows
    seen: Scan
    evaluation: Evaluation
    run: Run | None

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """As the file says them, cut to a readable length; or numbers."""
        names = self.data.class_names or tuple(map(str, range(self.rows.num_classes)))
        return tuple(shortened(name) for name in names)

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted class of each row: the first of the largest."""
        values = self.rows.values
        largest = values.amax(1, keepdim=True)
        return (values == largest).int().argmax(1)  # of 0 and 1, equal ones: torch gives the first

    def part(self, reading: Reading) -> str:
        """Of a run folder, which part it is."""
        return reading.split or "test"


def load_subjects(paths: Sequence[Path], reading: Reading) -> list[Subject]:
    """Read everything a report is about.

    Raises:
        ValueError: nothing or too much is given, or a file cannot be read or scored; the message says which.
    """
    if not 1 <= len(paths) <= MOST_SUBJECTS:
        raise ValueError(f"a report is of 1 to {MOST_SUBJECTS} files or run folders, got {len(paths)}")
    if len(set(paths)) < len(paths):
        raise ValueError(f"{next(path for path in paths if paths.count(path) > 1)} is given more than once")
    subjects = []
    for name, path in zip(_names(paths), paths, strict=True):
        data = reading.load(path)
        try:
            rows = reading.rows(data)
            seen = reading.scan(rows)
            found = reading.evaluate(rows, seen)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: {error}") from error
        run = Run(path) if (path / RECIPE).is_file() else None
        subjects.append(Subject(name, path, data, rows, seen, found, run))
    return subjects


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """The text, cut where it is longer than anybody reads.

    >>> shortened("a long name", 6)
    'a lon…'
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _names(paths: Sequence[Path]) -> list[str]:
    """File names without their folders, where these tell them apart: a page is sent to others."""
    short = [path.absolute().name for path in paths]
    return [shortened(name) for name in (short if len(set(short)) == len(short) else map(str, paths))]
