"""Losses that do not stay finite: where it happened is reported, and the last checkpoint is kept."""

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import contents, go, outcome, small

from dualfocal.cli import main
from dualfocal_lab.data import load_data
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import DivergedError
from dualfocal_lab.train.randomness import make_batches

pytestmark = pytest.mark.usefixtures("nets", "quick")


def huge_at(path: Path, place: int) -> None:
    """Data of which one training sample is too large for float32 once it is multiplied by 10."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    x[place] = [3e38, -3e38, 3e38, -3e38, 3e38]
    others = {f"x_{part}": x[:9] * 0 for part in ("val", "test")} | {
        f"y_{part}": np.arange(9) % 3 for part in ("val", "test")
    }
    np.savez(path, x_train=x, y_train=rng.integers(0, 3, 60), **others)


def strict(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_sample_that_breaks_the_loss_is_found(tmp_path) -> None:
    huge_at(tmp_path / "own.npz", place=17)
    settings = {"loss": "cross_entropy", "epochs": 2, "batch_size": 10, "milestones": ()}
    recipe = Recipe(data="own.npz", model="nets_for_tests:loud", **settings)
    batches = make_batches(recipe, load_data("own.npz"), epoch=0)
    step = next(i for i, batch in enumerate(batches) if 17 in batch)
    with pytest.raises(DivergedError) as error:
        go(recipe, tmp_path / "run")
    report = strict(tmp_path / "run" / "failure.json")
    del report["crc32"]
    assert Run(tmp_path / "run").failure == error.value.report == report
    assert Run(tmp_path / "run").state == "failed"
    message = str(error.value)
    assert f"in epoch 1, step {step + 1} of 6, at a learning rate of 0.1; no checkpoint was saved yet; " in message
    assert str(tmp_path / "run" / "failure.json") in message
    assert len(message.splitlines()) == 1
    assert report["what"] in ("the loss is nan", "the loss is inf")
    assert (report["schema"], report["epoch"], report["step"], report["steps"]) == (1, 1, step + 1, 6)
    assert (report["lr"], report["checkpoint_of_epoch"]) == (0.1, None)
    assert len(report["recent_losses"]) == step + 1
    assert report["recent_losses"][-1] is None
    assert all(loss > 0 for loss in report["recent_losses"][:-1])
    assert len(report["recent_grad_norms"]) == step
    assert report["weight_norm"] > 0
    batch = report["batch"]
    assert batch["samples"] == batches[step].tolist()
    assert batch["targets"] == load_data("own.npz").target[batches[step]].tolist()
    assert batch["inputs"]["max"] == -batch["inputs"]["min"] == float(np.float32(3e38))
    assert (batch["inputs"]["not_finite"], batch["inputs"]["shape"]) == (0, [10, 5])
    assert batch["inputs"]["mean"] == pytest.approx(3e38 / 50, rel=1e-6)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert sorted(contents(tmp_path / "run")) == ["failure.json", "log.jsonl", "recipe.json"]


def test_the_last_checkpoint_outlives_a_loss_that_is_not_finite(tmp_path, at_step, expected) -> None:
    checkpoints = []

    def spoil(logits: torch.Tensor) -> torch.Tensor:
        checkpoints.append((tmp_path / "run" / "checkpoint.safetensors").read_bytes())
        return logits * torch.nan

    at_step(8, spoil)
    with pytest.raises(
        DivergedError, match=r"the loss is nan in epoch 3, step 2 of 3, .*; the checkpoint of epoch 2 is"
    ):
        go(small(), tmp_path / "run")
    assert [(tmp_path / "run" / "checkpoint.safetensors").read_bytes()] == checkpoints
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "run" / "checkpoint.safetensors").values())
    run = Run(tmp_path / "run")
    assert (run.state, len(run.log), run.failure["checkpoint_of_epoch"]) == ("failed", 2, 2)
    assert len(run.failure["recent_losses"]) == 2
    assert outcome(go(small(), run.path).path) == expected  # it was not the recipe's fault
    assert (run.state, run.failure) == ("finished", None)


def test_recent_losses_are_those_before_the_failure(tmp_path, at_step) -> None:
    at_step(19, lambda logits: logits * torch.inf)
    with pytest.raises(DivergedError):
        go(small("batch_size=25", "clip_norm=1"), tmp_path / "run")
    failure = strict(tmp_path / "run" / "failure.json")
    assert (failure["step"], failure["steps"]) == (19, 24)
    assert [loss is None for loss in failure["recent_losses"]] == [False] * 9 + [True]
    assert len(failure["recent_grad_norms"]) == 10
    assert all(norm > 0 for norm in failure["recent_grad_norms"])


def test_a_failure_after_an_interruption_counts_the_steps_of_the_epoch(tmp_path, at_step) -> None:
    at_step(4, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(small(), tmp_path / "run")
    at_step(2, lambda logits: logits * torch.nan)
    with pytest.raises(DivergedError, match=r"in epoch 2, step 3 of 3, .*; the checkpoint of epoch 1 is kept"):
        go(small(), tmp_path / "run")
    failure = strict(tmp_path / "run" / "failure.json")
    batches = make_batches(small(), load_data("digits", **small().data_options), epoch=1)
    assert failure["batch"]["samples"] == batches[2].tolist()
    assert [loss is None for loss in failure["recent_losses"]] == [False, False, True]


def test_a_checkpoint_in_the_middle_of_the_first_epoch_is_reported(tmp_path, at_step) -> None:
    at_step(1, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(small(), tmp_path / "run")
    at_step(1, lambda logits: logits * torch.nan)
    with pytest.raises(DivergedError) as error:
        go(small(), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert "the checkpoint of epoch 0 is kept" in str(error.value)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_weights_that_the_last_step_of_an_epoch_spoils_do_not_reach_a_checkpoint(
    tmp_path, after_update, expected, value
) -> None:
    checkpoints = []

    def spoil(optimizer: torch.optim.Optimizer) -> None:
        checkpoints.append((tmp_path / "run" / "checkpoint.safetensors").read_bytes())
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0][0, 0] = value

    after_update(6, spoil)
    with pytest.raises(DivergedError, match=r"the weights or predictions are not finite in epoch 2, step 3 of 3, .*"):
        go(small(), tmp_path / "run")
    assert [(tmp_path / "run" / "checkpoint.safetensors").read_bytes()] == checkpoints
    run = Run(tmp_path / "run")
    assert (run.state, len(run.log)) == ("failed", 1)
    failure = strict(tmp_path / "run" / "failure.json")
    assert failure["weight_norm"] is None
    assert failure["batch"]["logits"] is None
    assert outcome(go(small(), run.path).path) == expected


def test_on_the_command_line_a_failure_is_one_line_and_exit_code_1(tmp_path, at_step, capsys) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps(small().to_dict()))
    at_step(2, lambda logits: logits * torch.nan)
    with pytest.raises(SystemExit) as ended:
        main(["train", "recipe.json", "--out", "run", "--device", "cpu"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("dualfocal: run: the loss is nan in epoch 1, step 2 of 3, ")
