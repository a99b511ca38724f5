"""Every loss with its oracle, in all relevant forms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import oracles
import torch
from torch import Tensor

from dualfocal import losses as L

BIN_GAMMA = torch.tensor([5.0, -1.5, 0.7, -0.2, 2.0], dtype=torch.float64)
BIN_EDGES = torch.tensor([0.1, 0.3, 0.5, 0.8], dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    name: str
    loss: Callable[..., Tensor] = field(repr=False)
    oracle: Callable[..., Tensor] = field(repr=False)
    """(N, C) float64 logits and hard or soft targets -> (N,) losses."""


def _mmce(logits: Tensor, target: Tensor, **options: object) -> Tensor:
    return oracles.cross_entropy(logits, target) + 2 * oracles.mmce(logits, target, **options)


def _kde(logits: Tensor, target: Tensor, **options: object) -> Tensor:
    return oracles.cross_entropy(logits, target) + 0.3 * oracles.kde_error(logits, target, **options)


def _dual(gamma: float, rival: str | float, impl: str = "auto") -> Case:
    name = f"dual_focal-{gamma}-{rival}-{impl}"
    loss = partial(L.dual_focal_loss, gamma=gamma, rival=rival, impl=impl)
    return Case(name, loss, partial(oracles.dual_focal, gamma=gamma, rival_kind=rival))


ADA_FOCAL = Case(
    "ada_focal",
    partial(L.ada_focal_loss, bin_gamma=BIN_GAMMA, bin_edges=BIN_EDGES),
    partial(oracles.adaptive, bin_gamma=BIN_GAMMA, inner_edges=BIN_EDGES, dual=False),
)
ADA_DUAL_FOCAL = Case(
    "ada_dual_focal",
    partial(L.ada_dual_focal_loss, bin_gamma=BIN_GAMMA, bin_edges=BIN_EDGES),
    partial(oracles.adaptive, bin_gamma=BIN_GAMMA, inner_edges=BIN_EDGES, dual=True),
)


def _smoothed(case: Case, eps: float) -> Case:
    """The case with label smoothing."""
    return Case(
        f"{case.name}-smoothed",
        partial(case.loss, label_smoothing=eps),
        lambda logits, target: case.oracle(logits, oracles.smoothed(target, logits.shape[1], eps).to(logits)),
    )


UNSMOOTHED = [
    Case("cross_entropy", L.cross_entropy_loss, oracles.cross_entropy),
    Case("label_smoothing-others", L.label_smoothing_loss, oracles.label_smoothing),
    Case(
        "label_smoothing-all",
        partial(L.label_smoothing_loss, alpha=0.1, spread="all"),
        partial(oracles.label_smoothing, alpha=0.1, spread="all"),
    ),
    Case("brier", L.brier_loss, oracles.brier),
    *(
        Case(f"focal-{g}", partial(L.focal_loss, gamma=g), partial(oracles.focal, gamma=g))
        for g in (0.0, 0.5, 1.0, 3.0)
    ),
    Case("flsd", L.flsd_loss, oracles.flsd),
    Case("inverse_focal", L.inverse_focal_loss, partial(oracles.inverse_focal, gamma=2.0)),
    *(_dual(g, "next") for g in (0.0, 0.5, 1.0, 5.0)),
    _dual(5.0, "next", "torch"),
    _dual(0.5, "next", "torch"),
    *(_dual(2.0, rival) for rival in ("2nd", "3rd", "mean2", "mean3", "mean_all", 0.1)),
    ADA_FOCAL,
    ADA_DUAL_FOCAL,
]
SMOOTHED = ("cross_entropy", "inverse_focal", "dual_focal-5.0-next-auto", "ada_dual_focal")
PER_SAMPLE = UNSMOOTHED + [_smoothed(case, 0.1) for case in UNSMOOTHED if case.name in SMOOTHED]

BATCH = [
    Case("mmce", L.mmce_loss, _mmce),
    Case("mmce-unweighted", partial(L.mmce_loss, weighted=False), partial(_mmce, weighted=False)),
    Case("mmce-as_published", partial(L.mmce_loss, as_published=True), partial(_mmce, as_published=True)),
    Case("kde_xe-0.1", partial(L.kde_xe_loss, bandwidth=0.1), partial(_kde, bandwidth=0.1)),
    Case("kde_xe-default", L.kde_xe_loss, partial(_kde, bandwidth=0.001)),
    Case("kde_xe-p2", partial(L.kde_xe_loss, bandwidth=0.3, norm=2.0), partial(_kde, bandwidth=0.3, p=2)),
]

BATCH_RIVALS = [_dual(2.0, f"batch_{kind}") for kind in ("next", "2nd", "mean2", "mean3", "mean_all")]

# One loss of each family, for tests that do not depend on the options.
PLAIN = {
    "cross_entropy": L.cross_entropy_loss,
    "label_smoothing": L.label_smoothing_loss,
    "brier": L.brier_loss,
    "mmce": L.mmce_loss,
    "focal": L.focal_loss,
    "flsd": L.flsd_loss,
    "inverse_focal": L.inverse_focal_loss,
    "dual_focal": L.dual_focal_loss,
    "ada_focal": ADA_FOCAL.loss,
    "ada_dual_focal": ADA_DUAL_FOCAL.loss,
    "kde_xe": partial(L.kde_xe_loss, bandwidth=0.1),
}
HAS_SMOOTHING = ("cross_entropy", "focal", "flsd", "inverse_focal", "dual_focal", "ada_focal", "ada_dual_focal")
WITH_SMOOTHED = PLAIN | {f"{name}-smoothed": partial(PLAIN[name], label_smoothing=0.1) for name in HAS_SMOOTHING}
