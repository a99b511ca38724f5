"""Read the per-sample logs of lm-evaluation-harness (``--log_samples``), versions 0.4.0 and later."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dualfocal.predictions._formats.interface import PredictionsError, shortened
from dualfocal.predictions._formats.json_lines import read_records
from dualfocal.predictions._logs.log import ChoiceLog, Question
from dualfocal.tables import quantity

NAME = re.compile(r"samples_(.+?)(?:_\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)?\.jsonl(?:\.gz)?")
PAIR = re.compile(r"\(\s*([^,()]{1,40}),\s*(?:True|False)\s*\)")  # how some versions write (log-probability, greedy)
SEVERAL, UNKNOWN = "several right options", "the right option is not known"


class NotMultipleChoice(PredictionsError):
    """The log is of a task that is not multiple choice."""


class LmEvalLog(ChoiceLog):
    """A file ``samples_<task>_<date>.jsonl``."""

    patterns = ("samples_*.jsonl",)
    fields_name = "doc"
    how_to_record = "run lm_eval with --log_samples and --output_path FOLDER"
    metrics: ClassVar[dict[str, str]] = {
        "sum": "acc",
        "per-char": "acc_norm",
        "per-byte": "acc_bytes",
        "mutual-info": "acc_mutual_info",
    }

    def __init__(self, path: Path, max_memory: int | str | None) -> None:
        super().__init__(path, max_memory)
        match = NAME.fullmatch(path.name)
        self.task = match[1] if match else path.name.split(".")[0]
        if path.suffix != ".jsonl":
            raise self.error(f"is not a per-sample log, samples_<task>_<date>.jsonl: {self.how_to_record}")

    def questions(self) -> Iterator[tuple[str, Question]]:
        """Yield the questions, with the line of each; those of the first filter, if the harness has several."""
        first_filter, seen = None, set[str]()
        for number, record in read_records(self.path, self.max_memory, self.check_memory):
            place = f"line {number}"
            missing = [name for name in ("doc_id", "doc", "arguments", "filtered_resps") if name not in record]
            if missing:
                raise self.error(
                    f"{place} has no {', '.join(missing)}, so it is not a per-sample log: {self.how_to_record}"
                )
            name = json.dumps(record.get("filter"))
            first_filter = name if first_filter is None else first_filter
            if name != first_filter:
                if not self.remarks:
                    self.remarks.append(f"several filters: only {shortened(first_filter)} was read")
                continue
            question = self._question(place, record)
            if question.doc_id in seen:
                raise self.error(f"{place}: document {question.doc_id} occurs more than once")
            seen.add(question.doc_id)
            yield place, question

    def _question(self, place: str, record: dict[str, Any]) -> Question:
        log_probs = [self._log_prob(place, response) for response in self._list(place, record, "filtered_resps")]
        arguments = self._arguments(place, record["arguments"])
        if len(arguments) != len(log_probs):
            raise self.error(f"{place} has {quantity(len(arguments), 'argument')}, but {len(log_probs)} filtered_resps")
        recorded = {score: record[metric] for score, metric in self.metrics.items() if metric in record}
        for metric, accuracy in recorded.items():
            if isinstance(accuracy, bool) or not isinstance(accuracy, int | float):
                raise self.error(f"{place}: the accuracy of {metric} must be a number, got {_short(accuracy)}")
        half = len(arguments) // 2
        unconditional: list[float] = []
        if _has_unconditional(arguments):
            log_probs, unconditional, arguments = log_probs[:half], log_probs[half:], arguments[:half]
        if len(log_probs) < 2:
            raise NotMultipleChoice(
                f"{self.path}: {place} has {quantity(len(log_probs), 'option')}; only tasks with output_type "
                "multiple_choice can be evaluated"
            )
        fields = record["doc"] if isinstance(record["doc"], dict) else {}
        right = _right(record.get("target"), arguments, log_probs, recorded.get("sum"))
        texts = [text for _, text in arguments]
        doc_id = shortened(str(record["doc_id"]))
        return Question(doc_id, log_probs, right, texts, unconditional, recorded, fields)

    def _log_prob(self, place: str, response: Any) -> float:
        """Return the log-probability of ``[log-probability, is greedy]``, in the forms of different versions."""
        while isinstance(response, list) and len(response) == 1:
            response = response[0]
        number = None
        if isinstance(response, list) and len(response) == 2:
            number = response[0]
        elif isinstance(response, str) and (match := PAIR.fullmatch(response)):
            number = match[1]
        try:
            if number is None or isinstance(number, bool | list | dict):
                raise ValueError
            return float(number)
        except (ValueError, OverflowError):
            raise NotMultipleChoice(
                f"{self.path}: {place}: filtered_resps must be log-probabilities, got {_short(response)}; only tasks "
                "with output_type multiple_choice can be evaluated"
            ) from None

    def _arguments(self, place: str, arguments: Any) -> list[tuple[str, str]]:
        """Return context and option of each request, in the forms of different versions."""
        if isinstance(arguments, dict):
            names = [f"gen_args_{i}" for i in range(len(arguments))]
            if all(isinstance(arguments.get(name), dict) for name in names):
                arguments = [[arguments[name].get("arg_0"), arguments[name].get("arg_1")] for name in names]
        pairs: list[Any] = arguments if isinstance(arguments, list) else [None]
        if not all(isinstance(p, list) and len(p) >= 2 and all(isinstance(t, str) for t in p[:2]) for p in pairs):
            raise NotMultipleChoice(
                f"{self.path}: {place}: arguments must be pairs of context and option; only tasks with output_type "
                "multiple_choice can be evaluated"
            )
        return [(context, text) for context, text, *_ in pairs]

    def _list(self, place: str, record: dict[str, Any], name: str) -> list[Any]:
        if not isinstance(record[name], list):
            raise self.error(f"{place}: {name} must be a list, got {_short(record[name])}")
        items: list[Any] = record[name]
        return items


def _has_unconditional(arguments: list[tuple[str, str]]) -> bool:
    """Whether the second half repeats the options without the question, as the harness does for acc_mutual_info."""
    half = len(arguments) // 2
    first, second = arguments[:half], arguments[half:]
    same = len(first) == len(second) and all(a[1] == b[1] for a, b in zip(first, second, strict=True))
    return same and not any(context for context, _ in second) and any(context for context, _ in first)


def _right(target: Any, arguments: list[tuple[str, str]], log_probs: list[float], acc: float | None) -> int | str:
    """Return the index of the right option, or why it is not known."""
    texts = [text.strip() for _, text in arguments]
    number = len(texts)
    if len(set(texts)) == 1:  # the options are in the contexts, and the log does not name the right one
        if number == 2 and acc in (0, 1):
            chosen = int(np.argmax(log_probs))
            return chosen if acc == 1 else 1 - chosen
        return UNKNOWN
    if isinstance(target, str) and re.fullmatch(r"\[[\d, ]{0,1000}\]", target):
        target = json.loads(target) if re.fullmatch(r"\[\d{1,9}(?:, \d{1,9})*\]", target) else None
    if isinstance(target, list):
        if len(target) != 1:
            return SEVERAL
        target = target[0]
    if isinstance(target, str) and re.fullmatch(r"[0-9]{1,9}", target):
        target = int(target)
    if isinstance(target, int) and not isinstance(target, bool):
        return target if 0 <= target < number else UNKNOWN
    same = [i for i, text in enumerate(texts) if isinstance(target, str) and text == target.strip()]
    return same[0] if len(same) == 1 else UNKNOWN


def _short(value: Any) -> str:
    return shortened(repr(value))
