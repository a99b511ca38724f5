"""`dualfocal train`: a recipe to a run folder; what is wrong with either ends in one line, and leaves no folder."""

import contextlib
import dataclasses
import io
import json
import shutil
import signal
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from torch import nn

from dualfocal.cli import main
from dualfocal.losses import LOSSES
from dualfocal.models import MODELS
from dualfocal.runs import Recipe, Run
from dualfocal.train import engine
from dualfocal.train.presets import PRESETS, preset

SMALL = ("--set", "epochs=3", "--set", "seed=3")
FILES = ["log.jsonl", "model.safetensors", "predictions.safetensors", "recipe.json", "result.json"]
ROWS = (  # as the table has them: label, name in result.json, factor, decimals
    ("error [%]", "error", 100, 2),
    ("NLL [nats]", "nll", 1, 4),
    ("Brier score", "brier", 1, 4),
    ("AURC [%]", "aurc", 100, 2),
    ("ECE [%]", "ece", 100, 2),
    ("floor [%]", "floor", 100, 2),
    ("adaptive ECE [%]", "adaptive_ece", 100, 2),
    ("classwise ECE [%]", "classwise_ece", 100, 3),
    ("MCE [%]", "mce", 100, 2),
    ("debiased RMS error [%]", "debiased_ece", 100, 2),
)
STOPPED = "dualfocal: stopped; run the same command again to continue"


