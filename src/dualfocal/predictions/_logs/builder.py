"""Collect the questions of a log into arrays."""

import hashlib
import json
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualfocal.predictions._formats.interface import shortened
from dualfocal.predictions._logs.log import ChoiceLog, Question

NO_CLUSTER = "none"  # of --cluster: questions are independent
CLUSTER_FIELDS = ("passage_id", "passage", "article", "paragraph", "context", "story")
BYTES_PER_OPTION, BYTES_PER_QUESTION = 100, 1500
CHECKED_EVERY = 1 << 20  # bytes
ABOVE_ONE = 0.01  # a log-probability may be above 0 by rounding, at most this much


class TaskBuilder:
    """Collects the questions of one task.

    Args:
        log: the log.
        cluster: field of the clusters, see :func:`~dualfocal.predictions.choices.load_choices`.
    """

    def __init__(self, log: ChoiceLog, cluster: str | None) -> None:
        self.log, self.cluster = log, cluster
        self.log_probs, self.unconditional = array("d"), array("d")
        self.characters, self.bytes = array("q"), array("q")
        self.num_options, self.right = array("q"), array("q")
        self.doc_ids: list[str] = []
        self.recorded: list[Mapping[str, float]] = []
        self.delimiter: str | None = None  # white space before all options of the task
        fields = CLUSTER_FIELDS if cluster is None else (cluster,)
        self.keys: dict[str, list[bytes]] = {name: [] for name in fields if name != NO_CLUSTER}
        self.left_out: Counter[str] = Counter()
        self.checked = 0  # bytes

    def add(self, place: str, question: Question) -> None:
        """Add a question, which ``place`` locates in the file."""
        if isinstance(question.right, str):
            self.left_out[question.right] += 1
            return
        for number in (*question.log_probs, *question.unconditional):
            if math.isnan(number) or number > ABOVE_ONE:
                raise self.log.error(f"{place}: a log-probability must be at most 0, got {number}")
        if not math.isfinite(max(question.log_probs)) or not all(map(math.isfinite, question.unconditional)):
            raise self.log.error(f"{place}: the log-probabilities of all options are -inf")
        self.log_probs.extend(question.log_probs)
        self.unconditional.extend(question.unconditional)
        self.num_options.append(len(question.log_probs))
        self.right.append(question.right)
        self.doc_ids.append(question.doc_id)
        self.recorded.append(question.recorded)
        for text in question.texts:
            blank = text[: len(text) - len(text.lstrip())]
            self.delimiter = blank if self.delimiter is None else self.delimiter
            while not blank.startswith(self.delimiter):
                self.delimiter = self.delimiter[:-1]
            self.characters.append(len(text))
            self.bytes.append(len(text.encode("utf-8", "surrogatepass")))
        self._add_keys(place, question.fields)
        if self._used() > self.checked + CHECKED_EVERY:
            self._check_memory()

    def _add_keys(self, place: str, fields: Mapping[str, Any]) -> None:
        for name in list(self.keys):
            value = field_value(fields, name)
            if value is not None:
                text = json.dumps(value, sort_keys=True)
                self.keys[name].append(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
            elif self.cluster is None:
                del self.keys[name]
            else:
                known = ", ".join(shortened(repr(key)) for key in list(fields)[:12])
                raise self.log.error(
                    f"{place}: --cluster {name}: {self.log.fields_name} has no such field (it has: {known})"
                )

    def _check_memory(self) -> None:
        self.checked = self._used()
        self.log.check_memory(self.checked, at_least=True)

    def _used(self) -> int:
        return BYTES_PER_OPTION * len(self.log_probs) + BYTES_PER_QUESTION * len(self.right)

    def check(self) -> None:
        """Raise an error if there is no question."""
        self._check_memory()
        if not self.right:
            reasons = "; ".join(f"{number} x {reason}" for reason, number in self.left_out.items())
            raise self.log.error(f"no question can be used: {reasons}" if reasons else "has no questions")

    def content(self) -> dict[str, Any]:
        """Return the arrays, by their names in ``ChoicePredictions``."""
        clusters, name = self._clusters()
        total, delimiter = len(self.log_probs), self.delimiter or ""
        lengths = {"per-char": (self.characters, len(delimiter)), "per-byte": (self.bytes, len(delimiter.encode()))}
        scores = sorted({score for recorded in self.recorded for score in recorded})
        return {
            "log_probs": np.array(self.log_probs),
            "num_options": np.array(self.num_options),
            "right": np.array(self.right),
            "doc_ids": tuple(self.doc_ids),
            "lengths": {key: np.array(raw) - blank for key, (raw, blank) in lengths.items() if len(raw) == total},
            "unconditional": np.array(self.unconditional) if len(self.unconditional) == total else None,
            "recorded": {s: np.array([recorded.get(s, np.nan) for recorded in self.recorded]) for s in scores},
            "clusters": clusters,
            "cluster_name": name,
            "left_out": dict(self.left_out),
        }

    def _clusters(self) -> tuple[NDArray[np.int64] | None, str | None]:
        """Return clusters and the name of their field: that of the caller, or the first usual one that questions share.

        Repetitions of a question (epochs) are one cluster.
        """
        for name, keys in self.keys.items():
            if self.cluster is not None or 2 <= len(set(keys)) < len(keys):
                return _codes(keys), name
        if self.cluster is None and 2 <= len(set(self.doc_ids)) < len(self.doc_ids):
            return _codes(self.doc_ids), "repetitions of a question"
        return None, None


def _codes(keys: list[Any]) -> NDArray[np.int64]:
    index = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    return np.array([index[key] for key in keys], np.int64)


def field_value(fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, by its name or by names with dots; None if there is none.

    >>> field_value({"idx": {"paragraph": 7}}, "idx.paragraph")
    7
    """
    if name in fields:
        return fields[name]
    first, _, rest = name.partition(".")
    inner = fields.get(first)
    return field_value(inner, rest) if rest and isinstance(inner, Mapping) else None
