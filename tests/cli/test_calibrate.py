"""`dualfocal calibrate` and `apply` write and print what the library fits; a refusal is one line and no file."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from samples import draw_logits
from torch import Tensor

from dualfocal import metrics
from dualfocal.calibrators import (
    CALIBRATORS,
    TemperatureScaling,
    VectorScaling,
    load_calibrator,
    log_probs,
    make_calibrator,
    save_calibrator,
)
from dualfocal.predictions import load_predictions, save_predictions

NAMES = ("cat", "dog", "emu", "fox")


def drawn(n: int = 300, sharpness: float = 2.0, seed: int = 0, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits that are too sharp by this factor, and labels."""
    return draw_logits(n, num_classes, seed=seed, overconfidence=sharpness)


def saved(name: str, values: Tensor, target: Tensor | None = None, *, input: str = "logits", **options: object) -> str:
    save_predictions(name, values, input=input, target=target, **options)
    return name


def fitted(method: str = "temperature", input: str = "logits", **options: object) -> str:
    """A calibrator on disk, fitted to `drawn()`."""
    logits, target = drawn()
    calibrator = make_calibrator(method).fit(logits if input == "logits" else logits.softmax(1), target, input=input)
    for name, value in options.items():
        setattr(calibrator, name, value)
    save_calibrator(calibrator, "cal.npz")
    return "cal.npz"


