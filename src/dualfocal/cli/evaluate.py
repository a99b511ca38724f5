"""`dualfocal evaluate` and `dualfocal compare`: predictions on disk in, a table and a verdict out."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from rich.text import Text
from torch import Tensor

from dualfocal import metrics
from dualfocal.metrics import Evaluation
from dualfocal.predictions import Predictions, load_predictions


class Binary(StrEnum):
    """Which confidence a two-class problem is about."""

    top_label = "top_label"
    positive = "positive"


class Convention(StrEnum):
    """Whose definition to follow."""

    published = "published"
    torchmetrics = "torchmetrics"


Logits = Annotated[str | None, typer.Option(metavar="NAME", help="Array, column or column prefix that holds logits.")]
Probs = Annotated[str | None, typer.Option(metavar="NAME", help="The same for probabilities.")]
Target = Annotated[str | None, typer.Option(metavar="NAME", help="Array or column of labels.")]
Split = Annotated[str | None, typer.Option(metavar="NAME", help="Of a file with `val_logits`, `test_logits`: which.")]
NumBins = Annotated[int, typer.Option(min=1, help="Number of bins of each calibration error.")]
IgnoreIndex = Annotated[int, typer.Option(help="Leave out samples with this label.")]
BinaryOption = Annotated[
    Binary | None,
    typer.Option(help="Two classes: confidence of the predicted class, or of class 1. Needed for one score a sample."),
]
Level = Annotated[float, typer.Option(min=0.5, max=0.999, help="Nominal coverage of intervals.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the draws behind floors, p-values and intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (fractions, not percent) and nothing else.")]

MOST_GROUPS = 1000
FLOOR = "floor: what a perfectly calibrated model with these confidences scores by chance"
FILES = "Files: .npz, .safetensors, .csv, .parquet, or a run folder. "


def evaluate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help=f"{FILES}Each is evaluated on its own.")],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    merge: Annotated[bool, typer.Option("--merge", help="The files are parts of one set of predictions.")] = False,
    group_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Also evaluate each group of samples, worst first.")
    ] = None,
    binary: BinaryOption = None,
    num_bins: NumBins = 15,
    ignore_index: IgnoreIndex = -100,
    convention: Annotated[
        Convention | None, typer.Option(help="Follow the paper's code, or torchmetrics, where that differs.")
    ] = None,
    inference: Annotated[
        bool, typer.Option(help="Say what the numbers can bear: floors, test, interval, smallest detectable error.")
    ] = True,
    level: Level = 0.9,
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a reliability diagram: .png, .pdf or .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this model calibrated? Every metric, what a perfectly calibrated model would score, and a verdict.

    Logits or probabilities and labels are found by usual names (`logits`, `probs`, `target`, `label`, ...; in tables
    `logit_0`, `logit_1`, ...), never by looking at the values; where names are unclear, say them.

        dualfocal evaluate predictions.npz --plot reliability.png

        dualfocal evaluate predictions.csv --probs score --target outcome --group-by hospital
    """
    out, err = _consoles(as_json)
    with _bad_input_ends():
        if group_by is not None and not inference:
            raise ValueError("--group-by needs inference, to tell groups from noise")
        _check_plot(plot)
        if len(set(files)) < len(files):
            raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
        loaded = {
            str(path): load_predictions(path, logits=logits, probs=probs, target=target, group=group_by, split=split)
            for path in files
        }
        if merge and len(loaded) > 1:
            loaded = {" + ".join(loaded): _merged(loaded)}

    def run(values: Tensor, labels: Tensor, input: str, draws: int = 1000) -> Evaluation:
        return metrics.evaluate(
            values,
            labels,
            input=input,
            num_bins=num_bins,
            ignore_index=ignore_index,
            binary=None if binary is None else binary.value,
            convention=None if convention is None else convention.value,
            inference=inference,
            level=level,
            draws=draws,
            seed=seed,
        )

    records, results = [], {}
    for name, data in loaded.items():
        err.print(f"{name}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
        with _bad_input_ends(name):
            results[name] = result = run(data.values, data.target, data.input)
            groups = {} if group_by is None else _by_group(data, ignore_index, run, err)
        records.append({"file": name, "taken": data.taken, **result.to_dict()})
        if inference:
            records[-1]["verdict"] = result.verdict()
        if groups:
            records[-1]["groups"] = [
                {"group": group, "p_adjusted": p, **found.to_dict()} for group, (found, p) in groups.items()
            ]
        _print_evaluation(out, name, result)
        if groups:
            _print_groups(out, group_by or "", groups)
    if len(results) > 1:
        _print_summary(out, results)
    if as_json:
        print(json.dumps({"schema": 1, "files": records}, indent=2, allow_nan=False))
    if plot is not None:
        from dualfocal.report.plots import reliability_figure

        with _bad_input_ends():
            reliability_figure(dict(zip(_short(list(results)), results.values(), strict=True))).savefig(plot, dpi=150)
        err.print(f"Reliability diagram: {plot}", markup=False, highlight=False, soft_wrap=True)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=f"One model's predictions. {FILES}")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other's, for the same samples in the same order.")],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    binary: BinaryOption = None,
    num_bins: NumBins = 15,
    ignore_index: IgnoreIndex = -100,
    level: Level = 0.9,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Which of two models is better, on the same samples? Paired differences, B - A, with intervals and a verdict.

    Both files must hold the same labels. Names are found as by `dualfocal evaluate`, in each file.

        dualfocal compare cross_entropy.npz dual_focal.npz
    """
    out, err = _consoles(as_json)
    with _bad_input_ends():
        first, second = (
            load_predictions(path, logits=logits, probs=probs, target=target, split=split) for path in (a, b)
        )
        _check_same_labels(first, second)
    two_classes = None if binary is None else binary.value
    for name, data in ((a, first), (b, second)):
        err.print(f"{name}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
        with _bad_input_ends(str(name)):  # so that the message says which file
            metrics.error_rate(
                data.values, data.target, input=data.input, ignore_index=ignore_index, binary=two_classes
            )
    with _bad_input_ends(), Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("resampling", total=1.0)
        result = metrics.compare(
            first.values,
            second.values,
            first.target,
            input=(first.input, second.input),
            binary=two_classes,
            num_bins=num_bins,
            ignore_index=ignore_index,
            level=level,
            seed=seed,
            progress=lambda share: progress.update(bar, completed=share),
        )
    if as_json:
        record = {"a": str(a), "b": str(b), **result.to_dict(), "verdict": result.verdict()}
        print(json.dumps(record, indent=2, allow_nan=False))
        return
    headings, rows = result.table()
    _print_table(out, f"A = {a}, B = {b}, {result.a.num_samples:,} samples", headings, rows)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)


def _consoles(as_json: bool) -> tuple[Console, Console]:
    """For results, silent if they go out as JSON; and for remarks."""
    return Console(quiet=as_json, emoji=False), Console(stderr=True, emoji=False)


@contextmanager
def _bad_input_ends(name: str | None = None) -> Iterator[None]:
    """What is wrong with the input becomes one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, IndexError, OSError) as error:
        text = " ".join(str(error).split())
        typer.echo(f"dualfocal: {f'{name}: ' if name else ''}{text}", err=True)
        raise typer.Exit(2) from error


