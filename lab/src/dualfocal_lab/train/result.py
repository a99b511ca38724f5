"""The result of a finished run: metrics before and after temperature scaling, device, versions and speed settings."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import dualfocal
from dualfocal.calibrators import make_calibrator
from dualfocal.metrics import Evaluation, evaluate
from dualfocal_lab.data import DataSet
from dualfocal_lab.models import MODELS
from dualfocal_lab.models.normalization import kernels_on
from dualfocal_lab.runs import Recipe, Run, RunResult, Scaled, layout
from dualfocal_lab.train.checkpoint import Position
from dualfocal_lab.train.distributed import Group, num_cores
from dualfocal_lab.train.step import Step

Predictions = dict[str, tuple[Tensor, Tensor]]

# What the bits of a training depend on besides the recipe: a key of a session or of its versions, and its name.
SAME_BITS = {
    "device": "devices",
    "processes": "numbers of processes",
    "threads": "numbers of threads",
    "precision": "precisions",
    "channels_last": "memory formats (channels_last)",
    "torch": "versions of torch",
    "numpy": "versions of NumPy",
}


def finish(
    recipe: Recipe, run: Run, data: DataSet, model: nn.Module, at: Position, predictions: Predictions, notes: list[str]
) -> None:
    """Write predictions, weights and, last, the result: a run with a result is finished."""
    run.write_predictions(predictions, data.class_names)
    run.write_tensors(layout.MODEL, model.state_dict())
    parts, calibrated = metrics_of(predictions)
    result = RunResult(
        data=str(data),
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        num_weights=sum(weight.numel() for weight in model.parameters()),
        epochs=recipe.epochs,
        weights_of_epoch=recipe.epochs if recipe.weights == "last" else at.best_epoch,
        parts=parts,
        calibrated=calibrated,
        seconds=sum(line["seconds"] for line in run.log),
        notes=notes,
        **{name: at.sessions[-1][name] for name in ("device", "versions", "commit")},
        sessions=at.sessions,
    )
    run.write_result(result)


def metrics_of(predictions: Predictions) -> tuple[dict[str, Evaluation], dict[str, Scaled]]:
    """Evaluate each split before and after each kind of temperature scaling, fitted on the validation split."""
    parts = {part: evaluate(*pair, input="logits", inference=True) for part, pair in predictions.items()}
    calibrated = {}
    for name in layout.TEMPERATURES if "val" in predictions else ():
        calibrator = make_calibrator(name).fit(*predictions["val"], input="logits")
        scaled = {
            part: evaluate(calibrator(logits, input="logits"), target, input="logits", inference=True)
            for part, (logits, target) in predictions.items()
        }
        calibrated[name] = Scaled(float(calibrator.temperature), scaled)  # type: ignore[arg-type]
    return parts, calibrated


def session(recipe: Recipe, group: Group, epoch: int) -> dict[str, Any]:
    """Describe a session of the training: first epoch, start time, device, settings and versions."""
    return {
        "from_epoch": epoch + 1,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(group.device),
        "processes": group.size,
        "threads": torch.get_num_threads(),
        **{name: getattr(recipe, name) for name in ("precision", "channels_last", "step")},
        "versions": {
            "dualfocal": dualfocal.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
    }


def notes_on_sessions(sessions: list[dict[str, Any]]) -> list[str]:
    """Return a note for each setting in which the sessions of a resumed run differ: it is not repeatable to the bit."""
    values = [session | session.get("versions", {}) for session in sessions]
    notes = []
    for name, what in SAME_BITS.items():
        distinct = list(dict.fromkeys(str(session[name]) for session in values if name in session))
        if len(distinct) > 1:
            texts = ", then ".join(distinct)
            notes.append(f"sessions of the run had different {what} ({texts}), so its bits are those of no other run")
    return notes


def commit() -> str | None:
    """Return the git commit of this package if it runs from a checkout, with + if files have changed."""
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(["git", *arguments], cwd=here.parent, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:  # installed inside another checkout
        return None
    head = git("rev-parse", "HEAD")
    return head if head is None or not git("status", "--porcelain", "..") else f"{head}+"


def device_name(device: torch.device) -> str:
    """Return the model of a device; of a CPU with the number of cores."""
    if device.type != "cpu":
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{name}, {num_cores()} cores"


def speed_settings(step: Step, model: nn.Module) -> dict[str, Any]:
    """Describe how the steps of a session actually run; the model must be in training mode."""
    recipe, device = step.recipe, step.group.device
    return {
        "step": step.mode,
        "start_up_seconds": step.seconds,
        "bfloat16_copies": step.halves is not None,
        "batch_norm_kernels": uses_kernels(model, recipe, device, step.mode),
        "slowed_by": [why for why in (step.problem, slowed_by(model, recipe, device)) if why],
    }


def slowed_by(model: nn.Module, recipe: Recipe, device: torch.device) -> str | None:
    """Return why batch norm does not use the Triton kernels although it should, or None; also given as a warning."""
    if device.type != "cuda" or recipe.model not in MODELS:
        return None
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    return kernels_on(device).problem if has_batch_norm else None


def uses_kernels(model: nn.Module, recipe: Recipe, device: torch.device, step: str) -> bool:
    """Return whether the first batch norm of a model in training mode uses the Triton kernels."""
    norm = next((module for module in model.modules() if isinstance(module, nn.BatchNorm2d)), None)
    if norm is None or device.type != "cuda" or recipe.model not in MODELS or step == "compiled":
        return False
    kernels = kernels_on(device).module
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else norm.weight.dtype
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    like = torch.empty((2, norm.num_features, 2, 2), dtype=dtype, device=device, memory_format=layout)
    return kernels is not None and bool(kernels.applies(like, norm))
