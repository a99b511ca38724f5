"""Floors, test, interval and comparison against brute force; coverage at length is benchmarks/inference_coverage.py."""

import json
import math

import numpy as np
import pytest
import torch
from case_loops import for_each
from samples import draw_logits

from dualfocal import metrics as M


@pytest.mark.parametrize("n", [300, 5000])  # each sample drawn alone, and neighbours together
def test_floors_by_brute_force(n) -> None:
    logits, target = draw_logits(n, 4, overconfidence=1.5)
    result = M.evaluate(logits, target, inference=True)
    generator = torch.Generator().manual_seed(1)
    probs = logits.double().softmax(1)
    drawn = []
    for labels in torch.multinomial(probs, 300, replacement=True, generator=generator).T:
        redrawn = M.evaluate(logits, labels)
        drawn.append([redrawn.ece, redrawn.adaptive_ece, redrawn.mce, redrawn.classwise_ece])
    columns = dict(zip(("ece", "adaptive_ece", "mce", "classwise_ece"), np.array(drawn).T, strict=True))
    for name, values in columns.items():
        floor = result.inference.floors[name]
        error = values.std() / math.sqrt(300)
        assert floor.mean == pytest.approx(values.mean(), abs=5 * error), name
        assert floor.q95 == pytest.approx(np.quantile(values, 0.95), abs=7 * error), name


def test_floor_of_the_positive_class() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2000, generator=generator)
    p = scores.double().sigmoid()
    target = torch.bernoulli(p, generator=generator).long()
    floor = M.evaluate(scores, target, binary="positive", inference=True).inference.floors["ece"]
    drawn = [M.ece(scores, torch.bernoulli(p, generator=generator).long(), binary="positive") for _ in range(200)]
    assert floor.mean == pytest.approx(np.mean(drawn), abs=5 * np.std(drawn) / math.sqrt(200))


def test_p_values_of_calibrated_models_are_uniform() -> None:
    options = {"inference": True, "num_bins": 5, "draws": 200}
    ordered = np.sort(
        [M.evaluate(*draw_logits(400, 3, seed=i), **options, seed=i).inference.p_value for i in range(120)]
    )
    distance = np.abs(ordered - np.arange(1, 121) / 121).max()
    assert distance < 1.63 / math.sqrt(120)  # Kolmogorov and Smirnov, 1 %


@pytest.mark.parametrize("tau", [1.0, 1.15, 1.6])
def test_interval_covers(tau) -> None:
    """A coarse guard, 40 samples: nominal 90 % may show 30 to 40."""
    logits, _ = draw_logits(200_000, 3, scale=2.5, seed=99)
    truth, model = (logits.double() / tau).softmax(1), logits.double().softmax(1)
    confidence, guess = model.max(1)
    gap = confidence - truth.gather(1, guess[:, None])[:, 0]
    index = (confidence * 5).ceil().long() - 1
    count, total = torch.bincount(index, minlength=5), torch.zeros(5, dtype=torch.float64).index_add_(0, index, gap)
    rms = math.sqrt(float((total**2 / count).nan_to_num(0).sum()) / len(logits))
    hits, options = 0, {"inference": True, "num_bins": 5, "draws": 200}
    for seed in range(40):
        result = M.evaluate(*draw_logits(1000, 3, overconfidence=tau, scale=2.5, seed=seed), **options, seed=seed)
        low, high = result.inference.debiased_ece
        assert 0 <= low <= high
        hits += low <= rms <= high
    assert hits >= 30


def test_the_shapes_of_the_interval_come_from_jeffreys_prior() -> None:
    """60 samples of confidence 0.999, all right, and 20 of 0.9, one wrong: the upper end depends on the prior."""
    count, correct, confidence = np.array([60, 20]), np.array([60, 19]), np.array([0.999, 0.9])
    values, right = np.repeat(confidence, count), np.repeat([1, 0, 1], [60, 1, 19])
    ends = [
        M.evaluate(values, right, input="confidence", inference=True, draws=300, seed=seed).inference.debiased_ece[1]
        for seed in range(6)
    ]
    assert np.mean(ends) == pytest.approx(upper_end(count, correct, confidence, prior=0.5), abs=0.004)
    assert upper_end(count, correct, confidence, prior=1.0) < np.mean(ends) - 0.006


