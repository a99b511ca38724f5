"""Unusual predictions, logs, images and results neither prevent a report nor spoil it."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from report_pages import contents, predictions
from safetensors.torch import load_file, save_file
from samples import run_predictions

from dualfocal import metrics
from dualfocal.calibrators import compare_calibrators, make_calibrator


@pytest.fixture
def run(runs, folder, tmp_path) -> Path:
    """A finished run to spoil."""
    shutil.copytree(folder / "a", tmp_path / "run")
    return tmp_path / "run"


def report(path: Path, *calibrators: str) -> dict[str, Any]:
    """What a page shows of a file or a run."""
    [actual] = contents(path.parent, [path], calibrators=calibrators)["runs"]
    assert "nan" not in json.dumps([actual["advice"], actual["how"], actual["metrics"], actual["calibrators"]]).lower()
    assert "inf " not in json.dumps([actual["advice"], actual["how"], actual["calibrators"]])
    return actual


def change(run: Path, **tensors: torch.Tensor) -> None:
    file = run / "predictions.safetensors"
    save_file(load_file(file) | {name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def test_a_true_class_that_is_ruled_out(run):
    tensors = load_file(run / "predictions.safetensors")
    values = tensors["test_logits"]
    values[5, tensors["test_target"][5]] = -math.inf
    change(run, test_logits=values)
    actual = report(run, "temperature", "isotonic")
    nll = next(row[1][0] for row in actual["calibrators"]["rows"] if row[0] == "isotonic")
    assert actual["advice"].startswith(f"Use isotonic: it has the lowest NLL, {nll} nats. ")
    rows = {row[0]: row for row in actual["calibrators"]["rows"]}
    assert rows["uncalibrated"][1][0] == rows["temperature"][1][0] == "∞"
    assert rows["temperature"][2] == ["\N{EN DASH}", None]
    assert rows["isotonic"][2] == ["\N{MINUS SIGN}∞", None]  # without an interval
    assert "infinite" in report(run, "temperature")["advice"]


def test_few_samples_of_a_run_have_no_interval(run):
    tensors = load_file(run / "predictions.safetensors")
    change(run, test_logits=tensors["test_logits"][:8], test_target=tensors["test_target"][:8])
    actual = report(run, "temperature")
    assert actual["advice"].startswith("Too few samples")
    assert [len(row[2]) for row in actual["calibrators"]["rows"]] == [2, 2]


def test_the_simplest_of_equals_is_advised_and_the_choice_admitted(tmp_path):
    methods = ["vector", "ets", "temperature", "temperature+vector"]
    [actual] = contents(tmp_path, {"m": predictions(1500, 4, sharpness=3.0)}, calibrators=methods)["runs"]
    assert actual["advice"].startswith("Use temperature: ")
    assert "4 methods" in actual["advice"]


def test_the_advice_on_a_run_follows_from_paired_comparisons(run):
    names = ["temperature", "vector"]  # the simplest first
    actual = report(run, *names)
    values, target = run_predictions(run, "test")
    fitted = {name: make_calibrator(name).fit(*run_predictions(run, "val"))(values) for name in names}
    best = min(names, key=lambda name: metrics.nll(fitted[name], target))

    def nll(a: torch.Tensor, b: torch.Tensor) -> Any:
        return metrics.compare(a, b, target).differences["nll"]

    good = [name for name in names if nll(values, fitted[name]).high < 0 or name == best]
    equal = [name for name in good if name == best or nll(fitted[best], fitted[name]).low <= 0]
    gain = nll(values, fitted[equal[0]])
    assert gain.significant
    assert actual["advice"].startswith(f"Use {equal[0]}: it lowers the NLL by {-gain.difference:.4f} nats ")
    assert [row[0] for row in actual["calibrators"]["rows"]][:2] == ["uncalibrated", best]
    assert "2 methods" in actual["advice"]


def test_losses_of_hundreds_of_digits(tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 5))
    logits[:5] *= 1e300
    np.savez(tmp_path / "p.npz", logits=logits, target=rng.integers(5, size=300))
    actual = report(tmp_path / "p.npz", "temperature")
    assert "0000000" not in json.dumps([actual["metrics"], actual["calibrators"]["rows"][0][1][0], actual["advice"]])
    [nll] = [row[1][0] for row in actual["metrics"][0]["rows"] if row[0][0] == "NLL [nats]"]
    assert nll.endswith("e+297") or nll.endswith("e+298")


def test_too_few_images_for_folds(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "p.npz", logits=rng.normal(size=(4, 3, 5, 5)), target=rng.integers(3, size=(4, 5, 5)))
    actual = report(tmp_path / "p.npz", "temperature")
    assert "5 folds" in actual["how"]
    assert actual["calibrators"] is None


def test_a_validation_split_that_does_not_fit_is_not_used(run):
    tensors = load_file(run / "predictions.safetensors")
    change(run, val_logits=tensors["val_logits"][:, :5], val_target=tensors["val_target"] % 5)
    actual = report(run, "temperature")
    assert "validation split" in (remark := actual["remarks"][0])
    assert "5 classes" in remark
    values, target = tensors["test_logits"], tensors["test_target"]
    assert actual["advice"] == compare_calibrators(values, target, ["temperature"]).verdict()
    change(run, val_logits=tensors["val_logits"], val_target=tensors["val_target"] + 100)
    assert "target 109" in report(run)["remarks"][0]


def test_many_calibrators_go_into_several_tables(run):
    names = ["temperature", "temperature_ece", "vector", "platt", "beta", "isotonic"]
    actual = report(run, *names)
    titles = [[column["title"] for column in table["columns"]] for table in actual["metrics"]]
    assert [len(row) for row in titles] == [6, 3]
    assert titles[0][:2] == ["metric", "uncalibrated"]
    assert sorted(titles[0][2:] + titles[1][1:]) == sorted(names)


def test_p_values_have_one_form(run, folder, tmp_path):
    page = contents(tmp_path, [run, folder / "b"])
    for row, path in zip(page["metrics"][0]["rows"], (run, folder / "b"), strict=True):
        p = metrics.evaluate(*run_predictions(path, "test"), inference=True).inference.joint_p_value
        assert row[6] == ["< 0.001" if p < 0.001 else f"{p:.3f}", p]
