"""`dualfocal paper reproduce`: the trainings of a table, what they cost, and our numbers beside the published ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dualfocal.cli._common import AsJson, comma_separated, consoles, print_json, say, stopped_goes_on
from dualfocal.cli._names import FIELDS
from dualfocal.cli.data import Root
from dualfocal.paper.published import published_tables


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help=f"table1 to table13, or {', '.join(table.name for table in published_tables())}."
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Some of its trainings: by dataset, model, method, variant; several values of one add up.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="1,2,...", help="Two or more give an interval. [default: the paper's]")
    ] = None,
    epochs_scale: Annotated[
        float, typer.Option(metavar="X", help="A shorter schedule, such as 0.2; its numbers are not the paper's.")
    ] = 1.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of all recipes: not the paper's, either."),
    ] = None,
    extras: Annotated[
        bool,
        typer.Option("--extras", help="Also what the paper lacks: adaptive losses that adapt, other weight decays."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trainings, and stop.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For runs and tables; tables share runs.")] = Path(
        "paper"
    ),
    data_root_: Root = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Trainings at a time. [default: cores; 1 on a GPU]")] = None,
    device: Annotated[str | None, typer.Option(help="By default a GPU if there is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of the paper again: train what is missing, and put our numbers beside the published ones.

    Interrupt it as you like; the same command goes on. With two seeds or more it says whether the published run lies
    where one more run of ours would fall, 90 % of the time. What is shown is what was asked for; the files have every
    finished run of the table that lies in the folder.

        dualfocal paper reproduce table1 --dry-run

        dualfocal paper reproduce table1 --only dataset=cifar10,model=resnet50,method=dual_focal --seeds 1,2,3

        dualfocal paper reproduce ablation --epochs-scale 0.2
    """
    from dualfocal.paper.reproduce import plan

    printer, errors = consoles(as_json)
    planned = plan(
        name,
        only=_only(only),
        seeds=None if seeds is None else comma_separated("--seeds", seeds, int),
        epochs_scale=epochs_scale,
        settings=settings or [],
        extras=extras,
        out=out,
    )
    if dry_run:
        if as_json:
            print_json(planned.to_dict())
        say(printer, planned.study.title, wrap=True)
        printer.print(planned.as_table().rich(boxed=False))
        say(printer, planned.cost(), wrap=True)
        return
    chosen = f"{len(planned.trainings)} trainings, seeds {', '.join(map(str, planned.study.seeds))}"
    say(printer, f"{planned.study.title}: {chosen}, into {out}")
    with stopped_goes_on(), _progress_bar(errors) as progress:
        reproduction = planned.run(jobs=jobs, data_root=data_root_, device=device, progress=progress)
    if as_json:
        print_json(reproduction.to_dict())
    printer.print(reproduction.as_table().rich(boxed=False))
    say(printer, reproduction.explanation(), wrap=True)
    for note in reproduction.notes:
        say(printer, f"Note: {note}.")
    say(printer, f"Written: {', '.join(map(str, planned.files()))}")
    for problem in reproduction.failed:
        typer.echo(f"dualfocal: {problem}", err=True)
    if reproduction.failed:
        raise typer.Exit(1)


def _only(text: str | None) -> dict[str, list[str]]:
    """Parse ``--only``; several values of a field add up."""
    values: dict[str, list[str]] = {}
    for part in text.split(",") if text is not None else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--only is written field=value,..., of {', '.join(FIELDS)}; got {part!r}")
        values.setdefault(field, []).append(value)
    return values


@contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for epochs, then for foreign images; yields a function of what is done, how much, and of how much."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left")
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("", total=None)

        def progress(what: str, done: int, total: int) -> None:
            if not done:
                bar.reset(task)
            bar.update(task, completed=done, total=total, description=what)

        yield progress
