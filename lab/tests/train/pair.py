"""One pair of processes that does all jobs of the distributed tests, started once per test session."""

import json
import os
import shutil
import signal
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import worker
from filelock import FileLock
from launch import meeting_place, saved_position, start_pair, wait_for_checkpoint, wait_for_end
from safetensors.torch import load_file
from torch import Tensor, nn

from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import train

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
MEAN = replace(MEAN, optimizer="adam", lr=5e-3, epochs=4)
# The learning rate rises before the last epoch, so that the last epoch is not the best.
ADAPTIVE = replace(SUM, model="small_cnn", epochs=4, lr=0.15, milestones=(3,), lr_factor=3.0)
ADAPTIVE = replace(ADAPTIVE, loss="ada_dual_focal", weights="best_nll", test_each_epoch=True)
NOISY = replace(SUM, model="worker:noisy_cnn", weights="best_nll")
SHORT = replace(SUM, epochs=1)

LIKE_ONE = {"sum": SUM, "mean": MEAN, "adaptive": ADAPTIVE}
REFUSED = {
    "mmce": (replace(SHORT, loss="mmce"), "loss mmce is computed over a whole batch"),
    "kde_xe": (replace(SHORT, loss="kde_xe"), "loss kde_xe is computed over a whole batch"),
    "batch_next": (replace(SHORT, loss_options={"rival": "batch_next"}), "dual_focal is computed over a whole batch"),
    "sync_bn": (replace(SHORT, sync_bn=True), "sync_bn=true needs a CUDA device, but the device is cpu"),
    "small_batch": (replace(SHORT, batch_size=1), "2 processes need at least 2 samples in each batch and split"),
    "small_rest": (replace(SHORT, data_options={"val_size": 499}), "the last batch has 1 sample for 2 processes"),
    "small_part": (replace(SHORT, data_options={"val_size": 1}), "one has 1"),
}


@dataclass
class Pair:
    """What the two processes have left in a folder; the second one had its own working directory."""

    folder: Path

    def run(self, name: str) -> Run:
        return Run(self.folder / "first" / name)

    def alone(self, name: str) -> Run:
        """Return the run of one process with the same recipe."""
        return Run(self.folder / "alone" / name)

    def outcomes(self, name: str) -> list[str]:
        files = [self.folder / f"outcomes-{rank}.json" for rank in range(2)]
        return [json.loads(file.read_text()).get(name, "did not end") for file in files]

    def received(self, name: str) -> list[Tensor]:
        return [load_file(self.folder / f"exchange-{rank}.safetensors")[name] for rank in range(2)]

    @property
    def summaries(self) -> list[dict[str, float]]:
        return [json.loads((self.folder / f"summary-{rank}.json").read_text()) for rank in range(2)]

    @property
    def ends(self) -> list[tuple[int, str, str]]:
        """Exit code, stdout and stderr of each process."""
        return json.loads((self.folder / "ends.json").read_text())


def shared_pair(base: Path) -> Pair:
    """Start the pair, or wait for the one that another process of pytest-xdist has started."""
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with FileLock(base / "pair.lock"):
        if not (base / "pair" / "ends.json").exists():
            shutil.rmtree(base / "pair", ignore_errors=True)
            with warnings.catch_warnings(action="ignore"):  # notes on the recipes
                _start(base / "pair")
    return Pair(base / "pair")


def _start(folder: Path) -> None:
    first, second = folder / "first", folder / "second"
    for place in (first, second):
        place.mkdir(parents=True)
    for name, recipe in {**LIKE_ONE, "short": SHORT}.items():
        train(recipe, folder / "alone" / name, device="cpu", progress=False)
    kill_after_an_epoch(NOISY, first / "killed")
    interrupt_in_the_second_epoch(SUM, first / "in_the_middle")
    shutil.copytree(folder / "alone" / "short", first / "finished")
    (first / "other_recipe").mkdir()
    (first / "other_recipe" / "recipe.json").write_text(json.dumps(SHORT.to_dict()))

    recipes = {**LIKE_ONE, "noisy": NOISY, "killed": NOISY, "in_the_middle": SUM, "full_disk": SHORT}
    recipes |= {name: recipe for name, (recipe, _) in REFUSED.items()}
    recipes["other_recipe"] = replace(SHORT, seed=2)
    # The folders are relative: each process has its own working directory.
    jobs: dict[str, dict[str, Any]] = {
        name: {"recipe": recipe.to_dict(), "out": name} for name, recipe in recipes.items()
    }
    jobs["full_disk"]["file_limit"] = 48 * 1024
    jobs["finished"] = {"arguments": ["train", str(first / "finished"), "--device", "cpu", "--json"]}
    stores = [meeting_place() for _ in range(len(jobs) + 1)]
    for job, store in zip(jobs.values(), stores[1:], strict=True):
        job["port"] = store.port
    (folder / "jobs.json").write_text(json.dumps({"exchange": stores[0].port, "jobs": jobs}))
    ends = wait_for_end(start_pair([worker.__file__, str(folder)], stores[0], cwd=(first, second)))
    (folder / "ends.json").write_text(json.dumps(ends))


def kill_after_an_epoch(recipe: Recipe, out: Path) -> None:
    """Train with the program in two processes, and kill both."""
    file = out.with_suffix(".json")
    file.write_text(json.dumps(recipe.to_dict()))
    arguments = ["-m", "dualfocal", "train", str(file), "--device", "cpu", "--out", str(out)]
    store = meeting_place()
    processes = start_pair(arguments, store, (out.parent, out.parent), NAP="0.15")
    wait_for_checkpoint(out, processes)
    for process in processes:
        process.kill()
    assert [code for code, _, _ in wait_for_end(processes)] == [-signal.SIGKILL] * 2
    file.unlink()
    assert Run(out).state == "stopped"


def interrupt_in_the_second_epoch(recipe: Recipe, out: Path) -> None:
    """Train in this process, and interrupt it at the third step of the second epoch."""
    steps = 0

    def clip(*arguments: object) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 8:
            signal.raise_signal(signal.SIGINT)
        return nn.utils.clip_grad_norm_(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dualfocal_lab.train.step.clip_grad_norm_", clip)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, out, device="cpu", progress=False)
    position = saved_position(out)
    assert (position["epoch"], position["step"]) == (1, 3)
