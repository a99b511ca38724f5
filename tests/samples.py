"""Samples that tests draw: one definition of each, imported by all."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PREDICTIONS = "predictions.safetensors"


def draw_logits(
    num_samples: int,
    num_classes: int,
    *,
    seed: int = 0,
    scale: float = 2.0,
    overconfidence: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Random logits and labels drawn from ``softmax(logits / overconfidence)``: calibrated if that is 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(num_samples, num_classes, generator=generator)).to(dtype)
    target = torch.multinomial((logits.float() / overconfidence).softmax(1), 1, generator=generator)[:, 0]
    return logits, target


def draw_images(
    number: int = 60, num_classes: int = 3, side: int = 12, *, seed: int = 0, sharpness: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Logits and labels of images whose pixels are right or wrong together: calibrated if ``sharpness`` is 1."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (torch.randn(number, num_classes, n, n, generator=generator) for n in (1, side))
    logits = 1.5 * (common + 0.7 * own)
    common, own = (torch.rand(number, n, n, generator=generator) for n in (1, side))
    target = (logits.softmax(1).cumsum(1) <= (0.7 * common + 0.3 * own)[:, None]).sum(1)
    return sharpness * logits, target.clamp_max(num_classes - 1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of each row, in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def write_run(folder: Path, parts: Mapping[str, tuple[Tensor, Tensor]]) -> Path:
    """Write what the library reads of a finished run: its predictions of each part, beside a recipe."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text("{}")
    tensors = {f"{part}_logits": logits for part, (logits, _) in parts.items()}
    save_file(tensors | {f"{part}_target": target for part, (_, target) in parts.items()}, folder / PREDICTIONS)
    return folder


def run_predictions(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Logits and labels of a part of a run."""
    tensors = load_file(folder / PREDICTIONS)
    return tensors[f"{part}_logits"], tensors[f"{part}_target"]
