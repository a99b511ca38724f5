"""`dualfocal evaluate --calibrate`: the library's cross-fit, and advice that is right where the truth is known."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import draw_logits
from torch import Tensor

from dualfocal import plots
from dualfocal.calibrators import CALIBRATORS, CalibratorComparison, compare_calibrators

CAVEAT = "Cross-validated (5 folds, repeated 2 times)"


@pytest.fixture
def calibration(record):
    """The calibrators in the content of `evaluate --calibrate ... --json`, for each file."""

    def calibration(*arguments: object) -> list[dict[str, Any]]:
        return [file["calibration"] for file in record("evaluate", *arguments)["files"]]

    return calibration


def drawn(n: int = 300, sharpness: float = 2.5, seed: int = 0, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits that are too sharp by this factor, and labels."""
    return draw_logits(n, num_classes, seed=seed, overconfidence=sharpness)


def npz(name: str, logits: Tensor, target: Tensor, kind: str = "logits", **others: np.ndarray) -> str:
    np.savez(name, **{kind: logits.numpy()}, target=target.numpy(), **others)
    return name


def with_zeros() -> tuple[Tensor, Tensor]:
    """Over-confident probabilities; some of true classes are 0, so that the NLL is infinite."""
    logits, target = drawn()
    probs = logits.double().softmax(1)
    probs = probs.where(probs > 0.03, 0)
    probs /= probs.sum(1, keepdim=True)
    assert probs.gather(1, target[:, None]).min() == 0
    return probs, target


def as_json(result: CalibratorComparison) -> dict[str, Any]:
    return json.loads(json.dumps({**result.to_dict(), "verdict": result.verdict()}))


def table(out: str) -> list[list[str]]:
    """Cells of the calibrators' table."""
    lines = out[out.index("calibrators, cross-validated") :].splitlines()
    rows = [re.split(" *│ *", line)[1:-1] for line in lines if line.startswith("│")]
    return rows[: next((i for i, row in enumerate(rows) if len(row) != 7), len(rows))]


# Advice


def test_biased_confidence_is_worth_calibrating(run):
    logits, target = drawn()
    out, _ = run("evaluate", npz("a.npz", logits, target), "--calibrate", "temperature,vector,isotonic")
    rows = table(out)
    assert {row[0] for row in rows} == {"uncalibrated", "temperature", "vector", "isotonic"}
    assert rows[-1][0] == "uncalibrated"
    assert [float(row[1]) for row in rows] == sorted(float(row[1]) for row in rows)
    for row in rows[:-1]:
        change = float(row[2].split(" ± ")[0])
        assert change == pytest.approx(float(row[1]) - float(rows[-1][1]), abs=1.5e-4)
    assert f"\n{CAVEAT}" in out
    assert out.splitlines()[-1].startswith("Use temperature: it lowers the NLL by ")
    uncalibrated = -torch.log_softmax(logits.double(), 1).gather(1, target[:, None]).mean()
    assert rows[-1][1] == f"{uncalibrated:.4f}"


def test_confidence_that_is_right_is_left_alone(run):
    out, _ = run("evaluate", npz("a.npz", *drawn(sharpness=1.0)), "--calibrate", "temperature,isotonic")
    assert out.splitlines()[-1].startswith("Keep the model uncalibrated: no method lowers the NLL significantly.")


def test_classes_of_too_high_logits_need_more_than_a_temperature(run):
    logits, target = drawn(600, 1.0)
    shifted = logits + torch.tensor([2.0, 0.0, 0.0, -2.0])
    out, _ = run("evaluate", npz("a.npz", shifted, target), "--calibrate", "temperature,vector")
    assert out.splitlines()[-1].startswith("Use vector: it lowers the NLL by ")


@pytest.mark.parametrize("methods", ["temperature", "isotonic,temperature"])
def test_an_infinite_nll_is_worth_calibrating(run, calibration, methods):
    probs, target = with_zeros()
    npz("a.npz", probs, target, "probs")
    [got] = calibration("a.npz", "--calibrate", methods)
    scores = {method["method"]: method["nll"] for method in got["methods"]}
    assert scores.pop("uncalibrated") is None
    assert all(score < math.log(4) + 0.2 for score in scores.values())
    out, _ = run("evaluate", "a.npz", "--calibrate", methods)
    assert table(out)[-1][:2] == ["uncalibrated", "inf"]
    assert got["recommended"] != "uncalibrated"
    assert out.splitlines()[-1].startswith(f"Use {got['recommended']}")