@dataclasses.dataclass
class Made:
    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    """What `dualfocal train digits --set epochs=3 --set seed=3 --out runs/a` leaves and prints: made once."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(tmp_path_factory.mktemp("made"))
        patch.setenv("COLUMNS", "120")
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        with pytest.raises(SystemExit) as ended:
            main(["train", "digits", *SMALL, "--out", "runs/a"])
        assert ended.value.code == 0
        return Made(Path("runs/a").absolute(), out.getvalue(), err.getvalue())


@pytest.fixture
def finished(made) -> Run:
    """The same, copied to runs/a."""
    shutil.copytree(made.folder, "runs/a")
    return Run("runs/a")


@pytest.fixture
def stopped(finished) -> Run:
    """The same before its last epoch, as a process leaves it that was killed."""
    for name in ("result.json", "model.safetensors", "predictions.safetensors"):
        (finished.path / name).unlink()
    lines = (finished.path / "log.jsonl").read_text().splitlines(keepends=True)
    (finished.path / "log.jsonl").write_text("".join(lines[:2]))
    return finished


def files() -> dict[str, tuple[bytes, int] | None]:
    """All that lies here, with contents and times; None: a folder."""
    return {
        str(path): None if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().rglob("*")
    }


@pytest.fixture
def wrong(refused):
    """The one line of a training that is refused; nothing is made, nothing is changed."""

    def wrong(*arguments: object) -> str:
        before = files()
        line = refused("train", *arguments)
        assert files() == before
        return line

    return wrong


def table(out: str) -> list[list[str]]:
    """Its rows, headings first."""
    lines = [line for line in out.splitlines() if line[:1] in "┃│"]
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]


def numbers(evaluation: dict) -> dict[str, float]:
    return {**evaluation, "floor": evaluation["inference"]["floors"]["ece"]["mean"]}


def but_for_times(result: dict) -> dict:
    return {name: value for name, value in result.items() if name not in ("run", "seconds", "sessions", "commit")}


# --- what comes of it ---


def test_the_run_folder_holds_these_files_and_no_others(made):
    assert sorted(path.name for path in made.folder.iterdir()) == FILES
    run = Run(made.folder)
    assert run.state == "finished"
    assert run.recipe == preset("digits", ["epochs=3", "seed=3"])
    assert [line["epoch"] for line in run.log] == [1, 2, 3]


def test_stdout_has_the_numbers_of_the_result_as_they_are_and_scaled(made):
    result = Run(made.folder).result.to_dict()
    by_nll, by_ece = (result["calibrated"][name] for name in ("temperature", "temperature_ece"))
    headings, *rows = table(made.out)
    assert headings == [
        "",
        "uncalibrated",
        f"T = {by_nll['temperature']:.3g}, by NLL",
        f"T = {by_ece['temperature']:.3g}, by ECE",
    ]
    columns = [numbers(of["test"]) for of in (result, by_nll, by_ece)]
    assert rows == [
        [label, *(f"{factor * column[name]:.{decimals}f}" for column in columns)]
        for label, name, factor, decimals in ROWS
    ]
    first, *_, last = made.out.splitlines()
    assert first == f"runs/a: test part, weights of epoch 3, {result['seconds']:.1f} s of training"
    assert last == "Next: dualfocal evaluate runs/a --plot reliability.png"


def test_stderr_has_a_line_per_epoch_as_the_log_has_it(made):
    assert made.err.splitlines() == [
        f"epoch {line['epoch']}/3  lr {line['lr']:.4g}  loss {line['train_loss']:.4f}  "
        f"val error {100 * line['val_error']:.2f} %  ECE {100 * line['val_ece']:.2f} %  NLL {line['val_nll']:.4f}  "
        f"{line['images_per_second']:,.0f} samples/s  {line['seconds']:.1f} s"
        for line in Run(made.folder).log
    ]


def test_run_again_it_prints_the_same_and_changes_no_file(run, finished, made):
    before = files()
    assert run("train", "digits", *SMALL, "--out", "runs/a") == (made.out, "")
    assert files() == before


def test_json_is_the_result_and_all_of_stdout(record, run, finished):
    result = json.loads(Path("runs/a/result.json").read_text(), parse_constant=pytest.fail)
    assert record("train", "digits", *SMALL, "--out", "runs/a") == {"run": "runs/a", **result}
    out, err = run("train", "digits", "--set", "epochs=1", "--out", "runs/b", "--json")
    result = json.loads(out, parse_constant=pytest.fail)
    assert result.pop("run") == "runs/b"
    assert result == Run("runs/b").result.to_dict()
    assert err.startswith("epoch 1/1  lr 0.05  loss ")
    assert err.count("\n") == 1


def test_a_recipe_has_a_folder_of_its_own_by_default(record, run):
    small = ("--set", "epochs=1")
    first = Path(record("train", "digits", *small)["run"])
    assert first.parent == Path("runs")
    assert first.name.startswith("digits-small_cnn-dual_focal-seed1-")
    before = files()
    assert run("train", "digits", *small)[0].startswith(f"{first}: test part, ")
    assert files() == before
    second = Path(record("train", "digits", *small, "--set", "lr=.04")["run"])
    assert second != first
    assert sorted(Path("runs").iterdir()) == sorted([first, second])


def test_a_narrow_terminal_loses_no_number(run, finished, made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = run("train", "digits", *SMALL, "--out", "runs/a")[0]
    wanted = [cell for _, *cells in table(made.out)[1:] for cell in cells]
    assert [cell for _, *cells in table(out)[2:] for cell in cells if cell] == wanted


@pytest.mark.filterwarnings("default")
def test_without_a_validation_part_there_is_nothing_to_scale_with(run):
    out, err = run("train", "digits", "--set", "epochs=1", "--set", "data.val_size=0", "--out", "a")
    note = "there is no validation split, so no temperature is fitted; set data.val_size"
    assert table(out)[0] == ["", "uncalibrated"]
    assert f"Note: {note}.\n" in out
    first, second = err.splitlines()
    assert first == f"dualfocal: {note}"
    assert second.startswith("epoch 1/1  lr 0.05  loss ")
    assert " val " not in second
    assert Run("a").result.notes == [note]


@pytest.mark.filterwarnings("default")
def test_an_adaptive_loss_that_follows_the_validation_part_is_noted(run, record):
    command = ("train", "digits", "--set", "epochs=1", "--set", "loss=ada_focal", "--out", "a")
    note = (
        "loss ada_focal uses the validation split that also fits the temperature; set data.val2_size to give it its own"
    )
    out, err = run(*command)
    assert err.splitlines()[0] == f"dualfocal: {note}"
    assert err.count(note) == 1
    assert out.splitlines()[-2] == f"Note: {note}."
    assert record(*command)["notes"] == [note]


def test_a_rank_among_one_process_is_not_heeded(record, monkeypatch):
    """Some schedulers set it for everything that they start."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert record("train", "digits", "--set", "epochs=1", "--out", "a")["epochs"] == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"WORLD_SIZE": "two"}, ("variable WORLD_SIZE,", "must be a whole number, got 'two'")),
        ({"WORLD_SIZE": "2", "RANK": ""}, ("variable RANK,", "must be a whole number, got ''")),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"}, ("variable LOCAL_RANK,", "whole number, got '-1'")),
    ],
)
def test_what_torchrun_would_not_set_is_refused(refused, monkeypatch, settings, named):
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    line = refused("train", "digits", "--set", "epochs=1", "--out", "a")
    assert all(part in line for part in named)
    assert not Path("a").exists()


