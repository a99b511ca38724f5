"""The run folder: what a training leaves on disk, and the only thing that reports and tables read.

    recipe.json               what was asked for
    log.jsonl                 a line per epoch
    checkpoint.safetensors    where to go on; gone when the run is finished
    model.safetensors         the weights that were kept
    predictions.safetensors   val_logits, val_target, test_logits, test_target
    result.json               metrics, versions, device; it is there when the run is finished
    failure.json              why it stopped, if its loss did not stay finite
    shift.npz                 severity1 to severity5: logits of the test images with gaussian noise, if they were scored

Every file but the log is written aside and renamed, so that none is ever half there; a line of the log that is half
there, or that no checkpoint bears out, is cut off when the run goes on.
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
TEMPERATURES = ("temperature", "temperature_ece")  # by NLL; by ECE over the published grid
SCHEMA = 1  # of the JSON files, and of the lines of the log


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message names it and says why."""


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file of the run folder.

    Raises:
        RunError: it cannot be read, or is of another schema.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON, or damaged: {error}") from error
    return check_schema(f"{path}:", content)


def check_schema(source: str, content: Any) -> dict[str, Any]:
    """The content; raise a RunError, which names the source, unless it is an object of the schema that is read here."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RunError(f"{source} has schema {schema}, this version of dualfocal reads schema {SCHEMA}")
    return dict(content)
