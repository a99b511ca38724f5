"""Options of the commands that train many runs, and the display of their progress."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from dualfocal.cli.commands import print_json, say
from dualfocal.tables import printable, quantity
from dualfocal_lab.cli._common import training_bar, training_columns

if TYPE_CHECKING:
    from dualfocal_lab.study import RunStatus, Shard, Study
    from dualfocal_lab.study.engine import Engine

EngineName = StrEnum("EngineName", ["local", "ray"])
STYLES = {"running": "bold", "failed": "red", "waiting": "dim", "finished": "green"}  # in the order of the table

EngineOption = Annotated[
    EngineName,
    typer.Option("--engine", help="Train in processes of this machine, or as tasks of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Ray cluster: `auto`, `HOST:PORT` or `ray://HOST:PORT`. [default: $RAY_ADDRESS, else Ray is started here]",
    ),
]
CpusPerRun = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Ray: CPUs, and threads, of each training. [default: 1]"),
]
GpusPerRun = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Ray: share of a GPU for each training, such as 0.5. [default: 1 if the cluster has GPUs, else 0]",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Train only the I-th of N shares of the runs, such as 2/8; the others are trained by other jobs with the "
        "same `--out`.",
    ),
]


def make_engine(
    name: EngineName,
    *,
    jobs: int | None,
    device: str | None,
    address: str | None,
    cpus_per_run: int | None,
    gpus_per_run: float | None,
) -> "Engine":
    """Return the engine that the options describe.

    Raises:
        ValueError: an option is not one of this engine, or an engine cannot work with its value.
    """
    from dualfocal_lab.study import LocalEngine, RayEngine

    options: dict[str, dict[str, object]] = {
        "local": {"--jobs": jobs, "--device": device},
        "ray": {"--address": address, "--cpus-per-run": cpus_per_run, "--gpus-per-run": gpus_per_run},
    }
    for engine, values in options.items():
        for option, value in values.items():
            if engine != name and value is not None:
                instead = ", ".join(options[name])
                raise ValueError(f"{option} needs --engine {engine}; options of --engine {name} are {instead}")
    if name == EngineName.local:
        return LocalEngine(jobs, device)
    return RayEngine(address, 1 if cpus_per_run is None else cpus_per_run, gpus_per_run)


def parse_shard(text: str | None) -> "Shard | None":
    """Return the share of the runs that ``--shard`` names."""
    from dualfocal_lab.study import Shard

    try:
        return None if text is None else Shard.parse(text)
    except ValueError as error:
        raise ValueError(f"--shard: {error}") from error


@contextmanager
def training_display(err: Console, engine: EngineName) -> Iterator[Callable[[Sequence["RunStatus"]], None]]:
    """Show the progress of runs, with a bar for local trainings, else with a table. Yields a function that updates it.

    Where there is no terminal, each change of the table is a line.
    """
    from dualfocal_lab.study.runner import add_up

    if engine == EngineName.local:
        with training_bar(err) as bar:

            def update_bar(runs: Sequence["RunStatus"]) -> None:
                done, total, finished = add_up(runs)
                bar(done, total=total, description=f"{finished} of {quantity(len(runs), 'run')}")

            yield update_bar
    elif not err.is_terminal:
        shown: dict[str, tuple[str, str]] = {}
        yield lambda runs: _print_changes(err, runs, shown)
    else:
        progress = Progress(*training_columns(), console=err)
        task = progress.add_task("", total=None)
        with Live(console=err, transient=True) as live:

            def update_table(runs: Sequence["RunStatus"]) -> None:
                done, total, finished = add_up(runs)
                description = f"{finished} of {quantity(len(runs), 'run')}"
                progress.update(task, completed=done, total=total, description=description)
                live.update(Group(runs_table(runs, max(3, err.height - 4)), progress))

            yield update_table


def runs_table(runs: Sequence["RunStatus"], height: int) -> Table:
    """Return a table of the runs, running ones first, with at most this many rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "state", "node", "epochs"):
        table.add_column(heading, justify="right" if heading == "epochs" else "left", no_wrap=True)
    ordered = sorted(runs, key=lambda run: list(STYLES).index(run.state))
    shown = ordered if len(ordered) <= height else ordered[: height - 1]
    for run in shown:
        cells = run.name, run.state, run.node, f"{run.epoch}/{run.epochs}"
        table.add_row(*(Text(printable(cell)) for cell in cells), style=STYLES[run.state])
    if rest := Counter(run.state for run in ordered[len(shown) :]):
        table.add_row(Text(f"and {', '.join(f'{number} {state}' for state, number in rest.items())}"), style="dim")
    return table


def say_shard(printer: Console, study: "Study", out: Path, shard: "Shard", as_json: bool) -> None:
    """Say how much of a study is finished when a shard is done but others are not."""
    states = study.states(out)
    own = len(shard.select(list(study.folders(out))))
    if as_json:
        content = {"schema": 1, "shard": str(shard), "runs": states.total(), "states": dict(states)}
        print_json(content)
    failed = f", {states['failed']} failed" if states["failed"] else ""
    say(
        printer,
        f"Shard {shard} is done ({quantity(own, 'run')}). {states['finished']} of the {states.total()} runs of all "
        f"shards are finished{failed}. The tables are written when all are, by the last shard, or by the same command "
        "without --shard.",
        wrap=True,
    )


def _print_changes(err: Console, runs: Sequence["RunStatus"], shown: dict[str, tuple[str, str]]) -> None:
    """Print a line for each run whose state has changed, except for those that were so from the beginning."""
    begins = not shown
    for run in runs:
        state = run.state, run.node
        if not begins and shown[run.name] != state:
            where = f" on {run.node}" if run.node else ""
            say(err, f"{run.name}: {run.state}{where}, {run.epoch} of {quantity(run.epochs, 'epoch')}")
        shown[run.name] = state