@pytest.mark.filterwarnings("default")
def test_notes_come_together_one_line_each(run):
    settings = ("epochs=1", "schedule=step", "milestones=5", "data.val_size=0")
    err = run("train", "digits", *(word for text in settings for word in ("--set", text)), "--out", "a", "--json")[1]
    first, second = err.splitlines()[:2]
    assert first.startswith("dualfocal: the learning rate never falls: ")
    assert second.startswith("dualfocal: there is no validation split")
    assert len(Run("a").result.notes) == 2


def test_a_folder_may_have_any_name(run, finished):
    for name in ("[red]x", "with space", "-x"):
        shutil.copytree("runs/a", name)
        out = run("train", "digits", *SMALL, f"--out={name}")[0]
        assert out.startswith(f"{name}: test part, ")
    shown = run("train", "digits", *SMALL, "--out", "with space")[0].splitlines()[-1]
    assert shown == "Next: dualfocal evaluate 'with space' --plot reliability.png"


def test_a_model_and_data_of_ones_own(run, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez("pets.npz", x=rng.normal(size=(60, 5)), y=np.arange(60) % 3, class_names=["cat", "dog", "emu"])
    Path("own_linear.py").write_text(
        "from torch import nn\n\ndef net(num_classes):\n    return nn.Linear(5, num_classes)\n"
    )
    monkeypatch.setitem(sys.modules, "own_linear", None)  # so that it is forgotten afterwards
    del sys.modules["own_linear"]
    out = run(
        "train",
        "digits",
        "--set",
        "data=pets.npz",
        "--set",
        "model=own_linear:net",
        "--set",
        "epochs=1",
        "--device=cpu",
    )[0]
    [folder] = Path("runs").iterdir()
    assert out.startswith(f"{folder}: test part, ")
    assert folder.name.startswith("pets-net-dual_focal-seed1-")
    assert Run(folder).result.num_weights == 5 * 3 + 3


def test_tensorboard_gets_every_number_of_the_log(run, monkeypatch):
    scalars = {}

    class Writer:
        def __init__(self, folder):
            assert folder == "a/tensorboard"

        def add_scalar(self, tag, value, epoch):
            scalars[tag] = value, epoch

        def flush(self):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            scalars["closed"] = True

    module = types.ModuleType("torch.utils.tensorboard")  # the real one takes seconds to import
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    run("train", "digits", "--set", "epochs=1", "--out", "a", "--tensorboard")
    assert scalars.pop("closed")
    line = Run("a").log[0]
    tags = {"run/lr": "lr", "train/loss": "train_loss", "val/error": "val_error", "val/ece": "val_ece"}
    assert {tag: scalars[tag] for tag in tags} == {tag: (line[name], 1) for tag, name in tags.items()}


# --- what can be set ---


@pytest.mark.parametrize("name", PRESETS)
def test_show_lists_every_field_and_trains_nothing(run, record, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    recipe = preset(name)
    assert record("train", name, "--show") == recipe.to_dict()
    headings, *lines = run("train", name, "--show")[0].splitlines()
    assert headings.split() == ["setting", "value", "meaning"]
    fields = [of.name for of in dataclasses.fields(Recipe)]
    assert [line.split()[0] for line in lines] == fields
    for field, line in zip(fields, lines, strict=True):
        value = recipe.to_dict()[field]
        shown = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
        name, value, what = line[: len(field)], *line[len(field) :].strip().split("  ", 1)
        assert (name, value) == (field, shown)
        assert what.strip().endswith(".")
    assert files() == {}


def test_show_has_what_was_set(record):
    settings = ("lr=.2", "epochs = 7", "milestones=2,4", "clip_norm=none", "drop_last=yes", "loss=focal")
    settings += ("loss.gamma=2", "data.noise=1e-1", "data.val_size=100")
    shown = record("train", "digits", "--show", *(word for text in settings for word in ("--set", text)))
    expected = {"lr": 0.2, "epochs": 7, "milestones": [2, 4], "clip_norm": None, "drop_last": True, "loss": "focal"}
    expected |= {"loss_options": {"gamma": 2}, "data_options": {"noise": 0.1, "val_size": 100}}
    assert shown == {**preset("digits").to_dict(), **expected}


def test_show_on_a_narrow_terminal_loses_no_value(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = run("train", "digits", "--show", "--set", "model=my_package.my_nets:[red]x")[0]
    lines = out.splitlines()
    values = slice(lines[0].index("value"), lines[0].index("meaning"))
    assert "my_package.my_nets:[red]x" in "".join(line[values].strip() for line in lines)


def test_what_show_prints_as_json_is_a_recipe_to_train(record, run):
    Path("my.json").write_text(run("train", "digits", *SMALL, "--show", "--json")[0])
    assert record("train", "my.json", "--show") == preset("digits", ["epochs=3", "seed=3"]).to_dict()


@pytest.mark.parametrize("name", ["runs/a", "runs/a/recipe.json"])
def test_a_run_is_repeated_with_another_seed(record, run, finished, name):
    before = files()
    result = record("train", name, "--set", "seed=4", "--set", "epochs=1")
    again = Run(result.pop("run"))
    assert again.recipe == dataclasses.replace(finished.recipe, seed=4, epochs=1)
    assert again.result.to_dict() == result
    assert {path: content for path, content in files().items() if path in before} == before


def test_a_run_folder_alone_is_gone_on_with(run, finished, made):
    before = files()
    assert run("train", "runs/a") == (made.out, "")
    assert files() == before


def test_a_run_repeated_has_the_same_result(record, finished):
    again = record("train", "runs/a", "--out", "b")
    assert but_for_times(again) == but_for_times(finished.result.to_dict())
    for name in ("recipe.json", "model.safetensors", "predictions.safetensors"):
        assert Path("b", name).read_bytes() == Path("runs/a", name).read_bytes()


def test_a_folder_called_as_a_preset_does_not_hide_it(record):
    Path("digits").mkdir()
    assert record("train", "digits", "--show") == preset("digits").to_dict()


# --- what is wrong ---


def test_presets_are_told_with_the_nearest(wrong):
    for name, near in (("digit", "; did you mean digits?"), ("cifar10_resnet5", "; did you mean cifar10_resnet50?")):
        assert wrong(name) == f"unknown preset {name!r}; presets are {', '.join(PRESETS)}{near}"
    assert wrong("xyz") == f"unknown preset 'xyz'; presets are {', '.join(PRESETS)}"


def test_fields_are_told_with_the_nearest(wrong):
    line = wrong("digits", "--set", "epoch=3")
    assert line.startswith("a recipe has no field 'epoch'; did you mean epochs?; it has data, data_options, model, ")
    assert line.endswith(", test_each_epoch, loss.OPTION, data.OPTION")


@pytest.mark.parametrize("text", ["epochs", "=3", "", " = 3"])
def test_a_setting_has_a_name_and_a_value(wrong, text):
    assert wrong("digits", "--set", text) == f"a setting is written field=value, got {text!r}"


def test_a_setting_of_the_loss_has_a_value(wrong):
    assert wrong("digits", "--set", "loss") == "a setting is written field=value, got 'loss'"


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("epochs=three", "epochs must be a whole number below 2^63, got 'three'"),
        ("epochs=3.5", "epochs must be a whole number below 2^63, got 3.5"),
        ("epochs=true", "epochs must be a whole number below 2^63, got True"),
        ("epochs=0", "epochs must be finite and at least 1, got 0"),
        ("batch_size=0", "batch_size must be finite and at least 1, got 0"),
        ("seed=-1", "seed must be finite and at least 0, got -1"),
        ("seed=9223372036854775808", "seed must be a whole number below 2^63, got 9223372036854775808"),
        ("lr=fast", "lr must be a number, got 'fast'"),
        ("lr=none", "lr must be a number, got None"),
        ("lr=nan", "lr must be a number, got 'nan'"),
        ("lr=1e999", "lr must be finite and at least 0, got inf"),
        ("clip_norm=x", "clip_norm must be a number, or none, got 'x'"),
        ("clip_norm=0", "clip_norm must be finite and above 0, or none, got 0.0"),
        ("milestones=1.5", "milestones must be whole numbers below 2^63, as 150,250, got [1.5]"),
        ("milestones=3,2", "milestones must be increasing epochs from 1, got [3, 2]"),
        ("drop_last=maybe", "drop_last must be true or false, got 'maybe'"),
        ("drop_last=1", "drop_last must be true or false, got 1"),
        ("optimizer=sdg", "optimizer must be one of 'sgd', 'adam', got 'sdg'"),
        ("weights=best", "weights must be one of 'last', 'best_error', 'best_nll', got 'best'"),
        ("precision=half", "precision must be one of 'auto', 'float32', 'tf32', 'bfloat16', 'float64', got 'half'"),
        ("loss_options=3", "loss_options must be a JSON object, got 3"),
        ("data_options=[1]", "data_options must be a JSON object, got [1]"),
        ("loss=focl", f"loss must be one of {', '.join(LOSSES)}, got 'focl'; did you mean focal?"),
        ("loss.gama=3", "loss dual_focal has the options gamma, rival, impl; got gama; did you mean gamma?"),
        ("loss.gamma=-1", "loss dual_focal: gamma must be finite and at least 0, got -1"),
        ("loss.gamma=high", "loss dual_focal: gamma must be a number, got 'high'"),
        ("data.nois=3", "digits has the options noise, val_size, val2_size, split_seed; got nois; did you mean noise?"),
        ("data.noise=much", "noise must be a standard deviation of at least 0, got 'much'"),
        ("data.val_size=900", "val_size and val2_size must leave some of the 800 samples for training, got 900 and 0"),
        ("data=", "data must name a data set, a folder or an .npz file, got ''"),
        ("data=nothing.npz", "nothing.npz: there is no such file"),
        (
            "model=nets:my-net",
            f"unknown model 'nets:my-net'; choose from {', '.join(MODELS)}, or name a custom factory as "
            "package.module:function",
        ),
        ("sync_bn=true", "sync_bn=true needs a CUDA device, but the device is cpu"),
    ],
)
def test_a_setting_that_is_wrong(wrong, setting, line):
    assert wrong("digits", "--set", setting, "--device", "cpu") == line


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("epochs=", "epochs must be a whole number below 2^63, got ''"),
        ("milestones=a,b", "milestones must be whole numbers below 2^63, as 150,250, got 'a,b'"),
    ],
)
def test_a_setting_is_told_as_it_was_written(wrong, setting, line):
    assert wrong("digits", "--set", setting) == line


