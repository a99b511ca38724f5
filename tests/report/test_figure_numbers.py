"""The numbers of the figures of a page, against slow definitions."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import roc_auc_score, roc_curve

from dualfocal.metrics import CalibrationMonitor, aurc
from dualfocal.metrics.groups import evaluate_groups
from dualfocal.predictions import Reading
from dualfocal.report.calibrated import calibrate
from dualfocal.report.class_reliability import MOST_PANELS, class_reliability_figure
from dualfocal.report.confusion import confusion_figure
from dualfocal.report.curves import coverage_figure, coverage_table, histogram_figure, roc_figure
from dualfocal.report.evidence import evidence_figure
from dualfocal.report.figures import overlay_figure
from dualfocal.report.groups import gap_interval, groups_figure
from dualfocal.report.inputs import ReportInput, load_inputs


def predictions(n: int, num_classes: int, sharpness: float = 1.5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, num_classes, generator=generator)
    return sharpness * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def loaded(n: int = 400, num_classes: int = 4, binary: str | None = None) -> ReportInput:
    logits, target = predictions(n, num_classes)
    values = logits[:, 1] - logits[:, 0] if binary else logits
    return load_inputs({"model": (values, target)}, Reading(binary=binary))[0]


@pytest.fixture(scope="module")
def source() -> ReportInput:
    return loaded()


def dense(figure: dict) -> np.ndarray:
    n = len(figure["names"])
    matrix = np.zeros((n, n))
    for i, j, count in np.array(figure["cells"]).reshape(-1, 3):
        matrix[int(i), int(j)] = count
    return matrix


def test_confusion_matrix_is_that_of_sklearn(source):
    figure = confusion_figure(source, 1)
    expected = sklearn_confusion(source.rows.target, source.rows.values.argmax(1))
    assert np.array_equal(dense(figure), expected)
    assert figure["classes"] == [0, 1, 2, 3]
    assert figure["samples"] == expected.sum(1).tolist()
    assert figure["predicted"] == expected.sum(0).tolist()
    assert figure["errors"] == figure["shownErrors"] == expected.sum() - np.trace(expected)


def test_most_confused_pairs_come_first(source):
    rows = confusion_figure(source, 1)["pairs"]["rows"]
    matrix = sklearn_confusion(source.rows.target, source.rows.values.argmax(1))
    off = [(-matrix[i, j], i, j) for i in range(4) for j in range(4) if i != j and matrix[i, j]]
    assert [(-row[2][1], row[0][1], row[1][1]) for row in rows] == sorted(off)
    true = rows[0][0][1]
    assert rows[0][3][1] == pytest.approx(100 * rows[0][2][1] / matrix[true].sum())


def test_many_classes_show_the_most_confused_ones():
    n, num_classes = 3000, 150
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(num_classes, (n,), generator=generator)
    guess = target.clone()
    swapped = (target >= 20) & (target < 60) & (torch.rand(n, generator=generator) < 0.5)
    guess[swapped] = target[swapped] ^ 1  # 20 <-> 21, 22 <-> 23, ...
    guess[:3] = (target[:3] + 70) % num_classes  # rare errors elsewhere
    source = load_inputs({"m": (10.0 * torch.nn.functional.one_hot(guess, num_classes), target)}, Reading())[0]
    figure = confusion_figure(source, 1)
    full = sklearn_confusion(target, guess, labels=range(num_classes))
    assert figure["classes"] == list(range(20, 60))
    assert np.array_equal(dense(figure), full[20:60, 20:60])
    assert figure["samples"] == full.sum(1)[20:60].tolist()
    assert figure["errors"] == (guess != target).sum()
    shown = full[20:60, 20:60]
    assert figure["shownErrors"] == shown.sum() - np.trace(shown) == figure["errors"] - 3
    assert len(confusion_figure(source, 32)["classes"]) <= 40  # many models share the page


def test_a_model_without_errors_has_no_pairs():
    target = torch.arange(60) % 3
    source = load_inputs({"m": (20.0 * torch.nn.functional.one_hot(target, 3), target)}, Reading())[0]
    figure = confusion_figure(source, 1)
    assert (figure["pairs"], figure["errors"]) == (None, 0)
    assert np.array_equal(dense(figure), 20 * np.eye(3))


def test_weights_are_counted(source):
    weight = torch.arange(400, dtype=torch.float64) % 3
    weighted = replace(source, rows=replace(source.rows, weight=weight))
    expected = sklearn_confusion(source.rows.target, source.rows.values.argmax(1), sample_weight=weight)
    assert np.array_equal(dense(confusion_figure(weighted, 1)), expected)
    histogram = histogram_figure(weighted)
    assert sum(histogram["right"]) + sum(histogram["wrong"]) == weight.sum()


def test_selective_errors_are_those_of_the_most_confident_samples(source):
    figure = coverage_figure(source)
    confidence = source.rows.values.double().softmax(1).amax(1).numpy()
    wrong = (source.rows.values.argmax(1) != source.rows.target).numpy()[np.argsort(-confidence)]
    for share, risk, threshold in figure["selective"]:
        k = round(share * 400)
        assert risk == pytest.approx(wrong[:k].mean())
        assert threshold == pytest.approx(np.sort(confidence)[::-1][k - 1])
    assert [share for share, _, _ in figure["selective"]] == [0.8, 0.9, 0.95, 1.0]
    assert figure["risk"] == pytest.approx([wrong[:k].mean() for k in range(2, 401, 2)], rel=1e-4)
    row = coverage_table([source], [figure])["rows"][0]
    assert row[-1][1] == pytest.approx(100 * aurc(source.rows.values, source.rows.target))
    assert row[2][1] == pytest.approx(100 * wrong[:360].mean())


def test_histograms_count_right_and_wrong_predictions(source):
    figure = histogram_figure(source)
    confidence = source.rows.values.double().softmax(1).amax(1).numpy()
    right = (source.rows.values.argmax(1) == source.rows.target).numpy()
    edges = np.arange(41) / 40
    for name, group in (("right", right), ("wrong", ~right)):
        chosen = confidence[group]
        assert figure[name] == [((chosen > a) & (chosen <= b)).sum() for a, b in pairwise(edges)]
    assert figure["means"] == pytest.approx([confidence[right].mean(), confidence[~right].mean()])


def test_histograms_of_class_one():
    source = loaded(300, 2, binary="positive")
    figure = histogram_figure(source)
    p = source.rows.values.double().softmax(1)[:, 1].numpy()
    one = source.rows.target.numpy() == 1
    assert sum(figure["right"]) == one.sum()
    assert figure["means"] == pytest.approx([p[one].mean(), p[~one].mean()])


@pytest.mark.parametrize("ties", [False, True])
def test_roc_is_that_of_sklearn(ties):
    logits, target = predictions(500, 2)
    score = logits[:, 1] - logits[:, 0]
    score = score.round() if ties else score
    source = load_inputs({"m": (score, target)}, Reading(binary="positive"))[0]
    figure = roc_figure(source.rows)
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


def test_no_roc_without_two_classes(source):
    assert roc_figure(source.rows) is None
    two = loaded(50, 2)
    assert roc_figure(replace(two.rows, target=torch.zeros_like(two.rows.target))) is None


def test_classes_are_sorted_by_the_excess_of_their_error(source):
    figure = class_reliability_figure(source, 1)
    p, target = source.rows.values.double().softmax(1).numpy(), source.rows.target.numpy()
    excess = {}
    for c in range(4):
        index = np.clip(np.ceil(p[:, c] * 15).astype(int) - 1, 0, 14)
        ece = floor = 0.0
        for b in range(15):
            q, hits = p[index == b, c], (target[index == b] == c)
            if not len(q):
                continue
            bound = len(q) * q.mean() * (1 - q.mean())
            assert (1 - 1 / 15) * bound <= (q * (1 - q)).sum() <= bound
            ece += abs(q.sum() - hits.sum()) / 400
            floor += min(math.sqrt(2 * bound / math.pi), 2 * bound) / 400
        panel = next(panel for panel in figure["classes"] if panel["name"] == str(c))
        assert (panel["ece"], panel["floor"]) == pytest.approx((ece, floor))
        assert panel["samples"] == (target == c).sum()
        assert sum(panel["bins"]["count"]) == 400
        excess[str(c)] = ece - floor
    assert [panel["name"] for panel in figure["classes"]] == sorted(excess, key=excess.__getitem__, reverse=True)


def test_range_of_a_calibrated_model_covers_its_bins():
    """90 % of the bins of a calibrated model are within the range; the continuity correction makes it a little wide."""
    inside = total = 0
    for seed in range(40):
        logits, target = predictions(2000, 3, sharpness=1.0, seed=seed)
        probs = logits.softmax(1)
        scanned = load_like(probs, target)
        for panel in class_reliability_figure(scanned, 1)["classes"]:
            bins = {name: np.array(values) for name, values in panel["bins"].items()}
            inside += (np.abs(bins["confidence"] - bins["accuracy"]) <= bins["chance"]).sum()
            total += len(bins["count"])
    assert 0.9 <= inside / total <= 0.95


def load_like(probs: torch.Tensor, target: torch.Tensor) -> ReportInput:
    """An input without inference, which takes most of the time."""
    from dualfocal.metrics.evaluation import evaluate_rows
    from dualfocal.metrics.rows import as_rows
    from dualfocal.metrics.scan import scan
    from dualfocal.predictions import Predictions

    rows = as_rows(probs, target, input="probs")
    data = Predictions(probs, "probs", target, None, None, "")
    scanned = scan(rows, scores=True, classwise=True)
    return ReportInput("m", None, data, rows, scanned, evaluate_rows(rows, scanned, 15), None, "test")


def test_small_diagrams_are_limited():
    logits, target = predictions(500, 400)
    figure = class_reliability_figure(load_like(logits.softmax(1), target), 3)
    assert (len(figure["classes"]), figure["numClasses"]) == (MOST_PANELS // 3, 400)
    excess = [panel["ece"] - panel["floor"] for panel in figure["classes"]]
    assert excess == sorted(excess, reverse=True)


def test_overlay_has_the_bins_of_the_recommended_calibrator():
    logits, target = predictions(600, 3, sharpness=4.0)
    reading = Reading()
    source = load_inputs({"m": (logits, target)}, reading)[0]
    calibration = calibrate(source, ["temperature"], reading, lambda share: None)
    figure = overlay_figure(calibration)
    assert figure["method"] == "temperature"
    assert figure["before"]["ece"] == source.evaluation.ece > 2 * figure["after"]["ece"]
    for part in ("before", "after"):
        bins = {name: np.array(values) for name, values in figure[part]["bins"].items()}
        error = (bins["count"] * np.abs(bins["confidence"] - bins["accuracy"])).sum() / 600
        assert error == pytest.approx(figure[part]["ece"], abs=1e-4)
    assert overlay_figure(replace(calibration, comparison=None)) is None


def test_groups_have_the_numbers_of_their_evaluations():
    logits, target = predictions(600, 3)
    names = np.array(["a", "b"])[np.arange(600) % 2]
    groups = evaluate_groups(logits, target, names)
    figure = groups_figure("site", groups)
    assert (figure["column"], figure["total"], figure["level"]) == ("site", 2, 0.9)
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


def test_interval_of_a_group_without_errors_is_not_empty():
    target = torch.zeros(20, dtype=torch.int64)
    logits = torch.tensor([[6.0, 0.0]]).repeat(20, 1)
    (group,) = evaluate_groups(logits, target, np.array(["a"] * 20))
    low, high = gap_interval(group.evaluation.bins, 0.9)
    assert low < -0.05 < 0 < high
    wide_low, wide_high = gap_interval(group.evaluation.bins, 0.9, effect=4.0)
    assert wide_high - wide_low == pytest.approx(2 * (high - low) - 1 / 20)  # all but the half sample at each end


def test_evidence_of_a_monitor_by_period():
    monitor = CalibrationMonitor()
    for day in range(6):
        logits, target = predictions(300, 3, sharpness=1.0 if day < 3 else 6.0, seed=day)
        monitor.update(logits, target, time=f"day {day}")
    figure = evidence_figure(monitor)
    assert figure["time"] == [f"day {day}" for day in range(6)]
    assert figure["count"] == [300] * 6
    assert figure["samples"] == 1800
    assert 10 ** figure["limit"] == pytest.approx(1 / monitor.alpha)
    assert figure["evidence"][-1] == pytest.approx(monitor.log_evidence / math.log(10), rel=1e-4)
    assert figure["alarm"]["time"] == monitor.alarm.time
    assert figure["evidence"][figure["alarm"]["period"]] == pytest.approx(figure["alarm"]["evidence"], rel=1e-4)
    p = logits.double().softmax(1)
    assert figure["gap"][-1] == pytest.approx(float((p.amax(1) - (p.argmax(1) == target).double()).mean()), rel=1e-4)
    with pytest.raises(ValueError, match="no samples"):
        evidence_figure(CalibrationMonitor())
