"""Recipes from text: settings on the command line, JSON, and files."""

import dataclasses
import json
import math
import re
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualfocal.losses import LOSSES
from dualfocal_lab.models import MODELS
from dualfocal_lab.runs.recipe import CHOICES, Recipe, load_recipe

NAMES = [f.name for f in dataclasses.fields(Recipe)]


def make(**changes: Any) -> Recipe:
    return Recipe(**{"data": "digits", "model": "small_cnn", **changes})


def refusal(*settings: str) -> str:
    """The message with which these settings are refused; fails if they are accepted."""
    try:
        make().with_settings(settings)
    except ValueError as error:
        return str(error)
    return pytest.fail(f"accepted: {settings}")


# Settings


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epochs", {"300": 300, " 300 ": 300, "\n300": 300, "1e3": 1000}),
        ("seed", {"0": 0}),
        ("lr", {".1": 0.1, "1e-3": 0.001, "1.": 1.0, "1": 1.0, "5.E-2": 0.05, "+.5": 0.5}),
        ("clip_norm", {"none": None, "None": None, "null": None, ".5": 0.5, "3": 3.0}),
        ("drop_last", {"true": True, "True": True, "yes": True, "YES": True, "false": False, "no": False, "No": False}),
        ("milestones", {"30,40": (30, 40), "30, 40": (30, 40), "[30,40]": (30, 40), " [ 30 , 40 ] ": (30, 40)}),
        ("milestones", {"30": (30,), "": (), "[]": (), "none": ()}),
        ("data", {"a=b": "a=b", "/some folder/x.npz": "/some folder/x.npz", "none": "none", "5": "5"}),
        ("model", {"my_package.nets:net": "my_package.nets:net"}),
        ("weights", {"best_nll": "best_nll"}),
        ("loss_options", {'{"gamma": 3}': {"gamma": 3}}),
    ],
)
def test_settings_are_read_as_the_field_is_typed(name, values) -> None:
    for text, value in values.items():
        before = make(clip_norm=9, drop_last=value is False)
        for setting in (f"{name}={text}", f" {name}\t= {text} "):
            after = before.with_settings([setting])
            assert after == dataclasses.replace(before, **{name: value}), setting
            assert json.dumps(getattr(after, name)) == json.dumps(value), setting  # True == 1 == 1.0


@pytest.mark.parametrize(
    ("settings", "milestones"),
    [
        (["epochs=35"], (15, 25)),
        (["epochs=250"], (107, 179)),
        (["epochs=2"], (1,)),
        (["epochs=251"], (150, 250)),
        (["epochs=700"], (150, 250)),
        (["epochs=35", "milestones=5"], (5,)),
        (["epochs=35", "milestones=150,250"], (150, 250)),
        (["lr=1"], (150, 250)),
    ],
)
def test_milestones_that_would_lie_beyond_the_last_epoch_are_scaled(settings, milestones) -> None:
    assert make().with_settings(settings).milestones == milestones


def test_options_are_read_as_json_numbers_words_or_text() -> None:
    values = {".3": 0.3, "1e-3": 0.001, "1000": 1000, "-1": -1, "true": True, "False": False, "yes": True, "No": False}
    values |= {'"no"': "no", "none": None, "null": None, "[1, 2.5]": [1, 2.5], '"5"': "5", "": "", "2nd": "2nd"}
    values |= {"Some text, with = in it": "Some text, with = in it"}
    for text, value in values.items():
        for setting in (f"data.x={text}", f" data.x = {text} "):
            assert json.dumps(make().with_settings([setting]).data_options) == json.dumps({"x": value}), setting
    assert make().with_settings(["data.a.b=1"]).data_options == {"a.b": 1}
    assert make().with_settings(["loss.label_smoothing=0.1"]).make_loss().label_smoothing == 0.1
    assert make().with_settings(["loss.rival=2nd", "loss.gamma=.5"]).loss_options == {"rival": "2nd", "gamma": 0.5}


