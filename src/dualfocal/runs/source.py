"""Load predictions from a prediction file or a run folder."""

import os
from pathlib import Path

from dualfocal.predictions import Predictions, PredictionsError, load_predictions
from dualfocal.runs.layout import PREDICTIONS, RECIPE


def load_file_or_run(
    path: str | os.PathLike[str],
    *,
    run_split: str | None = None,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    group: str | None = None,
    split: str | None = None,
    positive: str | None = None,
    labels: bool = True,
) -> Predictions:
    """Load the predictions of a file, or of one part of a run folder.

    Args:
        path: a prediction file or a run folder.
        run_split: the part of a run folder to read if ``split`` is not given (None: an error asks which).
        logits: see ``load_predictions``, as for the arguments below.
        probs: the array or columns of probabilities.
        target: the array or column of labels.
        group: an array or column with one group per sample.
        split: the part to read, ``"val"`` or ``"test"`` of a run folder.
        positive: with one score per sample, the label of class 1.
        labels: whether there must be labels.

    Raises:
        PredictionsError: the folder is not a finished run, or see ``load_predictions``.
    """
    is_folder = Path(path).is_dir()
    return load_predictions(
        predictions_file(Path(path)) if is_folder else path,
        logits=logits,
        probs=probs,
        target=target,
        group=group,
        split=split,
        default_split=run_split if is_folder else None,
        positive=positive,
        labels=labels,
    )


def predictions_file(folder: Path) -> Path:
    """Return the prediction file of a run folder; raise a PredictionsError if there is none."""
    file = folder / PREDICTIONS
    if not file.exists() and (folder / RECIPE).is_file():
        raise PredictionsError(f"{folder}: this run is not finished, it has no predictions yet")
    if not file.exists():
        raise PredictionsError(f"{folder}: is no run folder, there is no {PREDICTIONS} in it")
    return file
