"""Sample weights: against slow loops, copies of samples and simulation; at length in benchmarks."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from weight_oracles import weighted_metrics

from dualfocal import metrics as M
from dualfocal.calibrators import compare_calibrators
from dualfocal.metrics import BinStats, Samples, evaluate_groups
from dualfocal.metrics.resampling import aurc_influence, resample
from dualfocal.metrics.scan import scan

FUNCTIONS = {
    "error": M.error_rate,
    "brier": M.brier_score,
    **{
        name: getattr(M, name)
        for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "nll", "aurc")
    },
}
RESAMPLED = ("error", "nll", "brier", "ece", "classwise_ece")
BINNED = ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece")
SUMS = ("count", "confidence", "correct", "variance", "squares", "correct_squares")


def sample(n: int = 300, num_classes: int = 4, tau: float = 1.0, seed: int = 0):
    """Probabilities, labels and log-normal weights."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((n, num_classes))
    truth = np.exp(logits / tau) / np.exp(logits / tau).sum(1, keepdims=True)
    label = (truth.cumsum(1) <= rng.random((n, 1))).sum(1).clip(max=num_classes - 1)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return torch.from_numpy(probs), torch.from_numpy(label), rng.lognormal(0.0, 0.8, n)


def shifted(n: int, seed: int, ratio: float = 0.1, num_classes: int = 3):
    """Samples of a calibrated model under label shift: class k is selected with a probability that depends on k."""
    probs, label, _ = sample(6 * n, num_classes, seed=seed)
    select = np.geomspace(1.0, ratio, num_classes)[label]
    kept = np.flatnonzero(np.random.default_rng(seed + 1000).random(6 * n) < select)[:n]
    return probs[kept], label[kept], 1 / select[kept]


def evaluate(probs, label, weight=None, **options) -> M.Evaluation:
    return M.evaluate(probs, label, input="probs", sample_weight=weight, **options)


@pytest.mark.parametrize("tied", [False, True])
def test_every_metric_by_loops(tied):
    probs, label, weight = sample(200, 3, tau=2.0)
    if tied:
        top = probs.max(1, keepdim=True)
        confidence = (8 * top.values).round() / 8
        probs = ((1 - confidence) / 2).expand(200, 3).scatter(1, top.indices, confidence).clamp_min(1 / 64)
        probs = torch.where(probs > 0.9, 1 - 2 / 64, probs)
    weight[::7] = 0.0
    kept = weight > 0
    expected = weighted_metrics(probs[kept].tolist(), label[kept].tolist(), weight[kept].tolist(), 10)
    result = evaluate(probs, label, weight, num_bins=10)
    for name, value in expected.items():
        assert getattr(result, name) == pytest.approx(value, abs=1e-8), name
    for name, function in FUNCTIONS.items():
        bins = {"num_bins": 10} if name in BINNED else {}
        value = function(probs, label, input="probs", sample_weight=weight, **bins)
        assert value == pytest.approx(expected[name], abs=1e-8), name
    parts = M.brier_decomposition(probs, label, input="probs", sample_weight=weight, num_bins=10)
    assert parts.calibration == pytest.approx(expected["brier_calibration"], abs=1e-8)
    assert parts.refinement == pytest.approx(expected["brier_refinement"], abs=1e-8)


def test_whole_weights_are_copies():
    probs, label, _ = sample(150)
    copies = torch.from_numpy(np.random.default_rng(1).integers(0, 4, 150))
    row = np.arange(150)
    weighted = evaluate(probs, label, copies, clusters=row)
    repeated = evaluate(
        probs.repeat_interleave(copies, 0), label.repeat_interleave(copies), clusters=np.repeat(row, copies)
    )
    for name in ("error", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece"):
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), abs=1e-9), name
    # As clusters, copies are no information; as samples they would be, so that less noise is subtracted.
    assert repeated.debiased_ece < evaluate(probs.repeat(3, 1), label.repeat(3)).debiased_ece