# Numbers


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_json_and_table_are_the_library_s_comparison(run, calibration, kind):
    logits, target = drawn(120)
    values = logits if kind == "logits" else logits.softmax(1)
    options = {"folds": 3, "repeats": 1, "seed": 5, "num_bins": 10, "level": 0.8}
    arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    methods = ["temperature", "temperature+isotonic"]
    command = [npz("a.npz", values, target, kind), "--calibrate", " temperature , temperature+isotonic", *arguments]
    expected = compare_calibrators(values, target, methods, input=kind, **options)
    assert calibration(*command) == [as_json(expected)]
    out, _ = run("evaluate", *command, "--no-inference")
    assert table(out) == expected.table().rows
    assert out.splitlines()[-2:] == [expected.caveat(), expected.verdict()]
    [default] = calibration("a.npz", "--calibrate", "temperature")
    assert default == as_json(compare_calibrators(values, target, ["temperature"], input=kind))
    assert "cross-validated" not in run("evaluate", "a.npz", "--no-inference")[0].lower()


def test_names_and_numbers_are_whole_on_a_narrow_terminal(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    npz("a.npz", *drawn(60))
    out, _ = run("evaluate", "a.npz", "--calibrate", "temperature+isotonic", "--folds", 2, "--repeats", 1)
    assert "…" not in out


def test_all_are_the_methods_by_name(run, calibration):
    npz("a.npz", *drawn(80, num_classes=9))
    [got] = calibration("a.npz", "--calibrate", "all", "--folds", 2, "--repeats", 1)
    names = {method["method"] for method in got["methods"]} - {"uncalibrated"}
    assert names | got["refused"].keys() == set(CALIBRATORS)
    assert got["refused"].keys() == {"matrix", "dirichlet"}
    for reason in got["refused"].values():
        assert "90 parameters for 9 classes" in reason
    out, _ = run("evaluate", "a.npz", "--calibrate", "matrix,temperature", "--folds", 2, "--repeats", 1)
    assert f"\nmatrix skipped: {got['refused']['matrix']}\n" in out


def test_force(calibration):
    npz("a.npz", *drawn(40, num_classes=6))
    arguments = ["a.npz", "--calibrate", "matrix", "--folds", 2, "--repeats", 1]
    assert calibration(*arguments)[0]["refused"].keys() == {"matrix"}
    [got] = calibration(*arguments, "--force")
    assert got["refused"] == {}
    assert {method["method"] for method in got["methods"]} == {"matrix", "uncalibrated"}


def test_binary(calibration):
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(120, generator=generator)
    target = torch.bernoulli((scores / 2).sigmoid(), generator=generator).long()
    npz("a.npz", scores, target)
    contents = {}
    for binary in ("positive", "top_label"):
        [contents[binary]] = calibration("a.npz", "--calibrate", "temperature", "--binary", binary, "--repeats", 1)
        expected = compare_calibrators(scores, target, ["temperature"], binary=binary, repeats=1)
        assert contents[binary] == as_json(expected), binary
    assert contents["positive"]["methods"][0]["ece"] != contents["top_label"]["methods"][0]["ece"]


def test_ignored_labels_count_nothing(calibration):
    logits, target = drawn(120)
    npz(
        "a.npz",
        torch.cat([logits, logits.new_full((30, 4), torch.nan)]),
        torch.cat([target, target.new_full((30,), 9)]),
    )
    [got] = calibration("a.npz", "--calibrate", "temperature", "--ignore-index", 9)
    assert got == as_json(compare_calibrators(logits, target, ["temperature"]))


def test_notes_of_the_fits_are_printed(run):
    logits, target = drawn(120)
    npz("a.npz", logits, target.where(target != 2, 1))
    out, _ = run("evaluate", "a.npz", "--calibrate", "platt,vector,temperature", "--repeats", 1)
    note = re.search(r"^(.+): 1 of 4 classes have no samples \(2\)", out, re.MULTILINE)
    assert note
    assert set(note[1].split(", ")) == {"platt", "vector"}


# Several files, groups and drawing


def test_several_files_have_a_cross_fit_each(run, calibration):
    made = {"sharp.npz": drawn(200), "right.npz": drawn(200, 1.0, seed=1)}
    for name, arrays in made.items():
        npz(name, *arrays)
    arguments = [*made, "--calibrate", "temperature", "--repeats", 1]
    expected = [compare_calibrators(*arrays, ["temperature"], repeats=1) for arrays in made.values()]
    assert calibration(*arguments) == [as_json(comparison) for comparison in expected]
    out, _ = run("evaluate", *arguments)
    assert out.index(expected[0].verdict()) < out.index(expected[1].verdict()) < out.index("\nall files")


def test_merged_files_have_one(calibration):
    logits, target = drawn(200)
    for name, part in (("a.npz", slice(0, 120)), ("b.npz", slice(120, 200))):
        npz(name, logits[part], target[part])
    [got] = calibration("a.npz", "b.npz", "--merge", "--calibrate", "temperature", "--repeats", 1)
    assert got == as_json(compare_calibrators(logits, target, ["temperature"], repeats=1))


def test_beside_groups(run, record):
    logits, target = drawn(200)
    npz("a.npz", logits, target, site=np.repeat(["north", "south"], 100))
    arguments = ["evaluate", "a.npz", "--group-by", "site", "--calibrate", "temperature", "--repeats", 1]
    [got] = record(*arguments)["files"]
    assert {group["group"] for group in got["groups"]} == {"north", "south"}
    expected = compare_calibrators(logits, target, ["temperature"], repeats=1)
    assert got["calibration"] == as_json(expected)
    out, _ = run(*arguments)
    assert out.index("\nby site, worst first") < out.index("\ncalibrators, cross-validated")
    assert out.splitlines()[-1] == expected.verdict()


def test_plot_has_a_diagram_for_each_method(run, monkeypatch):
    evaluations_drawn = {}
    plain = plots.reliability_figure

    def spy(evaluations, **options):
        evaluations_drawn.update(evaluations)
        assert options == {"title": "a.npz", "highlight": ["temperature, recommended"]}
        return plain(evaluations, **options)

    monkeypatch.setattr(plots, "reliability_figure", spy)
    logits, target = drawn(120)
    Path("runs").mkdir()
    npz("runs/a.npz", logits, target)
    run("evaluate", "runs/a.npz", "--calibrate", "temperature,ets", "--repeats", 1, "--plot", "figure.svg")
    assert list(evaluations_drawn) == ["uncalibrated", "temperature, recommended", "ets"]
    expected = compare_calibrators(logits, target, ["temperature", "ets"], repeats=1)
    assert evaluations_drawn["ets"].to_dict() == expected["ets"].evaluation.to_dict()
    assert evaluations_drawn["uncalibrated"].ece == expected["uncalibrated"].evaluation.ece
    assert Path("figure.svg").read_text().startswith("<?xml")


# Refusals


def test_methods_and_counts_are_checked_before_any_work(refused):
    for methods, options, words in (
        ("temprature", [], ["'temprature'", *CALIBRATORS]),
        ("temperature,vektor", [], ["'vektor'", "vector"]),
        ("temperature,vector,temperature", [], ["only once", "temperature"]),
        ("temperature,", [], ["got ''"]),
        ("", [], ["got ''"]),
        ("uncalibrated", [], ["'uncalibrated'"]),
        ("temperature", ["--folds", 1], ["--folds"]),
        ("temperature", ["--repeats", 0], ["--repeats"]),
    ):
        line = refused("evaluate", "this_file_is_not_there.npz", "--calibrate", methods, *options)
        assert all(word in line for word in words), (methods, options)


def test_options_of_the_comparison_need_a_calibrator(refused):
    for option in (["--folds", 3], ["--repeats", 1], ["--force"]):
        for kind in ([], ["--task", "multilabel"], ["--shifted", "b.npz"], ["--calibrate", "none"]):
            assert refused("evaluate", "a.npz", *kind, *option).startswith(f"{option[0]} needs --calibrate")


def test_too_few_samples(run, refused):
    npz("a.npz", *drawn(19))
    command = ("evaluate", "a.npz", "--calibrate", "temperature")
    assert refused(*command).startswith("a.npz: cross-validation needs at least 20 samples, got 19")
    npz("a.npz", *drawn(20))
    run(*command, "--repeats", 1)
    assert "at least 21 samples, got 20: choose fewer folds than 21" in refused(*command, "--folds", 21)


def test_if_every_method_is_refused_there_is_no_verdict_on_the_nll(run):
    npz("a.npz", *drawn(40, num_classes=9))
    out, _ = run("evaluate", "a.npz", "--calibrate", "matrix", "--repeats", 1)
    assert "matrix skipped: MatrixScaling has 90 parameters" in out
    assert "no method lowers the NLL" not in out


def test_one_image_cannot_be_dealt_into_folds(refused):
    logits, target = drawn(100)
    npz("a.npz", logits.T.reshape(1, 4, 10, 10), target.view(1, 10, 10))
    assert "image" in refused("evaluate", "a.npz", "--calibrate", "temperature", "--cluster", "none")


def test_a_row_that_a_method_refuses_is_counted_as_in_the_file(calibration):
    logits, target = drawn(100)
    logits[60, target[60]] = -torch.inf
    npz("a.npz", logits, target)
    [got] = calibration("a.npz", "--calibrate", "temperature,isotonic")
    assert re.findall(r"row \d+", got["refused"]["temperature"]) in ([], ["row 60"])
