"""`dualfocal evaluate`: models of known calibration in, the right verdict, the library's numbers and exit codes out."""

import io
import json
import math
import re
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from samples import draw_logits, softmax
from torchmetrics.functional.classification import multiclass_calibration_error

from dualfocal import __version__, metrics
from dualfocal.cli import main


@pytest.fixture
def records(record):
    """The content of `evaluate --json` for each file."""

    def records(*arguments: object) -> list[dict[str, Any]]:
        answer = record("evaluate", *arguments)
        assert answer["schema"] == 1
        return answer["files"]

    return records


def drawn(n: int, sharpness: float = 1.0, seed: int = 0, num_classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels: sharpness 1 is calibrated, 2 twice too confident, 0.5 half as confident as it should be."""
    logits, target = draw_logits(n, num_classes, seed=seed, overconfidence=sharpness)
    return logits.numpy(), target.numpy()


def npz(name: str, logits: np.ndarray, target: np.ndarray, **others: np.ndarray) -> str:
    Path(name).parent.mkdir(exist_ok=True)
    np.savez(name, logits=logits, target=target, **others)
    return name


def npz_of_probs(name: str, probs: np.ndarray, target: np.ndarray) -> str:
    np.savez(name, probs=probs, target=target)
    return name


def by_hand_ece(probs: np.ndarray, target: np.ndarray, num_bins: int) -> float:
    confidence, right = probs.max(1), probs.argmax(1) == target
    total = 0.0
    for b in range(num_bins):
        inside = (confidence > b / num_bins) & (confidence <= (b + 1) / num_bins)
        total += abs(float((confidence[inside] - right[inside]).sum()))
    return total / len(target)


# Verdicts


@pytest.mark.parametrize(("sharpness", "kind"), [(2.0, "Over-confident"), (0.4, "Under-confident")])
def test_verdict_names_the_direction_and_both_sizes(run, sharpness, kind):
    logits, target = drawn(1000, sharpness)
    out, _ = run("evaluate", npz("a.npz", logits, target))
    ece = by_hand_ece(softmax(logits), target, 15)
    verdict = re.search(
        r"^(.+): ECE is ([\d.]+) points; a calibrated model would show ([\d.]+) by chance \(p < 0\.001\)\. Class prob",
        out,
        re.MULTILINE,
    )
    assert verdict
    assert verdict[1] == kind
    assert float(verdict[2]) == pytest.approx(100 * ece, abs=0.05)
    assert 2.0 < float(verdict[3]) < 5.0  # about 0.8 * sqrt(bins * p(1 - p) / N) for 10 full bins
    assert float(verdict[3]) < float(verdict[2])


def test_verdict_of_errors_that_cancel(run):
    # 0.95 and 0.55 are claimed, both are right in 75 %: over-confident above, under-confident below, right on average.
    claimed = np.tile([0.95, 0.55], 1000)
    right = np.repeat(np.tile([True, True, True, False], 250), 2)
    probs = np.stack([claimed, 1 - claimed], axis=1)
    out, _ = run("evaluate", npz_of_probs("a.npz", probs, (~right).astype(int)))
    assert "\nMiscalibrated in both directions: ECE is 20.0 points; " in out


def test_verdict_of_a_calibrated_model_names_n_and_the_detectable_gap(run, records):
    file = npz("a.npz", *drawn(500))
    out, _ = run("evaluate", file)
    detectable = records(file)[0]["inference"]["detectable"]
    verdict = " ".join(out.split()).partition("No miscalibration detectable at N = 500: ")[2]
    assert verdict.startswith(f"a gap of {100 * detectable:.1f} points or more")
    assert "(80 % power)" in verdict
    assert 0.04 < detectable < 0.12  # about 2 standard errors of a mean of 50 in each of 10 bins, and less for many
    out, _ = run("evaluate", npz("one.npz", *drawn(1)))
    assert "\nNo miscalibration detectable at N = 1: too few samples" in out
    for label in ("NLL", "AURC", "debiased RMS error"):
        assert f"{label}: " in " ".join(out.split())  # explained below the table


# Numbers


def test_json_is_the_library_s_numbers(records):
    logits, target = drawn(400, 2.0)
    file = npz("a.npz", logits, target)
    expected = metrics.evaluate(logits, target, inference=True, seed=3)
    [record] = records(file, "--seed", 3)
    assert record.pop("file") == "a.npz"
    assert record.pop("taken") == "logits from 'logits' (400 x 5, float32), labels from 'target'"
    assert record.pop("verdict") == expected.verdict()
    assert record == json.loads(json.dumps(expected.to_dict()))
    assert record["ece"] == pytest.approx(by_hand_ece(softmax(logits), target, 15), abs=1e-9)
    assert record["nll"] == pytest.approx(-np.log(softmax(logits)[np.arange(400), target]).mean(), abs=1e-12)


def test_table_shows_the_same_numbers_in_percent(run):
    logits, target = drawn(400, 2.0)
    out, _ = run("evaluate", npz("a.npz", logits, target))
    assert out.startswith("a.npz: 400 samples, 5 classes, 15 bins")
    expected = metrics.evaluate(logits, target, inference=True)
    row = next(line for line in out.splitlines() if line.startswith("│ ECE [%]"))
    assert "noise floor: " in out
    floor = expected.inference.floors["ece"]
    assert re.findall(r"[\d.]+", row) == [f"{100 * x:.2f}" for x in (expected.ece, floor.mean, floor.q95)]
    row = next(line for line in out.splitlines() if line.startswith("│ NLL [nats]"))
    assert re.findall(r"[\d.]+", row) == [f"{expected.nll:.4f}"]


def test_infinite_nll_is_explained(run, records):
    probs = np.tile([[1.0, 0.0], [0.25, 0.75]], (20, 1))
    target = np.tile([1, 1], 20)  # of probability 0 in every other row
    target[0] = -100  # ignored
    logits = np.log(probs, out=np.full_like(probs, -np.inf), where=probs > 0)
    npz_of_probs("scores.npz", probs[:, 1], target)
    for file, options in (
        (npz_of_probs("probs.npz", probs, target), []),
        (npz("logits.npz", logits, target), []),
        ("scores.npz", ["--binary", "positive"]),
    ):
        out, _ = run("evaluate", file, *options, "--no-inference")
        _, _, why = out.partition("\nNLL is infinite: 19 true classes have probability 0")
        assert ("save more digits" in why) == (file != "logits.npz"), file
        assert re.search(r"│ NLL \[nats\] +│ +inf │", out), file
        [record] = records(file, *options, "--no-inference")
        assert record["nll"] is None, file
        assert record["error"] == pytest.approx(19 / 39), file
        brier = (19 + 20 * 0.25**2) / 39  # of class 1 alone
        assert record["brier"] == pytest.approx(brier if options else 2 * brier, abs=1e-9), file
    out, _ = run("evaluate", npz_of_probs("a.npz", probs, np.tile([0, 0], 20)), "--no-inference")
    assert "infinite" not in out


def test_num_bins(records):
    logits, target = drawn(300, 2.0)
    file = npz("a.npz", logits, target)
    for num_bins in (1, 4, 40):
        [record] = records(file, "--num-bins", num_bins, "--no-inference")
        assert record["ece"] == pytest.approx(by_hand_ece(softmax(logits), target, num_bins), abs=1e-9), num_bins
        assert record["bins"]["edges"] == pytest.approx([k / num_bins for k in range(num_bins + 1)], abs=1e-12)
        assert sum(record["bins"]["count"]) == 300


def test_binary_confidence_by_hand(records):
    scores, target = np.array([0.1, 0.2, 0.3, 0.7, 0.9, 1.0]), np.array([0, 0, 0, 1, 0, 1])
    np.savez("a.npz", y_prob=scores, y_true=target)
    [positive] = records("a.npz", "--binary", "positive", "--num-bins", 2, "--no-inference")
    # Of class 1, in (0, 0.5]: 0.6 claimed, 0 seen; in (0.5, 1]: 2.6 claimed, 2 seen.
    assert positive["ece"] == pytest.approx((0.6 + 0.6) / 6, abs=1e-9)
    assert positive["mce"] == pytest.approx(0.2, abs=1e-9)
    assert positive["share"] == pytest.approx(2 / 6)
    [top] = records("a.npz", "--binary", "top_label", "--num-bins", 2, "--no-inference")
    # Of the predicted class: 0.9 + 0.8 + 0.7 + 0.7 + 0.9 + 1 = 5 claimed, 5 right.
    assert top["ece"] == pytest.approx(0.0, abs=1e-9)
    for record in (positive, top):
        assert record["num_samples"] == 6
        assert record["error"] == pytest.approx(1 / 6)
        assert record["nll"] == pytest.approx(-math.log(0.9 * 0.8 * 0.7 * 0.7 * 0.1) / 6, abs=1e-9)


def test_convention_torchmetrics_is_torchmetrics(records):
    logits, target = drawn(700, 2.0)
    probs = torch.from_numpy(logits).softmax(1)
    probs[:40] = torch.eye(5)[0]  # confidence 1 has a bin of its own there
    probs[40:80] = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1])  # on an edge of 15 bins
    [record] = records(npz_of_probs("a.npz", probs.numpy(), target), "--convention", "torchmetrics", "--no-inference")
    for name, norm in (("ece", "l1"), ("mce", "max")):
        theirs = multiclass_calibration_error(probs, torch.from_numpy(target), num_classes=5, n_bins=15, norm=norm)
        assert record[name] == pytest.approx(float(theirs), abs=2e-6), name
    assert record["convention"] == "torchmetrics"


def test_convention_published_adds_its_bootstrap(run, records):
    file = npz("a.npz", *drawn(200, 2.0))
    [record] = records(file, "--convention", "published")
    low, high = record["inference"]["published_intervals"]["ece"]
    assert low < record["ece"] < high
    out, _ = run("evaluate", file, "--convention", "published")
    assert f"\npublished pivotal bootstrap of ece: {100 * low:.2f} to {100 * high:.2f} %\n" in out


def test_the_label_of_class_1_is_named(run):
    logits, target = drawn(400, num_classes=2)
    columns = np.array(["well", "sick"])[target]
    lines = [f"{z[1] - z[0] + 2},{label}" for z, label in zip(logits, columns, strict=True)]
    Path("a.csv").write_text("\n".join(["logit,outcome", *lines]))
    options = ["--target", "outcome", "--positive", "sick"]
    out, _ = run("evaluate", "a.csv", *options, "--binary", "positive")
    assert "Probabilities of class sick too high" in out
    assert "The metrics are about the probability of class sick" in out
    assert "class 1" not in run("evaluate", "a.csv", *options, "--binary", "top_label")[0]
    assert "Brier score of class 1" in " ".join(out.split())
    assert "probability and frequency" in " ".join(out.split())


def test_groups_of_class_1_have_probabilities_and_frequencies(run):
    scores, target = drawn(400, num_classes=2)
    np.savez("a.npz", probs=softmax(scores)[:, 1], target=target, side=np.arange(400) % 2)
    out, _ = run("evaluate", "a.npz", "--binary", "positive", "--group-by", "side")
    assert "prob - freq" in out


def test_ignored_labels_count_nothing(records):
    logits, target = drawn(200)
    file = npz("a.npz", np.concatenate([logits, 9 - logits]), np.concatenate([target, np.full(200, 7)]))
    [record] = records(file, "--ignore-index", 7, "--no-inference")
    expected = metrics.evaluate(logits, target).to_dict()
    assert {name: record[name] for name in expected} == json.loads(json.dumps(expected))
    assert record["taken"].endswith("; 200 of 400 labels are 7 and left out")


def test_level_widens_the_interval(run, records):
    file = npz("a.npz", *drawn(400, 2.0))
    narrow, wide = (records(file, "--level", level)[0]["inference"]["debiased_ece"] for level in (0.6, 0.995))
    assert (narrow["level"], wide["level"]) == (0.6, 0.995)
    assert wide["interval"][0] < narrow["interval"][0] < narrow["interval"][1] < wide["interval"][1]
    assert "its 99.5" in run("evaluate", file, "--level", 0.995)[0]  # not rounded to 100 %


def test_no_inference_prints_no_floor(run, records):
    file = npz("a.npz", *drawn(300, 2.0))
    out, _ = run("evaluate", file, "--no-inference")
    assert "floor" not in out
    assert "Over-confident" not in out
    [record] = records(file, "--no-inference")
    assert record["inference"] is None
    assert "verdict" not in record


def test_csv_with_given_names(records):
    scores, target = softmax(drawn(60, num_classes=2)[0])[:, 1], drawn(60, num_classes=2)[1]
    rows = "".join(f"{score!r},{label},x\n" for score, label in zip(scores.tolist(), target.tolist(), strict=True))
    Path("a.csv").write_text(f"risk,outcome,note\n{rows}")
    [record] = records(
        "a.csv", "--probs", "risk", "--target", "outcome", "--binary", "positive", "--num-bins", 1, "--no-inference"
    )
    assert record["taken"] == "probabilities from 'risk' (60, float64), labels from 'outcome'"
    assert record["ece"] == pytest.approx(abs(scores.mean() - target.mean()), abs=1e-9)


def test_the_label_of_class_1_by_option(records, refused):
    rows = "".join(f"{i / 40},{'yes' if i > 10 else 'no'}\n" for i in range(41))
    Path("a.csv").write_text(f"score,outcome\n{rows}")
    options = ["a.csv", "--probs", "score", "--target", "outcome", "--binary", "positive", "--no-inference"]
    assert "--positive LABEL (labels: no, yes)" in refused("evaluate", *options)
    for label, share in (("yes", 30 / 41), ("no", 11 / 41)):
        [record] = records(*options, "--positive", label)
        assert record["share"] == pytest.approx(share)


def test_labels_that_are_no_classes_say_so(refused):
    Path("a.csv").write_text("score,outcome\n0.2,1\n0.7,41.5\n")
    line = refused("evaluate", "a.csv", "--probs", "score", "--target", "outcome", "--binary", "positive")
    assert all(word in line for word in ("41.5", "line 3", "regression target"))


def test_the_class_names_that_an_error_proposes_can_be_pasted(records, refused):
    logits, target = drawn(100)
    options = [npz("a.npz", logits, target + 1), "--no-inference"]
    names = refused("evaluate", *options).split()[-1]
    [record] = records(*options, "--class-names", names)
    [expected] = records(npz("b.npz", logits, target), "--no-inference")
    assert record["nll"] == expected["nll"]


def test_two_classes_say_which_brier_score_they_have(run):
    probs = np.array([0.1, 0.4, 0.8])
    np.savez("a.npz", y_prob=probs, y_true=np.array([0, 1, 1]))
    for binary, words in (("positive", "half of the sum"), ("top_label", "Brier score is the sum over both classes")):
        out, _ = run("evaluate", "a.npz", "--binary", binary, "--no-inference")
        assert words in " ".join(out.split())


def test_columns_in_a_list(records):
    Path("a.csv").write_text("dog,cat,note,y\n" + "0.9,0.1,0.5,cat\n0.3,0.7,0.5,cat\n0.8,0.2,0.5,dog\n" * 5)
    for columns in ("cat,dog", "dog,cat"):
        [record] = records("a.csv", "--probs", columns, "--no-inference")
        assert record["error"] == pytest.approx(1 / 3)


# Several files


def test_several_files_are_evaluated_each_and_summed_up(run, records):
    made = {"calibrated.npz": drawn(300), "sharp.npz": drawn(200, 3.0, seed=1)}
    for name, arrays in made.items():
        npz(name, *arrays)
    out, err = run("evaluate", *made)
    table = out[out.index("\nall files") :]
    for name, (logits, target) in made.items():
        expected = metrics.evaluate(logits, target, inference=True)
        cells = [f"{100 * expected.error:.2f}", f"{expected.nll:.4f}", f"{100 * expected.ece:.2f}"]
        cells.append(f"{100 * expected.inference.floors['ece'].mean:.2f}")
        row = next(line for line in table.splitlines() if line.startswith(f"│ {name} "))
        assert [cell.strip() for cell in row.split("│")[2:-1]] == [str(len(target)), *cells]
        assert expected.verdict() in out
    assert [line.split(":")[0] for line in err.splitlines()] == list(made)
    assert [record["file"] for record in records(*made)] == list(made)
    assert "all files" not in run("evaluate", "sharp.npz", "--no-inference")[0]


def flat(content, prefix="") -> dict[str, float]:
    """All numbers of a record, by path; sums of floats depend on their order in the last bits."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {key: number for name, value in items for key, number in flat(value, f"{prefix}/{name}").items()}
    return {prefix: content} if isinstance(content, int | float) else {}


def test_merged_parts_are_the_whole_in_any_order(records):
    logits, target = drawn(450, 1.5)
    sites = np.array(["north", "south", "west"])[np.arange(450) % 3]
    parts = [
        npz(f"{i}.npz", logits[part], target[part], site=sites[part])
        for i, part in enumerate((slice(0, 200), slice(200, 210), slice(210, 450)))
    ]
    [whole] = records(npz("whole.npz", logits, target, site=sites), "--group-by", "site")
    groups = whole.pop("groups")
    for order in (parts, parts[::-1]):
        [record] = records(*order, "--merge", "--group-by", "site")
        assert record["file"] == " + ".join(order)
        assert record["taken"].startswith("3 files; of the first, logits from 'logits'")
        for got, expected in zip([record, *record.pop("groups")], [whole, *groups], strict=True):
            assert flat(got) == pytest.approx(flat(expected), rel=1e-9, abs=1e-12, nan_ok=True)


def test_parts_that_do_not_fit_are_not_merged(refused):
    npz("a.npz", *drawn(50))
    npz("classes.npz", *drawn(40, num_classes=4))
    logits, target = drawn(40)
    npz_of_probs("probs.npz", softmax(logits), target)
    for other, *words in (
        ("classes.npz", "--merge", "a.npz", "(50 x 5, float32)", "classes.npz", "(40 x 4, float32)"),
        ("probs.npz", "--merge", "a.npz", "logits from", "probs.npz", "probabilities from"),
    ):
        line = refused("evaluate", "a.npz", other, "--merge")
        assert all(word in line for word in words), other
    Path("a.csv").write_text("prob_cat,prob_dog,y\n" + "0.9,0.1,cat\n0.3,0.7,dog\n" * 5)
    Path("b.csv").write_text("prob_bird,prob_fish,y\n" + "0.9,0.1,bird\n0.3,0.7,fish\n" * 5)
    assert "b.csv" in refused("evaluate", "a.csv", "b.csv", "--merge", "--no-inference")


# Groups


def hospitals() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Six of 150 samples, calibrated all but "delta", which is three times too sharp."""
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    parts = [drawn(150, 3.0 if name == "delta" else 1.0, seed) for seed, name in enumerate(names)]
    order = np.random.default_rng(0).permutation(900)
    return (
        np.concatenate([logits for logits, _ in parts])[order],
        np.concatenate([target for _, target in parts])[order],
        np.repeat(names, 150)[order],
    )


def test_group_by_finds_the_bad_group_and_no_other(run, records):
    logits, target, names = hospitals()
    file = npz("a.npz", logits, target, hospital=names)
    [record] = records(file, "--group-by", "hospital")
    groups = record["groups"]
    assert sorted(group["group"] for group in groups) == sorted(set(names))
    assert [group["group"] for group in groups if group["p_adjusted"] <= 0.05] == ["delta"]
    assert record["taken"].endswith(", groups from 'hospital'")

    out, _ = run("evaluate", file, "--group-by", "hospital")
    assert "\n1 of 6 groups is detectably miscalibrated at 5 %, p-values adjusted for 6 tests (Holm)." in out
    rows = out[out.index("\nby hospital, worst first; percent") :].splitlines()
    rows = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if row.startswith("│")]
    assert [row[0] for row in rows] == [group["group"] for group in groups]
    for row, group in zip(rows, groups, strict=True):
        low, high = (100 * end for end in group["inference"]["debiased_ece"]["interval"])
        assert row[1:] == [
            "150",
            f"{100 * group['error']:.1f}",
            f"{100 * group['overconfidence']:+.1f}",
            f"{100 * group['ece']:.1f}",
            f"{100 * group['inference']['floors']['ece']['mean']:.1f}",
            f"{low:.1f} - {high:.1f}",
            "< 0.001" if group["p_adjusted"] < 0.001 else f"{group['p_adjusted']:.3f}",
        ]


def test_groups_come_worst_first_and_are_the_evaluations_of_their_samples(records):
    logits, target, names = hospitals()
    groups = records(npz("a.npz", logits, target, hospital=names), "--group-by", "hospital")[0]["groups"]
    assert groups[0]["group"] == "delta"

    def badness(group: dict[str, Any]) -> tuple[float, float]:
        inference = group["inference"]
        return inference["debiased_ece"]["interval"][0], group["ece"] - inference["floors"]["ece"]["mean"]

    assert [badness(group) for group in groups] == sorted(map(badness, groups), reverse=True)
    for group in groups[:2]:
        mine = names == group["group"]
        expected = metrics.evaluate(logits[mine], target[mine], inference=True).to_dict()
        assert {name: group[name] for name in expected} == json.loads(json.dumps(expected))


def test_adjusted_p_values_are_holm_s(records):
    sharpness = [1.0, 1.0, 1.6, 1.0, 1.8, 2.0, 1.0, 1.4]
    parts = [drawn(80, s, seed=10 + i) for i, s in enumerate(sharpness)]
    logits, target = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    file = npz("a.npz", logits, target, ward=np.repeat(np.arange(8), 80))
    groups = records(file, "--group-by", "ward")[0]["groups"]
    both = [(group["inference"]["p_value"], group["inference"]["classwise"]["p_value"]) for group in groups]
    raw = [min(1.0, first / 0.8, second / 0.2) for first, second in both]  # Holm's, too, of two tests
    assert len({p for p in raw if p < 0.2}) > 2  # or there is little to adjust
    for p, group in zip(raw, groups, strict=True):
        # Of all hypotheses at least as clear as this one, the hardest to reject.
        holm = max(min(1.0, sum(other >= q for other in raw) * q) for q in raw if q <= p)
        assert group["p_adjusted"] == pytest.approx(holm, rel=1e-12)


def test_a_group_without_labels_is_not_tested(run):
    logits, target = drawn(300)
    target[:100] = -100
    file = npz("a.npz", logits, target, part=np.repeat([1, 2, 3], 100))
    out, _ = run("evaluate", file, "--group-by", "part")
    assert "0 of 2 groups are detectably miscalibrated at 5 %, p-values adjusted for 2 tests" in out


def test_groups_that_are_the_labels_are_refused(refused):
    logits, target = drawn(300)
    for options, prefix in (([], ""), (["--target", "target"], ""), (["--split", "test"], "test_")):
        np.savez("a.npz", **{f"{prefix}logits": logits, f"{prefix}target": target})
        line = refused("evaluate", "a.npz", "--group-by", "target", *options)
        assert line.startswith(f"--group-by: '{prefix}target' of a.npz holds the labels"), options


def test_groups_that_follow_the_labels_are_pointed_out(run):
    logits, target = drawn(300)
    remark = "Each label lies in one group of 'kind'"
    for kind, expected in ((target // 2, True), (np.array(list("vwxyz"))[target], True), (np.arange(300) % 3, False)):
        out, _ = run("evaluate", npz("a.npz", logits, target, kind=kind), "--group-by", "kind")
        assert (remark in out) == expected
    logits, target = logits[:4], np.arange(4)  # by chance
    out, _ = run("evaluate", npz("a.npz", logits, target, kind=target % 2), "--group-by", "kind")
    assert remark not in out


# Drawing


def test_plot_writes_each_format(run):
    file = npz("$a_$.npz", *drawn(400, 2.0))  # not a formula
    starts = {"figure.png": b"\x89PNG\r\n\x1a\n", "figure.pdf": b"%PDF-", "[dim].SVG": b"<?xml"}
    for plot, start in starts.items():
        out, err = run("evaluate", file, "--no-inference", "--plot", plot, "--json")
        json.loads(out)
        assert err.endswith(f"\nReliability diagram: {plot}\n")
        assert Path(plot).read_bytes().startswith(start), plot
    width, height = struct.unpack(">II", Path("figure.png").read_bytes()[16:24])
    assert 600 < width < 1200
    assert 600 < height < 1200


def test_plot_is_refused_before_any_work(refused):
    for plot, words in (
        ("figure.jpg", "--plot must be one of '.png', '.pdf', '.svg', got '.jpg'"),
        ("figure", "got ''"),
        ("nowhere/figure.png", "there is no folder 'nowhere'"),
    ):
        assert words in refused("evaluate", "this_file_is_not_there.npz", "--plot", plot)


def drawn_diagrams(run, monkeypatch, *arguments: object) -> list[Any]:
    """The axes of each diagram in the saved figure."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self))
    run("evaluate", *arguments, "--no-inference", "--plot", "figure.png")
    [figure] = figures
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_title()]


