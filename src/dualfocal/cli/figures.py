"""`dualfocal paper figures`: the paper's figures from runs of one's own."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from dualfocal._checks import did_you_mean
from dualfocal.cli._common import bad_input_ends, consoles

if TYPE_CHECKING:
    from dualfocal.plots.entries import Setting

NAMES = ("phi", "reliability", "corp", "metrics", "training", "logits", "rival")  # of paper.figures, which loads slowly
FORMATS = ("pdf", "png", "svg")


def figures(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders, or folders that hold some, as a study's. `phi` needs none."),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAME,...", help=f"Some of {', '.join(NAMES)}.")] = None,
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
    printer, errors = consoles(as_json)
    with bad_input_ends():
        names = _chosen("--only", only, NAMES)
        suffixes = _chosen("--format", formats, FORMATS)
        from dualfocal.plots.entries import gather

        settings, unfinished = gather(runs or [])
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--out: {out} cannot be made: {error.strerror}") from error
        columns = (TextColumn("{task.description}"), BarColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            written, left_out = _draw(names, settings, out, suffixes, dpi, bar)
    if as_json:
        skipped = [{"run": str(path), "why": why} for path, why in unfinished.items()]
        record = {"schema": 1, "written": written, "left_out": left_out, "runs_left_out": skipped}
        print(json.dumps(record, indent=2))
    for path, why in unfinished.items():
        printer.print(f"Run left out: {path} {why}", markup=False, highlight=False, soft_wrap=True)
    for figure in written:
        files = ", ".join(figure["files"])
        line = f"Written: {files} ({figure['paper']}, {figure['shows']})"
        printer.print(line, markup=False, highlight=False, soft_wrap=True)
    for figure in left_out:
        of = f" of {figure['setting']}" if figure["setting"] else ""
        line = f"Left out: {figure['figure']}{of}: {figure['why']}"
        printer.print(line, markup=False, highlight=False, soft_wrap=True)
    if not written or (runs and not settings):
        raise typer.Exit(1)


def _chosen(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """The names in a list with commas, in the order of what there is."""
    given = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"{option} takes {', '.join(known)}; got {name!r}{did_you_mean(name, known)}")
    return [name for name in known if name in given]


def _draw(
    names: list[str], settings: list["Setting"], out: Path, suffixes: list[str], dpi: int, bar: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each figure once, or once for each setting."""
    from dualfocal.paper.figures import FIGURES, CannotDrawError
    from dualfocal.plots import save

    wanted: list[tuple[str, Setting | None]] = []
    for name in names:
        wanted += [(name, None)] if FIGURES[name].from_runs is None or not settings else [(name, of) for of in settings]
    written, left_out = [], []
    for name, setting in bar.track(wanted, description="figures"):
        figure = FIGURES[name]
        title = None if setting is None else setting.title
        stem = name if setting is None else f"{setting.stem}-{name}"
        try:
            if figure.alone is not None:
                drawn = figure.alone()
            elif setting is None or figure.from_runs is None:
                raise CannotDrawError("it needs finished runs")
            else:
                drawn = figure.from_runs(setting)
        except CannotDrawError as error:
            left_out.append({"figure": name, "setting": title, "why": str(error)})
            continue
        files = [out / f"{stem}.{suffix}" for suffix in suffixes]
        for file in files:
            save(drawn, file, dpi=dpi)
        told = {"paper": figure.number, "shows": figure.shows, "files": [str(file) for file in files]}
        written.append({"figure": name, "setting": title, **told})
    return written, left_out
