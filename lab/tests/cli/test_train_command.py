"""`dualfocal train`: a recipe becomes a run folder, which can be repeated, shown and continued."""

import dataclasses
import json
import re
import shutil
import signal
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualfocal.losses import LOSSES
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import engine
from dualfocal_lab.train.presets import PRESETS, custom, preset

SMALL = ("--set", "epochs=3", "--set", "seed=3")
STOPPED = "dualfocal: stopped; run the same command again to continue"
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


def table(out: str) -> list[list[str]]:
    """The rows of a printed table, headings first."""
    lines = [line for line in out.splitlines() if line[:1] in "┃│"]
    return [[cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]] for line in lines]


def numbers(evaluation: dict) -> dict[str, float]:
    return {**evaluation, "floor": evaluation["inference"]["floors"]["ece"]["mean"]}


def without_times(result: dict) -> dict:
    return {name: value for name, value in result.items() if name not in ("run", "seconds", "sessions", "commit")}


def test_the_run_folder_holds_these_files_and_no_others(trained):
    assert sorted(path.name for path in trained.folder.iterdir()) == FILES
    run = Run(trained.folder)
    assert run.state == "finished"
    assert run.recipe == preset("digits", ["epochs=3", "seed=3"])
    assert [line["epoch"] for line in run.log] == [1, 2, 3]


def test_stdout_has_the_numbers_of_the_result_before_and_after_scaling(trained):
    result = Run(trained.folder).result.to_dict()
    by_nll, by_ece = (result["calibrated"][name] for name in ("temperature", "temperature_ece"))
    headings, *rows = table(trained.out)
    assert headings == [
        "",
        "uncalibrated",
        f"T = {by_nll['temperature']:.3g}, by NLL",
        f"T = {by_ece['temperature']:.3g}, by ECE",
    ]
    columns = [numbers(scores["test"]) for scores in (result, by_nll, by_ece)]
    assert rows == [
        [label, *(f"{factor * column[name]:.{decimals}f}" for column in columns)]
        for label, name, factor, decimals in ROWS
    ]
    first, *_, last = trained.out.splitlines()
    assert first.startswith("runs/a: ")
    assert f"weights of epoch 3, {result['seconds']:.1f} s of training" in first
    assert last == "Next: dualfocal evaluate runs/a --plot reliability.png"


def test_stderr_has_a_line_per_epoch_as_the_log_has_it(trained):
    assert trained.err.splitlines() == [
        f"epoch {line['epoch']}/3  lr {line['lr']:.4g}  loss {line['train_loss']:.4f}  "
        f"val error {100 * line['val_error']:.2f} %  ECE {100 * line['val_ece']:.2f} %  NLL {line['val_nll']:.4f}  "
        f"{line['images_per_second']:,.0f} samples/s  {line['seconds']:.1f} s"
        for line in Run(trained.folder).log
    ]


def test_run_again_it_prints_the_same_and_changes_no_file(run, finished, trained, files):
    before = files()
    assert run("train", "digits", *SMALL, "--out", "runs/a") == (trained.out, "")
    assert files() == before


def test_json_is_the_result_and_all_of_stdout(record, run, finished):
    result = json.loads(Path("runs/a/result.json").read_text(), parse_constant=pytest.fail)
    del result["crc32"]
    assert record("train", "digits", *SMALL, "--out", "runs/a") == {"run": "runs/a", **result}
    out, err = run("train", "digits", "--set", "epochs=1", "--out", "runs/b", "--json")
    result = json.loads(out, parse_constant=pytest.fail)
    assert result.pop("run") == "runs/b"
    assert result == Run("runs/b").result.to_dict()
    assert err.startswith("epoch 1/1  lr 0.05  loss ")
    assert err.count("\n") == 1


def test_each_recipe_has_its_own_folder_by_default(record, run, files):
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


