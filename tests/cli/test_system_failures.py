"""Commands in real processes: Ctrl-C while they start, full disks, closed pipes, too little memory."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dualfocal import metrics


@pytest.fixture
def file():
    rng = np.random.default_rng(0)
    np.savez("a.npz", logits=rng.normal(size=(200, 3)), target=rng.integers(0, 3, 200))
    return "a.npz"


# Ctrl-C


@pytest.mark.parametrize("module", ["typer.main", "numpy", "torch.nn.functional"])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(module, file):
    """-X importtime prints a line for each module that is imported, which tells when to send the signal."""
    arguments = [sys.executable, "-X", "importtime", "-m", "dualfocal", "evaluate", file]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        lines = []
        for line in child.stderr:
            lines.append(line)
            if re.search(rf"\| +{re.escape(module)}$", line.rstrip()):
                child.send_signal(signal.SIGINT)
                break
        out, err = child.communicate()
    assert child.returncode == 130
    assert out == ""
    assert [line for line in (*lines, *err.splitlines()) if not line.startswith("import time:")] == []


def test_ctrl_c_stays_ignored_in_a_background_job(file):
    arguments = [sys.executable, "-X", "importtime", "-m", "dualfocal", "evaluate", file, "--no-inference"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the child inherits
    try:
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with child:
        next(line for line in child.stderr if re.search(r"\| +torch\.nn\.functional$", line.rstrip()))
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate()
    assert child.returncode == 0
    assert "200 samples" in out


# Output that cannot be written


def write_to(stdout, *arguments):
    """Exit code and stderr of a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "dualfocal", *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line():
    with open("/dev/full", "w") as full:
        for arguments in (["--version"], ["paper", "errata"], ["paper", "errata", "--json"]):
            assert write_to(full, *arguments) == (1, "dualfocal: standard output: No space left on device\n")


def test_a_closed_pipe_ends_quietly():
    for arguments in (["paper", "errata"], ["paper", "errata", "--json"]):
        read, write = os.pipe()
        os.close(read)
        assert write_to(write, *arguments) == (141, "")
        os.close(write)


def test_a_full_disk_under_a_file_is_one_line_and_leaves_nothing(file, run):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # the system then refuses to write, as on a full disk
    try:
        for name in ("x.pdf", "x.png", "x.svg"):
            _, err = run("evaluate", file, "--no-inference", "--plot", name, code=1)
            assert err.splitlines()[1:] == [f"dualfocal: {name}: File too large"]
        assert run("report", file, "--calibrators", "none", "-o", "x.html", code=1)[1] == (
            "dualfocal: x.html: File too large\n"
        )
        _, err = run("calibrate", file, "--method", "vector", "--out", "x.npz", code=1)
        assert re.fullmatch(r"dualfocal: x\.npz: .*File too large.*", err.splitlines()[-1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in Path().iterdir() if path.is_file()] == [file]  # matplotlib makes a folder, its cache


# Memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 7.45 GiB for an array"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate\n 2 GiB."),
    ],
    ids=str,
)
def test_too_little_memory_is_one_line_with_the_command(error, file, refused, monkeypatch):
    def evaluate(*_, **__):
        raise error

    monkeypatch.setattr(metrics, "evaluate", evaluate)
    line = refused("evaluate", file, "--num-bins", "9", code=1)
    assert line.startswith("not enough memory for `dualfocal evaluate a.npz --num-bins 9`: ")
    assert line.endswith(" ".join(str(error).split()) or "MemoryError")
