"""The state file of a monitor: update it with prediction files, one process at a time, each file once.

state.json         settings, cells and history of the monitor, and the digests of the last files; with a checksum
.state.json.lock/  only while a process updates the file, see :mod:`dualfocal.runs.lease`
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dualfocal._checks import check_count
from dualfocal._files import atomic_path, check_place, check_readable
from dualfocal.metrics import CalibrationMonitor, MonitorBatch
from dualfocal.metrics.monitor.history import Period
from dualfocal.predictions import PredictionsError, Reading, TooLargeError, predictions_file
from dualfocal.runs.layout import SCHEMA, RunBusyError, RunError, read_json, seal
from dualfocal.runs.lease import Lease, find_owner

SUFFIX = ".json"
KIND = "calibration monitor"
FIELDS = ("schema", "kind", "num_classes", "class_names", "seen", "monitor")
MOST_BYTES = 200_000_000  # of a state file
MOST_SEEN = 1000  # files whose digests are kept


@dataclass
class MonitorState:
    """A monitor, and what its file says about the prediction files that it has seen.

    Args:
        monitor: the monitor.
        num_classes: number of classes (None: unknown, the files have only confidences).
        class_names: names of the classes, if a prediction file had them.
        seen: digest -> name of the last files, oldest first.
    """

    monitor: CalibrationMonitor
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    seen: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        names = None if self.class_names is None else list(self.class_names)
        content = (SCHEMA, KIND, self.num_classes, names, self.seen, self.monitor.to_dict())
        return dict(zip(FIELDS, content, strict=True))


@dataclass(frozen=True)
class NewPeriod:
    """A prediction file that was added, and its period in the history."""

    name: str
    taken: str
    period: Period


def read_monitor(path: Path, settings: Mapping[str, Any] | None = None) -> MonitorState:
    """Read a state file.

    Args:
        path: the state file.
        settings: arguments of :class:`~dualfocal.metrics.CalibrationMonitor` that the state must have.

    Raises:
        RunError: the file is damaged, too large, or no state of a monitor.
        ValueError: there is no such file, or settings differ from those of the state.
    """
    check_readable(path)
    if path.stat().st_size > MOST_BYTES:
        raise RunError(f"{path}: is no state of a monitor: it has more than {MOST_BYTES // 10**6} MB")
    content = read_json(path)
    if content.get("kind") != KIND or content.keys() != set(FIELDS):
        raise RunError(f"{path}: is damaged, or no state of a monitor: choose another name for the state")
    num_classes, names, seen = content["num_classes"], content["class_names"], content["seen"]
    try:
        if num_classes is not None:
            check_count("num_classes", num_classes, 2)
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("class_names must be a list of texts")
        if not isinstance(seen, dict) or not all(isinstance(name, str) for name in seen.values()):
            raise ValueError("seen must hold the names of files")
        monitor = CalibrationMonitor.from_dict(content["monitor"])
    except (ValueError, TypeError) as error:
        raise RunError(f"{path}: is damaged: {error}") from error
    _check_settings(path, monitor, settings or {})
    return MonitorState(monitor, num_classes, None if names is None else tuple(names), seen)


def update_monitor(
    path: Path,
    files: Sequence[Path],
    reading: Reading,
    settings: Mapping[str, Any],
    *,
    time: str | None = None,
    again: bool = False,
    reset: bool = False,
) -> tuple[MonitorState, list[NewPeriod]]:
    """Add prediction files to a state file, one period per file; all of them, or none if one cannot be read.

    Args:
        path: the state file; a new one is started if it does not exist.
        files: prediction files or run folders, oldest first.
        reading: how to read them; bins and ``binary`` are those of the monitor.
        settings: arguments of :class:`~dualfocal.metrics.CalibrationMonitor`, for a new state; an existing one must
            have the same.
        time: label of the period of a single file (None: the name of each file, without its suffix).
        again: whether files may be added that have been added before.
        reset: whether to forget samples and alarm first.

    Returns:
        The new state, and the period of each file.

    Raises:
        RunError: the state file is damaged, or another process is updating it.
        PredictionsError: a prediction file cannot be read.
        ValueError: settings differ from those of the state, a file was added before, or a label is not new.
    """
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: the name of a state file must end in {SUFFIX}; it comes first, then the predictions")
    if time is not None and len(files) > 1:
        raise ValueError(f"--time is the label of one file, but {len(files)} are given")
    check_place(path)
    linked = Path(os.path.realpath(path))  # of a link, the file itself is replaced
    with _locked(path, linked) as folder:
        state = read_monitor(path, settings) if path.exists() else MonitorState(CalibrationMonitor(**settings))
        if reset:
            state.monitor.reset()
        batches = [_read(state, file, reading, again=again) for file in files]
        new = []
        for file, (taken, batch) in zip(files, batches, strict=True):
            label = _label(file) if time is None else time
            if any(period.time == label for period in state.monitor.history):
                raise ValueError(
                    f"{file}: each period needs a label of its own, but {label!r} is that of an earlier one: add this "
                    "file alone, with --time LABEL"
                )
            state.monitor.add(batch, time=label)
            new.append(NewPeriod(str(file), taken, state.monitor.history[-1]))
        state.seen = dict(list(state.seen.items())[-MOST_SEEN:])
        with atomic_path(linked, folder) as temporary:
            temporary.write_text(json.dumps(seal(state.to_dict()), allow_nan=False) + "\n", encoding="utf-8")
    return state, new


def _check_settings(path: Path, monitor: CalibrationMonitor, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if getattr(monitor, name) != value:
            option, old = "--" + name.replace("_", "-"), getattr(monitor, name)
            before = f"without {option}" if old is None or old is False else f"with {option} {old}"
            raise ValueError(
                f"{path}: was started {before}, but now {option} is {value}: leave it out, or start another state file"
            )


def _read(state: MonitorState, file: Path, reading: Reading, *, again: bool) -> tuple[str, MonitorBatch]:
    """Return which arrays were read, and the samples; remember the file and the names of its classes."""
    monitor = state.monitor
    key = _digest(file, reading)
    if key in state.seen and not again:
        raise ValueError(
            f"{file}: these predictions were added before, as {state.seen[key]!r}; --again adds them once more"
        )
    reading = replace(reading, num_bins=monitor.num_bins, binary=monitor.binary)
    try:
        taken, num_classes, names, batch = _collect(monitor, file, reading)
    except PredictionsError:
        raise
    except (ValueError, IndexError) as error:
        raise PredictionsError(f"{file}: {error}") from error
    if None not in (num_classes, state.num_classes) and num_classes != state.num_classes:
        raise ValueError(
            f"{file}: has {num_classes} classes, but the files before have {state.num_classes}: for another model, "
            "start another state file"
        )
    if monitor.classwise and None not in (names, state.class_names) and names != state.class_names:
        raise ValueError(f"{file}: its classes must be those of the files before, in the same order: {_short(state)}")
    state.num_classes = state.num_classes or num_classes
    state.class_names = state.class_names or names
    state.seen.pop(key, None)  # to the end: the oldest are forgotten first
    state.seen[key] = str(file)
    return taken, batch


def _collect(
    monitor: CalibrationMonitor, file: Path, reading: Reading
) -> tuple[str, int | None, tuple[str, ...] | None, MonitorBatch]:
    """Return which arrays were read, number and names of the classes as far as they are known, and the samples."""
    try:
        data = reading.load(file, confidence_only=not monitor.classwise)
    except TooLargeError as error:
        if not error.streamable or reading.binary == "positive":
            raise
        stream = reading.stream(file)
        binned = stream.bin(num_bins=reading.num_bins, ignore_index=reading.ignore_index, binary=reading.binary)
        batch = MonitorBatch.from_binned(binned, classwise=monitor.classwise)
        return stream.taken, binned.num_classes, stream.class_names, batch
    batch = monitor.collect(data.values, data.target, input=data.input, ignore_index=reading.ignore_index)
    shape = data.values.shape
    num_classes = None if data.input == "confidence" else 2 if len(shape) == 1 else int(shape[1])
    return data.taken, num_classes, data.class_names, batch


def _short(state: MonitorState) -> str:
    names = state.class_names or ()
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _digest(file: Path, reading: Reading) -> str:
    """Return a digest of the content of a file and of the options that choose a part of it."""
    chosen = [getattr(reading, name) for name in ("logits", "probs", "target", "split", "prediction", "confidence")]
    digest = hashlib.sha256(json.dumps(chosen).encode())
    place = predictions_file(file) if file.is_dir() else file
    check_readable(place)
    with place.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]


def _label(file: Path) -> str:
    """Return the label of the period of a file: its name without suffix, or the name of a run folder."""
    name = Path(os.path.abspath(file)).name  # also of "."
    stem = name if file.is_dir() else Path(name.removesuffix(".gz")).stem
    return os.fsencode(stem).decode(errors="replace")  # figures and terminals need valid Unicode


@contextmanager
def _locked(path: Path, linked: Path) -> Iterator[Path]:
    """Yield a folder for temporary files that only this process has; ``linked`` is the file that ``path`` stands for.

    Raises:
        RunBusyError: another process updates the state.
    """
    place = linked.with_name(f".{linked.name}.lock")
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
    lease = Lease(place)
    try:
        lease.acquire()
    except RunBusyError as error:
        owner = find_owner(place) or "another process"
        raise RunBusyError(f"{path}: {owner} is updating this file: try again when it has finished") from error
    try:
        yield lease.folder
    finally:
        lease.release()
        with suppress(OSError):  # another process waits for the lock
            place.rmdir()
