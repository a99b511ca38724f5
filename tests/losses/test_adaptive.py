"""AdaFocal and AdaDualFocal: the update and its state."""

import oracles
import pytest
import torch
from case_loops import for_each
from torch import Tensor

from dualfocal import AdaDualFocalLoss, AdaFocalLoss, DualFocalLoss, FocalLoss

BOTH = (AdaFocalLoss, AdaDualFocalLoss)


def validation(n: int = 200, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5) * scale, torch.randint(5, (n,))


def oracle_update(criterion: AdaFocalLoss, logits: Tensor, target: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    p = logits.double().softmax(1).sort(1, descending=True)
    confidence, correct = p.values[:, 0], p.indices[:, 0] == target
    scores = p.values[:, 0] - p.values[:, 1] if criterion.dual else confidence
    gamma, edges = oracles.adaptive_update(
        criterion.gamma.tolist(), confidence.tolist(), correct.tolist(), scores.tolist(), **options
    )
    return torch.tensor(gamma), torch.tensor(edges)


@for_each(n=[1, 9, 200], variant=["switch", "no_switch"], drop_lowest=[False, True], cls=BOTH)
def test_updates_as_the_oracle(cls: type[AdaFocalLoss], drop_lowest: bool, variant: str, n: int) -> None:
    options = {"rate": 3.0, "variant": variant, "drop_lowest": drop_lowest}
    criterion = cls(0.5, **options)
    signs = set()
    for step in range(12):  # under-confident first, so that gammas fall, then over-confident
        logits, target = validation(n, 0.3 if step < 6 else 3.0)
        if step < 6:
            target = logits.argmax(1)
        true_gamma, true_edges = oracle_update(criterion, logits, target, **options)
        criterion.update(logits, target)
        torch.testing.assert_close(criterion.gamma, true_gamma, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(criterion.edges, true_edges, rtol=1e-4, atol=1e-5)
        signs |= set(criterion.gamma.sign().tolist())
    if n == 200:
        assert signs == ({1.0, -1.0} if variant == "switch" else {1.0}), "the switch to the inverse form works"


@for_each(cls=BOTH)
def test_every_validation_sample_is_counted(cls: type[AdaFocalLoss]) -> None:
    """Bins (lo, hi] between the extremes would drop the least confident sample."""
    criterion = cls(num_bins=1, gamma=1.0)
    logits = torch.tensor([[0.1, 0.0, 0.0], [9.0, 0.0, 0.0]])
    criterion.update(logits, torch.tensor([1, 0]))
    confidence = logits.softmax(1)[:, 0]
    torch.testing.assert_close(criterion.gamma, (confidence.mean() - 0.5).exp()[None])


@for_each(cls=BOTH)
def test_samples_of_the_lowest_score_can_be_dropped(cls: type[AdaFocalLoss]) -> None:
    logits = torch.tensor([[0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [2.0, 0.0, 0.0], [9.0, 0.0, 0.0]])  # two are tied
    target = torch.tensor([1, 0, 0, 0])
    dropped, rest = cls(num_bins=1, gamma=1.0, drop_lowest=True), cls(num_bins=1, gamma=1.0)
    dropped.update(logits, target)
    rest.update(logits[2:], target[2:])
    torch.testing.assert_close(dropped.gamma, rest.gamma)
    dropped.update(logits[:2], target[:2])  # nothing is left: the gap is 0
    torch.testing.assert_close(dropped.gamma, rest.gamma)


@for_each(cls=BOTH)
def test_frozen_never_moves(cls: type[AdaFocalLoss]) -> None:
    criterion = cls(6.0, frozen=True)
    logits, target = validation()
    plain = DualFocalLoss(6.0) if criterion.dual else FocalLoss(6.0)
    before = criterion.gamma.clone(), criterion.edges.clone()
    criterion.update(logits, target)
    torch.testing.assert_close((criterion.gamma, criterion.edges), before, rtol=0, atol=0)
    torch.testing.assert_close(criterion(logits, target), plain(logits, target))


@for_each(cls=BOTH)
def test_state_survives(cls: type[AdaFocalLoss]) -> None:
    logits, target = validation()
    first, second = cls(), cls()
    first.update(logits, target)
    assert not torch.equal(first.gamma, second.gamma)
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(logits, target), second(logits, target), rtol=0, atol=0)


@for_each(cls=BOTH)
def test_update_is_in_place_and_seen_by_a_compiled_loss(cls: type[AdaFocalLoss]) -> None:
    criterion = cls()
    logits, target = validation(20)
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    where = criterion.gamma.data_ptr(), criterion.edges.data_ptr()
    before = compiled(logits, target).item()
    criterion.update(logits, target)
    assert where == (criterion.gamma.data_ptr(), criterion.edges.data_ptr())
    assert compiled(logits, target).item() == pytest.approx(criterion(logits, target).item())
    assert compiled(logits, target).item() != before
    torch.compiler.reset()


@for_each(cls=BOTH)
def test_ignored_and_dense_validation_targets(cls: type[AdaFocalLoss]) -> None:
    logits, target = validation(40)
    target[::4] = -100
    flat, dense = cls(), cls()
    flat.update(logits[target != -100], target[target != -100])
    dense.update(logits.reshape(10, 4, 5).permute(0, 2, 1), target.reshape(10, 4))
    torch.testing.assert_close((flat.gamma, flat.edges), (dense.gamma, dense.edges))


@for_each(cls=BOTH)
def test_validation_targets_may_be_probabilities(cls: type[AdaFocalLoss]) -> None:
    """A target of 1/2 for two classes is the same as one sample of each."""
    logits, target = validation(30)
    other = (target + 1) % 5
    y = (torch.nn.functional.one_hot(target, 5) + torch.nn.functional.one_hot(other, 5)) / 2
    soft, twice = cls(num_bins=1), cls(num_bins=1)
    soft.update(logits, y)
    twice.update(logits.repeat(2, 1), torch.cat([target, other]))
    torch.testing.assert_close(soft.gamma, twice.gamma)


@for_each(cls=BOTH)
def test_nan_does_not_enter_the_state(cls: type[AdaFocalLoss]) -> None:
    criterion = cls()
    logits, target = validation(40)
    logits[3, 1] = torch.nan
    before = criterion.gamma.clone(), criterion.edges.clone()
    with pytest.raises(ValueError, match="validation logits must be finite"):
        criterion.update(logits, target)
    torch.testing.assert_close((criterion.gamma, criterion.edges), before)


def test_large_validation_sets_add_up() -> None:
    """float32 sums over millions of pixels would be wrong by percents."""
    n = 2_000_000
    logits = torch.tensor([2.0, 0.0]).expand(n, 2)
    target = (torch.arange(n) % 4 == 0).long()
    criterion = AdaFocalLoss(num_bins=1)
    criterion.update(logits, target)
    gap = torch.tensor([2.0, 0.0], dtype=torch.float64).softmax(0)[0] - 0.75
    torch.testing.assert_close(criterion.gamma, gap.exp().float()[None], rtol=1e-5, atol=0)


def test_nothing_to_update_from() -> None:
    with pytest.raises(ValueError, match="at least one validation sample"):
        AdaFocalLoss().update(torch.randn(3, 5), torch.full((3,), -100))
