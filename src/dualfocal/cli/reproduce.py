"""`dualfocal paper reproduce`: the trainings of a table, what they cost, and our numbers beside the published ones."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Shown
from rich.text import Text

from dualfocal._files import atomic_path
from dualfocal.cli._common import AsJson, bad_input_ends, consoles, stopped_goes_on
from dualfocal.cli.data import Root
from dualfocal.cli.study import epochs_shown, numbers
from dualfocal.data import load_data
from dualfocal.data.registry import did_you_mean
from dualfocal.metrics.evaluation import finite
from dualfocal.paper.published import Table, load_published, published
from dualfocal.paper.reproduction import FOREIGN, LEVEL, Row, rows_of
from dualfocal.paper.trainings import Training, exceptions, trainings
from dualfocal.study import Study, run_study
from dualfocal.train import Run

# Milliseconds of a step of 128 images of 32 x 32 on one H200, benchmarks/results/train_step_gpu.csv.
STEP = {"resnet50": 6.73, "wide_resnet26_10": 11.16, "densenet121": 12.61}
STEPS = {"cifar10": 352, "cifar100": 352}  # an epoch
FIELDS = ("dataset", "model", "method", "variant")


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help=f"table1 to table13, or {', '.join(table.name for table in load_published().tables)}."
        ),
    ],
    only: Annotated[
        str | None,
        typer.Option(metavar="FIELD=VALUE,...", help="Some of its trainings: by dataset, model, method, variant."),
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
    where one more run of ours would fall, 90 % of the time.

        dualfocal paper reproduce table1 --dry-run

        dualfocal paper reproduce table1 --only dataset=cifar10,model=resnet50,method=dual_focal --seeds 1,2,3

        dualfocal paper reproduce ablation --epochs-scale 0.2
    """
    printer, errors = consoles(as_json)
    with bad_input_ends():
        table = published(name).as_meant()
        for setting in settings or ():
            if (field := setting.partition("=")[0].strip()) in ("data", "model", "loss", "seed"):
                raise ValueError(
                    f"{field} is what a row of the table stands for, not for --set; see --only and --seeds"
                )
        wanted = _chosen(trainings(table, epochs_scale=epochs_scale, extras=extras), only)
        wanted = {
            key: dataclasses.replace(of, recipe=of.recipe.with_settings(settings or [])) for key, of in wanted.items()
        }
        chosen = numbers("--seeds", seeds, int) if seeds else [next(iter(wanted.values())).recipe.seed]
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"--seeds must be different numbers, separated by commas, got {seeds!r}")
        short = f", SHORTENED to {epochs_scale:g} of the paper's epochs" if epochs_scale < 1 else ""
        changed = f", CHANGED: {', '.join(settings)}" if settings else ""
        title = f"{table.key}, {table.title}{short}{changed}"
        suffix = f" x{epochs_scale:g}" if epochs_scale < 1 else ""
        if settings:  # another folder and another file than the paper's
            suffix += f" set-{hashlib.sha256(' '.join(sorted(settings)).encode()).hexdigest()[:6]}"
        recipes = {
            key + suffix: {seed: of.recipe.with_settings([f"seed={seed}"]) for seed in chosen}
            for key, of in wanted.items()
        }
        study = Study(title, recipes)
        folders = {(key.removesuffix(suffix), seed): path for (key, seed), path in study.folders(out).items()}
    if dry_run:
        _list(printer, title, wanted, folders, len(chosen), as_json)
        return
    with bad_input_ends():
        for foreign, options in FOREIGN.items() if table.name == "ood_auroc" else ():
            load_data(foreign, data_root_, **options)  # to know now, and not after the trainings, whether it is there
        told = f"{title}: {len(wanted)} trainings, seeds {', '.join(map(str, chosen))}, into {out}"
        printer.print(told, markup=False, highlight=False, soft_wrap=True)
        with stopped_goes_on(), epochs_shown(errors, len(folders)) as tell:
            failed = run_study(study, out, jobs=jobs, data_root=data_root_, device=device, progress=tell)
        rows = rows_of(table, wanted, folders, data_root_)
        content = _content(table, title, rows, list(failed.values()))
        text = "\n".join([f"# {title}", "", *_markdown(rows), "", _explanation(table)]) + "\n"
        stem = table.key + suffix.replace(" ", "-")
        for file, written in ((f"{stem}.json", json.dumps(content, indent=2) + "\n"), (f"{stem}.md", text)):
            with atomic_path(out / file) as path:
                path.write_text(written, encoding="utf-8")
    if as_json:
        print(json.dumps(content, indent=2))
        return
    shown = Shown(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, heading in enumerate(HEADINGS):
        shown.add_column(Text(heading), justify="left" if i < 2 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, _cells(row)))
    printer.print(shown)
    printer.print(_explanation(table), markup=False, highlight=False)
    printer.print(
        f"Written: {out / f'{stem}.md'}, {out / f'{stem}.json'}", markup=False, highlight=False, soft_wrap=True
    )
    for problem in failed.values():
        typer.echo(f"dualfocal: {problem}", err=True)
    if failed:
        raise typer.Exit(1)


HEADINGS = ("training", "number", "published", "ours", "seeds", "one more run", "agrees")