def files() -> dict[str, bytes]:
    """All files in the folder, with temporary ones."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def temperature(path: str = "cal.npz") -> float:
    return float(load_calibrator(path).temperature)


# calibrate: what is fitted


@pytest.mark.parametrize("method", ["temperature", "temperature_ece", "vector", "isotonic", "temperature+isotonic"])
def test_the_file_holds_what_the_library_fits(run, method):
    logits, target = drawn()
    arguments = [] if method == "temperature" else ["--method", method]
    out, err = run("calibrate", saved("val.npz", logits, target), "--out", "cal.npz", *arguments)
    assert err == "val.npz: logits from 'logits' (300 x 4, float32), labels from 'target'\n"
    expected = make_calibrator(method).fit(logits, target)
    got = load_calibrator("cal.npz")
    assert repr(got) == repr(expected)
    assert got.report == expected.report
    assert got.class_names is None
    assert got.state_dict().keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name
    lines = out.splitlines()
    if isinstance(expected, TemperatureScaling):
        assert lines.pop(0) == f"T = {expected.temperature:.4f}"
    assert lines == [
        *str(expected.report).splitlines(),
        "Saved: cal.npz",
        "Next: dualfocal apply cal.npz TEST_FILE --out calibrated.npz",
    ]


def test_probabilities_are_fitted_by_their_logarithms(run):
    logits, target = drawn()
    probs = logits.softmax(1)
    expected = TemperatureScaling().fit(log_probs(probs), target).temperature
    run("calibrate", saved("val.npz", probs, target, input="probs"), "--out", "cal.npz")
    assert temperature() == expected
    assert temperature() == pytest.approx(float(TemperatureScaling().fit(logits, target).temperature), rel=1e-5)


def test_table_of_probabilities_with_class_names(run):
    logits, target = drawn()
    probs = logits.double().softmax(1)
    rows = [",".join(map(repr, p)) + f",{NAMES[k]}\n" for p, k in zip(probs.tolist(), target.tolist(), strict=True)]
    Path("val.csv").write_text(",".join(f"prob_{name}" for name in NAMES) + ",y\n" + "".join(rows))
    run("calibrate", "val.csv", "--out", "cal.npz", "--method", "vector")
    got, expected = load_calibrator("cal.npz"), VectorScaling().fit(log_probs(probs), target)
    assert got.class_names == NAMES
    for name, value in expected.state_dict().items():
        assert torch.equal(got.state_dict()[name], value), name
    run("calibrate", saved("val.npz", *drawn(), class_names=NAMES), "--out", "cal.npz")
    assert load_calibrator("cal.npz").class_names == NAMES


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_one_score_per_sample(run, input):
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(400, generator=generator, dtype=torch.float64)
    target = torch.bernoulli((scores / 2).sigmoid(), generator=generator).long()
    values = scores if input == "logits" else scores.sigmoid()
    run("calibrate", saved("val.npz", values, target, input=input), "--out", "cal.npz")
    two = torch.stack([torch.zeros_like(scores), scores], dim=1)
    assert temperature() == pytest.approx(float(TemperatureScaling().fit(two, target).temperature), rel=1e-9)
    assert load_calibrator("cal.npz").report.num_classes == 2


def test_split_of_a_run_folder(run):
    (val, val_target), (test, test_target) = drawn(), drawn(seed=1, sharpness=1.0)
    Path("run").mkdir()
    arrays = {"val_logits": val, "val_target": val_target, "test_logits": test, "test_target": test_target}
    save_file(arrays, "run/predictions.safetensors")
    run("calibrate", "run", "--split", "test", "--out", "cal.npz")
    assert temperature() == TemperatureScaling().fit(test, test_target).temperature
    run("calibrate", "run", "--out", "cal.npz")
    assert temperature() == TemperatureScaling().fit(val, val_target).temperature
    for options, logits, target in (((), test, test_target), (("--split", "val"), val, val_target)):
        run("apply", "cal.npz", "run", *options, "--out", "out.npz")
        got = load_predictions("out.npz")
        assert torch.equal(got.values, logits / torch.tensor(temperature(), dtype=torch.float32))
        assert torch.equal(got.target, target)


def test_ignored_labels_count_nothing(run):
    logits, target = drawn()
    padding = torch.full_like(logits, torch.nan)  # ignored rows may contain anything
    saved("val.npz", torch.cat([logits, padding]), torch.cat([target, torch.full_like(target, 9)]))
    run("calibrate", "val.npz", "--out", "cal.npz", "--ignore-index", 9)
    assert temperature() == TemperatureScaling().fit(logits, target).temperature


def test_dense_predictions(run):
    logits, target = (tensor.unflatten(0, (3, 10, 10)) for tensor in drawn())
    logits = logits.movedim(-1, 1).contiguous()
    run("calibrate", saved("val.npz", logits, target), "--out", "cal.npz")
    assert temperature() == pytest.approx(float(TemperatureScaling().fit(*drawn()).temperature), rel=1e-6)
    run("apply", "cal.npz", "val.npz", "--out", "out.npz")
    got = load_predictions("out.npz")
    assert torch.equal(got.values, load_calibrator("cal.npz")(logits))
    assert torch.equal(got.target, target)


def test_too_few_samples_for_the_parameters_are_refused_without_force(run, refused):
    saved("val.npz", *drawn(19))
    save_calibrator(TemperatureScaling().fit(*drawn()), "old.npz")
    before = files()
    for out in ("cal.npz", "old.npz"):
        line = refused("calibrate", "val.npz", "--out", out, "--method", "matrix")
        assert line.startswith("val.npz: MatrixScaling has 20 parameters for 4 classes")
        assert "got 19" in line
        assert files() == before
    for out in ("cal.npz", "old.npz"):
        run("calibrate", "val.npz", "--out", out, "--method", "matrix", "--force")
        assert load_calibrator(out).num_classes == 4


# calibrate: what is said


def test_json_is_the_report(record):
    logits, target = drawn()
    for method in ("temperature", "isotonic"):
        if method == "isotonic":
            logits[3, target[3]] = -torch.inf  # an infinite NLL is null
        saved("val.npz", logits, target)
        content = record("calibrate", "val.npz", "--out", "cal.npz", "--method", method)
        expected = make_calibrator(method).fit(logits, target)
        about = {"schema": 1, "file": "val.npz", "method": method, "out": "cal.npz"}
        if method == "temperature":
            about["temperature"] = expected.temperature.item()
        assert content == json.loads(json.dumps(about | expected.report.to_dict())), method
    assert content["nll_before"] is None
    assert content["nll_after"] == expected.report.nll_after


def test_notes_on_unusual_data_are_printed(run, record):
    logits, target = drawn()
    out, _ = run("calibrate", saved("right.npz", logits, logits.argmax(1)), "--out", "cal.npz")
    assert "\nnote: all samples are predicted correctly: " in out
    saved("absent.npz", logits, target.where(target != 2, 1))
    out, _ = run("calibrate", "absent.npz", "--out", "cal.npz", "--method", "vector")
    note = "1 of 4 classes have no samples (2): the fit gives them almost zero probability"
    assert f"\nnote: {note}\n" in out
    assert record("calibrate", "absent.npz", "--out", "c.npz", "--method", "vector")["notes"] == [note]


def test_markup_in_names_is_printed_verbatim(run):
    saved("[bold]x.npz", *drawn())
    out, err = run("calibrate", "[bold]x.npz", "--out", "[i]y.npz")
    assert err.startswith("[bold]x.npz: logits")
    assert "\nSaved: [i]y.npz\n" in out
    out, err = run("apply", "[i]y.npz", "[bold]x.npz", "--out", "[i]:z:.npz")
    assert err.startswith("[bold]x.npz: logits")
    assert out.startswith("[bold]x.npz\n")
    assert out.endswith("\nSaved: [i]:z:.npz\n")


# calibrate: refusals


def damaged(case: str) -> None:
    logits, target = drawn(40)
    if case == "nan":
        logits[7, 2] = torch.nan
    if case == "label":
        target[5] = 9
    if case == "-inf":
        logits[6, target[6]] = -torch.inf
    if case == "ignored":
        target[:] = -100
    if case == "sums":
        probs = logits.double().softmax(1)
        probs[3] *= 1.1
        saved("val.npz", probs, target, input="probs")
    elif case == "unlabelled":
        saved("val.npz", logits)
    elif case == "text":
        Path("val.npz").write_text("nothing of the kind")
    elif case != "missing":
        saved("val.npz", logits, target)


def test_what_cannot_be_fitted_is_one_line_and_no_file(refused):
    Path("folder.npz").mkdir()
    for case, arguments, words in (
        ("nan", [], ["val.npz: ", "logits", "row 7 holds NaN"]),
        ("nan", ["--json"], ["val.npz: ", "row 7 holds NaN"]),
        ("label", [], ["val.npz: ", "target 9 is out of range", "[0, 3]"]),
        ("sums", [], ["val.npz: ", "probabilities must sum to 1", "row 3 sums to 1.1"]),
        ("-inf", [], ["val.npz: ", "true class is -inf, or too far below the largest for float32, in 1 of"]),
        ("ignored", [], ["val.npz: ", "no samples", "ignore_index = -100"]),
        ("unlabelled", [], ["val.npz: ", "--target NAME"]),
        ("text", [], ["val.npz: is not an .npz archive"]),
        ("missing", [], ["val.npz: there is no such file"]),
        ("", ["--split", "val"], ["val.npz: has no split 'val'"]),
        ("", ["--logits", "scores"], ["val.npz: has no array 'scores'"]),
        # These are checked before the file is read.
        ("missing", ["--method", "temprature"], ["'temprature'", *CALIBRATORS]),
        ("missing", ["--method", "temperature+"], ["got ''"]),
        ("missing", ["--out", "cal.pt"], ["cal.pt: ", ".npz"]),
        ("missing", ["--out", "nowhere/cal.npz"], ["there is no folder 'nowhere'"]),
        ("missing", ["--out", "folder.npz"], ["folder.npz: must be a file"]),
    ):
        Path("val.npz").unlink(missing_ok=True)
        damaged(case)
        before = files()
        line = refused("calibrate", "val.npz", "--out", "cal.npz", *arguments)
        assert all(word in line for word in words), (case, arguments, line)
        assert files() == before, (case, arguments)
    assert "--out" in refused("calibrate", "val.npz")


def test_inputs_are_never_replaced(refused):
    Path("run").mkdir()
    saved("run/predictions.safetensors", *drawn())
    saved("val.npz", *drawn())
    fitted()
    before = files()
    for arguments, out in (
        (["calibrate", "val.npz"], "./val.npz"),
        (["apply", "cal.npz", "val.npz"], "./cal.npz"),
        (["apply", "cal.npz", "run"], "run/predictions.safetensors"),
    ):
        line = refused(*arguments, "--out", out)
        assert str(Path(out)) in line, arguments
        assert "is also an input" in line, arguments
        assert files() == before, arguments


# apply: what is written


@pytest.mark.parametrize(
    ("suffix", "method"),
    [(".npz", "vector"), (".safetensors", "temperature+isotonic"), (".csv", "temperature"), (".parquet", "vector")],
)
def test_logits_stay_logits(run, suffix, method):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    logits, target = drawn(seed=1)
    run("apply", fitted(method), saved("test.npz", logits, target), "--out", f"out{suffix}")
    calibrated = load_predictions(f"out{suffix}")
    expected = load_calibrator("cal.npz")(logits)
    assert calibrated.input == "logits"
    assert torch.equal(calibrated.values, expected.double() if suffix == ".csv" else expected)
    assert torch.equal(calibrated.target, target)


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_dtype_is_kept_or_widened(run, input):
    logits, target = drawn(seed=1)
    calibrator = load_calibrator(fitted("vector", input))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        values = (logits if input == "logits" else logits.double().softmax(1)).to(dtype)
        saved("a.safetensors", values, target, input=input)
        run("apply", "cal.npz", "a.safetensors", "--out", "b.safetensors")
        tensors = load_file("b.safetensors")
        assert tensors.keys() == {input, "target"}
        expected = calibrator(values) if input == "logits" else calibrator(values, input="probs").softmax(1)
        wide = torch.float64 if dtype == torch.float64 else torch.float32  # halves could overflow
        assert tensors[input].dtype == wide, dtype
        assert torch.equal(tensors[input], expected), dtype
        if input == "probs":
            error, ones = torch.finfo(wide).eps, torch.ones(300).double()
            torch.testing.assert_close(tensors["probs"].double().sum(1), ones, rtol=0, atol=4 * error)


def test_calibrated_probabilities_are_those_of_the_logits(run):
    logits, target = drawn(seed=1)
    saved("p.csv", logits.double().softmax(1), target, input="probs", class_names=NAMES)
    run("apply", fitted("temperature"), "p.csv", "--out", "out.csv")
    got = load_predictions("out.csv")
    assert (got.input, got.class_names) == ("probs", NAMES)
    torch.testing.assert_close(got.values, (logits.double() / temperature()).softmax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_apply_to_one_score_per_sample(run, input):
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(400, generator=generator, dtype=torch.float64)
    target = torch.bernoulli((scores / 2).sigmoid(), generator=generator).long()
    save_calibrator(TemperatureScaling().fit(scores, target), "cal.npz")
    values = scores if input == "logits" else scores.sigmoid()
    out, _ = run("apply", "cal.npz", saved("a.npz", values, target, input=input), "--out", "b.npz")
    assert "\n0 of 400 predicted classes changed.\n" in out
    expected = scores / temperature()
    torch.testing.assert_close(
        load_predictions("b.npz").values, expected if input == "logits" else expected.sigmoid(), rtol=1e-9, atol=0
    )


def test_class_names_are_carried_and_labels_not_needed(run):
    logits, _ = drawn(seed=1)
    fitted(class_names=NAMES)
    for suffix in (".npz", ".safetensors", ".csv"):
        saved(f"test{suffix}", logits, class_names=NAMES)
        out, err = run("apply", "cal.npz", f"test{suffix}", "--out", f"out{suffix}")
        assert err.endswith(", no labels\n"), suffix
        assert out == f"0 of 300 predicted classes changed.\nSaved: out{suffix}\n"
        calibrated = load_predictions(f"out{suffix}", labels=False)
        assert calibrated.labels is None, suffix
        assert calibrated.class_names == NAMES, suffix
        values = logits.double() if suffix == ".csv" else logits
        assert torch.equal(calibrated.values, load_calibrator("cal.npz")(values)), suffix


def test_apply_from_another_folder(run, monkeypatch):
    fitted()
    logits, target = drawn(seed=1)
    saved("test.npz", logits, target)
    Path("ünï cödé").mkdir()
    monkeypatch.chdir("ünï cödé")
    out, _ = run("apply", "../cal.npz", "../test.npz", "--out", "öut.npz")
    assert out.endswith("\nSaved: öut.npz\n")
    assert os.listdir() == ["öut.npz"]
    assert torch.equal(load_predictions("öut.npz").values, load_calibrator("../cal.npz")(logits))


def test_logits_that_their_dtype_cannot_hold_are_not_written_as_infinities(run):
    save_calibrator(TemperatureScaling().fit(drawn()[0] / 1000, drawn()[0].argmax(1)), "cal.npz")  # T < 0.001
    logits, target = drawn(seed=1)
    for labels in (target, None):
        saved("test.npz", (1000 * logits).half(), labels)
        run("apply", "cal.npz", "test.npz", "--out", "out.npz")
        assert np.isfinite(np.load("out.npz")["logits"]).all()


# apply: what is said


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_scores_before_and_after_are_the_library_s(run, record, input):
    logits, target = drawn(seed=1)
    target[:20] = 7
    values = logits if input == "logits" else logits.softmax(1)
    arguments = [fitted("vector", input), saved("test.npz", values, target, input=input), "--out", "out.npz"]
    arguments += ["--ignore-index", "7"]
    out, _ = run("apply", *arguments)
    both = [
        metrics.evaluate(scores, target, input=input, ignore_index=7)
        for scores in (values, load_predictions("out.npz").values)
    ]
    rows = [re.split(" *│ *", line)[1:-1] for line in out.splitlines() if line.startswith("│")]
    tables = [evaluation.table().rows for evaluation in both]
    assert rows == [[name, before, after] for (name, before), (_, after) in zip(*tables, strict=True)]
    got = record("apply", *arguments)
    for name, evaluation in zip(("before", "after"), both, strict=True):
        assert got[name] == json.loads(json.dumps(evaluation.to_dict()))
    assert got["before"]["nll"] > got["after"]["nll"]


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_changed_classes_are_counted(run, record, input):
    logits, target = drawn(seed=1)
    before = logits.argmax(1)
    fitted("isotonic")
    after = load_calibrator("cal.npz")(logits).argmax(1)
    changed = int((before != after).sum())
    assert changed > 10
    saved("test.npz", logits if input == "logits" else logits.softmax(1), target, input=input)
    out, _ = run("apply", "cal.npz", "test.npz", "--out", "out.npz")
    assert f"\n{changed} of 300 predicted classes changed.\n" in out
    got = record("apply", "cal.npz", "test.npz", "--out", "out.npz")
    assert (got["argmax_changed"], got["num_samples"]) == (changed, 300)


def test_labels_that_are_all_ignored_give_no_scores(run, record):
    logits, target = drawn(seed=1)
    arguments = [fitted(), saved("test.npz", logits, torch.full_like(target, -100)), "--out", "out.npz"]
    out, _ = run("apply", *arguments)
    assert out == "0 of 300 predicted classes changed.\nSaved: out.npz\n"
    assert load_predictions("out.npz").target.eq(-100).all()
    assert not {"before", "after"} & record("apply", *arguments).keys()


def test_an_infinite_nll_before_is_null_in_json(record):
    probs, target = drawn(seed=1)[0].softmax(1), drawn(seed=1)[1]
    probs[4] = torch.eye(4)[(target[4] + 1) % 4]
    content = record("apply", fitted(), saved("test.npz", probs, target, input="probs"), "--out", "out.npz")
    assert content["before"]["nll"] is None
    assert content["after"]["nll"] < 2


# apply: refusals


def case_of(case: str) -> str:
    """A calibrator and `test.npz`, and what is wrong with them; gives the calibrator's name."""
    logits, target = drawn(40, num_classes=5 if case == "classes" else 4)
    if case == "nan":
        logits[7, 2] = torch.nan
    if case == "label":
        target[5] = 9
    names = ("ant", "bee", "cow", "doe") if case == "names" else None
    saved("test.npz", logits, target, class_names=names)
    if case == "predictions":
        return saved("val.npz", *drawn(40))
    if case == "missing":
        return "cal.npz"
    path = fitted(class_names=NAMES)
    if case == "schema":
        with np.load(path) as archive:
            arrays = dict(archive)
        about = json.loads(arrays["dualfocal_calibrator"].item()) | {"schema": 17}
        np.savez(path, **arrays | {"dualfocal_calibrator": np.array(json.dumps(about))})
    if case == "cut":
        Path(path).write_bytes(Path(path).read_bytes()[:-4])
    return path