def upper_end(count, correct, confidence, prior, level=0.9) -> float:
    """Largest size of miscalibration at which at least 1 - level / 2 of the outcomes are not below the observed one."""
    rng, sizes = np.random.default_rng(0), np.linspace(0.05, 0.2, 61)

    def debiased(hits):
        accuracy = hits / count
        square = (confidence - accuracy) ** 2 - accuracy * (1 - accuracy) / (count - 1)
        return (count * square).sum(-1) / count.sum()

    shapes = confidence - rng.beta(correct + prior, count - correct + prior, size=(8000, 2))
    shapes /= np.sqrt((count * shapes**2).sum(1, keepdims=True) / count.sum())
    reached, shares = [], []
    for size in sizes:
        accuracy = np.clip(confidence - size * shapes, 0, 1)
        mirrored = np.clip(confidence + size * shapes, 0, 1)
        further = np.abs(mirrored - confidence) > np.abs(accuracy - confidence)
        accuracy = np.where(further, mirrored, accuracy)
        reached.append(np.sqrt((count * (confidence - accuracy) ** 2).sum(1) / count.sum()).mean())
        shares.append((debiased(rng.binomial(count, accuracy)) <= debiased(correct) + 1e-12).mean())
    return float(np.interp((1 - level) / 2, shares[::-1], reached[::-1]))


def test_a_wider_level_contains_a_narrower() -> None:
    logits, target = draw_logits(2000, 5, overconfidence=1.3)
    low, high = M.evaluate(logits, target, inference=True, level=0.95).inference.debiased_ece
    inner_low, inner_high = M.evaluate(logits, target, inference=True, level=0.6).inference.debiased_ece
    assert low < inner_low < M.debiased_ece(logits, target) < inner_high < high


def test_the_detectable_gap_is_detected_four_times_in_five() -> None:
    """30 samples with the gap: 24 +- 2.2 detections."""
    options = {"input": "probs", "inference": True, "num_bins": 5, "draws": 400}
    generator = torch.Generator().manual_seed(0)
    confidence = 0.5 + 0.5 * torch.rand(2000, generator=generator, dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], 1)
    calibrated = (torch.rand(2000, generator=generator) > confidence).long()
    size = M.evaluate(probs, calibrated, **options).inference.detectable
    assert 0.01 < size < 0.1
    for gap, low, high in ((size, 18, 30), (size / 3, 0, 11)):
        detections = 0
        for seed in range(30):
            target = (torch.rand(2000, generator=generator) > confidence - gap).long()
            detections += M.evaluate(probs, target, **options, seed=seed).inference.p_value <= 0.05
        assert low <= detections <= high, gap


def test_more_samples_show_smaller_errors() -> None:
    sizes = [M.evaluate(*draw_logits(n, 5), inference=True).inference.detectable for n in (200, 2000, 20_000)]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]


def test_one_sample_is_too_few() -> None:
    result = M.evaluate(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), inference=True)
    assert result.inference.p_value == 1.0
    assert result.inference.debiased_ece == (0.0, 1.0)
    assert "N = 1: too few samples" in result.verdict()
    assert result.to_dict()["inference"]["detectable"] is None


@for_each("correct, verdict", [(True, "no miscalibration"), (False, "over-confident")])
def test_certain_models(correct, verdict) -> None:
    """Confidence 1 everywhere: no noise is possible, a single error refutes it."""
    probs = torch.tensor([[1.0, 0.0]]).expand(50, 2)
    result = M.evaluate(probs, torch.zeros(50, dtype=torch.int64) + (not correct), input="probs", inference=True)
    assert result.verdict().startswith("All probabilities are 0 or 1, ")
    assert verdict in result.verdict().lower()
    assert result.inference.floors["ece"].mean == 0.0
    low, high = result.inference.debiased_ece
    assert low <= (0.0 if correct else 1.0) <= high
    assert high - low < 0.15
    assert result.inference.detectable == pytest.approx(1 - 0.2 ** (1 / 50), abs=0.008)  # one wrong of 50, 4 times of 5


def test_seeds_repeat() -> None:
    logits, target = draw_logits(500, 4)
    first, again, other = (M.evaluate(logits, target, inference=True, seed=s).to_dict() for s in (3, 3, 4))
    assert first == again
    assert first["inference"]["floors"] != other["inference"]["floors"]
    assert {k: v for k, v in first.items() if k != "inference"} == {k: v for k, v in other.items() if k != "inference"}