def test_only_ratios_of_weights_matter():
    probs, label, weight = sample(tau=1.3)
    one, thousand, two = (evaluate(probs, label, k * weight, inference=True) for k in (1.0, 1000.0, 2.0))
    assert two.to_dict() == one.to_dict()
    assert thousand.scalars() == pytest.approx(one.scalars(), rel=1e-9)
    assert evaluate(probs, label, 1e300 * weight).ece == pytest.approx(one.ece)


def test_equal_weights_are_no_weights_and_weight_zero_leaves_out():
    probs, label, weight = sample()
    assert evaluate(probs, label, np.full(300, 0.1), inference=True).to_dict() == (
        evaluate(probs, label, inference=True).to_dict()
    )
    some = np.arange(300) % 3 > 0
    assert evaluate(probs, label, weight * some, inference=True).to_dict() == (
        evaluate(probs[some], label[some], weight[some], inference=True).to_dict()
    )
    assert evaluate(probs, label, weight * some).num_samples == 200
    assert evaluate(probs, label, some).to_dict() == evaluate(probs[some], label[some]).to_dict()


def test_nearly_equal_weights_give_nearly_the_same_result():
    probs, label, _ = sample(1001)  # no quantile between adaptive bins lies between two samples
    weight = 1 + 1e-6 * np.random.default_rng(0).random(1001)
    one, none = evaluate(probs, label, weight, inference=True), evaluate(probs, label, inference=True)
    for name in ("error", "nll", "brier", "aurc", "ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece"):
        assert getattr(one, name) == pytest.approx(getattr(none, name), rel=1e-4), name
    for name in ("ece", "adaptive_ece", "classwise_ece"):
        assert one.inference.floors[name].mean == pytest.approx(none.inference.floors[name].mean, rel=0.06), name
    assert one.inference.p_value == pytest.approx(none.inference.p_value, abs=0.06)
    assert one.inference.detectable == pytest.approx(none.inference.detectable, rel=0.15)


def test_weighted_clusters_sum_weights():
    probs, label, _ = sample(120)
    cluster = np.arange(120) // 4
    copies = torch.from_numpy(np.random.default_rng(1).integers(1, 4, 120))
    weighted = evaluate(probs, label, copies, clusters=cluster, inference=True)
    again = np.repeat(cluster, copies)
    repeated = evaluate(
        probs.repeat_interleave(copies, 0), label.repeat_interleave(copies), clusters=again, inference=True
    )
    assert weighted.debiased_ece == pytest.approx(repeated.debiased_ece)
    assert weighted.inference.clusters.number == 30
    assert weighted.inference.clusters.effective == pytest.approx(repeated.inference.clusters.effective)
    one_bin = evaluate(probs, label, copies, clusters=cluster, num_bins=1)
    slow = np.zeros((2, 30))
    for i in range(120):
        w = float(copies[i])
        slow[:, cluster[i]] += [w * float(probs[i].max() - (probs[i].argmax() == label[i]).double()), w]
    gap, total = slow.sum(1)
    noise = ((slow[0] - slow[1] * gap / total) ** 2).sum() * 30 / 29
    assert one_bin.debiased_ece == pytest.approx(math.sqrt(max(gap**2 - noise, 0.0)) / total, abs=1e-7)
    text = weighted.verdict()
    assert "Weighted: the 120 samples" in text
    assert "30 clusters" in text


@pytest.mark.parametrize("by_label", [False, True])
def test_noise_of_drawn_labels_by_loops(by_label):
    """In one bin, an error is the size of a sum that is about normal: its mean is .8 standard deviations."""
    probs, label, weight = sample(2000, 3)
    if by_label:
        weight = np.array([0.2, 1.0, 3.0])[label]
    result = evaluate(probs, label, weight, inference=True, num_bins=1, draws=2000, seed=3)
    assert result.weights.by_label == by_label
    variance = np.zeros(4)  # of the sum over all samples: confidence, and p of each class
    for p, w, y in zip(probs.tolist(), weight.tolist(), label.tolist(), strict=True):
        of_class = [0.2, 1.0, 3.0] if by_label else [w] * 3
        share = [p[k] / of_class[k] for k in range(3)] if by_label else [float(k == y) for k in range(3)]
        for k in range(3):  # the drawn label; without weights by label, the residuals are those of the samples
            s = share[k] / sum(share)
            residual = [max(p) - (p.index(max(p)) == k), *(p[c] - (c == k) for c in range(3))]
            variance += s * (of_class[k] * np.array(residual)) ** 2
    expected = np.sqrt(2 / math.pi * variance) / weight.sum()
    floors = result.inference.floors
    assert floors["ece"].mean == pytest.approx(expected[0], rel=0.08)
    assert floors["classwise_ece"].mean == pytest.approx(expected[1:].mean(), rel=0.08)


