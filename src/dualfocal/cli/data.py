"""`dualfocal data`: what there is, get it, check it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from dualfocal._table import Table
from dualfocal.cli._common import AsJson, check_plot, consoles, print_json, say

VERDICTS = {True: "right  ", False: "WRONG  ", None: "unknown"}

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
    from dualfocal.data.places import data_root, on_disk
    from dualfocal.data.sources import OFFICIAL

    out, err = consoles(as_json)
    rows: list[dict[str, Any]] = []
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
        print_json({"root": str(data_root(data_root_)), "data_sets": rows})
        return
    lines = []
    for row in rows:
        counts = [f"{row[column]:,}" if row[column] else "" for column in ("classes", "train", "test")]
        to_get = f"no, {row['download_bytes'] / 1e6:,.0f} MB" if row["download_bytes"] else "no"
        lines.append([row["name"], *counts, "yes" if row["place"] else to_get, row["about"]])
    say(out, f"In {data_root(data_root_)}:")
    out.print(Table(["name", "classes", "train", "test", "on disk", "what"], lines, left=(0, 4, 5)).rich(boxed=False))
    say(err, "A folder of images by class, or an .npz file with x_train, y_train, x_test, y_test, is a data set, too.")


@app.command()
def fetch(name: Name, data_root_: Root = None) -> None:
    """Download the official files of a data set, check them, and decode them.

    A download that breaks off goes on where it stopped when the same command is run again.

        dualfocal data fetch cifar10
    """
    from dualfocal.data.download import fetch_data
    from dualfocal.data.places import on_disk
    from dualfocal.data.registry import DATASETS
    from dualfocal.data.sources import get_official
    from dualfocal.data.verify import load_official

    out, err = consoles(False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    official = get_official(name)
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal) as progress:
        bars = {source.file: progress.add_task(source.file, total=source.size) for source in official.sources}
        paths = fetch_data(name, data_root_, progress=lambda file, there: progress.update(bars[file], completed=there))
    for path in paths:
        say(out, f"{path}: checksum right")
    if official.layouts and not paths:
        say(out, f"{on_disk(name, data_root_)} is there already; `dualfocal data verify {name}` checks it")
    if name in DATASETS:
        with _bar(err) as update:
            data = load_official(name, data_root_, progress=lambda share: update(completed=share, total=1.0))
        say(out, str(data))


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
    from dualfocal.data import verify as official_data
    from dualfocal.data.registry import DATASETS
    from dualfocal.data.sources import get_official

    out, err = consoles(as_json)
    get_official(name)
    check_plot(plot)
    if plot is not None and (name not in DATASETS or "newsgroups" in name):
        raise ValueError(f"--plot: {name} has no images to draw")
    with _bar(err) as update:
        checks, data = official_data.verify(
            name,
            data_root_,
            reading=lambda file: update(description=f"reading {file}"),
            decoding=lambda share: update(description="decoding", completed=share, total=1.0),
        )
    if plot is not None and data is not None:
        from dualfocal.plots import sample_sheet

        sample_sheet(*official_data.sample_images(data)).savefig(plot, dpi=120)
    elif plot is not None:
        say(err, f"{plot} is not drawn: the data are wrong")
    wrong = sum(check.right is False for check in checks)
    if as_json:
        print_json({"name": name, "right": not wrong, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            say(out, f"{VERDICTS[check.right]}  {check.what}: {check.detail}")
        unknown = any(check.right is None for check in checks)
        good = "Nothing differs, as far as it can be told." if unknown else "All as published."
        say(out, f"{wrong} of {len(checks)} differ." if wrong else good, style="bold")
    if wrong:
        raise typer.Exit(1)


@contextmanager
def _bar(err: Console) -> Iterator[Callable[..., None]]:
    """Show a bar until the block ends; what is yielded updates it."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        yield partial(progress.update, progress.add_task("decoding", total=None))
