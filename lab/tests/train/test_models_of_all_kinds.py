"""Models that do something unusual: trained all the same, or refused before there is a run folder."""

import numpy as np
import pytest
import torch
from small_runs import go
from torch import Tensor, nn

from dualfocal_lab.runs import Recipe


class Linear(nn.Linear):
    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__(in_channels, num_classes)


class Skipping(nn.Module):
    """Leaves a layer out at random, so that in some steps it gets no gradient."""

    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.sometimes, self.always = nn.Linear(in_channels, in_channels), nn.Linear(in_channels, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or torch.rand(()) < 0.5:
            inputs = inputs + self.sometimes(inputs)
        return self.always(inputs)


class Pair(Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return (logits, logits) if self.training else logits  # type: ignore[return-value]


class Stubborn(Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            raise KeyError("depth")
        return super().forward(inputs)


class Counting(Linear):
    """Keeps something that is not in its state_dict."""

    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels)
        self.register_buffer("calls", torch.zeros(()), persistent=False)


class Remembering(Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def normed(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_channels, 6), nn.BatchNorm1d(6), nn.Linear(6, num_classes))


def lazy(*, num_classes: int) -> nn.Module:
    return nn.LazyLinear(num_classes)


@pytest.fixture
def recipe(tmp_path, quick):
    """``recipe(model, ...)``: for 33 samples to train, of 5 features."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=rng.normal(size=(51, 5)).astype(np.float32), y=np.arange(51) % 3)
    options = {"val_size": 9, "test_size": 9}

    def recipe(model: str, **changed) -> Recipe:
        given = {"epochs": 3, "batch_size": 16, "milestones": (), "data_options": options, **changed}
        return Recipe(data=str(tmp_path / "own.npz"), model=f"test_models_of_all_kinds:{model}", **given)

    return recipe


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weights_may_lack_a_gradient_in_some_steps(recipe, tmp_path, optimizer) -> None:
    run = go(recipe("Skipping", optimizer=optimizer, batch_size=4, lr=0.01), tmp_path / "run")
    assert len(run.log) == 3
    assert run.log[-1]["train_loss"] < run.log[0]["train_loss"]


def test_lazy_weights_are_made_from_the_seed(recipe, tmp_path) -> None:
    runs = [go(recipe("lazy"), tmp_path / name) for name in ("one", "two")]
    first, second = ((run.path / "model.safetensors").read_bytes() for run in runs)
    assert first == second


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Pair", r"fails in training on inputs of shape \(2, 5\): .* tensor of logits, got tuple$"),
        ("Stubborn", r"fails in training on inputs of shape \(2, 5\): 'depth'$"),
        ("Remembering", r"has state that is not a tensor .*: _extra_state$"),
        ("normed", r"fails in training on inputs of shape \(1, 5\): .* more than 1 value .*; .*drop_last=true"),
    ],
)
def test_models_that_cannot_be_trained_are_refused_before_there_is_a_folder(recipe, tmp_path, model, message) -> None:
    with pytest.raises(ValueError, match=f"^model test_models_of_all_kinds:{model} {message}"):
        go(recipe(model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_batch_norm_trains_without_the_last_small_batch(recipe, tmp_path) -> None:
    assert len(go(recipe("normed", drop_last=True), tmp_path / "run").log) == 3


def test_state_that_is_not_saved_gives_a_warning(recipe, tmp_path) -> None:
    with pytest.warns(UserWarning, match="kinds:Counting has buffers .* not saved: calls$") as caught:
        run = go(recipe("Counting"), tmp_path / "run")
    assert run.result.notes == [str(warning.message) for warning in caught]


def test_one_class_is_refused(recipe, tmp_path) -> None:
    chosen = recipe("lazy")
    np.savez(chosen.data, x=np.ones((40, 5), np.float32), y=np.zeros(40, np.int64))
    with pytest.raises(ValueError, match=r"has 1 class, .* two or more$"):
        go(chosen, tmp_path / "run")


def test_milestones_beside_a_cosine_give_a_warning(recipe, tmp_path) -> None:
    with pytest.warns(UserWarning, match="^schedule=cosine ignores the milestones$"):
        go(recipe("lazy", schedule="cosine", milestones=(1,)), tmp_path / "run")


def test_the_epoch_is_chosen_on_a_second_validation_part_if_there_is_one(recipe, tmp_path) -> None:
    chosen = recipe("lazy", weights="best_nll", lr=0.4, epochs=9)
    with pytest.warns(UserWarning, match=r"^weights=best_nll uses the validation split that also"):
        on_val = go(chosen, tmp_path / "val")
    nll = [line["val_nll"] for line in on_val.log]
    assert on_val.result.weights_of_epoch == 1 + nll.index(min(nll))
    assert "val2_nll" not in on_val.log[0]

    options = {"val_size": 6, "val2_size": 6, "test_size": 9}
    on_val2 = go(recipe("lazy", weights="best_nll", lr=0.4, epochs=9, data_options=options), tmp_path / "val2")
    nll, other = ([line[f"{part}_nll"] for line in on_val2.log] for part in ("val2", "val"))
    assert on_val2.result.weights_of_epoch == 1 + nll.index(min(nll))
    assert nll.index(min(nll)) != other.index(min(other)), "else the test says little"
    assert on_val2.result.notes == []
