"""CalibrationSums: sums of any parts, in any order, have the numbers of all samples."""

import json
import math

import numpy as np
import pytest
import torch
from case_loops import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import draw_images, draw_logits
from torch import Tensor

from dualfocal import metrics as M
from dualfocal.metrics import CalibrationSums

EXACT = (
    "num_samples", "num_bins", "num_classes", "error", "nll", "brier", "brier_calibration", "brier_refinement", "ece",
    "mce", "classwise_ece", "debiased_ece", "confidence", "accuracy",
)  # fmt: skip
make = CalibrationSums.from_predictions


def in_parts(values, target, seed: int = 0, parts: int = 4, **options) -> CalibrationSums:
    """Add the sums of random parts of the samples, in random order; empty parts are left out."""
    rng = np.random.default_rng(seed)
    part = rng.integers(parts, size=len(target))
    clusters = options.pop("clusters", None)
    sums = []
    for k in rng.permutation(np.unique(part)):
        index = rng.permutation(np.flatnonzero(part == k))
        own = {} if clusters is None else {"clusters": np.asarray(clusters)[index]}
        sums.append(make(values[torch.from_numpy(index)], target[torch.from_numpy(index)], **own, **options))
    return sum(sums)


def check(sums: CalibrationSums, expected: M.Evaluation, fine: bool = True) -> None:
    """Compare an evaluation of sums with that of the samples; ``fine``: also what comes from fine bins."""
    result = sums.evaluate(inference=False)
    for name in EXACT:
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=0, abs=1e-12, nan_ok=True), name
    np.testing.assert_array_equal(result.bins.count, expected.bins.count)
    np.testing.assert_array_equal(result.bins.correct, expected.bins.correct)
    for name, error in (("aurc", 0.02), ("adaptive_ece", 0.2)):  # small beside the noise of the metric
        close = pytest.approx(getattr(expected, name), abs=error / math.sqrt(expected.num_samples))
        assert not fine or getattr(result, name) == close, name
    assert (result.streamed, result.positive, result.confidence_only) == (
        True,
        expected.positive,
        expected.confidence_only,
    )


def saved(sums: CalibrationSums) -> CalibrationSums:
    """Write sums as JSON and read them again."""
    return CalibrationSums.from_dict(json.loads(json.dumps(sums.to_dict(), allow_nan=False)))


# The numbers of evaluate


@for_each(
    shape=[(1, 2), (300, 2), (500, 10), (150, 100)],
    num_bins=[1, 15, 100],
    dtype=[torch.float16, torch.float32, torch.float64],
    input=["logits", "probs"],
)
def test_any_split_in_any_order_has_the_numbers_of_all_samples(shape, num_bins, dtype, input) -> None:
    logits, target = draw_logits(*shape, scale=3.0, overconfidence=1.3)
    if input == "probs" and dtype == torch.float16 and shape[1] > 2:
        return  # rows would not sum to 1
    values = logits.to(dtype) if input == "logits" else logits.double().softmax(1).to(dtype)
    options = {"input": input, "num_bins": num_bins}
    for seed in range(2):
        check(in_parts(values, target, seed, **options), M.evaluate(values, target, **options), fine=num_bins < 100)


@for_each(scale_and_sharpness=[(1.0, 1.0), (3.0, 2.0), (60.0, 1.0)], binary=[None, "positive"])
def test_adaptive_bins_and_aurc_are_close(scale_and_sharpness, binary) -> None:
    """With scale 60, most confidences are above 0.9999."""
    scale, sharp = scale_and_sharpness
    data = draw_logits(50_000, 2 if binary else 10, scale=scale, overconfidence=sharp)
    expected = M.evaluate(*data, binary=binary)
    check(make(*data, binary=binary), expected)
    result = make(*data, binary=binary).evaluate(inference=False)
    assert result.aurc == pytest.approx(expected.aurc, abs=4e-5, rel=1e-3)
    assert result.adaptive_ece == pytest.approx(expected.adaptive_ece, abs=6e-4)


