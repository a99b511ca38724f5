"""The bandwidth of the kernel estimate."""

import math

import oracles
import torch

from dualfocal import losses as L
from dualfocal.losses.kde import BANDWIDTHS


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
