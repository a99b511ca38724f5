"""Same seed, same bytes; and what belongs to the caller is not changed by a training."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import go, recipe_for, without_times

from dualfocal.models import make_model


@pytest.mark.usefixtures("quick")
def test_same_seed_same_bytes(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, model="toys:with_dropout", precision="float32")
    runs = []
    for name in ("a", "b"):
        torch.manual_seed(len(runs))
        runs.append(go(recipe, tmp_path / name))
    other = go(recipe_for(toy, model="toys:with_dropout", precision="float32", seed=2), tmp_path / "other")
    assert without_times(runs[0].log) == without_times(runs[1].log)
    for file in ("model.safetensors", "predictions.safetensors", "recipe.json"):
        first, second, third = ((run.path / file).read_bytes() for run in (*runs, other))
        assert first == second
        assert first != third


def surroundings() -> dict[str, Any]:
    """What belongs to the caller, in a form that can be compared."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": os.getcwd(),
        "path": list(sys.path),
        "environment": dict(os.environ),
    }


@pytest.fixture
def unusual() -> Any:
    """Settings that are not the defaults."""
    before = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("model", ["with_dropout", "broken"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_surroundings_are_left_alone(deterministic: bool, model: str, toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        toy, model=f"toys:{model}", deterministic=deterministic, precision="bfloat16", clip_norm=None, epochs=1
    )
    make_model("toys:perceptron", num_classes=2, in_channels=2)  # imports what is imported once
    before = surroundings()
    if model == "broken":
        with pytest.raises(ValueError, match=r"model toys:broken fails in training .*: no way through"):
            go(recipe, tmp_path / "run")
    else:
        go(recipe, tmp_path / "run")
    assert surroundings() == before