@for_each(num_bins=[2, 4, 5, 15], sizes=[[100, 100, 100, 100], [50, 20, 200, 130], [3, 300, 5, 90]])
def test_adaptive_bins_of_few_confidences_are_those_of_the_samples(num_bins, sizes) -> None:
    confidence = np.repeat([0.3, 0.5, 0.7, 0.9], sizes)
    right = (np.random.default_rng(0).random(len(confidence)) < np.repeat([0.5, 0.3, 0.9, 0.6], sizes)).astype(int)
    options = {"input": "confidence", "num_bins": num_bins}
    check(
        in_parts(torch.from_numpy(confidence), torch.from_numpy(right), **options),
        M.evaluate(confidence, right, **options),
    )
    result = make(confidence, right, **options).evaluate(inference=False)
    expected = M.evaluate(confidence, right, **options)
    assert (result.adaptive_ece, result.aurc) == pytest.approx((expected.adaptive_ece, expected.aurc), abs=1e-12)


@for_each(dtype=[torch.float32, torch.float64], num_bins=[1, 3, 5, 15])
def test_ties_edges_and_certainty(dtype, num_bins) -> None:
    p = torch.tensor([0.0, 1.0, 0.5, 0.2, 1 / 3, 0.6, 0.6, 2 / 3, 1 - 2.0**-20, 1.0, 0.8], dtype=dtype)
    probs, target = torch.stack([1 - p, p], 1), torch.tensor([0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1])
    for binary in (None, "positive"):
        options = {"input": "probs", "num_bins": num_bins, "binary": binary}
        expected = M.evaluate(probs, target, **options)
        check(in_parts(probs, target, **options), expected, fine=False)
        if dtype == torch.float64:  # in float32, 1 - 1/3 is not 2/3
            assert make(probs, target, **options).evaluate(inference=False).aurc == pytest.approx(expected.aurc)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.2, 0.5, 1.0])), st.booleans()), min_size=1),
    num_bins=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_confidences_in_any_split(pairs, num_bins, seed) -> None:
    confidence, right = torch.tensor(pairs, dtype=torch.float64).T
    options = {"input": "confidence", "num_bins": num_bins}
    check(
        in_parts(confidence, right.long(), seed, **options), M.evaluate(confidence, right.long(), **options), fine=False
    )


def test_infinite_likelihoods_and_ignored_samples() -> None:
    probs, target = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]]), torch.tensor([1, -100, 1])
    sums = make(probs, target, input="probs") + make(probs[2:], target[2:], input="probs")
    assert (sums.num_samples, sums.infinite_nll) == (3, 1)
    assert sums.evaluate(inference=False).nll == math.inf
    assert sums.nll == pytest.approx(-2 * math.log(0.7))


def test_one_score_per_sample_and_dense_predictions() -> None:
    logits, target = draw_logits(60, 2)
    score = (logits[:, 1] - logits[:, 0]).double()
    for binary in ("top_label", "positive"):
        check(in_parts(score, target, binary=binary), M.evaluate(score, target, binary=binary))
    check(make(logits.view(6, 10, 2).movedim(2, 1), target.view(6, 10)), M.evaluate(logits, target))


def test_bins_of_classes_by_a_loop() -> None:
    """(class, whether it is the predicted one, bin): number, sum of p, labels, sum of p (1 - p)."""
    for num_classes in (4, 70):  # few classes are scanned by class, many by row
        logits, target = draw_logits(100, num_classes, dtype=torch.float64)
        expected = np.zeros((4, num_classes, 2, 15))
        for p, y in zip(logits.softmax(1).tolist(), target.tolist(), strict=True):
            for c, q in enumerate(p):
                expected[:, c, int(q == max(p)), max(math.ceil(q * 15) - 1, 0)] += [1, q, c == y, q * (1 - q)]
        classes = in_parts(logits, target).classes
        got = [classes.count, classes.confidence, classes.correct, classes.variance]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


# Inference


