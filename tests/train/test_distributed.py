"""Training over two processes: the run of one process, wherever it is stopped, and no process left waiting.

One pair of processes does all that `pair()` prepares; what needs the program, or its end, starts its own.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import worker
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed import TCPStore
from worker import LIMIT

from dualfocal.data import load_data
from dualfocal.losses import DualFocalLoss
from dualfocal.runs import Recipe, Run
from dualfocal.train import train
from dualfocal.train.distributed import Group, processes
from dualfocal.train.validation import summarize

CPU = torch.device("cpu")
TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2", "-m", "dualfocal"]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
TIMES = ("images_per_second", "seconds")

# 302 samples to train: shares of 38 and 37, and of one sample each in the last batch.
SUM = Recipe(
    data="digits",
    data_options={"val_size": 498},
    model="worker:slow_cnn",  # which is small_cnn
    epochs=6,
    batch_size=75,
    milestones=(2,),
    precision="float64",
)
MEAN = replace(SUM, data_options={"val_size": 497}, model="small_cnn", reduction="mean", clip_norm=None, milestones=())
MEAN = replace(MEAN, optimizer="adam", lr=5e-3)
# The learning rate rises before the last epoch, so that it is not the best.
ADAPTIVE = replace(SUM, model="small_cnn", epochs=4, lr=0.15, milestones=(3,), lr_factor=3.0)
ADAPTIVE = replace(ADAPTIVE, loss="ada_dual_focal", weights="best_nll", test_each_epoch=True)
NOISY = replace(SUM, model="worker:noisy_cnn", weights="best_nll")
SHORT = replace(SUM, epochs=1)

LIKE_ONE = {"sum": SUM, "mean": MEAN, "adaptive": ADAPTIVE}
REFUSED = {
    "mmce": (replace(SHORT, loss="mmce"), "loss mmce is computed over a whole batch"),
    "kde_xe": (replace(SHORT, loss="kde_xe"), "loss kde_xe is computed over a whole batch"),
    "batch_next": (
        replace(SHORT, loss_options={"rival": "batch_next"}),
        "loss dual_focal is computed over a whole batch",
    ),
    "sync_bn": (replace(SHORT, sync_bn=True), "sync_bn=true needs a CUDA device, but the device is cpu"),
    "small_batch": (replace(SHORT, batch_size=1), "2 processes need at least 2 samples in each batch and split"),
    "small_rest": (replace(SHORT, data_options={"val_size": 499}), "the last batch has 1 samples for 2 processes"),
    "small_part": (replace(SHORT, data_options={"val_size": 1}), "one has 1"),
}


@dataclass
class Pair:
    """What two processes have left in a folder; the second one had a working directory of its own."""

    folder: Path

    def run(self, name: str) -> Run:
        return Run(self.folder / "first" / name)

    def alone(self, name: str) -> Run:
        """What one process has made of the same recipe."""
        return Run(self.folder / "alone" / name)

    def outcome(self, name: str) -> list[str]:
        files = [self.folder / f"outcomes-{rank}.json" for rank in range(2)]
        return [json.loads(file.read_text()).get(name, "did not end") for file in files]

    def exchanged(self, name: str) -> list[Tensor]:
        return [load_file(self.folder / f"exchange-{rank}.safetensors")[name] for rank in range(2)]


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Pair:
    """Started once, even if pytest itself runs as several processes."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(base / "pair.lock"):
        if not (base / "pair" / "ended.json").exists():
            shutil.rmtree(base / "pair", ignore_errors=True)
            with warnings.catch_warnings(action="ignore"):  # notes on the recipes
                _start_pair(base / "pair")
    return Pair(base / "pair")


