"""Result and report of a fit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from dualfocal.calibrators.notes import Note
from dualfocal.metrics.result import finite

MIN_SAMPLES = 20  # a fit to fewer samples is mostly noise


@dataclass(frozen=True)
class FitReport:
    """Summary of a fit. The NLL values are in-sample, so they are optimistic.

    Attributes:
        num_samples: number of samples of the fit.
        num_classes: number of classes.
        nll_before: NLL of the uncalibrated predictions, in nats.
        nll_after: NLL of the calibrated predictions, in nats.
        argmax_changed: number of samples whose predicted class changed.
        iterations: number of iterations; None if the method does not iterate.
        gradient: largest gradient entry at the end of the iteration; None if the method does not iterate.
        converged: whether the iteration converged.
        notes: what was unusual about the data, and how the fit handled it.
    """

    num_samples: int
    num_classes: int
    nll_before: float
    nll_after: float
    argmax_changed: int
    iterations: int | None
    gradient: float | None
    converged: bool
    notes: tuple[Note, ...]

    def caution(self) -> str:
        """Warning that there were too few samples; empty if there were enough.

        Raises:
            ValueError: there were too few samples, and they do not determine the parameters.
        """
        if self.num_samples >= MIN_SAMPLES:
            return ""
        few = f"{self.num_samples} sample{'s' if self.num_samples > 1 else ''}"
        if findings := [note.finding for note in self.notes if note.kind in ("all_correct", "no_help")]:
            raise ValueError(f"cannot fit a calibrator to {few}: {findings[0]}; use at least {MIN_SAMPLES} samples")
        return f"a calibrator fitted to {few} is mostly noise; use at least {MIN_SAMPLES} samples"

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable dictionary; values that are not finite become None."""
        content = {name: finite(value) if isinstance(value, float) else value for name, value in vars(self).items()}
        return content | {"notes": list(map(str, self.notes))}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`; notes keep only their text."""
        losses = {name: math.inf if content[name] is None else content[name] for name in ("nll_before", "nll_after")}
        return cls(**{**content, **losses, "notes": tuple(Note("saved", saved=text) for text in content["notes"])})

    def __str__(self) -> str:
        lines = [
            f"{self.num_samples:,} samples, {self.num_classes} classes: NLL {self.nll_before:.4f} before, "
            f"{self.nll_after:.4f} after calibration (on the data used for the fit)",
            f"{self.argmax_changed:,} of {self.num_samples:,} predicted classes changed",
        ]
        if self.iterations is not None:
            state = "converged" if self.converged else "did NOT converge"
            lines.append(f"{state} in {self.iterations} iterations, gradient {self.gradient:.1e}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Fit:
    """Result of ``_fit``: the learned buffers, and details for the :class:`FitReport`."""

    learned: dict[str, Tensor]
    iterations: int | None = None
    gradient: float | None = None
    converged: bool = True
    notes: tuple[Note, ...] = ()
    nll: tuple[float, float] | None = None  # before and after, if known; then no argmax changes
