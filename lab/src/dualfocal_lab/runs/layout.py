"""File names of a run folder.

    recipe.json               settings of the run
    log.jsonl                 one line per epoch
    checkpoint.safetensors    state to resume from; deleted when the run is finished
    model.safetensors         the final weights
    predictions.safetensors   val_logits, val_target, test_logits, test_target
    result.json               metrics, versions, device; exists when the run is finished
    failure.json              why the run stopped, if its loss did not stay finite
    shift.npz                 optional: logits of the test images with Gaussian noise, severity1 to severity5
    .attempt                  during a training: its process and temporary files, see :mod:`dualfocal_lab.runs.lease`

Every file except the log is written to a temporary file and renamed, so that it is never incomplete. When a run is
resumed, its log is written to a new file, without incomplete lines and lines after the checkpoint. Every file, and
every line of the log, has a checksum, which is compared when it is read. Files without one are read all the same. A
damaged checkpoint and its log are renamed to ``checkpoint.damaged.safetensors`` and ``log.damaged.jsonl``.
"""

import json
import zlib
from collections.abc import Mapping
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
ATTEMPT = ".attempt"
TEMPERATURES = ("temperature", "temperature_ece")  # fitted by NLL; by ECE over the published grid
SCHEMA = 1  # version of the JSON files and of the lines of the log
CHECKSUM = "crc32"  # field of the JSON files and of the lines of the log


class RunError(ValueError):
    """A run folder cannot be used; the message names it and says why."""


class RunBusyError(RunError):
    """Another process is training in the folder."""


class ChecksumError(RunError):
    """A JSON file, or a line of the log, has changed since it was written."""


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file with the checksum that :func:`check_content` compares."""
    return {**content, CHECKSUM: _checksum(json.loads(json.dumps(content)))}  # as it will be read


def read_json(path: Path, *, may_be_edited: bool = False) -> dict[str, Any]:
    """Read a JSON file of a run folder, without its checksum.

    Args:
        path: the file.
        may_be_edited: whether to ignore the checksum.

    Raises:
        RunError: the file cannot be read, has another schema, or has changed since it was written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON, or damaged: {error}") from error
    return check_content(f"{path}:", content, may_be_edited=may_be_edited)


def check_content(source: str, content: Any, *, may_be_edited: bool = False) -> dict[str, Any]:
    """Return the content without its checksum, or raise a RunError that names the source.

    Raises:
        RunError: the content is not an object with the supported schema.
        ChecksumError: the content has another checksum than it states.
    """
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RunError(f"{source} has schema {schema}, this version of dualfocal reads schema {SCHEMA}")
    plain = {name: value for name, value in content.items() if name != CHECKSUM}
    if CHECKSUM in content and not may_be_edited and content[CHECKSUM] != _checksum(plain):
        raise ChecksumError(
            f"{source} is damaged, or was edited: its checksum is {_checksum(plain)}, but should be {content[CHECKSUM]}"
        )
    return plain


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32 of the values, so that other white space or another order of the fields does not matter."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