def test_what_cannot_be_applied_is_one_line_and_no_file(refused):
    Path("folder").mkdir()
    Path("link.npz").symlink_to("test.npz")
    for case, arguments, words in (
        ("classes", [], ["cal.npz was fitted for 4 classes, test.npz has 5"]),
        ("names", [], ["test.npz: the classes must be ", "missing", "additional ant, bee"]),
        ("predictions", [], ["val.npz: is not a calibrator"]),
        ("missing", [], ["cal.npz: there is no such file"]),
        ("schema", [], ["cal.npz: ", "schema 17", "schema 1"]),
        ("cut", [], ["cal.npz: is damaged"]),
        ("nan", [], ["test.npz: ", "row 7 holds NaN"]),
        ("nan", ["--json"], ["test.npz: ", "row 7 holds NaN"]),
        ("label", ["--target", "target"], ["test.npz: ", "target 9 is out of range"]),
        ("", ["--out", "test.npz"], ["--out: test.npz is also an input"]),
        ("", ["--out", "./folder/../test.npz"], ["is also an input"]),
        ("", ["--out", "link.npz"], ["is also an input"]),
        ("", ["--out", "out.txt"], ["out.txt: must end in .npz, .safetensors, .csv, .parquet", "'.txt'"]),
        ("", ["--out", "nowhere/out.npz"], ["there is no folder 'nowhere'"]),
        ("", ["--out", "folder"], ["folder: must be a file"]),
    ):
        Path("cal.npz").unlink(missing_ok=True)
        calibrator = case_of(case)
        before = files()
        line = refused("apply", calibrator, "test.npz", "--out", "out.npz", *arguments)
        assert all(word in line for word in words), (case, arguments, line)
        assert files() == before, (case, arguments)
    assert "must end in .npz" in refused("apply", fitted(), "this_file_is_not_there.npz", "--out", "out.txt")


