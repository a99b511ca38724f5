"""`dualfocal train`: train a model into a run folder. `dualfocal runs`: list run folders."""

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dualfocal.cli.commands import AsJson, consoles, names_of, print_json, print_table, say, show
from dualfocal.tables import Table, quantity
from dualfocal_lab.checks import AT_MOST
from dualfocal_lab.cli._common import DEVICES, PRESETS, memory_remedy, stopped_goes_on
from dualfocal_lab.cli.data import Root

if TYPE_CHECKING:
    from dualfocal_lab.runs import Recipe, Run

WIDE = 110  # columns of a terminal


def train(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PRESET",
            autocompletion=names_of(PRESETS),
            help=f"{', '.join(PRESETS)}; or a recipe.json; or a run folder, to continue it; or your data: a folder of "
            "images by class, an .npz file, or `package.module:function`.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting of the recipe; can be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run folder. [default: a folder in `runs/` named after the recipe]"),
    ] = None,
    data_root_: Root = None,
    device: Annotated[
        str | None,
        typer.Option(
            autocompletion=names_of(DEVICES), help="`cpu`, `cuda`, `cuda:1`, ... [default: a GPU if there is one]"
        ),
    ] = None,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            min=1,
            max=AT_MOST["checkpoint_every"],
            metavar="EPOCHS",
            help="Number of epochs between checkpoints.",
        ),
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write the log for TensorBoard, to `RUN/tensorboard`.")
    ] = False,
    callbacks: Annotated[
        list[str] | None,
        typer.Option(
            "--callback", metavar="MODULE:CLASS", help="Callback, created without arguments; can be repeated."
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print all settings and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model. After an interruption, run the same command again to continue.

    The run folder has the recipe, a log with one line per epoch, the weights, the predictions on the validation and
    test splits, and the result. `evaluate`, `compare` and `calibrate` read it. `--show` lists all settings.

        dualfocal train digits --set epochs=30 --set seed=3 --out runs/a

        dualfocal train digits --set loss=focal --set loss.gamma=2

        dualfocal train cifar10_resnet50 --set data=path/to/folder --set model=my_package.nets:my_net

        dualfocal train digits --set loss=my_losses:Mine --set optimizer=adamw --set optimizer.eps=1e-6

        torchrun --nproc-per-node=4 -m dualfocal train cifar10_resnet50
    """
    from dualfocal_lab.train import CallbackError, DivergedError
    from dualfocal_lab.train import train as train_run
    from dualfocal_lab.train.distributed import rank_and_size

    first = rank_and_size()[0] == 0  # with torchrun, only the first process prints
    printer, err = consoles(as_json or not first)
    given = settings or []
    make_recipe, run_folder = _named(name)
    recipe = make_recipe(given)
    if run_folder is not None and out is None and not show:
        out = _place(run_folder, recipe, given)
    if make_recipe([text for text in given if not text.strip().startswith("epochs")]).milestones != recipe.milestones:
        say(err, f"milestones are scaled with the epochs: {','.join(map(str, recipe.milestones))}")
    if show:
        _show(printer, recipe, as_json)
        return
    err.quiet = not first
    try:
        with stopped_goes_on(err), memory_remedy("a smaller batch_size needs less, and so does step=eager on a GPU"):
            run = train_run(
                recipe,
                out,
                data_root=data_root_,
                device=device,
                checkpoint_every=checkpoint_every,
                tensorboard=tensorboard,
                callbacks=[_make_callback(callback) for callback in callbacks or () if first],
            )
    except (DivergedError, CallbackError) as error:
        typer.echo(f"dualfocal: {error}", err=True)
        raise typer.Exit(1) from error
    if first and as_json:
        print_json({"run": str(run.path), **run.require_result().to_dict()})
    elif first:
        _print_result(printer, run)


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER", help="Run folders, or folders that contain them. [default: runs]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List run folders with their progress and test results.

    dualfocal runs

    dualfocal runs runs/a runs/b
    """
    from dualfocal_lab.runs import find_runs
    from dualfocal_lab.runs.listing import list_run, runs_table

    printer, _ = consoles(as_json)
    searched = folders or [Path("runs")]
    for folder in folders or ():
        if not folder.is_dir():
            raise ValueError(f"there is no folder {str(folder)!r}")
    by_path = {run.path.resolve(): run for folder in searched for run in find_runs(folder)}
    listed = [list_run(run) for run in by_path.values()]
    if as_json:
        print_json({"schema": 1, "runs": [run.to_dict() for run in listed]})
    if not listed:
        say(printer, f"no runs in {', '.join(map(str, searched))}")
        return
    table = runs_table(listed)
    if printer.width < WIDE:  # most names say what was trained; the name and the numbers need the space
        table = replace(table, headings=table.headings[:-1], rows=[row[:-1] for row in table.rows])
    print_table(printer, table)
    for run in listed:
        if run.problem is not None:
            say(printer, f"{run.path}: {run.problem}")


def _named(name: str) -> "tuple[Callable[[Iterable[str]], Recipe], Path | None]":
    """Return a function from settings to the recipe that a name stands for, and the run folder if it is one."""
    from dualfocal_lab.data.custom import has_images
    from dualfocal_lab.data.registry import custom_function
    from dualfocal_lab.runs import Run, find_runs
    from dualfocal_lab.runs.recipe import load_recipe
    from dualfocal_lab.train.presets import custom, preset

    path = Path(name)
    if name in PRESETS or not name:
        return partial(preset, name), None
    if path.suffix == ".json" or Run(path).exists:
        return load_recipe(path).with_settings, path if path.is_dir() else None
    if path.is_dir() and (inside := find_runs(path, depth=1)):
        raise ValueError(f"{path}: is not a run folder, but contains some; name one of them, such as {inside[0].path}")
    if path.is_dir() and not has_images(path):
        raise ValueError(
            f"{path}: is neither a run folder (it has no recipe.json) nor a folder of images by class (CLASS/*.png, or "
            "train/CLASS/*.png)"
        )
    if path.is_dir() or path.suffix.lower() == ".npz" or custom_function(name) is not None:
        return custom(name, "small_cnn").with_settings, None
    return partial(preset, name), None  # which refuses the name


def _make_callback(name: str) -> object:
    from dualfocal_lab.objects import load_object

    make = load_object("callback", name)
    try:
        return make()
    except Exception as error:  # any code of the user
        raise ValueError(f"callback {name}: cannot be created without arguments: {error}") from error


def _place(folder: Path, recipe: "Recipe", settings: list[str]) -> Path | None:
    """Return the run folder if its settings are unchanged, or None for a new run.

    Raises:
        ValueError: only the number of epochs is changed, as if the run could be extended.
    """
    from dualfocal_lab.runs import Run

    run = Run(folder)
    changed = {difference.partition(":")[0] for difference in run.recipe.differences(recipe)}
    if not changed:
        return folder
    if changed - {"epochs", "milestones"} or "epochs" not in changed:
        return None
    changes = [word for text in settings for word in ("--set", text)]
    command = shlex.join(["dualfocal", "train", str(folder), *changes, "--out", "NEW"])
    raise ValueError(
        f"{folder}: is a {run.state} run of {quantity(run.recipe.epochs, 'epoch')}, and a run is not extended: its "
        "learning rates depend on the number of epochs; to train a new run for "
        f"{quantity(recipe.epochs, 'epoch')}: {command}"
    )


def _show(printer: Console, recipe: "Recipe", as_json: bool) -> None:
    from dualfocal_lab.runs.recipe import field_docs

    if as_json:
        print_json(recipe.to_dict())
    docs, content = field_docs(), recipe.to_dict()
    rows = []
    for name, meaning in docs.items():
        value = content.get(name, {})
        text = value if isinstance(value, str) else json.dumps(value)
        rows.append([name, "none" if value is None else text, meaning])
    print_table(printer, Table(["setting", "value", "meaning"], rows, left=range(3)))


def _print_result(printer: Console, run: "Run") -> None:
    result = run.require_result()
    part = result.main_part
    if part is None:
        say(printer, f"Finished: {run.path}. There is no validation or test split to evaluate.")
        return
    show(printer, result.table(part), f"{run.path}: ")
    for note in result.notes:
        say(printer, f"Note: {note}.")
    say(printer, f"Next: dualfocal evaluate {shlex.quote(str(run.path))} --plot reliability.png", "dim")
