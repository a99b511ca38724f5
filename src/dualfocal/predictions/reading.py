"""Load predictions from a file or a run folder, in the form that the metrics need.

Of a run folder, only the names of two files are known here: its predictions, and its recipe.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dualfocal.metrics.inputs import INDEPENDENT
from dualfocal.metrics.samples import Samples
from dualfocal.predictions._formats.interface import PredictionsError
from dualfocal.predictions.dense import is_dense_folder
from dualfocal.predictions.loading import Predictions, check_usable, load_predictions
from dualfocal.predictions.streaming import PredictionStream, stream_predictions
from dualfocal.tables import quantity

PREDICTIONS = "predictions.safetensors"
RECIPE = "recipe.json"  # a folder with a recipe and no predictions is a run that is not finished

# Fields of Reading that are options of stream_predictions, of load_predictions alone, and of the metrics.
STREAMED = ("logits", "probs", "target", "positive", "class_names", "percent", "drop_missing", "max_memory")
LOADED = ("group", "weight", "prediction", "confidence")
SCORING = ("num_bins", "level", "seed")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options to read and score predictions, which most commands share.

    ``logits`` to ``max_memory`` are options of :func:`~dualfocal.predictions.load_predictions`, the others of
    :func:`~dualfocal.metrics.evaluate`.
    """

    logits: str | None = None
    probs: str | None = None
    target: str | None = None
    group: str | None = None
    cluster: str | None = None
    weight: str | None = None
    split: str | None = None
    prediction: str | None = None
    confidence: str | None = None
    positive: str | None = None
    class_names: str | None = None
    percent: bool = False
    drop_missing: bool = False
    max_memory: int | str | None = None
    num_bins: int = 15
    ignore_index: int = -100
    binary: str | None = None
    level: float = 0.9
    seed: int = 0

    def load(
        self,
        path: Path,
        *,
        split: str | None = None,
        run_split: str = "test",
        labels: bool = True,
        confidence_only: bool = False,
    ) -> Predictions:
        """Load the predictions of a file, or of one split of a run folder.

        Args:
            path: a prediction file or a run folder.
            split: the split to read, instead of ``self.split``.
            run_split: the split of a run folder to read if no split is given.
            labels: whether labels are required.
            confidence_only: whether the confidence of the predicted class is enough.

        Raises:
            PredictionsError: the folder is not a finished run, the file cannot be read, or it has only confidences.
        """
        is_folder = path.is_dir()
        data = load_predictions(
            predictions_file(path) if is_folder else path,
            cluster=None if self.cluster == INDEPENDENT else self.cluster,
            split=split or self.split,
            default_split=run_split if is_folder else None,
            labels=labels,
            **self._options(*STREAMED, *LOADED),
        )
        if data.input == "confidence" and not confidence_only:
            raise PredictionsError(
                f"{path}: this needs the probabilities of all classes, but the file has only the confidence of the "
                f"predicted class, for dualfocal evaluate without --calibrate ({data.taken})"
            )
        check_usable(data, self.ignore_index)
        return replace(data, taken=data.taken + self._ignored(data))

    def _ignored(self, data: Predictions) -> str:
        """Return how many labels are left out, for ``taken``."""
        number = (
            0 if data.labels is None or data.input == "confidence" else int((data.labels == self.ignore_index).sum())
        )
        if not number:
            return ""
        verb = "is" if number == 1 else "are"
        return f"; {number:,} of {quantity(data.target.numel(), 'label')} {verb} {self.ignore_index} and left out"

    def stream(self, path: Path, *, run_split: str = "test") -> PredictionStream:
        """Read the predictions of a file, or of one split of a run folder, in chunks.

        Args:
            path: a prediction file or a run folder.
            run_split: the split of a run folder to read if no split is given.

        Raises:
            PredictionsError: the file cannot be read in one pass.
        """
        is_folder = path.is_dir()
        return stream_predictions(
            predictions_file(path) if is_folder else path,
            split=self.split,
            default_split=run_split if is_folder else None,
            cluster=None if self.cluster == INDEPENDENT else self.cluster,
            **self._options(*STREAMED),
        )

    @property
    def scoring(self) -> dict[str, Any]:
        """Options of the metrics besides those of their samples, by name."""
        return self._options(*SCORING)

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def clusters(self, data: Predictions) -> NDArray[Any] | str | None:
        """Return the clusters of the samples for the metrics: ``"none"`` if the user says that there are none."""
        return INDEPENDENT if self.cluster == INDEPENDENT else data.clusters

    def samples(self, data: Predictions) -> Samples:
        """Return the predictions as samples, without those that are ignored."""
        samples = Samples.from_arrays(
            data.values,
            data.labels,
            input=data.input,
            ignore_index=self.ignore_index,
            binary=self.binary,
            clusters=self.clusters(data),
            sample_weight=data.weights,
        )
        return samples if samples.confidence_only else replace(samples, class_names=data.names_of_classes)

    def check_columns(self, data: Predictions, name: str) -> None:
        """Raise a ValueError if the column of the groups, clusters or weights holds something else.

        Also if a column holds one score per sample, and the caller does not say which confidence to evaluate.
        """
        if data.values.ndim == 1 and data.input != "confidence" and self.binary is None:
            raise ValueError(
                f"{name}: {data.columns[0]!r} is one score per sample, a binary problem: give --binary top_label to "
                "evaluate the confidence of the predicted class, or --binary positive for the probability of class 1"
            )
        if data.group_name is not None and data.group_name == data.label_name:
            raise ValueError(
                f"--group-by: {data.group_name!r} of {name} holds the labels, and among samples of one label no model "
                "is calibrated; group by something that is known before the label"
            )
        if self.cluster is not None and self.cluster == data.label_name:
            raise ValueError(
                f"--cluster: {self.cluster!r} of {name} holds the labels; a cluster must be known before the label, "
                "such as a patient or an image"
            )
        if self.weight is not None and self.weight in (data.label_name, *data.columns):
            what = "labels" if self.weight == data.label_name else "predictions"
            raise ValueError(f"--weight: {self.weight!r} of {name} holds the {what}; name a column of weights")

    def validation(self, path: Path, samples: Samples) -> tuple[Samples | None, str]:
        """Return the validation split of a run, and a remark if it exists but cannot be used.

        The split is None if there is none, if it cannot be used, or if it is the split that is scored.
        """
        if not (path / RECIPE).is_file() or self.logits or self.probs or self.target or self.split == "val":
            return None, ""
        try:
            data = replace(self, group=None, cluster=None, weight=None).load(path, split="val")
        except PredictionsError:  # the run has no validation split
            return None, ""
        try:
            validation = self.samples(data)
            if validation.num_classes != samples.num_classes:
                raise ValueError(f"it has {validation.num_classes} classes, but the samples have {samples.num_classes}")
        except (ValueError, IndexError) as error:
            return None, f"The run's validation split cannot be used: {error}."
        return validation, ""


