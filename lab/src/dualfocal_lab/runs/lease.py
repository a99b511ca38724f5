"""Leases: which process may write to a run folder. They need no file locks, which network storage often lacks.

    .attempt/<id>/owner.json    the owner of the folder; the time of its last change is the owner's heartbeat
    .attempt/<id>/...           temporary files of the owner
    .attempt.<id>               a claim in preparation, or an owner that was evicted; both are waste if they stay

**Claim.** A process prepares ``.attempt.<id>`` and renames it to ``.attempt``, which fails if that folder has an owner.
If that owner is dead, the process first renames ``.attempt/<other id>`` to waste. Of several processes that do so, each
rename succeeds in one. Ids are random and are never used again.

**Fencing.** A process may be stopped at any moment, lose its lease, and continue. So the owner changes the run folder
only by renaming a file out of ``.attempt/<id>`` or into it, which fails once that folder is gone: there is no moment
between a check and a change. A new owner deletes all waste before it reads the run folder. This matters on NFS, where
another machine may find a renamed folder by its old name for a while: what it can still change, it changes before the
new owner reads.
"""

import errno
import json
import os
import re
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dualfocal_lab.runs.layout import ATTEMPT, RunBusyError, RunError

# NFS may show a time of change that is up to 60 s old (mount option acregmax), and heartbeats are BEAT seconds apart.
EXPIRES = 90.0  # seconds without a heartbeat after which a lease can be taken over
BEAT = 5.0  # seconds between heartbeats
TRIES = 100  # each fails only if another process has changed the folder meanwhile
OWNER = "owner.json"
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a run folder, as in its ``owner.json``.

    Attributes:
        host: Name of its machine.
        machine: Start of its operating system, and its table of processes; empty where the system does not say.
        pid: Number of its process.
        process_start: Start of its process, in ticks of the system, since numbers of processes are used again.
        started: When it claimed the folder.
        lease_seconds: Time without a heartbeat after which others may take over.
        heartbeat: Time of the last one, by the clock of the file system.
    """

    host: str = "an unknown machine"
    machine: str = ""
    pid: int = 0
    process_start: int = 0
    started: str = ""
    lease_seconds: float = EXPIRES
    heartbeat: float = 0.0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_alive(self, now: float) -> bool:
        """Whether the owner may still be at work."""
        if not abs(now - self.heartbeat) <= self.lease_seconds:  # a time in the future is that of a wrong clock
            return False
        is_here = self.machine != "" and (self.host, self.machine) == (socket.gethostname(), _machine())
        return not is_here or _is_running(self.pid, self.process_start)


def find_owner(run: Path) -> Owner | None:
    """Return the owner of a run folder, dead or alive, or None if it has none."""
    return next(filter(None, map(_read_owner, _inside(run / ATTEMPT))), None)


def waste(run: Path) -> list[Path]:
    """Return what processes left that were killed while they claimed a run folder, or took it over."""
    return [path for path in run.iterdir() if re.fullmatch(rf"{re.escape(ATTEMPT)}\.[0-9a-f]{{16}}", path.name)]


class Lease:
    """The right of one process to write to a run folder, until it is released or another process takes it over.

    Args:
        run: the run folder, which must exist.
        seconds: time without a heartbeat after which other processes may take over.

    Attributes:
        folder: Where temporary files must be written: they can be renamed to their place only while the lease is held.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run, Lease(Path(run)) as lease:
    ...     _ = lease.folder.joinpath("new").write_text("content")
    ...     _ = lease.folder.joinpath("new").replace(Path(run, "log.jsonl"))
    ...     lease.check()
    """

    def __init__(self, run: Path, seconds: float = EXPIRES) -> None:
        self.run, self.seconds = run, float(seconds)
        self.folder = run / ATTEMPT / secrets.token_hex(8)
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def acquire(self) -> None:
        """Claim the folder, or take it over from an owner that is dead.

        Raises:
            RunBusyError: another process owns the folder.
            OSError: the folder cannot be written to.
        """
        try:
            self._claim()
            for path in waste(self.run):
                _delete(path)
        except BaseException:
            self.release()
            raise
        self._heart.start()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the folder back. Nothing is changed if another process has taken it over."""
        self._released.set()
        if self._heart.is_alive():
            self._heart.join()
        with suppress(OSError, RunError):
            self.check()
            for path in waste(self.run):
                _delete(path)
            _delete(self.folder)
            (self.run / ATTEMPT).rmdir()  # fails if another process has claimed the folder meanwhile

    def check(self) -> None:
        """Send a heartbeat.

        Raises:
            RunError: another process has taken over.
        """
        try:
            os.utime(self.folder / OWNER)  # NFS asks the server, while it may answer other questions from its cache
        except OSError as error:
            if error.errno in GONE:
                raise self._lost() from error

    def remove(self, path: Path) -> None:
        """Delete a file of the run folder, which may be missing.

        Raises:
            RunError: another process has taken over, so that the file may be its own; it stays.
            OSError: the file cannot be deleted.
        """
        unwanted = self.folder / secrets.token_hex(8)
        try:
            path.rename(unwanted)
        except FileNotFoundError:
            self.check()
        else:
            unwanted.unlink()

    def _claim(self) -> None:
        place = self.run / ATTEMPT
        if place.is_file():
            raise RunError(f"{place}: must be a folder, but is a file: delete it")
        for _ in range(TRIES):
            name = secrets.token_hex(8)
            prepared, self.folder = self.run / f"{ATTEMPT}.{name}", place / name
            try:
                now = self._prepare(prepared / name)
                with suppress(OSError):  # there is an owner
                    prepared.rename(place)
                if (self.folder / OWNER).exists():
                    return
                self._make_way(now)
            except FileNotFoundError:
                continue  # a new owner has deleted what we prepared
            finally:
                _delete(prepared)
        raise RunBusyError(f"{self.run}: too many processes claim this folder at once: try again")

    def _prepare(self, folder: Path) -> float:
        """Write the claim of this process. Returns the present time by the clock of the file system."""
        folder.parent.mkdir()
        folder.mkdir()
        machine = _machine()
        owner = {
            "host": socket.gethostname(),
            "machine": machine,
            "pid": os.getpid(),
            "process_start": _process_start(os.getpid()) if machine else 0,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "lease_seconds": self.seconds,
        }
        (folder / OWNER).write_text(json.dumps(owner, indent=2) + "\n", encoding="utf-8")
        os.utime(folder / OWNER)
        return (folder / OWNER).stat().st_mtime

    def _make_way(self, now: float) -> None:
        """Turn dead owners into waste, or raise a RunBusyError if an owner is alive."""
        place = self.run / ATTEMPT
        for folder in _inside(place):
            owner = _read_owner(folder)
            if owner is not None and owner.is_alive(now):
                silence = max(0.0, now - owner.heartbeat)
                raise RunBusyError(
                    f"{self.run}: another process is training there: {owner}, whose last heartbeat was "
                    f"{silence:.0f} s ago; if no other one follows, the folder can be taken over in "
                    f"{owner.lease_seconds - silence:.0f} s"
                )
            folder.rename(self.run / f"{ATTEMPT}.{secrets.token_hex(8)}")
        with suppress(OSError):  # Windows does not rename a folder to an empty one
            place.rmdir()

    def _beat(self) -> None:
        with suppress(RunError, OSError):  # the next check of the training raises it, too
            while not self._released.wait(min(BEAT, self.seconds / 4)):
                self.check()

    def _lost(self) -> RunError:
        who = find_owner(self.run) or f"another process, or {ATTEMPT} was deleted"
        return RunError(f"{self.run}: was taken over by {who}; this process has changed nothing since then, and stops")


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        if error.errno in GONE:
            return []
        raise


