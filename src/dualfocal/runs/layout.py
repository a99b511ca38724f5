"""File names of a run folder.

    recipe.json               settings of the run
    log.jsonl                 one line per epoch
    checkpoint.safetensors    state to resume from; deleted when the run is finished
    model.safetensors         the final weights
    predictions.safetensors   val_logits, val_target, test_logits, test_target
    result.json               metrics, versions, device; exists when the run is finished
    failure.json              why the run stopped, if its loss did not stay finite
    shift.npz                 optional: logits of the test images with Gaussian noise, severity1 to severity5

Every file except the log is written to a temporary file and renamed, so that it is never incomplete. When a run is
resumed, incomplete lines of the log and lines after the checkpoint are removed.
"""

import json
from pathlib import Path
from typing import Any

RECIPE = "recipe.json"
LOG = "log.jsonl"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
PREDICTIONS = "predictions.safetensors"
RESULT = "result.json"
FAILURE = "failure.json"
SHIFT = "shift.npz"
LOCK = ".lock"
TEMPERATURES = ("temperature", "temperature_ece")  # fitted by NLL; by ECE over the published grid
SCHEMA = 1  # version of the JSON files and of the lines of the log


class RunError(ValueError):
    """A run folder cannot be used; the message names it and says why."""


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run folder.

    Raises:
        RunError: the file cannot be read, or has another schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON, or damaged: {error}") from error
    return check_schema(f"{path}:", content)


def check_schema(source: str, content: Any) -> dict[str, Any]:
    """Return the content if it is an object with the supported schema, else raise a RunError that names the source."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RunError(f"{source} has schema {schema}, this version of dualfocal reads schema {SCHEMA}")
    return dict(content)