def test_a_narrow_terminal_loses_no_number(run, finished, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = run("train", "digits", *SMALL, "--out", "runs/a")[0]
    wanted = [cell for _, *cells in table(trained.out)[1:] for cell in cells]
    assert [cell for _, *cells in table(out)[2:] for cell in cells if cell] == wanted


@pytest.mark.filterwarnings("default")
def test_without_a_validation_split_no_temperature_is_fitted(run):
    out, err = run("train", "digits", "--set", "epochs=1", "--set", "data.val_size=0", "--out", "a")
    assert table(out)[0] == ["", "uncalibrated"]
    [note] = Run("a").result.notes
    assert "no temperature is fitted; set data.val_size" in note
    assert f"Note: {note}.\n" in out
    first, second = err.splitlines()
    assert first == f"dualfocal: {note}"
    assert second.startswith("epoch 1/1  lr 0.05  loss ")
    assert " val " not in second


@pytest.mark.filterwarnings("default")
def test_notes_are_printed_once_in_one_line_each(run, record):
    settings = ("epochs=1", "schedule=step", "milestones=5", "loss=ada_focal")
    command = ("train", "digits", *(f"--set={setting}" for setting in settings), "--out", "a")
    out, err = run(*command)
    notes = Run("a").result.notes
    assert re.search(r"learning rate never falls.*\n.*ada_focal.*set data\.val2_size", "\n".join(notes))
    assert err.splitlines()[:2] == [f"dualfocal: {note}" for note in notes]
    assert out.splitlines()[-3:-1] == [f"Note: {note}." for note in notes]
    assert record(*command)["notes"] == notes


def test_the_rank_of_a_single_process_is_ignored(record, monkeypatch):
    """Some schedulers set RANK for everything that they start."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert record("train", "digits", "--set", "epochs=1", "--out", "a")["epochs"] == 1


def test_a_folder_may_have_any_name(run, finished):
    for name in ("[red]x", "with space", "-x"):
        shutil.copytree("runs/a", name)
        out = run("train", "digits", *SMALL, f"--out={name}")[0]
        assert out.startswith(f"{name}: test part, ")
    shown = run("train", "digits", *SMALL, "--out", "with space")[0].splitlines()[-1]
    assert shown == "Next: dualfocal evaluate 'with space' --plot reliability.png"


def test_a_custom_model_and_data_set(run, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez("pets.npz", x=rng.normal(size=(60, 5)), y=np.arange(60) % 3, class_names=["cat", "dog", "emu"])
    Path("own_linear.py").write_text(
        "from torch import nn\n\ndef net(num_classes):\n    return nn.Linear(5, num_classes)\n"
    )
    monkeypatch.setitem(sys.modules, "own_linear", None)  # the module is forgotten afterwards
    del sys.modules["own_linear"]
    settings = ("data=pets.npz", "model=own_linear:net", "epochs=1")
    out = run("train", "digits", *(f"--set={setting}" for setting in settings), "--device=cpu")[0]
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

        def close(self):
            scalars["closed"] = True

    module = types.ModuleType("torch.utils.tensorboard")  # the real one takes seconds to import
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    run("train", "digits", "--set", "epochs=1", "--out", "a", "--tensorboard")
    assert scalars.pop("closed")
    line = Run("a").log[0]
    tags = {"run/lr": "lr", "train/loss": "train_loss", "val/error": "val_error", "val/ece": "val_ece"}
    assert {tag: scalars[tag] for tag in tags} == {tag: (line[name], 1) for tag, name in tags.items()}


# --- recipes ---


def test_show_lists_every_field_and_trains_nothing(run, record, monkeypatch, files):
    monkeypatch.setenv("COLUMNS", "200")
    fields = [field.name for field in dataclasses.fields(Recipe)]
    for name in PRESETS:
        recipe = preset(name).to_dict()
        assert record("train", name, "--show") == recipe
        headings, *lines = run("train", name, "--show")[0].splitlines()
        assert headings.split() == ["setting", "value", "meaning"]
        assert [line.split()[0] for line in lines] == fields
        for field, line in zip(fields, lines, strict=True):
            value, meaning = line[len(field) :].strip().split("  ", 1)
            expected = recipe.get(field, {})
            printed = "none" if expected is None else expected if isinstance(expected, str) else json.dumps(expected)
            assert value == printed, (name, field)
            assert meaning.strip().endswith("."), field
    assert files() == {}


def test_show_has_the_changed_settings(record):
    settings = ("lr=.2", "epochs = 7", "milestones=2,4", "clip_norm=none", "drop_last=yes", "loss=focal")
    settings += ("loss.gamma=2", "data.noise=1e-1", "data.val_size=100")
    shown = record("train", "digits", "--show", *(word for text in settings for word in ("--set", text)))
    expected = {"lr": 0.2, "epochs": 7, "milestones": [2, 4], "clip_norm": None, "drop_last": True, "loss": "focal"}
    expected |= {"loss_options": {"gamma": 2}, "data_options": {"noise": 0.1, "val_size": 100}}
    assert shown == {**preset("digits").to_dict(), **expected}


def test_scaled_milestones_are_reported(run):
    for name, settings, milestones in (
        ("cifar10_resnet50", ["epochs=35"], "15,25"),
        ("cifar10_resnet50", ["epochs=35", "milestones=3"], None),
        ("cifar10_resnet50", ["epochs=300"], None),
        ("digits", ["epochs=3"], None),
    ):
        _, err = run("train", name, "--show", *(word for text in settings for word in ("--set", text)))
        assert err == (f"milestones are scaled with the epochs: {milestones}\n" if milestones else ""), settings


def test_show_on_a_narrow_terminal_loses_no_value(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = run("train", "digits", "--show", "--set", "model=my_package.my_nets:[red]x")[0]
    lines = out.splitlines()
    values = slice(lines[0].index("value"), lines[0].index("meaning"))
    assert "my_package.my_nets:[red]x" in "".join(line[values].strip() for line in lines)


def test_the_json_of_show_is_a_recipe_to_train(record, run):
    Path("my.json").write_text(run("train", "digits", *SMALL, "--show", "--json")[0])
    assert record("train", "my.json", "--show") == preset("digits", ["epochs=3", "seed=3"]).to_dict()


@pytest.mark.parametrize("name", ["runs/a", "runs/a/recipe.json"])
def test_a_run_is_repeated_with_another_seed(record, run, finished, name, files):
    before = files()
    result = record("train", name, "--set", "seed=4", "--set", "epochs=1")
    again = Run(result.pop("run"))
    assert again.recipe == dataclasses.replace(finished.recipe, seed=4, epochs=1)
    assert again.result.to_dict() == result
    assert {path: content for path, content in files().items() if path in before} == before


def test_a_run_folder_alone_continues_the_run(run, finished, trained, files):
    before = files()
    assert run("train", "runs/a") == (trained.out, "")
    assert files() == before


def test_a_run_repeated_has_the_same_result(record, finished):
    again = record("train", "runs/a", "--out", "b")
    assert without_times(again) == without_times(finished.result.to_dict())
    for name in ("recipe.json", "model.safetensors", "predictions.safetensors"):
        assert Path("b", name).read_bytes() == Path("runs/a", name).read_bytes()


def test_the_settings_of_a_run_may_be_repeated(run, finished, trained):
    assert run("train", "runs/a", *SMALL) == (trained.out, "")


def test_images_arrays_and_functions_are_data_to_train_on(record, run):
    rng = np.random.default_rng(0)
    for label in "ab":
        Path("pictures", label).mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"pictures/{label}/{number}.png")
    np.savez("arrays.npz", x=rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    for name in ("pictures", "arrays.npz", "my_module:load"):
        recipe = record("train", name, "--show", "--set", "seed=3")
        assert recipe == custom(name, "small_cnn").with_settings(["seed=3"]).to_dict()
    result = record("train", "pictures", "--set", "epochs=1", "--set", "loss=focal")
    assert (result["num_classes"], result["in_channels"]) == (2, 3)


def test_a_custom_loss_and_a_callback(run, monkeypatch):
    Path("own_loss.py").write_text(
        "from dualfocal import FocalLoss\n\nclass Loss(FocalLoss):\n    pass\n\n"
        "class Callback:\n    def on_epoch_end(self, log):\n        print('epoch', log['epoch'])\n\n"
        "class Failing(Callback):\n    def on_train_end(self, run):\n        raise RuntimeError('my trouble')\n"
    )
    monkeypatch.setitem(sys.modules, "own_loss", None)  # the module is forgotten afterwards
    del sys.modules["own_loss"]
    command = ("train", "digits", "--set=epochs=1", "--set=loss=own_loss:Loss", "--set=loss.gamma=2")
    out, _ = run(*command, "--out=a", "--callback", "own_loss:Callback")
    assert out.startswith("epoch 1\n")
    assert Run("a").recipe.loss == "own_loss:Loss"
    _, err = run(*command, "--out=b", "--callback", "own_loss:Failing", code=1)
    assert "callback Failing failed in on_train_end: RuntimeError: my trouble" in err.splitlines()[-1]
    assert Run("b").state == "finished"
    [folder] = run(*command, "--json")[1] and Path("runs").iterdir()
    assert folder.name.startswith("digits-small_cnn-Loss-seed1-")


def test_a_folder_does_not_hide_the_preset_of_its_name(record):
    Path("digits").mkdir()
    assert record("train", "digits", "--show") == preset("digits").to_dict()


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


def test_after_ctrl_c_the_same_command_continues(run, signal_in_step, trained, monkeypatch):
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
    names = ["checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert sorted(path.name for path in Path("a").iterdir()) == names

    err = run(*command)[1]
    first, second, third = err.splitlines()
    assert first == "resuming after epoch 1 + 2 steps of 3"
    assert second.startswith("epoch 2/3  ")
    assert third.startswith("epoch 3/3  ")
    assert without_times(Run("a").result.to_dict()) == without_times(Run(trained.folder).result.to_dict())
    assert sorted(path.name for path in Path("a").iterdir()) == FILES


def test_sigterm_saves_and_ends_with_143(run, signal_in_step):
    signal_in_step(signal.SIGTERM, 3)
    out, err = run("train", "digits", *SMALL, "--out", "a", code=143)
    assert (out, err) == ("", f"{STOPPED}\n")
    assert Run("a").state == "stopped"


def test_ctrl_c_before_the_first_step_leaves_no_folder(run, monkeypatch, files):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "load_data", interrupted)
    assert run("train", "digits", "--out", "a", code=130) == ("", f"{STOPPED}\n")
    assert files() == {}


def test_a_killed_run_starts_again(run, stopped):
    err = run("train", "digits", *SMALL, "--out", "runs/a")[1]  # no checkpoint: from the start
    assert [line.split("  ")[0] for line in err.splitlines()] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert [line["epoch"] for line in Run("runs/a").log] == [1, 2, 3]


# --- help ---


def test_help_names_presets_and_options_and_its_examples_work(run, record):
    text = run("train", "--help")[0]
    for word in (*PRESETS, "--data-root", "--device", "--checkpoint-every", "--tensorboard", "torchrun"):
        assert word in text, word
    examples = [line.split()[2:] for line in map(str.strip, text.splitlines()) if line.startswith("dualfocal train ")]
    assert len(examples) == 4
    for example in examples:
        assert record("train", *example, "--show")["schema"] == 1, example
    text = run("--help")[0]
    assert "train      Train a model." in text
    assert "runs       List run folders" in text
