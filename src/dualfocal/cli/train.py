"""`dualfocal train`: a recipe to a run folder. `dualfocal runs`: what has come of them."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dualfocal._table import Table
from dualfocal.cli._common import PRESETS, AsJson, consoles, print_json, say, show, stopped_goes_on
from dualfocal.cli.data import Root

if TYPE_CHECKING:
    from dualfocal.runs import Recipe, Run

WIDE = 110  # columns of a terminal


def train(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PRESET", help=f"{', '.join(PRESETS)}; or a recipe.json; or a run folder, to go on with it."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe; may be given often."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run folder. By default one in `runs/` that belongs to this recipe."),
    ] = None,
    data_root_: Root = None,
    device: Annotated[
        str | None, typer.Option(help="`cpu`, `cuda`, `cuda:1`; by default a GPU if there is one.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, metavar="EPOCHS", help="How often to save the state.")] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write scalars to `RUN/tensorboard` as well.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="List the recipe, field by field, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model as a recipe says. Run the same command again after any interruption: it goes on.

    The run folder holds the recipe, a log with a line per epoch, the weights, the predictions of the validation and
    the test part, and the result; `evaluate`, `compare` and `calibrate` read it. `--show` lists what can be set.

        dualfocal train digits --set epochs=30 --set seed=3 --out runs/a

        dualfocal train digits --set loss=focal --set loss.gamma=2

        dualfocal train cifar10_resnet50 --set data=path/to/folder --set model=my_package.nets:my_net

        torchrun --nproc-per-node=4 -m dualfocal train cifar10_resnet50
    """
    from dualfocal.runs.recipe import load_recipe
    from dualfocal.train import DivergedError
    from dualfocal.train import train as train_run
    from dualfocal.train.distributed import rank_and_size
    from dualfocal.train.presets import preset

    first = rank_and_size()[0] == 0  # of the processes that torchrun starts
    printer, err = consoles(as_json or not first)
    path = Path(name)
    if name not in PRESETS and (path.suffix == ".json" or path.is_dir()):
        recipe = load_recipe(path).with_settings(settings or [])
        out = path if path.is_dir() and not settings and out is None else out
    else:
        recipe = preset(name, settings or [])
    if show:
        _show(printer, recipe, as_json)
        return
    err.quiet = not first
    try:
        with stopped_goes_on(err):
            run = train_run(
                recipe,
                out,
                data_root=data_root_,
                device=device,
                checkpoint_every=checkpoint_every,
                tensorboard=tensorboard,
            )
    except DivergedError as error:
        typer.echo(f"dualfocal: {error}", err=True)
        raise typer.Exit(1) from error
    if first and as_json:
        print_json({"run": str(run.path), **run.require_result().to_dict()})
    elif first:
        _print_result(printer, run)


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="FOLDER", help="Run folders, or folders of them; by default `runs`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List run folders: how far each has come, and what its test part says.

    dualfocal runs

    dualfocal runs runs/a runs/b
    """
    from dualfocal.runs import find_runs
    from dualfocal.runs.listing import list_run, runs_table

    printer, _ = consoles(as_json)
    searched = folders or [Path("runs")]
    for folder in folders or ():
        if not folder.is_dir():
            raise ValueError(f"there is no folder {str(folder)!r}")
    found = {run.path.resolve(): run for folder in searched for run in find_runs(folder)}
    listed = [list_run(run) for run in found.values()]
    if as_json:
        print_json({"schema": 1, "runs": [run.to_dict() for run in listed]})
    if not listed:
        say(printer, f"no runs in {', '.join(map(str, searched))}")
        return
    table = runs_table(listed).rich(boxed=False)
    for column in table.columns[2:-1]:
        column.no_wrap = True
    if printer.width < WIDE:  # what was trained is in most names, too: the name and the numbers need the room
        table.columns.pop()
    printer.print(table)
    for run in listed:
        if run.problem is not None:
            say(printer, f"{run.path}: {run.problem}")


def _show(printer: Console, recipe: "Recipe", as_json: bool) -> None:
    from dualfocal.runs.recipe import field_docs

    if as_json:
        print_json(recipe.to_dict())
    docs = field_docs()
    rows = [
        [name, value if isinstance(value, str) else "none" if value is None else json.dumps(value), docs.get(name, "")]
        for name, value in recipe.to_dict().items()
        if name != "schema"
    ]
    printer.print(Table(["field", "value", "what"], rows, left=range(3)).rich(boxed=False))


def _print_result(printer: Console, run: "Run") -> None:
    result = run.require_result()
    part = result.main_part
    if part is None:
        say(printer, f"Finished: {run.path}, no part to evaluate.")
        return
    show(printer, result.table(part), f"{run.path}: ")
    for note in result.notes:
        say(printer, f"Note: {note}.")
    say(printer, f"Next: dualfocal evaluate {shlex.quote(str(run.path))} --plot reliability.png", "dim")