def drawn_titles(run, monkeypatch, *arguments: object) -> list[str]:
    return [axis.get_title() for axis in drawn_diagrams(run, monkeypatch, *arguments)]


def bar_heights(axis: Any) -> list[list[float]]:
    return [[bar.get_height() for bar in bars] for bars in axis.containers if len(bars) > 3]


@pytest.mark.parametrize("binary", [None, "positive"])
@pytest.mark.parametrize("style", ["uniform", "quantile"])
def test_plot_style_chooses_the_bins(run, monkeypatch, style, binary):
    from dualfocal.plots import reliability_diagram

    logits, target = drawn(300, 2.0, num_classes=2)
    target[:9] = 7
    weight = np.arange(300) % 4
    options = ("--plot-style", style, "--ignore-index", 7, "--weight", "w", "--num-bins", 12)
    options += ("--binary", binary) if binary else ()
    [axis] = drawn_diagrams(run, monkeypatch, npz("a.npz", logits, target, w=weight), *options)
    how = {"ignore_index": 7, "binary": binary, "sample_weight": weight}
    expected = reliability_diagram(logits, target, num_bins=12, strategy=style, ax=Figure().subplots(), **how)
    np.testing.assert_array_equal(bar_heights(axis), bar_heights(expected))
    assert axis.texts[0].get_text() == expected.texts[0].get_text()
    assert axis.get_ylabel() == ("accuracy" if binary is None else "frequency")


