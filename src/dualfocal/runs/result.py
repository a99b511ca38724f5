"""The result of a finished run, typed: the content of ``result.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Self

from dualfocal._table import Table
from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.registry import METRICS
from dualfocal.runs.layout import SCHEMA, RunError

PARTS = ("val", "test")
KINDS: dict[type | UnionType, str] = {
    str: "text",
    str | None: "text or null",
    int: "a whole number",
    int | float: "a number",
    list: "a list",
    dict: "an object",
}
# Fields of the file besides the metrics, and their types.
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
    """The metrics of each part after temperature scaling, fitted on the validation part."""

    temperature: float
    parts: dict[str, Evaluation]

    def to_dict(self) -> dict[str, Any]:
        """Plain content for JSON."""
        return {"temperature": self.temperature, **{name: part.to_dict() for name, part in self.parts.items()}}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Metrics of the validation and the test part, before and after temperature scaling, and how they were made.

    Attributes:
        data: The data set, in one line.
        weights_of_epoch: The epoch whose weights were kept.
        parts: Metrics of ``"val"`` and ``"test"``, as far as the data set has these parts.
        calibrated: The same for each of ``TEMPERATURES``; empty without a validation part.
        seconds: Training time.
        notes: Caveats to read the numbers with.
        sessions: Device, settings and versions of each session; a run that was resumed has several.
        source: The file it was read from, for error messages.
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
        """The part to show: ``"test"`` if there is one, or else ``"val"``; None: there is neither."""
        return next((part for part in ("test", "val") if part in self.parts), None)

    def table(self, part: str) -> Table:
        """Metrics of a part, as trained and after temperature scaling."""
        columns = {"as it is": self.evaluation(part)}
        for name, scaled in self.calibrated.items():
            by = "ECE" if name == "temperature_ece" else "NLL"
            columns[f"T = {scaled.temperature:.3g}, by {by}"] = scaled.parts[part]
        rows = []
        for name, metric in METRICS.items():
            rows.append([metric.heading, *(metric.text(finite(getattr(one, name))) for one in columns.values())])
            if name == "ece":
                floors = [self.floor("ece", part), *(self.floor("ece", part, by) for by in self.calibrated)]
                rows.append(["  floor [%]", *map(metric.text, floors)])
        title = f"{part} part, weights of epoch {self.weights_of_epoch}, {self.seconds:.1f} s of training"
        return Table(["", *columns], rows, title)

    def evaluation(self, part: str = "test", scaled_by: str | None = None) -> Evaluation:
        """Metrics of a part, as trained or after temperature scaling (a key of ``calibrated``).

        Raises:
            RunError: the data set has no such part, or no validation part to fit a temperature on.
        """
        parts = self.parts if scaled_by is None else self._scaled(scaled_by).parts
        if part not in parts:
            raise RunError(f"{self.source}: has no metrics of a {part} part")
        return parts[part]

    def floor(self, metric: str, part: str = "test", scaled_by: str | None = None) -> float:
        """Noise floor of a calibration error: its mean for a perfectly calibrated model with these confidences.

        Raises:
            RunError: as :meth:`evaluation`; or there are no floors.
        """
        inference = self.evaluation(part, scaled_by).inference
        if inference is None or metric not in inference.floors:
            raise RunError(f"{self.source}: has no floor of {metric} for the {part} part")
        return inference.floors[metric].mean

    def temperature(self, fitted_by: str = "temperature") -> float:
        """The temperature fitted on the validation part (a key of ``calibrated``).

        Raises:
            RunError: there is none.
        """
        return self._scaled(fitted_by).temperature

    def _scaled(self, name: str) -> Scaled:
        if name not in self.calibrated:
            raise RunError(f"{self.source}: has no {name}: that is fitted on a validation part")
        return self.calibrated[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain content for JSON; :meth:`from_dict` reads it."""
        metrics: dict[str, Any] = {name: part.to_dict() for name, part in self.parts.items()}
        if self.calibrated:
            metrics["calibrated"] = {name: scaled.to_dict() for name, scaled in self.calibrated.items()}
        plain = [(name, getattr(self, name)) for name in FIELDS]
        place = list(FIELDS).index("seconds")
        return {"schema": SCHEMA, **dict(plain[:place]), **metrics, **dict(plain[place:])}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the result") -> Self:
        """Read what :meth:`to_dict` wrote: ``from_dict(content).to_dict() == content``.

        Raises:
            RunError: something is missing or of another type; the message names the source and the field.
        """
        try:
            plain = {name: content[name] for name in FIELDS}
            for name, kind in FIELDS.items():
                if not isinstance(plain[name], kind):
                    raise TypeError(f"{name} must be {KINDS[kind]}, got {plain[name]!r}")
            scaled = {
                name: Scaled(float(one["temperature"]), _parts(one))
                for name, one in content.get("calibrated", {}).items()
            }
            return cls(**plain, parts=_parts(content), calibrated=scaled, source=source)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            lacks = "it lacks " if isinstance(error, KeyError) else ""
            raise RunError(f"{source}: is damaged: {lacks}{error}") from error


def _parts(content: Mapping[str, Any]) -> dict[str, Evaluation]:
    return {name: Evaluation.from_dict(content[name]) for name in PARTS if name in content}
