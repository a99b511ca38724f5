"""Bad prediction files end in one clear line. DUALFOCAL_ATTACK=100 tries 100 times as many damaged files."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from bad_files import FILES, LOGITS, TARGET, BadFile, bombs, mutants, npz

from dualfocal.calibrators import TemperatureScaling, save_calibrator
from dualfocal.cli import main

ATTACK = int(os.environ.get("DUALFOCAL_ATTACK", "1"))
SECONDS = 20  # for one file; quadratic readers took minutes
ROOM = 250_000_000  # bytes of memory that a process may take for a bomb, beyond its imports

# Evaluate files in a process with little memory; prints code, stdout and stderr of each as JSON.
CHILD = """
import contextlib, io, json, re, resource, sys
from pathlib import Path
import dualfocal.predictions, dualfocal.metrics, dualfocal.calibrators, pyarrow.parquet, pyarrow.compute, pyarrow.ipc
from dualfocal.cli import main

results = []
for arguments in json.loads(sys.argv[1]):
    size = int(re.search(r"VmSize:\\s*([0-9]+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[2]), resource.RLIM_INFINITY))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


def command(file: BadFile, folder: Path) -> list[str]:
    """Write the file, and return the command that evaluates it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"file{''.join(Path(file.name).suffixes)}"
    file.write(path)
    return ["evaluate", str(path), "--no-inference", *(option.format(folder=folder) for option in file.options)]


def check(file: BadFile, path: str, code: object, out: str, err: str) -> None:
    """Check that there is a result, or one line that names the file; and that nothing can control a terminal."""
    harmless = file.words is None or (file.may_pass and code == 0)
    assert code == (0 if harmless else file.code), (file.name, err[:3000])
    assert all(character.isprintable() or character == "\n" for character in out + err), file.name
    if harmless:
        assert out
        return
    *notes, line = err.splitlines()
    # Which arrays were read, or that the file is read in one pass.
    assert all(re.search(" from (\\d+ columns )?'|read in one pass", note) for note in notes), (file.name, err[:3000])
    assert line.startswith(f"dualfocal: {path}: "), (file.name, line[:3000])
    assert re.search(file.words or "", line.removeprefix(f"dualfocal: {path}: ")), (file.name, line[:3000])
    assert len(line) < 3000, file.name


def evaluate(file: BadFile, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command(file, folder)
    start = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert time.monotonic() - start < SECONDS, file.name
    check(file, arguments[1], ended.value.code, *capsys.readouterr())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_bad_file_ends_in_one_line(file, tmp_path, capsys):
    evaluate(file, tmp_path, capsys)


def test_damage_never_ends_in_a_traceback(tmp_path, capsys):
    for file in mutants(20 * ATTACK):
        evaluate(file, tmp_path, capsys)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space")
@pytest.mark.slow
def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    files = bombs()
    commands = [command(file, tmp_path / str(i)) for i, file in enumerate(files)]
    child = [sys.executable, "-c", CHILD, json.dumps(commands), str(ROOM)]
    start = time.monotonic()
    done = subprocess.run(child, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < SECONDS * len(files)
    for file, arguments, result in zip(files, commands, json.loads(done.stdout), strict=True):
        check(file, arguments[1], *result)


@pytest.mark.parametrize("name", ["evaluate", "report", "compare", "calibrate", "apply", "monitor"])
def test_every_command_that_reads_predictions_has_the_limit(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("a.npz", "b.npz"):
        npz()(Path(file))
    save_calibrator(TemperatureScaling().fit(torch.tensor(LOGITS), torch.tensor(TARGET)), "cal.npz")
    arguments = {
        "evaluate": ["a.npz"],
        "report": ["a.npz", "-o", "page.html"],
        "compare": ["a.npz", "b.npz"],
        "calibrate": ["a.npz", "--out", "new.npz"],
        "apply": ["cal.npz", "a.npz", "--out", "new.npz"],
        "monitor": ["state.json", "a.npz"],
    }
    with pytest.raises(SystemExit) as ended:
        main([name, *arguments[name], "--max-memory", "100"])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("dualfocal: a.npz: ")
    assert [words for words in ("192 bytes", "100 bytes", "--max-memory 1MB") if words not in line] == []
