"""Owners of run folders, written by hand: on another machine, or dead."""

import json
import os
import time
from pathlib import Path
from typing import Any


def write_owner(run: Path, *, silence: float = 0.0, **fields: Any) -> Path:
    """Give a run folder an owner on another machine.

    Args:
        silence: seconds since its last heartbeat.
        fields: other fields of its owner.json.

    Returns:
        The folder of its temporary files.
    """
    folder = run / ".attempt" / "0123456789abcdef"
    folder.mkdir(parents=True)
    owner = {"host": "elsewhere", "machine": "other", "pid": 7, "process_start": 1, "lease_seconds": 90.0}
    (folder / "owner.json").write_text(json.dumps(owner | fields))
    os.utime(folder / "owner.json", times=(time.time() - silence,) * 2)
    return folder