def test_classes_in_another_order_are_aligned_and_written_in_the_order_of_the_file(run):
    logits, target = drawn(40)
    order = [2, 0, 3, 1]
    calibrator = fitted("vector", class_names=NAMES)
    saved("same.npz", logits, target, class_names=NAMES)
    labels = torch.tensor([order.index(label) for label in target.tolist()])
    saved("other.csv", logits[:, order], labels, class_names=tuple(NAMES[k] for k in order))
    outputs = [run("apply", calibrator, name, "--out", f"out-{name}") for name in ("same.npz", "other.csv")]
    assert "same order" in outputs[1][1]
    assert "same order" not in outputs[0][1]
    same, other = (load_predictions(f"out-{name}") for name in ("same.npz", "other.csv"))
    torch.testing.assert_close(other.values.float(), same.values[:, order])
    assert torch.equal(other.target, labels)
    assert outputs[0][0].splitlines()[-3] == outputs[1][0].splitlines()[-3]  # the verdict


def test_apply_ends_with_a_verdict(run, record):
    logits, target = drawn(2000, sharpness=2.0, seed=1)
    saved("sharp.npz", logits, target)
    saved("calibrated.npz", logits / 2, target)
    calibrator = fitted()
    better, worse = (record("apply", calibrator, name, "--out", "out.npz") for name in ("sharp.npz", "calibrated.npz"))
    assert better["verdict"].startswith("Better ")
    assert not better["worse"]
    assert worse["verdict"].startswith("Worse ")
    assert worse["worse"]
    assert f"{worse['before']['nll']:.4f} to {worse['after']['nll']:.4f} nats" in worse["verdict"]
    save_predictions("unlabelled.npz", logits, input="logits")
    assert "verdict" not in record("apply", calibrator, "unlabelled.npz", "--out", "out.npz")


