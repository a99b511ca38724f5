"""Read the logs of inspect_ai, ``.json`` or ``.eval``, if the log-probabilities of the answer were recorded.

The solver ``multiple_choice`` lets the model write ``ANSWER: B``. The log-probabilities of the options are those of
their letters at the position of the answer's letter.
"""

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from dualfocal.predictions._formats.interface import TooLargeError, shortened
from dualfocal.predictions._formats.json_lines import BYTES_PER_CHARACTER
from dualfocal.predictions._logs.archive import EvalArchive
from dualfocal.predictions._logs.log import ChoiceLog, Question
from dualfocal.tables import quantity

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MARKER = re.compile(r"ANSWER\s*:\W{0,20}$", re.IGNORECASE)
ANSWER = re.compile(r"ANSWER\s*:\W{0,20}([A-Z])\b", re.IGNORECASE)
AROUND = " \t\r\n*().:[]\"'`\u0120\u2581\u010a"  # around a letter in a token; the last three are a space or line break
GRADES = {"C": 1.0, "I": 0.0}
TAIL = 200  # characters before the answer that are searched for ANSWER:

NO_LOG_PROBS = "no log-probabilities recorded"
NO_TOP = "no log-probabilities of other tokens recorded"
NO_LETTER = "no answer of the form ANSWER: LETTER"
SHUFFLED = "options shuffled by the solver (shuffle them in the data set instead, with shuffle_choices)"
SEVERAL = "several right options"
NO_TARGET = "the target is not the letter of an option"
NO_OPTIONS = "fewer than 2 or more than 26 options"


class InspectLog(ChoiceLog):
    """A file ``.json`` or ``.eval``."""

    patterns = ("*.eval", "*.json")
    fields_name = "metadata"
    how_to_record = "run inspect eval with --logprobs --top-logprobs 20 (and --log-format json for a .json log)"
    metrics: ClassVar[dict[str, str]] = {"sum": "accuracy"}

    def __init__(self, path: Path, max_memory: int | str | None) -> None:
        super().__init__(path, max_memory)
        self.incomplete = 0  # questions for which not all options are among the recorded tokens
        self.archive = EvalArchive(path, self.check_memory) if zipfile.is_zipfile(path) else None
        self.content: Any = self.archive.header() if self.archive else self._parse_file()
        evaluation = self.content.get("eval") if isinstance(self.content, dict) else None
        task = evaluation.get("task") if isinstance(evaluation, dict) else None
        if not isinstance(task, str):
            raise self.error("is not a log of inspect_ai: it has no eval.task")
        self.task = task

    def questions(self) -> Iterator[tuple[str, Question]]:
        """Yield the questions, with the id of each."""
        reasons, number = set[str](), 0
        for number, sample in enumerate(self._samples(), start=1):
            if not isinstance(sample, dict):
                raise self.error(f"sample {number} must be an object, got {shortened(repr(sample))}")
            place = f"sample {shortened(str(sample.get('id', number)))}"
            try:
                question = self._question(sample)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise self.error(f"{place} is not as inspect_ai writes it: {shortened(repr(error))}") from None
            if isinstance(question.right, str):
                reasons.add(question.right)
            yield place, question
        if number and reasons in ({NO_LOG_PROBS}, {NO_TOP}):
            raise self.error(f"{reasons.pop()}: {self.how_to_record}")
        if self.incomplete:
            questions = f"{quantity(self.incomplete, 'question')} {'lacks' if self.incomplete == 1 else 'lack'}"
            self.remarks.append(
                f"{questions} the log-probability of an option, which counts as the lowest one "
                "recorded, an upper bound: raise --top-logprobs"
            )

    def _question(self, sample: dict[str, Any]) -> Question:
        options, output = sample.get("choices") or [], sample["output"]
        doc_id = shortened(str(sample["id"]))
        fields = sample.get("metadata") or {}
        if not isinstance(fields, dict) or not isinstance(options, list):
            raise TypeError("metadata must be an object and choices a list")
        if not 2 <= len(options) <= len(LETTERS):
            return Question(doc_id, [], NO_OPTIONS)
        replies = output.get("choices") or [{}]
        tokens = (replies[0].get("logprobs") or {}).get("content")
        if not tokens:
            return Question(doc_id, [], NO_LOG_PROBS)
        right = _right(sample["target"], len(options))
        position = _answer_position(tokens, len(options))
        if isinstance(right, str) or position is None:
            return Question(doc_id, [], right if isinstance(right, str) else NO_LETTER)
        token = tokens[position]
        shown = ANSWER.findall(str(output.get("completion") or "")[-TAIL:])
        if shown and shown[-1].upper() != LETTERS[_option(token["token"], len(options))]:  # type: ignore[index]
            return Question(doc_id, [], SHUFFLED)
        if not token.get("top_logprobs"):
            return Question(doc_id, [], NO_TOP)
        log_probs = self._log_probs(token, len(options))
        return Question(doc_id, log_probs, right, recorded=_recorded(sample.get("scores")), fields=fields)

    def _log_probs(self, token: dict[str, Any], number: int) -> list[float]:
        """Return the log-probabilities of the letters; tokens of one letter, such as "A" and " A", are added up."""
        entries = {entry["token"]: entry["logprob"] for entry in (*token["top_logprobs"], token)}
        for value in entries.values():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"logprob must be a number, got {value!r}")
        by_option: dict[int, list[float]] = {}
        for text, value in entries.items():
            if (option := _option(text, number)) is not None:
                by_option.setdefault(option, []).append(float(value))
        self.incomplete += len(by_option) < number
        lowest = min(float(value) for value in entries.values())
        return [_log_sum(by_option.get(option, [lowest])) for option in range(number)]

    def _samples(self) -> Iterator[Any]:
        if self.archive is not None:
            yield from self.archive.samples()
            return
        samples = self.content.get("samples")
        if not isinstance(samples, list):
            raise self.error("has no samples: it may be a header only, or the log of a run that failed")
        yield from samples

    def _parse_file(self) -> Any:
        self.check_memory(self.path.stat().st_size * BYTES_PER_CHARACTER)
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self.error(f"is not JSON: {shortened(str(error), 200)}") from None

    def check_memory(self, needed: int, *, at_least: bool = False) -> None:
        """Raise a TooLargeError if ``needed`` bytes are more than allowed."""
        try:
            super().check_memory(needed, at_least=at_least)
        except TooLargeError as error:
            raise TooLargeError(f"{error}; .eval logs are read sample by sample", error.problem) from None


