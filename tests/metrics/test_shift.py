"""Evaluation under shift: every number against the function, or the slow loop, that defines it."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from case_loops import for_each
from scipy.stats import binomtest

from dualfocal import metrics as M
from dualfocal.calibrators import TemperatureScaling, calibrate_shift
from dualfocal.plots import shift_figure

N, C = 400, 4
clustered = M.Samples.from_arrays


def sample(scale: float = 1.0, seed: int = 0, n: int = N):
    """Logits and labels of a model that is calibrated with scale 1, and over-confident above."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, C, generator=generator, dtype=torch.float64)
    return scale * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.fixture(scope="module")
def result() -> M.ShiftEvaluation:
    test = sample()
    shifted = {"flat-10": sample(0.3, 1), "flat-2": sample(0.6, 2), "other": (sample(1.5, 3)[0], None)}
    return M.evaluate_shift(test, shifted, seed=3)


def test_metrics_are_those_of_evaluate(result) -> None:
    logits, target = sample(0.6, 2)
    expected = M.evaluate(logits, target, inference=True, seed=3)
    assert result.shifted[0].evaluation.to_dict() == expected.to_dict()
    assert [one.name for one in result.sets] == ["test", "flat-2", "flat-10", "other"]


def test_sets_without_labels_have_auroc_only(result) -> None:
    other = result.shifted[-1]
    assert (other.evaluation, dict(other.intervals)) == (None, {})
    assert set(other.auroc) == {"entropy", "confidence"}
    assert set(result.test.auroc) == {"errors"}


def test_auroc_is_that_of_the_definition(result) -> None:
    known, shifted = (sample(*options)[0].softmax(1) for options in ((1.0, 0), (0.6, 2)))
    positive = [0] * N + [1] * N
    for name, score in {
        "entropy": [-math.fsum(p * math.log(p) for p in row) for row in [*known.tolist(), *shifted.tolist()]],
        "confidence": [-max(row) for row in [*known.tolist(), *shifted.tolist()]],
    }.items():
        expected = M.auroc(score, positive)
        got = result.shifted[0].auroc[name]
        assert [got.value, got.low, got.high] == pytest.approx([expected.value, expected.low, expected.high], abs=1e-9)
    score = {"entropy": "entropy", "confidence": "max_prob"}
    for name, function in score.items():
        assert result.shifted[0].auroc[name].value == M.ood_auroc(sample()[0], sample(0.6, 2)[0], score=function)


def test_auroc_of_errors_is_about_wrong_predictions(result) -> None:
    logits, target = sample(0.6, 2)
    probs = logits.softmax(1)
    expected = M.auroc(-probs.max(1).values, probs.argmax(1) != target)
    got = result.shifted[0].auroc["errors"]
    assert [got.value, got.low, got.high] == pytest.approx([expected.value, expected.low, expected.high])
    assert got.value > 0.5


