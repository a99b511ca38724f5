"""Save and load calibrators: one ``.npz`` file with the parameters, the options and the report of the fit.

The checksums of the format, one for each array, find every flipped bit.
"""

import json
import os
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.inputs import FittedOn
from dualfocal.calibrators.multilabel import MULTILABEL_CALIBRATORS
from dualfocal.calibrators.registry import CALIBRATORS, Chain
from dualfocal.files import atomic_path

SCHEMA = 1
ABOUT = "dualfocal_calibrator"  # the entry with everything but the parameters, as JSON
CLASSES: dict[str, type[Calibrator]] = {
    make.__name__: make for make in (*CALIBRATORS.values(), *MULTILABEL_CALIBRATORS.values()) if isinstance(make, type)
}
# What numpy and zipfile raise for an archive that is cut off, changed, or of another kind; an array has no `files`.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    NotImplementedError,
)


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Save a fitted calibrator to a ``.npz`` file. The file is written atomically.

    Args:
        calibrator: a fitted calibrator of this package.
        path: file name, ending in ``.npz``.

    Raises:
        RuntimeError: the calibrator is not fitted.
        ValueError: the file name has another ending, or the file cannot be written.

    >>> import tempfile
    >>> import torch
    >>> from dualfocal.calibrators import TemperatureScaling
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    >>> calibrator = TemperatureScaling().fit(logits, torch.tensor([0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_calibrator(calibrator, Path(folder, "cal.npz"))
    ...     torch.equal(load_calibrator(Path(folder, "cal.npz"))(logits), calibrator(logits))
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
    text = json.dumps(about, allow_nan=False, default=lambda scalar: scalar.item())  # numpy scalars
    arrays: dict[str, Any] = {ABOUT: np.array(text)}
    arrays |= {name: value.cpu().numpy() for name, value in calibrator.state_dict().items()}
    with atomic_path(path) as temporary:
        np.savez(temporary, **arrays)


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Load a calibrator saved by :func:`save_calibrator`, onto the CPU.

    Raises:
        ValueError: the file is missing, damaged, not a calibrator, or has another schema.
    """
    path = check_suffix(Path(path))
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    arrays = _read(path)
    if ABOUT not in arrays:
        raise ValueError(f"{path}: is not a calibrator; create one with `dualfocal calibrate`")
    try:
        about = json.loads(arrays.pop(ABOUT).item())
        return _restore(about, {name: torch.from_numpy(array) for name, array in arrays.items()})
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())  # torch's errors have several lines
        raise ValueError(f"{path}: is damaged, or was written by another version of dualfocal: {reason}") from error


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a file, or raise a ValueError that names it. Pickles are not loaded."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except DAMAGED as error:
        raise ValueError(f"{path}: is damaged, or not a calibrator: {error}") from error


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
    names, fitted_on = content["class_names"], content["fitted_on"]
    calibrator.class_names = None if names is None else tuple(names)
    if fitted_on is not None:
        zeros = fitted_on["zeros"]
        calibrator.fitted_on = FittedOn(**fitted_on | {"zeros": None if zeros is None else tuple(zeros)})
    return calibrator


def check_suffix(path: Path) -> Path:
    """Raise a ValueError unless ``path`` ends in ``.npz``; otherwise return it."""
    if path.suffix != ".npz":
        raise ValueError(f"{path}: the name of a calibrator file must end in .npz")
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
