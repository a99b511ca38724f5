"""`evaluate`, `compare` and `apply` read the test split of a run folder; `calibrate` reads the validation split."""

import csv
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from report_pages import contents_of
from safetensors.torch import load_file

from dualfocal.calibrators import load_calibrator, make_calibrator
from dualfocal.metrics import evaluate
from dualfocal.predictions import Reading, load_predictions
from dualfocal.report import write_report
from dualfocal_lab.runs import Run
from dualfocal_lab.train import train
from dualfocal_lab.train.presets import preset

TAKEN = "logits from '{0}_logits' ({1} x 10, float32), labels from '{0}_target'"
COMMANDS = (
    ("evaluate", "RUN"),
    ("compare", "RUN", "runs/a"),
    ("compare", "runs/a", "RUN"),
    ("calibrate", "RUN", "--out", "out.npz"),
    ("apply", "cal.npz", "RUN", "--out", "applied.npz"),
)


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
    """Make the run look unfinished."""
    for name in ("result.json", "predictions.safetensors", "model.safetensors"):
        Path(folder, name).unlink()


# --- evaluate ---


@pytest.mark.parametrize(("part", "options"), [("test", ()), ("val", ("--split", "val"))])
def test_evaluate_reads_a_run_like_a_file_of_its_logits(record, run, part, options):
    [content] = record("evaluate", "runs/a", *options)["files"]
    file = saved("logits.npz", part=part)
    [expected] = record("evaluate", file)["files"]
    assert content.pop("file") == "runs/a"
    assert content.pop("taken") == TAKEN.format(part, {"test": 997, "val": 200}[part])
    assert content == {name: value for name, value in expected.items() if name not in ("file", "taken")}
    assert content.pop("verdict")
    assert content == Run("runs/a").result.to_dict()[part]
    first, *lines = run("evaluate", "runs/a", *options, "--no-inference")[0].splitlines()
    assert first.startswith("runs/a: ")
    assert lines == run("evaluate", file, "--no-inference")[0].splitlines()[1:]


def test_the_next_command_that_train_prints_works(run):
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
    files = record("evaluate", "runs/a", "runs/b", saved("logits.npz"), "--no-inference")["files"]
    assert [file["file"] for file in files] == ["runs/a", "runs/b", "logits.npz"]
    assert files[0]["nll"] == files[2]["nll"] != files[1]["nll"]


def test_a_missing_split_is_refused_with_the_existing_ones(refused):
    line = refused("evaluate", "runs/a", "--split", "train")
    assert line.startswith("runs/a/predictions.safetensors: has no split 'train'")
    assert "test, val" in line


def test_the_file_of_a_run_needs_a_split(refused, run):
    file = "runs/a/predictions.safetensors"
    line = refused("evaluate", file)
    assert line.startswith(f"{file}: ")
    assert "several splits (test, val)" in line
    assert "--split" in line
    assert run("evaluate", file, "--split", "val", "--no-inference")[0].startswith(f"{file}: 200 samples, ")


# --- evaluate --calibrate ---


def test_calibrators_of_a_run_are_fitted_on_its_validation_split(run, record):
    [of_run] = record("evaluate", "runs/a", "--calibrate", "temperature,vector")["files"]
    got = of_run["calibration"]
    assert got["fitted_on"] == {"num_samples": 200}
    assert got["scored_on"] == {"num_samples": 997}
    arrays = load_file("runs/a/predictions.safetensors")
    for name in ("temperature", "vector"):
        calibrator = make_calibrator(name).fit(arrays["val_logits"], arrays["val_target"])
        wanted = evaluate(calibrator(arrays["test_logits"]), arrays["test_target"])
        [of_method] = [method for method in got["methods"] if method["method"] == name]
        assert {metric: of_method[metric] for metric in ("nll", "ece", "error")} == pytest.approx(
            {metric: getattr(wanted, metric) for metric in ("nll", "ece", "error")}, abs=1e-9
        )
    out, _ = run("evaluate", "runs/a", "--calibrate", "temperature,vector")
    assert "\ncalibrators, fitted on the validation split, lowest NLL first; " in out
    assert "cross" not in out
    *_, caveat, verdict = out.splitlines()
    assert "validation split (200 samples)" in caveat
    assert "scored on 997 other samples" in caveat
    assert verdict == got["verdict"]
    assert "(Chosen among 2 methods" in verdict


def test_report_and_evaluate_agree_on_the_calibrators_of_a_run(record):
    [content] = record("evaluate", "runs/a", "--calibrate", "temperature,vector,isotonic")["files"]
    write_report([Path("runs/a")], "a.html", calibrators=("temperature", "vector", "isotonic"))
    page = contents_of(Path("a.html"))
    assert page["runs"][0]["advice"] == content["calibration"]["verdict"]
    [model] = page["results"]["models"]
    assert model["calibrators"]["methods"] == content["calibration"]["methods"]


