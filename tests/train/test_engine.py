"""The training loop beside a slow one written down by hand; its log, its weights, and what it leaves as it was."""

import math
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import metric_oracles
import numpy as np
import oracles
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from dualfocal.data import DataSet, load_data
from dualfocal.losses import LOSSES, AdaDualFocalLoss, AdaFocalLoss
from dualfocal.metrics import evaluate
from dualfocal.models import make_model
from dualfocal.runs import Recipe, Run
from dualfocal.train import display, engine, train
from dualfocal.train.checkpoint import Position
from dualfocal.train.distributed import Group
from dualfocal.train.randomness import derived_seed, make_batches
from dualfocal.train.validation import summarize

TIMES = ("seconds", "images_per_second")
FOLLOWS = "ignore:loss ada_.* uses the validation split"


# Models, called by name: "test_engine:perceptron".


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
    """Takes nothing but images in the memory format channels_last."""

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
    """Until it is trained, nothing can be told."""

    def forward(self, inputs: Tensor) -> Tensor:
        torch.rand(3)
        if self.training:
            raise RuntimeError("no way through")
        return super().forward(inputs)


def broken(*, num_classes: int, in_channels: int) -> nn.Module:
    return Broken(in_channels, num_classes)


# Data: 48 samples train, 20 validate, 20 test, unless asked otherwise.


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """88 samples of 5 features, 4 classes that overlap."""
    rng = np.random.default_rng(3)
    target = rng.permutation(np.arange(88) % 4)
    inputs = rng.normal(size=(4, 5))[target] + 0.8 * rng.normal(size=(88, 5))
    path = tmp_path_factory.mktemp("toy") / "toy.npz"
    np.savez(path, x=inputs.astype(np.float32), y=target)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 coloured images of 8 x 8 pixels, 3 classes that differ in brightness of a corner."""
    rng = np.random.default_rng(4)
    target = np.arange(60) % 3
    images = rng.integers(0, 120, (60, 8, 8, 3), dtype=np.uint8)
    images[:, :4, :4] += (60 * target[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("pictures") / "pictures.npz"
    np.savez(path, x=images, y=target)
    return path


def recipe_for(data: Path, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "data": str(data),
        "data_options": {"val_size": 20, "test_size": 20},
        "model": "test_engine:perceptron",
        "loss_options": {"gamma": 2.0} if changes.get("loss", "dual_focal") == "dual_focal" else {},
        "epochs": 3,
        "batch_size": 16,
        "milestones": (),
        "precision": "float64",
    }
    return Recipe(**settings | changes)


def images_for(data: Path, **changes: Any) -> Recipe:
    options = {"val_size": 12, "test_size": 12, "layout": "NHWC", **changes.pop("data_options", {})}
    return recipe_for(data, **{"model": "test_engine:convolution", **changes}, data_options=options)


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


CASES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "sum, clipped": ({"reduction": "sum", "clip_norm": 2.0}, [0.1] * 3),  # the published pair
    "mean": ({"reduction": "mean", "clip_norm": None}, [0.1] * 3),
    "last batch is smaller": ({"reduction": "mean", "clip_norm": 0.3, "batch_size": 20}, [0.1] * 3),
    "drop_last": ({"drop_last": True, "batch_size": 20}, [0.1] * 3),
    "adam": ({"optimizer": "adam", "lr": 0.02, "reduction": "mean", "weight_decay": 0.01}, [0.02] * 3),
    "adam, clipped": ({"optimizer": "adam", "lr": 0.02, "clip_norm": 0.5}, [0.02] * 3),
    "step": ({"lr": 0.2, "milestones": (1, 2), "lr_factor": 0.5}, [0.2, 0.1, 0.05]),
    "cosine": ({"lr": 0.2, "schedule": "cosine"}, [0.2, 0.15, 0.05]),
    "no momentum, no decay": ({"momentum": 0.0, "weight_decay": 0.0}, [0.1] * 3),
    "batch norm": ({"model": "test_engine:with_batch_norm", "clip_norm": 1.0, "lr": 0.05}, [0.05] * 3),
    "dropout": ({"model": "test_engine:with_dropout"}, [0.1] * 3),
    "a frozen layer": ({"model": "test_engine:partly_frozen"}, [0.1] * 3),
    "one batch is all": ({"batch_size": 1000, "reduction": "mean"}, [0.1] * 3),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("case", CASES)
def test_equals_a_loop_by_hand(case: str, toy: Path, tmp_path: Path) -> None:
    changes, lrs = CASES[case]
    recipe = recipe_for(toy, **changes)
    run = go(recipe, tmp_path / "run")
    assert_same(run, *plain_loop(recipe, lrs, dual_focal), lrs)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("loss", ["cross_entropy", "brier", "label_smoothing", "mmce"])
def test_equals_a_loop_by_hand_for_other_losses(loss: str, toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, loss=loss, epochs=2)

    def criterion(logits: Tensor, target: Tensor) -> Tensor:
        if loss == "mmce":
            return oracles.cross_entropy(logits, target).sum() + len(target) * 2.0 * oracles.mmce(logits, target)
        return getattr(oracles, loss)(logits, target).sum()

    assert_same(go(recipe, tmp_path / "run"), *plain_loop(recipe, [0.1] * 2, criterion), [0.1] * 2)


@pytest.mark.usefixtures("quick")
def test_equals_a_loop_by_hand_with_augmentation(pictures: Path, tmp_path: Path) -> None:
    recipe = images_for(pictures, data_options={"padding": 2, "flip": True}, epochs=2, lr=0.02)
    run = go(recipe, tmp_path / "run")
    model, history = plain_loop(recipe, [0.02] * 2, dual_focal)
    assert_same(run, model, history, [0.02] * 2)
    data = data_of(recipe)
    for part in ("val", "test"):  # images are predicted as they are
        inputs, target = data.batch(data.splits[part], part=part)
        logits, labels = run.predictions(part)
        assert torch.equal(labels, target)
        torch.testing.assert_close(logits, model(inputs.double()).detach(), rtol=1e-6, atol=1e-6)
    unvaried = go(images_for(pictures, epochs=2, lr=0.02), tmp_path / "unvaried")
    assert not torch.allclose(weights_of(run)["0.weight"], weights_of(unvaried)["0.weight"])


@pytest.mark.usefixtures("quick")
def test_sum_is_mean_at_a_learning_rate_divided_by_the_batch(toy: Path, tmp_path: Path) -> None:
    """Where nothing is clipped and all batches are equal; with clipping the two are different recipes."""

    def weights(name: str, **changes: Any) -> Tensor:
        run = go(recipe_for(toy, weight_decay=0.0, **changes), tmp_path / name)
        return torch.cat([weight.flatten() for weight in weights_of(run).values()])

    mean = weights("mean", reduction="mean", clip_norm=None, lr=0.16)
    torch.testing.assert_close(weights("sum", reduction="sum", clip_norm=None, lr=0.01), mean, rtol=1e-9, atol=1e-12)
    clipped = weights("sum clipped", reduction="sum", clip_norm=2.0, lr=0.01)
    assert not torch.allclose(clipped, weights("mean clipped", reduction="mean", clip_norm=2.0, lr=0.16), rtol=1e-2)


@pytest.mark.usefixtures("quick")
def test_clipping_above_every_norm_changes_nothing(toy: Path, tmp_path: Path) -> None:
    free = go(recipe_for(toy, clip_norm=None, reduction="mean"), tmp_path / "free")
    bounded = go(recipe_for(toy, clip_norm=1e6, reduction="mean"), tmp_path / "bounded")
    for name, weight in weights_of(free).items():
        assert torch.equal(weight, weights_of(bounded)[name])


# Adaptive losses.


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings(FOLLOWS)
@pytest.mark.parametrize("val2_size", [0, 15])
@pytest.mark.parametrize("loss", ["ada_focal", "ada_dual_focal"])
def test_gamma_follows_validation(loss: str, val2_size: int, toy: Path, tmp_path: Path) -> None:
    options = {"val_size": 20, "test_size": 20, "val2_size": val2_size}
    recipe = recipe_for(toy, loss=loss, loss_options={"num_bins": 4}, data_options=options)
    data = data_of(recipe)
    part = "val2" if val2_size else "val"
    criterion: AdaFocalLoss = {"ada_focal": AdaFocalLoss, "ada_dual_focal": AdaDualFocalLoss}[loss](
        num_bins=4, reduction="sum"
    )
    gammas, slow = [], criterion.gamma.tolist()
    other = LOSSES[loss](num_bins=4)  # what would come of the other part

    def update(model: nn.Module) -> None:
        nonlocal slow
        with torch.no_grad():
            logits, target = model(data.batch(data.splits[part], part=part)[0].double()), data.part(part)[1]
            other.update(model(data.batch(data.splits["val"], part="val")[0].double()), data.part("val")[1])
        criterion.update(logits, target)
        gammas.append(criterion.gamma.tolist())
        probs = [metric_oracles.softmax(row) for row in logits.tolist()]
        confidence, correct = metric_oracles.top_label(probs, target.tolist())
        ranked = [sorted(p, reverse=True) for p in probs]
        scores = [p[0] - p[1] for p in ranked] if loss == "ada_dual_focal" else confidence
        slow, _ = oracles.adaptive_update(slow, confidence, correct, scores)
        assert gammas[-1] == pytest.approx(slow, rel=1e-4)

    run = go(recipe, tmp_path / "run")
    assert_same(run, *plain_loop(recipe, [0.1] * 3, criterion, update), [0.1] * 3)
    assert [line["gamma"] for line in run.log] == [pytest.approx(gamma, rel=1e-6) for gamma in gammas]
    assert len({tuple(gamma) for gamma in gammas}) == 3
    if val2_size:
        assert other.gamma.tolist() != pytest.approx(gammas[-1], rel=1e-4)
    # Results are of val, whatever gamma followed.
    logits, target = run.predictions("val")
    assert torch.equal(target, data.part("val")[1])
    assert run.log[-1]["val_nll"] == pytest.approx(evaluate(logits, target).nll, rel=1e-9)


@pytest.mark.usefixtures("quick")
def test_a_loss_that_follows_the_part_of_the_temperature_says_so(toy: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"loss ada_focal uses the validation split .* data\.val2_size"):
        run = go(recipe_for(toy, loss="ada_focal", epochs=1), tmp_path / "run")
    assert any("data.val2_size" in note for note in run.result.notes)
    options = {"val_size": 20, "test_size": 20, "val2_size": 15}
    run = go(recipe_for(toy, loss="ada_focal", epochs=1, data_options=options), tmp_path / "second")  # no warning
    assert run.result.notes == []


@pytest.mark.usefixtures("quick")
def test_a_frozen_adaptive_loss_follows_nothing(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, loss="ada_dual_focal", loss_options={"gamma": 6.0, "frozen": True}, epochs=1)
    assert go(recipe, tmp_path / "run").result.notes == []  # a warning is an error here


# Batches.


def test_batches_are_each_sample_once_in_another_order_each_epoch_and_seed(toy: Path) -> None:
    recipe = recipe_for(toy, batch_size=20)
    data = data_of(recipe)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    orders = {}
    for seed in (1, 2, 2**62):
        for epoch in range(3):
            batches = make_batches(recipe_for(toy, batch_size=20, seed=seed), data, epoch)
            assert [len(batch) for batch in batches] == [20, 20, 8]
            orders[seed, epoch] = torch.cat(batches)
            assert torch.equal(orders[seed, epoch].sort().values, data.splits["train"].sort().values)
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    np.random.seed(6)
    assert torch.equal(torch.cat(make_batches(recipe, data, 2)), orders[1, 2])


def test_batches_with_drop_last(toy: Path) -> None:
    data = data_of(recipe_for(toy))
    kept = make_batches(recipe_for(toy, batch_size=20), data, 0)
    dropped = make_batches(recipe_for(toy, batch_size=20, drop_last=True), data, 0)
    assert [batch.tolist() for batch in dropped] == [batch.tolist() for batch in kept[:2]]
    whole = make_batches(recipe_for(toy, batch_size=16, drop_last=True), data, 0)
    assert [len(batch) for batch in whole] == [16, 16, 16]
    assert [len(batch) for batch in make_batches(recipe_for(toy, batch_size=48, drop_last=True), data, 0)] == [48]


def test_seeds_for_a_purpose_do_not_meet() -> None:
    seeds = {
        derived_seed(seed, epoch, purpose)
        for seed in (0, 1, 2, 2**32, 2**32 + 1, 2**63 - 1)
        for epoch in range(50)
        for purpose in ("order", "dropout 0", "dropout 1", "dropout 11")
    }
    assert len(seeds) == 6 * 50 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)


# The log.


@pytest.fixture(scope="module")
def logged(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = recipe_for(toy, precision="float32", test_each_epoch=True, batch_size=15)
    return go(recipe, tmp_path_factory.mktemp("logged") / "run")


@pytest.mark.parametrize("part", ["val", "test"])
def test_log_says_what_the_predictions_say(logged: Run, part: str) -> None:
    logits, target = logged.predictions(part)
    assert logits.dtype == torch.float32
    line, actual = logged.log[-1], evaluate(logits, target)
    assert line[f"{part}_error"] == actual.error
    assert line[f"{part}_ece"] == actual.ece
    assert line[f"{part}_nll"] == pytest.approx(actual.nll, rel=1e-12)

    probs = [metric_oracles.softmax(row) for row in logits.double().tolist()]
    confidence, correct = metric_oracles.top_label(probs, target.tolist())
    assert line[f"{part}_error"] == pytest.approx(1 - sum(correct) / len(correct))
    edges = metric_oracles.equal_width(15)
    assert line[f"{part}_ece"] == pytest.approx(metric_oracles.ece(confidence, correct, edges), abs=1e-6)
    assert line[f"{part}_nll"] == pytest.approx(metric_oracles.nll(probs, target.tolist()), rel=1e-6)
    p_k = [p[y] for p, y in zip(probs, target.tolist(), strict=True)]
    p_j = [max([c for c in p if c < own], default=0.0) for p, own in zip(probs, p_k, strict=True)]
    assert line[f"{part}_p_k"] == pytest.approx(math.fsum(p_k) / len(p_k), rel=1e-6)
    assert line[f"{part}_p_j"] == pytest.approx(math.fsum(p_j) / len(p_j), rel=1e-6)
    loss = float(oracles.dual_focal(logits.double(), target, 2.0).mean())
    assert line[f"{part}_loss"] == pytest.approx(loss, rel=1e-5)


def test_p_k_and_p_j_in_the_log_are_those_of_a_slow_loop() -> None:
    """With ties, with samples that have no class below the true one, and far apart."""
    logits = torch.randn(200, 4) * 3
    logits[:80] = logits[:80].round()
    logits[80:90] *= 100
    target = torch.randint(4, (200,))
    actual = summarize(logits, target, LOSSES["cross_entropy"](reduction="sum"), 64, Group(0, 1, torch.device("cpu")))
    probs = [metric_oracles.softmax(row) for row in logits.tolist()]
    p_k = [p[y] for p, y in zip(probs, target.tolist(), strict=True)]
    p_j = [max([c for c in p if c < own], default=0.0) for p, own in zip(probs, p_k, strict=True)]
    assert sum(own == min(p) for p, own in zip(probs, p_k, strict=True)) > 20  # no rival
    assert sum(p.count(own) > 1 for p, own in zip(probs, p_k, strict=True)) > 10  # a tie
    assert actual["p_k"] == pytest.approx(math.fsum(p_k) / 200, rel=1e-9)
    assert actual["p_j"] == pytest.approx(math.fsum(p_j) / 200, rel=1e-9)
    assert actual["loss"] == pytest.approx(actual["nll"], rel=1e-6)


@pytest.mark.usefixtures("quick")
def test_log_of_a_loss_that_belongs_to_a_batch(toy: Path, tmp_path: Path) -> None:
    """Validation is in batches as training is: 15 and 5 of 20."""
    run = go(recipe_for(toy, loss="mmce", batch_size=15, epochs=1), tmp_path / "run")
    logits, target = run.predictions("val")
    total = sum(
        float(oracles.cross_entropy(z, y).sum() + len(y) * 2 * oracles.mmce(z, y))
        for z, y in zip(logits.split(15), target.split(15), strict=True)
    )
    assert run.log[0]["val_loss"] == pytest.approx(total / 20, rel=1e-9)


def test_log_is_of_each_epoch(logged: Run, toy: Path, tmp_path: Path) -> None:
    """The same run, ended earlier, has the same lines."""
    earlier = go(recipe_for(toy, precision="float32", test_each_epoch=True, batch_size=15, epochs=2), tmp_path / "run")
    assert without_times(earlier.log) == without_times(logged.log)[:2]
    names = {f"{part}_{name}" for part in ("val", "test") for name in ("error", "ece", "nll", "loss", "p_k", "p_j")}
    for line in logged.log:
        assert line.keys() == names | {"schema", "epoch", "lr", "train_loss", "grad_norm", *TIMES}
        assert line["seconds"] > 48 / line["images_per_second"] > 0


@pytest.mark.filterwarnings("ignore:weights=best_.* uses the validation split")
def test_test_part_is_not_looked_at(tmp_path: Path) -> None:
    """Another test part: the same weights, kept by validation, and the same log."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.normal(size=(24, 5)).astype(np.float32) for part in ("train", "val", "test")}
    arrays |= {f"y_{part}": np.arange(24) % 4 for part in ("train", "val", "test")}
    runs = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / "data.npz", **arrays)
        runs.append(go(recipe_for(folder / "data.npz", data_options={}, weights="best_nll"), folder / "run"))
        arrays["x_test"] = arrays["x_test"][:9] * 3
        arrays["y_test"] = 3 - arrays["y_test"][:9]
    assert len(runs[1].predictions("test")[1]) == 9
    assert without_times(runs[0].log) == without_times(runs[1].log)
    assert not any(name.startswith("test") for line in runs[0].log for name in line)
    assert (runs[0].path / "model.safetensors").read_bytes() == (runs[1].path / "model.safetensors").read_bytes()
    scaled = [run.result.evaluation("val", "temperature").to_dict() for run in runs[:2]]
    assert scaled[0] == scaled[1]


