"""Load the answers of a language model to multiple-choice questions from the logs of an evaluation harness.

Log-probabilities of the options are turned into scores by a named convention (:data:`CHOICE_SCORES`):

- ``"sum"``: the log-probability of the option, summed over its tokens. Its accuracy is ``acc`` of
  lm-evaluation-harness, and ``accuracy`` of inspect_ai if the model answered with its most probable letter.
- ``"per-char"``: the sum divided by the number of characters of the option: ``acc_norm``.
- ``"per-byte"``: the sum divided by the number of bytes of the option in UTF-8: ``acc_bytes``.
- ``"mutual-info"``: the sum minus the log-probability of the option without the question: ``acc_mutual_info``.

The probabilities of the options are the softmax of these scores over the options of the question.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dualfocal.checks import check_choice
from dualfocal.metrics.choices import Choices
from dualfocal.predictions._formats.interface import PredictionsError, one_line_errors
from dualfocal.predictions._logs.builder import TaskBuilder
from dualfocal.predictions._logs.inspect import InspectLog
from dualfocal.predictions._logs.lm_eval import LmEvalLog, NotMultipleChoice
from dualfocal.predictions._logs.log import ChoiceLog

CHOICE_SCORES = ("sum", "per-char", "per-byte", "mutual-info")
LOGS: dict[str, type[ChoiceLog]] = {"lm-eval": LmEvalLog, "inspect": InspectLog}
METRICS = {name: log.metrics for name, log in LOGS.items()}  # names in the logs of the accuracy of each score


@dataclass(frozen=True, eq=False)  # == of arrays is not a bool
class ChoicePredictions:
    """The answers of a model to the questions of one task; options lie in one array, question after question.

    Args:
        task: name of the task.
        path: the log.
        format: ``"lm-eval"`` or ``"inspect"``.
        log_probs: log-probability of each option, ``(M,)``.
        num_options: number of options of each question, ``(N,)``.
        right: index of the right option of each question, ``(N,)``.
        doc_ids: document of each question.
        lengths: ``"per-char"`` and ``"per-byte"`` -> length of each option, ``(M,)``; empty if not recorded.
        unconditional: log-probability of each option without the question, ``(M,)`` (None: not recorded).
        recorded: score -> the accuracy that the log has for each question, ``(N,)``; NaN where it has none.
        clusters: cluster of each question, ``(N,)`` (None: independent).
        cluster_name: where the clusters come from.
        left_out: reason -> number of questions that were left out.
        remarks: other remarks of the reader.
    """

    task: str
    path: Path
    format: str
    log_probs: NDArray[np.float64]
    num_options: NDArray[np.int64]
    right: NDArray[np.int64]
    doc_ids: tuple[str, ...]
    lengths: Mapping[str, NDArray[np.int64]]
    unconditional: NDArray[np.float64] | None
    recorded: Mapping[str, NDArray[np.float64]]
    clusters: NDArray[np.int64] | None = None
    cluster_name: str | None = None
    left_out: Mapping[str, int] | None = None
    remarks: tuple[str, ...] = ()

    def choices(self, score: str = "sum") -> Choices:
        """Return the questions with their scores by a convention of :data:`CHOICE_SCORES`.

        Raises:
            PredictionsError: the log does not have what the convention needs.
        """
        check_choice("the score of options (--choice-score)", score, CHOICE_SCORES)
        scores = self.log_probs
        if score == "mutual-info":
            if self.unconditional is None:
                raise PredictionsError(
                    f"{self.path}: --choice-score mutual-info needs log-probabilities of the options without the "
                    "question: add acc_mutual_info to metric_list of the task, and run the harness again"
                )
            scores = scores - self.unconditional
        elif score != "sum":
            scores = scores / self._lengths(score)
        return Choices(scores, self.num_options, self.right, self.clusters)

    def disagreement(self, score: str = "sum") -> tuple[int, int]:
        """Return how many questions have a recorded accuracy for this score, and for how many of them ours differs."""
        recorded = self.recorded.get(score, np.full(len(self.right), np.nan))
        choices = self.choices(score)
        known = ~np.isnan(recorded)
        return int(known.sum()), int(((choices.chosen == choices.right) != recorded)[known].sum())

    def _lengths(self, score: str) -> NDArray[np.int64]:
        if score not in self.lengths:
            raise PredictionsError(
                f"{self.path}: --choice-score {score} does not apply to logs of inspect_ai, where an option is one "
                "letter: use --choice-score sum"
            )
        lengths = self.lengths[score]
        if (lengths == 0).any():
            question = np.repeat(np.arange(len(self.right)), self.num_options)[lengths == 0][0]
            raise PredictionsError(
                f"{self.path}: --choice-score {score} divides by the length of each option, but document "
                f"{self.doc_ids[question]} has an empty option: use --choice-score sum"
            )
        return lengths


def load_choices(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    format: str,
    cluster: str | None = None,
    max_memory: int | str | None = None,
) -> list[ChoicePredictions]:
    """Read the logs of one model: one result per task.

    Args:
        paths: logs, or folders that hold them. For ``"lm-eval"`` ``samples_*.jsonl``, which the harness writes with
            ``--log_samples``; for ``"inspect"`` ``.json`` and ``.eval``.
        format: ``"lm-eval"`` or ``"inspect"``.
        cluster: field whose value is the same for questions that depend on each other, such as those about one passage:
            a name, or names with dots for nested fields, in ``doc`` (lm-eval) or ``metadata`` (inspect). None: the
            first of ``passage_id``, ``passage``, ``article``, ``paragraph``, ``context``, ``story`` that all questions
            of the task have and some share. ``"none"``: questions are independent.
        max_memory: limit of the memory to read a log, such as ``"8GB"`` (None: half of the free memory).

    Raises:
        PredictionsError: a file is not such a log, is damaged, or has no log-probabilities of options.
    """
    check_choice("--format", format, tuple(LOGS))
    places = [Path(paths)] if isinstance(paths, str | os.PathLike) else list(map(Path, paths))
    tasks: dict[str, ChoicePredictions] = {}
    for path, named in _files(places, LOGS[format]):
        try:
            with one_line_errors(path):
                log = LOGS[format](path, max_memory)
                builder = TaskBuilder(log, cluster)
                for place, question in log.questions():
                    builder.add(place, question)
                builder.check()
        except NotMultipleChoice:
            if named:
                raise
            continue
        if log.task in tasks:
            raise PredictionsError(
                f"{path}: task {log.task!r} was also read from {tasks[log.task].path}: give the logs of one run of one "
                "model"
            )
        tasks[log.task] = ChoicePredictions(log.task, path, format, **builder.content(), remarks=tuple(log.remarks))
    if not tasks:
        raise PredictionsError(f"{', '.join(map(str, places))}: no log of a multiple-choice task found")
    return list(tasks.values())


def _files(paths: list[Path], log: type[ChoiceLog]) -> list[tuple[Path, bool]]:
    """Return the logs, and whether each was named itself rather than found in a folder."""
    files: list[tuple[Path, bool]] = []
    for path in paths:
        if not path.exists():
            raise PredictionsError(f"{path}: there is no such file or folder")
        if not path.is_dir():
            files.append((path, True))
            continue
        inside = sorted(file for pattern in log.patterns for file in path.rglob(pattern) if file.is_file())
        if not inside:
            raise PredictionsError(f"{path}: has no files {' or '.join(log.patterns)}: {log.how_to_record}")
        files += [(file, False) for file in inside]
    return files
