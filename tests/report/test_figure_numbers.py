"""The numbers of the figures of a page, against slow definitions."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from report_pages import contents, predictions, write_monitor
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import roc_auc_score, roc_curve

from dualfocal.metrics import CalibrationMonitor, aurc, evaluate_groups
from dualfocal.predictions import Reading

POSITIVE = {"reading": Reading(binary="positive")}
LOGITS, TARGET = predictions(400, 4)
GUESS = LOGITS.argmax(1)


def figures(folder, logits: torch.Tensor, target: torch.Tensor, **options: Any) -> dict[str, Any]:
    return contents(folder, {"model": (logits, target)}, **options)["runs"][0]["figures"]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> dict[str, Any]:
    return contents(tmp_path_factory.mktemp("numbers"), {"model": (LOGITS, TARGET)})


@pytest.fixture(scope="module")
def model(page) -> dict[str, Any]:
    """The figures of the only model."""
    return page["runs"][0]["figures"]


def dense(figure: dict) -> np.ndarray:
    n = len(figure["names"])
    matrix = np.zeros((n, n))
    for i, j, count in np.array(figure["cells"]).reshape(-1, 3):
        matrix[int(i), int(j)] = count
    return matrix


def test_confusion_matrix_is_that_of_sklearn(model):
    figure, expected = model["confusion"], sklearn_confusion(TARGET, GUESS)
    assert np.array_equal(dense(figure), expected)
    assert figure["classes"] == [0, 1, 2, 3]
    assert figure["samples"] == expected.sum(1).tolist()
    assert figure["predicted"] == expected.sum(0).tolist()
    assert figure["errors"] == figure["shownErrors"] == expected.sum() - np.trace(expected)


def test_most_confused_pairs_come_first(model):
    rows = model["confusion"]["pairs"]["rows"]
    matrix = sklearn_confusion(TARGET, GUESS)
    off = [(-matrix[i, j], i, j) for i in range(4) for j in range(4) if i != j and matrix[i, j]]
    assert [(-row[2][1], row[0][1], row[1][1]) for row in rows] == sorted(off)
    true = rows[0][0][1]
    assert rows[0][3][1] == pytest.approx(100 * rows[0][2][1] / matrix[true].sum())


def test_many_classes_show_the_most_confused_ones(tmp_path):
    n, num_classes = 3000, 150
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(num_classes, (n,), generator=generator)
    guess = target.clone()
    swapped = (target >= 20) & (target < 60) & (torch.rand(n, generator=generator) < 0.5)
    guess[swapped] = target[swapped] ^ 1  # 20 <-> 21, 22 <-> 23, ...
    guess[:3] = (target[:3] + 70) % num_classes  # rare errors elsewhere
    figure = figures(tmp_path, 10.0 * torch.nn.functional.one_hot(guess, num_classes), target)["confusion"]
    full = sklearn_confusion(target, guess, labels=range(num_classes))
    assert figure["classes"] == list(range(20, 60))
    assert np.array_equal(dense(figure), full[20:60, 20:60])
    assert figure["samples"] == full.sum(1)[20:60].tolist()
    assert figure["errors"] == (guess != target).sum()
    shown = full[20:60, 20:60]
    assert figure["shownErrors"] == shown.sum() - np.trace(shown) == figure["errors"] - 3


def test_a_model_without_errors_has_no_pairs(tmp_path):
    target = torch.arange(60) % 3
    figure = figures(tmp_path, 20.0 * torch.nn.functional.one_hot(target, 3), target)["confusion"]
    assert (figure["pairs"], figure["errors"]) == (None, 0)
    assert np.array_equal(dense(figure), 20 * np.eye(3))


def test_weights_are_counted(tmp_path):
    weight = torch.arange(400, dtype=torch.float64) % 3
    share = weight / weight[weight > 0].mean()
    weighted = figures(tmp_path, LOGITS, TARGET, sample_weight=weight)
    expected = sklearn_confusion(TARGET, GUESS, sample_weight=share)
    assert dense(weighted["confusion"]) == pytest.approx(expected, rel=1e-5)
    histogram = weighted["histogram"]
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == pytest.approx(float(share.sum()), rel=1e-4)


def test_selective_errors_are_those_of_the_most_confident_samples(page, model):
    figure = model["coverage"]
    confidence = LOGITS.double().softmax(1).amax(1).numpy()
    wrong = (GUESS != TARGET).numpy()[np.argsort(-confidence)]
    for share, risk, threshold in figure["selective"]:
        k = round(share * 400)
        assert risk == pytest.approx(wrong[:k].mean())
        assert threshold == pytest.approx(np.sort(confidence)[::-1][k - 1])
    assert [share for share, _, _ in figure["selective"]] == [0.8, 0.9, 0.95, 1.0]
    assert figure["risk"] == pytest.approx([wrong[:k].mean() for k in range(2, 401, 2)], rel=1e-4)
    [row] = page["selective"]["rows"]
    assert row[-1][1] == pytest.approx(100 * aurc(LOGITS, TARGET))
    assert row[2][1] == pytest.approx(100 * wrong[:360].mean())


def test_histograms_count_right_and_wrong_predictions(model):
    figure = model["histogram"]
    confidence = LOGITS.double().softmax(1).amax(1).numpy()
    right = (GUESS == TARGET).numpy()
    edges = np.arange(41) / 40
    for name, group in (("right", right), ("wrong", ~right)):
        chosen = confidence[group]
        assert figure[name] == [((chosen > a) & (chosen <= b)).sum() for a, b in pairwise(edges)]
    assert figure["means"] == pytest.approx([confidence[right].mean(), confidence[~right].mean()])


@pytest.mark.parametrize("ties", [False, True])
def test_roc_is_that_of_sklearn(tmp_path, ties):
    logits, target = predictions(500, 2)
    score = logits[:, 1] - logits[:, 0]
    score = score.round() if ties else score
    model = figures(tmp_path, score, target, **POSITIVE)
    p, one, histogram = score.double().sigmoid(), target == 1, model["histogram"]
    assert sum(histogram["right"]) == one.sum()
    assert histogram["means"] == pytest.approx([float(p[one].mean()), float(p[~one].mean())])
    figure = model["roc"]
    assert figure["auroc"] == pytest.approx(roc_auc_score(target, score))
    assert figure["counts"] == [(target == 0).sum(), (target == 1).sum()]
    fpr, tpr, threshold = roc_curve(target, score, drop_intermediate=False)
    negative, positive = figure["counts"]
    counted = zip(np.rint(fpr * negative), np.rint(tpr * positive), threshold, strict=True)
    points = {(f, t): s for f, t, s in counted}
    drawn = list(zip(figure["fpr"], figure["tpr"], figure["threshold"], strict=True))
    assert drawn[0][:2] == (0, 0)
    assert drawn[-1][:2] == (1, 1)
    assert len(drawn) <= 202
    for f, t, p in drawn[1:]:
        expected = 1 / (1 + math.exp(-points[round(f * negative), round(t * positive)]))
        assert p == pytest.approx(expected, rel=1e-4)


def test_no_roc_without_two_classes(model, tmp_path):
    assert model["roc"] is None
    logits, _ = predictions(50, 2)
    assert figures(tmp_path, logits, torch.zeros(50, dtype=torch.int64))["roc"] is None


def test_classes_are_sorted_by_the_excess_of_their_error(model):
    figure = model["classReliability"]
    p, target = LOGITS.double().softmax(1).numpy(), TARGET.numpy()
    excess = {}
    for c in range(4):
        index = np.clip(np.ceil(p[:, c] * 15).astype(int) - 1, 0, 14)
        ece = floor = 0.0
        for b in range(15):
            q, hits = p[index == b, c], (target[index == b] == c)
            if not len(q):
                continue
            variance = (q * (1 - q)).sum()
            ece += abs(q.sum() - hits.sum()) / 400
            floor += min(math.sqrt(2 * variance / math.pi), 2 * variance) / 400
        panel = next(panel for panel in figure["classes"] if panel["name"] == str(c))
        assert (panel["ece"], panel["floor"]) == pytest.approx((ece, floor))
        assert panel["samples"] == (target == c).sum()
        assert sum(panel["bins"]["count"]) == 400
        excess[str(c)] = ece - floor
    assert [panel["name"] for panel in figure["classes"]] == sorted(excess, key=excess.__getitem__, reverse=True)


def test_range_of_a_calibrated_model_covers_its_bins(tmp_path):
    """90 % of the bins of a calibrated model are within the range; the continuity correction makes it a little wide."""
    inside = total = 0
    models = {str(seed): predictions(2000, 3, sharpness=1.0, seed=seed) for seed in range(32)}
    for run in contents(tmp_path, models)["runs"]:
        for panel in run["figures"]["classReliability"]["classes"]:
            bins = {name: np.array(values) for name, values in panel["bins"].items()}
            inside += (np.abs(bins["confidence"] - bins["accuracy"]) <= bins["chance"]).sum()
            total += len(bins["count"])
    assert 0.9 <= inside / total <= 0.95


def test_small_diagrams_are_limited(tmp_path):
    """A page has 300 of them, or as many for each of its models as that gives."""
    models = {name: predictions(500, 400, seed=seed) for seed, name in enumerate("abc")}
    for run in contents(tmp_path, models)["runs"]:
        figure = run["figures"]["classReliability"]
        assert (len(figure["classes"]), figure["numClasses"]) == (100, 400)
        excess = [panel["ece"] - panel["floor"] for panel in figure["classes"]]
        assert excess == sorted(excess, reverse=True)


def test_overlay_has_the_bins_of_the_recommended_calibrator(model, tmp_path):
    assert model["overlay"] is None  # no calibrator was tried
    run = contents(tmp_path, {"m": predictions(600, 3, sharpness=4.0)}, calibrators=["temperature"])
    figure = run["runs"][0]["figures"]["overlay"]
    assert figure["method"] == "temperature"
    assert figure["before"]["ece"] == run["results"]["models"][0]["evaluation"]["ece"] > 2 * figure["after"]["ece"]
    for part in ("before", "after"):
        bins = {name: np.array(values) for name, values in figure[part]["bins"].items()}
        error = (bins["count"] * np.abs(bins["confidence"] - bins["accuracy"])).sum() / 600
        assert error == pytest.approx(figure[part]["ece"], abs=1e-4)


def test_groups_have_the_numbers_of_their_evaluations(tmp_path):
    logits, target = predictions(600, 3)
    names = np.array(["a", "b"])[np.arange(600) % 2]
    groups = evaluate_groups(logits, target, groups=names)
    figure = contents(tmp_path, {"m": (logits, target)}, groups=names)["runs"][0]["groups"]
    assert (figure["total"], figure["level"]) == (2, 0.9)
    for row, group in zip(figure["rows"], groups, strict=True):
        assert (row["name"], row["count"], row["p"]) == (group.name, 300, group.p_adjusted)
        assert (row["debiasedLow"], row["debiasedHigh"]) == group.inference.debiased_ece
        kept = torch.from_numpy(names == group.name)
        p = logits[kept].double().softmax(1)
        residual = p.amax(1) - (p.argmax(1) == target[kept]).double()
        assert row["gap"] == pytest.approx(float(residual.mean()))
        half = 1.645 * float(residual.std()) / math.sqrt(300)
        assert row["gapHigh"] - row["gap"] == pytest.approx(half, rel=0.1)
        assert row["gap"] - row["gapLow"] == pytest.approx(row["gapHigh"] - row["gap"])
    assert [row[0][0] for row in figure["table"]["rows"]] == [group.name for group in groups]


def test_interval_of_a_group_without_errors_is_not_empty(tmp_path):
    logits, target = torch.tensor([[6.0, 0.0]]).repeat(40, 1), torch.zeros(40, dtype=torch.int64)
    figure = contents(tmp_path, {"m": (logits, target)}, groups=np.array(["a", "b"] * 20))["runs"][0]["groups"]
    for row in figure["rows"]:
        assert row["gapLow"] < -0.05 < 0 < row["gapHigh"]


def test_evidence_of_a_monitor_by_period(tmp_path):
    monitor = CalibrationMonitor()
    for day in range(6):
        logits, target = predictions(300, 3, sharpness=1.0 if day < 3 else 6.0, seed=day)
        monitor.update(logits, target, time=f"day {day}")
    state = write_monitor(tmp_path / "state.json", monitor, 3)
    figure = contents(tmp_path, {"m": (LOGITS, TARGET)}, monitor=state)["monitor"]
    assert figure["time"] == [f"day {day}" for day in range(6)]
    assert figure["count"] == [300] * 6
    assert figure["samples"] == 1800
    assert 10 ** figure["limit"] == pytest.approx(1 / monitor.alpha)
    assert figure["evidence"][-1] == pytest.approx(monitor.log_evidence / math.log(10), rel=1e-4)
    assert figure["alarm"]["time"] == monitor.alarm.time
    assert figure["evidence"][figure["alarm"]["period"]] == pytest.approx(figure["alarm"]["evidence"], rel=1e-4)
    p = logits.double().softmax(1)
    assert figure["gap"][-1] == pytest.approx(float((p.amax(1) - (p.argmax(1) == target).double()).mean()), rel=1e-4)
    write_monitor(state, CalibrationMonitor(), 3)
    with pytest.raises(ValueError, match=r"state\.json.*no samples"):
        contents(tmp_path, {"m": (LOGITS, TARGET)}, monitor=state)
