"""`dualfocal paper`: the paper's tables, figures, theory and errata."""

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dualfocal._checks import check_known
from dualfocal.cli._common import (
    DEVICES,
    FIELDS,
    FIGURES,
    Jobs,
    comma_separated,
    consoles,
    end_with,
    print_json,
    progress_bar,
    say,
    stopped_goes_on,
    training_bar,
)
from dualfocal.cli._completion import names_of
from dualfocal.cli._engines import (
    Address,
    CpusPerRun,
    EngineName,
    EngineOption,
    GpusPerRun,
    ShardOption,
    make_engine,
    parse_shard,
    say_shard,
    training_display,
)
from dualfocal.cli._options import (
    AsJson,
)
from dualfocal.cli.data import Root
from dualfocal.cli.replication import replication, verify
from dualfocal.cli.theory import theory
from dualfocal.paper.published import published_tables

WIDTH = 80  # longer lines are hard to read
INDENT = 4
HEADING = "bold underline"
TABLES = (*(f"table{number}" for number in range(1, 14)), *(table.name for table in published_tables()))
FORMATS = ("pdf", "png", "svg")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Reproduce the paper, "Dual Focal Loss for Calibration" (ICML 2023): tables, figures, theory and errata.""",
)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=names_of(TABLES),
            help=f"table1 to table13, or {', '.join(table.name for table in published_tables())}.",
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="Select trainings by dataset, model, method or variant; repeat a field to select several values.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="1,2,...", help="Seeds; two or more give an interval. [default: the paper's]")
    ] = None,
    epochs_scale: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Shorten the schedule, for example to 0.2; the numbers are then not comparable with the paper.",
        ),
    ] = 1.0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change a setting of all recipes; the numbers are then not comparable with the paper.",
        ),
    ] = None,
    extras: Annotated[
        bool,
        typer.Option(
            "--extras", help="Also train what the paper lacks: adaptive losses that do adapt, other weight decays."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the trainings and exit.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for runs and tables; tables share runs.")] = Path(
        "paper"
    ),
    data_root_: Root = None,
    jobs: Jobs = None,
    device: Annotated[
        str | None, typer.Option(autocompletion=names_of(DEVICES), help="Device. [default: a GPU if there is one]")
    ] = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    shard: ShardOption = None,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table of the paper: train the missing runs and print our numbers beside the published ones.

    After an interruption, run the same command again to continue. With two or more seeds, the output says whether the
    published number lies in the 90 % prediction interval of one more run of ours. The printed table has the selected
    trainings; the files have every finished run of the table in the folder.

        dualfocal paper reproduce table1 --dry-run

        dualfocal paper reproduce table1 --only dataset=cifar10,model=resnet50,method=dual_focal --seeds 1,2,3

        dualfocal paper reproduce ablation --epochs-scale 0.2

        dualfocal paper reproduce table1 --engine ray --address auto --gpus-per-run 0.5 --out /shared/paper

        dualfocal paper reproduce table1 --shard 2/8 --out /shared/paper
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
    part = parse_shard(shard)
    trainer = make_engine(
        engine, jobs=jobs, device=device, address=address, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run
    )
    say(
        printer,
        f"{planned.study.title}: {len(planned.trainings)} trainings, "
        f"seeds {', '.join(map(str, planned.study.seeds))}, into {out}",
    )
    with stopped_goes_on(errors):
        with training_display(errors, engine) as watch:
            failed = planned.train(engine=trainer, shard=part, data_root=data_root_, watch=watch)
        if part is not None and not planned.study.is_finished(out):
            say_shard(printer, planned.study, out, part, as_json)
            end_with(errors, failed)
            return
        with training_bar(errors) as bar:
            reproduction = planned.compare(
                failed,
                data_root=data_root_,
                device=device,
                progress=lambda what, done, total: bar(done, total=total, description=what),
            )
    if as_json:
        print_json(reproduction.to_dict())
    printer.print(reproduction.as_table().rich(boxed=False))
    say(printer, reproduction.explanation(), wrap=True)
    for note in reproduction.notes:
        say(printer, f"Note: {note}.")
    say(printer, f"Written: {', '.join(map(str, planned.files()))}")
    end_with(errors, reproduction.failed)


@app.command()
def figures(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Run folders, or folders that contain them, such as a study. `phi` needs none."
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            autocompletion=names_of(FIGURES, ","),
            help=f"Figures to draw: {', '.join(FIGURES)}. [default: all]",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figures; created if necessary.")] = Path(
        "figures"
    ),
    formats: Annotated[
        str, typer.Option("--format", metavar="NAME,...", help=f"File formats: {', '.join(FORMATS)}.")
    ] = "pdf,png",
    dpi: Annotated[int, typer.Option(min=20, max=1200, help="Resolution of PNG files.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Draw the figures of the paper from your runs. Says which figures are left out and why.

    - `phi` (figure 1): phi of focal and dual focal loss.

    - `reliability` (2): reliability diagrams with the range of a calibrated model; `corp`: the same without bins.

    - `metrics` (3): ECE, AdaECE and classwise ECE with t-intervals over seeds and noise floors.

    - `training` (4a): ECE over the epochs, on the test split if the runs logged it (`--set test_each_epoch=true`).

    - `logits` (4b): histograms of maximum logits.

    - `rival` (4c): box plot of q_j(x), the largest probability below that of the true class.

    Runs that differ only in their seed are combined. Figures of a single run use the lowest seed and say so. Each data
    set and model gets its own figures. The files are reproducible byte for byte.

        dualfocal study --set test_each_epoch=true --out studies/digits

        dualfocal paper figures studies/digits

        dualfocal paper figures runs/ce runs/dual_focal --only reliability,metrics --format pdf --out figures
    """
    from dualfocal.paper.figures import draw_figures
    from dualfocal.plots.run_groups import group_runs

    printer, errors = consoles(as_json)
    names = _chosen("--only", only, FIGURES)
    suffixes = _chosen("--format", formats, FORMATS)
    settings, unfinished = group_runs(runs or [])
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar(errors, "figures") as bar:
        drawings = draw_figures(
            settings,
            names,
            out,
            formats=suffixes,
            dpi=dpi,
            progress=lambda done, total: bar(done, total=total),
        )
    written = [drawing for drawing in drawings if drawing.files]
    left_out = [drawing for drawing in drawings if not drawing.files]
    if as_json:
        print_json(
            {
                "schema": 1,
                "written": [
                    {
                        "figure": drawing.name,
                        "setting": drawing.setting,
                        "paper": drawing.figure.number,
                        "shows": drawing.figure.shows,
                        "files": list(map(str, drawing.files)),
                    }
                    for drawing in written
                ],
                "left_out": [
                    {"figure": drawing.name, "setting": drawing.setting, "why": drawing.why_not} for drawing in left_out
                ],
                "runs_left_out": [{"run": str(path), "why": why} for path, why in unfinished.items()],
            }
        )
    for path, why in unfinished.items():
        say(printer, f"Run left out: {path} {why}")
    for drawing in written:
        figure = drawing.figure
        say(printer, f"Written: {', '.join(map(str, drawing.files))} ({figure.number}, {figure.shows})")
    for drawing in left_out:
        setting = f" of {drawing.setting}" if drawing.setting else ""
        say(printer, f"Left out: {drawing.name}{setting}: {drawing.why_not}")
    if not written or (runs and not settings):
        raise typer.Exit(1)


