"""The run folder: what a training leaves on disk, and the only thing that reports and tables read.

    recipe.json               what was asked for
    log.jsonl                 a line per epoch
    checkpoint.safetensors    where to go on; gone when the run is finished
    model.safetensors         the weights that were kept
    predictions.safetensors   val_logits, val_target, test_logits, test_target
    result.json               metrics, versions, device; it is there when the run is finished
    failure.json              why it stopped, if its loss did not stay finite

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
LOCK = ".lock"


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message names it and says why."""


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        RunError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON, or damaged: {error}") from error
