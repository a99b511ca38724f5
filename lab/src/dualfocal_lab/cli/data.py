"""`dualfocal data`: list, download and verify data sets."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from dualfocal.cli.commands import AsJson, check_plot, consoles, names_of, print_json, print_table, progress_bar, say
from dualfocal.tables import Table
from dualfocal_lab.cli._common import DATA_SETS

VERDICTS = {True: "ok     ", False: "WRONG  ", None: "unknown"}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""List, download and verify data sets.

    Data sets are stored in `--data-root`, in the folder named by the variable `DUALFOCAL_DATA`, or in your cache
    folder. Official archives, or folders unpacked from them, that are already there are used. Archives are read in
    place and decoded once, into `decoded/`.""",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=names_of(DATA_SETS), help="See `dualfocal data list`.")
]
Root = Annotated[Path | None, typer.Option("--data-root", metavar="FOLDER", help="Folder of the data sets.")]


@app.command("list")
def list_(data_root_: Root = None, as_json: AsJson = False) -> None:
    """List the data sets and show which are on disk."""
    from dualfocal_lab.data.paths import data_root, on_disk
    from dualfocal_lab.data.sources import OFFICIAL

    out, err = consoles(as_json)
    root = data_root(data_root_)
    places = {name: on_disk(name, root) for name in OFFICIAL}
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "about": official.about,
            "classes": official.num_classes,
            "train": official.num_train,
            "test": official.num_test,
            "download_bytes": sum(source.size for source in official.sources),
            "place": places[name] and (str(places[name]) if official.layouts else "scikit-learn"),
        }
        for name, official in OFFICIAL.items()
    ]
    if as_json:
        print_json({"root": str(root), "data_sets": rows})
        return
    lines = []
    for row in rows:
        counts = [f"{row[column]:,}" if row[column] else "" for column in ("classes", "train", "test")]
        to_get = f"no, {row['download_bytes'] / 1e6:,.0f} MB" if row["download_bytes"] else "no"
        lines.append([row["name"], *counts, "yes" if row["place"] else to_get, row["about"]])
    say(out, f"In {root}:")
    print_table(out, Table(["name", "classes", "train", "test", "on disk", "what"], lines, left=(0, 4, 5)))
    say(
        err,
        "A folder of images by class, or an .npz file with x_train, y_train, x_test, y_test, also works as a data set.",
    )


@app.command()
def fetch(name: Name, data_root_: Root = None) -> None:
    """Download the official files of a data set, check and decode them.

    After an interruption, run the same command again to resume the download.

        dualfocal data fetch cifar10
    """
    from dualfocal_lab.data import DATASETS, download, paths, sources
    from dualfocal_lab.data import verify as official_data

    out, err = consoles(False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    official = sources.get_official(name)
    with Progress(*columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal) as progress:
        bars = {source.file: progress.add_task(source.file, total=source.size) for source in official.sources}
        files = download.fetch_data(
            name, data_root_, progress=lambda file, there: progress.update(bars[file], completed=there)
        )
    for path in files:
        say(out, f"{path}: checksum ok")
    if official.layouts and not files:
        say(out, f"{paths.on_disk(name, data_root_)} is already there; check it with `dualfocal data verify {name}`")
    if name in DATASETS:
        with progress_bar(err, "decoding") as update:
            say(out, str(official_data.load_official(name, data_root_, progress=update)))


@app.command()
def verify(
    name: Name,
    data_root_: Root = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=check_plot,
            help="Draw images of each class, as stored and as augmented: .png, .pdf or .svg.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare files with the official checksums, and their contents with the published numbers of samples and classes.

    Exits with code 1 if something differs.

        dualfocal data verify cifar10 --plot cifar10.png
    """
    from dualfocal_lab.data import DATASETS, sources
    from dualfocal_lab.data import verify as official_data

    out, err = consoles(as_json)
    sources.get_official(name)
    if plot is not None and (name not in DATASETS or "newsgroups" in name):
        raise ValueError(f"--plot: {name} has no images to draw")
    with progress_bar(err, "decoding", total=None) as update:
        checks, data = official_data.verify(
            name,
            data_root_,
            reading=lambda file: update(description=f"reading {file}"),
            decoding=lambda share: update(share, description="decoding", total=1.0),
        )
    if plot is not None and data is not None:
        from dualfocal.plots import save
        from dualfocal_lab.plots.samples import sample_sheet

        save(sample_sheet(*official_data.sample_images(data)), plot, dpi=120)
    elif plot is not None:
        say(err, f"{plot} is not drawn, because the data differ from the official ones")
    wrong = sum(check.right is False for check in checks)
    if as_json:
        print_json({"name": name, "right": not wrong, "checks": [asdict(check) for check in checks]})
    for check in checks:
        say(out, f"{VERDICTS[check.right]}  {check.what}: {check.detail}")
    all_known = all(check.right is not None for check in checks)
    good = "Everything matches." if all_known else "No difference found, but not everything could be checked."
    say(out, f"{wrong} of {len(checks)} differ." if wrong else good, style="bold")
    if wrong:
        raise typer.Exit(1)
