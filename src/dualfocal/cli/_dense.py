"""`dualfocal evaluate FOLDER`: dense predictions in files, read image by image."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dualfocal.cli._common import check_plot, consoles, errors_name, print_json, progress_bar, say, show
from dualfocal.cli._findings import FLOOR, gate

if TYPE_CHECKING:
    from dualfocal.metrics import Evaluation
    from dualfocal.metrics.dense import DenseEvaluation
    from dualfocal.predictions import DenseFolder
    from dualfocal.runs.source import Reading

NUM_MAPS = 4  # images in the picture of maps
MOST_WIDTH = 1000  # of --boundary
ONE_IMAGE = (
    "Only one image has labels: its pixels are treated as independent, which they are not. Noise floors and p-values "
    "are too small, and intervals too short."
)

Boundary = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_WIDTH,
        metavar="PIXELS",
        help="Folders of dense predictions: also evaluate the pixels this close to another predicted class, and the "
        "others.",
    ),
]
Maps = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=check_plot,
        help="Folders of dense predictions: draw where the worst images are over-confident: .png, .pdf or .svg.",
    ),
]


def is_dense(path: Path, reading: "Reading") -> bool:
    """Whether a path is a folder of dense predictions, and not a run folder."""
    from dualfocal.predictions import is_dense_folder
    from dualfocal.runs.layout import PREDICTIONS, RECIPE

    is_run = (path / PREDICTIONS).exists() or (path / RECIPE).exists()
    return not is_run and is_dense_folder(path, reading.logits, reading.probs)


def refuse_dense_options(boundary: int | None, maps: Path | None) -> None:
    """Raise a ValueError if options for folders of dense predictions are given for something else."""
    for option, value in (("--boundary", boundary), ("--maps", maps)):
        if value is not None:
            raise ValueError(
                f"{option} is for folders of dense predictions, such as logits/NAME.npy and masks/NAME.png"
            )


def evaluate_folder(
    files: list[str],
    reading: "Reading",
    *,
    inference: bool,
    boundary: int | None,
    maps: Path | None,
    plot: Path | None,
    fail_over: float | None,
    as_json: bool,
    refused: Mapping[str, object],
) -> None:
    """Evaluate a folder of dense predictions: print tables and verdict, draw pictures, check the limit.

    Args:
        files: the paths that the command was given: one folder.
        reading: how to read and score it.
        inference: whether to compute noise floors, tests and interval.
        boundary: width of the boundary, in pixels.
        maps: where to draw the maps of over-confidence.
        plot: where to draw the reliability diagram.
        fail_over: limit of the calibration error.
        as_json: whether to print only JSON.
        refused: options that do not apply, and whether they are given.
    """
    from dualfocal.metrics.dense import evaluate_images
    from dualfocal.predictions import open_dense_folder

    path = _only_folder(files, reading, refused)
    out, err = consoles(as_json)
    folder = open_dense_folder(
        path, logits=reading.logits, probs=reading.probs, target=reading.target, max_memory=reading.max_memory
    )
    with errors_name(path), progress_bar(err, "images", total=len(folder)) as progress:
        dense = evaluate_images(
            _images(folder),
            input=folder.input,
            num_bins=reading.num_bins,
            ignore_index=reading.ignore_index,
            boundary=boundary,
            progress=progress,
        )
        total = _evaluate(dense.total, reading, inference)
        parts = (
            {}
            if boundary is None
            else {
                name: _evaluate(state, reading, inference) for name, state in dense.parts.items() if state.num_samples
            }
        )
    say(err, f"{path}: {folder.taken}")
    _print(out, str(path), dense, total, parts)
    if len(dense.images) < 2 and inference:
        say(err, f"dualfocal: {ONE_IMAGE}")
    if as_json:
        print_json({"schema": 1, "files": [_content(str(path), folder, dense, total, parts)]})
    if plot is not None:
        _draw_reliability(path.name, total, parts, plot)
        say(err, f"Reliability diagram: {plot}")
    if maps is not None:
        _draw_maps(folder, dense, reading, maps)
        say(err, f"Maps of over-confidence: {maps}")
    if fail_over is not None:
        gate(err, {str(path): total}, fail_over)


def _only_folder(files: list[str], reading: "Reading", refused: Mapping[str, object]) -> Path:
    """Return the folder, or raise a ValueError if options or other files are given that do not apply."""
    if len(files) > 1:
        raise ValueError(f"{files[0]}: evaluate each folder of dense predictions with a command of its own")
    given = dict(refused)
    given |= {"--group-by": reading.group, "--cluster": reading.cluster, "--binary": reading.binary}
    given |= {"--confidence": reading.confidence, "--percent": reading.percent, "--drop-missing": reading.drop_missing}
    given |= {"--split": reading.split, "--class-names": reading.class_names, "--positive": reading.positive}
    for option, value in given.items():
        if value:
            raise ValueError(
                f"{option} does not apply to {files[0]}, a folder of dense predictions: its clusters are the images"
            )
    return Path(files[0])


def _images(folder: "DenseFolder") -> Iterator[tuple[str, Any, Any]]:
    return ((image.name, image.values, image.target) for image in folder)


def _evaluate(state: Any, reading: "Reading", inference: bool) -> "Evaluation":
    """Evaluate sums of pixels with images as clusters; the pixels of a single image as independent samples."""
    options = {"inference": inference, "level": reading.level, "seed": reading.seed}
    if state.num_clusters == 1:
        state = state.binned
    evaluation: Evaluation = state.evaluate(**options)
    return evaluation


def _print(
    out: Console, name: str, dense: "DenseEvaluation", total: "Evaluation", parts: "dict[str, Evaluation]"
) -> None:
    """Print the metrics, the verdict, the worst classes, and boundary and interior."""
    from dualfocal.metrics.dense import class_calibration, class_table, part_table
    from dualfocal.metrics.registry import MEANINGS

    show(out, total.table(), f"{name}: ")
    say(out, MEANINGS, "dim", wrap=True)
    if total.inference is not None:
        say(out, FLOOR, "dim", wrap=True)
        say(out, total.verdict(), "bold")
    assert dense.total.binned is not None
    show(out, class_table(class_calibration(dense.total.binned)))
    if parts:
        show(out, part_table(parts))
        near = f"boundary: pixels with another predicted class at most {dense.width} rows and columns away"
        say(out, near, "dim", wrap=True)
        if total.inference is not None:
            for part, evaluation in parts.items():
                say(out, f"{part}: {evaluation.verdict()}")


def _content(
    name: str, folder: "DenseFolder", dense: "DenseEvaluation", total: "Evaluation", parts: "dict[str, Evaluation]"
) -> dict[str, Any]:
    """Return everything for JSON."""
    from dualfocal.metrics.dense import class_calibration

    def with_verdict(evaluation: "Evaluation") -> dict[str, Any]:
        verdict = {} if evaluation.inference is None else {"verdict": evaluation.verdict()}
        return {**evaluation.to_dict(), **verdict}

    assert dense.total.binned is not None
    return {
        "file": name,
        "taken": folder.taken,
        **with_verdict(total),
        "classes": [one.to_dict() for one in class_calibration(dense.total.binned)],
        "images": [{**vars(image), "overconfidence": image.overconfidence} for image in dense.worst_images],
        **({"boundary_width": dense.width} if parts else {}),
        **{part: with_verdict(evaluation) for part, evaluation in parts.items()},
    }


def _draw_reliability(name: str, total: "Evaluation", parts: "dict[str, Evaluation]", plot: Path) -> None:
    from dualfocal.plots import reliability_figure, save

    save(reliability_figure({name or "all pixels": total} | parts), plot, dpi=150)


def _draw_maps(folder: "DenseFolder", dense: "DenseEvaluation", reading: "Reading", maps: Path) -> None:
    """Draw the maps of the most over-confident images, which are read again."""
    from dualfocal.plots import overconfidence_figure, save

    place = {name: i for i, (name, _, _) in enumerate(folder.files)}
    worst = [folder[place[image.name]] for image in dense.worst_images[:NUM_MAPS]]
    images = {image.name: (image.values, image.target) for image in worst}
    save(overconfidence_figure(images, input=folder.input, ignore_index=reading.ignore_index), maps, dpi=150)
