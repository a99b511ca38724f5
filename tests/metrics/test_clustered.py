"""States of sums by cluster: against the evaluation of the samples themselves, and against loops over pixels."""

import json
import math

import numpy as np
import pytest
import torch

from dualfocal import metrics as M
from dualfocal.calibrators import compare_calibrators


def images(number: int = 60, num_classes: int = 3, side: int = 12, seed: int = 0, sharpness: float = 1.0):
    """Logits and labels of images whose pixels are right or wrong together."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(number, num_classes, 1, 1, generator=generator)
    logits = 1.5 * (common + 0.7 * torch.randn(number, num_classes, side, side, generator=generator))
    uniform = torch.rand(number, 1, 1, generator=generator) * 0.7 + 0.3 * torch.rand(
        number, side, side, generator=generator
    )
    target = (logits.softmax(1).cumsum(1) <= uniform[:, None]).sum(1).clamp_max(num_classes - 1)
    return sharpness * logits, target


def numbers(result: M.Evaluation) -> dict[str, float]:
    """The metrics, floors, p-values and the interval of an evaluation, but for what a state approximates."""
    approximate = ("aurc", "adaptive_ece")
    return {name: x for name, x in result.scalars().items() if not name.startswith(approximate)}


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
def test_evaluation_is_that_of_the_rows(sharpness):
    logits, target = images(sharpness=sharpness)
    rows = M.evaluate(logits, target, inference=True, clusters=np.arange(len(logits)))
    state = M.ClusteredPredictions.from_predictions(logits, target).evaluate()
    exact, binned = numbers(rows), numbers(state)
    assert exact.keys() == binned.keys()
    random = ("classwise_p_value", "classwise_ece_floor", "p_value")  # other draws of the independent part
    for name, value in exact.items():
        tolerance = 0.02 if name in random else 3e-3 if name.startswith("debiased_ece_") else 1e-3
        assert binned[name] == pytest.approx(value, abs=tolerance, rel=1e-3), name
    assert state.adaptive_ece == pytest.approx(rows.adaptive_ece, abs=state.bounds["adaptive_ece"])
    floors = [result.inference.floors["adaptive_ece"].mean for result in (rows, state)]
    assert floors[1] == pytest.approx(floors[0], rel=0.05)
    assert state.inference.clusters.effective == pytest.approx(rows.inference.clusters.effective)
    assert state.verdict().split(":")[0] == rows.verdict().split(":")[0]


def test_sums_by_a_loop_over_pixels():
    logits, target = images(number=40, side=6)
    logits = logits + torch.tensor([1.5, 0.0, -1.0])[:, None, None]
    num_bins, probs = 5, logits.double().softmax(1)
    top, sizes = np.zeros((40, num_bins)), np.zeros((40, num_bins))
    residuals = np.zeros((40, 36))
    for i in range(40):
        for y in range(6):
            for x in range(6):
                p = probs[i, :, y, x].tolist()
                residual = max(p) - (p.index(max(p)) == int(target[i, y, x]))
                b = min(max(math.ceil(max(p) * num_bins) - 1, 0), num_bins - 1)
                top[i, b] += residual
                sizes[i, b] += 1
                residuals[i, 6 * y + x] = residual
    result = M.ClusteredPredictions.from_predictions(logits.double(), target, num_bins=num_bins).evaluate()
    n, gap = sizes.sum(0), top.sum(0)
    members = np.count_nonzero(sizes, axis=0)
    noise = ((top - sizes * gap / np.maximum(n, 1)) ** 2).sum(0) * members / np.maximum(members - 1, 1)
    squares = ((gap**2 - noise) / np.maximum(n, 1))[members > 1].sum() / n.sum()
    assert result.debiased_ece == pytest.approx(math.sqrt(max(squares, 0)), abs=1e-6)
    centred = residuals - residuals.mean()
    effect = (centred.sum(1) ** 2).sum() * 40 / 39 / ((centred**2).sum() * 1440 / 1439)
    assert result.inference.clusters.design_effect == pytest.approx(effect, rel=1e-3)
    rows = M.evaluate(logits.double(), target, num_bins=num_bins, inference=True)
    assert len(rows.inference.classwise.gaps) > 1
    for one, other in zip(result.inference.classwise.gaps, rows.inference.classwise.gaps, strict=True):
        assert (one.index, one.among_predicted) == (other.index, other.among_predicted)
        assert (one.probability, one.share) == pytest.approx((other.probability, other.share))
        assert one.p_value == pytest.approx(other.p_value, abs=0.01)


def test_states_merge_exactly_and_a_cluster_may_come_in_parts():
    logits, target = images(number=6)
    whole = M.ClusteredPredictions.from_predictions(logits, target, list("abcdef"))
    first = M.ClusteredPredictions.from_predictions(logits[:3], target[:3], list("abc"))
    second = M.ClusteredPredictions.from_predictions(logits[3:], target[3:], list("def"))
    assert first + second == second + first == whole
    upper, lower = M.ClusteredPredictions(), M.ClusteredPredictions()
    for i, name in enumerate("abcdef"):
        upper.update(logits[i : i + 1, :, :5], target[i : i + 1, :5], name)
        lower.update(logits[i : i + 1, :, 5:], target[i : i + 1, 5:], name)
    assert upper + lower == whole
    assert (upper + lower).num_clusters == 6
    assert upper + M.ClusteredPredictions() == upper
    assert first != second


def test_confidences_are_evaluated_like_those_of_evaluate():
    logits, target = images()
    probs = logits.double().softmax(1)
    confidence, guess = (x.flatten() for x in probs.max(1))
    right = guess == target.flatten()
    cluster = np.repeat(np.arange(len(logits)), 144)
    rows = M.evaluate(confidence, right.long(), input="confidence", inference=True, clusters=cluster)
    state = M.ClusteredConfidences()
    for part in torch.arange(len(confidence)).split(1000):  # cuts through images
        nll = -probs.movedim(1, -1).reshape(-1, 3)[part].gather(1, target.flatten()[part, None])[:, 0].log()
        state.update(confidence[part], right[part], cluster[part], nll=nll)
    result = state.evaluate()
    exact, binned = numbers(rows), numbers(result)
    assert binned.pop("nll") == pytest.approx(float(M.nll(logits.double(), target)))
    assert exact.keys() == binned.keys()
    for name, value in exact.items():
        assert binned[name] == pytest.approx(value, abs=0.02 if name == "p_value" else 3e-3), name
    assert result.confidence_only
    assert math.isnan(result.brier)
    assert "Only the confidence of the predicted class was tested" in result.verdict()
    assert M.Evaluation.from_dict(result.to_dict()).nll == result.nll


def test_parts_of_confidences_merge_exactly():
    rng = np.random.default_rng(0)
    confidence, cluster = rng.uniform(size=500), rng.integers(0, 20, 500)
    right, brier = rng.uniform(size=500) < confidence, rng.uniform(size=500)
    whole, first, second, unscored = (M.ClusteredConfidences() for _ in range(4))
    whole.update(confidence, right, cluster, brier=brier)
    first.update(confidence[:200], right[:200], cluster[:200], brier=brier[:200])
    second.update(confidence[200:], right[200:], cluster[200:], brier=brier[200:])
    assert first + second == second + first == whole
    unscored.update(confidence[200:], right[200:], cluster[200:])
    assert math.isnan((first + unscored).evaluate(inference=False).brier)
    assert whole.evaluate(inference=False).brier == pytest.approx(brier.mean())


def test_very_many_clusters_are_grouped_in_any_order(monkeypatch):
    monkeypatch.setattr("dualfocal.metrics.inference.cluster_noise.MOST_CLUSTERS", 64)
    logits, target = images(number=200, side=4)
    whole = M.ClusteredPredictions.from_predictions(logits, target)
    parts = [
        M.ClusteredPredictions.from_predictions(logits[part], target[part], part.tolist())
        for part in (torch.arange(150), torch.arange(150, 200))
    ]
    assert parts[0] + parts[1] == parts[1] + parts[0] == whole
    assert whole.clusters.stacked().shape[0] == 64
    rows = M.evaluate(logits, target, inference=True, clusters=np.arange(200))
    summary = whole.evaluate().inference.clusters
    assert summary.number == 200
    assert summary.design_effect == pytest.approx(rows.inference.clusters.design_effect, rel=0.5)


def test_bad_input_is_refused_and_nothing_is_added():
    logits, target = images(number=2)
    state = M.ClusteredPredictions()
    state.update(logits[:1], target[:1], 0)
    with pytest.raises(ValueError, match="needs at least two"):
        state.evaluate()
    assert state.evaluate(inference=False).num_samples == 144
    with pytest.raises(ValueError, match="numbers of classes"):
        state.update(logits[:1, :2], target[:1].clamp_max(1), 1)
    with pytest.raises(ValueError, match="whole number or a text"):
        state.update(logits[:1], target[:1], 0.5)
    with pytest.raises(ValueError, match="need clusters"):
        M.ClusteredPredictions.from_predictions(logits[0].flatten(1).T, target[0].flatten())
    state.update(logits[1:], torch.full_like(target[1:], 255), 1, ignore_index=255)
    assert (state.num_samples, state.num_clusters) == (144, 1)
    with pytest.raises(ValueError, match="no samples"):
        M.ClusteredPredictions().evaluate()
    confidences = M.ClusteredConfidences()
    with pytest.raises(ValueError, match=r"nll must have shape \(2,\)"):
        confidences.update([0.5, 0.6], [0, 1], "a", nll=[0.1])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        confidences.update([0.5, 1.6], [0, 1], "a")
    assert confidences.num_samples == 0


def test_images_are_clusters_by_default_with_inference():
    logits, target = images(number=30)
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
    alone = target.clone()
    alone[1:] = -100
    with pytest.raises(ValueError, match="lie in one cluster"):
        M.evaluate(logits, alone, inference=True)


def test_comparisons_resample_images_by_default():
    logits, target = images(number=30)
    comparison = M.compare(logits, 0.7 * logits, target)
    assert comparison.num_clusters == 30
    assert M.compare(logits, 0.7 * logits, target, clusters="none").num_clusters is None
    with pytest.raises(ValueError, match=r"at least 10 clusters .* got 5"):
        M.compare(logits[:5], logits[:5], target[:5])
    assert compare_calibrators(logits, target, ["temperature"], repeats=1).num_clusters == 30


@pytest.mark.parametrize("most_clusters", [4096, 64])
def test_states_survive_json_and_merge_afterwards(monkeypatch, most_clusters):
    monkeypatch.setattr("dualfocal.metrics.inference.cluster_noise.MOST_CLUSTERS", most_clusters)
    logits, target = images(number=100, side=4)
    names = [i if i % 2 else f"image {i}" for i in range(100)]
    predictions = [M.ClusteredPredictions(), M.ClusteredPredictions()]
    confidences = [M.ClusteredConfidences(), M.ClusteredConfidences()]
    for i, name in enumerate(names):
        predictions[i % 2].update(logits[i : i + 1], target[i : i + 1], name)
        confidence, guess = logits[i].softmax(0).flatten(1).max(0)
        confidences[i % 2].update(confidence, guess == target[i].flatten(), name, nll=1 / confidence)
    for first, second in (predictions, confidences):
        read = [type(first).from_dict(json.loads(json.dumps(state.to_dict()))) for state in (first, second)]
        assert read == [first, second]
        merged = read[0] + read[1]
        assert merged == first + second
        assert merged.evaluate().to_dict() == (first + second).evaluate().to_dict()


def test_states_without_samples_survive_json():
    for kind in (M.ClusteredPredictions, M.ClusteredConfidences):
        assert kind.from_dict(kind(7).to_dict()) == kind(7)


def test_a_state_that_contradicts_itself_is_not_read():
    state = M.ClusteredConfidences()
    state.update([0.5, 0.6], [0, 1], ["a", "b"])
    content = state.to_dict()
    with pytest.raises(ValueError, match="the clusters hold 1 samples, but there are 2"):
        M.ClusteredConfidences.from_dict(content | {"clusters": content["clusters"] | {"value": [1, 0, 0, 0, 0]}})
    with pytest.raises(ValueError, match="schema 7"):
        M.ClusteredConfidences.from_dict(content | {"schema": 7})
