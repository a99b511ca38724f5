"""Predictions of a file or of a run folder, read and laid out as the metrics take them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualfocal.metrics.rows import Rows, as_rows
from dualfocal.predictions import Predictions, PredictionsError, load_predictions
from dualfocal.runs.layout import PREDICTIONS, RECIPE


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read and to score predictions: the options that most commands share.

    The first six name what a file holds, see :func:`~dualfocal.predictions.load_predictions`; the others are those of
    :func:`~dualfocal.metrics.evaluate`.
    """

    logits: str | None = None
    probs: str | None = None
    target: str | None = None
    group: str | None = None
    split: str | None = None
    positive: str | None = None
    num_bins: int = 15
    ignore_index: int = -100
    binary: str | None = None
    level: float = 0.9
    seed: int = 0

    def load(
        self, path: Path, *, split: str | None = None, run_split: str = "test", labels: bool = True
    ) -> Predictions:
        """Load the predictions of a file, or of one part of a run folder.

        Args:
            path: a prediction file or a run folder.
            split: the part to read, instead of ``self.split``.
            run_split: the part of a run folder to read if none is given.
            labels: whether there must be labels.

        Raises:
            PredictionsError: the folder is not a finished run, or the file cannot be read.
        """
        is_folder = path.is_dir()
        return load_predictions(
            predictions_file(path) if is_folder else path,
            logits=self.logits,
            probs=self.probs,
            target=self.target,
            group=self.group,
            split=split or self.split,
            default_split=run_split if is_folder else None,
            positive=self.positive,
            labels=labels,
        )

    @property
    def scoring(self) -> dict[str, Any]:
        """The options of the metrics, by name."""
        return {name: getattr(self, name) for name in ("num_bins", "ignore_index", "binary", "level", "seed")}

    def rows(self, data: Predictions) -> Rows:
        """The predictions as rows, without the ignored ones."""
        return as_rows(data.values, data.target, input=data.input, ignore_index=self.ignore_index, binary=self.binary)

    def validation(self, path: Path, rows: Rows) -> tuple[Rows | None, str]:
        """The validation part of a run, unless ``rows`` are of it; and why it cannot be used, if it is there."""
        if not (path / RECIPE).is_file() or self.logits or self.probs or self.target or self.split == "val":
            return None, ""
        try:
            data = self.load(path, split="val")
        except PredictionsError:  # a run without one
            return None, ""
        try:
            validation = self.rows(data)
            if validation.num_classes != rows.num_classes:
                raise ValueError(f"it has {validation.num_classes} classes, the samples have {rows.num_classes}")
        except (ValueError, IndexError) as error:
            return None, f"The run's validation part cannot be used: {error}."
        return validation, ""


def predictions_file(folder: Path) -> Path:
    """Return the prediction file of a run folder; raise a PredictionsError if there is none."""
    if not (folder / PREDICTIONS).exists():
        why = "this run is not finished" if (folder / RECIPE).is_file() else "is no run folder"
        raise PredictionsError(f"{folder}: {why}, there is no {PREDICTIONS} in it")
    return folder / PREDICTIONS
