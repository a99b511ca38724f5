"""Value and gradient of every loss: function and module, all kinds of targets, weights, reductions and dtypes."""

import inspect
from collections.abc import Callable
from typing import Any

import inputs
import torch
from torch import Tensor
from values import Recording, Section

from dualfocal import losses as package

RIVALS = ("next", "2nd", "3rd", "mean2", "mean3", "mean_all", 0.1, "batch_next", "batch_2nd", "batch_mean2")
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "label_smoothing": [{"alpha": 0.1, "spread": "all"}],
    "focal": [{"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 2.5}],
    "flsd": [{"gammas": (6.0, 4.0, 2.0), "thresholds": (0.25, 0.5)}],
    "inverse_focal": [{"gamma": 1.0}, {"gamma": 3.5}],
    "dual_focal": [
        *({"gamma": gamma} for gamma in (0.0, 0.5, 1.0, 6.0)),
        *({"gamma": 2.0, "rival": rival} for rival in RIVALS),
        {"gamma": 5.0, "impl": "torch"},
    ],
    "mmce": [{"weighted": False}, {"as_published": True}, {"strength": 4.0, "width": 0.2}],
    "kde_xe": [{"bandwidth": 0.1}, {"bandwidth": 0.3, "norm": 2.0}, {"strength": 1.0, "bandwidth": 0.2}],
}
BINS = {"bin_gamma": torch.tensor([5.0, -1.5, 0.7, -0.2, 2.0]), "bin_edges": torch.tensor([0.1, 0.3, 0.5, 0.8])}
ADAPTIVE = ({}, {"variant": "no_switch", "num_bins": 6}, {"rate": 3.0, "gamma": 0.4}, {"frozen": True})
Case = tuple[Tensor, Tensor, dict[str, Any]]  # logits, target, options of the call


def cases() -> dict[str, Case]:
    """Return the inputs of a loss by name."""
    logits, target = inputs.tensors(*inputs.sample(16, 5, 20))
    soft = torch.from_numpy(inputs.softmax(inputs.sample(16, 5, 21)[0]))
    weight = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    ignored = torch.where(torch.arange(16) % 5 == 0, -100, target)
    flat, flat_target = inputs.tensors(*inputs.sample(2 * 3 * 2, 4, 22))
    dense = flat.reshape(2, 3, 2, 4).movedim(-1, 1).contiguous()
    two, two_target = inputs.tensors(*inputs.sample(12, 2, 23))
    return {
        "hard": (logits, target, {}),
        "none": (logits, target, {"reduction": "none"}),
        "ignored-3": (logits, target, {"ignore_index": 3, "weight": weight}),
        "soft": (logits, soft, {}),
        "sum": (logits, target, {"reduction": "sum"}),
        "weight": (logits, target, {"weight": weight}),
        "ignored": (logits, ignored, {}),
        "soft-weight-sum": (logits, soft, {"weight": weight, "reduction": "sum"}),
        "dense": (dense, flat_target.reshape(2, 3, 2), {"reduction": "none"}),
        "large": (40 * logits, target, {"reduction": "none"}),
        "two": (two, two_target, {}),
    }


MODULE_CASES = ("hard", "none", "ignored-3", "soft")


def value_and_gradient(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return the loss, and the gradient of its sum with different weights of the entries."""
    z = logits.detach().requires_grad_()
    value = loss(z, target)
    slope = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
    (gradient,) = torch.autograd.grad((value * slope).sum(), z)
    return {"value": value, "gradient": gradient}


def record_loss(rec: Recording, key: str, make: Callable[..., Any], module: bool) -> None:
    """Record one loss with all inputs; modules with a few, because they call the functions."""
    batch_rival = "rival=batch" in key
    for name, (values, labels, options) in cases().items():
        if (labels.is_floating_point() and batch_rival) or (module and name not in MODULE_CASES):
            continue  # a rival of the batch needs class indices
        for dtype in (torch.float32, torch.float64) if module else (torch.float32, torch.float64, torch.bfloat16):
            target = labels.to(dtype) if labels.is_floating_point() else labels
            given = {name: of.to(dtype) if isinstance(of, Tensor) else of for name, of in options.items()}
            kind = str(dtype).removeprefix("torch.")
            rec.call(f"{key}/{kind}/{name}", value_and_gradient, make(given), values.to(dtype), target)


def losses(rec: Recording) -> None:
    """Every loss with all its variants, as a function and as a module."""
    for name, module in package.LOSSES.items():
        function = getattr(package, f"{name}_loss")
        needed = BINS if "bin_gamma" in inspect.signature(function).parameters else {}
        for options in [{}, *VARIANTS.get(name, [])]:
            label = ",".join(f"{key}={value}" for key, value in options.items()) or "default"
            fixed = {**options, **needed}
            record_loss(
                rec,
                f"{name}/{label}/function",
                lambda given, f=function, fixed=fixed: lambda z, y: f(z, y, **fixed, **given),
                module=False,
            )
            record_loss(rec, f"{name}/{label}/module", lambda given, m=module, o=options: m(**o, **given), module=True)


def adaptive(rec: Recording) -> None:
    """State and value of adaptive losses after each update, and the bandwidth of KDE."""
    logits, target = inputs.tensors(*inputs.sample(48, 6, 20))
    val_logits, val_target = inputs.tensors(*inputs.sample(400, 6, 24))
    for name in ("ada_focal", "ada_dual_focal"):
        for options in ADAPTIVE:
            criterion = package.LOSSES[name](**options)
            label = ",".join(f"{key}={value}" for key, value in options.items()) or "default"
            for step in range(3):
                criterion.update(val_logits.float() * (1.0 + step), val_target)
                rec.put(f"{name}/{label}/{step}/state", dict(criterion.state_dict()))
                rec.put(f"{name}/{label}/{step}/value", criterion(logits.float(), target))
    for published in (False, True):
        rec.call(f"kde_bandwidth/{published}", package.kde_bandwidth, logits.float(), as_published=published)


SECTIONS = {"losses": Section(losses), "adaptive": Section(adaptive)}
