"""Clusters of samples that depend on each other: against slow loops and simulation; at length in benchmarks."""

import json
import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import draw_images, draw_logits

from dualfocal import metrics as M
from dualfocal.calibrators import compare_calibrators
from dualfocal.metrics import evaluate_groups
from dualfocal.metrics.scan import scan
from dualfocal.metrics.units import unit_sums

FLOORS = ("ece", "adaptive_ece", "classwise_ece", "mce")


def clustered(num_clusters: int, size: int, rho: float = 0.9, tau: float = 1.0, seed: int = 0, num_classes: int = 4):
    """Probabilities that are similar within a cluster, labels drawn from correlated uniform numbers, and clusters."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(num_clusters), size)
    common, own = (
        rng.standard_normal((num_clusters, num_classes))[cluster],
        rng.standard_normal((len(cluster), num_classes)),
    )
    logits = torch.from_numpy(1.5 * (math.sqrt(0.8) * common + math.sqrt(0.2) * own))
    normal = math.sqrt(rho) * rng.standard_normal(num_clusters)[cluster]
    normal += math.sqrt(1 - rho) * rng.standard_normal(len(cluster))
    uniform = torch.special.ndtr(torch.from_numpy(normal))
    label = ((logits / tau).softmax(1).cumsum(1) <= uniform[:, None]).sum(1).clamp_max(num_classes - 1)
    return logits.softmax(1), label, cluster


def evaluate(probs, label, cluster=None, **options) -> M.Evaluation:
    return M.evaluate(probs, label, input="probs", inference=True, clusters=cluster, **options)


def slow_sums(probs, label, cluster, num_bins):
    """Sums of (confidence - correctness) and numbers of samples by cluster and bin, with loops."""
    sums, sizes = defaultdict(float), defaultdict(int)
    for p, y, c in zip(probs.tolist(), label.tolist(), cluster.tolist(), strict=True):
        confidence = max(p)
        bin = min(max(math.ceil(confidence * num_bins) - 1, 0), num_bins - 1)
        sums[c, bin] += confidence - (p.index(confidence) == y)
        sizes[c, bin] += 1
    return sums, sizes


def test_p_value_by_a_loop_over_all_draws():
    probs, label, cluster = clustered(60, 5)
    draws, num_bins = 200, 5
    sums, sizes = slow_sums(probs, label, cluster, num_bins)
    count = {b: sum(n for (_, other), n in sizes.items() if other == b) for _, b in sizes}

    def squares(weight):
        gap = {b: sum(weight[c] * s for (c, other), s in sums.items() if other == b) for b in count}
        return sum(gap[b] ** 2 / count[b] for b in count), sum(gap.values()) ** 2

    weights = 2.0 * np.random.default_rng(7).integers(2, size=(draws, 60), dtype=np.int8) - 1
    pool = [squares(weight) for weight in [*weights, np.ones(60)]]
    rarest = [min(sum(other[k] >= one[k] * (1 - 1e-9) for other in pool) for k in (0, 1)) for one in pool]
    expected = sum(rank <= rarest[-1] for rank in rarest) / len(pool)
    options = {"num_bins": num_bins, "draws": draws, "seed": 7}
    independent = evaluate(probs, label, **options).inference.p_value
    assert evaluate(probs, label, cluster, **options).inference.p_value == max(expected, independent)
    assert expected > independent


def test_debiased_error_subtracts_the_variance_of_cluster_sums():
    probs, label, cluster = clustered(30, 8, tau=2.0)
    sums, sizes = slow_sums(probs, label, cluster, 15)
    total = 0.0
    for b in {b for _, b in sizes}:
        members = [c for c, other in sizes if other == b]
        n, gap = sum(sizes[c, b] for c in members), sum(sums[c, b] for c in members)
        if len(members) > 1:
            noise = sum((sums[c, b] - sizes[c, b] * gap / n) ** 2 for c in members) * len(members) / (len(members) - 1)
            total += (gap**2 - noise) / n
    result = M.evaluate(probs, label, input="probs", clusters=cluster)
    assert result.debiased_ece == pytest.approx(math.sqrt(max(total, 0.0) / len(label)))
    assert result.debiased_ece != M.evaluate(probs, label, input="probs").debiased_ece


def test_design_effect_by_a_loop():
    probs, label, cluster = clustered(50, 6)
    residual = probs.max(1).values - (probs.argmax(1) == label).double()
    residual = (residual - residual.mean()).numpy()
    sums = [residual[cluster == c].sum() for c in range(50)]
    expected = sum(s**2 for s in sums) * 50 / 49 / (sum(residual**2) * 300 / 299)
    summary = evaluate(probs, label, cluster).inference.clusters
    assert (summary.number, summary.design_effect) == (50, pytest.approx(expected, rel=1e-6))
    assert summary.effective == pytest.approx(min(50, 3 * sum(s**2 for s in sums) ** 2 / sum(s**4 for s in sums)))


def test_floors_are_the_errors_of_calibrated_models_with_clusters():
    results = [evaluate(*clustered(60, 25, seed=seed), draws=200) for seed in range(40)]
    for name in FLOORS[:3]:
        errors = np.array([getattr(result, name) for result in results])
        floors = np.array([result.inference.floors[name].mean for result in results])
        assert floors.mean() == pytest.approx(errors.mean(), abs=4 * errors.std() / math.sqrt(40)), name
    naive = np.mean(
        [evaluate(*clustered(60, 25, seed=seed)[:2], draws=200).inference.floors["ece"].mean for seed in (0, 1)]
    )
    assert naive < 0.85 * np.mean([result.ece for result in results])


def test_clusters_control_false_alarms():
    alarms = np.zeros(2)
    for seed in range(40):
        probs, label, cluster = clustered(60, 20, seed=seed)
        for k, codes in enumerate((cluster, None)):
            alarms[k] += evaluate(probs, label, codes, draws=200).inference.joint_p_value <= 0.05
    assert alarms[0] <= 6  # 99.5 % quantile of 5 % of 40
    assert alarms[1] >= 12


def test_clusters_leave_power_to_detect_a_large_error():
    result = evaluate(*clustered(400, 10, tau=2.0))
    assert result.inference.joint_p_value <= 0.01
    assert result.verdict().startswith("Over-confident")
    assert result.inference.classwise.gaps


@pytest.mark.parametrize("num_classes", [2, 4])
def test_five_copies_are_worth_one(num_classes):
    probs, label, _ = clustered(600, 1, tau=1.6, num_classes=num_classes)
    row = np.arange(600)
    once = evaluate(probs, label, row)
    copies = evaluate(probs.repeat(5, 1), label.repeat(5), np.tile(row, 5))
    assert copies.debiased_ece == pytest.approx(once.debiased_ece)
    for name in FLOORS[:3]:
        assert copies.inference.floors[name].mean == pytest.approx(once.inference.floors[name].mean, rel=0.03), name
    assert copies.inference.p_value == pytest.approx(once.inference.p_value, abs=0.03)
    assert copies.inference.classwise.p_value == pytest.approx(once.inference.classwise.p_value, abs=0.03)
    assert copies.inference.debiased_ece == pytest.approx(once.inference.debiased_ece, abs=0.01)
    assert copies.inference.clusters.design_effect == pytest.approx(5, rel=0.01)


def test_clusters_of_one_sample_are_as_good_as_independent_samples():
    probs, label, _ = clustered(1500, 1)
    alone, independent = evaluate(probs, label, np.arange(1500)), evaluate(probs, label)
    assert alone.inference.clusters.design_effect == pytest.approx(1)
    for name in FLOORS:
        floor = independent.inference.floors[name].mean
        assert alone.inference.floors[name].mean == pytest.approx(floor, rel=0.1), name
    assert alone.inference.debiased_ece == pytest.approx(independent.inference.debiased_ece, abs=0.015)


def test_order_of_samples_and_names_of_clusters_do_not_matter():
    probs, label, cluster = clustered(40, 7)
    expected = evaluate(probs, label, cluster)
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(1))
    names = [f"patient {c:03}" for c in cluster[order.numpy()]]
    shuffled = evaluate(probs[order], label[order], names)
    assert shuffled.inference.p_value == expected.inference.p_value
    assert shuffled.inference.clusters.number == 40
    assert shuffled.debiased_ece == pytest.approx(expected.debiased_ece)
    for kind in (torch.from_numpy(cluster), cluster.astype(float), cluster.tolist()):
        assert evaluate(probs, label, kind).inference == expected.inference


def test_dense_predictions_have_one_cluster_per_image():
    probs, label, cluster = clustered(30, 12)
    dense, labels = probs.view(30, 3, 4, 4).movedim(-1, 1), label.view(30, 3, 4).clone()
    flat = evaluate(probs, label, cluster).inference
    assert evaluate(dense, labels, list(range(30))).inference == flat
    assert evaluate(dense, labels, cluster.reshape(30, 3, 4)).inference == flat
    labels[7] = -100
    assert evaluate(dense, labels, np.arange(30)).inference.clusters.number == 29


def test_very_many_clusters_are_drawn_in_groups(monkeypatch):
    probs, label, cluster = clustered(600, 3)
    exact = evaluate(probs, label, cluster).inference
    monkeypatch.setattr("dualfocal.metrics.units.MOST_UNITS", 200)
    grouped = evaluate(probs, label, cluster).inference
    assert grouped.clusters.number == exact.clusters.number == 600
    assert grouped.clusters.design_effect == pytest.approx(exact.clusters.design_effect, rel=0.2)
    assert grouped.floors["ece"].mean == pytest.approx(exact.floors["ece"].mean, rel=0.1)


def test_result_states_the_clusters():
    result = evaluate(*clustered(50, 10))
    summary = result.inference.clusters
    worth = round(500 / summary.design_effect)
    sentence = (
        f"50 clusters, design effect {summary.design_effect:.1f}: the 500 samples carry the information of {worth:,}"
    )
    assert f"{sentence} independent ones." in result.verdict()
    assert sentence in result._repr_html_()
    assert str(result).startswith("500 samples in 50 clusters, 4 classes")
    scalars = result.scalars()
    assert (scalars["num_clusters"], scalars["design_effect"]) == (50, summary.design_effect)
    content = json.loads(json.dumps(result.to_dict()))
    assert M.Evaluation.from_dict(content).inference == result.inference


def test_few_effective_clusters_are_a_warning():
    assert "p-values and intervals are not reliable" in evaluate(*clustered(20, 10)).verdict()
    probs, label, _ = clustered(400, 1)
    one_large = np.maximum(np.arange(400), 200)  # half of the samples are one cluster
    assert evaluate(probs, label, one_large).inference.clusters.effective < 10


def test_positive_class_and_confidence_only():
    probs, label, cluster = clustered(60, 10, num_classes=2)
    naive = evaluate(probs, label, binary="positive").inference
    result = evaluate(probs, label, cluster, binary="positive").inference
    assert result.classwise is None
    assert result.floors["ece"].mean > 1.1 * naive.floors["ece"].mean
    confidence, right = probs.max(1).values, (probs.argmax(1) == label).long()
    alone = M.evaluate(confidence, right, input="confidence", inference=True, clusters=cluster)
    assert alone.inference.p_value == evaluate(probs, label, cluster).inference.p_value
    assert "classwise_ece" not in alone.inference.floors


BAD = {
    "shape": (list(range(99)), r"one entry per sample, shape \(100,\), got shape \(99,\)"),
    "one cluster": (["a"] * 100, r"at least two different values, got only \['a'\]"),
    "missing text": (["a"] * 50 + [None] + ["b"] * 49, "entry 50 is missing"),
    "missing number": ([1.0] * 3 + [math.nan] + [2.0] * 96, "entry 3 is missing"),
    "fractions": (np.linspace(0, 1, 100) + 0.25, "whole numbers or texts, got float64, such as 0.25"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_clusters(case):
    clusters, message = BAD[case]
    probs, label, _ = clustered(100, 1)
    with pytest.raises(ValueError, match=message):
        M.evaluate(probs, label, input="probs", clusters=clusters)


def test_clusters_of_ignored_samples_only():
    probs, _, cluster = clustered(10, 4)
    with pytest.raises(ValueError, match="every target is ignore_index"):
        M.evaluate(probs, torch.full((40,), -100), input="probs", clusters=cluster)


def test_groups_with_clusters():
    probs, label, cluster = clustered(40, 10)
    sides = np.where(cluster % 2 == 0, "even", "odd")
    groups = evaluate_groups(probs, label, groups=sides, input="probs", clusters=cluster)
    assert [group.inference.clusters.number for group in groups] == [20, 20]
    with pytest.raises(ValueError, match="group '0': it holds only one cluster, '0'"):
        evaluate_groups(probs, label, groups=cluster, input="probs", clusters=cluster)


# Comparisons


def test_resampling_draws_whole_clusters():
    probs, label, cluster = clustered(50, 8)
    right = 0.9 * torch.nn.functional.one_hot(label, 4) + 0.025  # never wrong: the difference is the error
    d = M.compare(right, probs, label, input="probs", clusters=cluster).differences["error"]
    by_cluster = np.array([(probs.argmax(1) != label).numpy()[cluster == c].mean() for c in range(50)])
    assert (d.high - d.low) / (2 * 1.645) == pytest.approx(by_cluster.std() / math.sqrt(50), rel=0.1)
    assert (d.high + d.low) / 2 == pytest.approx(by_cluster.mean(), abs=0.01)


def test_compare_is_not_fooled_by_copies():
    probs, label, _ = clustered(100, 1, tau=1.3)
    flatter = (probs.log() / 1.2).softmax(1)
    options = {"input": "probs"}
    once = M.compare(probs, flatter, label, **options).differences["nll"]
    copies = [x.repeat(20, *[1] * (x.ndim - 1)) for x in (probs, flatter, label)]
    naive = M.compare(*copies, **options).differences["nll"]
    result = M.compare(*copies, **options, clusters=np.tile(np.arange(100), 20))
    width = once.high - once.low
    assert result.differences["nll"].high - result.differences["nll"].low == pytest.approx(width, rel=0.1)
    assert naive.high - naive.low == pytest.approx(width / math.sqrt(20), rel=0.1)
    assert "N = 2,000 in 100 clusters" in result.verdict()
    assert result.to_dict()["num_clusters"] == 100
    with pytest.raises(ValueError, match=r"at least 10 clusters .* got 5"):
        M.compare(*copies, **options, clusters=np.arange(2000) % 5)


def test_calibrators_are_compared_by_clusters():
    probs, label, _ = clustered(60, 1, tau=1.2)
    copies, labels, cluster = probs.repeat(20, 1), label.repeat(20), np.tile(np.arange(60), 20)
    naive = compare_calibrators(copies, labels, ["temperature", "isotonic"], input="probs")
    result = compare_calibrators(copies, labels, ["temperature", "isotonic"], input="probs", clusters=cluster)
    assert naive.recommended == "isotonic"  # learns the copies by heart
    assert result.recommended != "isotonic"
    widths = [c["temperature"].changes["nll"].high - c["temperature"].changes["nll"].low for c in (naive, result)]
    assert widths[1] > 3 * widths[0]
    assert "keep the 60 clusters whole" in result.caveat()
    assert result.to_dict()["num_clusters"] == 60


# Copies without clusters


def test_copies_are_a_warning():
    probs, label, _ = clustered(500, 1)
    copies = torch.cat([torch.arange(500), torch.arange(100)])
    with pytest.warns(UserWarning, match="100 of 600 samples have the same predictions and the same label as others"):
        evaluate(probs[copies], label[copies])
    evaluate(probs[copies], label[copies], copies)  # no warning
    M.evaluate(probs[copies], label[copies], input="probs")


def test_discrete_predictions_are_no_copies():
    rng = np.random.default_rng(0)
    leaves = torch.from_numpy(rng.dirichlet([1.0, 1.0, 1.0], size=200))  # a tree with 200 leaves
    probs = leaves[rng.integers(200, size=2000)]
    label = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    in_order = label.argsort()
    evaluate(probs[in_order], label[in_order])
    rounded = clustered(3000, 1, num_classes=2)
    evaluate((rounded[0] * 100).round() / 100, rounded[1])
    certain = torch.eye(3, dtype=torch.float64)[torch.arange(300) % 3]  # saturated
    evaluate(certain, torch.arange(300) % 3)


def test_clusters_without_effect_are_said_to_add_no_noise() -> None:
    result = evaluate(*clustered(500, 3))

    def summary(effect: float):
        return replace(result.inference.clusters, effective=480.0, design_effect=effect)

    for effect in (0.6, 1.04):
        verdict = replace(result, inference=replace(result.inference, clusters=summary(effect))).verdict()
        assert f"design effect {effect:.1f}: clusters add hardly any noise, and the 1,500 samples count as" in verdict
    verdict = replace(result, inference=replace(result.inference, clusters=summary(1.1))).verdict()
    assert "information of 1,364" in verdict


def test_few_clusters_are_not_called_few_samples() -> None:
    logits, target = draw_logits(600, 3, scale=1.0)
    verdict = M.evaluate(logits, target, inference=True, clusters=torch.arange(600) % 3).verdict()
    assert "too few clusters to detect a gap of any size" in verdict


def test_images_are_clusters_by_default_with_inference():
    logits, target = draw_images(30)
    default = M.evaluate(logits, target, inference=True)
    assert default.to_dict() == M.evaluate(logits, target, inference=True, clusters=np.arange(30)).to_dict()
    independent = M.evaluate(logits, target, inference=True, clusters="none")
    assert independent.inference.clusters is None
    assert independent.inference.floors["ece"].mean < default.inference.floors["ece"].mean
    assert default.inference.clusters.design_effect > 5
    assert M.evaluate(logits, target).debiased_ece == independent.debiased_ece
    with pytest.warns(UserWarning, match="pixels of one image are treated as independent"):
        assert M.evaluate(logits[:1], target[:1], inference=True).inference.clusters is None
    with pytest.raises(ValueError, match="\"none\", got 'images'"):
        M.evaluate(logits, target, inference=True, clusters="images")
    alone = torch.cat([target[:1], torch.full_like(target[1:], -100)])
    with pytest.warns(UserWarning, match="pixels of one image are treated as independent"):
        M.evaluate(logits, alone, inference=True)


def test_comparisons_resample_images_by_default():
    logits, target = draw_images(30)
    comparison = M.compare(logits, 0.7 * logits, target)
    assert comparison.num_clusters == 30
    assert M.compare(logits, 0.7 * logits, target, clusters="none").num_clusters is None
    with pytest.raises(ValueError, match=r"at least 10 clusters .* got 5"):
        M.compare(logits[:5], logits[:5], target[:5])
    assert compare_calibrators(logits, target, ["temperature"], repeats=1).num_clusters == 30


def test_groups_of_very_many_clusters_have_equal_sizes(monkeypatch):
    logits, target = draw_logits(1800, 4)
    samples = M.Samples.from_arrays(logits, target, clusters=np.arange(1800) // 3)
    monkeypatch.setattr("dualfocal.metrics.units.MOST_UNITS", 200)
    stats = scan(samples)
    assert (unit_sums(stats, stats.bins(15)).size.sum(1) == 9).all()


def test_errors_of_clusters_are_no_noise():
    right = np.arange(400) % 5 < 3
    sums = M.CalibrationSums.from_confidences(np.full(400, 0.99), right, clusters=np.arange(400))
    floor = sums.evaluate().inference.floors["ece"].mean
    assert floor == pytest.approx(math.sqrt(2 / math.pi * 0.24 / 400), rel=0.06)