@for_each(kind=["classes", "two", "positive", "confidence", "clusters"])
def test_inference_is_that_of_the_samples_whatever_the_order(kind) -> None:
    values, target = draw_logits(2000, 2 if kind in ("two", "positive") else 5, overconfidence=1.1)
    options = {"binary": "positive"} if kind == "positive" else {}
    if kind == "confidence":
        p = values.double().softmax(1)
        values, target, options = p.amax(1), (p.argmax(1) == target).long(), {"input": "confidence"}
    if kind == "clusters":
        options = {"clusters": [f"text {i % 90}" for i in range(2000)]}
    expected = M.evaluate(values, target, inference=True, **options)
    results = [make(values, target, **options).evaluate()]
    results += [in_parts(values, target, seed, **options).evaluate() for seed in (0, 1)]
    for result in results:
        exact, got = expected.scalars(), result.scalars()
        assert exact.keys() == got.keys()
        for name, value in exact.items():
            close = {"rel": 0.1} if name.startswith(("aurc", "adaptive_ece")) else {"abs": 1e-9}
            assert got[name] == pytest.approx(value, **close), name
        assert result.inference.detectable == pytest.approx(expected.inference.detectable)
        assert result.inference.clusters == expected.inference.clusters or kind == "clusters"
        assert result.verdict() == expected.verdict()


def test_overconfidence_and_a_wrong_class_are_found() -> None:
    assert make(*draw_logits(3000, 4, overconfidence=1.5)).evaluate().verdict().startswith("Over-confident")
    rng = np.random.default_rng(0)
    z = np.log([0.4, 0.3, 0.2, 0.04, 0.03, 0.03]) + 1.2 * rng.standard_normal((1000, 6))
    target = (z + rng.gumbel(size=z.shape)).argmax(1)
    result = make(z + np.array([-0.3, -0.1, 0.0, 1.3, 0.0, 0.0]), target).evaluate()
    for text in ("no miscalibration", "Class probabilities: miscalibrated", "class 3"):
        assert text in result.verdict()
    assert result.inference.joint_p_value == pytest.approx(5 * result.inference.classwise.p_value)


def test_a_seed_gives_the_same_result_again() -> None:
    sums = make(*draw_logits(500, 3))
    assert sums.evaluate(seed=4).to_dict() == sums.evaluate(seed=4).to_dict()
    assert sums.evaluate(seed=4).to_dict() != sums.evaluate(seed=5).to_dict()


# Confidences with scores