def test_names_of_data_and_models_are_told_with_the_nearest(wrong):
    line = wrong("digits", "--set", "data=digit")
    assert line.startswith("data must be one of cifar10, cifar100, ")
    assert line.endswith("digits, a folder of images by class, or an .npz file, got 'digit'; did you mean digits?")
    line = wrong("digits", "--set", "model=smal_cnn")
    assert line.startswith("model must be one of resnet50, ")
    assert line.endswith(", or package.module:function, got 'smal_cnn'; did you mean small_cnn?")


def test_settings_that_do_not_go_together(wrong):
    for settings, line in (
        (
            ("loss=ada_focal", "data.val_size=0"),
            "loss ada_focal needs a validation split, but data digits has none; set data.val_size",
        ),
        (
            ("weights=best_nll", "data.val_size=0"),
            "weights=best_nll needs a validation split, but data digits has none; set data.val_size",
        ),
        (("loss=cross_entropy", "loss.gamma=3"), "loss cross_entropy has no options; got gamma"),
        (
            ("drop_last=true", "batch_size=1000"),
            "drop_last=true drops all samples: batch_size is 1000, the training split has 600",
        ),
    ):
        assert wrong("digits", *(word for text in settings for word in ("--set", text))) == line


def test_data_that_are_absent_say_what_to_run(wrong, tmp_path):
    line = wrong("cifar10_resnet50")
    assert line.startswith("cifar10: no cifar-10-batches-bin or ")
    assert f" in {tmp_path}/cache/dualfocal: run `dualfocal data fetch cifar10`, or set DUALFOCAL_DATA " in line
    line = wrong("cifar10_resnet50", "--data-root", "here")
    assert " in here: run `dualfocal data fetch cifar10 --data-root here`, or set DUALFOCAL_DATA " in line