def _option(token: Any, number: int) -> int | None:
    """Return which option a token names, if it is one letter."""
    letter = str(token).strip(AROUND).upper()
    index = LETTERS.find(letter) if len(letter) == 1 else -1
    return index if 0 <= index < number else None


def _answer_position(tokens: list[Any], number: int) -> int | None:
    """Return the position of the letter after the last ``ANSWER:``, or of the only word, if it is a letter."""
    before, position = "", None
    for i, token in enumerate(tokens):
        if _option(token["token"], number) is not None and MARKER.search(before):
            position = i
        before = (before + token["token"])[-TAIL:]
    if position is None:
        with_text = [i for i, token in enumerate(tokens) if token["token"].strip(AROUND)]
        words = [i for i in with_text if not re.fullmatch(r"<.{1,30}>", tokens[i]["token"])]  # end-of-text tokens
        if len(words) == 1 and _option(tokens[words[0]]["token"], number) is not None:
            position = words[0]
    return position


def _right(target: Any, number: int) -> int | str:
    letters = target if isinstance(target, list) else [target]
    if len(letters) != 1:
        return SEVERAL
    index = _option(letters[0], number)
    return NO_TARGET if index is None else index


def _recorded(scores: Any) -> dict[str, float]:
    """Return the accuracy that the scorer ``choice``, or the only scorer, gave."""
    if not isinstance(scores, Mapping) or not scores:
        return {}
    score = scores.get("choice", next(iter(scores.values())))
    value = score.get("value") if isinstance(score, Mapping) else None
    grade = GRADES.get(value) if isinstance(value, str) else None
    return {} if grade is None else {"sum": grade}


def _log_sum(values: list[float]) -> float:
    peak = max(values)
    return peak + math.log(sum(math.exp(value - peak) for value in values)) if math.isfinite(peak) else peak
