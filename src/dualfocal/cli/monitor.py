"""`dualfocal monitor`: is a model in use still calibrated?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualfocal.checks import AT_MOST
from dualfocal.cli import _options as options
from dualfocal.cli._common import check_plot, consoles, print_json, say, show
from dualfocal.tables import Table

if TYPE_CHECKING:
    from dualfocal.metrics import CalibrationMonitor
    from dualfocal.metrics.monitor.state_file import MonitorState
    from dualfocal.predictions.monitoring import NewPeriod

LAST = 10  # periods of the table
FIXED = "Fixed when the state file is started."
# Options that do not need prediction files; the settings are compared with those of the state.
WITHOUT_FILES = (
    "--reset",
    "--plot",
    "--json",
    "--num-bins",
    "--classwise",
    "--tolerance",
    "--cluster-size",
    "--binary",
)


def monitor(
    context: typer.Context,
    state: Annotated[Path, typer.Argument(metavar="STATE", help="State file, .json; started at first use.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help=f"New predictions, oldest first; each file is one period. {options.FILES}"
            "[default: only show the present verdict]",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Label of the period, if there is one file. [default: its name]")
    ] = None,
    num_bins: Annotated[
        int | None,
        typer.Option(min=1, max=AT_MOST["num_bins"], help=f"Number of bins of the confidence. {FIXED} [default: 15]"),
    ] = None,
    classwise: Annotated[
        bool, typer.Option("--classwise", help=f"Monitor the probability of each class, too. {FIXED}")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.5,
            metavar="X",
            help=f"Gap that counts as calibrated, such as 0.01 for one point. {FIXED} [default: 0]",
        ),
    ] = None,
    cluster_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000_000,
            metavar="N",
            help=f"Largest number of samples that depend on each other, such as pixels of an image. {FIXED} "
            "[default: 1]",
        ),
    ] = None,
    weight: Annotated[str | None, typer.Option(metavar="COLUMN", hidden=True)] = None,
    binary: options.BinaryOption = None,
    logits: options.Logits = None,
    probs: options.Probs = None,
    target: options.Target = None,
    split: options.Split = None,
    prediction: options.Prediction = None,
    confidence: options.Confidence = None,
    positive: options.Positive = None,
    class_names: options.ClassNames = None,
    percent: options.Percent = False,
    drop_missing: options.DropMissing = False,
    max_memory: options.MaxMemory = None,
    ignore_index: options.IgnoreIndex = -100,
    again: Annotated[bool, typer.Option("--again", help="Add files even if they were added before.")] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget all samples and the alarm first, for example after a new training.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=check_plot, help="Draw the evidence over time: .png, .pdf or .svg."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Is a model in use still calibrated? Add new predictions to a state file, and ask as often as you like.

    The false-alarm probability is at most 5 % over the whole stream, not per look. Exit code 0: no alarm, 1: alarm, 2:
    bad input. An alarm stays until `--reset`.

        dualfocal monitor state.json 2026-11-18.npz

        dualfocal monitor state.json days/*.parquet --tolerance 0.01 --plot evidence.png

        dualfocal monitor state.json
    """
    from dualfocal.metrics.monitor.state_file import read_monitor
    from dualfocal.predictions.monitoring import update_monitor

    if weight is not None:
        raise ValueError(
            "--weight does not apply to dualfocal monitor, whose samples count the same: weigh the samples of a period "
            "with dualfocal evaluate --weight"
        )
    for option in () if files else sorted(options.given_names(context)):
        if option.startswith("--") and option not in WITHOUT_FILES:
            raise ValueError(f"{option} needs prediction files: dualfocal monitor {state} FILE {option} ...")
    reading = options.reading_from(context)
    given = {
        "num_bins": num_bins,
        "classwise": classwise or None,
        "binary": None if binary is None else str(binary),
        "tolerance": tolerance,
        "cluster_size": cluster_size,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    out, err = consoles(as_json)
    if not files and not reset and not state.exists():
        raise ValueError(f"{state}: there is no such file; give prediction files, too, to start it")
    new: list[NewPeriod] = []
    if files or reset:
        content, new = update_monitor(state, files or [], reading, settings, time=time, again=again, reset=reset)
    else:
        content = read_monitor(state, settings)
    for added in new:
        say(err, f"{added.name}: {added.taken}")
    if content.monitor.history:
        show(out, _table(content.monitor, new, f"{state}: last periods"))
    say(out, content.monitor.verdict(content.class_names), "bold")
    if as_json:
        print_json(_report(state, content, new))
    if plot is not None:
        from dualfocal.plots import evidence_figure, save

        save(evidence_figure(content.monitor), plot, dpi=150)
        say(err, f"Evidence over time: {plot}")
    if content.monitor.alarm is not None:
        raise typer.Exit(1)


def _table(monitor: "CalibrationMonitor", new: "list[NewPeriod]", title: str) -> Table:
    """Return a table of the last periods, with the names of new files."""
    from dualfocal.metrics.monitor.verdict import evidence_text

    names = {added.period.last: added.name for added in new}
    rows = [
        [
            period.time,
            f"{period.num_samples:,}",
            f"{100 * period.confidence / period.num_samples:.2f}",
            f"{100 * period.correct / period.num_samples:.2f}",
            f"{100 * period.gap:+.2f}",
            evidence_text(period.log_evidence),
            names.get(period.last, ""),
        ]
        for period in monitor.history[-LAST:]
    ]
    mean, truth = ("prob. %", "freq. %") if monitor.binary == "positive" else ("conf. %", "right %")
    headings = ["period", "N", mean, truth, "gap", "evidence", "new file"]
    if not new:
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    return Table(headings, rows, title, left=(0, 6))


def _report(path: Path, state: "MonitorState", new: "list[NewPeriod]") -> dict[str, object]:
    """Return what `--json` prints."""
    monitor = state.monitor
    return {
        "schema": 1,
        "state": str(path),
        "settings": monitor.settings,
        "num_samples": monitor.num_samples,
        "num_periods": monitor.num_periods,
        "log_evidence": monitor.log_evidence,
        "p_value": monitor.p_value,
        "alarm": None if monitor.alarm is None else monitor.alarm.to_dict(),
        "verdict": monitor.verdict(state.class_names),
        "new": [{"file": added.name, **added.period.to_dict()} for added in new],
        "history": [period.to_dict() for period in monitor.history],
    }