# From end to end


def test_calibrate_apply_and_compare(run):
    for name, seed in (("val", 0), ("test", 1)):
        logits, target = drawn(600, 2.5, seed)
        saved(f"{name}.npz", logits.softmax(1), target, input="probs")
    run("calibrate", "val.npz", "--out", "cal.npz")
    run("apply", "cal.npz", "test.npz", "--out", "calibrated.npz")
    verdict = run("compare", "test.npz", "calibrated.npz")[0].splitlines()[-1]
    assert verdict.startswith("B has the lower NLL, by ")
    assert "; error not significantly different; B has the lower debiased RMS error, by " in verdict


# What a calibrator knows of the data of its fit


def test_rounded_probabilities(run):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2000, 10, generator=generator, dtype=torch.float64)
    target = torch.multinomial((logits / 1.5).softmax(1), 1, generator=generator)[:, 0]
    probs = logits.softmax(1).round(decimals=3)
    out, _ = run("calibrate", saved("val.npz", probs, target, input="probs"), "--out", "cal.npz")
    assert temperature() == pytest.approx(1.5, rel=0.1)
    zeros = int((probs.gather(1, target[:, None]) == 0).sum())
    assert f"note: {zeros} of 2,000 true classes have probability 0: the fit replaces 0 by 0.0005" in out
    assert "NLL inf before" in out
    run("apply", "cal.npz", "val.npz", "--out", "out.npz")
    ece = [metrics.ece(file.values, target, input="probs") for file in map(load_predictions, ("val.npz", "out.npz"))]
    assert ece[1] < ece[0] / 2