def _start_pair(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    for place in (first, second):
        place.mkdir(parents=True)
    jobs = {**LIKE_ONE, "noisy": NOISY, "in_the_middle": SUM}
    jobs |= {name: recipe for name, (recipe, _) in REFUSED.items()}
    stores = [meeting_place() for _ in range(len(jobs) + 1)]
    listed = {
        name: {
            "recipe": recipe.to_dict(),
            "out": name,  # relative: each process has a place of its own
            "port": store.port,
        }
        for (name, recipe), store in zip(jobs.items(), stores[1:], strict=True)
    }
    (folder / "jobs.json").write_text(json.dumps({"exchange": stores[0].port, "jobs": listed}))
    stopped_in_the_middle(SUM, first / "in_the_middle")
    started = by_hand([worker.__file__, str(folder)], stores[0], cwd=(first, second))
    for name, recipe in {**LIKE_ONE, "short": SHORT}.items():
        train(recipe, folder / "alone" / name, device="cpu", progress=False)
    ended = end_of(started)
    (folder / "ended.json").write_text(json.dumps(ended))


def stopped_in_the_middle(recipe: Recipe, out: Path) -> None:
    """One process, interrupted at the third step of the second epoch."""
    steps = []

    def clip(*given: object) -> Tensor:
        steps.append(given)
        if len(steps) == 8:
            signal.raise_signal(signal.SIGINT)
        return nn.utils.clip_grad_norm_(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualfocal.train.step.clip_grad_norm_", clip)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out, device="cpu", progress=False)
    assert (saved(out)["epoch"], saved(out)["step"]) == (1, 3)


def meeting_place() -> TCPStore:
    """Where processes find each other, as torchrun has it: at a port that nobody can take meanwhile."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    here = str(Path(worker.__file__).parent)
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": here, "PYTHONWARNINGS": "ignore", "COLUMNS": "120", **more}


def start(command: list[str], cwd: Path, **env: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environment(**env), text=True, **pipes)


def by_hand(
    arguments: list[str], store: TCPStore, cwd: tuple[Path, Path], before: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """Two processes of Python, as torchrun would start them, but sooner."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [
        start([*before, sys.executable, *arguments], place, RANK=str(rank), LOCAL_RANK=str(rank), **shared)
        for rank, place in enumerate(cwd)
    ]


def end_of(started: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; none outlives this, but one that had to be ended has the code -9."""
    until = time.monotonic() + LIMIT
    ended = []
    for process in started:
        try:
            out, err = process.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            out, err = process.communicate()
        ended.append((process.returncode, out, err))
    return ended


def tree(pid: int) -> list[int]:
    """A process and all that it has started, and they in turn, but those that have ended."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # gone meanwhile
            continue
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    actual = [pid]
    for one in actual:
        actual += [child for child, parent in parents.items() if parent == one]
    return [one for one in actual if one in parents]


def kill_tree(pid: int) -> None:
    for one in tree(pid):
        os.kill(one, signal.SIGKILL)


def alive(pids: list[int]) -> list[int]:
    """Those that are still there; on a busy machine a process that is killed takes a moment to go."""
    end = time.monotonic() + 10
    while (left := [pid for pid in pids if tree(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def saved(folder: Path) -> dict[str, Any]:
    """What the checkpoint says of itself; it is written after the line of the log."""
    try:
        with safe_open(folder / "checkpoint.safetensors", "pt") as checkpoint:
            return json.loads(checkpoint.metadata()["dualfocal_checkpoint"])
    except FileNotFoundError:
        return {"epoch": 0}


def train_until(epochs: int, recipe: Recipe, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """torchrun, training slowly, once it has saved so many epochs; and all its processes."""
    (folder / "asked.json").write_text(json.dumps(recipe.to_dict()))
    torchrun = start([*TORCHRUN, "train", "asked.json", "--device", "cpu", "--out", "run"], folder, NAP="0.2")
    until = time.monotonic() + LIMIT
    while saved(folder / "run")["epoch"] < epochs:
        if time.monotonic() > until or torchrun.poll() is not None:
            pytest.fail(f"no {epochs} epochs were saved: {end_of([torchrun])}")
        time.sleep(0.01)
    pids = tree(torchrun.pid)
    assert len(pids) == 3
    return torchrun, pids


def values(run: Run, without: tuple[str, ...] = ()) -> list[dict[str, object]]:
    return [{name: value for name, value in line.items() if name not in (*TIMES, *without)} for line in run.log]


def tensors(run: Run) -> dict[str, Tensor]:
    return load_file(run.path / "model.safetensors") | load_file(run.path / "predictions.safetensors")


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    actual = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in actual}


def assert_close(actual: object, expected: object, tolerance: float = 1e-9) -> None:
    """Lists and dicts of numbers."""
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        actual, expected = list(actual.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, tolerance)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert actual == expected


# One process equals two.


@pytest.mark.parametrize("name", LIKE_ONE)
def test_two_processes_train_what_one_does(name, pair):
    one, two = pair.alone(name), pair.run(name)
    assert pair.outcome(name) == ["done", "done"]
    torch.testing.assert_close(tensors(two), tensors(one), **CLOSE)
    assert_close(values(two), values(one))
    parts = ("val", "test", "calibrated", "weights_of_epoch", "data", "num_weights", "notes")
    assert_close(
        {part: two.result.to_dict()[part] for part in parts},
        {part: one.result.to_dict()[part] for part in parts},
    )
    assert [session["processes"] for session in two.result.sessions] == [2]

    # It would not be much of a test if nothing were learnt, clipped, adapted or chosen.
    assert min(line["val_error"] for line in one.log) < one.log[0]["val_error"] - 0.3
    if name == "sum":
        assert all(line["grad_norm"] > 10 for line in one.log)
    if name == "adaptive":
        assert len({tuple(line["gamma"]) for line in one.log}) == ADAPTIVE.epochs
        assert one.result.weights_of_epoch == ADAPTIVE.epochs - 1
        assert {"test_error", "test_ece", "val_loss"} <= one.log[0].keys()


def test_only_the_first_process_writes(pair):
    for name, recipe in LIKE_ONE.items():
        run = pair.run(name)
        names = {"recipe.json", "log.jsonl", "model.safetensors", "predictions.safetensors", "result.json"}
        assert set(os.listdir(run.path)) == names
        assert run.recipe == recipe
        lines = (run.path / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, recipe.epochs + 1))
    assert os.listdir(pair.folder / "second") == []


def test_all_processes_predict_with_the_batch_norm_of_the_first(pair):
    run = pair.run("noisy")
    assert pair.outcome("noisy") == ["done", "done"]
    data, model = load_data(NOISY.data, **NOISY.data_options), run.model()
    assert model[2].num_batches_tracked == 5 * run.result.weights_of_epoch
    for part in ("val", "test"):
        inputs, target = data.batch(data.splits[part], part=part)
        logits, stored = run.predictions(part)
        with torch.no_grad():
            torch.testing.assert_close(logits, model(inputs.double()), rtol=1e-12, atol=1e-12)
        assert torch.equal(stored, target)
    assert run.result.parts["val"].nll == pytest.approx(min(line["val_nll"] for line in run.log), rel=1e-12)


# Metrics from the shares.


@dataclass(frozen=True)
class Told(Group):
    """A process of a group that is not there: keeps what it would send, and gets what it is told."""

    sent: list[Tensor]
    answers: list[Tensor]

    def sum(self, tensor: Tensor) -> Tensor:
        self.sent.append(tensor)
        return self.answers[len(self.sent) - 1] if self.answers else tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("number", "size"), [(2, 2), (1001, 2), (1000, 3), (777, 7)])
def test_error_and_ece_do_not_depend_on_the_shares(number, size, dtype):
    logits, target = worker.drawn(number, dtype)
    criterion = DualFocalLoss(reduction="sum")
    one = summarize(logits, target, criterion, 100, Group(0, 1, CPU))

    def value(group: Group) -> dict[str, float]:
        return summarize(group.share(logits), group.share(target), criterion, 100, group)

    sent = []
    for rank in range(size):
        sent.append((group := Told(rank, size, CPU, sent=[], answers=[])).sent)
        value(group)
    answers = [torch.stack(parts).sum(0) for parts in zip(*sent, strict=True)]
    for rank in range(size):
        many = value(Told(rank, size, CPU, sent=[], answers=answers))
        assert list(many) == list(one)
        assert (many["error"], many["ece"]) == (one["error"], one["ece"])
        assert_close(many, one, 1e-6 if dtype == torch.float32 else 1e-12)
    assert one["error"] == pytest.approx(float((logits.argmax(1) != target).double().mean()), abs=1e-15)
    assert one["nll"] == pytest.approx(float(nn.functional.cross_entropy(logits.double(), target)), rel=1e-6)


def test_two_real_processes_agree_on_the_metrics(pair):
    actual = [json.loads((pair.folder / f"summary-{rank}.json").read_text()) for rank in range(2)]
    one = summarize(*worker.drawn(1001), DualFocalLoss(reduction="sum"), 100, Group(0, 1, CPU))
    assert actual[0] == actual[1]
    assert (actual[0]["error"], actual[0]["ece"]) == (one["error"], one["ece"])
    assert_close(actual[0], one, 1e-6)


# What processes tell each other.


def test_a_group_of_one_changes_nothing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    rows, model = torch.randn(3, 2), nn.BatchNorm1d(2)
    with processes("cpu") as group:
        assert group == Group(0, 1, CPU)
        assert group.first
        assert group.share(rows) is rows
        assert group.sum(rows) is rows
        assert group.gather(rows) is rows
        assert group.first_does(lambda: None) == b""
        assert group.first_does(lambda: worker.LONG) == worker.LONG
        assert group.wrap(model, sync_bn=False, all_used=True) is model
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("number", [0, 1, 2, 7, 128])
def test_shares_are_all_samples_once_and_in_order(number, size):
    index = torch.randperm(number)
    shares = [Group(rank, size, CPU).share(index) for rank in range(size)]
    assert torch.equal(torch.cat(shares), index)
    assert max(map(len, shares)) == len(shares[0]) == math.ceil(number / size)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_what_two_processes_tell_each_other_arrives_exactly(pair):
    beyond = worker.BEYOND
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    expected = {
        "sum": torch.tensor([2 * beyond, -2 * beyond, -(2**63), 1]),
        "sum_not_contiguous": 3 * torch.arange(6).view(2, 3).t().contiguous(),
        "gather_3_1": torch.cat([rows, rows[:1] + 10]),
        "gather_0_3": rows,
        "gather_0_0": rows[:0],
        "gather_int64": torch.tensor([beyond, beyond + 1, beyond + 1]),
        "tell_empty": torch.empty(0, dtype=torch.uint8),
        "tell_zero": torch.zeros(1, dtype=torch.uint8),
        "tell_long": torch.frombuffer(bytearray(worker.LONG), dtype=torch.uint8),
        "running_mean": torch.ones(3),
        "num_batches": torch.tensor([beyond]),
    }
    for name, tensor in expected.items():
        for actual in pair.exchanged(name):
            assert actual.dtype == tensor.dtype, name
            assert torch.equal(actual, tensor), name
    assert [share.tolist() for share in pair.exchanged("share")] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [share.tolist() for share in pair.exchanged("share_of_1")] == [[0], []]


def test_a_sum_leaves_its_argument_as_it_was(pair):
    assert [tensor.item() for tensor in pair.exchanged("argument_of_sum")] == [1, 2]


# What is refused, and errors that one process alone meets.


@pytest.mark.parametrize("name", REFUSED)
def test_what_processes_cannot_share_is_refused(name, pair):
    first, second = pair.outcome(name)
    assert first == second
    assert first.startswith("ValueError: ")
    assert REFUSED[name][1] in first
    assert not pair.run(name).path.exists()


def test_the_processes_ended_by_themselves(pair):
    for code, out, err in json.loads((pair.folder / "ended.json").read_text()):
        assert code == 0, err
        assert out == ""


FULL = ["bash", "-c", 'ulimit -f 48 && exec "$@"', "bash"]  # no file may have more blocks, of 1 KiB
CAUGHT = """
from pathlib import Path
from dualfocal.train import train
from dualfocal.runs.recipe import load_recipe
try:
    train(load_recipe(Path("asked.json")), "run", device="cpu", progress=False)
except Exception as error:
    caught = f"{type(error).__name__} {error}"
print(caught)
"""


def test_a_program_that_catches_the_error_of_a_full_disk_goes_on_and_so_does_the_run(pair, tmp_path, recwarn):
    (tmp_path / "asked.json").write_text(json.dumps(SHORT.to_dict()))
    store = meeting_place()
    ended = end_of(by_hand(["-c", CAUGHT], store, (tmp_path, tmp_path), before=FULL))
    problem = "run/checkpoint.safetensors: cannot be written: "
    assert [(code, out.partition(problem)[:2]) for code, out, _ in ended] == [(0, ("RunError ", problem))] * 2
    run = Run(tmp_path / "run")
    assert run.state == "stopped"
    assert {name for name in os.listdir(run.path) if name != ".lock"} == {"recipe.json", "log.jsonl"}

    train(SHORT, run.path, device="cpu", progress=False)
    torch.testing.assert_close(tensors(run), tensors(pair.alone("short")), rtol=0, atol=0)
    assert len(run.log) == 1


@pytest.mark.parametrize(
    ("locked", "reason"),
    [
        (True, "another process is training there"),
        (False, "was made by another recipe (seed: 1, not 2): choose another folder"),
    ],
)
def test_an_error_of_the_first_process_alone_ends_both(locked, reason, tmp_path):
    """By hand: torchrun would end the second one if it hung."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(SHORT.to_dict()))
    (folder / "log.jsonl").write_text("")
    seed = "1" if locked else "2"
    arguments = ["-m", "dualfocal", "train", "run", "--set", f"seed={seed}", "--device", "cpu", "--out", "run"]
    store = meeting_place()
    with FileLock(folder / ".lock") if locked else nullcontext():
        before = files(folder)
        (code, out, err), (other_code, other_out, _) = end_of(by_hand(arguments, store, (tmp_path, tmp_path)))
        assert files(folder) == before
    assert code == 2
    assert other_code not in (0, -signal.SIGKILL)
    assert out == other_out == ""
    assert [line for line in err.splitlines() if "learning rate" not in line] == [f"dualfocal: run: {reason}"]


def test_the_program_ends_with_one_line_if_a_loss_is_refused(tmp_path):
    arguments = ["-m", "dualfocal", "train", "digits", "--set", "loss=mmce", "--device", "cpu"]
    store = meeting_place()
    for code, out, err in end_of(by_hand(arguments, store, (tmp_path, tmp_path))):
        assert code == 2
        assert out == ""
        assert err == "dualfocal: loss mmce is computed over a whole batch and cannot be split over 2 processes\n"
    assert os.listdir(tmp_path) == []


# Interrupted, and finished.


def test_killed_and_run_again_has_the_same_bits(pair, tmp_path):
    torchrun, pids = train_until(2, NOISY, tmp_path)
    kill_tree(torchrun.pid)
    torchrun.communicate(timeout=LIMIT)
    assert alive(pids) == []
    run = Run(tmp_path / "run")
    assert run.state == "stopped"
    done = saved(run.path)["epoch"]
    assert 2 <= done < NOISY.epochs

    ((code, out, err),) = end_of(
        [start([*TORCHRUN, "train", "asked.json", "--device", "cpu", "--out", "run", "--json"], tmp_path)]
    )
    assert code == 0
    assert json.loads(out) == {"run": "run", **run.result.to_dict()}  # said once, by one process
    shown = [line for line in err.splitlines() if line.startswith(("resuming", "epoch"))]
    assert len(shown) == len(set(shown)) == 1 + NOISY.epochs - done
    uninterrupted = pair.run("noisy")
    for name in ("model.safetensors", "predictions.safetensors"):
        assert (run.path / name).read_bytes() == (uninterrupted.path / name).read_bytes()
    assert values(run) == values(uninterrupted)
    parts = ("val", "test", "calibrated", "weights_of_epoch")
    assert [run.result.to_dict()[part] for part in parts] == [uninterrupted.result.to_dict()[part] for part in parts]
    assert [session["from_epoch"] for session in run.result.sessions] == [1, done + 1]


def test_ctrl_c_ends_all_processes_and_one_goes_on(pair, tmp_path, recwarn):
    torchrun, pids = train_until(2, SUM, tmp_path)
    torchrun.send_signal(signal.SIGINT)
    ((code, out, err),) = end_of([torchrun])
    assert code not in (0, -signal.SIGKILL)
    assert alive(pids) == []
    assert out == ""
    assert err.count("dualfocal: stopped; run the same command again to continue\n") == 1
    run = Run(tmp_path / "run")
    assert run.state == "stopped"
    done = saved(run.path)["epoch"]
    assert 2 <= done < SUM.epochs
    assert len(run.log) in (done, done + 1)

    train(SUM, run.path, device="cpu", progress=False)
    assert [session["processes"] for session in run.result.sessions] == [2, 1]
    assert [session["from_epoch"] for session in run.result.sessions] == [1, done + 1]
    uninterrupted = pair.run("sum")
    torch.testing.assert_close(tensors(run), tensors(uninterrupted), **CLOSE)
    assert_close(values(run), values(uninterrupted))


def test_two_processes_go_on_where_one_was_stopped_in_the_middle_of_an_epoch(pair):
    run, one = pair.run("in_the_middle"), pair.alone("sum")
    assert pair.outcome("in_the_middle") == ["done", "done"]
    assert [session["processes"] for session in run.result.sessions] == [1, 2]
    torch.testing.assert_close(tensors(run), tensors(one), **CLOSE)
    assert_close(values(run, without=("train_loss",)), values(one, without=("train_loss",)))


def test_steps_done_before_an_interruption_are_counted_once(pair):
    run, one = pair.run("in_the_middle"), pair.alone("sum")
    assert_close([line["train_loss"] for line in run.log], [line["train_loss"] for line in one.log])


def test_a_finished_run_is_said_again_and_not_touched(pair, tmp_path):
    shutil.copytree(pair.run("sum").path, tmp_path / "run")
    before = files(tmp_path)
    command = [*TORCHRUN, "train", "run", "--device", "cpu", "--out", "run"]
    ((code, out, err),) = end_of([start(command, tmp_path)])
    assert code == 0
    assert out.count("run: test part, weights of epoch 6") == 1
    assert f" {100 * Run(tmp_path / 'run').result.parts['test'].error:.2f} │" in out
    assert "epoch 1" not in err
    assert files(tmp_path) == before