def test_settings_with_a_wrong_value_are_refused() -> None:
    cases = [
        ("epochs=030", "epochs must be a whole number .*, got '030'"),
        ("epochs=none", "epochs must be a whole number .*, got None"),
        ("epochs=", "epochs must be a whole number .*, got ''"),
        ("lr=fast", "lr must be a number, got 'fast'"),
        ("lr=nan", "lr must be a number, got 'nan'"),
        ("lr=1e999", "lr must be finite .*, got inf"),
        ("clip_norm=no", "clip_norm must be a number, or none, got False"),
        ("clip_norm=0", "clip_norm must be .*above 0, or none, got 0.0"),
        ("clip_norm=inf", "clip_norm must be a number, or none, got 'inf'"),
        ("drop_last=maybe", "drop_last must be true or false, got 'maybe'"),
        ("milestones=1.5", r"milestones must be whole numbers .*, got \[1.5\]"),
        ("milestones=a", "milestones must be whole numbers .*, got 'a'"),
        ("milestones=30,", "milestones must be whole numbers .*, got '30,'"),
        ("data=", "data must name a data set.*, got ''"),
        ("loss_options=3", "loss_options must be a JSON object, got 3"),
        ("loss_options=none & loss.gamma=3", "loss_options must be a JSON object, got None"),
        ("data_options=none & data.gamma=3", "data_options must be a JSON object, got None"),
        ("loss.gama=3", "loss dual_focal has the options gamma, .*; got gama; did you mean gamma"),
        ("loss=focal & loss.rival=2nd", "loss focal has the options gamma, label_smoothing; got rival"),
    ]
    for text, words in cases:
        assert re.search(f"^{words}", refusal(*text.split(" & "))), text


def test_a_setting_without_a_known_field_and_a_value_is_refused() -> None:
    for setting in ("", " ", "epochs", "=", "=3", " = 3", "loss", "loss.gamma", "loss."):
        assert re.search(f"field=value, got {setting!r}$", refusal(setting)), setting
    nearest = {"epoch": "epochs", "EPOCHS": "epochs", "batchsize": "batch_size", "loss.": "loss"}
    for field in (*nearest, "model.width", "schema", ".gamma", "zzz", "digest", "__class__"):
        near = rf"; did you mean {nearest[field]}\?" if field in nearest else r"(; did you mean \w+\?)?"
        words = f"no field {field!r}; it has {', '.join(NAMES)}, loss.OPTION, data.OPTION, optimizer.OPTION"
        assert re.search(f"{words}{near}$", refusal(f"{field}=3")), field


def test_settings_leave_the_original_unchanged() -> None:
    recipe = make(loss_options={"gamma": 5}, data_options={"noise": 0.3})
    before = json.dumps(recipe.to_dict())
    changed = recipe.with_settings(["loss.gamma=3", "data.noise=.5", "epochs=2", "milestones=1"])
    assert (changed.loss_options, changed.data_options) == ({"gamma": 3}, {"noise": 0.5})
    assert json.dumps(recipe.to_dict()) == before
    assert recipe.with_settings(iter(())) == recipe


@pytest.mark.parametrize(
    ("changes", "loss_options", "data_options"),
    [
        (["loss.gamma=3", "data.val_size=9"], {"gamma": 3, "rival": "2nd"}, {"noise": 0.3, "val_size": 9}),
        (["loss=dual_focal", "data=digits"], {"gamma": 5, "rival": "2nd"}, {"noise": 0.3}),
        (["loss=focal"], {}, {"noise": 0.3}),
        (["loss=focal", "loss.gamma=2", "epochs=3"], {"gamma": 2}, {"noise": 0.3}),
        (["loss=dual_focal", "loss.gamma=2"], {"gamma": 2, "rival": "2nd"}, {"noise": 0.3}),
        (['loss_options={"impl": "auto"}', "loss.gamma=2"], {"gamma": 2, "impl": "auto"}, {"noise": 0.3}),
        (
            ["loss=ada_focal", "loss.frozen=yes", 'loss_options={"rate": 2}'],
            {"frozen": True, "rate": 2},
            {"noise": 0.3},
        ),
        (["data=cifar10"], {"gamma": 5, "rival": "2nd"}, {}),
        (["data=cifar10", "data.val_size=9"], {"gamma": 5, "rival": "2nd"}, {"val_size": 9}),
    ],
)
def test_options_are_merged_and_start_anew_for_another_loss_or_data_in_any_order(
    changes, loss_options, data_options
) -> None:
    recipe = make(loss_options={"gamma": 5, "rival": "2nd"}, data_options={"noise": 0.3})
    changed = [recipe.with_settings(order) for order in permutations(changes)]
    for each in changed:
        assert (each.loss_options, each.data_options) == (loss_options, data_options)
    assert len({each.digest for each in changed}) == 1


