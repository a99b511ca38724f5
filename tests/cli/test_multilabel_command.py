"""`--task multilabel`: files of arrays and tables, options, calibrators, and errors with the remedy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dualfocal.metrics import evaluate
from dualfocal.predictions import load_multilabel_predictions, save_predictions

NAMES = ("cat", "dog", "emu")


def drawn(n: int = 200, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, 3)) - 1
    return sharpness * logits, (rng.random((n, 3)) < 1 / (1 + np.exp(-logits))).astype(np.int64)


def write_csv(name: str, columns: dict[str, np.ndarray]) -> str:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    Path(name).write_text("\n".join(lines) + "\n")
    return name


def table(order: tuple[int, ...] = (2, 0, 1)) -> dict[str, np.ndarray]:
    """Columns per label; those of the target in another order."""
    logits, target = drawn()
    return {f"logit_{NAMES[i]}": logits[:, i] for i in range(3)} | {f"target_{NAMES[i]}": target[:, i] for i in order}


def test_array_and_table_give_the_same_numbers(record):
    logits, target = drawn()
    np.savez("a.npz", logits=logits, target=target.astype(bool), class_names=NAMES)
    write_csv("a.csv", table())
    named = ("--logits", "logit_emu,logit_cat", "--target", "target_emu,target_cat")
    expected = evaluate(logits, target, input="logits", task="multilabel", inference=True, class_names=NAMES).to_dict()
    for name in ("a.npz", "a.csv"):
        content = record("evaluate", name, "--task", "multilabel", "--cluster", "none")["files"][0]
        assert {key: content[key] for key in expected} == json.loads(json.dumps(expected))
    two = record("evaluate", "a.csv", "--task", "multilabel", "--no-inference", *named)["files"][0]
    assert [label["label"] for label in two["labels"]] == ["emu", "cat"]
    assert two["labels"][0]["ece"] == pytest.approx(expected["labels"][2]["ece"])


def test_one_label_is_named_in_the_singular(run):
    logits, target = drawn()
    np.savez("a.npz", logits=logits[:, :1], target=target[:, :1])
    out, err = run("evaluate", "a.npz", "--task", "multilabel")
    assert "logits of 1 label from 'logits'" in err
    assert "200 samples, 1 label, 15 bins" in out
    assert "adjusted for 1 label and the pooled test" in out
    assert "1 labels" not in out


def test_table_verdict_calibrators_and_plot(run):
    logits, target = drawn(sharpness=3.0)
    np.savez("sharp.npz", logits=logits, target=target, patient=np.arange(200) // 2)
    out, err = run(
        *("evaluate", "sharp.npz", "--task", "multilabel", "--cluster", "patient", "--plot", "a.png"),
        *("--calibrate", "temperature,platt", "--repeats", "1", "--fail-over", "0.02"),
        code=3,
    )
    assert "200 samples, 3 labels" in out
    assert "each sample is a cluster" not in " ".join(out.split())
    assert "3 of 3 labels are miscalibrated (family-wise 5 %, Holm)" in out
    assert "Use temperature: it lowers the NLL" in out
    assert "clusters from 'patient'" in err
    assert "all entries: debiased RMS error above the limit of 2 %" in err
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_plot_in_quantile_bins(run, refused, monkeypatch):

    from dualfocal.plots import reliability_diagram

    logits, target = drawn(sharpness=3.0)
    target[:5, 1] = -1
    np.savez("sharp.npz", logits=logits, target=target, class_names=NAMES)
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self))
    arguments = ("evaluate", "sharp.npz", "--task", "multilabel", "--ignore-index", "-1", "--plot", "a.png")
    run(*arguments, "--plot-style", "quantile")
    by_title = {axis.get_title(): axis for axis in figures[0].axes}
    for title, scores, labels in (
        ("all labels, N = 595", logits.ravel(), target.ravel()),
        ("dog, N = 195", logits[:, 1], target[:, 1]),
    ):
        options = {"binary": "positive", "ignore_index": -1}
        expected = reliability_diagram(scores, labels, strategy="quantile", ax=Figure().subplots(), **options)
        heights = [[bar.get_height() for bar in axis.containers[0]] for axis in (by_title[title], expected)]
        np.testing.assert_array_equal(*heights)
    line = refused(*arguments, "--plot-style", "corp")
    assert "--plot-style corp does not apply to --task multilabel" in line


def test_calibrate_and_apply(run, record):
    logits, target = drawn(sharpness=3.0)
    columns = {"id": np.arange(200)} | {f"prob_{NAMES[i]}": 1 / (1 + np.exp(-logits[:, i])) for i in range(3)}
    write_csv("val.csv", columns | {f"label_{NAMES[i]}": target[:, i] for i in range(3)})
    report = record("calibrate", "val.csv", "--task", "multilabel", "--method", "platt", "--out", "cal.npz")
    assert report["nll_after"] < report["nll_before"]
    out, err = run("apply", "cal.npz", "val.csv", "--out", "new.csv")
    assert "was fitted on these data" in err
    assert "before" in out
    assert "Better than without the calibrator: NLL from" in out
    old, new = (load_multilabel_predictions(name) for name in ("val.csv", "new.csv"))
    assert Path("new.csv").read_text().splitlines()[0] == Path("val.csv").read_text().splitlines()[0]
    assert torch.equal(old.target, new.target)
    loss = torch.nn.functional.binary_cross_entropy(new.values, new.target.double()).item()
    assert loss == pytest.approx(report["nll_after"], rel=1e-6)
    run("apply", "cal.npz", "val.csv", "--out", "new.npz", "--target", "label")
    arrays = load_multilabel_predictions("new.npz")
    torch.testing.assert_close(arrays.values, new.values)
    assert torch.equal(arrays.target, old.target)
    save_predictions("saved.csv", arrays.values, input="probs", target=arrays.target, class_names=NAMES)
    assert torch.equal(load_multilabel_predictions("saved.csv").target, old.target)


def test_verdict_of_apply_is_about_paired_differences_of_samples(record):
    logits, target = drawn(sharpness=3.0)
    target[:20, 1] = -100
    write_csv("val.csv", {f"logit_{i}": logits[:, i] for i in range(3)} | {f"y_{i}": target[:, i] for i in range(3)})
    record("calibrate", "val.csv", "--task", "multilabel", "--out", "cal.npz")
    np.savez("other.npz", logits=logits / 3, target=target)  # already calibrated
    content = record("apply", "cal.npz", "other.npz", "--out", "new.npz")
    assert content["worse"]
    assert content["verdict"].startswith("Worse than without the calibrator")
    new, keep = load_multilabel_predictions("new.npz").values.numpy(), target != -100
    losses = [np.where(keep, np.logaddexp(0, np.where(target == 1, -z, z)), 0) for z in (logits / 3, new)]
    change = (losses[1] - losses[0]).sum(1) * len(keep) / keep.sum()
    half = 1.645 * change.std(ddof=1) / len(change) ** 0.5
    interval = f"({change.mean():+.4f}, 90 % interval {change.mean() - half:+.4f} to {change.mean() + half:+.4f})"
    assert interval in content["verdict"]


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_without_task_the_error_names_it(refused, suffix):
    logits, target = drawn()
    np.savez("a.npz", logits=logits, target=target)
    write_csv("a.csv", table())
    assert "--task multilabel" in refused("evaluate", f"a.{suffix}")


def test_probabilities_that_do_not_sum_to_one_are_explained(refused):
    logits, target = drawn()
    np.savez("a.npz", probs=1 / (1 + np.exp(-logits)), target=target.argmax(1))
    assert "--task multilabel" in refused("evaluate", "a.npz")


REFUSED = {
    "--group-by": ("--group-by", "id"),
    "--binary": ("--binary", "positive"),
    "--convention": ("--convention", "published"),
    "--positive": ("--positive", "1"),
    "--sql": ("--sql", "SELECT 1"),
    "--force": ("--force",),
    "--shifted": ("--shifted", "b.csv"),
    "--format": ("--format", "lm-eval"),
    "--boundary": ("--boundary", "2"),
    "--maps": ("--maps", "maps.png"),
    "a.csv is given more than once": ("a.csv",),
    "--calibrate with --task multilabel": ("--calibrate", "temperature,matrix"),
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_that_do_not_apply_are_refused(refused, option):
    write_csv("a.csv", table())
    assert refused("evaluate", "a.csv", "--task", "multilabel", *REFUSED[option]).startswith(option)


def test_bad_files_are_refused(refused):
    logits, target = drawn()
    np.savez("classes.npz", logits=logits, target=target.argmax(1))
    np.savez("probs.npz", logits=1 / (1 + np.exp(-logits)), target=target)
    write_csv(
        "two.csv",
        {"id": target[:, 0], **{f"target_{i}": target[:, i] for i in range(2)}, **dict(list(table().items())[:3])},
    )
    write_csv("texts.csv", {**dict(list(table().items())[:3]), "label": np.array(["cat;dog"] * 200)})
    write_csv("three.csv", {**table(), "target_dog": 3 * target[:, 1]})
    for name, message in {
        "classes.npz": "leave out --task",
        "probs.npz": "give --probs logits",
        "two.csv": "got 3 of scores",
        "texts.csv": "one column per label",
        "three.csv": "must be 0 or 1, got 3",
    }.items():
        assert message in refused("evaluate", name, "--task", "multilabel"), name


def test_percent_and_json_lines(record):
    logits, target = drawn()
    percent = np.round(100 / (1 + np.exp(-logits)), 6)
    np.savez("a.npz", probs=percent, target=target)
    with Path("a.jsonl").open("w") as file:
        for p, y in zip((percent / 100).tolist(), target.tolist(), strict=True):
            file.write(json.dumps({"probs": p, "target": y}) + "\n")
    first = record("evaluate", "a.npz", "--task", "multilabel", "--no-inference", "--percent")["files"][0]
    second = record("evaluate", "a.jsonl", "--task", "multilabel", "--no-inference")["files"][0]
    assert first["nll"] == pytest.approx(second["nll"])
    assert first["macro_ece"] == pytest.approx(second["macro_ece"])