def _check_plot(plot: Path | None) -> None:
    if plot is None:
        return
    if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot must end in .png, .pdf or .svg, got {str(plot)!r}")
    if plot.is_dir():
        raise ValueError(f"--plot: {str(plot)!r} is a folder")
    if not plot.parent.is_dir():
        raise ValueError(f"--plot: there is no folder {str(plot.parent)!r}")


def _short(names: list[str]) -> list[str]:
    """Names without their folders, where that leaves them different."""
    short = [" + ".join(Path(part).name for part in name.split(" + ")) for name in names]
    return short if len(set(short)) == len(names) else names


def _merged(parts: dict[str, Predictions]) -> Predictions:
    (first_name, first), *others = parts.items()
    for name, part in others:
        if part.input != first.input or part.values.shape[1:] != first.values.shape[1:]:
            raise ValueError(f"--merge: {first_name} has {first.taken}, but {name} has {part.taken}")
        if part.class_names != first.class_names:
            raise ValueError(f"--merge: the classes of {name} are not those of {first_name}, in the same order")
    every = list(parts.values())
    return Predictions(
        values=torch.cat([part.values for part in every]),
        input=first.input,
        target=torch.cat([part.target for part in every]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in every]),
        class_names=first.class_names,
        taken=f"{len(parts)} files; of the first, {first.taken}",
    )


