"""`dualfocal train`: a recipe to a run folder. `dualfocal runs`: what has come of them."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dualfocal.cli._common import AsJson, bad_input_ends, consoles, print_table
from dualfocal.cli.data import Root
from dualfocal.metrics.registry import METRICS
from dualfocal.runs import Recipe, Run, RunError, find_runs
from dualfocal.runs.layout import FAILURE, RESULT
from dualfocal.runs.recipe import field_docs, load_recipe
from dualfocal.train import DivergedError
from dualfocal.train import train as train_
from dualfocal.train.distributed import rank_and_size
from dualfocal.train.presets import PRESETS, preset

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
    with bad_input_ends():
        first = rank_and_size()[0] == 0  # of the processes that torchrun starts
    printer, _ = consoles(as_json or not first)
    with bad_input_ends():
        path = Path(name)
        if name not in PRESETS and (path.suffix == ".json" or path.is_dir()):
            recipe = load_recipe(path).with_settings(settings or [])
            if path.is_dir() and not settings and out is None:
                out = path
        else:
            recipe = preset(name, settings or [])
    if show:
        _show(printer, recipe, as_json)
        return
    try:
        with bad_input_ends():
            run = train_(
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
    except (KeyboardInterrupt, SystemExit):
        if first:
            typer.echo("dualfocal: stopped; run the same command again to go on", err=True)
        raise
    if not first:
        return
    with bad_input_ends():
        result = run.result
        assert result is not None
        if as_json:
            print(json.dumps({"run": str(run.path), **result}, indent=2))
            return
        try:
            _print_result(printer, run, result)
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{run.path / RESULT}: is damaged: {error}") from error


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
    printer, _ = consoles(as_json)
    searched = folders or [Path("runs")]
    with bad_input_ends():
        for folder in folders or ():
            if not folder.is_dir():
                raise ValueError(f"there is no folder {str(folder)!r}")
        found = {run.path.resolve(): run for folder in searched for run in find_runs(folder)}
    rows = [_row(run) for run in found.values()]
    if as_json:
        print(json.dumps({"schema": 1, "runs": rows}, indent=2))
        return
    if not rows:
        printer.print(f"no runs in {', '.join(map(str, searched))}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # What was trained is in most names, too: where there is little room, the name and the numbers need it.
    headings = ["run", "state", "epoch", "error %", "ECE %", "floor %", "NLL", "T", "trained"]
    headings = headings if printer.width >= WIDE else headings[:-1]
    for heading in headings:
        wide = heading in ("run", "state", "trained")
        table.add_column(heading, justify="left" if wide else "right", overflow="fold", no_wrap=not wide)
    for row in rows:
        table.add_row(*map(Text, _cells(row)[: len(headings)]))
    printer.print(table)
    for row in rows:
        if "problem" in row:
            text = f"{row['run']}: {row['problem']}"
            printer.print(text, markup=False, highlight=False, soft_wrap=True)


def _row(run: Run) -> dict[str, Any]:
    """What a run has to say; of a damaged one, what is wrong."""
    row: dict[str, Any] = {"run": str(run.path)}
    try:
        recipe, result = run.recipe, run.result
        row |= {"state": run.state, "epoch": len(run.log), "epochs": recipe.epochs}
        row |= {name: getattr(recipe, name) for name in ("data", "model", "loss", "loss_options", "seed")}
        if result is not None:
            row |= _scores(run, result)
        elif (failure := run.failure) is not None:
            row["problem"] = str(failure.get("what", f"{FAILURE} does not say why"))
    except (ValueError, OSError) as error:
        row |= {"state": "damaged", "problem": " ".join(str(error).removeprefix(f"{run.path}: ").split())}
    return row


def _scores(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Of the test part, or else of the validation part."""
    part = next((part for part in ("test", "val") if part in result), None)
    if part is None:
        return {}
    try:
        of = result[part]
        scores = {name: of[name] for name in ("error", "ece", "nll")}
        scores |= {"floor": of["inference"]["floors"]["ece"]["mean"]}
        if "calibrated" in result:
            scores["temperature"] = result["calibrated"]["temperature"]["temperature"]
        return {"part": part, **{name: None if value is None else float(value) for name, value in scores.items()}}
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.path / RESULT}: is damaged: {error!r}") from error


def _cells(row: dict[str, Any]) -> list[str]:
    def number(name: str, factor: float, decimals: int) -> str:
        return "" if row.get(name) is None else f"{factor * row[name]:.{decimals}f}"

    state = row["state"] + (", val part" if row.get("part") == "val" else "")
    epoch = f"{row['epoch']}/{row['epochs']}" if "epochs" in row else ""
    trained = " ".join(str(row[name]) for name in ("data", "model", "loss") if name in row)
    scores = [number("error", 100, 2), number("ece", 100, 2), number("floor", 100, 2), number("nll", 1, 4)]
    return [row["run"], state, epoch, *scores, number("temperature", 1, 3), trained]


def _show(printer: Console, recipe: Recipe, as_json: bool) -> None:
    if as_json:
        print(json.dumps(recipe.to_dict(), indent=2))
        return
    docs = field_docs()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("field", "value", "what"):
        table.add_column(heading, overflow="fold")
    for name, value in recipe.to_dict().items():
        if name != "schema":
            shown = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
            table.add_row(Text(name), Text(shown), Text(docs.get(name, "")))
    printer.print(table)


def _print_result(printer: Console, run: Run, result: dict[str, Any]) -> None:
    part = "test" if "test" in result else "val"
    if part not in result:
        printer.print(f"Finished: {run.path}, no part to evaluate.", markup=False, highlight=False, soft_wrap=True)
        return
    columns = {"as it is": result[part]}
    for name, scaled in result.get("calibrated", {}).items():
        by = "ECE" if name == "temperature_ece" else "NLL"
        columns[f"T = {scaled['temperature']:.3g}, by {by}"] = scaled[part]
    headings = ["", *columns]
    rows = []
    for attribute, metric in METRICS.items():
        rows.append([metric.heading, *(metric.text(column[attribute]) for column in columns.values())])
        if attribute == "ece":
            floors = [column["inference"]["floors"]["ece"]["mean"] for column in columns.values()]
            rows.append(["  floor [%]", *(f"{100 * floor:.2f}" for floor in floors)])
    where = f"{part} part, weights of epoch {result['weights_of_epoch']}, {result['seconds']:.1f} s of training"
    print_table(printer, f"{run.path}: {where}", headings, rows)
    for note in result["notes"]:
        printer.print(f"Note: {note}.", markup=False, highlight=False, soft_wrap=True)
    place = shlex.quote(str(run.path))
    text = f"Next: dualfocal evaluate {place} --plot reliability.png"
    printer.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
