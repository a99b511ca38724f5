"""A recipe holds only values that can be trained, compares with other recipes, and knows its loss and learning rate."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dualfocal.losses import LOSSES
from dualfocal_lab.models import MODELS
from dualfocal_lab.runs.recipe import Recipe, field_docs

# The rules are repeated here: the class must not be compared with itself.
TEXT = ("data", "model", "loss", "reduction", "optimizer", "schedule", "weights", "precision", "step")
LOWEST = {"epochs": 1, "batch_size": 1, "seed": 0}
REAL = ("lr", "momentum", "weight_decay", "lr_factor")
FLAGS = ("drop_last", "deterministic", "sync_bn", "test_each_epoch")
OPTIONS = ("data_options", "loss_options", "optimizer_options")
CHOICES = {
    "reduction": ("sum", "mean"),
    "schedule": ("step", "cosine"),
    "weights": ("last", "best_error", "best_nll"),
    "precision": ("auto", "float32", "tf32", "bfloat16", "float64"),
    "step": ("auto", "eager", "captured", "compiled"),
}
NAMES = [f.name for f in dataclasses.fields(Recipe)]
OTHER: dict[str, Any] = {  # a value other than the default, for each field
    **{"data": "cifar10", "data_options": {"noise": 0.5}, "model": "resnet50"},
    **{"loss": "focal", "loss_options": {"gamma": 2.0}, "reduction": "mean", "clip_norm": None},
    **{"optimizer": "torch.optim:SGD", "optimizer_options": {"nesterov": True}},
    **{"lr": 0.2, "momentum": 0.8, "weight_decay": 1e-4, "schedule": "cosine", "milestones": (5,), "lr_factor": 0.5},
    **{"epochs": 7, "batch_size": 9, "drop_last": True, "weights": "best_nll", "seed": 3, "precision": "float64"},
    **{"channels_last": True, "step": "captured", "deterministic": True, "sync_bn": True, "test_each_epoch": True},
}


def make(**changes: Any) -> Recipe:
    return Recipe(**{"data": "digits", "model": "small_cnn", **changes})


def refusal(**changes: Any) -> str:
    """The message with which these fields are refused; fails if they are accepted."""
    try:
        make(**changes)
    except ValueError as error:
        return str(error)
    return pytest.fail(f"accepted: {changes}")


def check_refused(name: str, value: Any, *words: str) -> None:
    """The refusal of a value starts with its field, shows the value, and has these words."""
    message = refusal(**{name: value})
    assert message.startswith(f"{name} must "), (name, value)
    assert [part for part in (*words, repr(value)) if part not in message] == [], message


def test_every_field_is_tested_here() -> None:
    fields = [*TEXT, *LOWEST, *REAL, *FLAGS, *OPTIONS, "clip_norm", "milestones", "channels_last"]
    assert sorted(fields) == sorted(NAMES) == sorted(OTHER)


def test_the_defaults_are_the_published_recipe() -> None:
    """Section 12 of the reference: the loss summed, and the gradient clipped to 2; results of the last epoch."""
    assert make().to_dict() == {
        **{"schema": 1, "data": "digits", "data_options": {}, "model": "small_cnn"},
        **{"loss": "dual_focal", "loss_options": {}, "reduction": "sum", "clip_norm": 2.0},
        **{"optimizer": "sgd", "optimizer_options": {}, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
        **{"schedule": "step", "milestones": [150, 250], "lr_factor": 0.1, "epochs": 350, "batch_size": 128},
        **{"drop_last": False, "weights": "last", "seed": 1, "precision": "auto", "channels_last": None},
        **{"step": "auto", "deterministic": False, "sync_bn": False, "test_each_epoch": False},
    }


# Types and values


@pytest.mark.parametrize(
    ("names", "rule", "values"),
    [
        (TEXT, "text", (None, 5, True, b"digits", ["digits"], Path("digits"))),
        (LOWEST, "a whole number below 2^63", (None, True, False, "3", 3.0, math.nan, [3], torch.tensor(3), 2**63)),
        (REAL, "a number", (None, True, False, "0.1", "", [0.1], 1j, torch.tensor(0.1), 10**400)),
        (("clip_norm",), "a number, or none", (True, False, "2", "none", [2.0], (), 10**400)),
        (FLAGS, "true or false", (None, 0, 1, 1.0, "true", "", [])),
        (("channels_last",), "true or false, or none", (0, 1, "true", [])),
        (
            ("milestones",),
            "whole numbers below 2^63",
            (None, 150, "150,250", ["150"], [1.0], [True, 2], [None], [[1]], {1: 2}, range(1, 3), [2**63]),
        ),
        (OPTIONS, "a JSON object", (None, [], "gamma=3", 5, [("gamma", 3)])),
    ],
    ids=["text", "whole", "real", "clip_norm", "flags", "channels_last", "milestones", "options"],
)
def test_a_value_of_another_type_is_refused(names, rule, values) -> None:
    for name in names:
        for value in values:
            check_refused(name, value, rule)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_hold_only_what_json_can_express(name) -> None:
    values = (torch.tensor(1.0), print, {1, 2}, b"x", 1j, Path("x"), math.nan, math.inf, {(1, 2): 3}, {1: 2}, 10**400)
    for value in (*values, {None: 1}, {True: 1, "a": 2}):
        for options in ({"gamma": value}, {"sizes": [value]}):
            message = refusal(**{name: options})
            assert message.startswith(f"{name} must hold text, numbers, "), options
            assert repr(value) in message, options
    options = {}
    options["self"] = options
    assert re.search(f"^{name} must not contain itself", refusal(**{name: options}))


def test_numbers_outside_their_range_are_refused() -> None:
    for name, lowest in LOWEST.items():
        assert getattr(make(**{name: lowest}), name) == lowest
        for value in (lowest - 1, -(10**15)):
            check_refused(name, value, f"at least {lowest}")
    for name in REAL:
        assert getattr(make(**{name: 0.0}), name) == 0.0
        for value in (-1.0, -5e-324, math.nan, math.inf, -math.inf):
            check_refused(name, value, "finite", "at least 0")
    for value in (0.0, -1.0, math.nan, math.inf, -math.inf):
        check_refused("clip_norm", value, "finite", "above 0", "or none")
    assert re.search("^momentum must be below 1, got 1$", refusal(momentum=1.0))
    for value in ([0], [-5, 10], [10, 5], [5, 5], [1, 2, 2]):
        check_refused("milestones", value, "increasing epochs from 1")


def test_the_largest_seed_fits_a_generator() -> None:
    assert torch.Generator().manual_seed(make(seed=2**63 - 1).seed).initial_seed() == 2**63 - 1


def test_choices_are_kept_and_other_texts_are_refused_with_the_choices() -> None:
    for name, choices in CHOICES.items():
        for choice in choices:
            assert getattr(make(**{name: choice}), name) == choice
        for value in ("", "none", "SUM", " sum", "sgd,adam"):
            check_refused(name, value, *map(repr, choices))


def test_unknown_names_are_refused_with_the_known_ones_and_the_nearest() -> None:
    for loss, near in (("dualfocal", "dual_focal"), ("Focal", "focal"), ("cross-entropy", "cross_entropy")):
        check_refused("loss", loss, *LOSSES, f"did you mean {near}?")
    for model, near in (("resnet5", "resnet50"), ("DenseNet121", "densenet121")):
        check_refused("model", model, *MODELS, "package.module:function", f"did you mean {near}?")
    for name, value in (("loss", ""), ("loss", "hinge_of_the_door"), ("model", ""), ("model", "zzz")):
        check_refused(name, value)
        assert "did you mean" not in refusal(**{name: value}), (name, value)
    check_refused("data", "", "data set", "folder", ".npz")


def test_data_and_custom_models_are_only_named() -> None:
    """They are looked for when they are used."""
    assert make(model="no_such_package.nets:net").model == "no_such_package.nets:net"
    for data in ("some/folder", "/data/mine.npz", "no_such_data"):
        assert make(data=data).data == data


# Equality


def test_equal_values_make_equal_recipes_with_equal_digests() -> None:
    pairs = [({name: 0 if name == "momentum" else 1}, {name: float(name != "momentum")}) for name in REAL]
    pairs += [
        ({"clip_norm": 1}, {"clip_norm": 1.0}),
        ({"milestones": [30, 40]}, {"milestones": (30, 40)}),
        ({"milestones": []}, {"milestones": ()}),
        ({"loss_options": {"gamma": 5}}, {"loss_options": {"gamma": 5.0}}),
        ({"weight_decay": 0.0}, {"weight_decay": -0.0}),
        ({"data_options": {"a": 1, "b": 2}}, {"data_options": {"b": 2, "a": 1}}),
        ({"data_options": {"a": (1, 2)}}, {"data_options": {"a": [1.0, 2.0]}}),
        (OTHER, OTHER),
    ]
    for first, second in pairs:
        one, two = make(**first), make(**second)
        assert one == two, first
        assert one.digest == two.digest, first
        assert one.differences(two) == [], first
        for name in first:
            assert type(getattr(one, name)) is type(getattr(two, name)), first
    assert re.fullmatch("[0-9a-f]{8}", make().digest)


def test_every_field_makes_a_difference() -> None:
    for name in NAMES:
        one, two = make(), make(**{name: OTHER[name]})
        assert one != two, name
        assert one.digest != two.digest, name
        shown = [json.dumps(recipe.to_dict().get(name, {})) for recipe in (one, two)]
        assert one.differences(two) == [f"{name}: {shown[0]}, not {shown[1]}"]
        assert two.differences(one) == [f"{name}: {shown[1]}, not {shown[0]}"]


def test_differences_are_in_the_order_of_the_fields() -> None:
    one, two = make(epochs=30, loss_options={"gamma": 2.0}), make(epochs=60, data="a b", milestones=[30, 40])
    expected = ['data: "digits", not "a b"', 'loss_options: {"gamma": 2}, not {}']
    assert one.differences(two) == [*expected, "milestones: [150, 250], not [30, 40]", "epochs: 30, not 60"]


# Immutability


def test_a_recipe_is_frozen_and_shares_nothing() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().epochs = 3
    options = {"crop": [1, 2]}
    recipe = make(data_options=options)
    options["crop"].append(3)
    options["more"] = [4]
    dataclasses.replace(recipe).data_options["crop"].append(3)
    recipe.with_settings(["epochs=3"]).data_options["crop"].append(3)
    recipe.to_dict()["data_options"]["crop"].append(3)
    assert recipe.data_options == {"crop": [1, 2]}
    make().loss_options["gamma"] = 3
    assert make().loss_options == {}


# The loss


def test_options_that_a_loss_lacks_or_refuses_are_named() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        (
            "dual_focal",
            {"gama": 1},
            "has the options gamma, rival, label_smoothing, impl; got gama; did you mean gamma",
        ),
        ("dual_focal", {"alpha": 1}, "has the options .*; got alpha$"),
        ("focal", {"rival": 1}, "has the options gamma, label_smoothing; got rival$"),
        ("label_smoothing", {"Alpha": 1}, "has the options alpha, spread; got Alpha; did you mean alpha"),
        ("cross_entropy", {"gamma": 1}, "has the options label_smoothing; got gamma$"),
        ("brier", {"": 1}, "has no options; got $"),
        ("focal", {"self": 1}, "has the options gamma, label_smoothing; got self$"),
        ("dual_focal", {"gamma": -1}, "gamma must be finite and at least 0, got -1$"),
        ("dual_focal", {"gamma": "5"}, "gamma must be a number, got '5'$"),
        ("focal", {"gamma": [3]}, r"gamma must be a number or a tensor, got \[3\]"),
        ("ada_focal", {"variant": "old"}, "variant must be one of 'switch', 'no_switch', got 'old'$"),
    ]
    for loss, options, words in cases:
        assert re.search(f"^loss {loss}:? {words}", refusal(loss=loss, loss_options=options)), (loss, options)


def test_arguments_that_the_recipe_sets_itself_are_no_options_of_a_loss() -> None:
    for loss in LOSSES:
        for option, value in (("weight", None), ("reduction", "mean"), ("ignore_index", -100)):
            known, _, got = refusal(loss=loss, loss_options={option: value}).partition("; got ")
            assert known.startswith(f"loss {loss} has "), loss
            assert option not in known.replace("weighted", ""), loss
            assert got.startswith(option), loss


def test_only_flags_of_a_loss_are_true_or_false() -> None:
    flags = [("ada_focal", "frozen"), ("ada_dual_focal", "frozen"), ("mmce", "as_published"), ("mmce", "weighted")]
    flags += [("ada_focal", "drop_lowest"), ("kde_xe", "as_published")]
    for loss, option in flags:
        for text, flag in (("no", False), ("false", False), ("yes", True), ("True", True)):
            recipe = make(loss=loss).with_settings([f"loss.{option}={text}"])
            assert getattr(recipe.make_loss(), option) is flag, (loss, option, text)
        for value in ("no", "", 0, 1, None, [], [False]):
            message = refusal(loss=loss, loss_options={option: value})
            assert message == f"loss {loss}: {option} must be true or false, got {value!r}"
    for loss, option in (("dual_focal", "gamma"), ("dual_focal", "rival"), ("ada_focal", "gamma"), ("mmce", "width")):
        for value in (True, False):
            message = refusal(loss=loss, loss_options={option: value})
            assert re.search(f"^loss {loss}: {option} must not be true or false, got {value}$", message)


def test_the_loss_is_summed_whatever_the_reduction_of_the_recipe() -> None:
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    for loss in LOSSES:
        for reduction in CHOICES["reduction"]:
            module = make(loss=loss, reduction=reduction).make_loss()
            assert type(module) is LOSSES[loss]
            assert module.reduction == "sum", loss
            assert torch.equal(module(logits, target), LOSSES[loss](reduction="sum")(logits, target)), loss


def test_the_loss_has_its_options_and_is_made_anew() -> None:
    recipe = make(loss="ada_focal", loss_options={"gamma": 3, "num_bins": 4, "variant": "no_switch", "frozen": True})
    module = recipe.make_loss()
    assert module.gamma.tolist() == [3.0] * 4
    assert (module.variant, module.frozen) == ("no_switch", True)
    module.gamma.fill_(7.0)
    assert recipe.make_loss().gamma.tolist() == [3.0] * 4


# The learning rate


def rates_by_torch(recipe: Recipe, scheduler: type, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    schedule = scheduler(optimizer, **options)
    rates = []
    for _ in range(recipe.epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("milestones", "factor", "epochs"),
    [((150, 250), 0.1, 350), ((), 0.1, 5), ((1, 2, 3), 0.5, 6), ((9,), 0.1, 5), ((2,), 0.0, 4)],
)
def test_steps_are_those_of_torch(milestones, factor, epochs) -> None:
    recipe = make(milestones=milestones, lr_factor=factor, epochs=epochs)
    expected = rates_by_torch(recipe, torch.optim.lr_scheduler.MultiStepLR, milestones=milestones, gamma=factor)
    assert [recipe.lr_at(epoch) for epoch in range(epochs)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lr", "epochs"), [(0.1, 350), (1.0, 1), (0.0, 3), (3.0, 2)])
def test_the_cosine_is_that_of_torch(lr, epochs) -> None:
    recipe = make(schedule="cosine", lr=lr, epochs=epochs)
    expected = rates_by_torch(recipe, torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs)
    assert [recipe.lr_at(epoch) for epoch in range(epochs)] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_cosine_ends_at_zero_and_ignores_milestones() -> None:
    recipe = make(schedule="cosine", lr=0.4, epochs=10, milestones=(1, 2), lr_factor=0.0)
    assert (recipe.lr_at(0), recipe.lr_at(5), recipe.lr_at(10)) == (0.4, pytest.approx(0.2), 0.0)


# Documentation


def test_every_field_and_every_choice_is_documented_in_a_line() -> None:
    docs = field_docs()
    assert list(docs) == NAMES
    for name, doc in docs.items():
        assert re.fullmatch(r"\S.*\.", doc), name
        assert [choice for choice in CHOICES.get(name, ()) if choice not in doc] == [], name
    assert docs["drop_last"] == "Leave out the last batch of an epoch if it is smaller."
