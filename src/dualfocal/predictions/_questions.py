"""What the names of a file leave open: one error for all questions, with a command that answers them."""

import shlex
from dataclasses import asdict, dataclass, field

from dualfocal.predictions._class_columns import listed, suggested
from dualfocal.predictions._formats.interface import PredictionFile, PredictionsError

LABEL_KINDS = ("integer", "text")
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
        if names:
            self.answers["probs"] = listed(names)
            self.remark = f", or --logits {suggested(names)} if they are logits"
            if len(names) == 1 and names[0] in looks and looks[names[0]].ndim == 1:
                self.answers["binary"] = "positive"

    def ask_for_labels(self, labels: list[str], taken: set[str], several: list[str]) -> None:
        """Ask which array or column holds the labels: one of these, or of those that are not taken.

        Columns in ``several`` look like the targets of a multi-label problem.
        """
        if several:
            how = "if a sample can have several of them, give --task multilabel, else name one with --target NAME"
            self.add(f"{suggested(several)} look like the targets of several labels: {how}", task="multilabel")
            return
        problem = f"several labels ({', '.join(map(repr, labels))}):" if labels else "no labels with a usual name:"
        other = "" if labels or self.source.is_table else ", or their file with --target labels.npy"
        used = taken | {name for names in self.answers.values() for name in names.split(",")}
        likely = labels or [
            name
            for name, look in self.source.looks().items()
            if name not in used and look.ndim == 1 and look.kind in LABEL_KINDS and name.lower() not in NO_LABELS
        ]
        self.add(f"holds {problem} name them with --target NAME{other}", **({"target": likely[-1]} if likely else {}))

    def error(self) -> PredictionsError:
        """Return an error with all questions, and one command that answers them."""
        if {"doc_id", "filtered_resps"} <= set(self.source.names):
            return self.source.error("is a log of lm-evaluation-harness: evaluate it with --format lm-eval")
        values = {**asdict(self.options), **self.answers}
        values["group-by"] = values.pop("group")
        words = [word for name, value in values.items() if value is not None for word in (f"--{name}", value)]
        command = shlex.join([*self.source.command, *words])
        example = f"; for example: {command}{self.remark}" if self.answers else ""
        return self.source.error(f"{'; '.join(self.problems)}{example} {self.source.holds()}")