def test_named_splits_and_arrays_and_merged_runs_are_cross_validated(record):
    for arguments in (
        ("runs/a", "--split", "val"),
        ("runs/a", "--logits", "test_logits", "--target", "test_target"),
        ("runs/a", "runs/b", "--merge"),
    ):
        [content] = record("evaluate", *arguments, "--calibrate", "temperature", "--repeats", 1)["files"]
        assert (content["calibration"]["folds"], content["calibration"]["repeats"]) == (5, 1), arguments


# --- compare ---


def test_compare_reads_runs_like_files_of_their_logits(record, run):
    for part, options in (("test", ()), ("val", ("--split", "val"))):
        content = record("compare", "runs/a", "runs/b", *options)
        expected = record("compare", saved("a.npz", "runs/a", part), saved("b.npz", "runs/b", part))
        assert (content.pop("a"), content.pop("b")) == ("runs/a", "runs/b")
        assert content == {name: value for name, value in expected.items() if name not in ("a", "b")}, part


# --- calibrate, apply ---


def test_calibrate_reads_the_validation_split_and_apply_the_test_split(run, record):
    result = Run("runs/a").result.calibrated["temperature"].to_dict()
    out, err = run("calibrate", "runs/a", "--out", "cal.npz")
    assert err == f"runs/a: {TAKEN.format('val', 200)}\n"
    assert out.startswith(f"T = {result['temperature']:.4f}\n200 samples, 10 classes: NLL ")
    temperature = load_calibrator("cal.npz").temperature
    assert float(temperature) == result["temperature"]

    out, err = run("apply", "cal.npz", "runs/a", "--out", "scaled.npz")
    assert err == f"runs/a: {TAKEN.format('test', 997)}\n"
    assert out.endswith("0 of 997 predicted classes changed.\nSaved: scaled.npz\n")
    arrays, got = load_file("runs/a/predictions.safetensors"), load_predictions("scaled.npz")
    assert torch.equal(got.target, arrays["test_target"])
    assert torch.equal(got.values, load_calibrator("cal.npz")(arrays["test_logits"]))
    run("apply", "cal.npz", "runs/a", "--out", "scaled.csv")  # classes named 0 to 9 are read back as such
    assert torch.equal(load_predictions("scaled.csv").target, arrays["test_target"])
    [of_file] = record("evaluate", "scaled.npz")["files"]
    assert {name: of_file[name] for name in result["test"]} == result["test"]


@pytest.mark.filterwarnings("ignore:there is no validation split")
def test_calibrate_never_falls_back_to_the_test_split(refused):
    train(preset("digits", ["epochs=1", "data.val_size=0"]), "runs/c", progress=False)
    line = refused("calibrate", "runs/c", "--out", "cal.npz")
    assert line.startswith("runs/c/predictions.safetensors: has no split 'val' (it holds the splits test)")
    assert not Path("cal.npz").exists()


# --- refusals ---


def test_runs_without_good_predictions_are_refused(run, refused):
    run("calibrate", "runs/a", "--out", "cal.npz")
    shutil.copytree("runs/b", "runs/damaged")
    Path("runs/damaged/predictions.safetensors").write_bytes(b"no tensors")
    stop("runs/b")
    for folder, words in (
        ("runs/b", "runs/b: this run is not finished"),
        ("runs", "runs: is not a run folder"),
        ("runs/damaged", "runs/damaged/predictions.safetensors: cannot be read"),
    ):
        for command in COMMANDS:
            line = refused(*(folder if word == "RUN" else word for word in command))
            assert line.startswith(words), command
    assert not [*Path().glob("out.*"), *Path().glob("applied.*")]


# --- class names ---


def test_the_class_names_of_the_data_stay_with_the_predictions(run, pets):
    assert Reading(split="val").load(pets).class_names == ("cat", "dog", "emu")
    run("calibrate", "pets", "--out", "cal.npz")
    assert load_calibrator("cal.npz").class_names == ("cat", "dog", "emu")
    run("apply", "cal.npz", "pets", "--out", "scaled.csv")
    with open("scaled.csv", newline="") as file:
        headings, *rows = csv.reader(file)
    assert headings == ["logit_cat", "logit_dog", "logit_emu", "target"]
    names = ("cat", "dog", "emu")
    assert [row[-1] for row in rows] == [names[i] for i in Reading(split="test").load(pets).target.tolist()]


def test_runs_of_other_classes_are_not_compared(refused, pets, made):
    shutil.copytree(made / "runs/a", "digits")
    assert "the classes must be " in refused("compare", "pets", "digits")