def _chosen(found: dict[str, Training], only: str | None) -> dict[str, Training]:
    """Those that ``--only`` asks for."""
    for part in only.split(",") if only else ():
        field, equals, value = (text.strip() for text in part.partition("="))
        if not equals or field not in FIELDS:
            near = did_you_mean(field, FIELDS)
            raise ValueError(f"--only is written field=value,..., of {', '.join(FIELDS)}; got {part!r}{near}")
        attribute = "data" if field == "dataset" else field
        known = sorted({str(getattr(of, attribute)) for of in found.values()})
        if value not in known:
            raise ValueError(
                f"--only {field} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}"
            )
        found = {name: of for name, of in found.items() if str(getattr(of, attribute)) == value}
    return found


def _list(
    printer: Console,
    title: str,
    found: dict[str, Training],
    folders: dict[tuple[str, int], Path],
    num_seeds: int,
    as_json: bool,
) -> None:
    """What would be trained, and what that would cost."""
    rows: list[dict[str, Any]] = []
    for name, training in found.items():
        states = [Run(path).state for (of, _), path in folders.items() if of == name]
        hours = _hours(training)
        rows.append(
            {
                "training": name,
                "epochs": training.recipe.epochs,
                "loss_options": training.recipe.loss_options,
                "special": exceptions(training),
                "finished": states.count("finished"),
                "hours_on_an_h200": None if hours is None else round(hours, 2),
                "recipe": training.recipe.to_dict(),
            }
        )
    if as_json:
        print(json.dumps({"schema": 1, "title": title, "seeds": num_seeds, "trainings": rows}, indent=2))
        return
    printer.print(title, markup=False, highlight=False)
    table = Shown(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("training", "epochs", "loss options", "special", "finished", "hours"):
        table.add_column(heading, overflow="fold", justify="right" if heading in ("epochs", "hours") else "left")
    for row in rows:
        options = ", ".join(f"{key} {value}" for key, value in row["loss_options"].items())
        took = "?" if row["hours_on_an_h200"] is None else f"{row['hours_on_an_h200']:.1f}"
        cells = (row["training"], str(row["epochs"]), options, row["special"], f"{row['finished']}/{num_seeds}", took)
        table.add_row(*map(Text, cells))
    printer.print(table)
    known = [
        (num_seeds - row["finished"]) * row["hours_on_an_h200"] for row in rows if row["hours_on_an_h200"] is not None
    ]
    unknown = len(rows) - len(known)
    more = f", and {unknown} whose time has not been measured (?)" if unknown else ""
    printer.print(
        f"{len(rows)} trainings x {num_seeds} seeds. Hours are those of one on an H200, by measured steps: "
        f"{sum(known):.1f} left in all{more}.",
        markup=False,
        highlight=False,
    )


def _hours(training: Training) -> float | None:
    if training.model not in STEP or training.data not in STEPS:
        return None
    return training.recipe.epochs * STEPS[training.data] * STEP[training.model] / 3.6e6


def _cells(row: Row) -> list[str]:
    number = " ".join(part for part in (row.metric, row.stage and f"{row.stage} T", row.variant) if part)
    if row.training.variant == row.variant:
        number = " ".join(part for part in (row.metric, row.stage and f"{row.stage} T") if part)
    factor, decimals = _scale(row)
    ours = "" if math.isnan(row.mean) else f"{factor * row.mean:.{decimals}f}"
    theirs = "" if row.published is None else row.published.printed
    if row.published_error is not None:
        theirs += f" ± {row.published_error.printed}"
        ours += "" if row.standard_error is None else f" ± {factor * row.standard_error:.{decimals}f}"
    interval = row.interval
    where = "" if interval is None else " to ".join(f"{factor * end:.{decimals}f}" for end in interval)
    agrees = {True: "yes", False: "no", None: ""}[row.agrees]
    return [row.training.name, number, theirs, ours, str(len(row.ours)), where, agrees]


def _scale(row: Row) -> tuple[float, int]:
    """As the paper prints it."""
    unit = row.published.unit if row.published is not None else "number" if row.metric == "rbs" else "percent"
    return (1.0, 4) if unit == "number" else (100.0, 2)


def _markdown(rows: list[Row]) -> list[str]:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---:|---|"]
    return [*lines, *(f"| {' | '.join(_cells(row))} |" for row in rows)]


def _explanation(table: Table) -> str:
    notes = " ".join(table.notes)
    return (
        "Published and ours as the paper prints them; ours are means over the seeds. One more run: where it would "
        f"fall, {100 * LEVEL:.0f} % of the time; agrees: whether the published run lies there. {notes}"
    )


def _content(table: Table, title: str, rows: list[Row], failed: list[str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "table": table.key,
        "title": title,
        "rows": [
            {
                "training": row.training.name,
                "metric": row.metric,
                "stage": row.stage,
                "variant": row.variant,
                "published": None if row.published is None else row.published.value,
                "erratum": None if row.published is None else row.published.erratum,
                "ours": [finite(value) for value in row.ours],
                "standard_error": row.standard_error,
                "published_standard_error": None if row.published_error is None else row.published_error.value,
                "temperatures": row.temperatures,
                "interval": None if row.interval is None else list(row.interval),
                "agrees": row.agrees,
            }
            for row in rows
        ],
        "failed": failed,
    }
