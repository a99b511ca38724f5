"""The bandwidth of the kernel estimate, and its published form for more than 60 classes."""

import math

import oracles
import torch
from case_loops import for_each

from dualfocal import losses as L

BANDWIDTHS = (*(10 ** (-5 + 4 * i / 14) for i in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)  # that the loss chooses from


def test_bandwidth_maximises_the_leave_one_out_likelihood() -> None:
    for seed in range(3):
        logits = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        likelihood = {h: oracles.kde_log_likelihood(logits, h) for h in BANDWIDTHS}
        assert float(L.kde_bandwidth(logits)) == max(likelihood, key=likelihood.__getitem__)
        published = {h: value - 12 * math.log(h) for h, value in likelihood.items()}
        assert float(L.kde_bandwidth(logits, as_published=True)) == max(published, key=published.__getitem__)


def test_float32_logits_give_a_float32_exact_error() -> None:
    """At h = .001 log kernels are in the thousands; float32 arithmetic would be wrong by 1e-5."""
    logits, target = torch.randn(40, 4) / 20, torch.randint(4, (40,))
    true = L.kde_xe_loss(logits.double(), target, strength=1.0)
    torch.testing.assert_close(L.kde_xe_loss(logits, target, strength=1.0).double(), true, rtol=1e-6, atol=0)


def test_likelihood_bandwidth_in_the_loss_ignores_ignored_rows() -> None:
    logits, target = torch.randn(14, 3), torch.randint(3, (14,))
    target[::5] = -100
    kept = target != -100
    h = float(L.kde_bandwidth(logits[kept]))
    loss = L.kde_xe_loss(logits, target, bandwidth="likelihood")
    torch.testing.assert_close(loss, L.kde_xe_loss(logits[kept], target[kept], bandwidth=h))


@for_each(num_classes=[60, 61], bandwidth=[0.001, 0.1], norm=[1.0, 2.0])
def test_published_form_has_no_floor_above_60_classes(num_classes: int, bandwidth: float, norm: float) -> None:
    """Four rows leave classes without samples, where the public code has a NaN gradient."""
    logits = torch.randn(4, num_classes, dtype=torch.float64, requires_grad=True)
    target = torch.randint(num_classes, (4,))
    options = {"bandwidth": bandwidth, "norm": norm}
    loss = L.KDEXELoss(1.0, as_published=True, **options)(logits, target)
    error = oracles.kde_error(logits, target, bandwidth=bandwidth, p=norm, as_published=True)
    true = oracles.cross_entropy(logits, target).mean() + error
    torch.testing.assert_close(loss, true, rtol=1e-9, atol=0)
    (grad,), (true_grad,) = (torch.autograd.grad(value, logits) for value in (loss, true))
    torch.testing.assert_close(grad, true_grad, rtol=1e-8, atol=1e-12)
    if bandwidth == 0.001:  # no kernel reaches 1e-10
        default = L.kde_xe_loss(logits, target, 1.0, **options)
        assert torch.equal(loss, default) is (num_classes == 60)


def test_published_form_ignores_ignored_rows() -> None:
    logits, target = torch.randn(8, 61, requires_grad=True), torch.randint(61, (8,))
    target[::3] = -100
    kept = target != -100
    for bandwidth in (0.001, "likelihood"):
        loss = L.kde_xe_loss(logits, target, bandwidth=bandwidth, as_published=True)
        alone = L.kde_xe_loss(logits[kept], target[kept], bandwidth=bandwidth, as_published=True)
        (grad,), (alone_grad,) = (torch.autograd.grad(value, logits) for value in (loss, alone))
        torch.testing.assert_close((loss, grad), (alone, alone_grad))


def test_published_loss_searches_the_published_bandwidth() -> None:
    logits, target = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)), torch.randint(3, (64,))
    ours, published = (float(L.kde_bandwidth(logits, as_published=flag)) for flag in (False, True))
    assert ours != published
    loss = L.kde_xe_loss(logits, target, bandwidth="likelihood", as_published=True)
    torch.testing.assert_close(loss, L.kde_xe_loss(logits, target, bandwidth=published))
