"""Reports on samples with weights or in clusters: numbers, ranges and the page."""

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from report_pages import contents, contents_of, predictions
from scipy.stats import t

from dualfocal import metrics
from dualfocal.predictions import Reading
from dualfocal.report import write_report


def copies(n: int, times: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Calibrated predictions, each of them several times: the design effect is the number of copies."""
    logits, target = predictions(n, 3, sharpness=1.0, seed=seed)
    return logits.repeat(times, 1), target.repeat(times), np.tile(np.arange(n), times)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """A page of two models with weights."""
    logits, target = predictions(600, 4)
    weight = np.random.default_rng(0).exponential(size=600)
    weight[:20] = 0
    file = tmp_path_factory.mktemp("weighted") / "page.html"
    models = {"sharp": (logits, target), "right": (logits / 1.5, target)}
    write_report(models, file, calibrators=["temperature"], sample_weight=weight)
    return file, logits, target, weight


def test_metrics_and_comparison_are_weighted(weighted):
    file, logits, target, weight = weighted
    contents = contents_of(file)
    expected = metrics.evaluate(logits, target, sample_weight=weight, inference=True)
    sharp = contents["results"]["models"][0]
    assert sharp["evaluation"] == json.loads(json.dumps(expected.to_dict()))
    [uncalibrated] = [method for method in sharp["calibrators"]["methods"] if method["method"] == "uncalibrated"]
    assert uncalibrated["nll"] == pytest.approx(expected.nll)
    assert contents["runs"][0]["verdict"].endswith(expected.weights.sentence(580))
    assert expected.weights.sentence(580) in dict(contents["decision"]["sentences"])["Weights"]
    assert f"effective sample size {expected.weights.effective:.0f}" in contents["methods"]
    compared = metrics.compare(logits / 1.5, logits, target, sample_weight=weight)
    choice = contents["results"]["comparison"]
    assert choice["weights"]["effective"] == pytest.approx(expected.weights.effective)
    for name in ("nll", "debiased_ece", "error", "aurc"):
        d = compared.differences[name]
        assert choice["differences"]["sharp"][name]["interval"] == pytest.approx([d.low, d.high]), name
    assert f"weighted: effective {expected.weights.effective:.0f}" in contents["headline"]


def test_figures_are_weighted(weighted):
    file, logits, target, weight = weighted
    figures = contents_of(file)["runs"][0]["figures"]
    kept = weight > 0
    share = weight[kept] / weight[kept].mean()
    right = (logits.argmax(1) == target).numpy()[kept]
    assert sum(figures["histogram"]["right"]) == pytest.approx(share[right].sum(), rel=1e-3)
    assert figures["confusion"]["errors"] == pytest.approx(share[~right].sum(), rel=1e-4)
    assert figures["coverage"]["risk"][-1] == pytest.approx((share * ~right).sum() / 580, rel=1e-4)


def test_models_with_different_weights_are_not_paired(tmp_path):
    logits, target = predictions(100, 3)
    for name, weight in {"a": np.arange(100) + 1, "b": np.arange(100) + 1, "c": np.arange(100) + 2}.items():
        np.savez(tmp_path / f"{name}.npz", logits=logits / (1 + (name == "a")), target=target, w=weight)
    for other, paired in (("b", True), ("c", False)):
        files = [tmp_path / "a.npz", tmp_path / f"{other}.npz"]
        decision = contents(tmp_path, files, reading=Reading(weight="w"))["decision"]
        assert (decision["table"] is not None) == paired


def test_models_of_other_samples_are_not_paired(tmp_path):
    logits, target = predictions(800, 6)
    page = contents(tmp_path, {"a": (logits, target), "b": (logits[:700], target[:700])})
    assert "different samples" in page["headline"]
    assert page["decision"]["table"] is None


def test_weights_and_clusters_of_files_come_from_columns(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((20, 2)), target=np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"sample_weight.*weight=COLUMN"):
        write_report([tmp_path / "a.npz"], tmp_path / "a.html", sample_weight=np.ones(20))


def test_ranges_allow_for_clusters(tmp_path):
    """Of copies, too, 90 % of the bins of a calibrated model are within the range; as independent ones, far fewer."""
    inside, narrow, total = 0, 0, 0
    clusters = copies(600, 4, 0)[2]
    models = {str(seed): copies(600, 4, seed)[:2] for seed in range(5)}
    for run in contents(tmp_path, models, clusters=clusters)["runs"]:
        assert 3.5 < run["figures"]["designEffect"] < 4.5
        for panel in run["figures"]["classReliability"]["classes"]:
            bins = {name: np.array(values) for name, values in panel["bins"].items()}
            gap = np.abs(bins["confidence"] - bins["accuracy"])
            inside += (gap <= bins["chance"]).sum()
            narrow += (gap <= bins["chance"] / 2).sum()
            total += len(gap)
    assert narrow / total < 0.8
    assert 0.85 <= inside / total <= 0.97


def smallest_p(run: dict[str, Any]) -> float:
    """Of the totals of all classes, for all samples and for those that are predicted as the class."""
    return min(min(row[4][1], row[9][1]) for row in run["classes"]["rows"])


def test_class_totals_of_clusters_are_t_tests(tmp_path):
    logits, target, clusters = copies(60, 3, 0)
    [run] = contents(tmp_path, {"m": (logits, target)}, clusters=clusters)["runs"]
    p, y = logits.double().softmax(1).numpy(), np.eye(3)[target]
    single = []  # p-values that are not adjusted
    for c, among in product(range(3), (False, True)):
        chosen = p.argmax(1) == c if among else np.ones(len(p), dtype=bool)
        sums = np.bincount(clusters, (p - y)[:, c] * chosen)
        least = run["figures"]["designEffect"] * (p * (1 - p))[chosen, c].sum()
        single.append(2 * t.sf(abs(sums.sum()) / max((sums**2).sum(), least) ** 0.5, 59))
    assert smallest_p(run) == pytest.approx(min(1.0, 6 * min(single)), rel=1e-6)
    for row in run["classes"]["rows"]:
        c = int(row[0][0])
        assert [cell[1] for cell in row[1:3]] == pytest.approx([100 * p[:, c].mean(), 100 * y[:, c].mean()])


def test_class_totals_keep_their_level_with_clusters(tmp_path):
    clusters = copies(150, 4, 0)[2]
    models = {str(seed): copies(150, 4, seed)[:2] for seed in range(16)}
    alarms, naive = (
        sum(smallest_p(run) <= 0.05 for run in contents(tmp_path, models, **options)["runs"])
        for options in ({"clusters": clusters}, {})
    )
    assert alarms <= 3  # at 5 %, more than 3 of 16 have a probability of 0.7 %
    assert naive >= 5


def test_roc_has_the_interval_of_delong(tmp_path):
    logits, target = predictions(300, 2)
    score, clusters = logits[:, 1] - logits[:, 0], np.arange(300) // 3
    reading = Reading(binary="positive", level=0.8)
    [run] = contents(tmp_path, {"m": (score, target)}, reading=reading, clusters=clusters)["runs"]
    figure, expected = run["figures"]["roc"], metrics.auroc(score, target, level=0.8, clusters=clusters)
    assert figure["auroc"] == pytest.approx(expected.value)
    assert (figure["interval"], figure["level"]) == (pytest.approx([expected.low, expected.high]), 0.8)
    [run] = contents(tmp_path, {"m": (score, target)}, reading=reading, sample_weight=np.arange(300) + 1)["runs"]
    assert run["figures"]["roc"]["interval"] is None


def test_calibrators_of_many_classes_are_compared_on_a_subset(monkeypatch, tmp_path):
    monkeypatch.setattr("dualfocal.report.calibrated.MOST_VALUES", 6_000)
    monkeypatch.setattr("dualfocal.report.calibrated.LEAST_SAMPLES", 100)
    models = {"m": predictions(900, 20)}
    for clusters in (None, np.arange(900) // 2):
        page = contents(tmp_path, models, calibrators=["temperature"], clusters=clusters)
        compared = page["results"]["models"][0]["calibrators"]
        assert (compared["repeats"], compared.get("num_clusters")) == (1, None if clusters is None else 150)
        assert "300 of the 900 samples" in page["runs"][0]["how"]


def dense_predictions(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return over-confident logits (N, 3, 4, 4) and labels (N, 4, 4)."""
    logits, target = predictions(16 * count, 3, seed=count)
    return logits.view(count, 4, 4, 3).movedim(-1, 1), target.view(count, 4, 4)


def test_images_of_dense_predictions_are_clusters(tmp_path):
    logits, target = dense_predictions(30)
    expected = metrics.evaluate(logits, target, input="logits", inference=True).to_dict()
    np.savez(tmp_path / "dense.npz", logits=logits.numpy(), target=target.numpy())
    for models in ({"dense": (logits, target)}, [tmp_path / "dense.npz"]):
        [model] = contents(tmp_path, models)["results"]["models"]
        assert model["evaluation"]["inference"] == json.loads(json.dumps(expected["inference"]))
        [model] = contents(tmp_path, models, reading=Reading(cluster="none"))["results"]["models"]
        assert "clusters" not in model["evaluation"]["inference"]


def test_models_in_clusters_are_named_if_others_are_not(tmp_path):
    models = {"few": dense_predictions(30), "more": dense_predictions(40), "flat": predictions(500, 3)}
    text = dict(contents(tmp_path, models, input="logits")["decision"]["sentences"])["Clusters"]
    assert text.startswith("few: 30 clusters")
    assert " more: 40 clusters" in text
    assert "flat" not in text