@pytest.mark.parametrize(("first", "second"), [("logits", "probs"), ("probs", "logits")])
def test_vector_scaling_of_logits_refuses_probabilities_and_vice_versa(run, refused, first, second):
    logits, target = drawn(seed=1)
    values = logits if second == "logits" else logits.softmax(1)
    saved("test.npz", values, target, input=second)
    line = refused("apply", fitted("vector", first), "test.npz", "--out", "out.npz")
    names = {"logits": "logits", "probs": "probabilities"}
    assert line.startswith("test.npz: ")
    assert f"VectorScaling was fitted on {names[first]}, but got {names[second]}" in line
    assert not Path("out.npz").exists()
    run("apply", fitted("temperature", first), "test.npz", "--out", "out.npz")


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".safetensors"])
def test_the_data_of_the_fit_are_recognized(run, suffix):
    logits, target = drawn()
    target[:40] = 9
    ignore = ("--ignore-index", 9)
    run("calibrate", saved(f"val{suffix}", logits, target), "--out", "cal.npz", *ignore)
    saved("others.npz", *drawn(seed=1))
    saved("unlabelled.npz", logits[40:])
    for file, times in ((f"val{suffix}", 1), ("unlabelled.npz", 1), ("others.npz", 0)):
        _, err = run("apply", "cal.npz", file, "--out", "out.npz", *ignore)
        assert err.count("dualfocal: the calibrator was fitted on these data") == times, file