app.command()(replication)
app.command()(verify)
app.command()(theory)


@app.command()
def errata(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Only these entries, for example `rbs-root`. [default: all]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List inconsistencies in the paper and its public code, and what this package does about each.

    Each entry says where it is, what is inconsistent, what this package does, and how to get the published behaviour: a
    command, or Python with names from `dualfocal.losses`, `.metrics`, `.calibrators`, `.models`, `.train.presets` and
    `.paper.published`. A `preset(NAME, SETTINGS)` is `dualfocal train NAME --set SETTING ...`. Tables are numbered in
    the order of the paper. The last section lists methods that the paper only cites and that are not included.

        dualfocal paper errata

        dualfocal paper errata adafocal-columns rbs-root

        dualfocal paper errata --json
    """
    from dualfocal.paper.errata import OUT_OF_SCOPE, find_errata

    out, _ = consoles(as_json)
    groups = find_errata(keys or ())
    out_of_scope = [] if keys else list(OUT_OF_SCOPE)
    if as_json:
        records = [{"kind": kind, **asdict(erratum)} for kind, group in groups.items() for erratum in group]
        print_json({"schema": 1, "errata": records, "out_of_scope": out_of_scope})
    for kind, group in groups.items():
        say(out, f"{kind}\n", HEADING)
        for erratum in group:
            out.print(Text.assemble((erratum.key, "bold"), "  ", (erratum.where, "dim")), soft_wrap=True)
            _print_paragraph(out, "", erratum.what)
            _print_paragraph(out, "Here: ", erratum.ours)
            _print_paragraph(out, "As published: ", "" if erratum.option else "no option")
            if erratum.option:  # to be copied, so never broken into lines
                say(out, " " * (INDENT + 2) + erratum.option, "cyan")
            out.print()
    if out_of_scope:
        say(out, "cited by the paper, not included here\n", HEADING)
    for method in out_of_scope:
        _print_paragraph(out, "- ", method, hanging=2)


def _print_paragraph(out: Console, label: str, text: str, hanging: int = 0) -> None:
    """Print an indented paragraph, wrapped here because rich would pad the lines with spaces."""
    lines = fill(
        label + text,
        min(WIDTH, out.width),
        initial_indent=" " * INDENT,
        subsequent_indent=" " * (INDENT + hanging),
        break_on_hyphens=False,
    )
    shown = Text(lines)
    shown.stylize("italic", 0, INDENT + len(label))
    out.print(shown, soft_wrap=True)


def _only(text: str | None) -> dict[str, list[str]]:
    """Parse ``--only`` into the selected values of each field."""
    values: dict[str, list[str]] = {}
    for part in text.split(",") if text is not None else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--only must be FIELD=VALUE,... with a field of {', '.join(FIELDS)}; got {part!r}")
        values.setdefault(field, []).append(value)
    return values


def _chosen(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """Return the names in a comma-separated list, in the order of ``known``."""
    given = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in given:
        check_known(option, name, known)
    return [name for name in known if name in given]
