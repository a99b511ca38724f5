"""CUDA's multi-process service: several trainings compute on one GPU at the same time instead of in turns."""

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"  # comes with the driver
FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")  # variables by which processes find the service
PATIENCE = 30.0  # seconds to start or stop


@contextmanager
def multi_process_service(wanted: bool = True) -> Iterator[bool]:
    """Context in which processes that are started share the GPU by the multi-process service.

    The service has folders of its own and stops at the end, so that it does not affect other programs. If the user has
    started one, that one is used. Without the program, or if it does not start, the GPU is shared in turns.

    Args:
        wanted: whether to start the service; False: do nothing.

    Yields:
        Whether a service of this context is running.
    """
    if not wanted or any(os.environ.get(name) for name in FOLDERS) or shutil.which(CONTROL) is None:
        yield False
        return
    with tempfile.TemporaryDirectory(prefix="dualfocal-mps-", ignore_cleanup_errors=True) as folder:
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        try:
            running = _control(folder, "-d")
            try:
                yield running
            finally:
                if running:
                    _control(folder, commands="quit\n")
        finally:
            for name in FOLDERS:
                os.environ.pop(name, None)


def _control(folder: str, *arguments: str, commands: str = "") -> bool:
    """Run the control program; a failure is a warning, since trainings run without the service, too."""
    with open(os.path.join(folder, "output.txt"), "w+") as output:  # not a pipe, which the service could keep open
        try:
            process = subprocess.run(
                [CONTROL, *arguments], input=commands, stdout=output, stderr=output, text=True, timeout=PATIENCE
            )
            if process.returncode == 0:
                return True
            output.seek(0)
            problem = output.read()
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    warnings.warn(f"{CONTROL} failed, so trainings use the GPU in turns: {' '.join(problem.split())}", stacklevel=3)
    return False