def test_published_bootstrap() -> None:
    """The pivotal interval, against resampling written out."""
    logits, target = draw_logits(300, 3, overconfidence=1.4)
    result = M.evaluate(logits, target, inference=True, convention="published")
    rng = np.random.default_rng(0)
    picks = [torch.from_numpy(rng.integers(300, size=300)) for _ in range(600)]
    resampled = [M.evaluate(logits[pick], target[pick]) for pick in picks]
    columns = {name: [getattr(evaluation, name) for evaluation in resampled] for name in ("ece", "classwise_ece")}
    confidence, guess = logits.double().softmax(1).max(1)
    edges = torch.cat([torch.zeros(1), confidence.quantile(torch.arange(1, 15).double() / 15), torch.ones(1)])
    bins = [M.BinStats.from_confidence(confidence[i], (guess == target)[i], edges=edges) for i in picks]
    columns["adaptive_ece"] = [float(stats.ece()) for stats in bins]  # the edges of the whole sample
    for name, values in columns.items():
        drawn = np.array(values)
        low, high = result.inference.published[name]
        estimate = getattr(result, name)
        expected = 2 * estimate - np.quantile(drawn, [0.95, 0.05])
        assert (low, high) == pytest.approx(tuple(expected), abs=0.17 * drawn.std() + 0.002), name


def test_comparison_against_resampling_written_out() -> None:
    a, target = draw_logits(400, 4, overconfidence=1.3)
    b = a / 1.3 + 0.3 * torch.randn(a.shape, generator=torch.Generator().manual_seed(5))
    result = M.compare(a, b, target)
    rng = np.random.default_rng(1)
    picks = [torch.from_numpy(rng.integers(400, size=400)) for _ in range(300)]
    resampled = [[M.evaluate(logits[pick], target[pick]) for logits in (a, b)] for pick in picks]
    whole = [M.evaluate(logits, target) for logits in (a, b)]
    for name in ("error", "nll", "brier", "ece", "classwise_ece", "adaptive_ece", "aurc"):
        d = result.differences[name]
        assert [d.a, d.b] == [getattr(evaluation, name) for evaluation in whole], name
        drawn = np.array([getattr(of_b, name) - getattr(of_a, name) for of_a, of_b in resampled])
        spread = drawn.std()
        deviations = drawn - drawn.mean()
        assert d.low == pytest.approx(d.difference - np.quantile(deviations, 0.95), abs=0.3 * spread), name
        assert d.high == pytest.approx(d.difference - np.quantile(deviations, 0.05), abs=0.3 * spread), name


def test_comparison_of_debiased_errors_takes_the_noise_of_resampling_out() -> None:
    """The squared errors of the draws are centred on those of the samples, then their roots are compared."""
    logits, target = draw_logits(400, 4, overconfidence=1.3)
    models = [logits.double().softmax(1).max(1), (logits.double() / 1.3).softmax(1).max(1)]
    d = M.compare(logits, logits / 1.3, target).differences["debiased_ece"]

    def squared_errors(pick: torch.Tensor) -> list[float]:
        bins = [M.BinStats.from_confidence(c[pick], (guess == target)[pick]) for c, guess in models]
        return [float(stats.squared_error()) for stats in bins]

    rng = np.random.default_rng(1)
    drawn = np.array([squared_errors(torch.from_numpy(rng.integers(400, size=400))) for _ in range(600)])
    centred = drawn - drawn.mean(0) + squared_errors(torch.arange(400))
    differences = np.sqrt(centred.clip(0)) @ [-1, 1]
    low, high = np.quantile(differences, [0.05, 0.95])
    assert (d.low, d.high) == pytest.approx((low, high), abs=0.3 * differences.std())


def test_blocks_vary_as_single_samples_do(monkeypatch) -> None:
    a, target = draw_logits(3000, 4, overconfidence=1.3)
    b = a / 1.3 + 0.3 * torch.randn(a.shape, generator=torch.Generator().manual_seed(5))
    single = M.compare(a, b, target).differences
    monkeypatch.setattr("dualfocal.metrics.resampling.MOST_UNITS", 500)
    blocks = M.compare(a, b, target).differences
    for name, d in single.items():
        width = d.high - d.low
        assert blocks[name].low == pytest.approx(d.low, abs=0.2 * width), name
        assert blocks[name].high == pytest.approx(d.high, abs=0.2 * width), name