def _check_same_labels(a: Predictions, b: Predictions) -> None:
    if a.class_names and b.class_names and a.class_names != b.class_names:
        raise ValueError("both files must have the same classes in the same order")
    if a.target.shape != b.target.shape:
        shapes = f"{tuple(a.target.shape)} and {tuple(b.target.shape)}"
        raise ValueError(f"both files must hold the same labels, got shapes {shapes}")
    differ = (a.target != b.target).reshape(-1).nonzero()[:, 0]
    if len(differ):
        i = int(differ[0])
        labels = f"{int(a.target.reshape(-1)[i])} and {int(b.target.reshape(-1)[i])}"
        raise ValueError(f"both files must hold the same labels: {len(differ)} differ, the first at {i}: {labels}")


def _by_group(
    data: Predictions, ignore_index: int, run: Callable[..., Evaluation], err: Console
) -> dict[str, tuple[Evaluation, float]]:
    """Each group's evaluation and its p-value adjusted for their number (Holm), worst first.

    Worst is what is surely bad: by the lower end of the interval, then by how far the ECE exceeds its floor.
    """
    assert data.groups is not None
    names = np.unique(data.groups).tolist()
    if len(names) > MOST_GROUPS:
        raise ValueError(f"--group-by: at most {MOST_GROUPS} groups can be told apart, there are {len(names)}")
    # Adjusting multiplies p-values by up to the number of groups: they must be able to get small enough.
    draws = min(max(1000, 50 * len(names)), 20_000)
    found = {}
    for name in track(names, "groups", console=err, transient=True, disable=len(names) < 5 or not err.is_terminal):
        mask = torch.from_numpy(data.groups == name)
        values, target = data.values[mask], data.target[mask]
        if bool(target.ne(ignore_index).any()):
            found[str(name)] = run(values, target, data.input, draws)

    def badness(item: tuple[str, Evaluation]) -> tuple[float, float]:
        inference = item[1].inference
        assert inference is not None
        return inference.debiased_ece[0], item[1].ece - inference.floors["ece"].mean

    worst_first = sorted(found.items(), key=badness, reverse=True)
    adjusted = _holm([result.inference.p_value for _, result in worst_first if result.inference is not None])
    return {name: (result, p) for (name, result), p in zip(worst_first, adjusted, strict=True)}


def _holm(p_values: list[float]) -> list[float]:
    """Holm's adjustment: with it, any false alarm among all groups is as rare as one test's."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def _print_evaluation(out: Console, name: str, result: Evaluation) -> None:
    headings, rows = result.table()
    title = f"{name}: {result.num_samples:,} samples, {result.num_classes} classes, {result.num_bins} bins"
    _print_table(out, title, headings, rows)
    if result.inference is None:
        return
    out.print(FLOOR, style="dim", markup=False, highlight=False)
    for metric, (low, high) in result.inference.published.items():
        text = f"published pivotal bootstrap of {metric}: {100 * low:.2f} to {100 * high:.2f} %"
        out.print(text, markup=False, highlight=False)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)


def _print_groups(out: Console, column: str, groups: dict[str, tuple[Evaluation, float]]) -> None:
    rows, level = [], 0.9
    for name, (result, p) in groups.items():
        assert result.inference is not None
        level = result.inference.level
        low, high = (100 * end for end in result.inference.debiased_ece)
        percent = [f"{100 * result.error:.1f}", f"{100 * result.overconfidence:+.1f}", f"{100 * result.ece:.1f}"]
        floor = f"{100 * result.inference.floors['ece'].mean:.1f}"
        rows.append([name, f"{result.num_samples:,}", *percent, floor, f"{low:.1f} - {high:.1f}", f"{p:.3f}"])
    headings = [column, "N", "error", "conf - acc", "ECE", "floor", f"debiased, {100 * level:.4g} %", "adjusted p"]
    _print_table(out, f"by {column}, worst first; percent", headings, rows)
    found = sum(p <= 0.05 for _, p in groups.values())
    text = (
        f"{found} of {len(groups)} groups are miscalibrated at 5 %, p-values adjusted for {len(groups)} tests (Holm). "
        "Worst first by the lower end of the interval."
    )
    out.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _print_summary(out: Console, results: dict[str, Evaluation]) -> None:
    rows = []
    for name, r in results.items():
        floor = "" if r.inference is None else f"{100 * r.inference.floors['ece'].mean:.2f}"
        rows.append([name, f"{r.num_samples:,}", f"{100 * r.error:.2f}", f"{r.nll:.4f}", f"{100 * r.ece:.2f}", floor])
    _print_table(out, "all files", ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"], rows)


def _print_table(out: Console, title: str, headings: list[str], rows: list[list[str]]) -> None:
    out.print(Text(title, style="italic"))
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)
