"""The interface of all logs of multiple-choice questions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dualfocal._memory import MemoryLimitError, check_memory
from dualfocal.predictions._formats.interface import PredictionsError, TooLargeError


@dataclass
class Question:
    """One question of a log.

    Args:
        doc_id: its document.
        log_probs: log-probabilities of the options.
        right: index of the right option; or a text, why the question cannot be used.
        texts: the options as they were given to the model, with the delimiter before them.
        unconditional: log-probabilities of the options without the question.
        recorded: score -> accuracy.
        fields: other fields, which may name a cluster.
    """

    doc_id: str
    log_probs: list[float]
    right: int | str
    texts: list[str] = field(default_factory=list)
    unconditional: list[float] = field(default_factory=list)
    recorded: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


class ChoiceLog(ABC):
    """The log of one task. Each harness is a subclass, which sets ``task``.

    Args:
        path: the file.
        max_memory: limit of the memory (None: half of the free memory).
    """

    patterns: ClassVar[tuple[str, ...]]  # names of logs in a folder
    fields_name: ClassVar[str]  # how the log calls the object with other fields of a question
    how_to_record: ClassVar[str]  # options of the harness that write such logs
    metrics: ClassVar[dict[str, str]]  # score -> name of its accuracy in the log
    task: str

    def __init__(self, path: Path, max_memory: int | str | None) -> None:
        self.path, self.max_memory = path, max_memory
        self.remarks: list[str] = []

    @abstractmethod
    def questions(self) -> Iterator[tuple[str, Question]]:
        """Yield the questions, with the place of each in the file."""

    def error(self, text: str) -> PredictionsError:
        return PredictionsError(f"{self.path}: {text}")

    def check_memory(self, needed: int, *, at_least: bool = False) -> None:
        """Raise a TooLargeError if ``needed`` bytes are more than allowed."""
        try:
            check_memory(self.path, needed, self.max_memory, at_least=at_least)
        except MemoryLimitError as error:
            raise TooLargeError(str(error), error.problem) from None