def test_p_value_of_weights_by_label_by_a_loop_over_draws():
    probs, label, weight = shifted(300, 0)
    result = evaluate(probs, label, weight, inference=True, seed=3)
    assert result.weights.by_label
    gap, count = result.bins.gap, result.bins.count
    of_class = np.geomspace(1.0, 0.1, 3) ** -1
    of_class *= len(label) / weight.sum()
    share = probs.numpy() / of_class
    cumulative = (share / share.sum(1, keepdims=True)).cumsum(1)
    confidence, guess = (x.numpy() for x in probs.max(1))
    place = np.ceil(confidence * 15).astype(int) - 1
    rng = np.random.default_rng(0)
    pool = []
    for _ in range(1500):
        drawn = (cumulative <= rng.random((len(label), 1))).sum(1).clip(max=2)
        residual = of_class[drawn] * (confidence - (drawn == guess))
        pool.append(np.bincount(place, residual, minlength=15))
    full = count > 0
    sums = np.array([*pool, gap])[:, full]
    squares = np.stack([(sums**2 / count[full]).sum(1), sums.sum(1) ** 2])
    ranks = [(one >= one[:, None] * (1 - 1e-9)).sum(1) for one in squares]
    rarest = np.minimum(*ranks)
    assert result.inference.p_value == pytest.approx((rarest <= rarest[-1]).mean(), abs=0.05)


def test_other_weights_count_the_more_cautious_p_value():
    probs, label, weight = sample(tau=1.2)
    weighted = evaluate(probs, label, weight, inference=True)
    robust = evaluate(probs, label, weight, inference=True, clusters=np.arange(300))
    assert not weighted.weights.by_label
    assert weighted.inference.p_value == robust.inference.p_value
    assert weighted.inference.floors == robust.inference.floors
    assert weighted.inference.clusters is None


@pytest.mark.parametrize("kind", ["random", "label"])
def test_false_alarms_and_floors(kind):
    results = []
    for seed in range(30):
        data = shifted(400, seed) if kind == "label" else sample(400, 3, seed=seed)
        results.append(evaluate(*data, inference=True, draws=200))
    assert sum(result.inference.joint_p_value <= 0.05 for result in results) <= 5  # 99.5 % quantile of 5 % of 30
    covered = sum(result.inference.debiased_ece[0] == 0 for result in results)
    assert covered >= 22  # 0.5 % quantile of 90 % of 30
    for name in ("ece", "adaptive_ece", "classwise_ece"):
        errors = np.array([getattr(result, name) for result in results])
        floors = np.array([result.inference.floors[name].mean for result in results])
        assert floors.mean() == pytest.approx(errors.mean(), abs=4 * errors.std() / math.sqrt(30)), name


def test_label_shift_changes_the_conclusion():
    probs, label, weight = shifted(3000, 1)
    assert evaluate(probs, label, inference=True).inference.joint_p_value < 0.001
    assert evaluate(probs, label, weight, inference=True).inference.joint_p_value > 0.05
    sharper = probs**1.5 / (probs**1.5).sum(1, keepdim=True)
    result = evaluate(sharper, label, weight, inference=True)
    assert result.verdict().startswith("Over-confident")
    assert result.inference.classwise.gaps


def test_weights_depend_on_the_label_alone():
    probs, label, _ = sample(100, 3)
    weight = np.array([1.0, 2.0, 3.0])[label]
    assert evaluate(probs, label, weight).weights.by_label
    other = weight.copy()
    other[5] += 1
    assert not evaluate(probs, label, other).weights.by_label
    assert not evaluate(probs, label, weight * (label.numpy() != 1)).weights.by_label  # that of class 1 cannot be seen


