"""`dualfocal paper`: the paper itself, its tables and figures from runs of one's own, and its errata."""

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dualfocal._checks import check_known
from dualfocal.cli._common import (
    FIELDS,
    FIGURES,
    AsJson,
    comma_separated,
    consoles,
    print_json,
    progress_bar,
    say,
    stopped_goes_on,
    training_bar,
)
from dualfocal.cli.data import Root
from dualfocal.cli.theory import theory
from dualfocal.paper.published import published_tables

WIDTH = 80  # longer lines are hard to read
INDENT = 4
HEADING = "bold underline"
FORMATS = ("pdf", "png", "svg")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""The paper, Dual Focal Loss for Calibration (ICML 2023): its tables and figures run again, its theory
    computed, and its errata.""",
)


@app.command()
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
    say(
        printer,
        f"{planned.study.title}: {len(planned.trainings)} trainings, "
        f"seeds {', '.join(map(str, planned.study.seeds))}, into {out}",
    )
    with stopped_goes_on(errors), training_bar(errors) as bar:
        reproduction = planned.run(
            jobs=jobs,
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
    for problem in reproduction.failed:
        say(errors, f"dualfocal: {problem}")
    if reproduction.failed:
        raise typer.Exit(1)


@app.command()
def figures(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders, or folders that hold some, as a study's. `phi` needs none."),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAME,...", help=f"Some of {', '.join(FIGURES)}.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where they go; made if need be.")] = Path("figures"),
    formats: Annotated[
        str, typer.Option("--format", metavar="NAME,...", help=f"Some of {', '.join(FORMATS)}.")
    ] = "pdf,png",
    dpi: Annotated[int, typer.Option(min=20, max=1200, help="Dots per inch of a PNG.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Draw the figures of the paper from runs: all that they allow, and why one is left out.

    - `phi` (figure 1): phi of focal and dual focal loss.

    - `reliability` (2): accuracy and gap by bins, the range of a calibrated model, ECE and floor; `corp`: without bins.

    - `metrics` (3): ECE, AdaECE, classwise ECE: dots and the t-interval of the mean over seeds, floors.

    - `training` (4a): ECE over the epochs, of the test part if the runs logged it (`--set test_each_epoch=true`).

    - `logits` (4b): maximum logits. `rival` (4c): box plot of q_j(x), the largest probability below the true class's.

    Runs that differ in their seed only are one method; what shows a single run shows the lowest seed, and says so. Each
    data set and model has figures of its own, named after it. Files are the same bytes each time.

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


app.command()(theory)


@app.command()
def errata(
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Only these, as `rbs-root`; by default all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """What does not fit together in the paper and its public code, and what this package does.

    For each: where it stands, what is inconsistent, what is done here, and what gives the published behaviour, to be
    copied: a command, or Python with names from `dualfocal.losses`, `.metrics`, `.calibrators`, `.models`,
    `.train.presets` and `.paper.published`. A `preset(NAME, SETTINGS)` is `dualfocal train NAME --set SETTING ...`.
    Tables are numbered in the order of the paper. At the end: what the paper only cites, and is not here.

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
        say(out, "only cited by the paper, not here\n", HEADING)
    for method in out_of_scope:
        _print_paragraph(out, "- ", method, hanging=2)


def _print_paragraph(out: Console, label: str, text: str, hanging: int = 0) -> None:
    """Print an indented paragraph; wrapped here, because rich would fill its lines with blanks."""
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
    """Parse ``--only``; several values of a field add up."""
    values: dict[str, list[str]] = {}
    for part in text.split(",") if text is not None else ():
        field, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"--only is written field=value,..., of {', '.join(FIELDS)}; got {part!r}")
        values.setdefault(field, []).append(value)
    return values


def _chosen(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """The names in a comma-separated list, in the order of ``known``."""
    given = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in given:
        check_known(option, name, known)
    return [name for name in known if name in given]
