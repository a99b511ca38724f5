"""Multi-label evaluation: definitions by loops, multiplicity, dependence of the entries, rare labels, bad input."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dualfocal.calibrators import compare_multilabel_calibrators
from dualfocal.metrics import MultilabelEvaluation, evaluate, holm

NAMES = ("cat", "dog", "emu", "fox")


def drawn(n: int = 600, rho: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Calibrated logits of four labels, the last one rare, and targets that depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64) - torch.tensor([0.0, 1.0, 2.0, 4.0])
    common = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    normal = math.sqrt(rho) * common + math.sqrt(1 - rho) * own
    return logits, (torch.special.ndtr(normal) < logits.sigmoid()).long()


@cache
def evaluated() -> MultilabelEvaluation:
    logits, target = drawn()
    return evaluate(logits, target, task="multilabel", inference=True, class_names=NAMES)


def binned_ece(p: np.ndarray, y: np.ndarray, num_bins: int = 15) -> float:
    """ECE as a loop: bins (lo, hi]."""
    gaps = [0.0] * num_bins
    for probability, truth in zip(p.tolist(), y.tolist(), strict=True):
        gaps[max(0, math.ceil(probability * num_bins) - 1)] += probability - truth
    return sum(map(abs, gaps)) / len(p)


def test_each_label_is_the_binary_problem_of_its_column() -> None:
    logits, target = drawn()
    for index, label in enumerate(evaluated().labels):
        alone = evaluate(logits[:, index], target[:, index], binary="positive", inference=True).to_dict()
        own = label.evaluation.to_dict()
        assert (label.name, label.index) == (NAMES[index], index)
        assert own == alone


def test_means_of_labels_and_of_entries_by_loops() -> None:
    logits, target = drawn()
    target[::7, 1] = -100
    target[3] = -100  # a sample without entries
    result = evaluate(logits, target, task="multilabel")
    p, y = logits.sigmoid().numpy(), target.numpy()
    keep = y != -100
    assert result.num_samples == 599
    assert result.num_entries == keep.sum()
    eces = [binned_ece(p[keep[:, i], i], y[keep[:, i], i]) for i in range(4)]
    assert result.macro_ece == pytest.approx(np.mean(eces))
    assert result.micro_ece == pytest.approx(binned_ece(p[keep], y[keep]))
    right = (p > 0.5) == y
    assert result.hamming_error == pytest.approx(1 - right[keep].mean())
    whole = [right[i][keep[i]].all() for i in range(600) if keep[i].any()]
    assert result.subset_accuracy == pytest.approx(np.mean(whole))
    loss = F.binary_cross_entropy_with_logits(logits, target.double(), reduction="none").numpy()
    assert result.nll == pytest.approx(loss[keep].mean())
    assert result.macro_nll == pytest.approx(np.mean([loss[keep[:, i], i].mean() for i in range(4)]))
    assert result.brier == pytest.approx(((p - y) ** 2)[keep].mean())
    assert list(result.base_rates.values()) == pytest.approx([y[keep[:, i], i].mean() for i in range(4)])
    by_probability = evaluate(logits.sigmoid(), target.double(), input="probs", task="multilabel")
    assert by_probability.macro_ece == pytest.approx(result.macro_ece)
    assert by_probability.nll == pytest.approx(result.nll)


def test_entries_of_a_sample_are_a_cluster() -> None:
    """Copies of a label carry no information: the pooled floor is that of the label alone, not of more samples."""
    logits, target = drawn(400)
    copies = evaluate(logits[:, :1].repeat(1, 8), target[:, :1].repeat(1, 8), task="multilabel", inference=True)
    alone = copies.labels[0]
    with pytest.warns(UserWarning, match="copies"):
        naive = evaluate(logits[:, 0].repeat(8), target[:, 0].repeat(8), binary="positive", inference=True)
    assert copies.inference is not None
    assert copies.inference.clusters is not None
    assert naive.inference is not None
    assert copies.inference.clusters.number == 400
    assert copies.inference.clusters.design_effect == pytest.approx(8, rel=0.05)
    floor = alone.inference.floors["ece"].mean
    assert copies.inference.floors["ece"].mean == pytest.approx(floor, rel=0.1)
    assert naive.inference.floors["ece"].mean < 0.5 * floor
    assert copies.macro_ece == pytest.approx(alone.evaluation.ece)
    assert copies.macro_floor is not None  # copies scatter like one label, independent labels would scatter less
    assert copies.macro_floor.mean == pytest.approx(floor)
    one, together = (f.q95 - f.mean for f in (alone.inference.floors["ece"], copies.macro_floor))
    assert together == pytest.approx(one, rel=0.25)


def test_given_clusters_take_the_place_of_samples() -> None:
    logits, target = drawn(200)
    patient = np.arange(200) // 4
    result = evaluate(logits, target, task="multilabel", inference=True, clusters=patient)
    assert result.inference is not None
    assert result.inference.clusters is not None
    assert result.inference.clusters.number == 50
    alone = evaluate(logits[:, 1], target[:, 1], binary="positive", inference=True, clusters=patient)
    assert result.labels[1].evaluation.to_dict() == alone.to_dict()


def test_the_name_of_a_column_is_no_cluster() -> None:
    with pytest.raises(ValueError, match=r"clusters.*'patient'"):
        evaluate(torch.zeros(4, 2), torch.ones(4, 2), task="multilabel", clusters="patient")


def test_p_values_are_adjusted_for_all_labels_and_the_pooled_test() -> None:
    result = evaluated()
    assert result.inference is not None
    tests = [result.inference.p_value, *(label.inference.p_value for label in result.labels)]
    assert [result.p_adjusted, *(label.p_adjusted for label in result.labels)] == holm(tests, [4, 1, 1, 1, 1])


def test_weighted_holm_is_holm_among_the_rest_after_the_first_rejection() -> None:
    p_values = [0.001, 0.012, 0.02, 0.5]
    assert holm(p_values, [3, 1, 1, 1])[1:] == pytest.approx(holm(p_values[1:]))
    # If the heavy test is not rejected, the others share half of the significance.
    assert holm([0.9, 0.012, 0.02, 0.5], [3, 1, 1, 1])[1] == pytest.approx(6 * 0.012)
    assert holm(p_values) == holm(p_values, [1, 1, 1, 1])


def test_a_wrong_label_among_many_is_found_and_named() -> None:
    """The p-value of one label among 30 needs more than 1000 draws to be significant after the adjustment."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(300, 30, generator=generator) - 2
    target = torch.rand(300, 30, generator=generator) < logits.sigmoid()
    logits[:, 17] += 2
    result = evaluate(logits, target, task="multilabel", inference=True)
    assert [label.name for label in result.miscalibrated] == ["17"]
    assert result.labels[17].inference.p_value < 1 / 1001
    assert result.ranked[0].name == "17"
    assert result.verdict().startswith("1 of 30 labels is miscalibrated (family-wise 5 %, Holm); worst: '17'")
    assert len(result.label_table().rows) == 20


