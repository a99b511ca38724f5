"""The presets are the published settings, cell by cell."""

import json
from typing import Any

import pytest

from dualfocal.data import DATASETS
from dualfocal.losses import LOSSES
from dualfocal.models import MODELS
from dualfocal.runs.recipe import Recipe
from dualfocal.train.presets import PRESETS, digits, images, preset, texts

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


def refused(name: str, *settings: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        preset(name, settings)
    return str(caught.value)


def test_there_is_a_preset_for_every_published_gamma() -> None:
    assert set(PRESETS) == {"digits", *GAMMA}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_recipe_for_every_loss(name) -> None:
    for loss in LOSSES:
        recipe = PRESETS[name](loss)
        assert recipe == preset(name, [f"loss={loss}"])
        assert recipe.loss == loss
        assert type(recipe.make_loss()) is LOSSES[loss]
        assert recipe.data in DATASETS
        assert recipe.model in MODELS
        assert name in ("digits", f"{recipe.data}_{recipe.model.removeprefix('tiny_')}")
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_every_preset_with_every_loss_has_a_digest_of_its_own() -> None:
    digests = {PRESETS[name](loss).digest for name in PRESETS for loss in LOSSES}
    assert len(digests) == len(PRESETS) * len(LOSSES)


@pytest.mark.parametrize("make", [*PRESETS.values(), digits, texts], ids=[*PRESETS, "digits()", "texts()"])
def test_the_loss_is_dual_focal_if_nobody_says(make) -> None:
    assert make() == make("dual_focal")


@pytest.mark.parametrize(("name", "gamma"), GAMMA.items())
def test_gamma_is_the_published_one(name, gamma) -> None:
    recipe = preset(name)
    assert recipe.loss == "dual_focal"
    assert recipe.loss_options == {"gamma": gamma}
    made = recipe.make_loss()
    assert (made.gamma, made.rival) == (gamma, "next")


# Images


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_trained_as_published(name) -> None:
    epochs = {"epochs": 350, "milestones": (150, 250)} if name in CIFAR else {"epochs": 100, "milestones": (40, 60)}
    for loss in LOSSES:
        expected = {**SGD, **epochs, **EXCEPTIONS.get((name, loss), {})}
        assert having(PRESETS[name](loss), expected) == expected, loss


@pytest.mark.parametrize("name", IMAGES)
def test_of_all_losses_of_images_brier_alone_is_averaged(name) -> None:
    assert [loss for loss in LOSSES if PRESETS[name](loss).reduction == "mean"] == ["brier"]
    assert PRESETS[name]("dual_focal").reduction == "sum"


@pytest.mark.parametrize("name", IMAGES)
def test_data_are_split_and_drawn_as_they_are_by_default(name) -> None:
    assert preset(name).data_options == {}


def test_the_learning_rate_falls_twice_to_a_tenth() -> None:
    for name, first, second, last in (("cifar100_resnet110", 150, 250, 350), ("tiny_imagenet_resnet50", 40, 60, 100)):
        recipe = preset(name)
        rates = [recipe.lr_at(epoch) for epoch in range(recipe.epochs)]
        expected = [0.1] * first + [0.01] * (second - first) + [0.001] * (last - second)
        assert rates == pytest.approx(expected, rel=1e-12)


# The losses it is compared with


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("label_smoothing", {"alpha": 0.05, "spread": "others"}),
        ("mmce", {"strength": 2.0, "weighted": True, "as_published": True, "width": 0.4}),
        ("flsd", {"gammas": (5.0, 3.0), "thresholds": (0.2,)}),
        ("ada_focal", {"variant": "no_switch", "rate": 1.0, "gamma_max": 20.0, "num_bins": 15, "frozen": False}),
        ("ada_dual_focal", {"frozen": True}),
    ],
)
def test_other_losses_are_as_they_were_run(loss, expected) -> None:
    for name in GAMMA:
        made = preset(name, [f"loss={loss}"]).make_loss()
        assert {option: getattr(made, option) for option in expected} == expected, name


def test_ada_focal_starts_from_one() -> None:
    assert preset("cifar10_resnet50", ["loss=ada_focal"]).make_loss().gamma.tolist() == [1.0] * 15


@pytest.mark.parametrize(
    ("name", "gamma"), [("cifar10_resnet50", 6), ("cifar10_resnet110", 7), ("cifar10_densenet121", 6)]
)
def test_ada_dual_focal_is_what_the_authors_ran(name, gamma) -> None:
    """Their update was never reached: dual focal with gamma 6, 7 and 6."""
    recipe = preset(name, ["loss=ada_dual_focal"])
    assert recipe.loss_options == {"gamma": gamma, "frozen": True}
    assert recipe.make_loss().gamma.unique().tolist() == [gamma]


# Texts and digits


@pytest.mark.parametrize("loss", LOSSES)
def test_texts_are_trained_as_published(loss) -> None:
    recipe = PRESETS["20newsgroups_text_cnn"](loss)
    assert having(recipe, ADAM) == ADAM
    assert (recipe.data, recipe.data_options, recipe.model) == ("20newsgroups", {}, "text_cnn")
    assert {recipe.lr_at(epoch) for epoch in range(50)} == {1e-3}