def test_resampling_multiplies_weights():
    probs, label, weight = sample(12, 3)
    other = (probs.log() / 2).softmax(1)
    samples = [Samples.from_arrays(p, label, input="probs", sample_weight=weight) for p in (probs, other)]
    models = [(one, scan(one, num_bins=5, scores=True)) for one in samples]
    resampled = resample(models, 5, seed=4)
    drawn = []
    for pick in np.random.default_rng(4).integers(12, size=(1000, 12)):
        times = np.bincount(pick, minlength=12) * weight
        kept = times > 0
        a, b = (
            weighted_metrics(p[kept].tolist(), label[kept].tolist(), times[kept].tolist(), 5) for p in (probs, other)
        )
        drawn.append([b[name] - a[name] for name in RESAMPLED])
    for name, draws in zip(RESAMPLED, np.array(drawn).T, strict=True):
        assert resampled[name][:, 1] - resampled[name][:, 0] == pytest.approx(draws, abs=1e-8), name


@pytest.mark.parametrize("tied", [False, True])
def test_influence_on_the_weighted_aurc_is_a_derivative(tied):
    rng = np.random.default_rng(0)
    confidence = 0.5 + rng.random(30) / 2
    confidence = 0.05 + 0.9 * confidence.round(1) if tied else confidence
    wrong, weight = 1.0 * (rng.random(30) < 0.4), 0.2 + rng.random(30)
    area, influence, _ = aurc_influence(confidence, wrong, weight)
    p = torch.from_numpy(confidence)
    both = torch.stack([p, 1 - p], dim=1)  # the first class is predicted
    assert area == pytest.approx(M.aurc(both, torch.from_numpy(wrong).long(), input="probs", sample_weight=weight))
    for j in range(30):
        step = 1e-6 * np.eye(30)[j]
        ends = [aurc_influence(confidence, wrong, weight + sign * step)[0] for sign in (-1, 1)]
        assert influence[j] / weight.sum() == pytest.approx((ends[1] - ends[0]) / 2e-6, abs=1e-8)


