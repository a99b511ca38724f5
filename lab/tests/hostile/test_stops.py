"""Trainings that are stopped (SIGSTOP), lose their folder to another process and go on do not change a byte of it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_runs import FILES, attacks, outcome, write_data

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
# An attempt is stopped before each of these, the last one of its kind; more moments are chosen at random.
MOMENTS = (
    "os.rename .attempt",
    "os.rename log.jsonl",
    "step",
    "append",
    "os.rename checkpoint.safetensors",
    "os.rename model.safetensors",
    "os.rename result.json",
)

# Forks trainings by the command line, and stops each of them at one of its events. Another training takes over and
# finishes, then the stopped one continues. Arguments: folder with the data, number of moments besides MOMENTS, MOMENTS
# as JSON. Prints each Moment, and the events of a training, as JSON.
STOPPER = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from dualfocal.cli import main
from dualfocal_lab.runs.log import OpenLog
from dualfocal_lab.train import engine, loop
from tiny_runs import Watch, go, quick, recipe_for

torch.set_num_threads(1)
LEASE = 0.2
out, tries, moments = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
recipe = recipe_for(out / "data.npz", epochs=2)
(out / "recipe.json").write_text(json.dumps(recipe.to_dict()))

def counted(watch, owner, method, event):
    original = getattr(owner, method)
    def call(*arguments):
        watch.touch(event)
        return original(*arguments)
    setattr(owner, method, call)

def training(folder, stopped_at=0):
    '''Start a training in another process.'''
    child = os.fork()
    if child == 0:
        engine.train.__kwdefaults__["lease_seconds"] = LEASE
        watch = Watch(folder, stopped_at, lambda: os.kill(os.getpid(), signal.SIGSTOP))
        counted(watch, loop.Forward, "__call__", "step")
        counted(watch, OpenLog, "append", "append")
        os.dup2(os.open(out / f"stderr-{os.getpid()}", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main(["train", str(out / "recipe.json"), "--out", str(folder), "--device", "cpu"])
        except SystemExit as end:
            (out / "events").write_text(json.dumps(watch.events))
            os._exit(end.code)
    return child

def everything(folder):
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in paths}

with quick():
    go(recipe, out / "uninterrupted")  # everything is imported now
    os.waitpid(training(out / "counted"), 0)
    events = json.loads(Path(out, "events").read_text())
    named = {len(events) - events[::-1].index(name) for name in moments}
    chosen = named | set(random.Random(0).sample(range(1, len(events) + 1), min(tries, len(events))))
    for number in sorted(chosen):
        folder = out / f"stopped-{number}"
        child = training(folder, stopped_at=number)
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]), number
        time.sleep(1.5 * LEASE)
        assert os.waitpid(training(folder), 0)[1] == 0, number
        before = everything(folder)
        os.kill(child, signal.SIGCONT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        after = everything(folder)
        changed = [path for path in before.keys() | after.keys() if before.get(path) != after.get(path)]
        lines = Path(out, f"stderr-{child}").read_text().splitlines()
        print(json.dumps({"number": number, "code": code, "changed": changed, "lines": lines}))
print(json.dumps(events))
"""


@dataclass
class Moment:
    """A moment at which a training was stopped, and what it did when it continued after another one had finished.

    Attributes:
        number: Number of its event, counted from 1.
        code: Exit code.
        changed: Paths that it has changed.
        lines: Lines on stderr.
    """

    number: int
    code: int
    changed: list[str]
    lines: list[str]


@dataclass
class Stops:
    """A folder of runs, the moments, and the events of a training."""

    folder: Path
    moments: list[Moment]
    events: list[str]

    def run(self, moment: Moment) -> Path:
        return self.folder / f"stopped-{moment.number}"


@pytest.fixture(scope="module")
def stops(tmp_path_factory) -> Stops:
    folder = tmp_path_factory.mktemp("stops")
    write_data(folder / "data.npz")
    command = [sys.executable, "-c", STOPPER, str(folder), str(attacks(5)), json.dumps(MOMENTS)]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *moments, events = map(json.loads, done.stdout.splitlines())
    print(f"stopped at {len(moments)} of {len(events)} events")
    return Stops(folder, [Moment(**moment) for moment in moments], events)


def test_a_training_that_was_taken_over_says_so_and_changes_nothing(stops) -> None:
    claimed, finished = (stops.events.index(f"os.rename {name}") + 1 for name in (".attempt", "result.json"))
    owners = [moment for moment in stops.moments if claimed < moment.number <= finished]
    assert len(owners) > 5
    for moment in owners:
        assert moment.code == 2, moment
        *before, last = moment.lines
        assert last.startswith(f"dualfocal: {stops.run(moment)}: was taken over by another process"), moment
        assert all(line.startswith("epoch ") for line in before), moment
        assert moment.changed == [], moment


def test_a_training_that_was_stopped_before_it_claimed_the_folder_changes_no_file(stops) -> None:
    """Nor does one that was stopped after its result: only the time of the folder changes, by a claim that finds it."""
    for moment in stops.moments:
        assert moment.code in (0, 2), moment
        assert set(moment.changed) <= {str(stops.run(moment))}, moment


def test_the_training_that_took_over_has_the_same_bits_and_files_as_an_undisturbed_one(stops) -> None:
    expected = outcome(stops.folder / "uninterrupted")
    for moment in stops.moments:
        assert outcome(stops.run(moment)) == expected, moment
        assert sorted(path.name for path in stops.run(moment).iterdir()) == FILES, moment
