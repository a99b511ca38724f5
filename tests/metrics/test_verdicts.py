"""Texts of evaluations and comparisons: the verdict, the table, strict JSON."""

import html
import json
import math
from dataclasses import replace

import torch
from case_loops import for_each
from samples import draw_logits

from dualfocal import metrics as M


def test_texts() -> None:
    logits, target = draw_logits(2000, 5, overconfidence=2)
    result = M.evaluate(logits, target, inference=True)
    text = str(result)
    assert f"\nECE [%] {100 * result.ece:.2f} " in "\n".join(" ".join(line.split()) for line in text.splitlines())
    assert text.splitlines()[-1] == result.verdict()
    assert result.verdict().startswith(f"Over-confident: ECE is {100 * result.ece:.1f} points; a calibrated model")
    assert f"<td>{100 * result.ece:.2f}</td>" in result._repr_html_()
    under = M.evaluate(logits / 4, target, inference=True).verdict()
    assert under.startswith("Under-confident")
    p, outcome = torch.full((2000,), 0.3), torch.arange(2000) % 10 < 5
    for probs, direction in ((p, "too low (predicted 30.0 %"), (1 - p, "too high (predicted 70.0 %")):
        verdict = M.evaluate(probs, outcome.long(), input="probs", binary="positive", inference=True).verdict()
        assert verdict.startswith(f"Probabilities of class 1 {direction}, occurs 50.0 %): ECE is 20.0 points;")
    json.dumps(result.to_dict(), allow_nan=False)
    zero = M.evaluate(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), input="probs", inference=True)
    assert zero.nll == math.inf
    assert json.loads(json.dumps(zero.to_dict(), allow_nan=False))["nll"] is None


def test_an_infinite_nll_is_significantly_different_from_a_finite_one() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.7, 0.3]])
    probs, target = probs.repeat(4, 1), torch.tensor([1, 0, 0]).repeat(4)
    for pair, better, other in (((probs, probs.flip(1)), "B", "A"), ((probs.flip(1), probs), "A", "B")):
        result = M.compare(*pair, target, input="probs")
        assert result.differences["nll"].significant
        assert result.verdict().startswith(f"{better} has the lower NLL (infinite for {other}:")
        row = {row[0]: row[1:] for row in result.table().rows}["NLL [nats]"]
        assert result._repr_html_().endswith(f"<b>{html.escape(result.verdict())}</b></p>")
        assert f"<td>{row[0]}</td><td>{row[1]}</td>" in result._repr_html_()
        assert row[2:] == ["-inf" if better == "B" else "+inf", "", better]
        assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["differences"]["nll"][other.lower()] is None


def test_names_of_models_and_classes_are_those_of_the_caller() -> None:
    logits, target = draw_logits(600, 4, scale=1.0)
    result = M.compare(logits, 4 * logits, target, names=("old", "new"))
    assert list(result.table().headings[1:4]) == ["old", "new", "new - old"]
    assert "old has the lower NLL" in result.verdict()
    assert M.compare(logits, 4 * logits, target).verdict().startswith("A has the lower NLL")
    names = ("cat", "dog", "emu", "fox")
    worst = M.evaluate(4 * logits, target, inference=True).verdict().split("predictions of class ")[1][0]
    named = M.evaluate(4 * logits, target, inference=True, class_names=names)
    assert f"predictions of class {names[int(worst)]}," in named.verdict()
    assert f"predictions of class {worst * 2}," in named.verdict([2 * str(k) for k in range(4)])
    binary = M.evaluate(4 * logits[:, 0] + 2, target == 0, binary="positive", inference=True, class_names=("no", "yes"))
    assert "Probabilities of class yes too high" in binary.verdict()


def test_class_1_has_probabilities_and_frequencies() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(400, generator=generator)
    target = (torch.rand(400, generator=generator) < probs).long()
    options = {"input": "probs", "binary": "positive"}
    assert (
        "between probability and frequency in every bin"
        in M.evaluate(probs, target, inference=True, **options).verdict()
    )


def test_numbers_of_one_are_in_the_singular() -> None:
    sums = M.CalibrationSums.from_predictions([[0.7, 0.3]], [0], input="probs", num_bins=1, clusters="a")
    assert repr(sums) == "CalibrationSums(1 sample in 1 cluster, 2 classes, 1 bin)"