def test_logging_the_test_part_changes_nothing_else(logged: Run, toy: Path, tmp_path: Path) -> None:
    without = go(recipe_for(toy, precision="float32", batch_size=15), tmp_path / "run")
    for before, after in zip(without_times(without.log), without_times(logged.log), strict=True):
        assert before == {name: value for name, value in after.items() if not name.startswith("test_")}
    assert (without.path / "model.safetensors").read_bytes() == (logged.path / "model.safetensors").read_bytes()


# Which weights are kept.


@pytest.mark.filterwarnings("ignore:weights=best_.* uses the validation split")
@pytest.mark.parametrize("score", ["error", "nll"])
def test_best_weights_are_of_the_first_epoch_with_the_lowest_score(score: str, toy: Path, tmp_path: Path) -> None:
    changes = {"lr": 0.4, "epochs": 8, "loss": "cross_entropy", "seed": 4}
    run = go(recipe_for(toy, weights=f"best_{score}", **changes), tmp_path / "best")
    values = [line[f"val_{score}"] for line in run.log]
    best = values.index(min(values)) + 1
    assert run.result.weights_of_epoch == best
    assert 1 < best < 8, "else the test says little"
    if score == "error":
        assert values.count(min(values)) > 1, "else the test does not tell the first from the last"
    assert getattr(run.result.parts["val"], score) == pytest.approx(min(values), rel=1e-12)

    last = go(recipe_for(toy, **changes), tmp_path / "last")
    assert last.result.weights_of_epoch == 8
    assert without_times(last.log) == without_times(run.log)
    until = go(recipe_for(toy, **{**changes, "epochs": best}), tmp_path / "until")
    for name, weight in weights_of(run).items():
        assert torch.equal(weight, weights_of(until)[name])
    assert not torch.equal(weights_of(run)["0.weight"], weights_of(last)["0.weight"])

    data = data_of(run.recipe)
    for part in ("val", "test"):
        logits, target = run.predictions(part)
        with torch.no_grad():
            torch.testing.assert_close(run.model()(data.part(part)[0].double()), logits)
        assert torch.equal(target, data.part(part)[1])
        assert torch.equal(logits, until.predictions(part)[0])


