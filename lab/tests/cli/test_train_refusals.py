"""`dualfocal train`: every refusal is one line that names value and rule; nothing is written or changed."""

import json
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from owners import write_owner
from torch import nn

from dualfocal.losses import LOSSES
from dualfocal_lab.runs import Run
from dualfocal_lab.train.presets import PRESETS, preset

SMALL = ("--set", "epochs=3", "--set", "seed=3")


@pytest.fixture
def assert_refused(refused, files):
    """A training is refused with these words in its message, in this order, and leaves all files alone."""

    def assert_refused(*arguments: object, words: tuple[str, ...]) -> None:
        before = files()
        line = refused("train", *arguments)
        place = 0
        for word in words:
            place = line.find(word, place)
            assert place >= 0, f"{arguments}: {word!r} is missing in {line!r}"
        assert files() == before, arguments

    return assert_refused


def test_a_wrong_setting_is_refused(assert_refused):
    """tests/runs/test_recipe.py has each type of setting."""
    for setting, *words in (
        ("epochs", "field=value", "'epochs'"),
        (" = 3", "field=value", "' = 3'"),
        (
            "epoch=3",
            "no field 'epoch'",
            "test_each_epoch, loss.OPTION, data.OPTION, optimizer.OPTION; did you mean epochs?",
        ),
        ("epochs=three", "epochs", "whole number", "'three'"),
        ("epochs=", "epochs", "whole number", "''"),
        ("epochs=0", "epochs", "at least 1", "0"),
        ("seed=9223372036854775808", "seed", "below 2^63", "9223372036854775808"),
        ("lr=nan", "lr", "number", "'nan'"),
        ("lr=1e999", "lr", "finite", "inf"),
        ("clip_norm=0", "clip_norm", "above 0, or none", "0.0"),
        ("milestones=a,b", "milestones", "whole numbers", "'a,b'"),
        ("milestones=3,2", "milestones", "increasing", "[3, 2]"),
        ("drop_last=1", "drop_last", "true or false", "1"),
        ("weights=best", "weights", "'last', 'best_error', 'best_nll'", "'best'"),
        ("loss_options=3", "loss_options", "JSON object", "3"),
        ("loss=focl", "loss", *LOSSES, "'focl'; did you mean focal?"),
        ("loss.gama=3", "dual_focal has the options gamma, rival, label_smoothing, impl", "gama; did you mean gamma?"),
        ("loss.gamma=-1", "dual_focal: gamma", "at least 0", "-1"),
        ("data.nois=3", "digits has the options noise, val_size", "nois; did you mean noise?"),
        ("data.noise=much", "noise", "at least 0", "'much'"),
        ("data.val_size=900", "leave some of the 800 samples for training", "900"),
        ("data=", "data must name a data set, a folder or an .npz file", "''"),
        ("data=nothing.npz", "nothing.npz: there is no such file"),
        ("data=nofolder/", "data", "'nofolder/', but there is no such folder"),
        ("data=digit", "data", "cifar10", "'digit'; did you mean digits?"),
        ("model=smal_cnn", "model", "resnet50", "'smal_cnn'; did you mean small_cnn?"),
        ("model=nets:my-net", "unknown model 'nets:my-net'", "resnet50", "package.module:function"),
        ("sync_bn=true", "sync_bn=true needs a CUDA device", "cpu"),
    ):
        assert_refused("digits", "--set", setting, "--device", "cpu", words=tuple(words))


def test_settings_that_contradict_each_other_are_refused(assert_refused):
    for first, second, *words in (
        ("loss=ada_focal", "data.val_size=0", "ada_focal needs a validation split", "set data.val_size"),
        ("weights=best_nll", "data.val_size=0", "weights=best_nll needs a validation split", "set data.val_size"),
        ("loss=cross_entropy", "loss.gamma=3", "cross_entropy has the options label_smoothing", "gamma"),
        ("drop_last=true", "batch_size=1000", "drop_last=true drops all samples", "1000", "600"),
    ):
        assert_refused("digits", "--set", first, "--set", second, words=tuple(words))


