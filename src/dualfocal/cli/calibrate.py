"""`dualfocal calibrate`: fit a calibrator. `dualfocal apply`: calibrate predictions with it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dualfocal.cli import _options as options
from dualfocal.cli._common import (
    CALIBRATORS,
    MULTILABEL_CALIBRATORS,
    ON_FIT_DATA,
    check_output,
    consoles,
    errors_name,
    print_json,
    say,
    say_saved,
    show,
)
from dualfocal.cli._completion import names_of
from dualfocal.cli._evaluate.findings import say_confidence
from dualfocal.cli._evaluate.multilabel import apply_labels, load_labels, multilabel_method
from dualfocal.tables import Table


def calibrate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Held-out predictions with labels. {options.FILES}")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .npz file to write.")],
    method: Annotated[
        str,
        typer.Option(
            autocompletion=names_of(CALIBRATORS, "+"),
            help=f"{', '.join(CALIBRATORS)}; join names with + for a chain. "
            f"With `--task multilabel`: {', '.join(MULTILABEL_CALIBRATORS)}.",
        ),
    ] = "temperature",
    logits: options.Logits = None,
    probs: options.Probs = None,
    target: options.Target = None,
    split: options.Split = None,
    positive: options.Positive = None,
    class_names: options.ClassNames = None,
    percent: options.Percent = False,
    drop_missing: options.DropMissing = False,
    max_memory: options.MaxMemory = None,
    binary: options.BinaryOption = None,
    ignore_index: options.IgnoreIndex = -100,
    force: options.Force = False,
    as_json: options.AsJson = False,
    task: options.TaskOption = None,
) -> None:
    """Fit a calibrator on held-out predictions and save it for `dualfocal apply`.

    Use validation data, not the data that the model was trained on. `dualfocal evaluate FILE --calibrate all`
    recommends a method.

        dualfocal calibrate val.npz --method temperature --out cal.npz

        dualfocal calibrate run_folder --method vector --out cal.npz    (its validation split)

        dualfocal calibrate val.npz --task multilabel --method platt --out cal.npz    (a map per label)
    """
    from dualfocal.calibrators import (
        Calibrator,
        MultilabelCalibrator,
        TemperatureScaling,
        files,
        make_calibrator,
        make_multilabel_calibrator,
        save_calibrator,
    )

    printer, err = consoles(as_json)
    check_output(files.check_suffix(out), file)
    reading = options.reading_from(context)
    calibrator: Calibrator | MultilabelCalibrator
    if task is None:
        calibrator = make_calibrator(method, force=force)
        data = reading.load(file, run_split="val")
    else:
        calibrator = make_multilabel_calibrator(multilabel_method(method, options.given_names(context)))
        data = load_labels(file, reading)
    say(err, f"{file}: {data.taken}")
    with errors_name(file), err.status(f"fitting {method}"):
        if binary is not None:
            reading.samples(data)  # raises an error unless there are two classes
        calibrator.fit(data.values, data.target, input=data.input, ignore_index=ignore_index)
        report = calibrator.report
        assert report is not None
        if caution := report.caution():
            say(err, f"dualfocal: {caution}")
    calibrator.class_names = data.class_names
    save_calibrator(calibrator, out)
    about = {"schema": 1, **({} if task is None else {"task": task.value})}
    record: dict[str, Any] = {**about, "file": str(file), "method": method, "out": str(out), **report.to_dict()}
    if isinstance(calibrator, TemperatureScaling):
        record["temperature"] = float(calibrator.temperature)
        say(printer, f"T = {record['temperature']:.4f}", "bold")
    if as_json:
        print_json(record)
    say(printer, f"{report}\nSaved: {out}")
    say(printer, f"Next: dualfocal apply {shlex.quote(str(out))} TEST_FILE --out calibrated.npz", "dim")


def apply(
    context: typer.Context,
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="File written by `dualfocal calibrate`.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"Predictions, with or without labels. {options.FILES}")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: .npz, .safetensors, .csv or .parquet.")],
    logits: options.Logits = None,
    probs: options.Probs = None,
    target: options.Target = None,
    split: options.Split = None,
    positive: options.Positive = None,
    class_names: options.ClassNames = None,
    percent: options.Percent = False,
    drop_missing: options.DropMissing = False,
    max_memory: options.MaxMemory = None,
    binary: options.BinaryOption = None,
    ignore_index: options.IgnoreIndex = -100,
    as_json: options.AsJson = False,
) -> None:
    """Calibrate predictions with a saved calibrator. Logits stay logits, probabilities stay probabilities.

    The new file has the calibrated values (at least float32) in the same order and the labels, if there are any. From
    table to table, all other columns are copied unchanged. With labels, the scores before and after are printed, and
    what the calibrator did to NLL and ECE. Labels that cannot be read are left out, unless `--target` names them.

        dualfocal apply cal.npz test.npz --out calibrated.npz
    """
    from dualfocal.calibrators import MultilabelCalibrator, apply_calibrator, load_calibrator
    from dualfocal.predictions import rewrite_predictions
    from dualfocal.predictions.alignment import class_order, reorder_classes, restore_classes
    from dualfocal.predictions.saving import check_suffix

    printer, err = consoles(as_json)
    check_output(out, file, calibrator)
    check_suffix(out)
    fitted = load_calibrator(calibrator)
    reading = options.reading_from(context)
    if isinstance(fitted, MultilabelCalibrator):
        apply_labels(fitted, calibrator, file, out, reading, as_json=as_json)
        return
    data = reading.load(file, labels=False)
    num_classes = data.values.shape[1] if data.values.ndim > 1 else 2
    if fitted.report is not None and fitted.report.num_classes != num_classes:
        raise ValueError(f"{calibrator} was fitted for {fitted.report.num_classes} classes, {file} has {num_classes}")
    with errors_name(file):
        order = class_order(data.class_names, fitted.class_names)
    aligned = data if order is None else reorder_classes(data, order)
    say(err, f"{file}: {aligned.taken}")
    with errors_name(file), err.status("calibrating"):
        applied = apply_calibrator(
            fitted,
            aligned.values,
            aligned.labels,
            input=data.input,
            ignore_index=ignore_index,
            binary=binary,
            require_labels=target is not None,
        )
    if applied.on_fit_data:
        say(err, ON_FIT_DATA)
    if applied.unusable_labels:
        say(err, f"{file}: labels are ignored: {applied.unusable_labels}")
    written = replace(data, labels=None if applied.target is None else data.labels)
    values = applied.values if order is None else restore_classes(applied.values, order)
    rewrite_predictions(out, written, values, max_memory=max_memory)
    if as_json:
        files = {"calibrator": str(calibrator), "file": str(file), "out": str(out)}
        print_json({"schema": 1, **files, **applied.to_dict()})
    if applied.scores:
        before, after = (score.table().rows for score in applied.scores.values())
        rows = [[*first, second[1]] for first, second in zip(before, after, strict=True)]
        show(printer, Table(["", *applied.scores], rows, str(file)))
        say_confidence(printer, applied.scores["before"], data.names_of_classes)
        say(printer, applied.verdict(), "bold")
    say(printer, f"{applied.argmax_changed:,} of {applied.num_samples:,} predicted classes changed.")
    say_saved(printer, out, data)
