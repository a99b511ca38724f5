"""A recipe holds only what can be trained, reads and writes JSON and text, and tells itself from others."""

import dataclasses
import json
import math
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dualfocal.losses import LOSSES
from dualfocal.models import MODELS
from dualfocal.runs.recipe import Recipe, field_docs, load_recipe

# Written down again: what the class says is what is tested.
TEXT = ("data", "model", "loss", "reduction", "optimizer", "schedule", "weights", "precision", "step")
WHOLE = {"epochs": 1, "batch_size": 1, "seed": 0}
REAL = ("lr", "momentum", "weight_decay", "lr_factor")
FLAGS = ("drop_last", "deterministic", "sync_bn", "test_each_epoch")
OPTIONS = ("data_options", "loss_options")
CHOICES = {
    "reduction": ("sum", "mean"),
    "optimizer": ("sgd", "adam"),
    "schedule": ("step", "cosine"),
    "weights": ("last", "best_error", "best_nll"),
    "precision": ("auto", "float32", "tf32", "bfloat16", "float64"),
    "step": ("auto", "eager", "captured", "compiled"),
}
NAMES = [f.name for f in dataclasses.fields(Recipe)]
OTHER: dict[str, Any] = {  # than the default, for each field
    **{"data": "cifar10", "data_options": {"noise": 0.5}, "model": "resnet50"},
    **{"loss": "focal", "loss_options": {"gamma": 2.0}, "reduction": "mean", "clip_norm": None, "optimizer": "adam"},
    **{"lr": 0.2, "momentum": 0.8, "weight_decay": 1e-4, "schedule": "cosine", "milestones": (5,), "lr_factor": 0.5},
    **{"epochs": 7, "batch_size": 9, "drop_last": True, "weights": "best_nll", "seed": 3, "precision": "float64"},
    **{"channels_last": True, "step": "captured", "deterministic": True, "sync_bn": True, "test_each_epoch": True},
}


def make(**changed: Any) -> Recipe:
    return Recipe(**{"data": "digits", "model": "small_cnn", **changed})


