"""`dualfocal evaluate TEST --shifted FILE...`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from case_loops import for_each
from samples import draw_logits, write_run

from dualfocal import metrics as M

N, C = 300, 3


def sample(scale: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(N, C, generator=generator)
    return (scale * logits).numpy(), torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0].numpy()


SETS = {"test": sample(1, 0), "noise-2": sample(2, 1), "noise-10": sample(3, 2)}


@pytest.fixture(autouse=True)
def _files(_folder):
    for name, (logits, target) in SETS.items():
        np.savez(f"{name}.npz", logits=logits, target=target, image=np.arange(N))


def expected(**options) -> M.ShiftEvaluation:
    return M.evaluate_shift(SETS["test"], {name: SETS[name] for name in ("noise-2", "noise-10")}, **options)


def test_the_numbers_are_those_of_python(record, run):
    content = record("evaluate", "test.npz", "--shifted", "noise-10.npz", "--shifted", "noise-2.npz", "--level", "0.8")
    assert [(file["file"], file["name"]) for file in content["files"]] == [
        ("noise-10.npz", "noise-10"),
        ("noise-2.npz", "noise-2"),
    ]
    assert content["files"][0]["taken"].startswith("logits from 'logits'")
    wanted = json.loads(json.dumps(expected(level=0.8).to_dict()))
    assert {name: content[name] for name in wanted} == wanted
    out, err = run("evaluate", "test.npz", "--shifted", "noise-10.npz", "--shifted", "noise-2.npz")
    assert out.index("noise-2") < out.index("noise-10")
    assert expected().verdict() in out
    assert "noise-10.npz: logits from 'logits'" in err


def test_a_pattern_a_folder_and_the_words_of_a_shell_are_the_same(run):
    Path("c").mkdir()
    for name in SETS:
        shutil.copy(f"{name}.npz", "c")
    Path("c/README.txt").touch()
    first = run("evaluate", "test.npz", "--shifted", "noise-2.npz", "--shifted", "noise-10.npz")[0]
    for words in (["noise-*.npz"], ["noise-10.npz", "noise-2.npz"], ["?????-*.npz"]):
        assert run("evaluate", "test.npz", "--shifted", *words)[0] == first
    in_folder = run("evaluate", "c/test.npz", "--shifted", "c")[0]  # the test set of the folder is left out
    assert in_folder == first.replace("test: test.npz", "test: c/test.npz")


def test_classes_in_another_order_are_aligned(run, record):
    names = np.array(["a", "b", "c"])
    test, shifted = SETS["test"], SETS["noise-2"]
    np.savez("named.npz", logits=test[0], target=test[1], class_names=names)
    order = [2, 0, 1]
    np.savez("swapped.npz", logits=shifted[0][:, order], target=np.argsort(order)[shifted[1]], class_names=names[order])
    content = record("evaluate", "named.npz", "--shifted", "swapped.npz")
    one = M.evaluate_shift(test, {"swapped": shifted}).shifted[0]
    assert content["shifted"][0]["evaluation"]["nll"] == pytest.approx(one.evaluation.nll)
    assert content["shifted"][0]["auroc"]["entropy"]["value"] == one.auroc["entropy"].value
    np.savez("other.npz", logits=shifted[0], target=shifted[1], class_names=np.array(["a", "b", "x"]))
    _, err = run("evaluate", "named.npz", "--shifted", "other.npz", code=2)
    assert "other.npz: the classes must be a, b, c: missing c; additional x" in err


def test_labels_are_optional_and_may_be_another_file(record):
    np.savez("bare.npz", logits=SETS["noise-2"][0])
    one = record("evaluate", "test.npz", "--shifted", "bare.npz")["shifted"][0]
    assert (one["name"], one["evaluation"], one["intervals"]) == ("bare", None, {})
    assert one["auroc"]["entropy"]["value"] == expected().shifted[0].auroc["entropy"].value
    np.save("labels.npy", SETS["test"][1])
    one = record("evaluate", "test.npz", "--shifted", "bare.npz", "--target", "labels.npy")["shifted"][0]
    assert one["evaluation"]["error"] == M.error_rate(SETS["noise-2"][0], SETS["test"][1])


def test_clusters(record):
    content = record("evaluate", "test.npz", "--shifted", "noise-*.npz", "--cluster", "image")
    assert content["shifted"][0]["auroc"]["entropy"]["num_clusters"] == N  # the images of all files are the same
    assert content["shifted"][0]["evaluation"]["inference"]["clusters"]["number"] == N


def test_before_and_after_a_calibrator(run, record):
    content = record("evaluate", "test.npz", "--shifted", "noise-*.npz", "--calibrate", "temperature", "--folds", "3")
    calibration = content["calibration"]
    assert (calibration["method"], calibration["folds"]) == ("temperature", 3)
    after = calibration["after"]
    assert [one["name"] for one in (after["test"], *after["shifted"])] == ["test", "noise-2", "noise-10"]
    out, _ = run("evaluate", "test.npz", "--shifted", "noise-*.npz", "--calibrate", "temperature", "--plot", "s.png")
    assert "before and after temperature" in out
    assert Path("s.png").stat().st_size > 10_000


def test_a_run_is_calibrated_on_its_validation_split(run):
    logits, target = draw_logits(300, 4)
    write_run(Path("runs/a"), {"val": draw_logits(300, 4, seed=1), "test": (logits, target)})
    np.savez("shifted.npz", logits=3 * logits.numpy(), target=target.numpy())
    out, _ = run("evaluate", "runs/a", "--shifted", "shifted.npz", "--calibrate", "vector+temperature")
    assert "vector+temperature was fitted on the validation split" in out


REFUSED = [
    (["--merge"], "--merge does not apply to --shifted: merge the files first"),
    (["--group-by", "image"], "--group-by does not apply to --shifted: evaluate each file"),
    (["--convention", "published"], "--convention does not apply"),
    (["--fail-over", "0.1"], "--fail-over does not apply"),
    (["--plot", "s.png", "--plot-style", "corp"], "--plot-style does not apply to --shifted: evaluate each file"),
    (["--no-inference"], "--no-inference does not apply to --shifted: leave it out"),
    (["--prediction", "p", "--confidence", "c"], "--prediction does not apply"),
    (["--sql", "t"], "--sql does not apply to --shifted: export the rows"),
    (["--calibrate", "temperature,vector"], "--calibrate takes one method with --shifted, got temperature, vector"),
    (["--shifted", "test.npz"], "--shifted: test.npz is also the test set"),
    (["--shifted", "noise-10.npz", "--shifted", "./noise-10.npz"], "--shifted: noise-10.npz is given more than once"),
    (["--shifted", "blur-*.npz"], "blur-*.npz: no file matches this pattern"),
    (["--shifted", "missing.npz"], "missing.npz"),
]


@for_each("options, message", REFUSED)
def test_options_that_do_not_apply(options, message, refused):
    assert message in refused("evaluate", "test.npz", "--shifted", "noise-2.npz", *options)


def test_bad_places(refused):
    Path("empty").mkdir()
    assert "empty: has no prediction files (.npz," in refused("evaluate", "test.npz", "--shifted", "empty")
    assert "--shifted needs the test set" in refused("evaluate", "--shifted", "noise-2.npz")
    assert "names no file besides the test set" in refused("evaluate", "test.npz", "--shifted", "t*.npz")
    assert "holds the labels" in refused("evaluate", "test.npz", "--shifted", "noise-2.npz", "--cluster", "target")
    large = refused("evaluate", "test.npz", "--shifted", "noise-2.npz", "--max-memory", "1KB")
    assert "test.npz: needs" in large


def test_files_of_the_same_name_have_their_folders_as_names(record):
    for folder in ("blur", "fog"):
        Path(folder).mkdir()
        shutil.copy("noise-2.npz", f"{folder}/test.npz")
    content = record("evaluate", "test.npz", "--shifted", "blur/test.npz", "--shifted", "fog/test.npz")
    assert [one["name"] for one in content["shifted"]] == ["blur/test.npz", "fog/test.npz"]


def test_images_of_dense_predictions_are_clusters(record):
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=(20, 1, 1)).repeat(6, 1).repeat(6, 2)  # the pixels of an image are alike
    shared = 2 * rng.normal(size=(20, 3, 1, 1))
    for name in ("dense.npz", "dense-1.npz"):
        np.savez(name, logits=shared + 0.1 * rng.normal(size=(20, 3, 6, 6)), target=labels)
    widths = {}
    for cluster in ((), ("--cluster", "none")):
        result = record("evaluate", "dense.npz", "--shifted", "dense-1.npz", *cluster)
        low, high = result["test"]["intervals"]["error"]
        widths[cluster] = high - low
    assert widths[()] > 3 * widths["--cluster", "none"]  # 36 pixels carry the information of one
