"""`evaluate`, `compare`, `calibrate` and `apply` read run folders: the test part; `calibrate`, the validation part."""

import csv
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dualfocal.calibrators import load_calibrator, make_calibrator
from dualfocal.metrics import evaluate
from dualfocal.predictions import load_predictions
from dualfocal.report.calibrated import calibrate
from dualfocal.report.inputs import load_inputs
from dualfocal.runs import Run
from dualfocal.runs.source import Reading
from dualfocal.train import train
from dualfocal.train.presets import preset

TAKEN = "logits from '{0}_logits' ({1} x 10, float32), labels from '{0}_target'"
COMMANDS = {
    "evaluate": ("evaluate", "RUN"),
    "compare": ("compare", "RUN", "runs/a"),
    "compare with it": ("compare", "runs/a", "RUN"),
    "calibrate": ("calibrate", "RUN", "--out", "out.safetensors"),
    "apply": ("apply", "cal.safetensors", "RUN", "--out", "out.npz"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """runs/a and runs/b, of two seeds, with a calibrator: made once."""
    folder = tmp_path_factory.mktemp("made")
    for name, seed in (("a", 3), ("b", 4)):
        settings = ["epochs=3", "batch_size=20", f"seed={seed}"]
        train(preset("digits", settings), folder / "runs" / name, progress=False)
    return folder


@pytest.fixture(autouse=True)
def _runs(made, request):
    if "pets" not in request.fixturenames:
        shutil.copytree(made / "runs", "runs")


@pytest.fixture(scope="module")
def made_pets(tmp_path_factory) -> Path:
    """A run on data whose classes have names."""
    folder = tmp_path_factory.mktemp("pets")
    rng = np.random.default_rng(0)
    images = rng.normal(size=(60, 1, 8, 8)).astype(np.float32)
    np.savez(folder / "pets.npz", x=images, y=np.arange(60) % 3, class_names=["cat", "dog", "emu"])
    recipe = preset("digits", [f"data={folder / 'pets.npz'}", "data.layout=NCHW", "data.val_size=15", "epochs=1"])
    return train(recipe, folder / "run", progress=False).path


@pytest.fixture
def pets(made_pets) -> Path:
    return Path(shutil.copytree(made_pets, "pets"))


def saved(name: str, folder: str = "runs/a", part: str = "test") -> str:
    """The predictions of a part of a run, as a file of their own."""
    arrays = load_file(f"{folder}/predictions.safetensors")
    np.savez(name, logits=arrays[f"{part}_logits"].numpy(), target=arrays[f"{part}_target"].numpy())
    return name


def stop(folder: str) -> None:
    """As if it had not come to its end."""
    for name in ("result.json", "predictions.safetensors", "model.safetensors"):
        Path(folder, name).unlink()


# --- evaluate ---


@pytest.mark.parametrize(("part", "options"), [("test", ()), ("val", ("--split", "val"))])
def test_evaluate_says_of_a_run_what_it_says_of_its_logits(record, part, options):
    [of_run] = record("evaluate", "runs/a", *options)["files"]
    [of_file] = record("evaluate", saved("logits.npz", part=part))["files"]
    assert of_run.pop("file") == "runs/a"
    assert of_run.pop("taken") == TAKEN.format(part, {"test": 997, "val": 200}[part])
    assert of_run == {name: value for name, value in of_file.items() if name not in ("file", "taken")}
    verdict = of_run.pop("verdict")
    assert verdict
    assert of_run == Run("runs/a").result.to_dict()[part]


def test_evaluate_prints_of_a_run_what_it_prints_of_its_logits(run):
    out, err = run("evaluate", "runs/a")
    assert err == f"runs/a: {TAKEN.format('test', 997)}\n"
    first, *lines = out.splitlines()
    assert first == "runs/a: 997 samples, 10 classes, 15 bins"
    assert lines == run("evaluate", saved("logits.npz"))[0].splitlines()[1:]


def test_what_train_says_comes_next_works(run):
    folder = "[red]it's x"
    shutil.copytree("runs/a", folder)
    settings = ("--set", "epochs=3", "--set", "batch_size=20", "--set", "seed=3")
    last = run("train", "digits", *settings, "--out", folder)[0].splitlines()[-1]
    assert last.startswith("Next: dualfocal evaluate ")
    out, err = run(*shlex.split(last.removeprefix("Next: dualfocal ")), "--no-inference")
    assert out.startswith(f"{folder}: 997 samples, 10 classes, 15 bins\n")
    assert err.splitlines()[-1] == "Reliability diagram: reliability.png"
    assert Path("reliability.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_several_runs_and_a_file(record):
    found = record("evaluate", "runs/a", "runs/b", saved("logits.npz"), "--no-inference")["files"]
    assert [of["file"] for of in found] == ["runs/a", "runs/b", "logits.npz"]
    assert found[0]["nll"] == found[2]["nll"] != found[1]["nll"]


def test_a_split_that_a_run_has_not(refused):
    line = "runs/a/predictions.safetensors: has no split 'train' (it holds the splits test, val)"
    assert refused("evaluate", "runs/a", "--split", "train") == line


def test_the_file_of_a_run_is_no_run_folder(refused, run):
    file = "runs/a/predictions.safetensors"
    assert refused("evaluate", file) == f"{file}: holds several splits (test, val): choose one with --split"
    assert run("evaluate", file, "--split", "val", "--no-inference")[0].startswith(f"{file}: 200 samples, ")


# --- evaluate --calibrate ---


def test_calibrators_of_a_run_are_fitted_on_its_validation_part(run, record):
    [of_run] = record("evaluate", "runs/a", "--calibrate", "temperature,vector")["files"]
    got = of_run["calibration"]
    assert got["fitted_on"] == {"part": "val", "num_samples": 200}
    assert got["scored_on"] == {"part": "test", "num_samples": 997}
    arrays = load_file("runs/a/predictions.safetensors")
    for name in ("temperature", "vector"):
        calibrator = make_calibrator(name).fit(arrays["val_logits"], arrays["val_target"])
        wanted = evaluate(calibrator(arrays["test_logits"]), arrays["test_target"])
        [of_method] = [of for of in got["methods"] if of["method"] == name]
        assert {metric: of_method[metric] for metric in ("nll", "ece", "error")} == pytest.approx(
            {metric: getattr(wanted, metric) for metric in ("nll", "ece", "error")}, abs=1e-9
        )
    out, _ = run("evaluate", "runs/a", "--calibrate", "temperature,vector")
    assert "\ncalibrators, fitted on the validation split, lowest NLL first; " in out
    assert "cross" not in out
    *_, caveat, verdict = out.splitlines()
    assert "validation split (200 samples)" in caveat
    assert "held-out test split (997 samples)" in caveat
    assert verdict == got["verdict"]
    assert "(Chosen among 2 methods" in verdict


def test_report_and_evaluate_say_the_same_of_a_run(record):
    [of_run] = record("evaluate", "runs/a", "--calibrate", "temperature,vector,isotonic")["files"]
    reading = Reading()
    [subject] = load_inputs([Path("runs/a")], reading)
    found = calibrate(subject, ["temperature", "vector", "isotonic"], reading, lambda share: None)
    assert found.advice == of_run["calibration"]["verdict"]
    assert {of.name: of.scores["nll"] for of in found.comparison.methods} == {
        of["method"]: of["nll"] for of in of_run["calibration"]["methods"]
    }


@pytest.mark.parametrize("options", [("--split", "val"), ("--logits", "test_logits", "--target", "test_target")])
def test_parts_and_arrays_that_are_named_are_cross_fitted(record, options):
    [got] = record("evaluate", "runs/a", *options, "--calibrate", "temperature", "--repeats", 1)["files"]
    assert (got["calibration"]["folds"], got["calibration"]["repeats"]) == (5, 1)


def test_merged_runs_are_cross_fitted(record):
    [got] = record("evaluate", "runs/a", "runs/b", "--merge", "--calibrate", "temperature", "--repeats", 1)["files"]
    assert got["calibration"]["folds"] == 5


# --- compare ---


@pytest.mark.parametrize(("part", "options"), [("test", ()), ("val", ("--split", "val"))])
def test_compare_says_of_two_runs_what_it_says_of_their_logits(record, part, options):
    of_runs = record("compare", "runs/a", "runs/b", *options)
    of_files = record("compare", saved("a.npz", "runs/a", part), saved("b.npz", "runs/b", part))
    assert (of_runs.pop("a"), of_runs.pop("b")) == ("runs/a", "runs/b")
    assert of_runs == {name: value for name, value in of_files.items() if name not in ("a", "b")}


def test_compare_names_both_runs(run):
    out, err = run("compare", "runs/a", "runs/b")
    assert out.startswith("A = runs/a, B = runs/b, 997 samples\n")
    assert err.splitlines() == [f"{name}: {TAKEN.format('test', 997)}" for name in ("runs/a", "runs/b")]


# --- calibrate, apply ---


def test_calibrate_takes_the_validation_part_and_apply_the_test_part(run, record):
    result = Run("runs/a").result.calibrated["temperature"].to_dict()
    out, err = run("calibrate", "runs/a", "--out", "cal.safetensors")
    assert err == f"runs/a: {TAKEN.format('val', 200)}\n"
    assert out.startswith(f"T = {result['temperature']:.4f}\n200 samples, 10 classes: NLL ")
    temperature = load_calibrator("cal.safetensors").temperature
    assert float(temperature) == result["temperature"]

    out, err = run("apply", "cal.safetensors", "runs/a", "--out", "scaled.npz")
    assert err == f"runs/a: {TAKEN.format('test', 997)}\n"
    assert out.endswith("0 of 997 predicted classes changed.\nSaved: scaled.npz\n")
    arrays, got = load_file("runs/a/predictions.safetensors"), load_predictions("scaled.npz")
    assert torch.equal(got.target, arrays["test_target"])
    assert torch.equal(got.values, load_calibrator("cal.safetensors")(arrays["test_logits"]))
    [of_file] = record("evaluate", "scaled.npz")["files"]
    assert {name: of_file[name] for name in result["test"]} == result["test"]


def test_calibrate_and_apply_take_the_part_that_is_given(run, record):
    assert record("calibrate", "runs/a", "--split", "test", "--out", "cal.safetensors")["num_samples"] == 997
    assert record("apply", "cal.safetensors", "runs/a", "--split", "val", "--out", "x.npz")["num_samples"] == 200


@pytest.mark.filterwarnings("ignore:there is no validation split")
def test_calibrate_does_not_take_the_test_part_for_want_of_another(refused):
    train(preset("digits", ["epochs=1", "data.val_size=0"]), "runs/c", progress=False)
    line = refused("calibrate", "runs/c", "--out", "cal.safetensors")
    assert line.startswith("runs/c/predictions.safetensors: has no split 'val' (it holds the splits test)")
    assert not Path("cal.safetensors").exists()


def test_nothing_is_written_over_the_predictions_of_a_run(run, refused):
    run("calibrate", "runs/a", "--out", "cal.safetensors")
    before = Path("runs/a/predictions.safetensors").read_bytes()
    line = refused("apply", "cal.safetensors", "runs/a", "--out", "runs/a/predictions.safetensors")
    assert (
        line == "--out: runs/a/predictions.safetensors is also an input and would be overwritten; choose another name"
    )
    assert Path("runs/a/predictions.safetensors").read_bytes() == before


# --- runs that have nothing to say ---


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_run_that_is_not_finished(run, refused, command):
    run("calibrate", "runs/a", "--out", "cal.safetensors")
    stop("runs/b")
    line = refused(*("runs/b" if word == "RUN" else word for word in command))
    assert line == "runs/b: this run is not finished, it has no predictions.safetensors"
    assert not list(Path().glob("out.*"))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_folder_that_is_no_run(run, refused, command):
    run("calibrate", "runs/a", "--out", "cal.safetensors")
    line = refused(*("runs" if word == "RUN" else word for word in command))
    assert line == "runs: is not a run folder, it has no predictions.safetensors"
    assert not list(Path().glob("out.*"))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_predictions_that_are_damaged(run, refused, command):
    run("calibrate", "runs/a", "--out", "cal.safetensors")
    Path("runs/b/predictions.safetensors").write_bytes(b"no tensors")
    line = refused(*("runs/b" if word == "RUN" else word for word in command))
    assert line.startswith("runs/b/predictions.safetensors: cannot be read: ")
    assert not list(Path().glob("out.*"))


# --- class names ---


def test_the_class_names_of_the_data_stay_with_the_predictions(run, pets):
    assert Reading(split="val").load(pets).class_names == ("cat", "dog", "emu")
    run("calibrate", "pets", "--out", "cal.safetensors")
    assert load_calibrator("cal.safetensors").class_names == ("cat", "dog", "emu")
    run("apply", "cal.safetensors", "pets", "--out", "scaled.csv")
    with open("scaled.csv", newline="") as file:
        headings, *rows = csv.reader(file)
    assert headings == ["logit_cat", "logit_dog", "logit_emu", "target"]
    names = ("cat", "dog", "emu")
    assert [row[-1] for row in rows] == [names[i] for i in Reading(split="test").load(pets).target.tolist()]


def test_runs_of_other_classes_are_not_compared(refused, pets, made):
    shutil.copytree(made / "runs/a", "digits")
    assert refused("compare", "pets", "digits") == "both files must have the same classes in the same order"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_digits_can_be_written_as_a_table(run, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    run("calibrate", "runs/a", "--out", "cal.safetensors")
    run("apply", "cal.safetensors", "runs/a", "--out", f"scaled.{suffix}")
    target = load_file("runs/a/predictions.safetensors")["test_target"]
    assert torch.equal(load_predictions(f"scaled.{suffix}").target, target)