def test_no_auroc_of_errors_without_errors() -> None:
    logits = 5 * torch.eye(C, dtype=torch.float64).repeat(5, 1) + torch.arange(20)[:, None] / 50
    target = torch.arange(C).repeat(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = M.evaluate_shift((logits, target), {"same": (logits, target)})
    assert result.test.auroc == {}
    assert result.shifted[0].auroc["entropy"].value == 0.5
    assert result.test.intervals["error"][0] == 0.0
    assert result.test.intervals["error"][1] > 0.1


def test_intervals_by_their_definitions(result) -> None:
    one = result.test
    errors = round(one.evaluation.error * N)
    expected = binomtest(errors, N).proportion_ci(0.9, method="wilson")
    assert one.intervals["error"] == pytest.approx((expected.low, expected.high))
    logits, target = sample()
    losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    half = 1.645 * float(losses.std()) / math.sqrt(N)
    low, high = one.intervals["nll"]
    assert [low, high] == pytest.approx([float(losses.mean()) - half, float(losses.mean()) + half], abs=0.15 * half)
    low, high = one.intervals["ece"]
    assert 0 <= low < one.evaluation.ece < high


def test_clusters_of_different_sizes_have_wilsons_interval_of_their_effective_number() -> None:
    logits, target = sample()
    times = torch.arange(N) % 4 + 1
    names = [f"sample {i}" for i in range(N) for _ in range(int(times[i]))]
    copies = clustered(logits.repeat_interleave(times, 0), target.repeat_interleave(times), clusters=names)
    result = M.evaluate_shift(
        copies, {"flat": clustered(*sample(0.6, 2), clusters=[f"flat {i}" for i in range(N)])}
    ).test
    wrong = (logits.argmax(1) != target).double()
    error = float((wrong * times).sum() / times.sum())
    variance = float(((times * (wrong - error)) ** 2).sum() / times.sum() ** 2 * N / (N - 1))
    n, z = error * (1 - error) / variance, 1.6448536
    centre, half = error + z**2 / (2 * n), z * math.sqrt(error * (1 - error) / n + (z / (2 * n)) ** 2)
    expected = [end / (1 + z**2 / n) for end in (centre - half, centre + half)]
    assert result.intervals["error"] == pytest.approx(expected)


def test_clusters_of_copies_carry_no_information() -> None:
    """Every sample four times, in a cluster: error and AUROC have the intervals of the single samples."""
    sets = {"test": sample(), "flat-1": sample(0.6, 2)}
    single = M.evaluate_shift(sets["test"], {"flat-1": sets["flat-1"]})
    four = {
        name: clustered(logits.repeat(4, 1), target.repeat(4), clusters=[f"{name} {i}" for i in range(N)] * 4)
        for name, (logits, target) in sets.items()
    }
    copies = M.evaluate_shift(four["test"], {"flat-1": four["flat-1"]})
    got, expected = copies.shifted[0], single.shifted[0]
    assert got.intervals["error"] == pytest.approx(expected.intervals["error"], rel=0.01)
    assert got.intervals["nll"] == pytest.approx(expected.intervals["nll"], rel=0.02)
    for name in ("entropy", "confidence", "errors"):
        assert got.auroc[name].low == pytest.approx(expected.auroc[name].low, abs=1e-6)
    assert got.auroc["entropy"].num_clusters == 2 * N


def test_clusters_of_the_same_name_are_the_same_in_all_sets() -> None:
    """Distorted copies of the test images: their scores are similar, and the interval is shorter."""
    logits, target = sample()
    noisy = 0.8 * logits + 0.1 * torch.randn(N, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    images = np.arange(N)
    paired = M.evaluate_shift(
        clustered(logits, target, clusters=images), {"a": clustered(noisy, target, clusters=images.astype(float))}
    )
    apart = M.evaluate_shift(
        clustered(logits, target, clusters=images), {"a": clustered(noisy, target, clusters=images + N)}
    )
    widths = [one.shifted[0].auroc["entropy"].high - one.shifted[0].auroc["entropy"].low for one in (paired, apart)]
    assert widths[0] < 0.5 * widths[1]
    assert paired.shifted[0].auroc["entropy"].num_clusters == N


def test_ignored_samples_probabilities_and_binary_scores() -> None:
    logits, target = sample()
    ignored = torch.where(torch.arange(N) % 4 == 0, -100, target)
    kept = torch.arange(N) % 4 != 0
    clusters = np.arange(N) // 2
    got = M.evaluate_shift(
        clustered(logits.softmax(1), target, clusters=clusters, input="probs"),
        {"x-1": clustered(logits / 2, ignored, clusters=clusters)},
    ).shifted[0]
    expected = M.evaluate_shift(
        clustered(logits, target, clusters=clusters),
        {"x-1": clustered(logits[kept] / 2, target[kept], clusters=clusters[kept])},
    ).shifted[0]
    assert got.num_samples == expected.num_samples == 300
    assert got.intervals["error"] == pytest.approx(expected.intervals["error"])
    assert got.auroc["entropy"].high == pytest.approx(expected.auroc["entropy"].high)
    score, label = logits[:, 0], target % 2
    with_labels = M.evaluate_shift((score, label), {"a": (score / 2, label)}, binary="top_label")
    without = M.evaluate_shift((score, label), {"a": (score / 2, None)}, binary="top_label")
    assert with_labels.shifted[0].auroc["entropy"] == without.shifted[0].auroc["entropy"]
    assert without.shifted[0].auroc["entropy"].value > 0.5


def test_json_and_text(result) -> None:
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content == result.to_dict()
    rows = result.table().rows
    assert [row[0] for row in rows[::2]] == ["test", "flat-2", "flat-10", "other"]
    low, high = result.test.intervals["error"]
    assert rows[1][2] == f"{100 * low:.2f}-{100 * high:.2f}"
    assert rows[6][2:6] == ["", "", "", ""]
    assert "flat-10, the shifted set with the highest ECE" in str(result)
    assert "more certain of shifted than of test samples: other" in result.verdict()


def test_order_of_the_severities() -> None:
    names = ["b-10", "b-9", "zoo", "a_0.5", "b-1", "a_0.25"]
    result = M.evaluate_shift(sample(n=50), {name: (sample(n=50)[0], None) for name in names})
    assert [one.name for one in result.shifted] == ["b-1", "b-9", "b-10", "zoo", "a_0.25", "a_0.5"]
    assert M.ShiftScores("noise-3", 1).severity == 3
    assert M.ShiftScores("svhn", 1).severity is None


GOOD = sample()
BAD = [
    (GOOD, {}, {}, "at least one set"),
    (GOOD, {"test": GOOD}, {}, "'test' is the name of the test set"),
    ((GOOD[0], None), {"a": GOOD}, {}, "the test set needs labels"),
    (GOOD, {"a": (GOOD[0][:, :3], None)}, {}, "a: it has 3 classes, but the test set has 4"),
    (GOOD, {"a": (GOOD[0].softmax(1), None)}, {}, 'a: logits must not be probabilities.*input="probs"'),
    (GOOD, {"a": (GOOD[0] * math.nan, None)}, {}, "a: logits must not be NaN.*row 0"),
    (GOOD, {"a": clustered(*GOOD, clusters=np.arange(N))}, {}, "all sets have clusters or none, but 'test' has none"),
    (GOOD, {"a": GOOD}, {"level": 2.0}, "level"),
]


@for_each("test, shifted, options, message", BAD)
def test_bad_input(test, shifted, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        M.evaluate_shift(test, shifted, **options)


def test_labels_out_of_range_name_the_set() -> None:
    with pytest.raises(IndexError, match="a: target 10 is out of range"):
        M.evaluate_shift(GOOD, {"a": (GOOD[0], GOOD[1] + 7)})


# A calibrator under shift


def test_calibrated_sets_are_those_of_a_fit_on_validation_data() -> None:
    validation, test, shifted = sample(2.0, 5), sample(2.0, 0), {"a-1": sample(3.0, 1), "b": (sample(3.0, 2)[0], None)}
    result = calibrate_shift(test, shifted, validation=validation)
    t = float(TemperatureScaling().fit(*validation).temperature)
    expected = M.evaluate_shift((test[0] / t, test[1]), {name: (one[0] / t, one[1]) for name, one in shifted.items()})
    assert result.before.to_dict() == M.evaluate_shift(test, shifted).to_dict()
    for got, one in zip(result.after.sets, expected.sets, strict=True):
        assert got.auroc == one.auroc
        assert (got.evaluation and got.evaluation.nll) == pytest.approx(one.evaluation and one.evaluation.nll)
    change = result.nll_changes["a-1"]
    assert change.difference == pytest.approx(M.nll(shifted["a-1"][0] / t, shifted["a-1"][1]) - M.nll(*shifted["a-1"]))
    assert change.high < 0
    assert set(result.nll_changes) == {"test", "a-1"}
    assert result.verdict() == ("temperature, fitted without shift, lowers the NLL significantly on a-1 (1 of 1).")
    assert "fitted on the validation split (400 samples)" in str(result)


def test_without_validation_data_the_test_set_is_cross_validated() -> None:
    test, shifted = sample(2.0), {"a-1": sample(0.3, 1)}
    result = calibrate_shift(test, shifted, "isotonic", folds=4)
    in_sample = calibrate_shift(test, shifted, "isotonic", validation=test)
    assert result.after.test.evaluation.nll > in_sample.after.test.evaluation.nll  # its own fit would be too good
    assert result.after.shifted[0].evaluation.nll == in_sample.after.shifted[0].evaluation.nll  # the same fit
    assert "4-fold cross-validation" in result.caveat()
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["folds"] == 4


def test_a_temperature_that_harms_is_called_so() -> None:
    result = calibrate_shift(sample(3.0), {"flat-1": sample(0.5, 1)}, TemperatureScaling())
    assert result.nll_changes["flat-1"].low > 0
    assert (
        result.verdict() == "TemperatureScaling, fitted without shift, raises the NLL significantly on flat-1 (1 of 1)."
    )


def test_calibrators_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="validation has 3 classes, but the test set has 4"):
        calibrate_shift(GOOD, {"a": GOOD}, validation=(GOOD[0][:, :3], GOOD[1] % 3))
    with pytest.raises(ValueError, match="folds"):
        calibrate_shift(GOOD, {"a": GOOD}, folds=1)


# The figure


def test_figure_shows_the_values(result) -> None:
    figure = shift_figure(M.ShiftEvaluation(result.test, result.shifted[:2], 0.9, 0))
    error, _, ece, entropy, *_ = figure.axes
    evaluations = [one.evaluation for one in (result.test, *result.shifted[:2])]
    assert error.lines[0].get_ydata().tolist() == pytest.approx([100 * one.error for one in evaluations])
    floors = [100 * one.inference.floors["ece"].mean for one in evaluations]
    assert ece.lines[1].get_ydata().tolist() == pytest.approx(floors)
    assert entropy.lines[1].get_xdata().tolist() == [1, 2]  # after the line of chance; the test set has no AUROC
    assert [label.get_text() for label in entropy.get_xticklabels()] == ["test", "2", "10"]


def test_figure_of_names_has_points_and_no_lines(result) -> None:
    figure = shift_figure({"one": result, "two": result})
    axis = figure.axes[3]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["test", "flat-2", "flat-10", "other"]
    assert len(axis.containers) == 2
    first, second = (container.lines[0].get_xdata() for container in axis.containers)
    assert first.tolist() == pytest.approx([0.94, 1.94, 2.94])
    assert second.tolist() == pytest.approx([1.06, 2.06, 3.06])
    with pytest.raises(ValueError, match="at least one evaluation"):
        shift_figure({})