def test_plot_style_corp_draws_a_curve_without_bins(run, monkeypatch):
    logits, target = drawn(300, 2.0, num_classes=2)
    file = npz("a.npz", logits, target)
    for binary, name in ((None, "accuracy"), ("positive", "frequency")):
        options = ("--binary", binary) if binary else ()
        [axis] = drawn_diagrams(run, monkeypatch, file, "--plot-style", "corp", "--seed", 3, *options)
        curve = metrics.corp(logits, target, binary=binary, seed=3)
        np.testing.assert_allclose(axis.lines[1].get_data(), [curve.confidence, curve.recalibrated])
        assert f"MCB {curve.mcb:.4f} (noise floor {curve.mcb_floor.mean:.4f})" in axis.texts[0].get_text()
        assert axis.get_ylabel() == name


@pytest.mark.parametrize("style", ["quantile", "corp"])
def test_plot_style_of_several_files_and_of_confidences(run, style):
    for seed in range(2):
        npz(f"{seed}.npz", *drawn(100, seed=seed))
    rows = "".join(f"{'ab'[i % 2]},{'ab'[i % 3 % 2]},{0.5 + i / 200}\n" for i in range(100))
    Path("c.csv").write_text(f"label,said,sure\n{rows}")
    columns = ("--prediction", "said", "--confidence", "sure", "--target", "label")
    for arguments in (["0.npz", "1.npz"], ["0.npz", "1.npz", "--merge"], ["c.csv", *columns]):
        run("evaluate", *arguments, "--no-inference", "--plot", "figure.png", "--plot-style", style)
        assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
        Path("figure.png").unlink()