def is_run_folder(path: Path) -> bool:
    """Whether a path is the folder of a training run, finished or not."""
    return is_finished_run(path) or (path / RECIPE).is_file()


def is_finished_run(path: Path) -> bool:
    """Whether a path is a folder with the predictions of a training run."""
    return (path / PREDICTIONS).exists()


def find_run_folders(folder: Path, depth: int = 3) -> list[Path]:
    """Return the run folders in a folder, or the folder itself, sorted by path.

    Args:
        folder: where to search.
        depth: how many levels of subfolders to search.
    """
    if is_run_folder(folder):
        return [folder]
    if depth == 0 or not folder.is_dir():
        return []
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [run for path in inner for run in find_run_folders(path, depth - 1)]


def predictions_file(folder: Path) -> Path:
    """Return the prediction file of a run folder, or raise a PredictionsError if it does not exist."""
    if not (folder / PREDICTIONS).exists():
        if (folder / RECIPE).is_file():
            raise PredictionsError(f"{folder}: this run is not finished, it has no {PREDICTIONS}")
        raise PredictionsError(f"{folder}: is not a run folder, it has no {PREDICTIONS}; {_remedy(folder)}")
    return folder / PREDICTIONS


def _remedy(folder: Path) -> str:
    """Return what to do with a folder that is not a run."""
    if any(next(folder.glob(pattern), None) for pattern in ("samples_*.jsonl", "*/samples_*.jsonl")):
        return "for logs of lm-evaluation-harness, use dualfocal evaluate with --format lm-eval"
    if is_dense_folder(folder):
        return "folders of dense predictions can only be evaluated: use dualfocal evaluate"
    return "give a prediction file or a run folder; dualfocal evaluate also reads logits/NAME.npy with masks/NAME.png"
