"""`dualfocal data`: what there is, get it, check it."""

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from dualfocal._checks import did_you_mean
from dualfocal.cli._common import AsJson, bad_input_ends, check_plot, consoles
from dualfocal.data.dataset import DataSet
from dualfocal.data.download import fetch as download
from dualfocal.data.places import data_root, look_for
from dualfocal.data.registry import DATASETS, load_data
from dualfocal.data.sources import OFFICIAL
from dualfocal.data.verify import Check, verify_content, verify_files

MAX_ROWS, COLUMNS = 20, 8  # of a picture: classes, and images of each

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Data sets: what there is, get it, check it.

    They lie in `--data-root`, or in the folder that the variable `DUALFOCAL_DATA` names, or else in your cache folder.
    Files you have already are found there, too: official archives, or folders unpacked from them. Archives are read
    where they are, and decoded once, into `decoded/`.""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="See `dualfocal data list`.")]
Root = Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Where the data lie.")]


@app.command("list")
def list_(data_root_: Root = None, as_json: AsJson = False) -> None:
    """Which data sets there are, and which of them are on disk."""
    out, err = consoles(as_json)
    rows: list[dict[str, Any]] = []
    with bad_input_ends():
        for name, official in OFFICIAL.items():
            place = on_disk(name, data_root_)
            rows.append(
                {
                    "name": name,
                    "about": official.about,
                    "classes": official.num_classes,
                    "train": official.num_train,
                    "test": official.num_test,
                    "download_bytes": sum(source.size for source in official.sources),
                    "place": None if place is None else str(place) if official.layouts else "scikit-learn",
                }
            )
    if as_json:
        print(json.dumps({"root": str(data_root(data_root_)), "data_sets": rows}, indent=2))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "classes", "train", "test", "on disk", "what"):
        numbers = heading in ("classes", "train", "test")
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=heading != "what")
    for row in rows:
        counts = [f"{row[column]:,}" if row[column] else "" for column in ("classes", "train", "test")]
        to_get = f"no, {row['download_bytes'] / 1e6:,.0f} MB" if row["download_bytes"] else "no"
        table.add_row(row["name"], *counts, "yes" if row["place"] else to_get, row["about"])
    _say(out, f"In {data_root(data_root_)}:")
    out.print(table)
    err.print(
        "A folder of images by class, or an .npz file with x_train, y_train, x_test, y_test, is a data set, too.",
        highlight=False,
    )


@app.command()
def fetch(name: Name, data_root_: Root = None) -> None:
    """Download the official files of a data set, check them, and decode them.

    A download that breaks off goes on where it stopped when the same command is run again.

        dualfocal data fetch cifar10
    """
    out, err = consoles(False)
    with bad_input_ends():
        official = OFFICIAL[_known(name)]
        files = {source.file for source in official.sources}
        place = on_disk(name, data_root_)
        if name in DATASETS and official.layouts and place is not None and place.name not in files:
            _say(out, f"{place} is there already; `dualfocal data verify {name}` checks it")
        elif official.layouts and not files:
            raise ValueError(f"{name}: there is nothing to download: {official.by_hand}")
        elif official.layouts:
            for path in _download(name, data_root_, err):
                _say(out, f"{path}: checksum right")
        if name in DATASETS:
            _say(out, str(_load(name, data_root_, err)))


@app.command()
def verify(
    name: Name,
    data_root_: Root = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw images of each class, as stored and varied.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the files on disk with the official checksums, and what is in them with the published numbers.

    Exit code 1 if something differs. `--plot` makes a picture (.png, .pdf, .svg).

        dualfocal data verify cifar10 --plot cifar10.png
    """
    out, err = consoles(as_json)
    with bad_input_ends():
        _known(name)
        check_plot(plot)
        if plot is not None and (name not in DATASETS or "newsgroups" in name):
            raise ValueError(f"--plot: {name} has no images to draw")
        with err.status("...") as status:
            checks = list(verify_files(name, data_root_, progress=lambda file: status.update(f"reading {file}")))
        data = None
        if name in DATASETS and all(check.right is not False for check in checks):
            try:
                data = _load(name, data_root_, err)
            except ValueError as error:
                checks.append(Check("content", False, str(error)))
            else:
                checks.append(verify_content(data, name))
        if plot is not None and data is not None:
            _draw(data, plot)
        elif plot is not None:
            _say(err, f"{plot} is not drawn: the data are wrong")
    wrong = sum(check.right is False for check in checks)
    if as_json:
        found = [{"what": check.what, "right": check.right, "detail": check.detail} for check in checks]
        print(json.dumps({"name": name, "right": not wrong, "checks": found}, indent=2))
    else:
        for check in checks:
            _say(out, f"{_word(check)}  {check.what}: {check.detail}")
        unknown = sum(check.right is None for check in checks)
        good = "All as published." if not unknown else "Nothing differs, as far as it can be told."
        _say(out, f"{wrong} of {len(checks)} differ." if wrong else good, style="bold")
    if wrong:
        raise typer.Exit(1)


def on_disk(name: str, root: Path | None) -> Path | None:
    """Where a data set lies, if all of it is there; scikit-learn's is always."""
    official = OFFICIAL[name]
    if not official.layouts:
        return data_root(root)
    places = [look_for(name, root, layout) for layout in official.layouts]
    if official.parts and not all(places):
        return None
    return next((place for place in places if place is not None), None)


def _say(console: Console, text: str, style: str | None = None) -> None:
    """As it is: a path may look like markup, and is copied from here if it is not broken into lines."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _download(name: str, root: Path | None, err: Console) -> list[Path]:
    """What lies in the root itself stays there; the rest goes to a folder of the data set's name."""
    paths = []
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal) as progress:
        for source in OFFICIAL[name].sources:
            there = look_for(name, root, source.file)
            folder = data_root(root) / name if there is None else there.parent
            bar = progress.add_task(source.file, total=source.size)
            paths.append(download(source, folder, progress=partial(_show, progress, bar)))
    return paths


def _show(progress: Progress, bar: TaskID, there: int, total: int | None) -> None:
    progress.update(bar, completed=there, total=total)


def _known(name: str) -> str:
    if name not in OFFICIAL:
        raise ValueError(f"data sets are {', '.join(OFFICIAL)}; got {name!r}{did_you_mean(name, OFFICIAL)}")
    return name


def _load(name: str, root: Path | None, err: Console) -> DataSet:
    """Read it; texts without word vectors, which are another download."""
    known = inspect.signature(DATASETS[name]).parameters
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("decoding", total=1.0 if "progress" in known else None)
        options = {"vectors": "none", "progress": lambda share: progress.update(bar, completed=share)}
        return load_data(name, root, **{option: value for option, value in options.items() if option in known})


def _draw(data: DataSet, plot: Path) -> None:
    from dualfocal.plots import sample_sheet

    part = data.splits.get("train", data.splits["test"])
    classes = torch.linspace(0, data.num_classes - 1, min(data.num_classes, MAX_ROWS)).long().tolist()
    chosen = [part[data.target[part] == label][:COLUMNS] for label in classes]
    blocks = {"as stored": [data.inputs[index] for index in chosen]}
    draws = data.draw(seed=0, epoch=0)
    if data.augment is not None and draws is not None:
        blocks["varied, as in training"] = [data.augment(data.inputs[index], draws[index]) for index in chosen]
    sample_sheet(blocks, [data.class_names[label] for label in classes]).savefig(plot, dpi=120)


def _word(check: Check) -> str:
    return {True: "right  ", False: "WRONG  ", None: "unknown"}[check.right]