def test_devices_that_are_not_there(wrong, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert wrong("digits", "--device", "tpu") == "device must be cpu, cuda, cuda:1, ..., got 'tpu'"
    for name in ("cuda", "cuda:1"):
        line = f"device {name!r} is not available to this process: 0 CUDA devices are visible"
        assert wrong("digits", "--device", name) == line
    if not torch.backends.mps.is_available():
        assert wrong("digits", "--device", "mps") == "device 'mps' is not available on this machine"


def test_a_device_that_computes_nothing(wrong):
    assert wrong("digits", "--device", "meta") == "device 'meta' is not available on this machine"


def test_a_run_folder_that_cannot_be_made(wrong):
    Path("file").write_text("mine")
    assert wrong("digits", "--out", "file") == "file: must be a folder, but is a file"
    assert wrong("digits", "--out", "file/a/b") == "file/a/b: cannot be written: Not a directory"


def test_a_folder_of_another_recipe_says_in_what_they_differ(wrong, finished):
    settings = ("--set", "epochs=4", "--set", "loss=focal", "--set", "loss.gamma=2", "--out", "runs/a")
    assert wrong("digits", *settings) == (
        'runs/a: was made by another recipe (loss: "dual_focal", not "focal"; loss_options: {}, not {"gamma": 2}; '
        "epochs: 3, not 4; seed: 3, not 1): choose another folder"
    )


def test_a_folder_that_holds_something_else(wrong, finished):
    Path("runs/a/recipe.json").unlink()
    held = "log.jsonl, model.safetensors, predictions.safetensors but no recipe.json"
    line = wrong("digits", *SMALL, "--out", "runs/a")
    assert line == f"runs/a: is not a run folder, it holds {held}: choose another folder"


def test_a_folder_in_which_another_process_trains(wrong, stopped):
    with FileLock("runs/a/.lock"):
        assert wrong("digits", *SMALL, "--out", "runs/a") == "runs/a: another process is training there"


def test_a_run_folder_that_is_damaged(wrong, stopped):
    Path("runs/a/.lock").touch()  # as the one that stopped has left it
    Path("runs/a/checkpoint.safetensors").write_bytes(b"no checkpoint")
    line = wrong("digits", *SMALL, "--out", "runs/a")
    assert line.startswith("runs/a/checkpoint.safetensors: is not a checkpoint of this run, or is damaged")
    Path("runs/a/recipe.json").write_text("{")
    assert wrong("digits", *SMALL, "--out", "runs/a").startswith("runs/a/recipe.json: ")


@pytest.mark.parametrize("content", ["{", '{"schema": 2}', "[]"])
def test_a_finished_run_whose_result_is_damaged(wrong, finished, content):
    Path("runs/a/result.json").write_text(content)
    assert wrong("digits", *SMALL, "--out", "runs/a").startswith("runs/a/result.json: ")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{", "is not JSON, or damaged: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"", "is not JSON, or damaged: Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "has schema None, this version of dualfocal reads schema 1"),
        (b'{"schema": 2}', "has schema 2, this version of dualfocal reads schema 1"),
        (b'{"data": "digits"}', "has schema None, this version of dualfocal reads schema 1"),
        (b'{"schema": 1, "epoch": 3}', "a recipe has no field 'epoch'; did you mean epochs?"),
    ],
)
def test_a_recipe_that_is_none(wrong, content, line):
    Path("my.json").write_bytes(content)
    assert wrong("my.json") == f"my.json: {line}"


