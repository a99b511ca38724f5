"""What the names of a file leave open: one error for all questions, with options that answer them."""

import shlex
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from dualfocal.predictions._class_columns import Values, listed, suggested
from dualfocal.predictions._formats.interface import Column, PredictionFile, PredictionsError
from dualfocal.predictions._labels import WHOLE

LABEL_KINDS = ("integer", "text")
MOST_CANDIDATES = 100  # columns that are read to suggest one as labels
NO_LABELS = ("class_names", "id", "index", "sample", "")  # names that are not suggested as labels


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """The names that the options of a caller give."""

    logits: str | None = None
    probs: str | None = None
    target: str | None = None
    group: str | None = None
    cluster: str | None = None
    weight: str | None = None
    split: str | None = None
    prediction: str | None = None
    confidence: str | None = None

    @property
    def values(self) -> str | None:
        """Name of the values, if an option gives it."""
        return self.probs if self.logits is None else self.logits

    @property
    def kind(self) -> str:
        """Kind of the values that an option names."""
        return "probs" if self.logits is None else "logits"


@dataclass
class Questions:
    """What the names leave open, and options that would decide it."""

    source: PredictionFile
    options: NameOptions
    problems: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)  # option and value of an example
    value_names: list[str] = field(default_factory=list)  # columns of the values in the example
    remark: str = ""  # on the example

    def add(self, problem: str, **answers: str) -> None:
        """Add a question, and options that answer it in the example."""
        self.problems.append(problem)
        self.answers |= answers

    def ask_for_values(self, names: list[str], free: list[str]) -> None:
        """Ask of which kind the values are, or which arrays or columns they are.

        Args:
            names: the arrays or columns of the values, if only their kind is unknown.
            free: all arrays and columns that are not labels or groups.
        """
        looks = self.source.looks()
        problem = f"holds no {self.source.noun} with a usual name"
        if names:
            text = suggested(names)
            self.add(f"{problem}: {text} can be logits or probabilities: give --logits {text} or --probs {text}")
        else:
            how = "--logits NAME or --probs NAME (for a table also NAME,NAME,... in class order)"
            self.add(f"{problem}: name the logits or probabilities with {how}")
            names = [name for name in free if name in looks and looks[name].kind == "float"]
            names = names if self.source.is_table and {looks[name].ndim for name in names} == {1} else names[:1]
        self.value_names = names
        if names:
            self.answers["probs"] = listed(names)
            self.remark = f", or --logits {suggested(names)} if they are logits"
            if len(names) == 1 and names[0] in looks and looks[names[0]].ndim == 1:
                self.answers["binary"] = "positive"

    def ask_for_labels(self, labels: list[str], values: Values | None, several: list[str]) -> None:
        """Ask which array or column holds the labels: one of these or, if there are none, of all others.

        Columns in ``several`` look like the targets of a multi-label problem.
        """
        if several:
            how = "if a sample can have several of them, use dualfocal evaluate and calibrate with --task multilabel"
            self.add(
                f"{suggested(several)} look like the targets of several labels: {how}, else name one with --target"
            )
            return
        problem = f"several labels ({', '.join(map(repr, labels))}):" if labels else "no labels with a usual name:"
        other = "" if labels or self.source.is_table else ", or their file with --target labels.npy"
        likely = labels or self._likely_labels(values)
        if likely or self.answers:
            self.answers["target"] = likely[-1] if likely else "NAME"
        self.add(f"holds {problem} name them with --target NAME{other}")

    def _likely_labels(self, values: Values | None) -> list[str]:
        """Return the arrays or columns whose content can be labels."""
        looks = self.source.looks()
        names, classes = (self.value_names, None) if values is None else (values.names, values.classes)
        highest = len(names) or None  # class number; classes may be numbered from 1
        if len(names) == 1:
            is_score = names[0] in looks and looks[names[0]].ndim == 1
            highest, classes = (1, ("false", "true")) if is_score else (None, None)
        candidates = [
            name
            for name, look in looks.items()
            if name not in names and look.ndim == 1 and look.kind in LABEL_KINDS and name.lower() not in NO_LABELS
        ][-MOST_CANDIDATES:]
        with suppress(PredictionsError):
            columns = self.source.sample([], candidates).others if candidates else {}
            return [name for name in columns if _can_be_labels(columns[name], highest, classes)]
        return []

    def error(self) -> PredictionsError:
        """Return an error with all questions, and options that answer them."""
        if {"doc_id", "filtered_resps"} <= set(self.source.names):
            return self.source.error("is a log of lm-evaluation-harness: evaluate it with --format lm-eval")
        options = shlex.join(word for name, value in self.answers.items() for word in (f"--{name}", value))
        example = f"; for example: {options}{self.remark}" if self.answers else ""
        return self.source.error(f"{'; '.join(self.problems)}{example} {self.source.holds()}")


def _can_be_labels(column: Column, highest: int | None, classes: tuple[str, ...] | None) -> bool:
    """Whether a column holds class numbers, or names of classes; -100 and other negative numbers are ignored samples.

    Args:
        column: the column.
        highest: the highest class number (None: unknown).
        classes: names of the classes (None: unknown).
    """
    if highest is None:
        return True
    texts = {str(value).strip() for value in np.unique(np.asarray(column)).tolist()} - {""}
    numbers = {text for text in texts if WHOLE.fullmatch(text)}
    names = {text.casefold() for text in texts - numbers}
    named = len(names) <= highest if classes is None else names <= {text.casefold() for text in classes}
    return named and all(int(text) <= highest for text in numbers)
