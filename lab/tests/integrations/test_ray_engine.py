"""Studies on a real Ray cluster of several nodes on this machine: losses of workers and nodes, refusals, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualfocal import __version__
from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.layout import CHECKPOINT, MODEL, PREDICTIONS
from dualfocal_lab.study import LocalEngine, RayEngine, RunStatus, Study, ray_engine, run_study
from dualfocal_lab.train.distributed import num_cores

pytest.importorskip("ray", reason="make test-integrations installs it")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray gives warnings of its own

NETS = """
import os, time
from pathlib import Path
from torch import nn

class Nap(nn.Module):
    def forward(self, inputs):
        time.sleep(float(os.environ.get("NAP", "0")) if self.training else 0)
        return inputs

def linear(*, num_classes):
    Path("pids").mkdir(exist_ok=True)
    Path("pids", str(os.getpid())).touch()
    return nn.Sequential(nn.Flatten(), Nap(), nn.Linear(64, num_classes))

def counted(*, num_classes):
    with open("trainings", "a") as file:
        file.write("x")
    return linear(num_classes=num_classes)
"""
EPOCHS = 40
RECIPE = Recipe(
    data="digits", data_options={"val_size": 100}, model="nets_for_ray:linear", epochs=EPOCHS, lr=0.01, milestones=(30,)
)
STOPPED = "dualfocal: stopped; run the same command again to continue"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_for_ray.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@contextmanager
def started_cluster(nodes: int) -> Iterator[Any]:
    """Start a cluster whose head trains nothing, and nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def alive(pid: str) -> bool:
    status = Path("/proc", pid, "stat")
    return status.exists() and " Z " not in status.read_text()


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_study_that_loses_a_worker_and_a_node_has_the_results_of_the_local_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exploding = replace(RECIPE, model="nets_for_ray:counted", lr=1e30, milestones=())
    entries = {"fine": RECIPE, "slow": replace(RECIPE, lr=0.001), "explodes": exploding}
    study = Study("t", {entry: {seed: replace(each, seed=seed) for seed in (0, 1)} for entry, each in entries.items()})
    monkeypatch.setattr(ray_engine, "CHECKPOINT_PAUSE", 0.0)
    monkeypatch.setenv("NAP", "0.02")
    lost: list[str] = []
    with started_cluster(nodes=3) as cluster:

        def lose(runs: Sequence[RunStatus]) -> None:
            """Kill a worker when three runs have begun, and later a whole node."""
            begun = [run for run in runs if run.state == "running" and run.epoch >= 3]
            if not lost and len(begun) >= 2:
                victim = next(pid for pid in sorted(os.listdir("pids")) if alive(pid))
                os.kill(int(victim), signal.SIGKILL)
                lost.append(victim)
            elif len(lost) == 1 and (late := [run for run in begun if run.epoch >= 10]):
                prefix = late[0].node.rpartition("/")[2]
                node = next(node for node in cluster.worker_nodes if node.node_id.startswith(prefix))
                cluster.remove_node(node, allow_graceful=False)
                lost.append(late[0].name)

        failed = run_study(study, Path("ray"), engine=RayEngine(cluster.address), watch=lose)
    assert len(lost) == 2
    assert sorted(failed) == [("explodes", 0), ("explodes", 1)]
    assert failed["explodes", 0].startswith("ray/runs/explodes-seed0: the ")
    attempts = len(Path("trainings").read_text())

    monkeypatch.delenv("NAP")
    run_study(study, Path("local"), engine=LocalEngine(jobs=num_cores(), device="cpu"))  # one thread for each, too
    assert len(Path("trainings").read_text()) == 2 * attempts  # they were not retried
    sessions = []
    for key, folder in study.folders(Path("ray")).items():
        local = study.folders(Path("local"))[key]
        if key[0] != "explodes":
            for name in (MODEL, PREDICTIONS):
                assert (folder / name).read_bytes() == (local / name).read_bytes()
            result = Run(folder).require_result()
            assert result.evaluation("test") == Run(local).require_result().evaluation("test")
            assert not result.notes
            sessions.append([session["from_epoch"] for session in result.sessions])
    resumed = [starts for starts in sessions if len(starts) > 1]
    assert len(resumed) >= 2  # the run of the killed worker, and that of the lost node
    assert all(start > 1 for starts in resumed for start in starts[1:])
    assert {session["threads"] for session in result.sessions} == {1}
    assert not list(Path("ray").glob(".ray*"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with started_cluster(nodes=1) as cluster:
        yield cluster


def test_a_folder_that_nodes_cannot_see_is_refused(cluster: Any) -> None:
    """The path leads through an open folder of this process, so that other processes do not have it."""
    Path("private").mkdir()
    number = os.open("private", os.O_RDONLY)
    out = Path(f"/proc/self/fd/{number}/out")
    try:
        with pytest.raises(RunError, match=r"Ray node .+: /proc/.*/out .* storage that all nodes share"):
            run_study(Study("t", {"a": {0: RECIPE}}), out, engine=RayEngine(cluster.address))
    finally:
        os.close(number)
    assert not list(Path("private").rglob("*.*"))


def test_a_node_without_the_data_is_named(cluster: Any) -> None:
    study = Study("t", {"a": {0: replace(RECIPE, data="nowhere.npz", data_options={})}})
    with pytest.raises(RunError, match=r"Ray node .+: .*nowhere\.npz"):
        run_study(study, Path("out"), engine=RayEngine(cluster.address))
    assert not Path("out/runs").exists()


def test_a_machine_that_is_too_small_is_refused() -> None:
    study = Study("t", {"a": {0: RECIPE}})
    with pytest.raises(RunError, match="needs 1000 CPUs and 0 GPUs on one node, but the nodes have"):
        run_study(study, Path("out"), engine=RayEngine("local", cpus_per_run=1000))


def test_a_node_with_another_version_is_named(tmp_path: Path) -> None:
    package = tmp_path / "other" / "dualfocal" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text('__version__ = "0.0.1"')
    with started_cluster(nodes=0) as cluster:
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, env_vars={"PYTHONPATH": str(tmp_path / "other")})
        cluster.wait_for_nodes()
        with pytest.raises(RunError, match=rf"Ray node .+: has dualfocal 0\.0\.1, .* {re.escape(__version__)} "):
            run_study(Study("t", {"a": {0: RECIPE}}), Path("out"), engine=RayEngine(cluster.address))


def test_an_error_in_a_task_names_run_and_node(cluster: Any) -> None:
    study = Study("t", {"a": {0: replace(RECIPE, model="nets_for_ray:missing")}})
    with pytest.raises(RunError, match=r"^out/runs/a-seed0: on Ray node .+: .*missing"):
        run_study(study, Path("out"), engine=RayEngine(cluster.address))


def test_a_task_waits_for_a_folder_that_is_in_use(cluster: Any) -> None:
    """As after the loss of a node, whose claim on the folder lasts longer than the node."""
    study, begun = Study("t", {"a": {0: replace(RECIPE, epochs=1, milestones=())}}), []
    with ExitStack() as claim:
        claim.enter_context(Run("out/runs/a-seed0").claimed(study.recipes["a"][0]))

        def release(runs: Sequence[RunStatus]) -> None:
            begun.extend(run for run in runs if run.state == "running")
            if len(begun) == 6:  # three seconds: it has tried
                claim.close()

        assert run_study(study, Path("out"), engine=RayEngine(cluster.address), watch=release) == {}
    assert len(begun) >= 6
    assert Run("out/runs/a-seed0").state == "finished"


def wait_until(condition: Callable[[], object], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(fulfilled)


def test_ctrl_c_saves_every_training_and_a_second_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["--losses", "cross_entropy", "--seeds", "0,1", "--set", f"epochs={EPOCHS}"]
    settings += ["--model", "nets_for_ray:linear", "--out", "out"]
    command = [sys.executable, "-m", "dualfocal", "study", *settings, "--engine", "ray"]
    runs = [Run(f"out/runs/cross_entropy-seed{seed}") for seed in (0, 1)]
    monkeypatch.setenv("NAP", "0.05")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    begun = wait_until(lambda: all(run.num_epochs for run in runs) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)  # a terminal, too, sends it to all processes
    _, errors = process.communicate(timeout=120)
    assert begun
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1] == STOPPED
    assert "Traceback" not in errors
    assert [run.state for run in runs] == ["stopped", "stopped"]
    assert all((run.path / CHECKPOINT).exists() for run in runs)
    epochs = [run.num_epochs for run in runs]

    monkeypatch.delenv("NAP")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == 1
    assert "cross_entropy-seed0: finished" in done.stderr
    starts = [[session["from_epoch"] for session in run.require_result().sessions] for run in runs]
    assert starts == [[1, epoch + 1] for epoch in epochs]
