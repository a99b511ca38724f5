"""Multiple-choice questions, whose number of options may differ: calibration of the chosen option, by task and overall.

A question is one sample. Its options have scores, such as log-probabilities; their softmax gives the probability of
each option. The prediction is the option with the highest probability, and this probability is its confidence.

If all questions have the same number of options, a class is a position: class 0 is the option that is listed first. The
class-wise test then finds position bias, such as a model that prefers the first option. It is left out if the right
option is always at the same position, because then the position alone gives the answer.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualfocal.checks import check_count
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.inference_result import holm
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.ranking import RiskCoverage
from dualfocal.metrics.result import Evaluation, inference_of
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan
from dualfocal.metrics.several import named_errors, tracked
from dualfocal.tables import Table, quantity

COVERAGES = (0.8, 0.9, 0.95)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # names of positions; with more options, positions are not evaluated

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)  # == of arrays is not a bool
class Choices:
    """The options of N questions, question after question.

    Args:
        scores: score of each option, such as its log-probability, ``(M,)``; the softmax over the options of a question
            gives their probabilities.
        num_options: number of options of each question, ``(N,)``, at least 2; their sum is M.
        right: index of the right option of each question, ``(N,)``.
        clusters: cluster of each question, such as the passage that it is about, ``(N,)`` whole numbers (None: the
            questions are independent).

    Raises:
        ValueError: shapes do not fit, a score is NaN or above all limits, or all scores of a question are -inf.

    >>> questions = Choices([-1.0, -3.0, -2.0, -2.0, -9.0], [2, 3], [0, 1])
    >>> [round(float(p), 3) for p in questions.probs()]
    [0.881, 0.119, 0.5, 0.5, 0.0]
    """

    scores: Array
    num_options: Array
    right: Array
    clusters: Array | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", np.asarray(self.scores, np.float64))
        for name in ("num_options", "right"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.int64))
        if len(self.num_options) == 0:
            raise ValueError("there are no questions")
        if self.num_options.min() < 2:
            raise ValueError(f"a question needs at least 2 options, got {self.num_options.min()}")
        if self.scores.shape != (self.num_options.sum(),):
            raise ValueError(f"num_options add up to {self.num_options.sum()}, but scores have {self.scores.shape}")
        if self.right.shape != self.num_options.shape or ((self.right < 0) | (self.right >= self.num_options)).any():
            raise ValueError("right must be the index of an option of each question")
        if np.isnan(self.scores).any() or not np.isfinite(self._peak()).all():
            raise ValueError("scores must not be NaN or inf, and at least one score of a question must be finite")

    @property
    def first(self) -> Array:
        """Index of the first option of each question."""
        return np.cumsum(self.num_options) - self.num_options

    @property
    def chosen(self) -> Array:
        """Index of the option with the highest score of each question; ties go to the first."""
        is_best = self.scores == self._spread(self._peak())
        index = np.arange(len(self.scores)) - self._spread(self.first)
        best: Array = np.minimum.reduceat(np.where(is_best, index, len(self.scores)), self.first)
        return best

    def probs(self) -> Array:
        """Return the probabilities of the options, which sum to 1 over each question."""
        weight = np.exp(self.scores - self._spread(self._peak()))
        probs: Array = weight / self._spread(np.add.reduceat(weight, self.first))
        return probs

    def odds_against(self) -> Array:
        """Return (1 - confidence) / confidence of each question, with full precision near 0."""
        weight = np.exp(self.scores - self._spread(self._peak()))
        weight[self.first + self.chosen] = 0.0
        odds: Array = np.add.reduceat(weight, self.first)
        return odds

    def nll(self) -> float:
        """Return the mean negative log-probability of the right options, in nats; infinite if one has probability 0."""
        shifted = self.scores - self._spread(self._peak())
        log_sum = np.log(np.add.reduceat(np.exp(shifted), self.first))
        return float((log_sum - shifted[self.first + self.right]).mean())

    def brier(self) -> float:
        """Return the mean over questions of the sum over options of (probability - 1 if right else 0)^2."""
        error = self.probs()
        error[self.first + self.right] -= 1
        return float((error**2).sum() / len(self.right))

    def _peak(self) -> Array:
        peak: Array = np.maximum.reduceat(self.scores, self.first)
        return peak

    def _spread(self, values: Array) -> Array:
        return np.repeat(values, self.num_options)


def merge_choices(tasks: Sequence[Choices]) -> Choices:
    """Join the questions of several tasks. If one of them has clusters, a question of another is its own cluster."""
    clusters, offset = list[Array](), 0
    for task in tasks:
        codes = (
            np.arange(len(task.right)) if task.clusters is None else np.unique(task.clusters, return_inverse=True)[1]
        )
        clusters.append(codes + offset)
        offset += len(task.right)
    return Choices(
        np.concatenate([task.scores for task in tasks]),
        np.concatenate([task.num_options for task in tasks]),
        np.concatenate([task.right for task in tasks]),
        None if all(task.clusters is None for task in tasks) else np.concatenate(clusters),
    )


@dataclass(frozen=True)
class Position:
    """How often one position of the options is chosen, and how often it is right, as shares of all questions."""

    name: str
    chosen: float
    probability: float  # mean probability of the option at this position
    right: float


@dataclass(frozen=True)
class ChoiceEvaluation(Printed):
    """Metrics of multiple-choice questions. ``print`` it, or see :meth:`to_dict`.

    Args:
        evaluation: every metric. NLL and Brier score are over the options. If the number of options differs, what needs
            classes is NaN.
        num_options: smallest and largest number of options.
        selective_accuracy: coverage -> accuracy among that share of the questions, the most confident ones.
        positions: statistics of the positions A, B, ..., if they were evaluated.
        p_adjusted: joint p-value of the tests of this task, adjusted for the number of tasks (Holm); None without
            inference and for all tasks together.
    """

    evaluation: Evaluation
    num_options: tuple[int, int]
    selective_accuracy: Mapping[float, float]
    positions: tuple[Position, ...] = ()
    p_adjusted: float | None = None

    def verdict(self) -> str:
        """Say whether the confidences and, if they were evaluated, the positions are calibrated."""
        # If positions are no classes, nothing is missing: only the confidence can be tested.
        evaluation = replace(self.evaluation, confidence_only=False)
        return evaluation.verdict([position.name for position in self.positions])

    def table(self) -> Table:
        """Return a table of the metrics, with the accuracy among the most confident questions at the end."""
        table = self.evaluation.table()
        low, high = self.num_options
        options = quantity(low, "option") if low == high else f"{low} to {high} options"
        title = f"{quantity(self.evaluation.num_samples, 'question')}, {options}"
        if (inference := self.evaluation.inference) is not None and inference.clusters is not None:
            title += f", {quantity(inference.clusters.number, 'cluster')}"
        empty = [""] * (len(table.headings) - 2)
        accuracies = [
            [f"accuracy of the {100 * coverage:g} % most confident [%]", f"{100 * accuracy:.2f}", *empty]
            for coverage, accuracy in self.selective_accuracy.items()
        ]
        return replace(table, rows=[*table.rows, *accuracies], title=title)

    def position_table(self) -> Table:
        """Return a table of the positions, in percent."""
        rows = [
            [position.name, *(f"{100 * x:.1f}" for x in (position.chosen, position.probability, position.right))]
            for position in self.positions
        ]
        return Table(["position", "chosen %", "mean probability %", "right %"], rows, "positions of the options")

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON, as fractions."""
        return {
            **self.evaluation.to_dict(),
            "num_options": list(self.num_options),
            "selective_accuracy": {f"{coverage:g}": value for coverage, value in self.selective_accuracy.items()},
            "positions": [asdict(position) for position in self.positions],
            **({} if self.p_adjusted is None else {"p_adjusted": self.p_adjusted}),
            **({} if self.evaluation.inference is None else {"verdict": self.verdict()}),
        }

    def _tables(self) -> list[Table]:
        return [self.table(), self.position_table()] if self.positions else [self.table()]

    def _verdicts(self) -> list[str]:
        return [] if self.evaluation.inference is None else [self.verdict()]