def refusal(**changed: Any) -> str:
    """What is said about it."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        make(**changed)
    return str(caught.value)


def refused(recipe: Recipe, *settings: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        recipe.with_settings(settings)
    return str(caught.value)


def test_every_field_is_tested_here() -> None:
    assert sorted([*TEXT, *WHOLE, *REAL, *FLAGS, *OPTIONS, "clip_norm", "milestones", "channels_last"]) == sorted(NAMES)
    assert set(OTHER) == set(NAMES)


def test_the_defaults_are_the_published_recipe() -> None:
    """Section 12 of the reference: the loss summed, and the gradient clipped to 2; results of the last epoch."""
    assert make().to_dict() == {
        **{"schema": 1, "data": "digits", "data_options": {}, "model": "small_cnn"},
        **{"loss": "dual_focal", "loss_options": {}, "reduction": "sum", "clip_norm": 2.0},
        **{"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
        **{"schedule": "step", "milestones": [150, 250], "lr_factor": 0.1, "epochs": 350, "batch_size": 128},
        **{"drop_last": False, "weights": "last", "seed": 1, "precision": "auto", "channels_last": None},
        **{"step": "auto", "deterministic": False, "sync_bn": False, "test_each_epoch": False},
    }


# Types


@pytest.mark.parametrize("name", TEXT)
def test_text_is_text(name) -> None:
    for value in (None, 5, True, b"digits", ["digits"], Path("digits")):
        assert refusal(**{name: value}) == f"{name} must be text, got {value!r}"


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_whole_numbers(name) -> None:
    for value in (None, True, False, "3", 3.0, math.nan, math.inf, [3], torch.tensor(3)):
        assert refusal(**{name: value}) == f"{name} must be a whole number below 2^63, got {value!r}"


@pytest.mark.parametrize("name", REAL)
def test_numbers_are_numbers(name) -> None:
    for value in (None, True, False, "0.1", "", [0.1], 1j, torch.tensor(0.1)):
        assert refusal(**{name: value}) == f"{name} must be a number, got {value!r}"


@pytest.mark.parametrize("value", [True, False, "2", "none", [2.0], ()])
def test_the_clipping_norm_is_a_number_or_none(value) -> None:
    assert refusal(clip_norm=value) == f"clip_norm must be a number, or none, got {value!r}"
    assert make(clip_norm=None).clip_norm is None


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name) -> None:
    for value in (None, 0, 1, 1.0, "true", "", []):
        assert refusal(**{name: value}) == f"{name} must be true or false, got {value!r}"


@pytest.mark.parametrize(
    "value", [None, 150, "150,250", ["150"], [150, "250"], [1.0], [True, 2], [None], [[1]], {1: 2}, range(1, 3)]
)
def test_milestones_are_whole_numbers(value) -> None:
    assert refusal(milestones=value) == f"milestones must be whole numbers below 2^63, as 150,250, got {value!r}"


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_a_json_object(name) -> None:
    for value in (None, [], "gamma=3", 5, [("gamma", 3)]):
        assert refusal(**{name: value}) == f"{name} must be a JSON object, got {value!r}"


HOLD = "must hold text, numbers, true, false, none, lists and objects of them"


@pytest.mark.parametrize("name", OPTIONS)
def test_options_hold_what_json_can_say(name) -> None:
    for value in (torch.tensor(1.0), print, {1, 2}, b"x", 1j, Path("x"), math.nan, math.inf, {(1, 2): 3}, {1: 2}):
        assert refusal(**{name: {"gamma": value}}) == f"{name} {HOLD}, got {value!r}"


def test_options_that_hold_themselves_are_refused() -> None:
    options: dict[str, Any] = {}
    options["self"] = options
    assert refusal(data_options=options).startswith("data_options must ")


def test_keys_of_options_are_text() -> None:
    for keys in ({1: 2}, {None: 1}, {True: 1, "a": 2}):
        assert refusal(data_options=keys) == f"data_options {HOLD}, got {keys}"
        assert refusal(data_options={"sizes": [keys]}) == f"data_options {HOLD}, got {keys}"


# Values


@pytest.mark.parametrize(("name", "low"), WHOLE.items())
def test_whole_numbers_have_a_lowest(name, low) -> None:
    assert getattr(make(**{name: low}), name) == low
    for value in (low - 1, -(10**15)):
        assert refusal(**{name: value}) == f"{name} must be finite and at least {low}, got {value}"


@pytest.mark.parametrize("name", REAL)
def test_numbers_are_finite_and_not_negative(name) -> None:
    for value in (-1.0, -5e-324, math.nan, math.inf, -math.inf):
        assert refusal(**{name: value}) == f"{name} must be finite and at least 0, got {value!r}"
        assert getattr(make(**{name: 0.0}), name) == 0.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_the_clipping_norm_is_finite_and_above_zero(value) -> None:
    assert refusal(clip_norm=value) == f"clip_norm must be finite and above 0, or none, got {value}"


@pytest.mark.parametrize("changed", [{"epochs": 2**63}, {"batch_size": 2**63}, {"milestones": [2**63]}])
def test_whole_numbers_that_could_not_be_written_are_refused(changed) -> None:
    assert refusal(**changed).startswith(f"{next(iter(changed))} must be ")


def test_the_seed_fits_a_generator() -> None:
    assert torch.Generator().manual_seed(make(seed=2**63 - 1).seed).initial_seed() == 2**63 - 1
    assert refusal(seed=2**63) == f"seed must be a whole number below 2^63, got {2**63}"


@pytest.mark.parametrize("value", [(0,), (-5, 10), (10, 5), (5, 5), (1, 2, 2)])
def test_milestones_increase_from_the_first_epoch_on(value) -> None:
    assert refusal(milestones=value) == f"milestones must be increasing epochs from 1, got {list(value)}"


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_named(name) -> None:
    for value in ("", "none", "SUM", " sum", "sgd,adam"):
        assert refusal(**{name: value}) == f"{name} must be one of {', '.join(map(repr, CHOICES[name]))}, got {value!r}"


@pytest.mark.parametrize(("name", "choice"), [(name, choice) for name, of in CHOICES.items() for choice in of])
def test_choices_are_kept(name, choice) -> None:
    assert getattr(make(**{name: choice}), name) == choice


@pytest.mark.parametrize("name", ["lr", "clip_norm", "gamma"])
def test_whole_numbers_too_large_for_a_float_are_refused(name) -> None:
    changed = {"loss_options": {"gamma": 10**400}} if name == "gamma" else {name: 10**400}
    assert refusal(**changed).startswith(f"{next(iter(changed))} must ")


# What is the same


@pytest.mark.parametrize("name", [*REAL, "clip_norm"])
def test_whole_numbers_are_numbers_too(name) -> None:
    number = 0 if name == "momentum" else 1
    whole, real = make(**{name: number}), make(**{name: float(number)})
    assert type(getattr(whole, name)) is float
    assert whole == real
    assert whole.digest == real.digest
    assert whole.differences(real) == []


@pytest.mark.parametrize("given", [[30, 40], (30, 40)])
def test_milestones_become_a_tuple(given) -> None:
    recipe = make(milestones=given)
    assert recipe.milestones == (30, 40)
    assert type(recipe.milestones) is tuple
    assert recipe == make(milestones=(30, 40))
    assert recipe.digest == make(milestones=(30, 40)).digest


def test_no_milestones_become_a_tuple() -> None:
    assert make(milestones=[]).milestones == ()


def test_tuples_in_options_become_lists_as_in_json() -> None:
    recipe = make(loss="flsd", loss_options={"gammas": (4.0, 2.0), "thresholds": (0.5,)})
    assert recipe.loss_options == {"gammas": [4.0, 2.0], "thresholds": [0.5]}
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_equal_recipes_have_equal_digests_however_options_are_ordered() -> None:
    one, two = make(data_options={"a": 1, "b": 2}), make(data_options={"b": 2, "a": 1})
    assert one == two
    assert one.digest == two.digest


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"loss_options": {"gamma": 5}}, {"loss_options": {"gamma": 5.0}}),
        ({"weight_decay": 0.0}, {"weight_decay": -0.0}),
    ],
)
def test_equal_recipes_have_equal_digests(one, two) -> None:
    first, second = make(**one), make(**two)
    assert first == second
    assert first.differences(second) == []
    assert first.digest == second.digest


# The loss, the model, the data


@pytest.mark.parametrize(
    ("loss", "near"), [("dualfocal", "dual_focal"), ("Focal", "focal"), ("cross-entropy", "cross_entropy")]
)
def test_an_unknown_loss_has_a_nearest(loss, near) -> None:
    assert refusal(loss=loss) == f"loss must be one of {', '.join(LOSSES)}, got {loss!r}; did you mean {near}?"


@pytest.mark.parametrize("loss", ["", "hinge_of_the_door"])
def test_an_unknown_loss_may_have_no_nearest(loss) -> None:
    assert refusal(loss=loss) == f"loss must be one of {', '.join(LOSSES)}, got {loss!r}"


@pytest.mark.parametrize(
    ("model", "end"),
    [("resnet5", "; did you mean resnet50?"), ("DenseNet121", "; did you mean densenet121?"), ("zzz", ""), ("", "")],
)
def test_an_unknown_model_has_a_nearest(model, end) -> None:
    known = ", ".join(MODELS)
    assert refusal(model=model) == (f"model must be one of {known}, or package.module:function, got {model!r}{end}")


def test_a_model_of_ones_own_is_not_imported() -> None:
    assert make(model="no_such_package.nets:net").model == "no_such_package.nets:net"


def test_data_must_be_named() -> None:
    assert refusal(data="") == "data must name a data set, a folder or an .npz file, got ''"


@pytest.mark.parametrize("data", ["digits", "some/folder", "/data/mine.npz", "no_such_data"])
def test_data_may_be_anywhere(data) -> None:
    assert make(data=data).data == data


@pytest.mark.parametrize("missing", ["data", "model"])
def test_data_and_model_have_no_default(missing) -> None:
    given = {"data": "digits", "model": "small_cnn"}
    del given[missing]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{missing}'"):
        Recipe(**given)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("dual_focal", "gama", "loss dual_focal has the options gamma, rival, impl; got gama; did you mean gamma?"),
        ("dual_focal", "alpha", "loss dual_focal has the options gamma, rival, impl; got alpha"),
        ("focal", "rival", "loss focal has the options gamma; got rival"),
        ("label_smoothing", "Alpha", "loss label_smoothing has the options alpha, spread; got Alpha; did you mean"),
        ("cross_entropy", "gamma", "loss cross_entropy has no options; got gamma"),
        ("brier", "", "loss brier has no options; got "),
        ("focal", "self", "loss focal has the options gamma; got self"),
    ],
)
def test_options_that_a_loss_lacks_are_named(loss, options, message) -> None:
    assert refusal(loss=loss, loss_options={options: 1}).startswith(message)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_recipe_says_itself_is_no_option_of_a_loss(loss) -> None:
    for option, value in (("weight", None), ("reduction", "mean"), ("ignore_index", -100)):
        options, _, got = refusal(loss=loss, loss_options={option: value}).partition("; got ")
        assert options.startswith(f"loss {loss} has ")
        assert option not in options.replace("weighted", "")
        assert got.startswith(option)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("dual_focal", {"gamma": -1}, "gamma must be finite and at least 0, got -1"),
        ("dual_focal", {"gamma": "5"}, "gamma must be a number, got '5'"),
        ("dual_focal", {"gamma": None}, "gamma must be a number, got None"),
        ("focal", {"gamma": [3]}, "gamma must be a number, got [3]"),
        ("label_smoothing", {"alpha": 1.5}, "alpha must be finite and between 0 and 1, got 1.5"),
        ("label_smoothing", {"spread": "none"}, "spread must be one of 'others', 'all', got 'none'"),
        ("ada_focal", {"variant": "old"}, "variant must be one of 'switch', 'no_switch', got 'old'"),
        ("ada_focal", {"num_bins": 0}, "num_bins must be at least 1, got 0"),
        ("kde_xe", {"bandwidth": "auto"}, "bandwidth must be a number or 'likelihood', got 'auto'"),
    ],
)
def test_options_that_a_loss_refuses_are_named(loss, options, message) -> None:
    assert refusal(loss=loss, loss_options=options) == f"loss {loss}: {message}"


@pytest.mark.parametrize(
    ("loss", "option"),
    [("ada_focal", "frozen"), ("ada_dual_focal", "frozen"), ("mmce", "as_published"), ("mmce", "weighted")],
)
def test_flags_of_a_loss_are_true_or_false(loss, option) -> None:
    for typed, flag in (("no", False), ("false", False), ("yes", True), ("True", True)):
        assert getattr(make(loss=loss).with_settings([f"loss.{option}={typed}"]).make_loss(), option) is flag
    for value in ("no", "", 0, 1, None, [], [False]):
        message = refusal(loss=loss, loss_options={option: value})
        assert message == f"loss {loss}: {option} must be true or false, got {value!r}"


@pytest.mark.parametrize(
    ("loss", "option"), [("dual_focal", "gamma"), ("dual_focal", "rival"), ("ada_focal", "gamma"), ("mmce", "width")]
)
def test_what_is_no_flag_of_a_loss_is_not_true_or_false(loss, option) -> None:
    for value in (True, False):
        message = refusal(loss=loss, loss_options={option: value})
        assert message == f"loss {loss}: {option} must not be true or false, got {value}"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", CHOICES["reduction"])
def test_the_loss_is_summed_whatever_the_recipe_reduces(loss, reduction) -> None:
    made = make(loss=loss, reduction=reduction).make_loss()
    assert type(made) is LOSSES[loss]
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.equal(made(logits, target), LOSSES[loss](reduction="sum")(logits, target))
    assert made.reduction == "sum"


def test_the_loss_has_its_options_and_is_made_anew() -> None:
    recipe = make(loss="ada_focal", loss_options={"gamma": 3, "num_bins": 4, "variant": "no_switch", "frozen": True})
    made = recipe.make_loss()
    assert made.gamma.tolist() == [3.0] * 4
    assert (made.variant, made.frozen) == ("no_switch", True)
    made.gamma.fill_(7.0)
    assert recipe.make_loss().gamma.tolist() == [3.0] * 4


# Frozen


@pytest.mark.parametrize("name", NAMES)
def test_nothing_can_be_assigned(name) -> None:
    recipe = make()
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(recipe, name, OTHER[name])
    assert recipe == make()


def test_options_are_copied() -> None:
    given = {"crop": [1, 2]}
    recipe = make(data_options=given)
    given["crop"].append(3)
    given["more"] = [4]
    assert recipe.data_options == {"crop": [1, 2]}
    dataclasses.replace(recipe).data_options["crop"].append(3)
    recipe.with_settings(["epochs=3"]).data_options["crop"].append(3)
    assert recipe.data_options == {"crop": [1, 2]}


def test_the_dict_is_a_copy() -> None:
    recipe = make(data_options={"noise": 0.5})
    recipe.to_dict()["data_options"]["noise"] = 0.9
    assert recipe.data_options == {"noise": 0.5}


def test_defaults_are_not_shared() -> None:
    make().loss_options["gamma"] = 3
    assert make().loss_options == {}


def test_replacing_checks_again() -> None:
    recipe = make(loss_options={"gamma": 3})
    with pytest.raises(ValueError, match=r"^epochs must be finite and at least 1, got 0$"):
        dataclasses.replace(recipe, epochs=0)
    with pytest.raises(ValueError, match=r"^loss cross_entropy has no options; got gamma$"):
        dataclasses.replace(recipe, loss="cross_entropy")
    assert dataclasses.replace(recipe, lr=1) == make(loss_options={"gamma": 3}, lr=1.0)


def test_arguments_have_names() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Recipe("digits", "small_cnn")


# Settings


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("epochs=30", {"epochs": 30}),
        (" epochs = 30 ", {"epochs": 30}),
        ("epochs\t=\n30", {"epochs": 30}),
        ("seed=0", {"seed": 0}),
        ("lr=.1", {"lr": 0.1}),
        ("lr=1e-3", {"lr": 0.001}),
        ("lr=1.", {"lr": 1.0}),
        ("lr=1", {"lr": 1.0}),
        ("lr=5.E-2", {"lr": 0.05}),
        ("lr=+.5", {"lr": 0.5}),
        ("clip_norm=none", {"clip_norm": None}),
        ("clip_norm=None", {"clip_norm": None}),
        ("clip_norm=null", {"clip_norm": None}),
        ("clip_norm=.5", {"clip_norm": 0.5}),
        ("clip_norm=3", {"clip_norm": 3.0}),
        ("drop_last=true", {"drop_last": True}),
        ("drop_last=True", {"drop_last": True}),
        ("drop_last=yes", {"drop_last": True}),
        ("drop_last=YES", {"drop_last": True}),
        ("drop_last=false", {"drop_last": False}),
        ("drop_last=no", {"drop_last": False}),
        ("drop_last=No", {"drop_last": False}),
        ("milestones=30,40", {"milestones": (30, 40)}),
        ("milestones=30, 40", {"milestones": (30, 40)}),
        ("milestones=[30,40]", {"milestones": (30, 40)}),
        ("milestones= [ 30 , 40 ] ", {"milestones": (30, 40)}),
        ("epochs=1e3", {"epochs": 1000}),
        ("milestones=30", {"milestones": (30,)}),
        ("milestones=", {"milestones": ()}),
        ("milestones=[]", {"milestones": ()}),
        ("milestones=none", {"milestones": ()}),
        ("data=a=b", {"data": "a=b"}),
        ("data=/some folder/x.npz", {"data": "/some folder/x.npz"}),
        ("data=none", {"data": "none"}),
        ("data=5", {"data": "5"}),
        ("model=my_package.nets:net", {"model": "my_package.nets:net"}),
        ("weights=best_nll", {"weights": "best_nll"}),
        ("loss.gamma=3", {"loss_options": {"gamma": 3}}),
        ("loss.gamma=.5", {"loss_options": {"gamma": 0.5}}),
        (" loss.gamma = 1e-3 ", {"loss_options": {"gamma": 0.001}}),
        ("loss.rival=2nd", {"loss_options": {"rival": "2nd"}}),
        ('loss_options={"gamma": 3}', {"loss_options": {"gamma": 3}}),
        ("data.noise=.3", {"data_options": {"noise": 0.3}}),
        ("data.val_size=1000", {"data_options": {"val_size": 1000}}),
        ("data.val_size=-1", {"data_options": {"val_size": -1}}),
        ("data.x=true", {"data_options": {"x": True}}),
        ("data.x=False", {"data_options": {"x": False}}),
        ("data.x=yes", {"data_options": {"x": True}}),
        ("data.x=No", {"data_options": {"x": False}}),
        ('data.x="no"', {"data_options": {"x": "no"}}),
        ("data.x=none", {"data_options": {"x": None}}),
        ("data.x=null", {"data_options": {"x": None}}),
        ("data.x=[1, 2.5]", {"data_options": {"x": [1, 2.5]}}),
        ('data.x="5"', {"data_options": {"x": "5"}}),
        ("data.x=", {"data_options": {"x": ""}}),
        ("data.x=Some text, with = in it", {"data_options": {"x": "Some text, with = in it"}}),
        ("data.a.b=1", {"data_options": {"a.b": 1}}),
    ],
)
def test_settings_are_read_as_the_field_is_typed(setting, expected) -> None:
    before = make(clip_norm=9, drop_last="no" in setting.lower())
    after = before.with_settings([setting])
    assert after == dataclasses.replace(before, **expected)
    for name, value in expected.items():  # True == 1 == 1.0
        assert json.dumps(getattr(after, name)) == json.dumps(value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("momentum=1", "momentum must be below 1, got 1"),
        ("epochs=030", "epochs must be a whole number below 2^63, got '030'"),
        ("epochs=true", "epochs must be a whole number below 2^63, got True"),
        ("epochs=none", "epochs must be a whole number below 2^63, got None"),
        ("epochs=", "epochs must be a whole number below 2^63, got ''"),
        ("epochs=3=4", "epochs must be a whole number below 2^63, got '3=4'"),
        ("epochs=0", "epochs must be finite and at least 1, got 0"),
        ("seed=1,2", "seed must be a whole number below 2^63, got '1,2'"),
        ("lr=fast", "lr must be a number, got 'fast'"),
        ("lr=0,1", "lr must be a number, got '0,1'"),
        ("lr=true", "lr must be a number, got True"),
        ("lr=", "lr must be a number, got ''"),
        ('lr="0.1"', "lr must be a number, got '0.1'"),
        ("lr=nan", "lr must be a number, got 'nan'"),
        ("lr=1e999", "lr must be finite and at least 0, got inf"),
        ("clip_norm=no", "clip_norm must be a number, or none, got False"),
        ("clip_norm=0", "clip_norm must be finite and above 0, or none, got 0.0"),
        ("clip_norm=", "clip_norm must be a number, or none, got ''"),
        ("clip_norm=inf", "clip_norm must be a number, or none, got 'inf'"),
        ("drop_last=1", "drop_last must be true or false, got 1"),
        ("drop_last=maybe", "drop_last must be true or false, got 'maybe'"),
        ("milestones=1.5", "milestones must be whole numbers below 2^63, as 150,250, got [1.5]"),
        ("milestones=null", "milestones must be whole numbers below 2^63, as 150,250, got [None]"),
        ("milestones=250,150", "milestones must be increasing epochs from 1, got [250, 150]"),
        ("optimizer=Adam", "optimizer must be one of 'sgd', 'adam', got 'Adam'"),
        ("data=", "data must name a data set, a folder or an .npz file, got ''"),
        ("loss_options=3", "loss_options must be a JSON object, got 3"),
        ("loss_options=none", "loss_options must be a JSON object, got None"),
        ("loss.gamma=-1", "loss dual_focal: gamma must be finite and at least 0, got -1"),
        ("loss.gamma=", "loss dual_focal: gamma must be a number, got ''"),
        ("loss.gama=3", "loss dual_focal has the options gamma, rival, impl; got gama; did you mean gamma?"),
    ],
)
def test_settings_of_another_type_are_refused(setting, message) -> None:
    assert refused(make(), setting) == message


@pytest.mark.parametrize(
    ("typed", "shown"), [("a", "'a'"), ("30 40", "'30 40'"), ("30,", "'30,'"), ("(30,40)", "'(30,40)'")]
)
def test_milestones_are_shown_as_they_were_written(typed, shown) -> None:
    assert (
        refused(make(), f"milestones={typed}")
        == f"milestones must be whole numbers below 2^63, as 150,250, got {shown}"
    )


@pytest.mark.parametrize("setting", ["", " ", "epochs", "=", "=3", " = 3", "loss", "loss.gamma", "loss."])
def test_a_setting_has_a_field_and_a_value(setting) -> None:
    assert refused(make(), setting) == f"a setting is written field=value, got {setting!r}"


@pytest.mark.parametrize(
    ("setting", "field", "near"),
    [
        ("epoch=3", "epoch", "epochs"),
        ("EPOCHS=3", "EPOCHS", "epochs"),
        ("batchsize=3", "batchsize", "batch_size"),
        ("loss.=3", "loss.", "loss"),
        ("model.width=3", "model.width", None),
        ("schema=1", "schema", None),
        (".gamma=3", ".gamma", None),
        ("zzz=3", "zzz", None),
        ("digest=3", "digest", None),
        ("__class__=3", "__class__", None),
    ],
)
def test_a_field_that_is_none_has_a_nearest(setting, field, near) -> None:
    message = refused(make(), setting)
    assert message.startswith(f"a recipe has no field {field!r}" + (f"; did you mean {near}?; it has " if near else ""))
    assert message.endswith(f"; it has {', '.join(NAMES)}, loss.OPTION, data.OPTION")


def test_settings_leave_the_original_as_it_was() -> None:
    recipe = make(loss_options={"gamma": 5}, data_options={"noise": 0.3})
    before = json.dumps(recipe.to_dict())
    changed = recipe.with_settings(["loss.gamma=3", "data.noise=.5", "epochs=2", "milestones=1"])
    assert (changed.loss_options, changed.data_options) == ({"gamma": 3}, {"noise": 0.5})
    assert json.dumps(recipe.to_dict()) == before


def test_no_settings_change_nothing() -> None:
    recipe = make(**OTHER)
    assert recipe.with_settings([]) == recipe
    assert recipe.with_settings(iter(())) == recipe


def test_options_are_added_to_those_there_are() -> None:
    recipe = make(loss_options={"gamma": 5, "rival": "2nd"}, data_options={"noise": 0.3})
    changed = recipe.with_settings(["loss.gamma=3", "data.val_size=100"])
    assert changed.loss_options == {"gamma": 3, "rival": "2nd"}
    assert changed.data_options == {"noise": 0.3, "val_size": 100}


def test_another_loss_starts_from_its_own_options() -> None:
    recipe = make(loss_options={"gamma": 5, "rival": "2nd"}, data_options={"noise": 0.3})
    assert recipe.with_settings(["loss=focal"]).loss_options == {}
    assert recipe.with_settings(["loss=focal"]).data_options == {"noise": 0.3}
    assert recipe.with_settings(["loss=cross_entropy"]).loss == "cross_entropy"


def test_other_data_start_from_their_own_options() -> None:
    recipe = make(loss_options={"gamma": 5}, data_options={"noise": 0.3})
    assert recipe.with_settings(["data=cifar10"]).data_options == {}
    assert recipe.with_settings(["data=cifar10"]).loss_options == {"gamma": 5}
    assert recipe.with_settings(["data=cifar10", "data.val_size=9"]).data_options == {"val_size": 9}
    assert recipe.with_settings(["data=digits"]).data_options == {"noise": 0.3}


def test_the_same_loss_keeps_its_options() -> None:
    recipe = make(loss_options={"gamma": 5, "rival": "2nd"})
    assert recipe.with_settings(["loss=dual_focal"]) == recipe
    assert recipe.with_settings(["loss=focal", "loss=dual_focal"]) == recipe
    assert recipe.with_settings(["loss=dual_focal", "loss.gamma=3"]).loss_options == {"gamma": 3, "rival": "2nd"}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (("loss=focal", "loss.gamma=2", "epochs=3"), {"gamma": 2}),
        (("loss=dual_focal", "loss.gamma=2", "epochs=3"), {"gamma": 2, "rival": "2nd"}),
        (("loss=dual_focal", 'loss_options={"impl": "auto"}', "loss.gamma=2"), {"gamma": 2, "impl": "auto"}),
        (("loss=ada_focal", "loss.variant=no_switch", 'loss_options={"rate": 2}'), {"variant": "no_switch", "rate": 2}),
    ],
)
def test_the_order_of_settings_does_not_matter(settings, options) -> None:
    recipe = make(loss_options={"gamma": 5, "rival": "2nd"})
    made = [recipe.with_settings(order) for order in permutations(settings)]
    assert [each.loss_options for each in made] == [options] * len(made)
    assert len({each.digest for each in made}) == 1


def test_of_two_values_the_last_counts() -> None:
    changed = make().with_settings(["epochs=3", "loss.gamma=1", "epochs=4", "loss.gamma=2"])
    assert (changed.epochs, changed.loss_options) == (4, {"gamma": 2})


def test_options_of_the_old_loss_are_refused_for_the_new_one() -> None:
    assert refused(make(), "loss=focal", "loss.rival=2nd") == "loss focal has the options gamma; got rival"


@pytest.mark.parametrize("owner", ["loss", "data"])
def test_options_that_are_none_are_refused_beside_an_option(owner) -> None:
    message = refused(make(), f"{owner}_options=none", f"{owner}.gamma=3")
    assert message == f"{owner}_options must be a JSON object, got None"


# JSON


def options_of(loss: str) -> st.SearchStrategy[dict[str, Any]]:
    number = st.integers(0, 9) | st.floats(0, 9)
    known: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "dual_focal": {"gamma": number, "rival": st.sampled_from(["next", "2nd", "batch_mean2", 0, 0.5])},
        "focal": {"gamma": number},
        "flsd": {"gammas": st.tuples(number, number)},
        "ada_focal": {"variant": st.sampled_from(["switch", "no_switch"]), "frozen": st.booleans(), "gamma": st.none()},
    }
    return st.fixed_dictionaries({}, optional=known.get(loss, {}))


finite = st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**6)
trimmed = st.text(min_size=1).filter(lambda text: text == text.strip())
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
rest = st.fixed_dictionaries(
    {
        "data": trimmed,
        "data_options": st.dictionaries(st.text(), anything, max_size=3),
        "model": st.sampled_from(list(MODELS)) | st.just("my.nets:net"),
        "clip_norm": st.none() | st.floats(1e-300, 1e300) | st.integers(1, 9),
        "milestones": st.lists(st.integers(1, 10**6), unique=True, max_size=4).map(sorted),
        "seed": st.integers(0, 2**63 - 1),
        "epochs": st.integers(1, 10**9),
        "batch_size": st.integers(1, 10**9),
        **dict.fromkeys(REAL, finite),
        "momentum": st.floats(0, 1, exclude_max=True),
        **dict.fromkeys(FLAGS, st.booleans()),
        **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
    }
)
recipes = st.builds(
    lambda rest, loss: Recipe(**rest, loss=loss[0], loss_options=loss[1]),
    rest,
    st.sampled_from(list(LOSSES)).flatmap(lambda loss: st.tuples(st.just(loss), options_of(loss))),
)


@settings(max_examples=50, deadline=None)
@given(recipes)
def test_a_recipe_comes_back_from_json(recipe) -> None:
    text = json.dumps(recipe.to_dict(), allow_nan=False)
    back = Recipe.from_dict(json.loads(text))
    assert back == recipe
    assert back.digest == recipe.digest
    assert json.dumps(back.to_dict()) == text
    assert recipe.differences(back) == []


@settings(max_examples=50, deadline=None)
@given(recipes)
def test_a_recipe_comes_back_from_settings(recipe) -> None:
    content = recipe.to_dict()
    given = [f"{name}={content[name] if name in TEXT else json.dumps(content[name])}" for name in NAMES]
    back = make(**{**OTHER, "loss": "dual_focal"}).with_settings(given)
    assert back == recipe
    assert back.digest == recipe.digest


@settings(max_examples=50, deadline=None)
@given(anything)
def test_an_option_comes_back_from_its_setting(value) -> None:
    assert make().with_settings([f"data.x={json.dumps(value)}"]).data_options == {"x": value}


def test_the_dict_has_the_fields_in_order_and_json_types_only() -> None:
    content = make(**OTHER).to_dict()
    assert list(content) == ["schema", *NAMES]
    assert json.loads(json.dumps(content)) == content


@pytest.mark.parametrize("content", [None, [], "recipe", 1, [("schema", 1)]])
def test_what_is_no_object_is_no_recipe(content) -> None:
    with pytest.raises(ValueError, match=r"^recipe has schema None, this version of dualfocal reads schema 1$"):
        Recipe.from_dict(content)


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1]])
def test_another_schema_is_told_before_anything_else(schema) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        Recipe.from_dict({"schema": schema, "unknown": 1})
    assert str(caught.value) == f"recipe has schema {schema}, this version of dualfocal reads schema 1"


def test_without_a_schema_it_is_no_recipe() -> None:
    content = make().to_dict()
    del content["schema"]
    with pytest.raises(ValueError, match=r"^recipe has schema None, this version of dualfocal reads schema 1$"):
        Recipe.from_dict(content)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_named(name) -> None:
    content = make().to_dict()
    del content[name]
    with pytest.raises(ValueError, match=f"^recipe lacks {name}$"):
        Recipe.from_dict(content)


def test_missing_fields_are_named_together() -> None:
    content = {name: value for name, value in make().to_dict().items() if name not in ("seed", "data", "lr")}
    with pytest.raises(ValueError, match=r"^recipe lacks data, lr, seed$"):
        Recipe.from_dict(content)


@pytest.mark.parametrize(("name", "end"), [("epoch", r"; did you mean epochs\?"), ("zzz", "")])
def test_an_unknown_field_has_a_nearest(name, end) -> None:
    with pytest.raises(ValueError, match=f"^a recipe has no field '{name}'{end}$"):
        Recipe.from_dict({**make().to_dict(), name: 1})


def test_what_is_read_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^epochs must be a whole number below 2\^63, got '30'$"):
        Recipe.from_dict({**make().to_dict(), "epochs": "30"})


def test_reading_does_not_change_what_is_read() -> None:
    content = make(data_options={"crop": [1]}).to_dict()
    Recipe.from_dict(content).data_options["crop"].append(2)
    assert content["data_options"] == {"crop": [1]}


# Telling recipes apart


@pytest.mark.parametrize("name", NAMES)
def test_every_field_makes_a_difference(name) -> None:
    one, two = make(), make(**{name: OTHER[name]})
    assert one != two
    assert one.digest != two.digest
    shown = [json.dumps(recipe.to_dict()[name]) for recipe in (one, two)]
    assert one.differences(two) == [f"{name}: {shown[0]}, not {shown[1]}"]
    assert two.differences(one) == [f"{name}: {shown[1]}, not {shown[0]}"]


def test_differences_show_both_values_in_the_order_of_the_fields() -> None:
    one = make(epochs=30, clip_norm=None, milestones=(), loss_options={"gamma": 2.0})
    two = make(epochs=60, milestones=[30, 40], drop_last=True, data="a b")
    assert one.differences(two) == [
        'data: "digits", not "a b"',
        'loss_options: {"gamma": 2}, not {}',
        "clip_norm: null, not 2",
        "milestones: [], not [30, 40]",
        "epochs: 30, not 60",
        "drop_last: false, not true",
    ]


def test_equal_recipes_have_no_differences() -> None:
    assert make(**OTHER).differences(make(**OTHER)) == []


def test_the_digest_is_eight_digits() -> None:
    assert re.fullmatch("[0-9a-f]{8}", make().digest)


# The learning rate


def by_torch(recipe: Recipe, scheduler: type, **options: Any) -> list[float]:
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
    [((150, 250), 0.1, 350), ((40, 60), 0.1, 100), ((), 0.1, 5), ((1, 2, 3), 0.5, 6), ((9,), 0.1, 5), ((2,), 0.0, 4)],
)
def test_steps_are_those_of_torch(milestones, factor, epochs) -> None:
    recipe = make(milestones=milestones, lr_factor=factor, epochs=epochs)
    expected = by_torch(recipe, torch.optim.lr_scheduler.MultiStepLR, milestones=milestones, gamma=factor)
    assert [recipe.lr_at(epoch) for epoch in range(epochs)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lr", "epochs"), [(0.05, 60), (0.1, 350), (1.0, 1), (0.0, 3), (3.0, 2)])
def test_the_cosine_is_that_of_torch(lr, epochs) -> None:
    recipe = make(schedule="cosine", lr=lr, epochs=epochs)
    expected = by_torch(recipe, torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs)
    assert [recipe.lr_at(epoch) for epoch in range(epochs)] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_cosine_ends_at_zero_and_knows_no_milestones() -> None:
    recipe = make(schedule="cosine", lr=0.4, epochs=10, milestones=(1, 2), lr_factor=0.0)
    assert (recipe.lr_at(0), recipe.lr_at(5), recipe.lr_at(10)) == (0.4, pytest.approx(0.2), 0.0)


# Files


def test_a_recipe_is_read_from_a_file_or_a_run_folder(tmp_path) -> None:
    recipe = make(**OTHER)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.json") == recipe
    assert load_recipe(tmp_path) == recipe


def test_a_recipe_may_have_any_name(tmp_path) -> None:
    path = tmp_path / "Grüße.txt"
    path.write_text(json.dumps(make(data="Bilder/Äpfel").to_dict(), ensure_ascii=False), encoding="utf-8")
    assert load_recipe(path).data == "Bilder/Äpfel"


@pytest.mark.parametrize(("given", "looked_for"), [("no.json", "no.json"), ("", "recipe.json")])
def test_a_missing_file_is_named(tmp_path, given, looked_for) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        load_recipe(tmp_path / given)
    assert str(caught.value) == f"{tmp_path / looked_for}: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON, or damaged: Expecting value: line 1 column 1 (char 0)"),
        (
            b'{"schema": 1, "data": "dig',
            "is not JSON, or damaged: Unterminated string starting at: line 1 column 23 (char 22)",
        ),
        (
            b"\xff\xfe{}",
            "is not JSON, or damaged: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        (b"null", "has schema None, this version of dualfocal reads schema 1"),
        (b"[]", "has schema None, this version of dualfocal reads schema 1"),
        (b'{"schema": 2}', "has schema 2, this version of dualfocal reads schema 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, message) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
            load_recipe(place)
        assert str(caught.value) == f"{path}: {message}"


def test_a_flood_of_brackets_is_damage_too(tmp_path) -> None:
    (tmp_path / "recipe.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"recipe\.json: "):
        load_recipe(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": math.nan}, "lr must be finite and at least 0, got nan"),
        ({"loss": "focl"}, f"loss must be one of {', '.join(LOSSES)}, got 'focl'; did you mean focal?"),
        ({"epoch": 3}, "a recipe has no field 'epoch'; did you mean epochs?"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path, changed, message) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**make().to_dict(), **changed}))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        load_recipe(path)
    assert str(caught.value) == f"{path}: {message}"


# Documentation


def test_every_field_is_documented_in_a_line() -> None:
    docs = field_docs()
    assert list(docs) == NAMES
    for name, doc in docs.items():
        assert doc == doc.strip()
        assert "\n" not in doc
        assert doc.endswith("."), name
    assert docs["drop_last"] == "Leave out the last batch of an epoch if it is smaller."


@pytest.mark.parametrize(("name", "choices"), CHOICES.items())
def test_every_choice_is_documented(name, choices) -> None:
    doc = field_docs()[name]
    assert [choice for choice in choices if choice not in doc] == []