def test_comparison_is_weighted():
    probs, label, weight = sample(2000, tau=1.0)
    weight[:1000] *= 20  # the second model is better for the first half only
    other = probs.clone()
    other[:1000] = torch.nn.functional.one_hot(label[:1000], 4) * 0.05 + 0.95 * probs[:1000]
    other[1000:] = 0.5 * probs[1000:] + 0.125
    plain = M.compare(probs, other, label, input="probs")
    weighted = M.compare(probs, other, label, input="probs", sample_weight=weight)
    assert plain.differences["nll"].better() == "A"
    assert weighted.differences["nll"].better() == "B"
    assert weighted.to_dict()["weights"]["effective"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert "weighted: effective" in weighted.verdict()
    d = weighted.differences["debiased_ece"]
    assert d.low <= d.difference <= d.high


def test_groups_and_calibrators_are_weighted():
    probs, label, weight = sample(600, tau=2.0)
    group = np.repeat(["a", "b", "c"], 200)
    weight[400:] = 0.0
    groups = evaluate_groups(probs, label, groups=group, input="probs", sample_weight=weight)
    assert sorted(one.name for one in groups) == ["a", "b"]
    first = next(one.evaluation for one in groups if one.name == "a")
    assert first.ece == pytest.approx(evaluate(probs[:200], label[:200], weight[:200]).ece, rel=1e-14)
    result = compare_calibrators(probs, label, ["temperature"], input="probs", sample_weight=weight, repeats=1)
    assert result["uncalibrated"].scores["nll"] == pytest.approx(evaluate(probs, label, weight).nll)
    assert result.recommended == "temperature"
    assert "calibrators were fitted without weights" in result.caveat()
    assert result["temperature"].optimism < 0.05


def test_weights_of_images_are_repeated():
    logits = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    target = torch.randint(3, (6, 4), generator=torch.Generator().manual_seed(1))
    weight = torch.arange(1.0, 7.0)
    assert M.ece(logits, target, sample_weight=weight) == M.ece(
        logits, target, sample_weight=weight[:, None].expand(6, 4)
    )


def test_result_round_trips_and_says_how_much_the_samples_carry():
    probs, label, weight = sample(600)
    result = evaluate(probs, label, weight, inference=True)
    content = json.loads(json.dumps(result.to_dict()))
    again = M.Evaluation.from_dict(content)
    assert again.to_dict() == content
    assert again.weights == result.weights
    assert again.bins.squared_error() == pytest.approx(result.bins.squared_error())
    effective = weight.sum() ** 2 / (weight**2).sum()
    assert result.weights.effective == pytest.approx(effective)
    assert result.scalars()["effective_samples"] == pytest.approx(effective)
    assert f"600 samples (weighted, effective {effective:.0f})" in result.table().title
    sentence = f"the 600 samples carry the information of {effective:.0f}; the uncertainty of estimated weights is not"
    assert sentence in result.verdict()
    assert "not reliable" not in result.verdict()


@pytest.mark.parametrize(
    ("information", "text"),
    [
        ({"effective": 60.0, "largest": 0.03}, "With fewer than 100, p-values and intervals are not reliable"),
        ({"effective": 150.0, "largest": 0.06}, "One sample has 6 % of the weight"),
    ],
)
def test_little_information_is_named(information, text):
    result = evaluate(*sample(), inference=True)
    result = replace(result, weights=replace(result.weights, **information))
    assert not result.weights.reliable
    assert text in result.verdict()


def test_bins_of_weighted_samples_merge_up_to_rounding():
    probs, label, weight = sample(400)
    confidence, correct = probs.max(1).values, probs.argmax(1) == label
    parts = [BinStats.from_confidence(confidence[k::4], correct[k::4], sample_weight=weight[k::4]) for k in range(4)]
    whole = BinStats.from_confidence(confidence, correct, sample_weight=weight)
    merged = parts[3] + parts[1] + parts[0] + parts[2]
    again = BinStats.from_dict(whole.to_dict())
    for name in SUMS:
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), rel=1e-12)
        assert getattr(again, name) == pytest.approx(getattr(whole, name), rel=0.05 if name == "variance" else 1e-12)


def test_effective_number_of_samples_of_a_bin():
    confidence, correct = torch.full((6,), 0.75, dtype=torch.float64), torch.tensor([1, 1, 1, 1, 0, 0]).bool()
    equal = BinStats.from_confidence(confidence, correct, num_bins=1, sample_weight=torch.full((6,), 3.0))
    assert float(equal.effective_count()[0]) == pytest.approx(6)
    weight = torch.tensor([1.0, 1, 1, 1, 4, 4])  # wrong samples weigh more: accuracy 1/3
    unequal = BinStats.from_confidence(confidence, correct, num_bins=1, sample_weight=weight)
    kish, by_outcome = 144 / 36, (1 / 3 * 2 / 3 * 144) / (32 / 9 + 4 * 4 / 9)
    assert float(unequal.effective_count()[0]) == pytest.approx(min(kish, by_outcome))


def test_invalid_weights():
    probs, label, weight = sample(5)
    for bad, message in (
        (weight[:4], r"one entry per sample, shape \(5,\), got shape \(4,\)"),
        ([1.0, -2.0, 1.0, 1.0, 1.0], "entry 1 is -2"),
        ([1.0, 1.0, math.nan, 1.0, 1.0], "entry 2 is nan"),
        ([1.0, 1.0, 1.0, math.inf, 1.0], "entry 3 is inf"),
        (np.zeros(5), "must not be 0 for all samples"),
        (["a"] * 5, "must hold plain numbers"),
        (np.ones(5) * 1j, "real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluate(probs, label, bad)
    with pytest.raises(ValueError, match="0 for every sample that is not ignored"):
        evaluate(probs, torch.where(label == label[0], -100, label), np.where(label == label[0], 1.0, 0.0))