def test_comparison_finds_the_better_model() -> None:
    a, target = draw_logits(3000, 5, overconfidence=1.5)
    logits, probs = M.Samples.from_arrays(a, target), M.Samples.from_arrays((a / 1.5).softmax(1), target, input="probs")
    result = M.compare(logits, probs)
    for name in ("nll", "brier", "ece", "adaptive_ece", "classwise_ece", "debiased_ece"):
        assert result.differences[name].high < 0, name
    assert not result.differences["error"].significant
    assert "B has the lower NLL" in result.verdict()
    assert "B has the lower debiased RMS error" in result.verdict()
    assert "error not significantly different" in result.verdict()
    swapped = M.compare(probs, logits)
    assert "A has the lower NLL" in swapped.verdict()
    assert json.loads(json.dumps(result.to_dict()))["differences"]["nll"]["difference"] < 0
    assert str(result).splitlines()[-1] == result.verdict()


def test_a_model_is_not_significantly_different_from_itself() -> None:
    a, target = draw_logits(300, 3)
    result = M.compare(a, a, target)
    assert all(d.difference == d.low == d.high == 0 for d in result.differences.values())
    assert not any(d.significant for d in result.differences.values())
    assert result.verdict().count("not significantly different") == 3


def test_progress_rises_to_1() -> None:
    shares = []
    M.compare(*[draw_logits(300, 3)[0]] * 2, draw_logits(300, 3)[1], progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_interval_of_a_sure_and_right_model_has_room_for_errors() -> None:
    """50 right answers at confidence .9999 do not show an error below .0001: one in 20 could be wrong all the same."""
    for confidence in (0.9999, 1.0):
        probs = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(50, 2)
        low, high = M.evaluate(
            probs, torch.zeros(50, dtype=torch.int64), input="probs", inference=True
        ).inference.debiased_ece
        assert low == 0
        assert 0.04 < high < 0.2


def test_interval_has_room_for_bins_with_a_single_sample() -> None:
    """Only bins with two samples count in the estimate, but three wrong samples in bins of their own are no proof."""
    confidence = torch.tensor([0.999] * 297 + [0.5, 0.6, 0.7], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], dim=1)
    target = torch.tensor([0] * 297 + [1] * 3)
    _, high = M.evaluate(probs, target, input="probs", inference=True).inference.debiased_ece
    assert high > 0.03  # a gap of 0.3 in 1 % of the samples


def test_interval_covers_for_confident_models() -> None:
    """Confidence .99, accuracy .97, N = 100: 60 samples, nominal 90 %."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.tensor([[0.99, 0.01]], dtype=torch.float64).expand(100, 2)
    hits = 0
    for seed in range(60):
        target = (torch.rand(100, generator=generator) > 0.97).long()
        low, high = M.evaluate(probs, target, input="probs", inference=True, seed=seed).inference.debiased_ece
        hits += low <= 0.02 <= high
    assert hits >= 47


def squared(bins: M.BinStats) -> float:
    """Sum over bins of |B|/N times the squared gap."""
    return float((bins.gap**2 / np.maximum(bins.count, 1)).sum() / bins.count.sum())


def certain(confidence: float, n: int, wrong: int) -> M.Evaluation:
    probs = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(n, 2)
    return M.evaluate(probs, (torch.arange(n) < wrong).long(), input="probs", inference=True)


@for_each(
    "confidence, n, wrong, p",
    [
        (1.0, 1000, 1, 0.0),  # which is impossible
        (1.0, 1_000_000, 1, 0.0),
        (1.0, 3, 1, 0.0),
        (1.0, 1, 1, 0.0),
        (1 - 1e-6, 10_000, 1, 1 - (1 - 1e-6) ** 10_000),
        (1 - 3e-6, 10_000, 1, 1 - (1 - 3e-6) ** 10_000),
        (1 - 1e-3, 100, 1, 1 - (1 - 1e-3) ** 100),
        (1.0, 1000, 0, 1.0),
        (1 - 1e-6, 10_000, 0, 1.0),
    ],
)
def test_a_single_error_of_a_certain_model_counts(confidence, n, wrong, p) -> None:
    """In one bin, S grows with the number of errors: its p-value is the chance of so many."""
    result = certain(confidence, n, wrong)
    assert result.inference.p_value == pytest.approx(p, abs=0.002 + 4 * math.sqrt(p * (1 - p) / 1000))
    assert result.inference.p_value >= 1 / 1001 or p == 0  # the sample itself is one of 1000 draws and one
    significant = result.inference.adjusted[0] <= 0.05
    assert significant == (p <= 0.026)  # two tests
    assert ("Over-confident: " if significant else "No miscalibration detectable") in result.verdict()
    assert " 0.0 points" not in result.verdict() or wrong == 0


@for_each(confidence=[0.7, 0.99, 0.9999])
def test_false_alarms_are_rare(confidence) -> None:
    """300 calibrated samples of N = 200, all in one bin: at 5 %, more than 8 % would be a wonder of 1 in 100."""
    rng = np.random.default_rng(0)
    wrong = rng.binomial(200, 1 - confidence, size=300).tolist()
    alarms = {k: certain(confidence, 200, k).inference.p_value <= 0.05 for k in set(wrong)}
    assert np.mean([alarms[k] for k in wrong]) <= 0.08


def test_ties_of_the_statistics_are_ties() -> None:
    """Few confidences, few samples: draws often repeat the observed outcome, which must count as "as rare"."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        confidence = rng.choice([0.6, 0.7, 0.8, 0.9, 0.95], size=14)
        probs = torch.from_numpy(np.stack([confidence, 1 - confidence], 1))
        right = rng.random(14) < confidence
        result = M.evaluate(probs, torch.from_numpy(~right).long(), input="probs", inference=True)
        outcomes = np.concatenate([right[None], rng.random((1000, 14)) < confidence])
        in_bin = np.ceil(confidence * 15 - 1e-9)[:, None] == np.arange(1, 16)
        gaps = (confidence - outcomes) @ in_bin  # (1001, 15)
        squares = np.stack([(gaps**2 / in_bin.sum(0).clip(1)).sum(1) / 14, gaps.sum(1) ** 2], 1)
        observed, null = squares[0], squares[1:]
        assert observed[0] == pytest.approx(squared(result.bins))
        as_large = null >= observed * (1 - 1e-7) - 1e-12
        p_value = result.inference.p_value
        assert as_large.all(1).mean() - 0.07 <= p_value <= 2 * as_large.mean(0).min() + 0.07, seed
        smaller = (null < observed * (1 - 1e-7) - 1e-12).all(1).mean()  # less rare than the data by either square
        assert p_value <= 1 - smaller + 0.07, seed


