"""The result of a report: which of several models is better, or the verdict on one model and what fixes it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualfocal.metrics.inference_result import SIGNIFICANCE
from dualfocal.metrics.model_choice import DECISIVE, NAMES, ModelChoice, choose_model
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.resampling import ShareDone
from dualfocal.metrics.result import finite
from dualfocal.metrics.samples import same_samples
from dualfocal.predictions import Reading
from dualfocal.report.calibrated import Calibration
from dualfocal.report.inputs import ReportInput
from dualfocal.report.tables import Cell, Table, column, number


@dataclass(frozen=True)
class Decision:
    """The result that a page starts with.

    Attributes:
        headline: Which model is better, or the verdict on the only one.
        sentences: What follows: title -> text.
        choice: The paired comparison of several models (None: one model, or models that cannot be paired).
    """

    headline: str
    sentences: dict[str, str]
    choice: ModelChoice | None = None

    def contents(self) -> dict[str, Any]:
        """Return sentences, table and rows of the forest plot."""
        return {
            "sentences": [[title, text] for title, text in self.sentences.items()],
            "best": None if self.choice is None else self.choice.best,
            "table": None if self.choice is None else _table(self.choice),
            "forest": [] if self.choice is None else _forest(self.choice),
        }


def decide(
    sources: Sequence[ReportInput],
    calibrations: Sequence[Calibration],
    reading: Reading,
    progress: ShareDone | None = None,
) -> Decision:
    """Compare several models on the same samples, or sum up what is known about one model."""
    if len(sources) == 1:
        return Decision(*_of_one(sources[0], calibrations[0]))
    sentences = _structure(sources)
    calibration = _miscalibrated(sources)
    first = sources[0]
    different = [source.name for source in sources if not same_samples(first.samples, source.samples)]
    if different:
        problem = (
            f"The models were scored on different samples, so that they cannot be paired: the labels or weights of "
            f"{first.name} and {different[0]} differ."
        )
        return Decision(f"{problem} {calibration}", sentences)
    models = {source.name: (source.samples, source.scanned, source.evaluation) for source in sources}
    try:
        choice = choose_model(models, reading.num_bins, level=reading.level, seed=reading.seed, progress=progress)
    except ValueError as error:  # too few samples or clusters
        return Decision(f"The models cannot be compared: {error}. {calibration}", sentences)
    return Decision(choice.verdict(), {"Calibration": calibration, **sentences}, choice)


def _of_one(source: ReportInput, calibration: Calibration) -> tuple[str, dict[str, str]]:
    """Return verdict, the calibrator that helps, and the verdict on the calibrated model."""
    sentences = {"What fixes it": calibration.advice} if calibration.advice else {}
    if calibration.recommended is not None:
        after = calibration.recommended.evaluation.verdict(source.class_names)
        sentences["What remains"] = f"After {calibration.recommended.name}, on held-out samples: {after}"
    return source.evaluation.verdict(source.class_names), sentences


def _miscalibrated(sources: Sequence[ReportInput]) -> str:
    """Say which models are significantly miscalibrated."""
    names = [
        source.name
        for source in sources
        if source.evaluation.inference is not None and source.evaluation.inference.joint_p_value <= SIGNIFICANCE
    ]
    listed = f": {', '.join(names)}" if names else ""
    return (
        f"{len(names)} of {len(sources)} models are significantly miscalibrated (p ≤ {SIGNIFICANCE}, not adjusted for "
        f"the number of models){listed}."
    )


def _structure(sources: Sequence[ReportInput]) -> dict[str, str]:
    """Say how much information weighted samples carry, or samples in clusters, of each model."""
    weights, clusters = {}, {}
    for source in sources:
        evaluation = source.evaluation
        if evaluation.weights is not None:
            weights[source.name] = evaluation.weights.sentence(evaluation.num_samples)
        if evaluation.inference is not None and evaluation.inference.clusters is not None:
            effective = None if evaluation.weights is None else evaluation.weights.effective
            clusters[source.name] = evaluation.inference.clusters.sentence(evaluation.num_samples, effective)
    texts = {"Weights": _joined(weights, len(sources)), "Clusters": _joined(clusters, len(sources))}
    return {title: text for title, text in texts.items() if text}


def _joined(sentences: Mapping[str, str], models: int) -> str:
    """Join the sentences by model; one that holds for all models is given once, without their names."""
    if len(sentences) == models and len(set(sentences.values())) == 1:
        return next(iter(sentences.values()))
    return " ".join(f"{name}: {sentence}" for name, sentence in sentences.items())


def _table(choice: ModelChoice) -> Table:
    """Return the differences from the best model, a row for each other model."""
    level = f"{100 * choice.level:.4g} %"
    columns = [
        column("model", numeric=False),
        *(
            column(
                f"{NAMES[metric]} [{_unit(metric)}]",
                f"{METRICS[metric].meaning}: this model minus {choice.best}, and the {level} interval; above 0, "
                "this model is worse",
            )
            for metric in DECISIVE
        ),
    ]
    rows: list[list[Cell]] = [
        [other, *(_cell(choice, other, metric) for metric in DECISIVE)] for other in choice.differences
    ]
    caption = f"Differences from {choice.best}, paired by sample"
    return {"caption": caption, "columns": columns, "rows": rows, "sortable": len(rows) > 1}


def _cell(choice: ModelChoice, other: str, metric: str) -> Cell:
    shown, d = METRICS[metric], choice.differences[other][metric]
    if not math.isfinite(d.difference):
        return number(d.difference, shown.decimals, sign=True)
    outcome = {"better": "worse", "worse": "better", "equal": "not significant"}  # of the other model
    ends = f"{shown.text(d.low, sign=True)} to {shown.text(d.high, sign=True)}"
    return number(
        shown.factor * d.difference, shown.decimals, f"{ends}; {outcome[choice.outcome(other, metric)]}", sign=True
    )


def _forest(choice: ModelChoice) -> list[dict[str, Any]]:
    """Return the differences and intervals of the forest plot, in the units of the tables."""
    rows = []
    for metric in DECISIVE:
        factor = METRICS[metric].factor
        for other, differences in choice.differences.items():
            d = differences[metric]
            rows.append(
                {
                    "metric": NAMES[metric],
                    "unit": _unit(metric),
                    "model": other,
                    "difference": finite(factor * d.difference),
                    "low": finite(factor * d.low),
                    "high": finite(factor * d.high),
                    "outcome": choice.outcome(other, metric),
                }
            )
    return rows


def _unit(metric: str) -> str:
    """Return the unit of a difference."""
    return "points" if METRICS[metric].unit == "%" else METRICS[metric].unit
