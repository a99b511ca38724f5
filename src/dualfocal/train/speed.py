"""How a training is run, for the record: what has come of the choices made for speed."""

from typing import Any

import torch
from torch import nn

from dualfocal.models import MODELS
from dualfocal.models.normalization import kernels_on
from dualfocal.runs.recipe import Recipe
from dualfocal.train.step import Step


def how_it_runs(step: Step, model: nn.Module) -> dict[str, Any]:
    """What has come of the choices for speed so far, for the record of a session; the model is in training."""
    recipe, device = step.recipe, step.group.device
    return {
        "step": step.way,
        "start_up_seconds": step.seconds,
        "bfloat16_copies": step.halves is not None,
        "batch_norm_kernels": uses_kernels(model, recipe, device, step.way),
        "slowed_by": [why for why in (step.problem, slowed_by(model, recipe, device)) if why],
    }


def slowed_by(model: nn.Module, recipe: Recipe, device: torch.device) -> str | None:
    """Why batch norm is not done by our kernels, where it should be. There has been a warning, but who reads those?"""
    if device.type != "cuda" or recipe.model not in MODELS:
        return None
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    return kernels_on(device).problem if has_batch_norm else None


def uses_kernels(model: nn.Module, recipe: Recipe, device: torch.device, step: str) -> bool:
    """Whether batch norm is done by our kernels in a step, for a model in training; its first one stands for all."""
    norm = next((module for module in model.modules() if isinstance(module, nn.BatchNorm2d)), None)
    if norm is None or device.type != "cuda" or recipe.model not in MODELS or step == "compiled":
        return False
    kernels = kernels_on(device).module
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else norm.weight.dtype
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    like = torch.empty((2, norm.num_features, 2, 2), dtype=dtype, device=device, memory_format=layout)
    return kernels is not None and bool(kernels.applies(like, norm))
