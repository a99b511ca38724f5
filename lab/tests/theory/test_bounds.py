"""Entropy lower bounds of focal and dual focal loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dualfocal.losses import dual_focal_loss, focal_loss
from dualfocal_lab.theory import dual_entropy_bound, entropy_bound


def predictions(seed: int, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(400, 5, generator=generator, dtype=torch.float64)
    return logits, torch.randint(5, (400,), generator=generator)


@given(st.integers(0, 1000), st.floats(0.05, 12), st.floats(0, 12))
def test_both_losses_are_above_the_bound(seed, sharpness, gamma) -> None:
    logits, target = predictions(seed, sharpness)
    bound = entropy_bound(logits.softmax(1), target, gamma)
    focal = focal_loss(logits, target, gamma, reduction="none")
    dual = dual_focal_loss(logits, target, gamma, reduction="none")
    assert bool((focal >= bound - 1e-12).all())
    assert bool((dual >= focal - 1e-12).all())


@given(st.integers(0, 1000), st.floats(0.05, 12), st.floats(1, 12))
def test_the_sharper_bound_of_dual_focal_loss(seed, sharpness, gamma) -> None:
    logits, target = predictions(seed, sharpness)
    p = logits.softmax(1)
    sharper = dual_entropy_bound(p, target, gamma)
    assert bool((sharper >= entropy_bound(p, target, gamma)).all())
    assert bool((dual_focal_loss(logits, target, gamma, reduction="none") >= sharper - 1e-12).all())


def test_focal_loss_can_be_below_the_sharper_bound() -> None:
    p, target = torch.tensor([0.55, 0.44, 0.01], dtype=torch.float64), torch.tensor(0)
    sharper = dual_entropy_bound(p, target, 1.0)
    assert float(focal_loss(p.log(), target, 1.0)) < float(sharper) - 0.1
    assert float(dual_focal_loss(p.log(), target, 1.0)) > float(sharper)


def test_the_bound_is_tight_where_nothing_is_uncertain() -> None:
    p = torch.tensor([1 - 1e-9, 1e-9], dtype=torch.float64)
    assert float(entropy_bound(p, torch.tensor(0), 3.0)) == pytest.approx(0, abs=1e-7)


def test_the_sharper_bound_needs_gamma_of_one_or_more() -> None:
    with pytest.raises(ValueError, match=r"gamma must be finite and at least 1, got 0.5"):
        dual_entropy_bound(torch.tensor([0.6, 0.4]), torch.tensor(0), 0.5)
