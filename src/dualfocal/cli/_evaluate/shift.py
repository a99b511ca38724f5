"""`dualfocal evaluate TEST --shifted FILE...`: a model on a test set and on shifted sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import consoles, errors_name, print_json, progress_bar, say, show
from dualfocal.cli._evaluate.findings import FLOOR
from dualfocal.cli._evaluate.request import Request
from dualfocal.cli._evaluate.streamed import open_stream

if TYPE_CHECKING:
    from dualfocal.calibrators import ShiftCalibration
    from dualfocal.metrics import ShiftEvaluation
    from dualfocal.predictions import Predictions, Reading

SEPARATELY = "evaluate each file without --shifted"
ALL_CLASSES = "give files with the probabilities of all classes, which the entropy needs"
REMEDIES = {  # of options that do not apply
    "--sql": "export the rows to files",
    "--merge": "merge the files first",
    "--group-by": SEPARATELY,
    "--group-quantiles": SEPARATELY,
    "--weight": SEPARATELY,
    "--repeats": "leave it out: the cross-validation is not repeated",
    "--convention": SEPARATELY,
    "--plot-style": SEPARATELY,
    "--fail-over": SEPARATELY,
    "--prediction": ALL_CLASSES,
    "--confidence": ALL_CLASSES,
    "--no-inference": "leave it out: the intervals need it",
}


def evaluate_shifted(request: Request, shifted: Sequence[str]) -> None:
    """Evaluate the test set and the shifted sets, and print, draw and compare before and after calibration.

    Args:
        request: the files are the test set and further shifted sets, because a shell expands
            ``--shifted noise-*.npz`` to several words.
        shifted: prediction files, folders of them, or patterns.
    """
    from dualfocal.metrics.shift.scores import AUROC_MEANINGS

    request.refuse("--shifted", REMEDIES)
    files, reading = request.files, request.reading
    if len(request.methods) > 1:
        raise ValueError(
            f"--calibrate takes one method with --shifted, got {', '.join(request.methods)}: choose it first, with "
            "--calibrate all and without --shifted"
        )
    if not files:
        raise ValueError("--shifted needs the test set: dualfocal evaluate TEST --shifted FILE")
    out, err = consoles(request.as_json)
    test = Path(files[0])
    paths = _shifted_paths(test, [*shifted, *files[1:]])
    data = _load(err, test, reading, labels=True)
    sets = {name: _load_shifted(err, path, reading, data.class_names) for name, path in paths.items()}
    result, calibration = _evaluate(err, test, data, sets, request)
    show(out, result.table(), f"test: {test}; ")
    say(out, AUROC_MEANINGS, "dim", wrap=True)
    say(out, FLOOR, "dim", wrap=True)
    say(out, result.verdict(), "bold")
    if calibration is not None:
        show(out, calibration.table())
        say(out, calibration.caveat(), "dim", wrap=True)
        say(out, calibration.verdict(), "bold")
    if request.as_json:
        shifted_files = [{"file": str(path), "taken": sets[name].taken, "name": name} for name, path in paths.items()]
        content = {"file": str(test), "files": shifted_files, **result.to_dict(), "verdict": result.verdict()}
        print_json(content | ({} if calibration is None else {"calibration": calibration.to_dict()}))
    if request.plot is not None:
        from dualfocal.plots import save, shift_figure

        drawn = result if calibration is None else {"uncalibrated": result, calibration.method: calibration.after}
        save(shift_figure(drawn), request.plot, dpi=150)
        say(err, f"Figure: {request.plot}")


def _evaluate(
    err: Console, test: Path, data: "Predictions", sets: "Mapping[str, Predictions]", request: Request
) -> "tuple[ShiftEvaluation, ShiftCalibration | None]":
    """Evaluate the test set and the shifted sets; with a method, before and after calibration."""
    from dualfocal.calibrators import calibrate_shift
    from dualfocal.metrics import evaluate_shift

    reading = request.reading
    with errors_name("test"):
        test_set = reading.samples(data)
    shifted_sets = {}
    for name, part in sets.items():
        with errors_name(name):
            shifted_sets[name] = reading.samples(part)
    with progress_bar(err, "evaluating") as progress:
        if not request.methods:
            return evaluate_shift(test_set, shifted_sets, progress=progress, **reading.scoring), None
        validation, remark = reading.validation(test, test_set)
        if remark:
            say(err, f"{test}: {remark}")
        [(name, calibrator)] = request.methods.items()
        calibration = calibrate_shift(
            test_set,
            shifted_sets,
            calibrator,
            validation=validation,
            folds=request.folds,
            progress=progress,
            **reading.scoring,
        )
    return calibration.before, replace(calibration, method=name)


def _shifted_paths(test: Path, places: Sequence[str]) -> dict[str, Path]:
    """Return the files of the shifted sets by their names."""
    from dualfocal.metrics.shift.evaluation import TEST
    from dualfocal.predictions import is_run_folder
    from dualfocal.predictions.listing import list_folder, list_prediction_files, short_names

    paths: list[Path] = []
    for place in places:
        for path in list_prediction_files(place):
            files = list_folder(path) if path.is_dir() and not is_run_folder(path) else [path]
            # A folder or a pattern may also hold the test set.
            paths += [file for file in files if str(file) == place or not _is_same(file, test)]
    for path in paths:
        if paths.count(path) > 1:
            raise ValueError(f"--shifted: {path} is given more than once")
        if _is_same(path, test):
            raise ValueError(f"--shifted: {path} is also the test set; give other files")
    if not paths:
        raise ValueError(f"--shifted: {', '.join(places)} names no file besides the test set {test}")
    return dict(zip(short_names(paths, TEST), paths, strict=True))


def _is_same(path: Path, other: Path) -> bool:
    return path == other or (path.exists() and other.exists() and path.samefile(other))


def _load_shifted(err: Console, path: Path, reading: "Reading", classes: tuple[str, ...] | None) -> "Predictions":
    """Load a shifted set, with its classes in the order of the test set."""
    from dualfocal.predictions.alignment import class_order, reorder_classes

    data = _load(err, path, reading, labels=reading.target is not None)
    with errors_name(path):
        order = class_order(data.class_names, classes)
    return data if order is None else reorder_classes(data, order)


def _load(err: Console, path: Path, reading: "Reading", *, labels: bool) -> "Predictions":
    from dualfocal.predictions import TooLargeError

    try:
        data = reading.load(path, labels=labels)
    except TooLargeError as error:
        open_stream(err, path, reading, error, {"--shifted": True})
        raise
    if reading.cluster is not None and reading.cluster == data.label_name:
        raise ValueError(f"--cluster: {reading.cluster!r} of {path} holds the labels; name an image, a patient, ...")
    say(err, f"{path}: {data.taken}")
    return data