def evaluate_choices(
    choices: Choices,
    *,
    num_bins: int = 15,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> ChoiceEvaluation:
    """Evaluate multiple-choice questions.

    Args:
        choices: scores and right options of the questions.
        num_bins: see :func:`~dualfocal.metrics.evaluate`.
        inference: see :func:`~dualfocal.metrics.evaluate`.
        level: see :func:`~dualfocal.metrics.evaluate`.
        draws: see :func:`~dualfocal.metrics.evaluate`.
        seed: see :func:`~dualfocal.metrics.evaluate`.

    >>> generator = np.random.default_rng(0)
    >>> scores, right = generator.normal(size=(500, 4)), generator.integers(4, size=500)
    >>> result = evaluate_choices(Choices(scores.ravel(), np.full(500, 4), right), inference=True)
    >>> print(result.verdict())  # doctest: +ELLIPSIS
    Over-confident: ECE is ... points; a calibrated model would show ... by chance (p < 0.001). Class probabilities: ...
    """
    check_count("draws", draws, 100)
    return _evaluate(choices, num_bins, Settings(level, draws, seed) if inference else None, warn=True)


def _evaluate(choices: Choices, num_bins: int, settings: Settings | None, *, warn: bool) -> ChoiceEvaluation:
    """Evaluate questions; ``warn``: of copies among them."""
    low, high = int(choices.num_options.min()), int(choices.num_options.max())
    right = choices.chosen == choices.right
    confidence = 1 / (1 + choices.odds_against())
    curve = RiskCoverage.from_confidence(confidence, right)
    positions: tuple[Position, ...] = ()
    by_position = low == high <= len(LETTERS) and bool((choices.right != choices.right[0]).any())
    if by_position:
        positions = _positions(choices)
        scores = choices.scores.reshape(-1, low)
        samples = Samples.from_arrays(scores, choices.right, input="logits", clusters=choices.clusters)
    else:
        right_or_wrong = right.astype(np.int64)
        samples = Samples.from_arrays(confidence, right_or_wrong, input="confidence", clusters=choices.clusters)
    if warn and settings is not None and choices.clusters is None and (problem := copies_warning(samples)) is not None:
        warnings.warn(problem, stacklevel=3)
    stats = scan(samples, num_bins=num_bins, scores=True, classwise=by_position)
    evaluation = evaluate_samples(samples, stats, num_bins, settings=settings)
    if not by_position:
        evaluation = replace(evaluation, nll=choices.nll(), brier=choices.brier(), aurc=curve.area())
    selective = {coverage: 1 - curve.risk(coverage) for coverage in COVERAGES}
    return ChoiceEvaluation(evaluation, (low, high), selective, positions)


def evaluate_tasks(
    tasks: Mapping[str, Choices],
    *,
    num_bins: int = 15,
    inference: bool = False,
    level: float = 0.9,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> tuple[ChoiceEvaluation, dict[str, ChoiceEvaluation]]:
    """Evaluate all questions together, and each task with p-values adjusted for the number of tasks (Holm).

    Args:
        tasks: name of the task -> its questions.
        num_bins: see :func:`~dualfocal.metrics.evaluate`.
        inference: see :func:`~dualfocal.metrics.evaluate`.
        level: see :func:`~dualfocal.metrics.evaluate`.
        seed: see :func:`~dualfocal.metrics.evaluate`.
        progress: called with the share of the tasks that are done.

    Raises:
        ValueError: a task cannot be evaluated; the message names it.
    """
    settings = Settings(level=level, seed=seed) if inference else None
    overall = _evaluate(merge_choices(list(tasks.values())), num_bins, settings, warn=True)
    results: dict[str, ChoiceEvaluation] = {}
    for name, choices in tracked(tasks.items(), progress):
        with named_errors(f"task {name}"):
            many = None if settings is None else replace(settings, tests=len(tasks))
            results[name] = _evaluate(choices, num_bins, many, warn=False)
    if not inference:
        return overall, results
    p_values = [inference_of(result.evaluation).joint_p_value for result in results.values()]
    adjusted = zip(results.items(), holm(p_values), strict=True)
    return overall, {name: replace(result, p_adjusted=p) for (name, result), p in adjusted}


def _positions(choices: Choices) -> tuple[Position, ...]:
    number = int(choices.num_options[0])
    probability = choices.probs().reshape(-1, number).mean(0)
    shares = [np.bincount(index, minlength=number) / len(index) for index in (choices.chosen, choices.right)]
    rows = zip(LETTERS[:number], shares[0].tolist(), probability.tolist(), shares[1].tolist(), strict=True)
    return tuple(Position(*row) for row in rows)