def _read_owner(folder: Path) -> Owner | None:
    """Return the owner in one of the folders in ``.attempt``. If the file is damaged, all fields have defaults."""
    try:
        with (folder / OWNER).open("rb") as file:  # to open a file makes NFS ask the server for its time of change
            text, heartbeat = file.read(), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    fields: dict[str, Any] = {}
    with suppress(ValueError, RecursionError, AttributeError):
        content = json.loads(text).items()
        fields = {name: value for name, value in content if type(value) is type(getattr(Owner, name, None))}
    return Owner(**fields | {"heartbeat": heartbeat})


def _delete(path: Path) -> None:
    """Delete a folder of a claim or a lease.

    Every step names a path: a process that is stopped in between cannot reach a folder that was renamed meanwhile.

    Raises:
        OSError: the folder cannot be deleted.
    """
    left: list[str] = []
    for _ in range(TRIES):  # an owner that was evicted may still create a file
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        left.clear()
        for folder, _folders, names in os.walk(path, topdown=False):
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
            left += names
            with suppress(OSError):
                os.rmdir(folder)
        if not path.exists():
            return
    # NFS keeps a deleted file as .nfs... while a process of this machine has it open.
    if not all(name.startswith(".nfs") for name in left):
        raise OSError(errno.ENOTEMPTY, "the folder cannot be deleted", str(path))


def _machine() -> str:
    """Identify the start of the operating system and the table of processes; empty where the system does not say."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{start} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> int:
    """Return when a process was started, in ticks of the system; -1 if it has ended, but its parent has not noticed.

    Raises:
        OSError: there is no such process, or it is hidden.
    """
    state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return -1 if state in (b"Z", b"X") else int(fields[18])


def _is_running(pid: int, start: int) -> bool:
    """Whether a process of this machine exists."""
    with suppress(OSError):
        return _process_start(pid) == start
    try:
        os.kill(pid, 0)  # sends no signal; /proc may hide the processes of other users
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
