"""The result of a finished run, typed: what ``result.json`` holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dualfocal.metrics import Evaluation

SCHEMA = 1
PARTS = ("val", "test")


@dataclass(frozen=True)
class Scaled:
    """The parts of the data after temperature scaling, fitted on the validation part."""

    temperature: float
    parts: dict[str, Evaluation]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; :meth:`from_dict` reads it."""
        return {"temperature": self.temperature, **{name: part.to_dict() for name, part in self.parts.items()}}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(float(content["temperature"]), _parts(content))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Metrics of the validation and the test part, before and after temperature scaling, and how they came about."""

    data: str
    """The data set, in one line."""
    num_classes: int
    in_channels: int
    num_weights: int
    epochs: int
    weights_of_epoch: int
    """The epoch whose weights were kept."""
    parts: dict[str, Evaluation]
    """``"val"`` and ``"test"``, as far as the data set has them."""
    calibrated: dict[str, Scaled]
    """``"temperature"`` (by NLL) and ``"temperature_ece"`` (by ECE over the published grid); empty without ``"val"``."""
    seconds: float
    notes: list[str]
    """What the numbers should be read with."""
    device: str
    versions: dict[str, str]
    commit: str | None
    sessions: list[dict[str, Any]]
    """Where and with what each stretch of the training was done."""

    def evaluation(self, part: str = "test", scaled_by: str | None = None) -> Evaluation:
        """The metrics of a part, as trained or after temperature scaling (a key of ``calibrated``).

        Raises:
            KeyError: the data set has no such part, or no validation part to fit a temperature on.
        """
        return (self.parts if scaled_by is None else self.calibrated[scaled_by].parts)[part]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; :meth:`from_dict` reads it."""
        before = ("data", "num_classes", "in_channels", "num_weights", "epochs", "weights_of_epoch")
        after = ("seconds", "notes", "device", "versions", "commit", "sessions")
        content: dict[str, Any] = {"schema": SCHEMA, **{name: getattr(self, name) for name in before}}
        content |= {name: part.to_dict() for name, part in self.parts.items()}
        if self.calibrated:
            content["calibrated"] = {name: scaled.to_dict() for name, scaled in self.calibrated.items()}
        return content | {name: getattr(self, name) for name in after}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ValueError: it has another schema, or lacks something; the message names it.
        """
        if content.get("schema") != SCHEMA:
            raise ValueError(f"has schema {content.get('schema')}, this version of dualfocal reads schema {SCHEMA}")
        computed = ("parts", "calibrated")
        try:
            return cls(
                **{name: content[name] for name in cls.__dataclass_fields__ if name not in computed},
                parts=_parts(content),
                calibrated={name: Scaled.from_dict(one) for name, one in content.get("calibrated", {}).items()},
            )
        except KeyError as error:
            raise ValueError(f"is damaged: it lacks {error}") from error
        except (TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"is damaged: {error}") from error


def _parts(content: Mapping[str, Any]) -> dict[str, Evaluation]:
    return {name: Evaluation.from_dict(content[name]) for name in PARTS if name in content}
