"""The state file of a monitor, a JSON file with a checksum."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualfocal.checks import check_count
from dualfocal.files import atomic_path, check_readable
from dualfocal.metrics.monitor.calibration_monitor import CalibrationMonitor

KIND = "calibration monitor"
SCHEMA = 1
FIELDS = ("schema", "kind", "num_classes", "class_names", "seen", "monitor")
MOST_BYTES = 200_000_000  # of a state file


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

    def save(self, path: Path) -> None:
        """Write the state file; an existing one is replaced only when the new one is complete."""
        content = json.loads(json.dumps(self.to_dict(), allow_nan=False))  # as it will be read
        with atomic_path(path) as temporary:
            text = json.dumps({**content, "crc32": _checksum(content)})
            temporary.write_text(text + "\n", encoding="utf-8")


def read_monitor(path: Path, settings: Mapping[str, Any] | None = None) -> MonitorState:
    """Read a state file.

    Args:
        path: the state file.
        settings: arguments of :class:`~dualfocal.metrics.CalibrationMonitor` that the state must have.

    Raises:
        ValueError: there is no such file, it is damaged, too large or no state of a monitor, or settings differ from
            those of the state.
    """
    check_readable(path)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: is no state of a monitor: it has more than {MOST_BYTES // 10**6} MB")
    content = _read_json(path)
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
        raise ValueError(f"{path}: is damaged: {error}") from error
    _check_settings(path, monitor, settings or {})
    return MonitorState(monitor, num_classes, None if names is None else tuple(names), seen)


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of a state file without its checksum, if it is complete and unchanged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON, or damaged: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND or content.keys() != {*FIELDS, "crc32"}:
        raise ValueError(f"{path}: is damaged, or no state of a monitor: choose another name for the state")
    if content["schema"] != SCHEMA:
        raise ValueError(f"{path}: has schema {content['schema']}, this version of dualfocal reads schema {SCHEMA}")
    stated = content.pop("crc32")
    if stated != _checksum(content):
        raise ValueError(
            f"{path}: is damaged, or was edited: its checksum is {_checksum(content)}, but should be {stated}"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the CRC-32 of the values, so that other white space or another order of the fields does not matter."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _check_settings(path: Path, monitor: CalibrationMonitor, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if getattr(monitor, name) != value:
            option, old = "--" + name.replace("_", "-"), getattr(monitor, name)
            before = f"without {option}" if old is None or old is False else f"with {option} {old}"
            raise ValueError(
                f"{path}: was started {before}, but now {option} is {value}: leave it out, or start another state file"
            )
