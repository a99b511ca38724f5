"""A PostgreSQL server for one test session, in a temporary folder, reached by a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"


def binaries() -> Path | None:
    """Return the folder of the server's programs; Debian keeps them out of PATH."""
    in_path = shutil.which("initdb")
    folders = [Path(in_path).parent] if in_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server and yield its connection string; the server listens on no network."""
    programs = binaries()
    if programs is None:
        raise FileNotFoundError("no PostgreSQL server (initdb, pg_ctl): apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as name:
        folder, data = Path(name), Path(name, "data")
        as_owner = _unprivileged(folder)
        initdb = ["initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"]
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        start = ["pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"]
        for command in (initdb, start):
            words = [*as_owner, programs / command[0], *command[1:]]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=120, cwd=folder)
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            stop = [*as_owner, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"]
            subprocess.run(stop, check=False, stdout=subprocess.DEVNULL, timeout=60, cwd=folder)


def _unprivileged(folder: Path) -> list[str]:
    """Return the words that drop root's rights, which PostgreSQL refuses, and give the folder to that user."""
    if os.geteuid() != 0:
        return []
    shutil.chown(folder, "nobody")
    folder.chmod(0o755)
    return ["runuser", "-u", "nobody", "--"]
