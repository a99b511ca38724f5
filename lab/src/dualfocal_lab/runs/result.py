"""The result of a finished run: the content of ``result.json`` as typed objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Self

from dualfocal.metrics import METRICS, Evaluation
from dualfocal.tables import Table
from dualfocal_lab.checks import finite
from dualfocal_lab.runs.layout import SCHEMA, RunError

PARTS = ("val", "test")
KINDS: dict[type | UnionType, str] = {
    str: "text",
    str | None: "text or null",
    int: "a whole number",
    int | float: "a number",
    list: "a list",
    dict: "an object",
}
# Types of the fields of the file, except the metrics.
FIELDS: dict[str, type | UnionType] = {
    "data": str,
    "num_classes": int,
    "in_channels": int,
    "num_weights": int,
    "epochs": int,
    "weights_of_epoch": int,
    "seconds": int | float,
    "notes": list,
    "device": str,
    "versions": dict,
    "commit": str | None,
    "sessions": list,
}


@dataclass(frozen=True)
class Scaled:
    """Metrics after temperature scaling, with the temperature fitted on the validation split."""

    temperature: float
    parts: dict[str, Evaluation]  # metrics of "val" and "test"

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        return {"temperature": self.temperature, **{name: part.to_dict() for name, part in self.parts.items()}}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a finished run: metrics before and after temperature scaling, and how they were computed.

    Attributes:
        data: Description of the data set, in one line.
        num_classes: Number of classes.
        in_channels: Number of input channels of the model.
        num_weights: Number of weights of the model.
        epochs: Number of training epochs.
        weights_of_epoch: The epoch whose weights were kept.
        parts: Metrics of the splits ``"val"`` and ``"test"``, if the data set has them.
        calibrated: Metrics after temperature scaling, for each of ``TEMPERATURES``; empty without a validation split.
        seconds: Training time.
        notes: Remarks on the run that a reader of the numbers should know.
        device: Device of the training.
        versions: Versions of the packages.
        commit: Git commit of the code, if known.
        sessions: Device, settings and versions of each session; a resumed run has several.
        source: The file of the result, for error messages.
    """

    data: str
    num_classes: int
    in_channels: int
    num_weights: int
    epochs: int
    weights_of_epoch: int
    parts: dict[str, Evaluation]
    calibrated: dict[str, Scaled]
    seconds: float
    notes: list[str]
    device: str
    versions: dict[str, str]
    commit: str | None
    sessions: list[dict[str, Any]]
    source: str = field(default="the result", compare=False, repr=False)

    @property
    def main_part(self) -> str | None:
        """The split to show: ``"test"`` if it exists, else ``"val"``, else None."""
        return next((part for part in ("test", "val") if part in self.parts), None)

    def table(self, part: str) -> Table:
        """Return a table of the metrics of a split, uncalibrated and after temperature scaling."""
        columns = {"uncalibrated": self.evaluation(part)}
        for name, scaled in self.calibrated.items():
            by = "ECE" if name == "temperature_ece" else "NLL"
            columns[f"T = {scaled.temperature:.3g}, by {by}"] = scaled.parts[part]
        rows = []
        for name, metric in METRICS.items():
            rows.append([metric.heading, *(metric.text(finite(getattr(scores, name))) for scores in columns.values())])
            if name == "ece":
                floors = [self.floor("ece", part), *(self.floor("ece", part, by) for by in self.calibrated)]
                rows.append(["  floor [%]", *map(metric.text, floors)])
        title = f"{part} part, weights of epoch {self.weights_of_epoch}, {self.seconds:.1f} s of training"
        return Table(["", *columns], rows, title)

    def evaluation(self, part: str = "test", scaled_by: str | None = None) -> Evaluation:
        """Return the metrics of a split, uncalibrated or after temperature scaling.

        Args:
            part: ``"val"`` or ``"test"``.
            scaled_by: a key of ``calibrated`` (None: uncalibrated).

        Raises:
            RunError: the data set has no such split, or no validation split to fit a temperature on.
        """
        parts = self.parts if scaled_by is None else self._scaled(scaled_by).parts
        if part not in parts:
            raise RunError(f"{self.source}: has no metrics of a {part} part")
        return parts[part]

    def floor(self, metric: str, part: str = "test", scaled_by: str | None = None) -> float:
        """Return the mean noise floor of a calibration error: its value for a perfectly calibrated model, by chance.

        Raises:
            RunError: see :meth:`evaluation`, or the metric has no floor.
        """
        inference = self.evaluation(part, scaled_by).inference
        if inference is None or metric not in inference.floors:
            raise RunError(f"{self.source}: has no floor of {metric} for the {part} part")
        return inference.floors[metric].mean

    def temperature(self, fitted_by: str = "temperature") -> float:
        """Return the temperature fitted on the validation split.

        Args:
            fitted_by: a key of ``calibrated``.

        Raises:
            RunError: the data set has no validation split.
        """
        return self._scaled(fitted_by).temperature

    def _scaled(self, name: str) -> Scaled:
        if name not in self.calibrated:
            raise RunError(f"{self.source}: has no {name}, which is fitted on a validation split")
        return self.calibrated[name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON, which :meth:`from_dict` reads."""
        metrics: dict[str, Any] = {name: part.to_dict() for name, part in self.parts.items()}
        if self.calibrated:
            metrics["calibrated"] = {name: scaled.to_dict() for name, scaled in self.calibrated.items()}
        plain = [(name, getattr(self, name)) for name in FIELDS]
        position = list(FIELDS).index("seconds")
        return {"schema": SCHEMA, **dict(plain[:position]), **metrics, **dict(plain[position:])}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the result") -> Self:
        """Read the output of :meth:`to_dict`: ``from_dict(content).to_dict() == content``.

        Raises:
            RunError: a field is missing or has another type; the message names the source and the field.
        """
        try:
            plain = {name: content[name] for name in FIELDS}
            for name, kind in FIELDS.items():
                if not isinstance(plain[name], kind):
                    raise TypeError(f"{name} must be {KINDS[kind]}, got {plain[name]!r}")
            scaled = {
                name: Scaled(float(entry["temperature"]), _parts(entry))
                for name, entry in content.get("calibrated", {}).items()
            }
            return cls(**plain, parts=_parts(content), calibrated=scaled, source=source)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            lacks = "it lacks " if isinstance(error, KeyError) else ""
            raise RunError(f"{source}: is damaged: {lacks}{error}") from error


def _parts(content: Mapping[str, Any]) -> dict[str, Evaluation]:
    return {name: Evaluation.from_dict(content[name]) for name in PARTS if name in content}
