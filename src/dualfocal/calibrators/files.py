"""Calibrators on disk: one ``.safetensors`` file with what was learned, the options and the report of the fit."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal._files import atomic_path
from dualfocal.calibrators._base import Calibrator, FitReport
from dualfocal.calibrators.inputs import FittedOn
from dualfocal.calibrators.registry import CALIBRATORS, Chain

SCHEMA = 1
KEY = "dualfocal_calibrator"
CLASSES: dict[str, type[Calibrator]] = {make.__name__: make for make in CALIBRATORS.values() if isinstance(make, type)}


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator, all or nothing.

    >>> import tempfile
    >>> import torch
    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    >>> calibrator = TemperatureScaling().fit(logits, torch.tensor([0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_calibrator(calibrator, Path(folder, "cal.safetensors"))
    ...     torch.equal(load_calibrator(Path(folder, "cal.safetensors"))(logits), calibrator(logits))
    True
    """
    from safetensors.torch import save_file  # torch and numpy are all that importing us may need

    path = check_suffix(Path(path))
    if not calibrator.is_fitted:
        raise RuntimeError(f"this {type(calibrator).__name__} is not fitted: there is nothing to save")
    about = {
        "schema": SCHEMA,
        "calibrator": _describe(calibrator),
        "report": None if calibrator.report is None else calibrator.report.to_dict(),
        "class_names": calibrator.class_names,
        "fitted_on": None if calibrator.fitted_on is None else asdict(calibrator.fitted_on),
    }
    state = {name: value.cpu().contiguous() for name, value in calibrator.state_dict().items()}
    with atomic_path(path) as temporary:
        text = json.dumps(about, allow_nan=False, default=lambda scalar: scalar.item())  # an option of numpy's
        save_file(state, temporary, metadata={KEY: text})


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read what :func:`save_calibrator` wrote, onto the CPU.

    Raises:
        ValueError: not such a file, of another schema, or damaged; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    path = check_suffix(Path(path))
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get(KEY)
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    if about is None:
        raise ValueError(f"{path}: is not a calibrator; `dualfocal calibrate` writes them")
    try:
        return _restore(json.loads(about), state)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged, or of another version: {error}") from error


def _restore(content: dict[str, Any], state: dict[str, Tensor]) -> Calibrator:
    """The calibrator, tried on a row of logits."""
    if content["schema"] != SCHEMA:
        raise ValueError(f"it has schema {content['schema']}, this version of dualfocal reads schema {SCHEMA}")
    calibrator = _build(content["calibrator"])
    calibrator.load_state_dict(state)
    row = torch.zeros(1, calibrator.num_classes or 2)
    calibrated = calibrator(row)
    if calibrated.shape != row.shape or not all(value.isfinite().all() for value in (calibrated, *state.values())):
        raise ValueError("what was learned must be finite numbers of matching shapes")
    if content["report"] is not None:
        calibrator.report = FitReport.from_dict(content["report"])
    names, fitted_on = content["class_names"], content.get("fitted_on")  # older files have none of the latter
    calibrator.class_names = None if names is None else tuple(names)
    if fitted_on is not None:
        zeros = fitted_on["zeros"]
        calibrator.fitted_on = FittedOn(**fitted_on | {"zeros": None if zeros is None else tuple(zeros)})
    return calibrator


def check_suffix(path: Path) -> Path:
    """Raise a ValueError that names the rule."""
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: a calibrator's file must end in .safetensors")
    return path


def _describe(calibrator: Calibrator) -> dict[str, Any]:
    if type(calibrator) not in (Chain, *CLASSES.values()):
        raise TypeError(f"only this package's calibrators can be saved, got {type(calibrator).__name__}")
    if isinstance(calibrator, Chain):
        return {"name": "Chain", "steps": [_describe(step) for step in calibrator]}
    return {"name": type(calibrator).__name__, "arguments": calibrator.arguments}


def _build(about: dict[str, Any]) -> Calibrator:
    if about["name"] == "Chain":
        return Chain(*map(_build, about["steps"]))
    return CLASSES[about["name"]](**about["arguments"])