def test_the_last_of_several_values_counts() -> None:
    changed = make().with_settings(["epochs=3", "loss.gamma=1", "epochs=4", "loss.gamma=2"])
    assert (changed.epochs, changed.loss_options) == (4, {"gamma": 2})
    recipe = make(loss_options={"gamma": 5})
    assert recipe.with_settings(["loss=focal", "loss=dual_focal"]) == recipe


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
finite = st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**6)
fields = st.fixed_dictionaries(
    {
        "data": trimmed,
        "data_options": st.dictionaries(st.text(), anything, max_size=3),
        "model": st.sampled_from(list(MODELS)) | st.just("my.nets:net"),
        "clip_norm": st.none() | st.floats(1e-300, 1e300) | st.integers(1, 9),
        "milestones": st.lists(st.integers(1, 10**6), unique=True, max_size=4).map(sorted),
        "seed": st.integers(0, 2**63 - 1),
        **dict.fromkeys(("epochs", "batch_size"), st.integers(1, 10**6)),
        **dict.fromkeys(("lr", "weight_decay", "lr_factor"), finite),
        "momentum": st.floats(0, 1, exclude_max=True),
        **dict.fromkeys(("drop_last", "deterministic", "sync_bn", "test_each_epoch"), st.booleans()),
        "channels_last": st.none() | st.booleans(),
        **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
    }
)
recipes = st.builds(
    lambda fields, loss: Recipe(**fields, loss=loss[0], loss_options=loss[1]),
    fields,
    st.sampled_from(list(LOSSES)).flatmap(lambda loss: st.tuples(st.just(loss), options_of(loss))),
)


@settings(max_examples=50)
@given(recipes)
def test_a_recipe_comes_back_from_json_and_from_settings(recipe) -> None:
    content = recipe.to_dict()
    assert list(content) == ["schema", *NAMES]
    text = json.dumps(content, allow_nan=False)
    texts = {name: value if type(value) is str else json.dumps(value) for name, value in content.items()}
    other = make(loss_options={"gamma": 2}, data_options={"noise": 0.5}, clip_norm=None, milestones=(5,))
    for back in (
        Recipe.from_dict(json.loads(text)),
        other.with_settings([f"{name}={texts[name]}" for name in NAMES]),
    ):
        assert back == recipe
        assert back.digest == recipe.digest
        assert json.dumps(back.to_dict()) == text
        assert recipe.differences(back) == []


@settings(max_examples=50)
@given(anything)
def test_an_option_comes_back_from_its_setting(value) -> None:
    assert make().with_settings([f"data.x={json.dumps(value)}"]).data_options == {"x": value}


def test_content_that_is_not_a_recipe_is_refused() -> None:
    content = make().to_dict()
    cases: list[tuple[Any, str]] = [
        *((other, "schema None, .*reads schema 1$") for other in (None, [], "recipe", 1, [("schema", 1)])),
        *(({"schema": other, "unknown": 1}, f"schema {re.escape(str(other))}, ") for other in (0, 2, "1", None, [1])),
        ({name: value for name, value in content.items() if name != "schema"}, "schema None, "),
        ({name: value for name, value in content.items() if name not in ("seed", "data")}, "recipe lacks data, seed$"),
        ({**content, "epoch": 1}, r"no field 'epoch'; did you mean epochs\?$"),
        ({**content, "zzz": 1}, "no field 'zzz'$"),
        ({**content, "epochs": "30"}, "epochs must be a whole number .*, got '30'$"),
    ]
    for name in NAMES:
        cases.append(({key: value for key, value in content.items() if key != name}, f"recipe lacks {name}$"))
    for bad, words in cases:
        with pytest.raises(ValueError, match=words):
            Recipe.from_dict(bad)


def test_reading_shares_nothing_with_the_content() -> None:
    content = make(data_options={"crop": [1]}).to_dict()
    Recipe.from_dict(content).data_options["crop"].append(2)
    assert content["data_options"] == {"crop": [1]}


# Files


def test_a_recipe_is_read_from_a_file_of_any_name_or_a_run_folder(tmp_path) -> None:
    recipe = make(data="Bilder/Äpfel", loss_options={"gamma": 2.0}, milestones=(5,))
    for name in ("recipe.json", "Grüße.txt"):
        (tmp_path / name).write_text(json.dumps(recipe.to_dict(), ensure_ascii=False), encoding="utf-8")
        assert load_recipe(tmp_path / name) == recipe
    assert load_recipe(tmp_path) == recipe


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"", "not JSON, or damaged"),
        (b'{"schema": 1, "data": "dig', "not JSON, or damaged"),
        (b"\xff\xfe{}", "not JSON, or damaged"),
        (b"[" * 100_000, ""),
        (b"null", "schema None, .*reads schema 1"),
        (b'{"schema": 2}', "schema 2, .*reads schema 1"),
        ({"lr": math.nan}, "lr must be finite .*, got nan"),
        ({"epoch": 3}, r"no field 'epoch'; did you mean epochs\?"),
    ],
    ids=lambda value: str(value)[:25],
)
def test_a_missing_or_damaged_file_is_named(tmp_path, content, words) -> None:
    path = tmp_path / "recipe.json"
    if isinstance(content, dict):
        content = json.dumps({**make().to_dict(), **content}).encode()
    if content is not None:
        path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{words}"):
            load_recipe(place)
