"""AURC and out-of-distribution AUROC rank samples; values that differ only by rounding are ties."""

import itertools

import torch
from case_loops import for_each

from dualfocal import metrics as M

ORDERS = list(itertools.permutations(range(4)))


@for_each(input=["logits", "probs"], score=["entropy", "max_prob"])
def test_the_same_probabilities_in_another_order_are_ties(input, score) -> None:
    """Sums in another order of the classes differ in their last bits: that is no order of the samples."""
    for scale in (1.0, 3.0, 9.0):
        row = scale * torch.tensor([3.0, 1.0, -2.0, 0.5], dtype=torch.float64)
        row = row if input == "logits" else row.softmax(0)
        same, other = row.repeat(24, 1), torch.stack([row[list(order)] for order in ORDERS])
        assert M.ood_auroc(same, other, input=input, score=score) == 0.5
        assert M.ood_auroc(other, same, input=input, score=score) == 0.5
    wide = torch.randn(1, 500, generator=torch.Generator().manual_seed(0))
    other = torch.stack([wide[0].roll(shift) for shift in range(100)])
    assert M.ood_auroc(wide.expand(100, -1), other, score=score) == 0.5


def test_names_of_the_classes_do_not_matter() -> None:
    """Small integers as logits: many samples have the same probabilities in another order."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 3, (500, 4), generator=generator).float()
    top = torch.randint(4, (500,), generator=generator)
    logits.scatter_(1, top[:, None], 4.0)
    target = torch.where(torch.rand(500, generator=generator) < 0.7, top, 0)
    results = set()
    for order in ORDERS:
        named = logits[:, list(order)]
        scores = [M.ood_auroc(named[:250], named[250:], score=score) for score in ("entropy", "max_prob")]
        results.add((M.aurc(named, torch.tensor(order).argsort()[target]), *scores))
    assert len(results) == 1
    sorted_rows = logits.sort(1).values  # one order for all: ties are exact
    assert results == {
        (
            M.aurc(sorted_rows, torch.where(top == target, 3, 0)),
            M.ood_auroc(sorted_rows[:250], sorted_rows[250:]),
            M.ood_auroc(sorted_rows[:250], sorted_rows[250:], score="max_prob"),
        )
    }


@for_each(score=["entropy", "max_prob"])
def test_ood_auroc_of_logits_ranks_what_rounds_to_1(score) -> None:
    margin = torch.linspace(20, 80, 400, dtype=torch.float64)
    logits = torch.stack([margin, torch.zeros_like(margin)], 1)
    assert M.ood_auroc(logits[200:], logits[:200], score=score) == 1.0


@for_each(score=["entropy", "max_prob"])
def test_a_rounded_softmax_above_1_ties_with_its_equal(score) -> None:
    """Its entropy is a little below 0."""
    probs = torch.tensor([[1 + 5e-7, 0.0]]).repeat(4, 1)
    assert M.ood_auroc(probs, probs, input="probs", score=score) == 0.5