def test_a_recipe_with_fields_that_are_missing_or_wrong(wrong):
    good = preset("digits").to_dict()
    Path("my.json").write_text(json.dumps({name: good[name] for name in good if name not in ("seed", "lr")}))
    assert wrong("my.json") == "my.json: recipe lacks lr, seed"
    Path("my.json").write_text(json.dumps({**good, "epochs": "3"}))
    assert wrong("my.json") == "my.json: epochs must be a whole number below 2^63, got '3'"
    Path("my.json").write_bytes(b"\xff")
    assert wrong("my.json").startswith("my.json: is not JSON, or damaged: 'utf-8' codec can't decode byte 0xff")


def test_a_recipe_that_is_not_there(wrong):
    Path("empty").mkdir()
    assert wrong("my.json") == "my.json: cannot be read: No such file or directory"
    assert wrong("empty") == "empty/recipe.json: cannot be read: No such file or directory"


class Pair(nn.Linear):
    def forward(self, inputs):
        logits = super().forward(inputs.flatten(1))
        return logits, logits


@pytest.fixture
def own_nets(monkeypatch) -> Iterator[None]:
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


def test_a_model_that_is_none(wrong, own_nets, tmp_path):
    for name, line in (
        (
            "no_such_module:net",
            f"model 'no_such_module:net': cannot import 'no_such_module' from '{tmp_path}' or the installed packages: "
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "own_nets:sevn",
            "model 'own_nets:sevn': module 'own_nets' has no 'sevn'; did you mean seven?",
        ),
        ("own_nets:no_weights", "model own_nets:no_weights has no trainable weights"),
        ("own_nets:no_model", "'own_nets:no_model' must return a torch.nn.Module, got int"),
        (
            "own_nets:no_keyword",
            "'own_nets:no_keyword' must accept num_classes as a keyword argument, but its signature is ()",
        ),
        ("own_nets:constant", "'own_nets:constant' must be a function that returns a model, got a Flatten"),
    ):
        assert wrong("digits", "--set", f"model={name}") == line


