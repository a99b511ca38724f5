"""Add prediction files to the state file of a monitor: one process at a time, each file once."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualfocal.files import check_place, check_readable
from dualfocal.metrics import CalibrationMonitor, CalibrationSums
from dualfocal.metrics.monitor.history import Period
from dualfocal.metrics.monitor.state_file import MonitorState, read_monitor
from dualfocal.predictions._formats.interface import PredictionsError, TooLargeError
from dualfocal.predictions.reading import Reading, predictions_file

SUFFIX = ".json"
MOST_SEEN = 1000  # files whose digests are kept


@dataclass(frozen=True)
class NewPeriod:
    """A prediction file that was added, and its period in the history."""

    name: str
    taken: str
    period: Period


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
        PredictionsError: a prediction file cannot be read.
        ValueError: the state file is damaged or another process is updating it, settings differ from those of the
            state, a file was added before, or a label is not new.
    """
    if path.suffix != SUFFIX:
        raise ValueError(f"{path}: the name of a state file must end in {SUFFIX}; it comes first, then the predictions")
    if time is not None and len(files) > 1:
        raise ValueError(f"--time is the label of one file, but {len(files)} are given")
    check_place(path)
    linked = Path(os.path.realpath(path))  # of a link, the file itself is replaced
    with _locked(path, linked):
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
        state.save(linked)
    return state, new


def _read(state: MonitorState, file: Path, reading: Reading, *, again: bool) -> tuple[str, CalibrationSums]:
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
) -> tuple[str, int | None, tuple[str, ...] | None, CalibrationSums]:
    """Return which arrays were read, number and names of the classes as far as they are known, and the samples."""
    try:
        data = reading.load(file, confidence_only=not monitor.classwise)
    except TooLargeError as error:
        if not error.streamable:
            raise
        stream = reading.stream(file)
        sums = stream.sums(num_bins=reading.num_bins, ignore_index=reading.ignore_index, binary=reading.binary)
        return stream.taken, sums.num_classes, stream.class_names, sums
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
def _locked(path: Path, linked: Path) -> Iterator[None]:
    """Keep other processes from updating the state; ``linked`` is the file that ``path`` stands for.

    Raises:
        ValueError: another process updates the state, or its folder cannot be written to.
    """
    from filelock import FileLock, Timeout

    lock = linked.with_name(f".{linked.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
    except Timeout as error:
        raise ValueError(f"{path}: another process is updating this file: try again when it has finished") from error
    except PermissionError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
