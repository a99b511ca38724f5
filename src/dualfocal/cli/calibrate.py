"""`dualfocal calibrate` fits a calibrator to predictions; `dualfocal apply` puts others through it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from dualfocal import metrics
from dualfocal.calibrators import (
    CALIBRATORS,
    Calibrator,
    TemperatureScaling,
    files,
    load_calibrator,
    log_probs,
    make_calibrator,
    save_calibrator,
)
from dualfocal.calibrators._inputs import digest, kind_of
from dualfocal.calibrators.cross_fitting import LEAST
from dualfocal.calibrators.temperature import ALL_RIGHT, NO_HELP
from dualfocal.cli._common import (
    FILES,
    AsJson,
    Force,
    IgnoreIndex,
    Logits,
    Positive,
    Probs,
    Split,
    Target,
    bad_input_ends,
    check_output,
    consoles,
    print_table,
)
from dualfocal.metrics.rows import as_rows
from dualfocal.predictions import Predictions, rewrite_predictions
from dualfocal.predictions.saving import check_suffix
from dualfocal.runs.source import load_file_or_run


def calibrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Held-out predictions with labels. {FILES}")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the calibrator goes: .safetensors.")],
    method: Annotated[
        str, typer.Option(help=f"{', '.join(CALIBRATORS)}; several joined by + make a chain.")
    ] = "temperature",
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fit a calibrator to held-out predictions and save it; `dualfocal apply` uses it.

    Fit on validation data, not on what the model was trained on. Which method to take,
    `dualfocal evaluate FILE --calibrate all` tells.

        dualfocal calibrate val.npz --method temperature --out cal.safetensors

        dualfocal calibrate run_folder --method vector --out cal.safetensors    (its validation part)
    """
    printer, err = consoles(as_json)
    with bad_input_ends():
        check_output(files.check_suffix(out), file)
        calibrator = make_calibrator(method, force=force)
        data = load_file_or_run(
            file, logits=logits, probs=probs, target=target, split=split, run_split="val", positive=positive
        )
    err.print(f"{file}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
    with bad_input_ends(str(file)), err.status(f"fitting {method}"):
        _checked_logits(data, ignore_index)
        calibrator.fit(data.values, data.target, input=data.input, ignore_index=ignore_index)
        caution = _few_samples(calibrator)
    if caution:
        err.print(f"dualfocal: {caution}", markup=False, highlight=False, soft_wrap=True)
    with bad_input_ends():
        calibrator.class_names = data.class_names
        save_calibrator(calibrator, out)
    report = calibrator.report
    assert report is not None
    if as_json:
        record: dict[str, object] = {"schema": 1, "file": str(file), "method": method, "out": str(out)}
        record |= files.plain_report(report)
        if isinstance(calibrator, TemperatureScaling):
            record["temperature"] = float(calibrator.temperature)
        print(json.dumps(record, indent=2, allow_nan=False))
        return
    if isinstance(calibrator, TemperatureScaling):
        printer.print(f"T = {float(calibrator.temperature):.4f}", style="bold", highlight=False)
    printer.print(str(report), markup=False, highlight=False, soft_wrap=True)
    printer.print(f"Saved: {out}", markup=False, highlight=False, soft_wrap=True)
    text = f"Next: dualfocal apply {shlex.quote(str(out))} TEST_FILE --out calibrated.npz"
    printer.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def apply(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="What `dualfocal calibrate` saved.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Predictions, with labels or without. {FILES}")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where they go: .npz, .safetensors, .csv or .parquet.")],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    positive: Positive = None,
    ignore_index: IgnoreIndex = -100,
    as_json: AsJson = False,
) -> None:
    """Put predictions through a calibrator. Logits stay logits, probabilities probabilities, rows stay in order.

    The new file holds the calibrated values, at least float32, and the labels if there are any; a table made from a
    table holds every other column too, as it was. With labels, scores before and after are shown; labels that cannot be
    used are none, unless `--target` names them.

        dualfocal apply cal.safetensors test.npz --out calibrated.npz
    """
    printer, err = consoles(as_json)
    with bad_input_ends():
        check_output(out, file, calibrator)
        check_suffix(out)
        fitted = load_calibrator(calibrator)
        data = load_file_or_run(
            file,
            logits=logits,
            probs=probs,
            target=target,
            split=split,
            run_split="test",
            positive=positive,
            labels=False,
        )
        _check_classes(calibrator, fitted, file, data)
    err.print(f"{file}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
    with bad_input_ends(str(file)), err.status("calibrating"):
        before = _checked_logits(data, ignore_index)
        if _are_those_of_the_fit(fitted, data, ignore_index):
            text = "dualfocal: these are the data of the fit: scores on them flatter the calibrator"
            err.print(text, markup=False, highlight=False, soft_wrap=True)
        if target is None and (why := _labels_that_do_not_fit(data, ignore_index)):
            err.print(f"{file}: labels are left out: {why}", markup=False, highlight=False, soft_wrap=True)
            data = replace(data, labels=None)
        after = fitted(data.values, input=data.input)
        _check_result(before, after)
        changed = int((_predicted(after) != _predicted(before)).sum())
        values = after if data.input == "logits" else _probabilities(after)
        scores = {}
        if data.labels is not None and bool((data.labels != ignore_index).any()):
            scores = {
                name: metrics.evaluate(
                    of,
                    data.labels,
                    input=data.input,
                    ignore_index=ignore_index,
                    binary="top_label" if of.ndim == 1 else None,
                )
                for name, of in (("before", data.values), ("after", values))
            }
    with bad_input_ends():
        rewrite_predictions(out, data, values)
    total = _predicted(before).numel()
    if as_json:
        record = {"schema": 1, "calibrator": str(calibrator), "file": str(file), "out": str(out)}
        record |= {"num_samples": total, "argmax_changed": changed}
        record |= {name: of.to_dict() for name, of in scores.items()}
        print(json.dumps(record, indent=2, allow_nan=False))
        return
    if scores:
        first, second = (score.table().rows for score in scores.values())
        print_table(printer, str(file), ["", *scores], [[*a, b[1]] for a, b in zip(first, second, strict=True)])
    printer.print(f"{changed:,} of {total:,} predicted classes changed.", highlight=False)
    printer.print(f"Saved: {out}", markup=False, highlight=False, soft_wrap=True)


def _few_samples(calibrator: Calibrator) -> str:
    """A caution, where what was learned is mostly chance; an error, where it is not even in the data."""
    report = calibrator.report
    assert report is not None
    if report.num_samples >= LEAST:
        return ""
    few = f"{report.num_samples} sample{'s' if report.num_samples > 1 else ''}"
    missing = [note for note in (ALL_RIGHT, NO_HELP) if note in report.notes]
    if missing:
        raise ValueError(f"{few} cannot be fitted to: {missing[0].split(':')[0]}; give at least {LEAST}")
    return f"{few}: what is fitted to fewer than {LEAST} is mostly chance"


def _are_those_of_the_fit(fitted: Calibrator, data: Predictions, ignore_index: int) -> bool:
    if fitted.fitted_on is None or fitted.fitted_on.kind != kind_of(data.values, data.input):
        return False
    values = data.values.movedim(1, -1).flatten(0, -2) if data.values.ndim > 1 else data.values
    labels = torch.zeros(len(values), dtype=torch.int64) if data.labels is None else data.labels.reshape(-1)
    if len(labels) != len(values) or bool((labels == ignore_index).all()):
        return False
    rows = as_rows(
        values,
        torch.where(labels == ignore_index, -100, 0),
        input=data.input,
        binary="top_label" if values.ndim == 1 else None,
    )
    return digest(rows.values) == fitted.fitted_on.digest


def _checked_logits(data: Predictions, ignore_index: int) -> Tensor:
    """The values as logits, once it is clear that they are logits or probabilities where samples are not ignored."""
    labels = torch.zeros(data.values.shape[:1] + data.values.shape[2:], dtype=torch.int64)
    if data.labels is not None and data.labels.shape == labels.shape and bool((data.labels != ignore_index).any()):
        labels = torch.where(data.labels == ignore_index, -100, labels)
    binary = "top_label" if data.values.ndim == 1 else None
    metrics.error_rate(data.values, labels, input=data.input, binary=binary)
    return data.values if data.input == "logits" else log_probs(data.values)


def _labels_that_do_not_fit(data: Predictions, ignore_index: int) -> str:
    """Why labels cannot be scored, if so; the values have been checked."""
    if data.labels is None or bool((data.labels == ignore_index).all()):
        return ""
    binary = "top_label" if data.values.ndim == 1 else None
    try:
        as_rows(data.values, data.labels, input=data.input, ignore_index=ignore_index, binary=binary)
    except (ValueError, IndexError) as error:
        return str(error)
    return ""


def _check_result(before: Tensor, after: Tensor) -> None:
    ignored = before.isnan() if before.ndim == 1 else before.isnan().any(1, keepdim=True)  # what is not may not be NaN
    lost = (after.isnan() | (after == torch.inf)) & ~ignored
    if bool(lost.any()):
        row = int(lost.nonzero()[0, 0])
        raise ValueError(f"row {row} has no finite answer: this calibrator needs finite logits, it must hold -inf")


def _check_classes(path: Path, fitted: Calibrator, file: Path, data: Predictions) -> None:
    there = data.values.shape[1] if data.values.ndim > 1 else 2
    if fitted.report is not None and fitted.report.num_classes != there:
        raise ValueError(f"{path} was fitted for {fitted.report.num_classes} classes, {file} has {there}")
    if fitted.class_names and data.class_names and fitted.class_names != data.class_names:
        raise ValueError(f"the classes of {file} are not those of {path}, in the same order")


def _predicted(logits: Tensor) -> Tensor:
    return logits > 0 if logits.ndim == 1 else logits.argmax(1)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.sigmoid() if logits.ndim == 1 else logits.softmax(1)
