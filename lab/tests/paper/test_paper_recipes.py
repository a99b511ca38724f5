"""The presets are the published settings, cell by cell."""

import itertools
import json
from typing import Any

import pytest

from dualfocal.losses import LOSSES
from dualfocal_lab.data import DATASETS
from dualfocal_lab.models import MODELS
from dualfocal_lab.runs.recipe import Recipe
from dualfocal_lab.train.presets import PRESETS, digits, images, preset, texts

# Sections 0, 6, 9 and 12 of the reference, written down again.
GAMMA = {
    "cifar10_resnet50": 5,
    "cifar10_resnet110": 4.5,
    "cifar10_wide_resnet26_10": 2.6,
    "cifar10_densenet121": 5,
    "cifar100_resnet50": 5,
    "cifar100_resnet110": 6.1,
    "cifar100_wide_resnet26_10": 3.9,
    "cifar100_densenet121": 3.4,
    "tiny_imagenet_resnet50": 2.3,
    "20newsgroups_text_cnn": 3,
}
CIFAR = [name for name in GAMMA if name.startswith("cifar")]
IMAGES = [*CIFAR, "tiny_imagenet_resnet50"]
EXCEPTIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("cifar10_wide_resnet26_10", "brier"): {"epochs": 550},
    ("cifar100_resnet110", "brier"): {"epochs": 430},
    ("tiny_imagenet_resnet50", "brier"): {"lr": 0.035},
}
SGD = {
    **{"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 128, "drop_last": False},
    **{"clip_norm": 2.0, "schedule": "step", "lr_factor": 0.1, "weights": "last", "seed": 1},
}
ADAM = {
    **{"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "batch_size": 128, "drop_last": True},
    **{"clip_norm": None, "schedule": "step", "milestones": (), "weights": "best_error", "seed": 1, "epochs": 50},
}


def having(recipe: Recipe, names: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in names}


def test_every_preset_is_a_recipe_for_every_loss() -> None:
    digests = set()
    for name, loss in itertools.product(PRESETS, LOSSES):
        recipe = PRESETS[name](loss)
        assert recipe == preset(name, [f"loss={loss}"]), (name, loss)
        assert type(recipe.make_loss()) is LOSSES[loss], (name, loss)
        assert recipe.data in DATASETS, name
        assert recipe.model in MODELS, name
        assert name in ("digits", f"{recipe.data}_{recipe.model.removeprefix('tiny_')}")
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe, (name, loss)
        digests.add(recipe.digest)
    assert len(digests) == len(PRESETS) * len(LOSSES)


def test_the_default_is_dual_focal_with_the_published_gamma() -> None:
    assert set(PRESETS) == {"digits", *GAMMA}
    for name, gamma in GAMMA.items():
        recipe = preset(name)
        assert recipe == PRESETS[name]("dual_focal"), name
        assert recipe.loss_options == {"gamma": gamma}, name
        loss = recipe.make_loss()
        assert (loss.gamma, loss.rival) == (gamma, "next"), name
        assert preset(name, [f"loss.gamma={gamma}"]).digest == recipe.digest, name
    assert (digits(), texts()) == (digits("dual_focal"), texts("dual_focal"))


# Images


def test_images_are_trained_as_published() -> None:
    for name in IMAGES:
        epochs = {"epochs": 350, "milestones": (150, 250)} if name in CIFAR else {"epochs": 100, "milestones": (40, 60)}
        for loss in LOSSES:
            recipe = PRESETS[name](loss)
            reduction = "mean" if loss == "brier" else "sum"
            expected = {**SGD, **epochs, "reduction": reduction, **EXCEPTIONS.get((name, loss), {})}
            assert having(recipe, expected) == expected, (name, loss)
        assert preset(name).data_options == {}, name


def test_the_learning_rate_falls_twice_to_a_tenth() -> None:
    for name, first, second, last in (("cifar100_resnet110", 150, 250, 350), ("tiny_imagenet_resnet50", 40, 60, 100)):
        recipe = preset(name)
        rates = [recipe.lr_at(epoch) for epoch in range(recipe.epochs)]
        expected = [0.1] * first + [0.01] * (second - first) + [0.001] * (last - second)
        assert rates == pytest.approx(expected, rel=1e-12)


# Other losses


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("label_smoothing", {"alpha": 0.05, "spread": "others"}),
        ("mmce", {"strength": 2.0, "weighted": True, "as_published": True, "width": 0.4}),
        ("flsd", {"gammas": (5.0, 3.0), "thresholds": (0.2,)}),
        ("ada_focal", {"variant": "no_switch", "drop_lowest": True, "rate": 1.0, "gamma_max": 20.0}),
        ("ada_focal", {"num_bins": 15, "frozen": False}),
        ("ada_dual_focal", {"frozen": True}),
    ],
)
def test_other_losses_have_the_published_options(loss, expected) -> None:
    for name in GAMMA:
        made = preset(name, [f"loss={loss}"]).make_loss()
        assert {option: getattr(made, option) for option in expected} == expected, name


