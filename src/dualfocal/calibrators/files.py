"""Save and load calibrators: one ``.safetensors`` file with the parameters, the options and the report of the fit."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal._files import atomic_path
from dualfocal._sealed import load_sealed, save_sealed
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.inputs import FittedOn
from dualfocal.calibrators.multilabel import MULTILABEL_CALIBRATORS
from dualfocal.calibrators.registry import CALIBRATORS, Chain

SCHEMA = 1
KEY = "dualfocal_calibrator"
CLASSES: dict[str, type[Calibrator]] = {
    make.__name__: make for make in (*CALIBRATORS.values(), *MULTILABEL_CALIBRATORS.values()) if isinstance(make, type)
}


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Save a fitted calibrator to a ``.safetensors`` file. The file is written atomically.

    Args:
        calibrator: a fitted calibrator of this package.
        path: file name, ending in ``.safetensors``.

    Raises:
        RuntimeError: the calibrator is not fitted.
        ValueError: the file name has another ending, or the file cannot be written.

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
    path = check_suffix(Path(path))
    if not calibrator.is_fitted:
        raise RuntimeError(f"this {type(calibrator).__name__} is not fitted: call fit(logits, target) before saving")
    about = {
        "schema": SCHEMA,
        "calibrator": _describe(calibrator),
        "report": None if calibrator.report is None else calibrator.report.to_dict(),
        "class_names": calibrator.class_names,
        "fitted_on": None if calibrator.fitted_on is None else asdict(calibrator.fitted_on),
    }
    state = {name: value.cpu().contiguous() for name, value in calibrator.state_dict().items()}
    text = json.dumps(about, allow_nan=False, default=lambda scalar: scalar.item())  # numpy scalars
    with atomic_path(path) as temporary:
        save_sealed(state, temporary, {KEY: text})


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Load a calibrator saved by :func:`save_calibrator`, onto the CPU.

    Raises:
        ValueError: the file is missing, damaged, not a calibrator, or has another schema.
    """
    path = check_suffix(Path(path))
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    try:
        state, metadata = load_sealed(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    if KEY not in metadata:
        raise ValueError(f"{path}: is not a calibrator; create one with `dualfocal calibrate`")
    try:
        return _restore(json.loads(metadata[KEY]), state)
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: is damaged, or was written by another version of dualfocal: {error}") from error


def _restore(content: dict[str, Any], state: dict[str, Tensor]) -> Calibrator:
    """Build the calibrator, and check that it maps a row of logits to finite values."""
    if content["schema"] != SCHEMA:
        raise ValueError(f"the file has schema {content['schema']}, but this version reads schema {SCHEMA}")
    calibrator = _build(content["calibrator"])
    calibrator.load_state_dict(state)
    row = torch.zeros(1, calibrator.num_classes or 2)
    calibrated = calibrator(row, input="logits")
    if calibrated.shape != row.shape or not all(value.isfinite().all() for value in (calibrated, *state.values())):
        raise ValueError("the parameters must be finite and of matching shapes")
    if content["report"] is not None:
        calibrator.report = calibrator.report_type.from_dict(content["report"])
    names, fitted_on = content["class_names"], content.get("fitted_on")  # "fitted_on" is missing in older files
    calibrator.class_names = None if names is None else tuple(names)
    if fitted_on is not None:
        zeros = fitted_on["zeros"]
        calibrator.fitted_on = FittedOn(**fitted_on | {"zeros": None if zeros is None else tuple(zeros)})
    return calibrator


def check_suffix(path: Path) -> Path:
    """Raise a ValueError unless ``path`` ends in ``.safetensors``; otherwise return it."""
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: the name of a calibrator file must end in .safetensors")
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
