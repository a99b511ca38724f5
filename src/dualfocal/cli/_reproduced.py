"""How a table that was run again is shown and written: what it takes, and our numbers beside the published ones."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Shown
from rich.text import Text

from dualfocal.metrics.evaluation import finite
from dualfocal.paper import foreign
from dualfocal.paper.published import Table
from dualfocal.paper.reproduction import LEVEL, Row
from dualfocal.paper.trainings import Training, exceptions
from dualfocal.runs import Run

# Milliseconds of a step of 128 images of 32 x 32 on one H200, benchmarks/results/train_step_gpu.csv.
STEP = {"resnet50": 6.73, "wide_resnet26_10": 11.16, "densenet121": 12.61}
STEPS = {"cifar10": 352, "cifar100": 352}  # an epoch

HEADINGS = ("training", "number", "published", "ours", "floor", "seeds", "one more run", "agrees")


def show(printer: Console, table: Table, rows: list[Row], notes: list[str]) -> None:
    """On a terminal."""
    shown = Shown(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    cells = [_cells(row) for row in rows]
    filled = [i for i in range(len(HEADINGS)) if i < 4 or any(line[i] for line in cells)]
    for i in filled:
        shown.add_column(Text(HEADINGS[i]), justify="left" if i < 2 else "right", overflow="fold")
    for line in cells:
        shown.add_row(*(Text(line[i]) for i in filled))
    printer.print(shown)
    printer.print(_explanation(table), markup=False, highlight=False)
    for note in notes:
        printer.print(f"Note: {note}.", markup=False, highlight=False, soft_wrap=True)


def notes_of(folders: Iterable[Path]) -> list[str]:
    """What the results of finished runs should be read with, each once."""
    results = [Run(folder).result for folder in folders]
    return list(dict.fromkeys(note for result in results if result is not None for note in result.notes))


@contextmanager
def images_shown(console: Console) -> Iterator[foreign.Progress]:
    """A bar for foreign images; gives what is to be told which, how many are done, and of how many."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)

        def tell(what: str, done: int, total: int) -> None:
            if not done:
                bar.reset(task)
            bar.update(task, completed=done, total=total, description=what, visible=True)

        yield tell


def list_trainings(
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
                "training": training.label,
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
    if row.published is not None and row.published.temperature is not None:
        theirs += f" ({row.published.temperature:.1f})"
    if row.temperatures:
        ours += f" ({' to '.join(f'{t:.1f}' for t in sorted({min(row.temperatures), max(row.temperatures)}))})"
    interval = row.interval
    where = "" if interval is None else " to ".join(f"{factor * end:.{decimals}f}" for end in interval)
    agrees = {True: "yes", False: "no", None: ""}[row.agrees]
    floor = "" if row.floor is None else f"{factor * row.floor:.{decimals}f}"
    return [row.training.label, number, theirs, ours, floor, str(len(row.ours)), where, agrees]


def _scale(row: Row) -> tuple[float, int]:
    """As the paper prints it."""
    unit = row.published.unit if row.published is not None else "number" if row.metric == "rbs" else "percent"
    return (1.0, 4) if unit == "number" else (100.0, 2)


def markdown(title: str, table: Table, rows: list[Row], notes: list[str]) -> str:
    """The table as a file, with what there is to know."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    remarks = [f"Note: {note}." for note in notes]
    return "\n".join([f"# {title}", "", *lines, "", _explanation(table), *remarks]) + "\n"


def _explanation(table: Table) -> str:
    notes = " ".join(table.notes)
    return (
        "Published and ours as the paper prints them, the temperature in brackets; ours are means over the seeds. "
        "Floor: what a perfectly calibrated model with our confidences would show by chance. One more run, with two "
        f"seeds or more: where it would fall, {100 * LEVEL:.0f} % of the time; agrees: whether the published run lies "
        f"there. {notes}"
    )


def content_of(table: Table, title: str, rows: list[Row], notes: list[str], failed: list[str]) -> dict[str, Any]:
    """The same for JSON: fractions."""
    return {
        "schema": 1,
        "table": table.key,
        "title": title,
        "rows": [
            {
                "training": row.training.label,
                "metric": row.metric,
                "stage": row.stage,
                "variant": row.variant,
                "published": None if row.published is None else row.published.value,
                "erratum": None if row.published is None else row.published.erratum,
                "seeds": list(row.seeds),
                "ours": [finite(value) for value in row.ours],
                "floors": row.floors,
                "standard_error": row.standard_error,
                "published_standard_error": None if row.published_error is None else row.published_error.value,
                "temperatures": row.temperatures,
                "published_temperature": None if row.published is None else row.published.temperature,
                "interval": None if row.interval is None else list(row.interval),
                "agrees": row.agrees,
            }
            for row in rows
        ],
        "notes": notes,
        "failed": failed,
    }