def test_labels_without_positives_are_reported() -> None:
    logits, target = drawn(300)
    target[:, 3] = 0
    target[:, 2] = 0
    target[:4, 2] = 1
    result = evaluate(logits, target, task="multilabel", inference=True, class_names=NAMES)
    assert (result["fox"].num_positive, result["fox"].base_rate, result["fox"].is_rare) == (0, 0.0, True)
    assert result["fox"].evaluation.ece == pytest.approx(logits[:, 3].sigmoid().mean().item())
    assert "1 label (fox) never occurs; each is true for at most 1.0 % of samples (95 % confidence)" in result.verdict()
    assert "1 label (emu) has fewer than 10 positive" in result.verdict()
    target[:, 1] = -100
    result = evaluate(logits, target, task="multilabel", inference=True, class_names=NAMES)
    assert [label.name for label in result.labels] == ["cat", "emu", "fox"]
    assert result.left_out == {"dog": "all entries are ignored"}
    assert "1 left out, such as 'dog'" in result.verdict()


def test_one_sample_and_one_label_do_not_break_anything() -> None:
    for shape in ((1, 3), (5, 1), (1, 1)):
        logits, target = torch.linspace(-2, 2, shape[0] * shape[1]).view(shape), torch.zeros(shape)
        result = evaluate(logits, target, task="multilabel", inference=True, input="logits")
        assert result.num_entries == logits.numel()
        assert "No miscalibration detectable" in str(result)


