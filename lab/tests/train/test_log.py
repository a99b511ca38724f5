"""The log of a run, runs without a validation or test part, and recipes that are refused."""

import math
from pathlib import Path
from typing import Any

import metric_oracles
import numpy as np
import oracles
import pytest
import torch
from safetensors.torch import load_file
from toys import TIMES, assert_same, dual_focal, go, plain_loop, recipe_for, without_times

from dualfocal.losses import LOSSES
from dualfocal.metrics import evaluate
from dualfocal_lab.data import DataSet, load_data
from dualfocal_lab.runs import Run
from dualfocal_lab.train import engine
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.validation import summarize

NO_VAL = {"data_options": {"val_size": 0, "test_size": 20}}


# The log.


@pytest.fixture(scope="module")
def logged(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = recipe_for(toy, precision="float32", test_each_epoch=True, batch_size=15)
    return go(recipe, tmp_path_factory.mktemp("logged") / "run")


@pytest.mark.parametrize("part", ["val", "test"])
def test_log_says_what_the_predictions_say(logged: Run, part: str) -> None:
    logits, target = logged.predictions(part)
    assert logits.dtype == torch.float32
    line, actual = logged.log[-1], evaluate(logits, target)
    assert line[f"{part}_error"] == actual.error
    assert line[f"{part}_ece"] == actual.ece
    assert line[f"{part}_nll"] == pytest.approx(actual.nll, rel=1e-12)

    probs = [metric_oracles.softmax(row) for row in logits.double().tolist()]
    confidence, correct = metric_oracles.top_label(probs, target.tolist())
    assert line[f"{part}_error"] == pytest.approx(1 - sum(correct) / len(correct))
    edges = metric_oracles.equal_width(15)
    assert line[f"{part}_ece"] == pytest.approx(metric_oracles.ece(confidence, correct, edges), abs=1e-6)
    assert line[f"{part}_nll"] == pytest.approx(metric_oracles.nll(probs, target.tolist()), rel=1e-6)
    loss = float(oracles.dual_focal(logits.double(), target, 2.0).mean())
    assert line[f"{part}_loss"] == pytest.approx(loss, rel=1e-5)


def test_p_k_and_p_j_in_the_log_are_those_of_a_slow_loop() -> None:
    """With ties, with samples that have no class below the true one, and far apart."""
    logits = torch.randn(200, 4) * 3
    logits[:80] = logits[:80].round()
    logits[80:90] *= 100
    target = torch.randint(4, (200,))
    actual = summarize(logits, target, LOSSES["cross_entropy"](reduction="sum"), 64, Group(0, 1, torch.device("cpu")))
    probs = [metric_oracles.softmax(row) for row in logits.tolist()]
    p_k = [p[y] for p, y in zip(probs, target.tolist(), strict=True)]
    p_j = [max([c for c in p if c < own], default=0.0) for p, own in zip(probs, p_k, strict=True)]
    assert sum(own == min(p) for p, own in zip(probs, p_k, strict=True)) > 20  # no rival
    assert sum(p.count(own) > 1 for p, own in zip(probs, p_k, strict=True)) > 10  # a tie
    assert actual["p_k"] == pytest.approx(math.fsum(p_k) / 200, rel=1e-9)
    assert actual["p_j"] == pytest.approx(math.fsum(p_j) / 200, rel=1e-9)
    assert actual["loss"] == pytest.approx(actual["nll"], rel=1e-6)


@pytest.mark.usefixtures("quick")
def test_log_of_a_loss_that_belongs_to_a_batch(toy: Path, tmp_path: Path) -> None:
    """Validation is in batches as training is: 15 and 5 of 20."""
    run = go(recipe_for(toy, loss="mmce", batch_size=15, epochs=1), tmp_path / "run")
    logits, target = run.predictions("val")
    total = sum(
        float(oracles.cross_entropy(z, y).sum() + len(y) * 2 * oracles.mmce(z, y))
        for z, y in zip(logits.split(15), target.split(15), strict=True)
    )
    assert run.log[0]["val_loss"] == pytest.approx(total / 20, rel=1e-9)


def test_log_is_of_each_epoch(logged: Run, toy: Path, tmp_path: Path) -> None:
    """The same run, ended earlier, has the same lines."""
    earlier = go(recipe_for(toy, precision="float32", test_each_epoch=True, batch_size=15, epochs=2), tmp_path / "run")
    assert without_times(earlier.log) == without_times(logged.log)[:2]
    names = {f"{part}_{name}" for part in ("val", "test") for name in ("error", "ece", "nll", "loss", "p_k", "p_j")}
    for line in logged.log:
        assert line.keys() == names | {"schema", "epoch", "lr", "train_loss", "grad_norm", *TIMES}
        assert line["seconds"] > 48 / line["images_per_second"] > 0


@pytest.mark.filterwarnings("ignore:weights=best_.* uses the validation split")
def test_test_part_is_not_looked_at(tmp_path: Path) -> None:
    """Another test part: the same weights, kept by validation, and the same log."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.normal(size=(24, 5)).astype(np.float32) for part in ("train", "val", "test")}
    arrays |= {f"y_{part}": np.arange(24) % 4 for part in ("train", "val", "test")}
    runs = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / "data.npz", **arrays)
        runs.append(go(recipe_for(folder / "data.npz", data_options={}, weights="best_nll"), folder / "run"))
        arrays["x_test"] = arrays["x_test"][:9] * 3
        arrays["y_test"] = 3 - arrays["y_test"][:9]
    assert len(runs[1].predictions("test")[1]) == 9
    assert without_times(runs[0].log) == without_times(runs[1].log)
    assert not any(name.startswith("test") for line in runs[0].log for name in line)
    assert (runs[0].path / "model.safetensors").read_bytes() == (runs[1].path / "model.safetensors").read_bytes()
    scaled = [run.result.evaluation("val", "temperature").to_dict() for run in runs[:2]]
    assert scaled[0] == scaled[1]


def test_logging_the_test_part_changes_nothing_else(logged: Run, toy: Path, tmp_path: Path) -> None:
    without = go(recipe_for(toy, precision="float32", batch_size=15), tmp_path / "run")
    for before, after in zip(without_times(without.log), without_times(logged.log), strict=True):
        assert before == {name: value for name, value in after.items() if not name.startswith("test_")}
    assert (without.path / "model.safetensors").read_bytes() == (logged.path / "model.safetensors").read_bytes()


# What does not go together.


def test_without_validation(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, data_options={"val_size": 0, "test_size": 20}, epochs=2)
    with pytest.warns(UserWarning, match=r"no validation split.* set data\.val_size"):
        run = go(recipe, tmp_path / "run")
    assert not any(name.startswith("val") for line in run.log for name in line)
    assert run.result.to_dict().keys() & {"val", "test", "calibrated"} == {"test"}
    assert any("no validation split" in note for note in run.result.notes)
    assert load_file(run.path / "predictions.safetensors").keys() == {"test_logits", "test_target"}
    assert_same(run, *plain_loop(recipe, [0.1] * 2, dual_focal), [0.1] * 2)


def test_without_test_part(toy: Path, tmp_path: Path) -> None:
    run = go(recipe_for(toy, data_options={"val_size": 20, "test_size": 0}, test_each_epoch=True), tmp_path / "run")
    assert run.result.to_dict().keys() & {"val", "test", "calibrated"} == {"val", "calibrated"}
    assert run.result.calibrated["temperature"].parts.keys() == {"val"}
    assert not any(name.startswith("test") for line in run.log for name in line)


def test_data_without_training_part_is_refused(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_test(*args: object, **options: object) -> DataSet:
        data = load_data(str(toy))
        return DataSet(name="t", class_names=data.class_names, inputs=data.inputs, target=data.target,
                       splits={"test": data.splits["test"]})  # fmt: skip

    monkeypatch.setattr(engine, "load_data", only_test)
    with pytest.raises(ValueError, match="has no training split"):
        go(recipe_for(toy), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"drop_last": True, "batch_size": 49}, {}, "drop_last=true drops all samples: batch_size is 49, .* has 48"),
        ({"sync_bn": True}, {}, "sync_bn=true needs a CUDA device, .* cpu"),
        ({"model": "toys:frozen"}, {}, "toys:frozen has no trainable weights"),
        ({}, {"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
        ({}, {"checkpoint_pause": math.nan}, "checkpoint_pause must be at least 0 seconds, got nan"),
        ({}, {"lease_seconds": 0}, "lease_seconds must be above 0, got 0"),
        ({}, {"device": "toaster"}, r"device must be cpu, cuda, cuda:1, \.\.\., got 'toaster'"),
        ({}, {"device": "cuda:99"}, "device 'cuda:99' is not available to this process"),
        ({"data_options": {"val_sise": 3}}, {}, "has the options .*val_size"),
        ({"loss": "ada_focal", **NO_VAL}, {}, r"ada_focal needs a validation split, .* set data\.val_size"),
        ({"loss": "ada_dual_focal", **NO_VAL}, {}, "ada_dual_focal needs a validation split"),
        ({"weights": "best_error", **NO_VAL}, {}, r"best_error needs a validation split, .* set data\.val_size"),
        ({"weights": "best_nll", **NO_VAL}, {}, "best_nll needs a validation split"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(
    changes: dict[str, Any], options: dict[str, Any], message: str, toy: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        go(recipe_for(toy, **changes), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("quick")
def test_milestones_beyond_the_end_give_a_warning(toy: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="never falls: .* epoch 150, .* epoch 2"):
        run = go(recipe_for(toy, milestones=(150, 250), epochs=2), tmp_path / "run")
    assert "never falls" in run.result.notes[0]
