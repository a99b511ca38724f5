"""Trainings that are killed at any moment when they touch the disk lose nothing: the end is the same, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import FILES, attacks, outcome, write_data

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}

# Forks trainings, which is faster than to start them, and kills each of them at one of its file events.
# Arguments: folder with the data, number of events to try. Prints the number of events of a training.
KILLER = """
import os, random, signal, sys
from pathlib import Path
import torch
from tiny_runs import Watch, go, quick, recipe_for

torch.set_num_threads(1)
out, tries = Path(sys.argv[1]), int(sys.argv[2])
recipe = recipe_for(out / "data.npz", epochs=2)

def training(folder, killed_at=0):
    '''Return the status of a training in another process.'''
    child = os.fork()
    if child == 0:
        watch = Watch(folder, killed_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
        go(recipe, folder)
        if folder.name == "counted":
            Path(out, "events").write_text(str(len(watch.events)))
        os._exit(0)
    return os.waitpid(child, 0)[1]

with quick():
    go(recipe, out / "uninterrupted")  # everything is imported now
    assert training(out / "counted") == 0
    count = int(Path(out, "events").read_text())
    last = range(count - 2, count + 1)  # after the result has been written
    for number in sorted({*random.Random(0).sample(range(1, count + 1), min(tries, count)), *last}):
        folder = out / f"once-{number}"
        assert training(folder, killed_at=number) == signal.SIGKILL, number
        assert training(folder) == 0, number
    # At the first event, then at the second one of the resumed training, ...: it gets a bit further each time.
    for number in range(1, min(tries, count // 3) + 1):
        assert training(out / "often", killed_at=number) == signal.SIGKILL, number
    assert training(out / "often") == 0
print(count)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """Runs that were killed and resumed, and one that was not."""
    folder = tmp_path_factory.mktemp("kills")
    write_data(folder / "data.npz")
    command = [sys.executable, "-c", KILLER, str(folder), str(attacks(14))]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40  # so often does a training touch the disk
    print(f"killed at {len(list(folder.glob('once-*')))} of {int(done.stdout)} events")
    return folder


def test_trainings_that_are_killed_and_resumed_end_with_the_same_bits(killed) -> None:
    expected, folders = outcome(killed / "uninterrupted"), [*killed.glob("once-*"), killed / "often"]
    assert len(folders) > 14
    for folder in folders:
        assert outcome(folder) == expected, folder.name


def test_killed_trainings_leave_no_other_file(killed) -> None:
    for folder in [*killed.glob("once-*"), killed / "often"]:
        assert sorted(path.name for path in folder.iterdir()) == FILES, folder.name