def test_results_are_plain_json() -> None:
    for result in (evaluated(), evaluate(*drawn(50), task="multilabel")):
        content = result.to_dict()
        assert json.loads(json.dumps(content, allow_nan=False)) == content
    with pytest.raises(ValueError, match="inference=True"):
        result.verdict()
    assert "<caption>600 samples, 4 labels, 15 bins</caption>" in evaluated()._repr_html_()
    scalars = evaluated().scalars("val/")
    assert scalars["val/macro_ece"] == evaluated().macro_ece
    assert scalars["val/miscalibrated_labels"] == 0


def test_labels_state_their_order_and_small_p_values() -> None:
    result = evaluated()
    title = "by label, worst first (miscalibrated ones first, by the lower end of the interval); percent"
    assert result.label_table().title == title
    certain = replace(result, labels=(replace(result.labels[0], p_adjusted=0.0004),))
    assert certain.label_table().rows[0][-1] == "< 0.001"
    assert "worst first (by ECE)" in evaluate(*drawn(50), task="multilabel").label_table().title


def test_entries_that_hardly_depend_on_each_other() -> None:
    result = evaluated()
    assert "The entries of a sample depend on each other (design effect" in result.verdict()
    inference = result.inference
    assert inference is not None
    assert inference.clusters is not None
    inference = replace(inference, clusters=replace(inference.clusters, design_effect=1.02))
    independent = replace(result, micro=replace(result.micro, inference=inference))
    assert "The entries of a sample hardly depend on each other (design effect 1.0)." in independent.verdict()


def test_a_comparison_of_calibrators_has_the_floor_of_the_evaluation() -> None:
    logits, target = drawn(300)
    target[::3, 0] = -100
    for clusters in (None, torch.arange(300) // 5):
        result = evaluate(logits, target, task="multilabel", inference=True, clusters=clusters, seed=3)
        assert result.macro_floor is not None
        comparison = compare_multilabel_calibrators(logits, target, ["temperature"], clusters=clusters, seed=3)
        floor = comparison["uncalibrated"].scores["macro_floor"]
        assert floor == pytest.approx(result.macro_floor.mean, rel=1e-12)


LOGITS, TARGET = torch.tensor([[2.0, -1.0], [0.5, -3.0]]), torch.tensor([[1, 0], [0, 1]])
BAD: dict[str, tuple] = {
    "task": (LOGITS, TARGET, {"task": "multi"}, "task must be one of None, 'multilabel'"),
    "binary": (LOGITS, TARGET, {"binary": "positive"}, "binary does not apply to task='multilabel'"),
    "one label": (LOGITS[:, 0], TARGET[:, 0], {}, "binary='positive'"),
    "class indices": (LOGITS, TARGET[:, 0], {}, "leave out task"),
    "shape": (LOGITS, TARGET[:, :1], {}, r"shape of the predictions, \(2, 2\)"),
    "target": (LOGITS, TARGET * 3, {}, "got 3 in row 0, label '0'"),
    "soft target": (LOGITS, TARGET * 0.5, {}, "got 0.5 in row 0, label '0'"),
    "ignored": (LOGITS, TARGET * 0 - 100, {}, "every target is ignore_index"),
    "ignore_index": (LOGITS, TARGET, {"ignore_index": 0}, "must not be 0 or 1"),
    "probabilities": (LOGITS.sigmoid(), TARGET, {}, 'pass input="probs"'),
    "not probabilities": (LOGITS, TARGET, {"input": "probs"}, "got 2 in row 0, label '0'; are these logits"),
    "nan": (LOGITS * math.nan, TARGET, {}, "got nan in row 0"),
    "names": (LOGITS, TARGET, {"class_names": ["a", "a"]}, "2 distinct names"),
    "clusters": (LOGITS, TARGET, {"clusters": [1, 1]}, "at least two different values"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case: str) -> None:
    logits, target, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        evaluate(logits, target, **{"task": "multilabel", **options})
