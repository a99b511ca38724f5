"""`dualfocal study`: train several losses on several seeds and compare them in one table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dualfocal.cli.commands import AsJson, comma_separated, consoles, names_of, print_json, say
from dualfocal.files import atomic_path
from dualfocal.tables import Table, quantity
from dualfocal_lab.cli import _engines as engines
from dualfocal_lab.cli._common import (
    DATA_SETS,
    DEVICES,
    LOSSES,
    MODELS,
    PAPER_LOSSES,
    Criterion,
    Jobs,
    end_with,
    memory_remedy,
    stopped_goes_on,
)
from dualfocal_lab.cli.data import Root

if TYPE_CHECKING:
    from dualfocal_lab.study import Summary


def study(
    losses: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            autocompletion=names_of(LOSSES, ","),
            help=f"Losses to train: {', '.join(LOSSES)}, or `package.module:object`. The others are compared with the "
            "first. "
            f"[default: {', '.join(PAPER_LOSSES)}]",
        ),
    ] = None,
    gamma: Annotated[
        str | None,
        typer.Option(metavar="2,3,5", help="Compare these gammas of one loss (default `dual_focal`) and choose one."),
    ] = None,
    criterion: Annotated[
        Criterion, typer.Option(help="Metric on the validation split by which gamma is chosen.")
    ] = Criterion.nll,
    dataset: Annotated[
        str,
        typer.Option(
            autocompletion=names_of(DATA_SETS), help="Name of a data set, a folder of images by class, or an .npz file."
        ),
    ] = ("digits"),
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=names_of(MODELS), help="Name of a model. [default: the paper's first on this data set]"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="0,1,...", help="Seeds of the trainings.")] = "0,1,2",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a setting of all recipes; can be repeated."),
    ] = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for runs, tables and the figure.")] = Path(
        "study"
    ),
    data_root_: Root = None,
    device: Annotated[
        str | None, typer.Option(autocompletion=names_of(DEVICES), help="Device. [default: a GPU if there is one]")
    ] = None,
    engine: engines.EngineOption = engines.EngineName.local,
    address: engines.Address = None,
    cpus_per_run: engines.CpusPerRun = None,
    gpus_per_run: engines.GpusPerRun = None,
    shard: engines.ShardOption = None,
    as_json: AsJson = False,
) -> None:
    """Train several losses on several seeds and compare them in one table, with confidence intervals and a conclusion.

    Finished runs are not trained again: after an interruption, run the same command again. To add a loss or a seed,
    list it after the old ones, with the same `--out`: table and figure hold the listed losses and seeds.

        dualfocal study

        dualfocal study --losses cross_entropy,flsd,dual_focal --dataset cifar10 --seeds 1,2,3 --set epochs=60

        dualfocal study --gamma 2,3,4,5,10

        dualfocal study --engine ray --address auto --gpus-per-run 0.5 --out /shared/study

        dualfocal study --shard 2/8 --out /shared/study
    """
    from dualfocal.plots import save
    from dualfocal_lab.plots import study_figure
    from dualfocal_lab.runs import find_runs
    from dualfocal_lab.study import choose_gamma, make_study, run_study, summarize

    printer, errors = consoles(as_json)
    gammas = comma_separated("--gamma", gamma, float)
    if criterion != Criterion.nll and not gammas:
        raise ValueError("--criterion needs --gamma")
    default = ["dual_focal"] if gammas else PAPER_LOSSES
    planned = make_study(
        default if losses is None else [name.strip() for name in losses.split(",")],
        dataset=dataset,
        model=model,
        seeds=comma_separated("--seeds", seeds, int),
        gammas=gammas,
        settings=settings or [],
    )
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} must be a folder, but is a file")
    part = engines.parse_shard(shard)
    trainer = engines.make_engine(
        engine, jobs=jobs, device=device, address=address, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run
    )
    say(printer, f"{planned.title}, into {out}")
    say(printer, f"Recipe: {planned.recipe}.", wrap=True)
    with (
        stopped_goes_on(errors),
        memory_remedy("--jobs 1 and a smaller batch_size need less"),
        engines.training_display(errors, engine) as watch,
    ):
        failed = run_study(planned, out, engine=trainer, shard=part, data_root=data_root_, watch=watch)
    if part is not None and not planned.is_finished(out):
        engines.say_shard(printer, planned, out, part, as_json)
        end_with(errors, failed.values())
        return
    summary = summarize(planned, out, failed)
    chosen = choose_gamma(planned, out, criterion) if gammas else None
    markdown, content = summary.to_markdown(), summary.to_dict()
    if chosen is not None:
        markdown += f"\n{chosen.markdown()}\n"
        content["gamma"] = chosen.to_dict()
    texts = {"table.md": markdown, "table.csv": summary.to_csv(), "study.json": json.dumps(content, indent=2) + "\n"}
    for name, text in texts.items():
        with atomic_path(out / name) as path:
            path.write_text(text, encoding="utf-8")
    save(study_figure(summary), out / "study.png", dpi=150)
    if as_json:
        print_json(content)
    _print_summary(printer, summary)
    if chosen is not None:
        say(printer, chosen.sentence())
    files = ", ".join(str(out / name) for name in ("table.md", "table.csv", "study.png"))
    say(printer, f"Written: {files}; runs: dualfocal runs {out / 'runs'}")
    listed = {folder.resolve() for folder in planned.folders(out).values()}
    if others := [run.path.name for run in find_runs(out / "runs") if run.path.resolve() not in listed]:
        verb = "is" if len(others) == 1 else "are"
        what = f"{quantity(len(others), 'run')} in {out / 'runs'} {verb} not in the table"
        say(printer, f"{what}: list all losses and seeds to include them (for example {others[0]})")
    end_with(errors, failed.values())


def _print_summary(printer: Console, summary: "Summary") -> None:
    """Print the data, both tables and the conclusion."""
    if summary.data:
        say(printer, f"Data: {summary.data}.", wrap=True)
    printer.print(_narrow(summary.table("{}*"), gap=1))
    say(printer, summary.explanation("*"), wrap=True)
    if summary.differences:
        printer.print(_narrow(summary.difference_table(), gap=1))
    say(printer, summary.reading(), "bold", wrap=True)


def _narrow(table: Table, gap: int) -> RichTable:
    """Return a table for 80 columns, with headings in two lines. Cells may contain rich markup."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for i, heading in enumerate(table.headings):
        two_lines = heading.replace(" %", "\n%") if " %" in heading else heading.replace(", ", "\n")
        shown.add_column(Text(two_lines.replace("minus ", "minus\n")), justify="right" if i else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*row, style="dim" if row[0] == "floor" else None)
    return shown