def test_small_p_values_are_not_0() -> None:
    result = M.evaluate([[0.9, 0.1]] * 50, [1] * 50, input="probs", binary="positive", inference=True)
    for p_value, text in ((0.0, "p < 0.001"), (0.0009, "p < 0.001"), (0.001, "p = 0.001"), (0.25, "p = 0.25")):
        inference = replace(result.inference, p_value=p_value)
        assert text in replace(result, inference=inference).verdict()


def test_two_infinite_nlls_are_not_significantly_different() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.7, 0.3]]).repeat(4, 1)
    result = M.compare(probs, probs * 1.0, torch.tensor([1, 0, 0]).repeat(4), input="probs")
    assert result.verdict().startswith("NLL not significantly different; ")
    assert result.table().rows[1] == ["NLL [nats]", "inf", "inf", "", "", ""]
    assert "nan" not in str(result)


@for_each("gain, clause", [(1e-6, "NLL not significantly different; "), (1e-3, "B has the lower NLL, by 0.0010 ")])
def test_a_difference_must_show_in_the_digits_that_are_printed(gain, clause) -> None:
    probs = torch.full((200, 2), 0.5, dtype=torch.float64)
    better = probs + torch.tensor([gain / 2, -gain / 2])
    result = M.compare(probs, better, torch.zeros(200, dtype=torch.int64), input="probs")
    assert result.differences["nll"].significant  # but it may be too small to be printed
    assert result.verdict().startswith(clause)
    assert result.table().rows[1][-1] == ("B" if gain > 1e-4 else "")


@for_each(shift=[0.1, -0.1])
def test_a_verdict_by_the_mean_says_so(shift) -> None:
    """The verdict names the mean where the ECE alone could be chance, otherwise the ECE."""
    mean = f"mean confidence is 10.0 points {'above' if shift > 0 else 'below'} accuracy"
    probs = torch.tensor([[0.3, 0.7]], dtype=torch.float64).expand(1000, 2)
    target = (torch.arange(1000) < 1000 * (0.7 - shift)).long()
    result = M.evaluate(probs, target, input="probs", inference=True)
    assert mean not in result.verdict()
    floors = {**result.inference.floors, "ece": M.Floor(0.01, 0.2)}
    result = replace(result, inference=replace(result.inference, floors=floors))
    assert f": {mean}, ECE is 10.0 points; a calibrated model" in result.verdict()


def scores_of_class_1(n: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """Calibrated probabilities of class 1, and labels."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(n, dtype=torch.float64, generator=generator)
    return scores, torch.bernoulli(scores, generator=generator).long()


@for_each(binary=["positive", "top_label"])
def test_an_inverted_score_is_pointed_out(binary) -> None:
    scores, target = scores_of_class_1()
    options = {"input": "probs", "binary": binary, "inference": True}
    result = M.evaluate(1 - scores, target, **options)
    hint = f"Most predictions are wrong (error {100 * result.error:.1f} %): check that the probability of class yes is "
    assert result.verdict(["no", "yes"]).startswith(hint)
    assert result.error > 0.7
    assert "Most predictions" not in M.evaluate(scores, target, **options).verdict()
    coins = torch.arange(500) % 2
    assert "Most predictions" not in M.evaluate(torch.full((500,), 0.6), coins, **options).verdict()


def test_predicted_classes_instead_of_probabilities_are_pointed_out() -> None:
    scores, target = scores_of_class_1()
    options = {"input": "probs", "binary": "positive", "inference": True}
    assert "All probabilities are 0 or 1" in M.evaluate((scores > 0.5).double(), target, **options).verdict()
    assert "All probabilities are 0 or 1" not in M.evaluate(scores, target, **options).verdict()


def test_the_brier_score_of_class_1_is_half_of_the_sum_and_named() -> None:
    scores, target = scores_of_class_1()
    one, both = (M.evaluate(scores, target, input="probs", binary=binary) for binary in ("positive", "top_label"))
    by_hand = float(((scores - target) ** 2).mean())
    assert math.isclose(one.brier, by_hand, rel_tol=1e-6)
    assert math.isclose(both.brier, 2 * by_hand, rel_tol=1e-6)
    names = [{row[0] for row in result.table().rows if "Brier" in row[0]} for result in (one, both)]
    assert names == [{"Brier score of class 1"}, {"Brier score"}]