def test_an_unknown_preset_or_option_is_refused(assert_refused):
    for name, *words in (
        ("digit", "unknown preset 'digit'", *PRESETS, "did you mean digits?"),
        ("cifar10_resnet5", "'cifar10_resnet5'", "did you mean cifar10_resnet50?"),
        ("xyz", "unknown preset 'xyz'", *PRESETS),
        ("nofolder/", "unknown preset 'nofolder/', and no such file or folder", *PRESETS),
    ):
        assert_refused(name, words=tuple(words))
    assert_refused(words=("Missing argument 'PRESET'", *PRESETS, "a run folder"))
    assert_refused("digits", "--epochs", 3, words=("--epochs",))
    assert_refused("digits", "--checkpoint-every", 0, words=("--checkpoint-every",))


def test_absent_data_are_named_with_the_command_that_fetches_them(assert_refused, tmp_path):
    fetch = "run `dualfocal data fetch cifar10"
    assert_refused(
        "cifar10_resnet50",
        words=(
            "cifar10: ",
            f" in {tmp_path}/cache/dualfocal: {fetch}`",
        ),
    )
    assert_refused(
        "cifar10_resnet50", "--data-root", "here", words=(" in here: ", f"{fetch} --data-root here`", "DUALFOCAL_DATA")
    )


def test_devices_that_are_not_there_are_refused(assert_refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    devices = [("tpu", "cpu, cuda, cuda:1", "'tpu'"), ("cuda:1", "'cuda:1' is not available", "0 CUDA devices")]
    devices += [("cuda", "'cuda' is not available", "0 CUDA devices"), ("meta", "'meta' is not available")]
    for name, *words in devices:
        assert_refused("digits", "--device", name, words=tuple(words))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "two"}, ("variable WORLD_SIZE,", "whole number", "'two'")),
        ({"WORLD_SIZE": "2", "RANK": ""}, ("variable RANK,", "whole number", "''")),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"}, ("variable LOCAL_RANK,", "whole number", "'-1'")),
    ],
)
def test_bad_variables_of_torchrun_are_refused(assert_refused, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert_refused("digits", "--set", "epochs=1", "--out", "a", words=words)


# --- run folders ---


def test_a_folder_that_cannot_be_made_is_refused(assert_refused):
    Path("file").write_text("mine")
    assert_refused("digits", "--out", "file", words=("file: must be a folder",))
    assert_refused("digits", "--out", "file/a/b", words=("file/a/b: cannot be written",))


def test_a_folder_of_another_recipe_is_refused_with_the_differences(assert_refused, finished):
    words = ('loss: "dual_focal", not "focal"', 'loss_options: {}, not {"gamma": 2}', "epochs: 3, not 4")
    settings = ("--set", "epochs=4", "--set", "loss=focal", "--set", "loss.gamma=2", "--out", "runs/a")
    assert_refused("digits", *settings, words=("runs/a: ", *words, "seed: 3, not 1", "choose another folder"))


def test_a_folder_without_a_recipe_is_refused(assert_refused, finished):
    Path("runs/a/recipe.json").unlink()
    words = ("runs/a: is not a run folder", "log.jsonl, model.safetensors", "choose another folder")
    assert_refused("digits", *SMALL, "--out", "runs/a", words=words)


def test_a_folder_in_which_another_process_trains_is_refused(assert_refused, stopped):
    write_owner(Path("runs/a"), lease_seconds=900.0)
    words = ("runs/a: another process is training there: process 7 on elsewhere, ", "the folder can be taken over in ")
    assert_refused("digits", *SMALL, "--out", "runs/a", words=words)


def test_a_damaged_recipe_is_refused(assert_refused, stopped):
    Path("runs/a/recipe.json").write_text("{")
    assert_refused("digits", *SMALL, "--out", "runs/a", words=("runs/a/recipe.json: ",))


def test_a_damaged_result_is_refused(assert_refused, finished):
    for content in ("{", '{"schema": 2}', "[]"):
        Path("runs/a/result.json").write_text(content)
        assert_refused("digits", *SMALL, "--out", "runs/a", words=("runs/a/result.json: ",))


# --- recipes in files ---


def test_a_file_that_is_no_recipe_is_refused(assert_refused):
    good = preset("digits").to_dict()
    incomplete = {name: value for name, value in good.items() if name not in ("seed", "lr")}
    for content, *words in (
        (b"{", "is not JSON, or damaged", "line 1"),
        (b"\xff", "is not JSON, or damaged", "0xff"),
        (b"[]", "schema None", "schema 1"),
        (b'{"schema": 2}', "schema 2", "schema 1"),
        (b'{"schema": 1, "epoch": 3}', "no field 'epoch'; did you mean epochs?"),
        (json.dumps(incomplete).encode(), "lacks lr, seed"),
        (json.dumps({**good, "epochs": "3"}).encode(), "epochs", "whole number", "'3'"),
    ):
        Path("my.json").write_bytes(content)
        assert_refused("my.json", words=("my.json: ", *words))


def test_a_missing_recipe_is_refused(assert_refused):
    Path("empty").mkdir()
    assert_refused("my.json", words=("my.json: cannot be read",))
    assert_refused("empty", words=("empty: is neither a run folder (it has no recipe.json) nor a folder of images",))


def test_a_run_is_not_extended(assert_refused, finished):
    words = (
        "runs/a: is a finished run of 3 epochs",
        "not extended",
        "dualfocal train runs/a --set epochs=400 --out NEW",
    )
    assert_refused("runs/a", "--set", "epochs=400", words=words)
    assert_refused("runs", words=("runs: is not a run folder, but contains some", "runs/a"))


def test_a_callback_that_cannot_be_made_is_refused(assert_refused):
    for name, *words in (
        ("no_module:Mine", "callback 'no_module:Mine': cannot import", "No module named"),
        ("mine", "'mine'", "package.module:object"),
        ("math:pi", "callback math:pi: cannot be created without arguments"),
        ("datetime:timedelta", "on_train_start, on_epoch_end, on_train_end"),
    ):
        assert_refused("digits", "--callback", name, "--out", "a", words=tuple(words))


# --- custom models ---


class Pair(nn.Linear):
    def forward(self, inputs):
        logits = super().forward(inputs.flatten(1))
        return logits, logits


@pytest.fixture
def _own_nets(monkeypatch) -> Iterator[None]:
    """A module of models, none of which fits the digits."""
    module = types.ModuleType("own_nets")
    module.seven = lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
    module.eleven = lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, 11))
    module.dense = lambda num_classes: nn.Conv2d(1, num_classes, 3)
    module.flat = lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes), nn.Flatten(0))
    module.pair = lambda num_classes: Pair(64, num_classes)
    module.other_input = lambda num_classes: nn.Linear(3, num_classes)
    module.no_weights = lambda num_classes: nn.Flatten()
    module.no_model = lambda num_classes: num_classes
    module.no_keyword = lambda: nn.Flatten()
    module.constant = nn.Flatten()
    monkeypatch.setitem(sys.modules, "own_nets", module)


