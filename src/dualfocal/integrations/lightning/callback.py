"""The callback that logs the calibration of each epoch and fits the temperature."""

import math
import os
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dualfocal._extras import how_to_install
from dualfocal.calibrators import TemperatureScaling, save_calibrator
from dualfocal.checks import check_choice, check_count, check_ignore_index
from dualfocal.files import check_readable
from dualfocal.integrations.lightning._kept_rows import KeptRows, gathered, num_processes
from dualfocal.metrics import CalibrationSums, Evaluation, ece
from dualfocal.metrics.arrays import as_tensor
from dualfocal.metrics.inputs import INPUTS, check_logits
from dualfocal.metrics.samples import Samples

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> type:
    """Return the class Callback of the installed package, or object: then CalibrationCallback says what is missing."""
    for package in PACKAGES:
        try:
            callback: type = import_module(package).Callback
        except ImportError:
            continue
        return callback
    return object


if TYPE_CHECKING:  # the same types with either package, and without both

    class Callback:
        """Base class of callbacks."""
else:
    Callback = _callback_class()


class CalibrationCallback(Callback):
    """Log the calibration of each validation, and fit the temperature of the model.

    ``validation_step`` must return a dict with logits and class indices. After each validation, the callback logs

    - the metrics of :meth:`Evaluation.scalars <dualfocal.Evaluation.scalars>`: ``val/error``, ``val/nll``,
      ``val/brier``, ``val/ece``, ... They are computed from sums, merged over all processes, so they do not depend
      on the number of processes (unless the sampler repeats samples to give each process the same number);
    - ``val/temperature``, fitted on the same samples, and ``val/ece_calibrated``, the ECE after temperature scaling.
      One parameter can hardly be overfitted, but for a report use the values of a test set, below.

    The validation that checks the model before training (``num_sanity_val_steps``) does not count.

    Each checkpoint contains the temperature of its own weights: loading the checkpoint restores it, and
    :func:`checkpoint_calibrator` reads it. At the end of ``fit``, the calibrator of the last validation is saved beside
    the checkpoints. If ``test_step`` returns the same dict, ``trainer.test`` logs ``test/ece``, ..., and
    ``test/ece_calibrated``, ``test/nll_calibrated`` with the temperature from the validation.

    Args:
        logits: key of the logits in the returned dict, shape ``(N, C)`` or ``(N, C, d1, ...)``.
        target: key of the class indices, shape ``(N,)`` or ``(N, d1, ...)``.
        prefix: text in front of the names of validation metrics.
        test_prefix: text in front of the names of test metrics.
        num_bins: number of bins of the calibration errors.
        inference: whether to log noise floors and p-values, too.
        input: ``"logits"`` or ``"probs"``, whichever the step returns. None means logits, and raises an error if a
            batch looks like probabilities.
        ignore_index: target value of samples to leave out.
        dataloader_idx: data loader whose samples are used, if there are several.
        max_samples: maximum number of samples, of all processes together, that are kept on the CPU for the temperature.
            Of more samples, every second, fourth, ... is kept.
        filename: name of the file with the calibrator, ending in ``.npz`` (None: not saved). It is not saved
            without checkpoints, either.

    Attributes:
        evaluation: :class:`~dualfocal.Evaluation` of the last validation or test; None before.
        calibrator: :class:`~dualfocal.TemperatureScaling` of the last validation; None before.

    Raises:
        ImportError: neither ``lightning`` nor ``pytorch_lightning`` is installed.
        ValueError: an option is invalid.

    >>> callback = CalibrationCallback(inference=True)  # doctest: +SKIP
    >>> Trainer(callbacks=[callback]).fit(model, train_loader, val_loader)  # doctest: +SKIP
    >>> callback.calibrator(logits)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        logits: str = "logits",
        target: str = "target",
        prefix: str = "val/",
        test_prefix: str = "test/",
        num_bins: int = 15,
        inference: bool = False,
        input: str | None = None,
        ignore_index: int = -100,
        dataloader_idx: int = 0,
        max_samples: int = 100_000,
        filename: str | None = "temperature.npz",
    ) -> None:
        if Callback is object:
            raise ImportError(how_to_install(ImportError(name="lightning")))
        check_count("num_bins", num_bins)
        check_count("max_samples", max_samples, 2)
        check_choice("input", input, (None, *INPUTS))
        if filename is not None and not filename.endswith(".npz"):
            raise ValueError(f"filename must end in .npz, got {filename!r}")
        self.logits, self.target, self.prefix, self.test_prefix = logits, target, prefix, test_prefix
        self.num_bins, self.inference, self.input = num_bins, inference, input
        self.ignore_index, self.dataloader_idx = check_ignore_index(ignore_index), dataloader_idx
        self.max_samples, self.filename = max_samples, filename
        self.evaluation: Evaluation | None = None
        self.calibrator: TemperatureScaling | None = None
        self._state: CalibrationSums | None = None
        self._calibrated_state: CalibrationSums | None = None  # of the test
        self._kept = KeptRows(max_samples)

    @property
    def state_key(self) -> str:
        """Key of the state in a checkpoint."""
        return _state_key(self.prefix)

    def state_dict(self) -> dict[str, Any]:
        """Return the temperature, for a checkpoint."""
        return {} if self.calibrator is None else {"calibrator": self.calibrator.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the temperature from a checkpoint."""
        self.calibrator = _restored(state_dict)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget the samples of the last validation."""
        self._reset()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add the samples of a batch."""
        if dataloader_idx == self.dataloader_idx and (samples := self._samples(outputs, "validation_step")) is not None:
            self._state = self._plus(self._state, samples.values, samples.target, samples.input)
            self._kept.add(samples.values, samples.target)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of all samples and fit the temperature."""
        if trainer.sanity_checking:
            return
        state = _merged(self._state)
        if state is None:
            raise ValueError(
                f"no samples: data loader {self.dataloader_idx} does not exist, or every target is ignore_index = "
                f"{self.ignore_index}"
            )
        self.evaluation = state.evaluate(inference=self.inference)
        values, target = self._kept.gathered()
        self.calibrator = TemperatureScaling().fit(values, target, input=self.input or "logits")
        calibrated = self.calibrator(values, input=self.input or "logits")
        fitted = {
            "temperature": float(self.calibrator.temperature),
            "ece_calibrated": float(ece(calibrated, target, num_bins=self.num_bins, input="logits")),
        }
        _log(pl_module, self.evaluation.scalars() | fitted, self.prefix)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the calibrator beside the checkpoints."""
        folder = getattr(trainer.checkpoint_callback, "dirpath", None)
        if self.calibrator is None:
            warnings.warn("there was no validation, so there is no temperature: pass val_dataloaders", stacklevel=2)
        if self.calibrator is None or self.filename is None or folder is None or not trainer.is_global_zero:
            return
        _warn_of_few_samples(self.calibrator)
        if "://" in str(folder):
            warnings.warn(
                f"the calibrator is not saved: {folder} is not a local folder; see checkpoint_calibrator", stacklevel=2
            )
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_calibrator(self.calibrator, Path(folder, self.filename))

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget the samples of the last validation."""
        self._reset()

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Add the samples of a batch, if ``test_step`` returns them."""
        if dataloader_idx != self.dataloader_idx or not isinstance(outputs, Mapping) or self.logits not in outputs:
            return
        samples = self._samples(outputs, "test_step")
        if samples is None:
            return
        self._state = self._plus(self._state, samples.values, samples.target, samples.input)
        if self.calibrator is not None:
            calibrated = self.calibrator.to(samples.values.device)(samples.values, input=samples.input)
            self._calibrated_state = self._plus(self._calibrated_state, calibrated, samples.target, "logits")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics of all samples, before and after temperature scaling."""
        state, calibrated = _merged(self._state), _merged(self._calibrated_state)
        if state is None:
            return
        self.evaluation = state.evaluate(inference=self.inference)
        scalars = self.evaluation.scalars()
        if calibrated is not None:
            after = calibrated.evaluate(inference=False).scalars()
            scalars |= {f"{name}_calibrated": after[name] for name in ("nll", "ece") if name in after}
        _log(pl_module, scalars, self.test_prefix)

    def _reset(self) -> None:
        self._state = self._calibrated_state = None
        self._kept = KeptRows(max(1, self.max_samples // num_processes()))

    def _plus(self, state: CalibrationSums | None, values: Tensor, target: Tensor, kind: str) -> CalibrationSums:
        batch = CalibrationSums.from_predictions(values, target, input=kind, num_bins=self.num_bins)
        return batch if state is None else state + batch

    def _samples(self, outputs: Any, step: str) -> Samples | None:
        """Return the samples that a step returned; None if all are ignored."""
        remedy = f'{step} must return {{"{self.logits}": logits, "{self.target}": target}}'
        if not isinstance(outputs, Mapping):
            raise TypeError(f"{remedy}, got {type(outputs).__name__}")
        if missing := [key for key in (self.logits, self.target) if key not in outputs]:
            keys = ", ".join(map(repr, outputs))
            raise ValueError(f"{remedy}, but {missing[0]!r} is missing: the keys are {keys}")
        values, target = as_tensor("logits", outputs[self.logits]), as_tensor("target", outputs[self.target])
        if bool((target == self.ignore_index).all()):
            return None
        samples = Samples.from_arrays(values, target, input=self.input, ignore_index=self.ignore_index)
        if samples.input == "logits":
            check_logits(samples.values.amax(1))
        return samples


def checkpoint_calibrator(path: str | os.PathLike[str], prefix: str = "val/") -> TemperatureScaling:
    """Load the calibrator that belongs to the weights of a checkpoint of Lightning.

    Args:
        path: a checkpoint of a training with :class:`CalibrationCallback`.
        prefix: the ``prefix`` of the callback.

    Raises:
        ValueError: the file is missing, damaged or no checkpoint, or does not contain a temperature.

    >>> import tempfile
    >>> state = {"calibrator": {"temperature": torch.tensor(1.5, dtype=torch.float64)}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"callbacks": {"CalibrationCallback[val/]": state}}, Path(folder, "last.ckpt"))
    ...     float(checkpoint_calibrator(Path(folder, "last.ckpt")).temperature)
    1.5
    """
    check_readable(Path(path))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        calibrator = _restored(content.get("callbacks", {}).get(_state_key(prefix), {}))
    except Exception as error:  # a damaged file raises errors of any kind
        raise ValueError(
            f"{path}: is damaged, is no checkpoint, or holds objects besides tensors and plain values, which are not "
            "loaded: load_calibrator reads the .npz file that the callback saves beside checkpoints"
        ) from error
    if calibrator is None:
        raise ValueError(
            f"{path}: contains no temperature of CalibrationCallback(prefix={prefix!r}): it was saved without this "
            "callback, before the first validation, or with save_weights_only=True"
        )
    return calibrator


def _state_key(prefix: str) -> str:
    return f"CalibrationCallback[{prefix}]"


def _restored(state: Mapping[str, Any]) -> TemperatureScaling | None:
    """Return the calibrator of the state of a callback; None if it had none."""
    if "calibrator" not in state:
        return None
    calibrator = TemperatureScaling()
    calibrator.load_state_dict(state["calibrator"])
    if calibrator.temperature.ndim or not 0 < float(calibrator.temperature) < math.inf:
        raise ValueError(f"the temperature must be one finite number above 0, got {calibrator.temperature}")
    return calibrator


def _warn_of_few_samples(calibrator: TemperatureScaling) -> None:
    try:
        caution = "" if calibrator.report is None else calibrator.report.caution()
    except ValueError as error:  # a warning: an error at the end of a long training would help nobody
        caution = str(error)
    if caution:
        warnings.warn(caution, stacklevel=2)


def _merged(state: CalibrationSums | None) -> CalibrationSums | None:
    """Return the sum over all processes; None if no process has samples."""
    contents = gathered(None if state is None else state.to_dict())
    states = [CalibrationSums.from_dict(content) for content in contents if content is not None]
    return sum(states[1:], start=states[0]) if states else None


def _log(pl_module: Any, scalars: Mapping[str, float], prefix: str) -> None:
    """Log numbers that are the same in all processes; the maximum over them leaves each as it is, unlike the mean."""
    named = {f"{prefix}{name}": value for name, value in scalars.items()}
    pl_module.log_dict(named, reduce_fx="max", sync_dist=True)