def test_a_small_gap_everywhere_is_detected() -> None:
    """Nearly calibrated networks have one: in the squares of 15 bins it drowns in the noise of the lower bins."""
    rng = np.random.default_rng(0)
    confidence = np.where(rng.random(5000) < 0.87, 0.985, rng.uniform(0.3, 0.95, 5000))
    probs = torch.from_numpy(np.stack([confidence, *[(1 - confidence) / 4] * 4], 1))
    null = [squared(M.BinStats.from_confidence(probs[:, 0], rng.random(5000) < confidence)) for _ in range(400)]
    detections = by_bins = 0
    for seed in range(25):
        right = rng.random(5000) < confidence - 0.008
        target = torch.from_numpy(np.where(right, 0, 1))
        result = M.evaluate(probs, target, input="probs", inference=True, seed=seed, draws=400)
        detections += result.inference.p_value <= 0.05
        low, _ = result.inference.debiased_ece
        assert (low > 0) == (result.inference.p_value < 0.1)  # the interval agrees with the test
        by_bins += np.mean(np.array(null) >= squared(result.bins)) <= 0.05
    assert (detections >= 15, by_bins <= 10) == (True, True), (detections, by_bins)


def test_many_classes_and_many_bins_stay_small(monkeypatch) -> None:
    logits, target = draw_logits(300, 40)
    whole = M.evaluate(logits, target, inference=True).inference
    monkeypatch.setattr("dualfocal.metrics.classwise.MOST_NUMBERS", 40 * 16 * 30)
    parts = M.evaluate(logits, target, inference=True).inference
    assert parts.floors["classwise_ece"].mean == pytest.approx(whole.floors["classwise_ece"].mean, rel=0.02)
    result = M.evaluate(*draw_logits(300, 3), num_bins=5000, inference=True)
    assert result.inference.floors["ece"].mean == pytest.approx(result.ece, rel=0.1)  # calibrated


def test_comparison_of_few_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 10 samples, got 9"):
        M.compare(torch.zeros(9, 2), torch.ones(9, 2), torch.zeros(9, dtype=torch.int64))


def test_resampled_aurc_of_ties() -> None:
    """All equally confident: the AURC of a draw is its error, whatever the order."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.tensor([[0.8, 0.2]]).expand(500, 2)
    target = torch.bernoulli(torch.full((500,), 0.2), generator=generator).long()
    differences = M.compare(probs, probs.flip(1), target, input="probs").differences
    aurc, error = differences["aurc"], differences["error"]
    assert (aurc.low, aurc.difference, aurc.high) == pytest.approx((error.low, error.difference, error.high))