def confidences(n: int = 500, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    confidence = torch.from_numpy(rng.uniform(0.2, 1, n))
    right = torch.from_numpy(rng.random(n)) < confidence
    return {"confidence": confidence, "right": right, "nll": -confidence.log(), "brier": (1 - confidence) ** 2}


def test_confidences_with_scores() -> None:
    columns = confidences()
    expected = M.evaluate(columns["confidence"], columns["right"].long(), input="confidence")
    sums = [
        CalibrationSums.from_confidences(**{name: x[part] for name, x in columns.items()})
        for part in torch.arange(500).split(190)
    ]
    result = (sums[2] + (sums[0] + sums[1])).evaluate(inference=False)
    assert (result.nll, result.brier) == pytest.approx([float(columns[name].mean()) for name in ("nll", "brier")])
    assert (result.ece, result.mce) == pytest.approx((expected.ece, expected.mce), rel=0, abs=1e-12)
    assert result.debiased_ece == pytest.approx(expected.debiased_ece, rel=0, abs=1e-12)
    assert result.error == pytest.approx(expected.error, rel=0, abs=1e-12)
    assert result.confidence_only
    del columns["nll"]
    some = (sums[0] + CalibrationSums.from_confidences(**columns)).evaluate(inference=False)
    assert math.isnan(some.nll)  # one part came without
    assert some.brier > 0
    del columns["brier"]
    check(CalibrationSums.from_confidences(**columns), expected)
    infinite = CalibrationSums.from_confidences([0.9, 0.8], [0, 1], nll=[math.inf, 0.5])
    assert (infinite.infinite_nll, infinite.nll) == (1, 0.5)
    assert saved(infinite).evaluate(inference=False).nll == math.inf


# Clusters


def test_cluster_sums_by_a_loop_over_pixels() -> None:
    logits, target = draw_images(40, side=6, sharpness=2.0)
    num_bins, probs = 5, logits.double().softmax(1)
    gap, size, residuals = np.zeros((40, num_bins)), np.zeros((40, num_bins)), np.zeros((40, 36))
    for i, y, x in np.ndindex(40, 6, 6):
        p = probs[i, :, y, x].tolist()
        residual = max(p) - (p.index(max(p)) == int(target[i, y, x]))
        gap[i, max(math.ceil(max(p) * num_bins) - 1, 0)] += residual
        size[i, max(math.ceil(max(p) * num_bins) - 1, 0)] += 1
        residuals[i, 6 * y + x] = residual
    total, n, members = gap.sum(0), size.sum(0), np.count_nonzero(size, axis=0)
    noise = ((gap - size * total / np.maximum(n, 1)) ** 2).sum(0) * members / np.maximum(members - 1, 1)
    square = ((total**2 - noise) / np.maximum(n, 1))[members > 1].sum() / n.sum()
    centred, sums = residuals - residuals.mean(), (residuals - residuals.mean()).sum(1)
    effect = (sums**2).sum() * 40 / 39 / ((centred**2).sum() * 1440 / 1439)
    effective = min(40, 3 * (sums**2).sum() ** 2 / (sums**4).sum())
    result = make(logits.double(), target, num_bins=num_bins, clusters=np.arange(40)).evaluate()
    assert result.debiased_ece == pytest.approx(math.sqrt(square), abs=1e-12)
    summary = result.inference.clusters
    assert (summary.number, summary.design_effect, summary.effective) == pytest.approx((40, effect, effective))


def test_class_sums_of_clusters_by_a_loop() -> None:
    """Sums of (p - y) by cluster, class and bin, and of the samples predicted as the class."""
    logits, target = draw_logits(200, 4, dtype=torch.float64)
    expected = np.zeros((10, 4, 16))
    for i, (p, y) in enumerate(zip(logits.softmax(1).tolist(), target.tolist(), strict=True)):
        for c, q in enumerate(p):
            expected[i // 20, c, max(math.ceil(q * 15) - 1, 0)] += q - (c == y)
            expected[i // 20, c, 15] += (q == max(p)) * (q - (c == y))
    for values in ({"logits": logits}, {"logits": logits.softmax(1), "input": "probs"}):
        sums = make(target=target, clusters=np.arange(200) // 20, **values)
        np.testing.assert_allclose(sums.clusters.classes, expected, rtol=0, atol=1e-12)


def test_a_cluster_may_come_in_parts() -> None:
    logits, target = draw_images(60, 3)
    names = [f"image {i}" for i in range(60)]
    whole = make(logits, target, clusters=names)
    upper, lower = (
        sum(make(logits[i : i + 1, :, rows], target[i : i + 1, rows], clusters=names[i]) for i in order)
        for rows, order in ((slice(5), range(60)), (slice(5, None), reversed(range(60))))
    )
    for merged in (upper + lower, lower + upper):
        assert merged.num_clusters == 60
        assert merged.evaluate().scalars() == pytest.approx(whole.evaluate().scalars(), abs=1e-9)
    rows = M.evaluate(logits, target, inference=True, clusters=names)
    check(upper + lower, rows)
    assert upper.evaluate(inference=False).debiased_ece != rows.debiased_ece
    plain = whole.without_clusters().evaluate()
    assert plain.inference.clusters is None
    assert plain.inference.floors["ece"].mean < rows.inference.floors["ece"].mean


def test_clusters_of_ignored_samples_are_left_out() -> None:
    logits, target = draw_logits(300, 3)
    names = np.arange(300) // 5
    target[torch.from_numpy(names % 4 == 0) | (torch.arange(300) % 7 == 0)] = -100
    expected = M.evaluate(logits, target, clusters=names, inference=True)
    result = make(logits, target, clusters=names).evaluate()
    assert result.inference.clusters.number == expected.inference.clusters.number == 45
    assert result.debiased_ece == pytest.approx(expected.debiased_ece, rel=0, abs=1e-12)
    assert result.inference.clusters.design_effect == pytest.approx(expected.inference.clusters.design_effect)


def test_confidences_of_clusters_are_evaluated_like_those_of_evaluate() -> None:
    columns, clusters = confidences(1500), np.arange(1500) // 20
    right = columns["right"].long()
    expected = M.evaluate(columns["confidence"], right, input="confidence", inference=True, clusters=clusters)
    parts = [
        CalibrationSums.from_confidences(columns["confidence"][part], columns["right"][part], clusters=clusters[part])
        for part in torch.arange(1500).split(430)  # cuts through clusters
    ]
    for merged in (sum(parts), sum(parts[::-1])):
        check(merged, expected)
        result = merged.evaluate()
        assert result.inference.p_value == pytest.approx(expected.inference.p_value)
        assert result.inference.debiased_ece == pytest.approx(expected.inference.debiased_ece)
        assert "Only the confidence of the predicted class " in result.verdict()


def test_very_many_clusters_are_folded_in_any_order() -> None:
    n = 9000
    columns, clusters = confidences(n), np.arange(n) // 2  # 4,500 clusters; the parts begin within one
    confidence, right = columns["confidence"], columns["right"]
    whole, *parts = (
        CalibrationSums.from_confidences(confidence[part], right[part], clusters=clusters[part])
        for part in (slice(n), slice(3001), slice(3001, 3003), slice(3003, n))
    )
    result = whole.evaluate()
    for a, b, c in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        for merged in ((parts[a] + parts[b]) + parts[c], parts[a] + (parts[b] + parts[c])):
            assert merged.num_clusters == 4500
            assert len(merged.clusters.keys) == len(whole.clusters.keys) <= 4096
            assert merged.evaluate().scalars() == pytest.approx(result.scalars(), abs=1e-9)
    expected = M.evaluate(confidence, right.long(), input="confidence", inference=True, clusters=clusters)
    assert (result.ece, result.error) == pytest.approx((expected.ece, expected.error))
    summaries = result.inference.clusters, expected.inference.clusters
    assert summaries[0].number == summaries[1].number == 4500
    assert summaries[0].design_effect == pytest.approx(summaries[1].design_effect, abs=0.1)
    assert result.debiased_ece == pytest.approx(expected.debiased_ece, abs=0.01)
    assert result.inference.floors["ece"].mean == pytest.approx(expected.inference.floors["ece"].mean, rel=0.1)


def test_folded_sums_of_classes_have_the_same_totals() -> None:
    logits, target = draw_logits(4500, 3)
    parts = [
        make(logits[part], target[part], clusters=np.arange(4500)[part]) for part in (slice(4000), slice(4000, None))
    ]
    merged, whole = (parts[1] + parts[0]).clusters, make(logits, target, clusters=np.arange(4500)).clusters
    order = [merged.keys.index(key) for key in whole.keys]
    for name in ("gap", "size", "classes"):
        np.testing.assert_allclose(getattr(merged, name)[order], getattr(whole, name), atol=1e-12)
    np.testing.assert_allclose(whole.classes.sum(0), sum(part.clusters.classes.sum(0) for part in parts), atol=1e-11)
    np.testing.assert_allclose(merged.moments, whole.moments)


# Files


def two_parts(kind: str) -> list[CalibrationSums]:
    """Sums of the first and of the second half of some samples."""
    number = 4600 if kind == "folded" else 300
    logits, target = draw_logits(number, 2 if kind == "positive" else 3)
    columns, names = confidences(number), [f"text {i}" for i in range(number)]
    options = {
        "classes": {"class_names": list("abc")},
        "positive": {"binary": "positive"},
        "confidence": {},
        "scores": {name: columns[name] for name in ("nll", "brier")},
        "clusters": {"clusters": [i % 40 for i in range(150)] + names[:150]},  # numbers, then texts
        "folded": {"clusters": names},
    }[kind]
    halves = (slice(number // 2), slice(number // 2, None))
    cut = [{name: x[part] if len(x) == number else x for name, x in options.items()} for part in halves]
    if kind in ("classes", "positive", "clusters"):
        return [make(logits[part], target[part], **own) for part, own in zip(halves, cut, strict=True)]
    return [
        CalibrationSums.from_confidences(columns["confidence"][part], columns["right"][part], **own)
        for part, own in zip(halves, cut, strict=True)
    ]


@for_each(kind=["classes", "positive", "confidence", "scores", "clusters", "folded"])
def test_sums_survive_json_and_merge_afterwards(kind) -> None:
    parts = two_parts(kind)
    merged = parts[0] + parts[1]
    assert (saved(parts[0]) + saved(parts[1])).to_dict() == merged.to_dict()
    assert saved(merged).to_dict() == merged.to_dict()
    result = merged.evaluate().to_dict()
    assert saved(merged).evaluate().to_dict() == result
    assert M.Evaluation.from_dict(json.loads(json.dumps(result))).to_dict() == result
    assert kind != "folded" or len(merged.clusters.keys) < merged.num_clusters == 4600


def content(clusters: bool = False) -> dict:
    sums = make(*draw_logits(50, 3), clusters=np.arange(50) % 7 if clusters else None, num_bins=4)
    return json.loads(json.dumps(sums.to_dict()))


DAMAGED = {
    "schema": ({"schema": 7}, "schema 7"),
    "negative count": ({"top__count__0": -1.0}, "count is negative"),
    "more right than samples": ({"top__correct__3": 99.0}, "correct is larger than count"),
    "not a number": ({"top__count__3": math.nan}, "count is negative"),
    "confidence above count": ({"top__confidence__3": 99.0}, "confidence"),
    "confidence of a class": ({"classes__confidence__1__0__0": -5.0}, "confidence"),
    "bins that do not fit": ({"top__count": [1.0, 2.0]}, "must have 4 bins"),
    "classes without a class": ({"classes__count__0": [[0.0] * 4, [0.0] * 4]}, "larger than count|the parts count"),
    "labels": ({"classes__correct__1__0__0": 0.0}, "the parts count"),
    "fine bins": ({"fine__1__0": 40.0}, "the parts count"),
    "edges": ({"edges": [0.0, 0.5, 0.4, 0.9, 1.0]}, "edges must increase"),
    "clusters": ({"clusters__size__2__3": 40.0}, "the parts count"),
    "a cluster without a name": ({"clusters__keys": [0, 1, 2]}, "clusters"),
    "a name without a cluster": ({"clusters__names": [0, 1]}, "clusters"),
    "clusters with other bins": ({"clusters__gap": [[0.0] * 3] * 7}, "clusters"),
    "clusters with other classes": ({"clusters__classes": [[[0.0] * 5] * 2] * 7}, "clusters"),
}


@for_each(case=DAMAGED)
def test_damaged_content_is_refused(case) -> None:
    changes, message = DAMAGED[case]
    damaged = content(clusters=any(path.startswith("clusters") for path in changes))
    CalibrationSums.from_dict(damaged)
    for path, value in changes.items():
        place, (*before, last) = damaged, path.split("__")
        for name in before:
            place = place[int(name) if isinstance(place, list) else name]
        place[int(last) if isinstance(place, list) else last] = value
    with pytest.raises(ValueError, match=message):
        CalibrationSums.from_dict(damaged)


def test_missing_content_is_refused() -> None:
    for name in content():
        with pytest.raises((KeyError, ValueError)):
            CalibrationSums.from_dict({key: value for key, value in content().items() if key != name})


# Merging and errors


def test_sums_of_other_things_do_not_merge() -> None:
    logits, target = draw_logits(20, 2)
    sums = make(logits, target, class_names=["cat", "dog"])
    others = {
        "bins": make(logits, target, num_bins=10),
        "classes": make(*draw_logits(20, 3)),
        "confidence": make([0.5, 0.9], [0, 1], input="confidence"),
        "clusters": make(logits, target, clusters=np.arange(20)),
        "positive": make(logits, target, binary="positive"),
        "names": make(logits, target, class_names=["dog", "cat"]),
    }
    for other in others.values():
        for pair in ((sums, other), (other, sums)):
            with pytest.raises(ValueError, match=r"cannot merge CalibrationSums.*both clusters or none"):
                pair[0] + pair[1]
    with pytest.raises(TypeError):
        sums + 1
    with pytest.raises(TypeError):
        1 + sums
    assert (make(logits, target) + sums).class_names == ("cat", "dog")
    assert repr(sum([sums, sums])) == "CalibrationSums(40 samples, 2 classes, 15 bins)"
    assert repr(others["clusters"]) == "CalibrationSums(20 samples in 20 clusters, 2 classes, 15 bins)"
    assert repr(make([[0.3, 0.7]], [1], input="probs", num_bins=1)) == "CalibrationSums(1 sample, 2 classes, 1 bin)"
    mixed = make(logits.softmax(1), target, input="probs") + make(logits.double().softmax(1), target, input="probs")
    assert mixed.num_samples == 40  # edges rounded to float32 and float64 are the same edges


def test_bad_input_is_refused() -> None:
    logits, target = draw_logits(50, 3)
    sums = make(logits, target, clusters="one")
    logits[7] = math.nan
    calls = [
        (lambda: make(logits, target), "row 7 holds NaN"),
        (lambda: make(logits[:5], torch.full((5,), -100)), "every target is ignore_index"),
        (lambda: make(logits[8:].softmax(1), target[8:]), "must not be probabilities"),
        (lambda: make(logits[8:], target[8:], clusters=[0.5] * 42), "whole numbers or texts"),
        (lambda: make(logits[8:], target[8:], clusters=[1, 2]), "one entry per sample"),
        (lambda: sums.evaluate(), "1 cluster does not show .* inference=False"),
        (lambda: sums.evaluate(level=2), "level"),
        (lambda: sums.evaluate(draws=10), "draws must be at least 100"),
        (lambda: CalibrationSums.from_confidences([0.5, 1.6], [0, 1]), r"\[0, 1\]"),
        (lambda: CalibrationSums.from_confidences([0.5, 0.6], [0, 1], nll=[0.1]), r"nll must have shape \(2,\)"),
        (lambda: CalibrationSums.from_confidences([0.5, 0.6], [0, 1], brier=[0.1, -1]), "no NaN or negative value"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert sums.evaluate(inference=False).num_samples == 50
    empty = content()
    empty["top"] = {name: [0.0] * 4 for name in empty["top"]}
    empty["classes"] = {name: (0 * np.array(values)).tolist() for name, values in empty["classes"].items()}
    nothing = CalibrationSums.from_dict(empty | {"fine": [[], [], [], []], "nll": 0.0, "brier": 0.0})
    with pytest.raises(ValueError, match="no samples"):
        nothing.evaluate()
    check(nothing + make(*draw_logits(50, 3), num_bins=4), M.evaluate(*draw_logits(50, 3), num_bins=4))


# Several sums


def test_many_sums_are_sorted_and_adjusted() -> None:
    sharp = {"calibrated": 1.0, "bad": 1.5, "worst": 2.5, "fine": 1.0}
    sums = {name: make(*draw_logits(800, 4, seed=i, overconfidence=x)) for i, (name, x) in enumerate(sharp.items())}
    shares: list[float] = []
    groups = M.evaluate_many(sums, draws=400, seed=3, progress=shares.append)
    assert [group.name for group in groups][:2] == ["worst", "bad"]
    assert [group.p_adjusted for group in groups] == M.holm([group.inference.joint_p_value for group in groups])
    low = [group.inference.debiased_ece[0] for group in groups]
    assert low == sorted(low, reverse=True)
    assert (groups[0].p_adjusted < 0.01, groups[3].p_adjusted > 0.05) == (True, True)
    assert shares[-1] == 1.0
    for group in groups:
        alone = sums[group.name].evaluate(draws=400, seed=3)
        assert group.evaluation.ece == alone.ece
        assert group.inference.floors == alone.inference.floors
        assert group.inference.p_value == pytest.approx(alone.inference.p_value, abs=0.01)


def test_groups_of_confidences_are_evaluated_like_their_samples() -> None:
    rng = np.random.default_rng(5)
    confidence, group = rng.uniform(0.5, 1, 900), np.arange(900) % 3
    right = (rng.random(900) < confidence - 0.2 * (group == 2)).astype(int)
    groups = M.evaluate_groups(confidence, right, groups=group, input="confidence")
    assert [found.name for found in groups if found.p_adjusted <= 0.05] == ["2"]
    for found in groups:
        part = group == int(found.name)
        alone = M.evaluate(confidence[part], right[part], input="confidence", inference=True)
        assert (found.evaluation.ece, found.evaluation.num_classes) == (alone.ece, 0)
        assert found.inference.floors == alone.inference.floors
