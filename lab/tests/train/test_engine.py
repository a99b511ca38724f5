"""The training loop equals a slow one written down by hand; batches, adaptive losses, kept weights, and precision."""

from pathlib import Path
from typing import Any

import metric_oracles
import numpy as np
import oracles
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from toys import assert_same, data_of, dual_focal, go, images_for, plain_loop, recipe_for, weights_of, without_times

from dualfocal.losses import LOSSES, AdaDualFocalLoss, AdaFocalLoss
from dualfocal.metrics import evaluate
from dualfocal_lab.data import DataSet, load_data
from dualfocal_lab.runs import Run
from dualfocal_lab.train import engine
from dualfocal_lab.train.randomness import derived_seed, make_batches

FOLLOWS = "ignore:loss ada_.* uses the validation split"


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
    "batch norm": ({"model": "toys:with_batch_norm", "clip_norm": 1.0, "lr": 0.05}, [0.05] * 3),
    "dropout": ({"model": "toys:with_dropout"}, [0.1] * 3),
    "a frozen layer": ({"model": "toys:partly_frozen"}, [0.1] * 3),
    "clipped above every norm": ({"clip_norm": 1e6, "reduction": "mean"}, [0.1] * 3),
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
    recipe = images_for(pictures, precision="float32", lr=0.02, channels_last=True, model="toys:picky")
    run = go(recipe, tmp_path / "run")
    for name, weight in weights_of(run).items():
        torch.testing.assert_close(weight, weights_of(in_float32)[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(run.predictions()[0], in_float32.predictions()[0], rtol=1e-4, atol=1e-4)


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
