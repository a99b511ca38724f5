"""`dualfocal evaluate`: predictions on disk in, a table and a verdict out."""

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import Progress, track
from torch import Tensor

from dualfocal import metrics
from dualfocal.calibrators import CALIBRATORS, Calibrator, CrossFit, cross_fit, make_calibrator
from dualfocal.cli._common import (
    FILES,
    AsJson,
    BinaryOption,
    Force,
    IgnoreIndex,
    Level,
    Logits,
    NumBins,
    Probs,
    Seed,
    Split,
    Target,
    bad_input_ends,
    check_plot,
    consoles,
    print_table,
)
from dualfocal.metrics import Evaluation
from dualfocal.predictions import Predictions, load_predictions

MOST_GROUPS = 1000
FLOOR = "floor: what a perfectly calibrated model with these confidences scores by chance"


class Convention(StrEnum):
    """Whose definition to follow."""

    published = "published"
    torchmetrics = "torchmetrics"


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
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="METHODS",
            help="Which calibrator would help? Cross-fit these, separated by commas, or `all`: "
            f"{', '.join(CALIBRATORS)}; joined by + for a chain.",
        ),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-fit.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often the cross-fit deals samples into folds anew.")] = 2,
    force: Force = False,
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

        dualfocal evaluate predictions.npz --calibrate temperature,vector,isotonic
    """
    out, err = consoles(as_json)
    with bad_input_ends():
        if group_by is not None and not inference:
            raise ValueError("--group-by needs inference, to tell groups from noise")
        check_plot(plot)
        methods = {} if calibrate is None else _methods(calibrate, force)
        if len(set(files)) < len(files):
            raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
        loaded = {
            str(path): load_predictions(
                path, logits=logits, probs=probs, target=target, group=group_by, split=split, run_split="test"
            )
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

    def try_calibrators(data: Predictions) -> CrossFit:
        with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
            bar = progress.add_task("cross-fitting", total=1.0)
            return cross_fit(
                data.values,
                data.target,
                methods,
                input=data.input,
                folds=folds,
                repeats=repeats,
                num_bins=num_bins,
                ignore_index=ignore_index,
                binary=None if binary is None else binary.value,
                level=level,
                seed=seed,
                progress=lambda share: progress.update(bar, completed=share),
            )

    records, results, panels = [], {}, dict[str, Evaluation]()
    for name, data in loaded.items():
        err.print(f"{name}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
        with bad_input_ends(name):
            results[name] = result = run(data.values, data.target, data.input)
            groups = {} if group_by is None else _by_group(data, ignore_index, run, err)
            crossed = try_calibrators(data) if methods else None
        records.append({"file": name, "taken": data.taken, **result.to_dict()})
        if inference:
            records[-1]["verdict"] = result.verdict()
        if groups:
            records[-1]["groups"] = [
                {"group": group, "p_adjusted": p, **found.to_dict()} for group, (found, p) in groups.items()
            ]
        if crossed is not None:
            records[-1]["calibration"] = {**crossed.to_dict(), "verdict": crossed.verdict()}
        _print_evaluation(out, name, result)
        if groups:
            _print_groups(out, group_by or "", groups)
        if crossed is not None:
            _print_cross_fit(out, crossed)
            panels |= {f"{name}, {of.name}": of.evaluation for of in crossed.methods if of.name in methods}
    if len(results) > 1:
        _print_summary(out, results)
    if as_json:
        print(json.dumps({"schema": 1, "files": records}, indent=2, allow_nan=False))
    if plot is not None:
        from dualfocal.report.plots import reliability_figure, save

        with bad_input_ends():
            panels = results | panels
            save(reliability_figure(dict(zip(_short(list(panels)), panels.values(), strict=True))), plot, dpi=150)
        err.print(f"Reliability diagram: {plot}", markup=False, highlight=False, soft_wrap=True)


def _methods(text: str, force: bool) -> dict[str, Calibrator]:
    names = list(CALIBRATORS) if text == "all" else [name.strip() for name in text.split(",")]
    if len(set(names)) < len(names):
        raise ValueError(
            f"--calibrate: {next(name for name in names if names.count(name) > 1)} is given more than once"
        )
    return {name: make_calibrator(name, force=force) for name in names}


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
    print_table(out, title, headings, rows)
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
    print_table(out, f"by {column}, worst first; percent", headings, rows)
    found = sum(p <= 0.05 for _, p in groups.values())
    text = (
        f"{found} of {len(groups)} groups are miscalibrated at 5 %, p-values adjusted for {len(groups)} tests (Holm). "
        "Worst first by the lower end of the interval."
    )
    out.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)


def _print_cross_fit(out: Console, result: CrossFit) -> None:
    headings, rows = result.table()
    title = "calibrators, cross-fitted, lowest NLL first; percent: ECE, its floor, error, predicted classes that moved"
    print_table(out, title, headings, rows)
    for name, reason in result.refused.items():
        out.print(f"{name} refused: {reason}", markup=False, highlight=False, soft_wrap=True)
    for note, names in result.notes().items():
        out.print(f"{', '.join(names)}: {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    out.print(result.caveat(), style="dim", markup=False, highlight=False, soft_wrap=True)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)


def _print_summary(out: Console, results: dict[str, Evaluation]) -> None:
    rows = []
    for name, r in results.items():
        floor = "" if r.inference is None else f"{100 * r.inference.floors['ece'].mean:.2f}"
        rows.append([name, f"{r.num_samples:,}", f"{100 * r.error:.2f}", f"{r.nll:.4f}", f"{100 * r.ece:.2f}", floor])
    print_table(out, "all files", ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"], rows)
