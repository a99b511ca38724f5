"""The results of a study's runs, checked for what its tables read."""

from pathlib import Path
from typing import Any

from dualfocal.runs import Run, RunError
from dualfocal.runs.layout import RESULT

SCORES = ("error", "nll", "ece", "adaptive_ece", "classwise_ece", "mce")


def result_of(folder: Path) -> dict[str, Any] | None:
    """The result of a run; None: it is not finished.

    Raises:
        RunError: it lacks something, such as what temperature scaling gives; the message names the file.
    """
    result = Run(folder).result
    if result is None:
        return None
    try:
        scaled = result["calibrated"]["temperature"]
        float(scaled["temperature"])
        for part in (of[part] for of in (result, scaled) for part in ("val", "test")):
            for name in SCORES:
                part[name], part["inference"]["floors"]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / RESULT}: is damaged, the tables need what it lacks: {error!r}") from error
    return result


def floor_of(result: dict[str, Any], name: str) -> float:
    """What a perfectly calibrated model would show on the test part; ``ece_t``: after temperature scaling."""
    of = result["calibrated"]["temperature"]["test"] if name.endswith("_t") else result["test"]
    return float(of["inference"]["floors"][name.removesuffix("_t")]["mean"])