@pytest.mark.parametrize("loss", LOSSES)
def test_digits_differ_in_their_loss_only(loss) -> None:
    different = PRESETS["digits"](loss).differences(digits())
    assert {line.partition(":")[0] for line in different} <= {"loss", "loss_options"}
    own = {"mmce": {"as_published": True}, "kde_xe": {"bandwidth": 0.1}}
    assert PRESETS["digits"](loss).loss_options == own.get(loss, {})


# Settings


def test_settings_are_set_in_the_preset() -> None:
    recipe = preset("cifar10_resnet110", ["epochs=30", "loss.rival=2nd", "data.val_size=1000", "clip_norm=none"])
    assert recipe.differences(preset("cifar10_resnet110")) == [
        'data_options: {"val_size": 1000}, not {}',
        'loss_options: {"gamma": 4.5, "rival": "2nd"}, not {"gamma": 4.5}',
        "clip_norm: null, not 2",
        "epochs: 30, not 350",
    ]


def test_settings_may_be_an_iterator() -> None:
    assert preset("digits", iter(["loss=focal", "epochs=3"])) == preset("digits", ["loss=focal", "epochs=3"])


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_set_comes_before_what_is_published(order) -> None:
    recipe = preset("cifar10_wide_resnet26_10", ["loss=brier", "epochs=30", "reduction=sum"][::order])
    assert (recipe.loss, recipe.epochs, recipe.reduction) == ("brier", 30, "sum")
    recipe = preset("cifar10_resnet110", ["loss=ada_dual_focal", "loss.gamma=3"][::order])
    assert recipe.loss_options == {"gamma": 3, "frozen": True}


@pytest.mark.parametrize("setting", ["loss=brier", " loss = brier "])
def test_another_loss_comes_with_its_settings(setting) -> None:
    recipe = preset("tiny_imagenet_resnet50", [setting])
    assert (recipe.loss, recipe.loss_options, recipe.reduction, recipe.lr) == ("brier", {}, "mean", 0.035)


def test_of_two_losses_the_last_counts() -> None:
    assert preset("cifar10_resnet50", ["loss=brier", "loss=mmce"]) == images("cifar10", "resnet50", "mmce")
    assert preset("cifar10_resnet50", ["loss=mmce", "loss=brier"]) == images("cifar10", "resnet50", "brier")


def test_other_data_start_from_their_own_options() -> None:
    assert preset("digits").data_options == {"noise": 0.3}
    assert preset("digits", ["data=some/folder"]).data_options == {}
    assert preset("digits", ["data=some/folder", "data.val_size=9"]).data_options == {"val_size": 9}


def test_a_preset_changed_in_place_leaves_the_next_one_as_it_was() -> None:
    for loss in LOSSES:
        recipe = preset("cifar10_resnet110", [f"loss={loss}"])
        before = dict(recipe.loss_options)
        recipe.loss_options["gamma"] = 99
        assert preset("cifar10_resnet110", [f"loss={loss}"]).loss_options == before


# What is refused


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("cifar10_resnet5", "cifar10_resnet50"),
        ("cifar100-densenet121", "cifar100_densenet121"),
        ("CIFAR10_ResNet110", "cifar10_resnet110"),
        ("digit", "digits"),
        ("zzz", None),
        ("", None),
    ],
)
def test_an_unknown_preset_has_a_nearest(name, near) -> None:
    end = f"; did you mean {near}?" if near else ""
    assert refused(name) == f"unknown preset {name!r}; presets are {', '.join(PRESETS)}{end}"


def test_a_preset_is_looked_for_before_its_settings() -> None:
    assert refused("digit", "epoch=3").startswith("unknown preset 'digit'; presets are ")


@pytest.mark.parametrize("name", ["digits", "cifar10_resnet50", "20newsgroups_text_cnn"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs=many", "epochs must be a whole number below 2^63, got 'many'"),
        ("epochs", "a setting is written field=value, got 'epochs'"),
        ("loss=focl", f"loss must be one of {', '.join(LOSSES)}, got 'focl'; did you mean focal?"),
        ("loss=", f"loss must be one of {', '.join(LOSSES)}, got ''"),
        ("loss.gama=3", "loss dual_focal has the options gamma, rival, impl; got gama; did you mean gamma?"),
    ],
)
def test_wrong_settings_are_named(name, setting, message) -> None:
    assert refused(name, setting) == message


def test_an_unknown_field_has_a_nearest() -> None:
    assert refused("digits", "epoch=3").startswith("a recipe has no field 'epoch'; did you mean epochs?; it has data, ")


def test_a_loss_without_a_value_is_no_setting() -> None:
    assert refused("digits", "loss") == "a setting is written field=value, got 'loss'"


@pytest.mark.parametrize(("data", "model"), [("cifar10", "small_cnn"), ("svhn", "resnet50")])
def test_a_cell_that_is_in_no_table_is_refused(data, model) -> None:
    with pytest.raises(ValueError, match=f"no {model} on {data};"):
        images(data, model)


def test_the_published_gamma_written_out_is_the_same_run() -> None:
    recipe = preset("cifar10_resnet50", ["loss.gamma=5"])
    assert recipe == preset("cifar10_resnet50")
    assert recipe.digest == preset("cifar10_resnet50").digest
