"""`dualfocal paper figures`: the figures of the paper, drawn from runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualfocal.checks import check_known
from dualfocal.cli.commands import consoles, names_of, print_json, progress_bar, say
from dualfocal_lab.cli._common import FIGURES

if TYPE_CHECKING:
    from dualfocal_lab.paper.figures import Drawing

FORMATS = ("pdf", "png", "svg")


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
    from dualfocal_lab.paper.figures import draw_figures
    from dualfocal_lab.plots.run_groups import group_runs

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
        print_json(_content(written, left_out, unfinished))
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


def _content(written: "list[Drawing]", left_out: "list[Drawing]", unfinished: Mapping[Path, str]) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
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


def _chosen(option: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """Return the names in a comma-separated list, in the order of ``known``."""
    given = [name.strip() for name in text.split(",")] if text is not None else list(known)
    for name in given:
        check_known(option, name, known)
    return [name for name in known if name in given]
