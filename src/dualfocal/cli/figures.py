"""`dualfocal paper figures`: the paper's figures from runs of one's own."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from dualfocal._checks import did_you_mean
from dualfocal.cli._common import consoles, print_json, say
from dualfocal.cli._names import FIGURES

FORMATS = ("pdf", "png", "svg")


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
    printer, errors = consoles(as_json)
    names = _chosen("--only", only, FIGURES)
    suffixes = _chosen("--format", formats, FORMATS)
    from dualfocal.paper.figures import draw_figures
    from dualfocal.plots.entries import gather

    settings, unfinished = gather(runs or [])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: {out} cannot be made: {error.strerror}") from error
    with Progress(TextColumn("{task.description}"), BarColumn(), console=errors, transient=True) as bar:
        task = bar.add_task("figures")
        drawings = draw_figures(
            settings,
            names,
            out,
            formats=suffixes,
            dpi=dpi,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    written = [drawing for drawing in drawings if drawing.files]
    left_out = [drawing for drawing in drawings if not drawing.files]
    if as_json:
        content = {
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
        print_json(content)
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


def _chosen(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """The names in a comma-separated list, in the order of ``known``."""
    given = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"{option} takes {', '.join(known)}; got {name!r}{did_you_mean(name, known)}")
    return [name for name in known if name in given]