def test_few_samples_are_a_caution(run):
    logits, target = drawn(19)
    assert (logits.argmax(1) != target).any()
    _, err = run("calibrate", saved("val.npz", logits, target), "--out", "cal.npz")
    assert re.search(r"^dualfocal: .*19 samples is mostly noise; use at least 20", err, re.MULTILINE)
    assert "mostly noise" not in run("calibrate", saved("more.npz", *drawn(20)), "--out", "cal.npz")[1]


def test_few_samples_without_a_best_temperature_are_refused(refused):
    logits = torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 0.0]])
    for label, words in ((0, "all samples are predicted correctly"), (1, "the logits do not help to predict")):
        saved("val.npz", logits, torch.full((3,), label))
        line = refused("calibrate", "val.npz", "--out", "cal.npz")
        assert line.startswith(f"val.npz: cannot fit a calibrator to 3 samples: {words}")
    assert not Path("cal.npz").exists()


# Two classes


def test_binary_chooses_the_confidence_that_apply_scores(run, record, refused):
    logits, target = drawn(num_classes=2)
    file = saved("val.npz", logits, target)
    run("calibrate", file, "--out", "two.npz", "--binary", "positive")
    assert temperature("two.npz") == float(TemperatureScaling().fit(logits, target).temperature)
    for options in ({}, {"binary": "positive"}, {"binary": "top_label"}):
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        before = record("apply", "two.npz", file, "--out", "out.npz", *words)["before"]
        assert before["ece"] == metrics.ece(logits, target, **options), options
    five = saved("five.npz", *drawn())
    message = refused("calibrate", five, "--out", "four.npz", "--binary", "positive")
    assert re.search("five.npz.*--binary positive needs two classes.*4", message)