# Repeatable, and nothing of the caller's is changed.


@pytest.mark.usefixtures("quick")
def test_same_seed_same_bytes(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, model="test_engine:with_dropout", precision="float32")
    runs = []
    for name in ("a", "b"):
        torch.manual_seed(len(runs))
        runs.append(go(recipe, tmp_path / name))
    other = go(recipe_for(toy, model="test_engine:with_dropout", precision="float32", seed=2), tmp_path / "other")
    assert without_times(runs[0].log) == without_times(runs[1].log)
    for file in ("model.safetensors", "predictions.safetensors", "recipe.json"):
        first, second, third = ((run.path / file).read_bytes() for run in (*runs, other))
        assert first == second
        assert first != third


@pytest.mark.usefixtures("quick")
def test_initial_weights_are_those_of_the_seed(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, lr=0.0, seed=7, precision="float32", epochs=1)
    torch.manual_seed(7)
    model = make_model("test_engine:perceptron", num_classes=4, in_channels=5)
    for name, weight in weights_of(go(recipe, tmp_path / "run")).items():
        assert torch.equal(weight, model.state_dict()[name])


def surroundings() -> dict[str, Any]:
    """What belongs to the caller, in a form that can be compared."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
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
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("model", ["with_dropout", "broken"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_surroundings_are_left_alone(deterministic: bool, model: str, toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        toy, model=f"test_engine:{model}", deterministic=deterministic, precision="bfloat16", clip_norm=None, epochs=1
    )
    make_model("test_engine:perceptron", num_classes=2, in_channels=2)  # imports what is imported once
    before = surroundings()
    if model == "broken":
        with pytest.raises(ValueError, match=r"model test_engine:broken fails in training .*: no way through"):
            go(recipe, tmp_path / "run")
    else:
        go(recipe, tmp_path / "run")
    assert surroundings() == before


def test_warn_only_stays_warn_only(toy: Path, tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        go(recipe_for(toy, epochs=1), tmp_path / "run")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# What does not go together.


def test_without_validation(toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(toy, data_options={"val_size": 0, "test_size": 20}, epochs=2)
    with pytest.warns(UserWarning, match=r"no validation split.* set data\.val_size"):
        run = go(recipe, tmp_path / "run")
    assert not any(name.startswith("val") for line in run.log for name in line)
    assert run.result.to_dict().keys() & {"val", "test", "calibrated"} == {"test"}
    assert any("no validation split" in note for note in run.result.notes)
    assert load_file(run.path / "predictions.safetensors").keys() == {"test_logits", "test_target"}
    assert_same(run, *plain_loop(recipe, [0.1] * 2, dual_focal), [0.1] * 2)


def test_without_test_part(toy: Path, tmp_path: Path) -> None:
    run = go(recipe_for(toy, data_options={"val_size": 20, "test_size": 0}, test_each_epoch=True), tmp_path / "run")
    assert run.result.to_dict().keys() & {"val", "test", "calibrated"} == {"val", "calibrated"}
    assert run.result.calibrated["temperature"].parts.keys() == {"val"}
    assert not any(name.startswith("test") for line in run.log for name in line)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "ada_focal"}, r"loss ada_focal needs a validation split, .* has none; set data\.val_size"),
        ({"loss": "ada_dual_focal"}, "loss ada_dual_focal needs a validation split"),
        ({"weights": "best_error"}, r"weights=best_error needs a validation split, .* has none; set data\.val_size"),
        ({"weights": "best_nll"}, "weights=best_nll needs a validation split"),
    ],
)
def test_what_needs_validation_is_refused_without(
    changes: dict[str, Any], message: str, toy: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(toy, data_options={"val_size": 0, "test_size": 20}, **changes)
    with pytest.raises(ValueError, match=message):
        go(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_training_part_is_refused(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_test(*args: object, **options: object) -> DataSet:
        data = load_data(str(toy))
        return DataSet(name="t", class_names=data.class_names, inputs=data.inputs, target=data.target,
                       splits={"test": data.splits["test"]})  # fmt: skip

    monkeypatch.setattr(engine, "load_data", only_test)
    with pytest.raises(ValueError, match="has no training split"):
        go(recipe_for(toy), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"drop_last": True, "batch_size": 49}, {}, "drop_last=true drops all samples: batch_size is 49, .* has 48"),
        ({"sync_bn": True}, {}, "sync_bn=true needs a CUDA device, .* cpu"),
        ({"model": "test_engine:frozen"}, {}, "test_engine:frozen has no trainable weights"),
        ({}, {"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
        ({}, {"device": "toaster"}, r"device must be cpu, cuda, cuda:1, \.\.\., got 'toaster'"),
        ({}, {"device": "cuda:99"}, "device 'cuda:99' is not available to this process"),
        ({"data_options": {"val_sise": 3}}, {}, "has the options .*val_size"),
    ],
)
def test_refused(changes: dict[str, Any], options: dict[str, Any], message: str, toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        go(recipe_for(toy, **changes), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("quick")
def test_milestones_beyond_the_end_are_remarked_on(toy: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="never falls: .* epoch 150, .* epoch 2"):
        run = go(recipe_for(toy, milestones=(150, 250), epochs=2), tmp_path / "run")
    assert "never falls" in run.result.notes[0]


def test_test_part_may_be_encoded_differently(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without augmentation, too."""

    class Twice(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * inputs

    def encoded(*args: Any, **options: Any) -> DataSet:
        data = load_data(*args, **options)
        return DataSet(name="t", class_names=data.class_names, inputs=data.inputs, target=data.target,
                       splits=data.splits, test_encoder=Twice())  # fmt: skip

    monkeypatch.setattr(engine, "load_data", encoded)
    recipe = recipe_for(toy)
    run = go(recipe, tmp_path / "run")
    assert_same(run, *plain_loop(recipe, [0.1] * 3, dual_focal), [0.1] * 3)
    with torch.no_grad():
        expected = run.model()(2 * data_of(recipe).part("test")[0].double())
    torch.testing.assert_close(run.predictions("test")[0], expected)


# Precision and memory format.


@pytest.fixture(scope="module")
def in_float32(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(images_for(pictures, precision="float32", lr=0.02), tmp_path_factory.mktemp("float32") / "run")


def test_float32_and_float64_store_what_they_are(in_float32: Run, pictures: Path, tmp_path: Path) -> None:
    wide = go(images_for(pictures, precision="float64", lr=0.02), tmp_path / "run")
    for run, dtype in ((in_float32, torch.float32), (wide, torch.float64)):
        stored = load_file(run.path / "predictions.safetensors")
        assert {tensor.dtype for tensor in weights_of(run).values()} == {dtype}
        assert stored["val_logits"].dtype == stored["test_logits"].dtype == dtype
        assert next(run.model().parameters()).dtype == dtype
    torch.testing.assert_close(wide.predictions()[0].float(), in_float32.predictions()[0], rtol=1e-3, atol=1e-4)


def test_bfloat16_is_for_steps_weights_and_what_is_measured_are_float32(toy: Path, tmp_path: Path) -> None:
    full, half = (go(recipe_for(toy, precision=name, lr=0.02), tmp_path / name) for name in ("float32", "bfloat16"))
    stored = load_file(half.path / "predictions.safetensors")
    assert {tensor.dtype for tensor in weights_of(half).values()} == {torch.float32}
    assert stored["val_logits"].dtype == stored["test_logits"].dtype == torch.float32
    # The predictions that are kept have not passed through eight bits; those of the log have.
    actual, true = half.predictions()[0], full.predictions()[0]
    data = load_data(str(toy), **half.recipe.data_options)
    with torch.no_grad():
        torch.testing.assert_close(half.model()(data.part("test")[0]), actual)
    assert half.log[-1]["val_nll"] != pytest.approx(half.result.parts["val"].nll, rel=1e-9)
    assert full.log[-1]["val_nll"] == pytest.approx(full.result.parts["val"].nll, rel=1e-9)
    torch.testing.assert_close(actual, true, rtol=0.05, atol=0.05)
    assert half.log[-1]["val_nll"] == pytest.approx(full.log[-1]["val_nll"], rel=0.02)


def test_channels_last_is_a_matter_of_memory_only(in_float32: Run, pictures: Path, tmp_path: Path) -> None:
    recipe = images_for(pictures, precision="float32", lr=0.02, channels_last=True, model="test_engine:picky")
    run = go(recipe, tmp_path / "run")
    for name, weight in weights_of(run).items():
        torch.testing.assert_close(weight, weights_of(in_float32)[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.predictions()[0], in_float32.predictions()[0], rtol=1e-4, atol=1e-4)


# What there is to see.


@pytest.fixture
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_lines_on_stderr(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = go(recipe_for(toy), tmp_path / "run", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3
    for line, of in zip(lines, run.log, strict=True):
        assert line.startswith(f"epoch {of['epoch']}/3  lr 0.1  loss {of['train_loss']:.4f}  ")
        assert f"val error {100 * of['val_error']:.2f} %  ECE {100 * of['val_ece']:.2f} %" in line
        assert f"NLL {of['val_nll']:.4f}  {of['images_per_second']:,.0f} samples/s  {of['seconds']:.1f} s" in line


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_lines_without_validation(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="no validation split"):
        go(recipe_for(toy, data_options={"val_size": 0}, epochs=1), tmp_path / "run", progress=True)
    assert re.fullmatch(r"epoch 1/1  lr 0\.1  loss \d\.\d{4}  [\d,]+ samples/s  \d+\.\d s\n", capsys.readouterr().err)


def test_nothing_is_printed_if_so_wished(toy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    go(recipe_for(toy, epochs=1), tmp_path / "run", progress=False)
    assert capfd.readouterr() == ("", "")


def terminal(text: StringIO) -> Console:
    return Console(force_terminal=True, file=text, width=160, color_system=None, legacy_windows=False)


def plain(text: StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())


def test_bars(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", -1.0)
    text = StringIO()
    line = {"epoch": 2, "lr": 0.1, "train_loss": 0.25, "val_error": 0.125, "val_ece": 0.0625, "val_nll": 0.5}
    monkeypatch.setattr(display, "_Console", lambda **options: terminal(text))
    with closing(display.Display(progress=True, scalars=None)) as bars:
        bars.begin(recipe_for(toy), Position(epoch=1, step=1), 48, [])
        bars.progress.refresh()
        assert "resuming after epoch 1 + 1 steps of 3" in plain(text)
        assert re.search(r"3 epochs .* 33%", plain(text))
        for _ in range(2):
            bars.step(16, torch.tensor(4.0), 8)
        bars.progress.refresh()
        assert re.search(r"3 epochs .* 67%", plain(text))
        assert re.search(r"epoch 2 .* 100% .* loss 0\.5000  [\d,]+ samples/s", plain(text))
        bars.epoch({**line, "images_per_second": 1234.5, "seconds": 2.0})
        bars.progress.refresh()
        assert "epoch 2/3  lr 0.1  loss 0.2500  val error 12.50 %  ECE 6.25 %  NLL 0.5000  1,234 samples/s" in plain(
            text
        )
        assert re.search(r"3 epochs .* 67% .* val error 12\.50 %  ECE 6\.25 %", plain(text))
        assert re.search(r"epoch 3 .* 0%", plain(text))
        bars.epoch({**line, "epoch": 3, "images_per_second": 1234.5, "seconds": 2.0})
        bars.progress.refresh()
        assert re.search(r"3 epochs .* 100%", plain(text))
        assert "evaluating" in plain(text)


@pytest.mark.usefixtures("quick")
def test_bars_on_a_terminal(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = StringIO()
    monkeypatch.setattr(display, "_Console", lambda **options: terminal(text))
    monkeypatch.setattr(display, "EVERY", -1.0)
    run = go(recipe_for(toy), tmp_path / "run", progress=True)
    shown = plain(text)
    for line in run.log:
        assert display.describe(line, 3) in shown
    assert re.search(r"3 epochs .* 100%", shown)
    assert text.getvalue().endswith(("\x1b[?25h", "\x1b[2K"))  # the cursor is back, the bars are gone
    assert (run.path / "result.json").exists()


class Closed(StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_nobody_reading_stderr_is_no_reason_to_stop_or_to_say_no_more(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the test itself, since pytest puts streams of its own in their places before it.
    with (tmp_path / "stdout").open("w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Closed())
        patched.setattr(sys, "stdout", stdout)
        run = go(recipe_for(toy, epochs=2), tmp_path / "run", progress=True)
        print("what comes after", flush=True)
    assert len(run.log) == 2
    assert (tmp_path / "stdout").read_text() == "what comes after\n"


# TensorBoard.


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_scalars_are_the_log(run: Run) -> None:
    actual = scalars(run.path / "tensorboard")
    expected: dict[str, list[tuple[int, float]]] = {}
    for line in run.log:
        for name, value in line.items():
            if name in ("schema", "epoch", "gamma"):
                continue
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "test") else f"run/{name}"
            expected.setdefault(tag, []).append((line["epoch"], pytest.approx(value, rel=1e-6)))
    assert actual == expected
    for i in range(15 if "gamma" in run.log[0] else 0):
        folder = run.path / "tensorboard" / f"run_gamma_{i:02}"
        (values,) = scalars(folder).values()
        assert values == [(line["epoch"], pytest.approx(line["gamma"][i], rel=1e-6)) for line in run.log]


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings(FOLLOWS)
def test_tensorboard_shows_the_log(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = go(recipe_for(toy, loss="ada_focal", test_each_epoch=True), tmp_path / "run", tensorboard=True)
    assert_scalars_are_the_log(run)


@pytest.mark.usefixtures("quick")
def test_tensorboard_after_an_interruption(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fifth step, in the second epoch; and nothing is there twice."""
    pytest.importorskip("tensorboard")
    recipe = recipe_for(toy)
    steps = []

    def interrupt(shown: display.Display, *args: object) -> None:
        steps.append(args)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(display.Display, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            go(recipe, tmp_path / "run", tensorboard=True)
    assert len(scalars(tmp_path / "run" / "tensorboard")["val/ece"]) == 1
    run = go(recipe, tmp_path / "run", tensorboard=True)
    assert len(run.log) == 3
    assert_scalars_are_the_log(run)


def test_tensorboard_is_told_to_be_missing(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r'pip install "dualfocal\[tensorboard\]"'):
        go(recipe_for(toy), tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