def test_plot_style_is_refused_where_it_does_not_apply(refused):
    logits, target = drawn(100)
    file = npz("a.npz", logits, target, patient=np.arange(100) // 5, w=np.arange(100.0))
    image = npz("images.npz", logits.reshape(10, 5, 2, 5), np.zeros((10, 2, 5), np.int64))
    np.save("logits.npy", logits)
    np.save("labels.npy", target)
    plot = ("--plot", "figure.png", "--plot-style")
    for arguments, words in (
        ([file, "--plot-style", "quantile"], ["--plot-style needs --plot"]),
        ([file, *plot, "quantile", "--calibrate", "temperature"], ["quantile does not apply to --calibrate"]),
        ([file, *plot, "corp", "--weight", "w"], ["--plot-style corp does not apply to --weight", "quantile"]),
        ([file, *plot, "corp", "--cluster", "patient"], ["--plot-style corp does not apply", "a.npz", "clusters"]),
        ([image, *plot, "corp"], ["--plot-style corp does not apply", "images.npz"]),
        (
            ["logits.npy", "--target", "labels.npy", "--max-memory", "1KB", *plot, "quantile"],
            ["--plot-style quantile needs all rows"],
        ),
    ):
        line = refused("evaluate", *arguments)
        assert all(word in line for word in words), (arguments, line)
        assert not Path("figure.png").exists()


def test_plot_has_a_diagram_for_each_file_or_one_for_merged_files(run, monkeypatch):
    files = [npz("a/x.npz", *drawn(200)), npz("b/x.npz", *drawn(300))]
    first, second = drawn_titles(run, monkeypatch, *files)
    assert first.endswith("x.npz, N = 200")
    assert second.endswith("x.npz, N = 300")
    assert first.split(",")[0] != second.split(",")[0]
    [title] = drawn_titles(run, monkeypatch, *files, "--merge")
    assert title.endswith(", N = 500")
    assert title != "x.npz, N = 500"


# Names


def test_markup_in_names_is_printed_verbatim(run):
    logits, target = drawn(120)
    file = npz("[bold]:x:[/bold].npz", logits, target, **{"[red]site": np.repeat(["[i]a", "[/b]"], 60)})
    npz("y.npz", logits, target, **{"[red]site": np.repeat(["[i]a", "[/b]"], 60)})
    out, err = run("evaluate", file, "y.npz", "--group-by", "[red]site")
    assert err.startswith(f"{file}: logits from 'logits' (120 x 5, float32)")
    assert ", groups from '[red]site'\n" in err
    assert "labels from" not in out
    assert out.startswith(f"{file}: 120 samples")
    assert "\nby [red]site, worst first" in out
    for cell in ("[red]site", "[i]a", "[/b]", file):
        assert re.search(rf"^[│┃] {re.escape(cell)} +[│┃]", out, re.MULTILINE), cell


def test_an_encoding_that_lacks_characters_does_not_lose_the_output(monkeypatch):
    """For example output redirected to a file on Windows."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", npz("a.npz", *drawn(300, 2.0))])
    sys.stdout.flush()
    assert ended.value.code == 0
    assert b"Over-confident: ECE is" in written.getvalue()


# Refusals


def damaged(case: str) -> str:
    logits, target = drawn(40)
    if case == "nan":
        logits[7, 2] = np.nan
    if case == "label":
        target[5] = 9
    if case == "sums":
        probs = softmax(logits)
        probs[3] *= 1.1
        return npz_of_probs("a.npz", probs, target)
    if case == "names":
        np.savez("a.npz", first=logits, second=target)
        return "a.npz"
    if case == "score":
        return npz_of_probs("a.npz", softmax(logits)[:, 0], target)
    if case == "ignored":
        target[:] = -100
    return npz("a.npz", logits, target)


def test_bad_input_is_one_line_and_exit_code_2(refused):
    for case, arguments, words in (
        ("nan", [], ["a.npz: ", "logits", "row 7 holds NaN"]),
        ("nan", ["--json"], ["row 7 holds NaN"]),
        ("label", [], ["a.npz: ", "target 9 is out of range", "[0, 4]"]),
        ("sums", [], ["a.npz: ", "probabilities must sum to 1", "row 3 sums to 1.1"]),
        ("names", [], ["a.npz: ", "--logits NAME or --probs NAME", "'first' (40 x 5, float32)", "'second'"]),
        ("score", [], ["a.npz: ", "one score per sample", "--binary top_label", "--binary positive"]),
        ("ignored", [], ["a.npz: ", "no samples", "ignore_index = -100"]),
        ("", ["--group-by", "ward"], ["a.npz: ", "has no array 'ward'", "'logits' (40 x 5, float32)"]),
        ("", ["--group-by", "target", "--no-inference"], ["--group-by needs inference"]),
        ("", ["--logits", "logits", "--probs", "logits"], ["--logits or --probs, not both"]),
        ("", ["--binary", "positive"], ["a.npz: ", "two classes", "have 5"]),
        ("", ["missing.npz"], ["missing.npz: there is no such file"]),
        ("", ["[bold]x.npz"], ["[bold]x.npz: there is no such file"]),
        ("", ["two\nlines.npz"], ["two lines.npz: there is no such file"]),
        ("", ["--split", "test"], ["a.npz: ", "has no split 'test'"]),
        ("", ["--num-bins", "0"], ["--num-bins", "1"]),
        ("", ["--level", "1"], ["--level", "0.999"]),
        ("", ["--seed", "-1"], ["--seed", "0"]),
        ("", ["--convention", "sklearn"], ["--convention", "'sklearn'", "'published'"]),
        ("", ["--num-binz", "5"], ["--num-binz"]),
    ):
        line = refused("evaluate", damaged(case), *arguments)
        assert all(word in line for word in words), (case, arguments, line)
    line = refused("evaluate")
    assert line.startswith("Missing argument")
    assert "FILE" in line
    assert "'evaluat'" in refused("evaluat", "a.npz")


# The program


def test_version_and_help(run):
    assert run("--version") == (f"dualfocal {__version__}\n", "")
    out, err = run("evaluate", "-h")
    assert err == ""
    for option in ("--group-by", "--merge", "--num-bins", "--no-inference", "--plot", "--json"):
        assert option in out
    example = " ".join(out.split())
    example = re.search(r"dualfocal (evaluate predictions\.csv .+? --group-by hospital)", example)[1].split()
    assert "--binary" in example
    rows = "".join(f"{i / 40},{int(i > 20)},{'ab'[i % 2]}\n" for i in range(41))
    Path("predictions.csv").write_text(f"score,outcome,hospital\n{rows}")
    assert "by hospital, worst first" in run(*example)[0]


def test_no_arguments_show_the_commands(capsys):
    with pytest.raises(SystemExit):
        main([])
    captured = capsys.readouterr()
    assert "compare" in captured.out + captured.err
    assert "dualfocal: \n" not in captured.err


def test_ctrl_c_ends_without_a_traceback_and_a_defect_keeps_its_own(run, monkeypatch):
    file = npz("a.npz", *drawn(50))

    def raises(error: BaseException) -> None:
        def evaluate(*args: object, **options: object) -> None:
            raise error

        monkeypatch.setattr(metrics, "evaluate", evaluate)

    raises(KeyboardInterrupt())
    out, err = run("evaluate", file, code=130)
    assert out == ""
    assert "Traceback" not in err
    raises(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError, match="a defect"):
        main(["evaluate", file])


def test_the_installed_script_and_python_m(tmp_path):
    """Real processes: exit code, stdout and stderr."""
    script = [Path(sys.executable).with_name("dualfocal"), "evaluate", "x.npz"]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dualfocal: x.npz: there is no such file\n"
    command = [sys.executable, "-m", "dualfocal", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dualfocal {__version__}\n", "")


def test_one_sample_and_one_group_are_named_in_the_singular(run):
    npz("a.npz", *drawn(1), site=np.array(["north"]))
    out, _ = run("evaluate", "a.npz", "--group-by", "site", "--num-bins", "1")
    assert "a.npz: 1 sample, 5 classes, 1 bin\n" in out
    assert re.search(r"0 of 1 group is detectably miscalibrated at 5 %, p-values adjusted for 1 test \(Holm\)", out)


def test_fail_over_is_a_gate(run, refused):
    logits, target = draw_logits(2000, 4)
    for name, sharpness in (("good.npz", 1.0), ("sharp.npz", 3.0)):
        np.savez(name, logits=sharpness * logits, target=target)
    run("evaluate", "good.npz", "--fail-over", "0.03")
    out, err = run("evaluate", "good.npz", "sharp.npz", "--fail-over", "0.03", code=3)
    assert "Over-confident" in out  # the results are printed all the same
    assert err.splitlines()[-1].startswith("dualfocal: sharp.npz: debiased RMS error above the limit of 3 %")
    run("evaluate", "sharp.npz", "--fail-over", "0.9")
    assert "--no-inference" in refused("evaluate", "good.npz", "--fail-over", "0.03", "--no-inference")


def test_numbers_are_grouped_by_quantiles(run, record, refused):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 3)).astype(np.float32)
    target, age, code = rng.integers(3, size=600), rng.integers(18, 90, 600), [f"{k % 3:03}" for k in range(600)]
    np.savez("p.npz", logits=logits, target=target, age=age, dose=rng.random(600))
    groups = record("evaluate", "p.npz", "--group-by", "dose")["files"][0]["groups"]
    assert [group["num_samples"] for group in groups] == [120] * 5
    assert len(record("evaluate", "p.npz", "--group-by", "age")["files"][0]["groups"]) == len(np.unique(age))
    assert "the worst 20 of" in run("evaluate", "p.npz", "--group-by", "age")[0]
    groups = record("evaluate", "p.npz", "--group-by", "age", "--group-quantiles", "3")["files"][0]["groups"]
    ends = sorted(tuple(map(int, group["group"].split(" to "))) for group in groups)
    assert all(high < low for (_, high), (low, _) in pairwise(ends))
    for low, high in ends:
        assert ((age >= low) & (age <= high)).sum() in [group["num_samples"] for group in groups]

    lines = [f"{a},{b},{c},{y},{g},{x}" for (a, b, c), y, g, x in zip(logits, target, code, age / 7, strict=True)]
    Path("p.csv").write_text("\n".join(["logit_0,logit_1,logit_2,label,code,ratio", *lines]))
    assert len(record("evaluate", "p.csv", "--group-by", "code")["files"][0]["groups"]) == 3  # 007 is a name
    assert len(record("evaluate", "p.csv", "--group-by", "ratio")["files"][0]["groups"]) == 5
    assert "need numbers" in refused("evaluate", "p.csv", "--group-by", "code", "--group-quantiles", "3")
    assert "--group-by" in refused("evaluate", "p.csv", "--group-quantiles", "3")
