"""Results of runs that were never trained."""

from collections.abc import Mapping
from typing import Any

from dualfocal.metrics import Evaluation
from dualfocal_lab.runs import RunResult
from dualfocal_lab.runs.result import Scaled


def make_result(
    parts: Mapping[str, Evaluation], calibrated: Mapping[str, Scaled] | None = None, **fields: Any
) -> RunResult:
    """A result with these metrics; the other fields have some value."""
    plain: dict[str, Any] = {
        "data": "some data",
        "num_classes": 10,
        "in_channels": 3,
        "num_weights": 1000,
        "epochs": 2,
        "weights_of_epoch": 2,
        "seconds": 1.5,
        "notes": [],
        "device": "some device, 2 cores",
        "versions": {"dualfocal": "0"},
        "commit": None,
        "sessions": [],
    }
    return RunResult(parts=dict(parts), calibrated=dict(calibrated or {}), **plain | fields)