def test_adaptive_losses_are_what_the_authors_ran() -> None:
    """The update of AdaDualFocal was never reached: it is dual focal loss with gamma 6, 7 and 6."""
    for model, gamma in (("resnet50", 6), ("resnet110", 7), ("densenet121", 6)):
        recipe = preset(f"cifar10_{model}", ["loss=ada_dual_focal"])
        assert recipe.loss_options == {"gamma": gamma, "frozen": True}, model
        assert recipe.make_loss().gamma.unique().tolist() == [gamma], model
    assert preset("cifar10_resnet50", ["loss=ada_focal"]).make_loss().gamma.tolist() == [1.0] * 15


# Texts and digits


def test_texts_are_trained_as_published() -> None:
    for loss in LOSSES:
        recipe = PRESETS["20newsgroups_text_cnn"](loss)
        assert having(recipe, ADAM) == ADAM, loss
        assert (recipe.data, recipe.data_options, recipe.model) == ("20newsgroups", {}, "text_cnn")
        assert {recipe.lr_at(epoch) for epoch in range(50)} == {1e-3}


def test_digits_differ_in_their_loss_only() -> None:
    own = {"mmce": {"as_published": True}, "kde_xe": {"bandwidth": 0.1}}
    for loss in LOSSES:
        recipe = PRESETS["digits"](loss)
        fields = {line.partition(":")[0] for line in recipe.differences(digits())}
        assert fields <= {"loss", "loss_options"}, loss
        assert recipe.loss_options == own.get(loss, {}), loss


# Settings


def test_settings_are_set_in_the_preset() -> None:
    recipe = preset("cifar10_resnet110", ["epochs=30", "loss.rival=2nd", "data.val_size=1000", "clip_norm=none"])
    assert recipe.differences(preset("cifar10_resnet110")) == [
        'data_options: {"val_size": 1000}, not {}',
        'loss_options: {"gamma": 4.5, "rival": "2nd"}, not {"gamma": 4.5}',
        "clip_norm: null, not 2",
        "milestones: [13, 21], not [150, 250]",
        "epochs: 30, not 350",
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_settings_override_the_published_ones(order) -> None:
    recipe = preset("cifar10_wide_resnet26_10", ["loss=brier", "epochs=30", "reduction=sum"][::order])
    assert (recipe.loss, recipe.epochs, recipe.reduction) == ("brier", 30, "sum")
    recipe = preset("cifar10_resnet110", ["loss=ada_dual_focal", "loss.gamma=3"][::order])
    assert recipe.loss_options == {"gamma": 3, "frozen": True}


def test_another_loss_comes_with_its_settings() -> None:
    recipe = preset("tiny_imagenet_resnet50", [" loss = brier "])
    assert (recipe.loss, recipe.loss_options, recipe.reduction, recipe.lr) == ("brier", {}, "mean", 0.035)


def test_of_two_losses_the_last_counts() -> None:
    assert preset("cifar10_resnet50", ["loss=brier", "loss=mmce"]) == images("cifar10", "resnet50", "mmce")
    assert preset("cifar10_resnet50", ["loss=mmce", "loss=brier"]) == images("cifar10", "resnet50", "brier")


def test_other_data_start_from_their_own_options() -> None:
    assert preset("digits").data_options == {"noise": 0.3}
    assert preset("digits", ["data=some/folder"]).data_options == {}
    assert preset("digits", ["data=some/folder", "data.val_size=9"]).data_options == {"val_size": 9}


def test_changing_a_preset_in_place_does_not_change_the_next() -> None:
    for loss in LOSSES:
        recipe = preset("cifar10_resnet110", [f"loss={loss}"])
        before = dict(recipe.loss_options)
        recipe.loss_options["gamma"] = 99
        assert preset("cifar10_resnet110", [f"loss={loss}"]).loss_options == before


# Refusals


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar10_resnet5", "cifar10_resnet50"),
        ("cifar100-densenet121", "cifar100_densenet121"),
        ("CIFAR10_ResNet110", "cifar10_resnet110"),
        ("zzz", None),
        ("", None),
    ],
)
def test_an_unknown_preset_is_refused_with_the_nearest(name, near) -> None:
    end = rf"; did you mean {near}\?$" if near else "$"
    with pytest.raises(ValueError, match=f"'{name}'.*{'.*'.join(PRESETS)}{end}"):
        preset(name, ["epoch=3"])


@pytest.mark.parametrize(("data", "model"), [("cifar10", "small_cnn"), ("svhn", "resnet50")])
def test_a_cell_that_is_in_no_table_is_refused(data, model) -> None:
    with pytest.raises(ValueError, match=f"no {model} on {data};"):
        images(data, model)
