"""`dualfocal evaluate FOLDER` of arrays and masks."""

import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from dualfocal import metrics
from dualfocal.plots import overconfidence_map
from dualfocal.predictions import PredictionsError, open_dense_folder

IMAGES, CLASSES = 12, 3


def scene(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of an image of its own size; pixels of the first row are not labelled."""
    rng = np.random.default_rng(index)
    height, width = 10 + index % 3, 12 + index % 2
    labels = np.zeros((height, width), np.uint8)
    labels[3:8, 4:9], labels[:, 10:] = 1, 2
    noise = rng.normal(size=(CLASSES, 1, 1)) + 2 * rng.normal(size=(CLASSES, height, width))
    logits = 3 * (labels == np.arange(CLASSES)[:, None, None]) + noise
    labels[0] = 255
    return logits.astype(np.float32), labels


@pytest.fixture
def folder() -> str:
    for name in ("logits", "masks"):
        Path("seg", name).mkdir(parents=True)
    for i in range(IMAGES):
        logits, labels = scene(i)
        np.save(f"seg/logits/im{i:02}.npy", logits)
        PIL.Image.fromarray(labels).save(f"seg/masks/im{i:02}.png")
    return "seg"


def test_the_numbers_are_those_of_all_pixels_in_clusters(folder, record):
    (result,) = record("evaluate", folder, "--ignore-index", "255")["files"]
    parts = [(logits.reshape(CLASSES, -1).T, labels.reshape(-1)) for logits, labels in map(scene, range(IMAGES))]
    logits, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    names = np.repeat(np.arange(IMAGES), [len(part[1]) for part in parts])
    rows = metrics.evaluate(logits, labels.astype(int), inference=True, ignore_index=255, clusters=names).to_dict()
    for name in ("num_samples", "error", "ece", "mce", "classwise_ece", "confidence"):
        assert result[name] == pytest.approx(rows[name], abs=1e-12)
    assert result["debiased_ece"] == pytest.approx(rows["debiased_ece"], abs=1e-6)
    assert result["inference"]["clusters"]["number"] == IMAGES
    assert result["inference"]["debiased_ece"]["interval"] == pytest.approx(
        rows["inference"]["debiased_ece"]["interval"], abs=5e-3
    )
    assert result["verdict"].split(":")[0] == metrics.Evaluation.from_dict(rows).verdict().split(":")[0]
    assert [image["overconfidence"] for image in result["images"]] == sorted(
        (image["overconfidence"] for image in result["images"]), reverse=True
    )


def test_boundary_and_interior_divide_the_pixels(folder, record, run):
    arguments = ("evaluate", folder, "--ignore-index", "255", "--boundary", "1")
    (result,) = record(*arguments)["files"]
    number = sum(
        bool(near[y, x])
        for logits, labels in map(scene, range(IMAGES))
        for near in [slow_boundary(logits.argmax(0), 1)]
        for y, x in np.argwhere(labels != 255)
    )
    assert result["boundary"]["num_samples"] == number
    assert result["boundary"]["num_samples"] + result["interior"]["num_samples"] == result["num_samples"]
    assert result["boundary"]["inference"]["clusters"]["number"] == IMAGES
    out, _ = run(*arguments)
    assert "boundary and interior; p is adjusted" in out
    assert "adjusted p" in out
    assert "classes, worst first (3 of 3)" in out


def slow_boundary(classes: np.ndarray, width: int) -> np.ndarray:
    near = np.zeros(classes.shape, bool)
    for y, x in np.ndindex(*classes.shape):
        around = classes[max(y - width, 0) : y + width + 1, max(x - width, 0) : x + width + 1]
        near[y, x] = (around != classes[y, x]).any()
    return near


@pytest.mark.parametrize("width", [1, 2, 5])
def test_boundary_by_a_loop_over_pixels(width, record):
    classes = np.random.default_rng(0).integers(0, 2, (9, 14)).repeat(3, 0).repeat(3, 1)
    Path("one").mkdir()
    np.savez("one/a.npz", logits=5.0 * (classes == np.arange(2)[:, None, None]), target=classes)
    [result] = record("evaluate", "one", "--boundary", width, "--no-inference")["files"]
    number = int(slow_boundary(classes, width).sum())
    assert (result["boundary"]["num_samples"], result["interior"]["num_samples"]) == (number, classes.size - number)


def test_classes_by_a_loop_over_pixels(folder, record):
    [result] = record("evaluate", folder, "--ignore-index", "255", "--no-inference")["files"]
    counts = np.zeros((3, CLASSES))
    for logits, labels in map(scene, range(IMAGES)):
        probs = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(0)
        for y, x in np.argwhere(labels != 255):
            counts[0, labels[y, x]] += 1
            counts[1] += probs[:, y, x]
            counts[2, probs[:, y, x].argmax()] += 1
    assert sorted(one["class"] for one in result["classes"]) == [0, 1, 2]
    for one in result["classes"]:
        got = (one["occurs"], one["probability"], one["predicted"])
        assert got == pytest.approx(counts[:, one["class"]] / result["num_samples"], abs=1e-8)


def test_archives_and_given_names_give_the_same_numbers(folder, record):
    Path("archives").mkdir()
    for name in ("scores", "truth"):
        Path("other", name).mkdir(parents=True)
    for i in range(IMAGES):
        logits, labels = scene(i)
        np.savez(f"archives/im{i:02}.npz", logits=logits, target=labels)
        np.save(f"other/scores/im{i:02}.npy", logits)
        np.save(f"other/truth/im{i:02}.npy", labels)
    drop = ("--ignore-index", "255", "--no-inference")
    first, second, third = (
        record("evaluate", *arguments, *drop)["files"][0]
        for arguments in (
            [folder],
            ["archives"],
            ["other", "--logits", "scores", "--target", "truth"],
        )
    )
    assert first["ece"] == second["ece"] == third["ece"]
    assert first["images"] == second["images"] == third["images"]


def test_pictures_and_the_limit(folder, run):
    _, err = run(
        "evaluate", folder, "--ignore-index", "255", "--plot", "r.png", "--maps", "m.png", "--fail-over", "0.9"
    )
    assert Path("r.png").stat().st_size > 1000
    assert Path("m.png").stat().st_size > 1000
    assert "Maps of over-confidence: m.png" in err
    run("evaluate", folder, "--ignore-index", "255", "--fail-over", "0.0001", code=3)


def test_map_is_a_weighted_mean_of_labelled_pixels():
    logits, labels = scene(0)
    gaps = overconfidence_map(logits, labels, ignore_index=255, sigma=0)
    probs = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(0)
    assert np.isnan(gaps[0]).all()
    for y, x in ((1, 1), (5, 6), (9, 11)):
        p = probs[:, y, x]
        assert gaps[y, x] == pytest.approx(p.max() - (p.argmax() == labels[y, x]))
    smoothed = overconfidence_map(logits, labels, ignore_index=255, sigma=50.0)
    assert smoothed[1:] == pytest.approx(np.nanmean(gaps), abs=0.02)


def test_one_image_alone_is_evaluated_with_a_warning(run):
    logits, labels = scene(0)
    Path("one").mkdir()
    np.savez("one/a.npz", logits=logits, mask=np.where(labels == 255, 0, labels))
    out, err = run("evaluate", "one", "--json")
    assert "Only one image has labels" in err
    assert "clusters" not in json.loads(out)["files"][0]["inference"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda: Path("seg/masks/im03.png").unlink(), ["mask of im03.npy is missing", "--target"]),
        (lambda: PIL.Image.new("L", (40, 50)).save("seg/masks/im03.png"), ["(50, 40)", "(10, 13) pixels"]),
        (lambda: PIL.Image.new("RGB", (13, 10)).save("seg/masks/im03.png"), ["im03.png", "mode RGB"]),
        (lambda: np.save("seg/logits/im03.npy", np.ones((4, 10, 13))), ["im03", "numbers of classes"]),
        (lambda: np.save("seg/logits/im03.npy", np.ones((10, 13))), ["im03.npy", "(C, H, W)", "10 x 13"]),
        (lambda: cut("seg/logits/im03.npy"), ["im03.npy", "header promises"]),
        (lambda: cut("seg/masks/im03.png"), ["im03.png", "cannot be read"]),
        (lambda: huge("seg/logits/im03.npy"), ["im03.npy", "header promises"]),
        (lambda: np.save("seg/masks/im03.npy", np.zeros((10, 13), int)), ["im03", "name the same image"]),
        (lambda: link_to_pipe("seg/logits/im03.npy"), []),
        (lambda: Path("seg/masks").rename("seg/other"), ["no folder 'masks' or 'target'"]),
        (lambda: np.save("seg/logits/im03.npy", np.full((3, 10, 13), np.nan)), ["im03", "NaN"]),
        (lambda: np.save("seg/logits/im03.npy", np.ones((10, 13, 3))), ["(H, W, C)", "array.transpose(2, 0, 1)"]),
        (lambda: np.save("seg/logits/im03.npy", np.ones((2, 10, 13))), ["im03", "2 classes, but im00 has 3"]),
        (lambda: np.save("seg/logits/im00.npy", np.full((3, 10, 13), 1 / 3)), ["sum to 1", "--probs"]),
    ],
)
def test_bad_folders_are_refused(folder, damage, words, run):
    damage()
    if not words:  # what is not a regular file is not read, and never waited for
        run("evaluate", folder, "--ignore-index", "255", "--no-inference")
        return
    _, err = run("evaluate", folder, "--ignore-index", "255", code=2)
    assert all(word in err for word in words), err
    assert "Traceback" not in err


def cut(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])


def huge(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"(3, 10, 13), }" + 6 * b" ", b"(3, 99999, 99999), }"))


def link_to_pipe(path: str) -> None:
    import os

    Path(path).unlink()
    os.mkfifo("pipe")
    Path(path).symlink_to(Path("pipe").resolve())


def test_label_255_names_the_remedy(folder, run):
    _, err = run("evaluate", folder, code=2)
    assert "--ignore-index 255" in err


def test_sixteen_bit_masks_hold_class_indices():
    for name in ("logits", "masks"):
        Path("deep", name).mkdir(parents=True)
    logits, labels = scene(0)
    np.save("deep/logits/a.npy", logits)
    PIL.Image.fromarray(labels.astype(np.uint16)).save("deep/masks/a.png")
    assert np.array_equal(open_dense_folder("deep")[0].target, labels)


STYLE = ["--plot", "a.png", "--plot-style", "quantile"]


def test_options_that_do_not_apply_are_refused(folder, run):
    for option in (["--calibrate", "temperature"], ["--cluster", "x"], ["--merge"], ["--binary", "positive"], STYLE):
        _, err = run("evaluate", folder, *option, code=2)
        assert "does not apply" in err
    np.savez("a.npz", logits=np.eye(3), target=np.arange(3))
    _, err = run("evaluate", "a.npz", "--boundary", "2", code=2)
    assert "folders of dense predictions" in err


def test_one_image_is_named_in_the_singular(run):
    for name in ("logits", "masks"):
        Path("one", name).mkdir(parents=True)
    logits, labels = scene(0)
    np.save("one/logits/a.npy", logits)
    for name in ("a", "b"):
        PIL.Image.fromarray(labels).save(f"one/masks/{name}.png")
    out, err = run("evaluate", "one", "--ignore-index", "255", "--no-inference", "--boundary", "1", "--num-bins", "1")
    assert "(1 image), labels from 'masks' (1 mask has no predictions and is not used)" in err
    assert "in 1 cluster, 3 classes, 1 bin\n" in out or "samples, 3 classes, 1 bin\n" in out
    assert "at most 1 row and column away" in out


def test_a_folder_without_predictions_is_refused():
    Path("empty").mkdir()
    with pytest.raises(PredictionsError, match=r"expected logits/NAME\.npy"):
        open_dense_folder("empty")


def test_an_image_without_labels_is_no_cluster(run):
    logits, labels = scene(0)
    Path("two").mkdir()
    np.savez("two/a.npz", logits=logits, target=labels)
    np.savez("two/b.npz", logits=logits, target=np.full_like(labels, 255))
    out, err = run("evaluate", "two", "--ignore-index", "255", "--json")
    [result] = json.loads(out)["files"]
    assert [image["name"] for image in result["images"]] == ["a"]
    [image] = result["images"]
    assert image["overconfidence"] == pytest.approx(image["confidence"] - image["accuracy"])
    assert "Only one image has labels" in err


def test_a_folder_without_any_label_is_refused(folder, run):
    for mask in Path(folder, "masks").iterdir():
        PIL.Image.fromarray(np.full_like(np.asarray(PIL.Image.open(mask)), 255)).save(mask)
    _, err = run("evaluate", folder, "--ignore-index", "255", code=2)
    assert "no pixel has a label" in err


def test_names_that_are_not_there_are_said(folder, run):
    _, err = run("evaluate", folder, "--logits", "scores", code=2)
    assert "--logits or --probs" in err
    _, err = run("evaluate", folder, "--maps", "maps.txt", code=2)
    assert "the ending of --maps must be one of" in err


def test_label_255_of_a_file_names_the_remedy(run):
    np.savez("a.npz", logits=np.zeros((2, 3, 4, 4)), target=np.full((2, 4, 4), 255))
    _, err = run("evaluate", "a.npz", code=2)
    assert "--ignore-index 255" in err


def test_folders_of_another_kind_name_the_command(folder, run):
    _, err = run("compare", folder, folder, code=2)
    assert "use dualfocal evaluate" in err
    Path("logs").mkdir()
    Path("logs/samples_task_2026.jsonl").write_text('{"doc_id": 0, "filtered_resps": []}\n')
    for place in ("logs", "logs/samples_task_2026.jsonl"):
        _, err = run("evaluate", place, code=2)
        assert "--format lm-eval" in err