@pytest.mark.usefixtures("_own_nets")
def test_a_model_that_does_not_fit_is_refused(assert_refused, tmp_path):
    expected = "(2, 10) for inputs of shape (2, 1, 8, 8)"
    for name, *words in (
        ("no_such_module:net", "cannot import 'no_such_module'", str(tmp_path), "No module named"),
        ("own_nets:sevn", "'own_nets' has no 'sevn'; did you mean seven?"),
        ("own_nets:no_weights", "no trainable weights"),
        ("own_nets:no_model", "must return a torch.nn.Module, got int"),
        ("own_nets:no_keyword", "must accept num_classes", "()"),
        ("own_nets:constant", "must be a function", "Flatten"),
        ("own_nets:seven", expected, "(2, 7)"),
        ("own_nets:eleven", expected, "(2, 11)"),
        ("own_nets:dense", expected, "(2, 10, 6, 6)"),
        ("own_nets:flat", expected, "(20,)"),
        ("own_nets:pair",),
        ("own_nets:other_input",),
        ("text_cnn",),
    ):
        assert_refused("digits", "--set", f"model={name}", words=(name, *words))


# --- failures ---


def test_tensorboard_that_is_not_installed_is_named_with_its_extra(assert_refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert_refused("digits", "--tensorboard", words=("pip install tensorboard",))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "tensorboard" in project["optional-dependencies"]


def test_a_diverging_loss_ends_with_1_and_one_line(run):
    out, err = run("train", "digits", "--set", "lr=1e30", "--set", "epochs=2", "--out", "a", code=1)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dualfocal: a: the loss is nan in epoch 1, step 2 of 6, at a learning rate of 1e+30; ")
    assert "a/failure.json" in err
    assert Run("a").state == "failed"