def test_a_model_whose_output_does_not_fit_is_named(wrong, own_nets):
    for name, shape in (("seven", (2, 7)), ("eleven", (2, 11)), ("dense", (2, 10, 6, 6)), ("flat", (20,))):
        assert wrong("digits", "--set", f"model=own_nets:{name}") == (
            f"model own_nets:{name} must return logits of shape (2, 10) for inputs of shape (2, 1, 8, 8), got {shape}"
        )


@pytest.mark.parametrize("name", ["own_nets:pair", "own_nets:other_input", "text_cnn"])
def test_a_model_that_fails_on_the_data_is_named(wrong, own_nets, name):
    line = wrong("digits", "--set", f"model={name}")
    assert name in line


def test_options_that_are_wrong(wrong):
    assert wrong("digits", "--checkpoint-every", 0).startswith("Invalid value for '--checkpoint-every': ")
    assert wrong("digits", "--checkpoint-every", "x").startswith("Invalid value for '--checkpoint-every': ")
    assert wrong() == "Missing argument 'PRESET'."
    assert "--epochs" in wrong("digits", "--epochs", 3)


def test_tensorboard_that_is_not_installed(wrong, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert 'pip install "dualfocal[tensorboard]" (' in wrong("digits", "--tensorboard")


def test_what_tensorboard_is_said_to_need_can_be_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "tensorboard" in project["optional-dependencies"]


def test_a_loss_that_diverges_ends_with_1_and_one_line(run):
    out, err = run("train", "digits", "--set", "lr=1e30", "--set", "epochs=2", "--out", "a", code=1)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dualfocal: a: the loss is nan in epoch 1, step 2 of 6, at a learning rate of 1e+30; ")
    assert "a/failure.json" in err
    assert Run("a").state == "failed"


# --- interruptions ---


@pytest.fixture
def signal_in_step(monkeypatch):
    """Send a signal to this process in one of the next steps, counted from 1; validation takes 2 as well."""

    def signal_in_step(number: int, step: int) -> None:
        calls = iter(range(1, 1000))
        forward = LOSSES["dual_focal"].forward

        def counting(*arguments, **options):
            if next(calls) == step:
                signal.raise_signal(number)
            return forward(*arguments, **options)

        monkeypatch.setattr(LOSSES["dual_focal"], "forward", counting)

    return signal_in_step


def test_ctrl_c_saves_says_so_and_the_same_command_goes_on(run, signal_in_step, made, monkeypatch):
    command = ("train", "digits", *SMALL, "--out", "a")
    with monkeypatch.context():
        signal_in_step(signal.SIGINT, 11)  # the second of the second epoch; the first was a trial
        out, err = run(*command, code=130)
    assert out == ""
    first, *_, last = err.splitlines()
    assert first.startswith("epoch 1/3  lr 0.05  loss ")
    assert last == STOPPED
    assert err.count("\n") == 2
    assert Run("a").state == "stopped"
    names = [".lock", "checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert sorted(path.name for path in Path("a").iterdir()) == names

    err = run(*command)[1]
    first, second, third = err.splitlines()
    assert first == "resuming after epoch 1 + 2 steps of 3"
    assert second.startswith("epoch 2/3  ")
    assert third.startswith("epoch 3/3  ")
    assert but_for_times(Run("a").result.to_dict()) == but_for_times(Run(made.folder).result.to_dict())
    assert sorted(path.name for path in Path("a").iterdir()) == FILES


def test_a_cluster_that_ends_it_is_told_143(run, signal_in_step):
    signal_in_step(signal.SIGTERM, 3)
    out, err = run("train", "digits", *SMALL, "--out", "a", code=143)
    assert (out, err) == ("", f"{STOPPED}\n")
    assert Run("a").state == "stopped"


def test_ctrl_c_before_the_first_step_leaves_no_folder(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "load_data", interrupted)
    assert run("train", "digits", "--out", "a", code=130) == ("", f"{STOPPED}\n")
    assert files() == {}


def test_a_run_that_was_killed_goes_on(run, stopped):
    err = run("train", "digits", *SMALL, "--out", "runs/a")[1]  # no checkpoint: from the start
    assert [line.split("  ")[0] for line in err.splitlines()] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert [line["epoch"] for line in Run("runs/a").log] == [1, 2, 3]


# --- help ---


def test_help_names_presets_settings_and_torchrun(run):
    text = run("train", "--help")[0]
    for name in PRESETS:
        assert name in text
    for line in (
        "dualfocal train digits --set epochs=30 --set seed=3 --out runs/a",
        "dualfocal train digits --set loss=focal --set loss.gamma=2",
        "torchrun --nproc-per-node=4 -m dualfocal train cifar10_resnet50",
    ):
        assert line in map(str.strip, text.splitlines())
    for option in (
        "--set",
        "--out",
        "--data-root",
        "--device",
        "--checkpoint-every",
        "--tensorboard",
        "--show",
        "--json",
    ):
        assert f" {option} " in text


def test_the_examples_of_the_help_are_good(run, record):
    lines = [line.strip() for line in run("train", "--help")[0].splitlines()]
    examples = [line.split()[2:] for line in lines if line.startswith("dualfocal train ")]
    assert len(examples) == 3
    for example in examples:
        assert record("train", *example, "--show")["schema"] == 1


def test_help_lists_the_commands(run):
    text = run("--help")[0]
    for line in ("train      Train a model.", "runs       List run folders"):
        assert line in text
