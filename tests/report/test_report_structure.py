"""Reports on samples with weights or in clusters: numbers, ranges and the page."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from browser import choose, contents_of, opened, read

from dualfocal import metrics
from dualfocal.metrics.inference import class_totals as totals
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan
from dualfocal.predictions import Reading
from dualfocal.report import calibrated, write_report
from dualfocal.report.class_reliability import class_reliability_figure
from dualfocal.report.curves import roc_figure
from dualfocal.report.inputs import load_inputs


def predictions(n: int, num_classes: int, sharpness: float = 1.5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, num_classes, generator=generator)
    return sharpness * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


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


def test_the_browser_computes_weighted_numbers(browser, weighted):
    file, logits, target, weight = weighted
    with opened(browser, file) as page:
        for (num_bins, mass), octave in product([(15, False), (10, True)], [0.0, 1.0]):
            choose(page, num_bins=num_bins, mass=mass, octave=octave, of_class=None)
            actual, values = read(page), logits.double() / 2**octave
            ece = metrics.adaptive_ece if mass else metrics.ece
            assert actual["ece"] == pytest.approx(
                ece(values, target, num_bins=num_bins, sample_weight=weight), rel=1e-9
            )
            assert actual["nll"] == pytest.approx(metrics.nll(values, target, sample_weight=weight), rel=1e-6)
            assert actual["error"] == pytest.approx(metrics.error_rate(values, target, sample_weight=weight))
            assert actual["count"] == 580
        assert "All numbers are weighted" in page.locator("#sample-note").inner_text()


def test_models_with_different_weights_are_not_paired():
    logits, target = predictions(100, 3)
    a, b = (as_rows(logits, target, input="logits", sample_weight=w) for w in (np.arange(100) + 1, np.arange(100) + 2))
    assert metrics.model_choice.same_samples(a, a)
    assert not metrics.model_choice.same_samples(a, b)
    assert not metrics.model_choice.same_samples(a, as_rows(logits, target, input="logits"))


def test_weights_and_clusters_of_files_come_from_columns(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((20, 2)), target=np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"sample_weight must not be given for files: use .*weight=COLUMN"):
        write_report([tmp_path / "a.npz"], tmp_path / "a.html", sample_weight=np.ones(20))


def test_ranges_allow_for_clusters():
    """Of copies, too, 90 % of the bins of a calibrated model are within the range; as independent ones, far fewer."""
    inside, narrow, total = 0, 0, 0
    for seed in range(5):
        logits, target, clusters = copies(600, 4, seed)
        source = load_inputs({"m": (logits, target)}, Reading(), clusters=clusters)[0]
        assert 3.5 < source.design_effect < 4.5
        for panel in class_reliability_figure(source, 1)["classes"]:
            bins = {name: np.array(values) for name, values in panel["bins"].items()}
            gap = np.abs(bins["confidence"] - bins["accuracy"])
            inside += (gap <= bins["chance"]).sum()
            narrow += (gap <= bins["chance"] / 2).sum()
            total += len(gap)
    assert narrow / total < 0.8
    assert 0.85 <= inside / total <= 0.97


def test_ranges_in_the_browser_allow_for_clusters(browser, tmp_path):
    logits, target, clusters = copies(200, 4, 0)
    write_report({"m": (logits, target)}, tmp_path / "a.html", calibrators=(), clusters=clusters)
    write_report({"m": (logits, target)}, tmp_path / "b.html", calibrators=())
    floors = []
    for name in ("a", "b"):
        with opened(browser, tmp_path / f"{name}.html") as page:
            floors.append(read(page)["chance"])
            words = "design effect of all samples"
            assert (words in page.locator("#figure-classes .note").first.inner_text()) == (name == "a")
            assert (words in page.locator("#sample-note").inner_text()) == (name == "a")
    effect = contents_of(tmp_path / "a.html")["runs"][0]["data"]["designEffect"]
    assert floors[0] == pytest.approx(floors[1] * effect**0.5, rel=0.02)


def test_class_totals_of_clusters_are_t_tests():
    logits, target, clusters = copies(60, 3, 0)
    rows = as_rows(logits, target, input="logits", clusters=clusters)
    gaps = totals.class_totals(rows, scan(rows), design_effect=1.0)
    p, y = logits.double().softmax(1).numpy(), np.eye(3)[target]
    # Oracle: of all samples of class 2, the sums over clusters.
    residual = p[:, 2] - y[:, 2]
    sums = np.array([residual[clusters == k].sum() for k in range(60)])
    ratio = sums.sum() ** 2 / max((sums**2).sum(), (p[:, 2] * (1 - p[:, 2])).sum())
    from scipy.stats import t

    adjusted = {(gap.index, gap.among_predicted): gap for gap in gaps}
    gap = adjusted[2, False]
    assert (gap.probability, gap.share) == pytest.approx((p[:, 2].mean(), y[:, 2].mean()))
    single = 2 * t.sf(ratio**0.5, 59)
    assert gap.p_value >= single
    assert min(g.p_value for g in gaps) == pytest.approx(min(1.0, 6 * min(_single(p, y, clusters))), rel=1e-6)


def _single(p: np.ndarray, y: np.ndarray, clusters: np.ndarray) -> list[float]:
    """p-values of all totals, not adjusted."""
    from scipy.stats import t

    values = []
    for c, among in product(range(3), (False, True)):
        chosen = p.argmax(1) == c if among else np.ones(len(p), dtype=bool)
        residual, spread = ((p - y)[:, c] * chosen), (p * (1 - p))[chosen, c].sum()
        sums = np.bincount(clusters, residual)
        values.append(2 * t.sf(abs(sums.sum()) / max((sums**2).sum(), spread) ** 0.5, clusters.max()))
    return values


def test_class_totals_keep_their_level_with_clusters():
    alarms, naive = 0, 0
    for seed in range(100):
        logits, target, clusters = copies(150, 4, seed)
        rows = as_rows(logits, target, input="logits", clusters=clusters)
        alarms += min(gap.p_value for gap in totals.class_totals(rows, scan(rows), design_effect=4.0)) <= 0.05
        naive += min(gap.p_value for gap in totals.class_gaps(rows)) <= 0.05
    assert alarms <= 10  # at 5 %, more than 10 of 100 have a probability of 1 %
    assert naive >= 30


def test_roc_has_the_interval_of_delong():
    logits, target = predictions(300, 2)
    score, clusters = logits[:, 1] - logits[:, 0], np.arange(300) // 3
    source = load_inputs({"m": (score, target)}, Reading(binary="positive"), clusters=clusters)[0]
    figure, expected = roc_figure(source.rows, 0.8), metrics.auroc(score, target, level=0.8, clusters=clusters)
    assert figure["auroc"] == pytest.approx(expected.value)
    assert (figure["interval"], figure["level"]) == (pytest.approx([expected.low, expected.high]), 0.8)
    rows = as_rows(score, target, input="logits", binary="positive", sample_weight=np.arange(300) + 1)
    assert roc_figure(rows)["interval"] is None


def test_calibrators_of_many_classes_are_compared_on_a_subset(monkeypatch):
    monkeypatch.setattr(calibrated, "MOST_VALUES", 6_000)
    monkeypatch.setattr(calibrated, "LEAST_SAMPLES", 100)
    logits, target = predictions(900, 20)
    reading = Reading()
    source = load_inputs({"m": (logits, target)}, reading)[0]
    calibration = calibrated.calibrate(source, ["temperature"], reading, lambda share: None)
    assert (calibration.comparison.num_samples, calibration.comparison.repeats) == (300, 1)
    assert "a random subset of 300 of the 900 samples" in calibration.how
    clustered = load_inputs({"m": (logits, target)}, reading, clusters=np.arange(900) // 2)[0]
    chosen = calibrated.subset(clustered, 0).numpy()
    assert len(chosen) == 300
    assert np.array_equal(np.bincount(chosen // 2)[np.unique(chosen // 2)], np.full(150, 2))  # whole clusters


def dense_predictions(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return over-confident logits (N, 3, 4, 4) and labels (N, 4, 4)."""
    logits, target = predictions(16 * count, 3, seed=count)
    return logits.view(count, 4, 4, 3).movedim(-1, 1), target.view(count, 4, 4)


def test_images_of_dense_predictions_are_clusters(tmp_path):
    logits, target = dense_predictions(30)
    expected = metrics.evaluate(logits, target, input="logits", inference=True).inference
    np.savez(tmp_path / "dense.npz", logits=logits.numpy(), target=target.numpy())
    for models in ({"dense": (logits, target)}, [tmp_path / "dense.npz"]):
        [source] = load_inputs(models, Reading())
        assert source.evaluation.inference.to_dict() == expected.to_dict()
        [independent] = load_inputs(models, Reading(cluster="none"))
        assert independent.evaluation.inference.clusters is None


def test_models_in_clusters_are_named_if_others_are_not(tmp_path):
    models = {"few": dense_predictions(30), "more": dense_predictions(40), "flat": predictions(500, 3)}
    write_report(models, tmp_path / "report.html", input="logits", calibrators=())
    text = dict(contents_of(tmp_path / "report.html")["decision"]["sentences"])["Clusters"]
    assert text.startswith("few: 30 clusters")
    assert " more: 40 clusters" in text
    assert "flat" not in text
