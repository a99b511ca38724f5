"""`dualfocal evaluate FOLDER`: dense predictions in files, read image by image."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dualfocal.cli._common import check_plot, consoles, errors_name, print_json, progress_bar, say, show
from dualfocal.cli._evaluate.findings import gate, print_evaluation, with_verdict
from dualfocal.cli._evaluate.request import Request, refuse
from dualfocal.cli._options import INPUTS, OUTPUT

if TYPE_CHECKING:
    from dualfocal.metrics import Evaluation
    from dualfocal.metrics.dense import DenseEvaluation
    from dualfocal.predictions import DenseFolder, Reading

NUM_MAPS = 4  # images in the picture of maps
MOST_WIDTH = 1000  # of --boundary
ONE_IMAGE = (
    "Only one image has labels: its pixels are treated as independent, which they are not. Noise floors and p-values "
    "are too small, and intervals too short."
)

ONE_FILE = "save all images of one size as one file, .npz with logits and target"
REMEDIES = {  # of options that do not apply
    "--cluster": "leave it out: the images are the clusters",
    "--weight": ONE_FILE,
    "--group-by": "evaluate a folder for each group",
    "--group-quantiles": "evaluate a folder for each group",
    "--merge": "put all images into one folder",
    "--calibrate": ONE_FILE,
    "--convention": ONE_FILE,
    "--plot-style quantile": ONE_FILE,
    "--plot-style corp": "leave it out: its band is for independent samples, and the pixels of an image are not",
    "--binary": ONE_FILE,
    "--positive": "write the masks as class indices",
    "--prediction": "give the probabilities of all classes",
    "--confidence": "give the probabilities of all classes",
    "--percent": "divide the probabilities by 100",
    "--drop-missing": "set the labels of missing pixels to --ignore-index",
    "--split": "give the folder of the split",
    "--class-names": "leave it out: classes are numbered",
}

Boundary = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_WIDTH,
        metavar="PIXELS",
        help="Segmentation folders: also evaluate two parts, the pixels at most this far from another predicted class, "
        "and the other pixels.",
        rich_help_panel=INPUTS,
    ),
]
Maps = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=check_plot,
        help="Segmentation folders: draw where the worst images are over-confident: .png, .pdf or .svg.",
        rich_help_panel=OUTPUT,
    ),
]


def is_dense(path: Path, reading: "Reading") -> bool:
    """Whether a path is a folder of dense predictions, and not a run folder."""
    from dualfocal.predictions import is_dense_folder, is_run_folder

    return not is_run_folder(path) and is_dense_folder(path, reading.logits, reading.probs)


def evaluate_folder(request: Request, *, boundary: int | None, maps: Path | None) -> None:
    """Evaluate a folder of dense predictions: print tables and verdict, draw pictures, check the limit.

    Args:
        request: the file is the folder.
        boundary: width of the boundary, in pixels.
        maps: where to draw the maps of over-confidence.
    """
    from dualfocal.metrics.dense import evaluate_images
    from dualfocal.predictions import open_dense_folder

    path, *others = map(Path, request.files)
    if others:
        raise ValueError(f"{path}: evaluate each folder of dense predictions with a command of its own")
    refuse(request.given, f"{path}, a folder of dense predictions", REMEDIES)
    reading, inference, plot = request.reading, request.inference, request.plot
    out, err = consoles(request.as_json)
    folder = open_dense_folder(
        path, logits=reading.logits, probs=reading.probs, target=reading.target, max_memory=reading.max_memory
    )
    with errors_name(path), progress_bar(err, "images", total=len(folder)) as progress:
        dense = evaluate_images(
            ((image.name, image.values, image.target) for image in folder),
            input=folder.input,
            num_bins=reading.num_bins,
            ignore_index=reading.ignore_index,
            boundary=boundary,
            progress=progress,
        )
        total = _evaluate(dense.total, reading, inference)
        parts = {
            name: _evaluate(state, reading, inference)
            for name, state in dense.parts.items()
            if boundary is not None and state.num_samples
        }
    say(err, f"{path}: {folder.taken}")
    _print(out, str(path), dense, total, parts)
    if len(dense.images) < 2 and inference:
        say(err, f"dualfocal: {ONE_IMAGE}")
    if request.as_json:
        print_json({"schema": 1, "files": [_content(str(path), folder, dense, total, parts)]})
    if plot is not None:
        from dualfocal.plots import reliability_figure, save

        save(reliability_figure({path.name or "all pixels": total} | parts), plot, dpi=150)
        say(err, f"Reliability diagram: {plot}")
    if maps is not None:
        _draw_maps(folder, dense, reading, maps)
        say(err, f"Maps of over-confidence: {maps}")
    if request.fail_over is not None:
        gate(err, {str(path): total}, request.fail_over)


def _evaluate(state: Any, reading: "Reading", inference: bool) -> "Evaluation":
    """Evaluate sums of pixels with images as clusters; the pixels of a single image as independent samples."""
    samples = state.without_clusters() if state.num_clusters == 1 else state
    evaluation: Evaluation = samples.evaluate(inference=inference, level=reading.level, seed=reading.seed)
    return evaluation


def _print(
    out: Console, name: str, dense: "DenseEvaluation", total: "Evaluation", parts: "dict[str, Evaluation]"
) -> None:
    """Print the metrics, the verdict, the worst classes, and boundary and interior."""
    from dualfocal.metrics.dense import class_calibration, class_table, part_table

    print_evaluation(out, name, total)
    show(out, class_table(class_calibration(dense.total)))
    if parts:
        show(out, part_table(parts))
        distance = "1 row and column" if dense.width == 1 else f"{dense.width} rows and columns"
        say(out, f"boundary: pixels with another predicted class at most {distance} away", "dim", wrap=True)
        if total.inference is not None:
            for part, evaluation in parts.items():
                say(out, f"{part}: {evaluation.verdict()}")


def _content(
    name: str, folder: "DenseFolder", dense: "DenseEvaluation", total: "Evaluation", parts: "dict[str, Evaluation]"
) -> dict[str, Any]:
    """Return everything for JSON."""
    from dualfocal.metrics.dense import class_calibration

    return {
        "file": name,
        "taken": folder.taken,
        **with_verdict(total),
        "classes": [row.to_dict() for row in class_calibration(dense.total)],
        "images": [{**vars(image), "overconfidence": image.overconfidence} for image in dense.worst_images],
        **({"boundary_width": dense.width} if parts else {}),
        **{part: with_verdict(evaluation) for part, evaluation in parts.items()},
    }


def _draw_maps(folder: "DenseFolder", dense: "DenseEvaluation", reading: "Reading", maps: Path) -> None:
    """Draw the maps of the most over-confident images, which are read again."""
    from dualfocal.plots import overconfidence_figure, save

    place = {name: i for i, (name, _, _) in enumerate(folder.files)}
    worst = [folder[place[image.name]] for image in dense.worst_images[:NUM_MAPS]]
    images = {image.name: (image.values, image.target) for image in worst}
    save(overconfidence_figure(images, input=folder.input, ignore_index=reading.ignore_index), maps, dpi=150)
