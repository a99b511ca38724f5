"""Small models and recipes for toy data, and the training loop written down by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracles
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dualfocal_lab.data import DataSet, load_data
from dualfocal_lab.models import make_model
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import train
from dualfocal_lab.train.randomness import derived_seed, make_batches

TIMES = ("seconds", "images_per_second")


# Models, which recipes name "toys:perceptron" and so on.


def perceptron(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_channels, 6), nn.Tanh(), nn.Linear(6, num_classes))


def with_batch_norm(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_channels, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, num_classes))


def with_dropout(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_channels, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, num_classes))


def partly_frozen(*, num_classes: int, in_channels: int) -> nn.Module:
    model = perceptron(num_classes=num_classes, in_channels=in_channels)
    model[0].requires_grad_(False)
    return model


class Picky(nn.Sequential):
    """Accepts only images in the memory format channels_last."""

    def forward(self, inputs: Tensor) -> Tensor:
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert not inputs.is_contiguous()
        return super().forward(inputs)


def convolution(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(in_channels, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, num_classes))


def picky(*, num_classes: int, in_channels: int) -> nn.Module:
    return Picky(*convolution(num_classes=num_classes, in_channels=in_channels))


def frozen(*, num_classes: int, in_channels: int) -> nn.Module:
    return perceptron(num_classes=num_classes, in_channels=in_channels).requires_grad_(False)


class Broken(nn.Linear):
    """Fails in training only, after it has drawn random numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        torch.rand(3)
        if self.training:
            raise RuntimeError("no way through")
        return super().forward(inputs)


def broken(*, num_classes: int, in_channels: int) -> nn.Module:
    return Broken(in_channels, num_classes)


# Recipes: 48 samples train, 20 validate, 20 test, unless changed.


def recipe_for(data: Path, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "data": str(data),
        "data_options": {"val_size": 20, "test_size": 20},
        "model": "toys:perceptron",
        "loss_options": {"gamma": 2.0} if changes.get("loss", "dual_focal") == "dual_focal" else {},
        "epochs": 3,
        "batch_size": 16,
        "milestones": (),
        "precision": "float64",
    }
    return Recipe(**settings | changes)


def images_for(data: Path, **changes: Any) -> Recipe:
    options = {"val_size": 12, "test_size": 12, "layout": "NHWC", **changes.pop("data_options", {})}
    return recipe_for(data, **{"model": "toys:convolution", **changes}, data_options=options)


def go(recipe: Recipe, out: Path, **options: Any) -> Run:
    return train(recipe, out, **{"device": "cpu", "progress": False} | options)


def weights_of(run: Run) -> dict[str, Tensor]:
    return load_file(run.path / "model.safetensors")


def without_times(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in log]


def data_of(recipe: Recipe) -> DataSet:
    return load_data(recipe.data, **recipe.data_options)


# The loop by hand.

Criterion = Callable[[Tensor, Tensor], Tensor]


def initial_model(recipe: Recipe, data: DataSet) -> nn.Module:
    torch.manual_seed(recipe.seed)
    return make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels).double()


def plain_loop(
    recipe: Recipe,
    lrs: list[float],
    criterion: Criterion,
    after_epoch: Callable[[nn.Module], None] = lambda model: None,
) -> tuple[nn.Module, list[dict[str, float]]]:
    """The model, and mean loss and mean gradient norm of each epoch: one weight tensor after the other, float64.

    ``criterion`` is summed over the batch; ``lrs`` are the learning rates of the epochs.
    """
    data = data_of(recipe)
    model = initial_model(recipe, data)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    first: list[Tensor | None] = [None] * len(weights)  # momentum, or Adam's mean of gradients
    second: list[Tensor] = [torch.zeros_like(weight) for weight in weights]
    steps, history = 0, []
    for epoch, lr in enumerate(lrs):
        model.train()
        losses, norms, number = [], [], 0
        draws = data.draw(seed=recipe.seed, epoch=epoch)
        torch.manual_seed(derived_seed(recipe.seed, epoch, "dropout 0"))
        for index in make_batches(recipe, data, epoch):
            inputs, target = data.batch(index, draws)
            total = criterion(model(inputs.double()), target)
            losses.append(total.item())
            number += len(index)
            loss = total if recipe.reduction == "sum" else total / len(index)
            gradients = list(torch.autograd.grad(loss, weights))
            norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
            norms.append(norm)
            if recipe.clip_norm is not None:
                gradients = [gradient * min(1.0, recipe.clip_norm / (norm + 1e-6)) for gradient in gradients]
            steps += 1
            with torch.no_grad():
                for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                    gradient = gradient + recipe.weight_decay * weight
                    before = first[i]
                    if recipe.optimizer == "sgd":
                        first[i] = now = gradient if before is None else recipe.momentum * before + gradient
                        weight -= lr * now
                    else:
                        first[i] = now = 0.9 * (torch.zeros_like(weight) if before is None else before) + 0.1 * gradient
                        second[i] = 0.999 * second[i] + 0.001 * gradient**2
                        root = (second[i] / (1 - 0.999**steps)).sqrt() + 1e-8
                        weight -= lr * (now / (1 - 0.9**steps)) / root
        history.append({"train_loss": math.fsum(losses) / number, "grad_norm": math.fsum(norms) / len(norms)})
        model.eval()
        after_epoch(model)
    return model, history


def dual_focal(logits: Tensor, target: Tensor) -> Tensor:
    return oracles.dual_focal(logits, target, 2.0).sum()


def assert_same(run: Run, model: nn.Module, history: list[dict[str, float]], lrs: list[float]) -> None:
    actual, true = weights_of(run), model.state_dict()
    assert actual.keys() == true.keys()
    for name, tensor in true.items():
        assert actual[name].dtype == tensor.dtype
        torch.testing.assert_close(actual[name], tensor, rtol=1e-9, atol=1e-9)
    log = run.log
    assert [line["epoch"] for line in log] == list(range(1, len(lrs) + 1))
    for line, expected, lr in zip(log, history, lrs, strict=True):
        assert line["lr"] == pytest.approx(lr, rel=1e-12)
        assert line["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-9)
        if run.recipe.clip_norm is None:
            assert line["grad_norm"] is None
        else:
            assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-9)
