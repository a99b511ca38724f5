"""Read files that are larger than the memory: chunk by chunk, in one pass."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.metrics import CalibrationSums
from dualfocal.metrics.inputs import RowError
from dualfocal.predictions._class_columns import parse_class_names
from dualfocal.predictions._conversion import Conversion, dropped_remark
from dualfocal.predictions._formats.interface import PredictionFile, PredictionsError, one_line_errors
from dualfocal.predictions._labels import LabelRule, check_positive
from dualfocal.predictions._names import Roles, find_names
from dualfocal.predictions._opening import open_source
from dualfocal.predictions._questions import NameOptions
from dualfocal.predictions.loading import (
    Predictions,
    check_not_probabilities,
    check_usable,
    convert,
)

CHUNK_BYTES = 64_000_000
SCORED_BYTES = 100  # of a row: its label, and what the metrics compute of it


class PredictionStream:
    """Labelled predictions of a file, in chunks. Made by :func:`stream_predictions`; each loop reads the file again.

    Attributes:
        path: the file.
        num_rows: number of rows of a chunk; the last one has fewer, and so has one with missing values.
        class_names: names of the classes (None: unknown, or nothing was read yet).
        fraction: how much of the file was read, from 0 to 1.
    """

    def __init__(
        self, source: PredictionFile, roles: Roles, conversion: Conversion, num_rows: int, named: bool
    ) -> None:
        self.path = source.path
        self.num_rows = num_rows
        self.class_names: tuple[str, ...] | None = None
        self.fraction = 0.0
        self._source, self._roles, self._conversion = source, roles, conversion
        self._named = named  # whether the caller named the logits
        self._taken = ""
        self._cluster_kind = ""  # empty until the first chunk
        self._rows = self._dropped = 0

    @property
    def taken(self) -> str:
        """Which arrays or columns were read, as in ``Predictions``, and how many rows were dropped."""
        return self._taken + dropped_remark(self._dropped, self._rows)

    def __iter__(self) -> Iterator[Predictions]:
        source, roles, conversion, rule = self._source, self._roles, self._conversion, LabelRule()
        self._rows = self._dropped = 0
        self._taken = self._cluster_kind = ""
        with one_line_errors(self.path, kinds=(MemoryError, ValueError, OverflowError)):
            for content in source.chunks(roles.values.names, roles.others, self.num_rows):
                source.kept = None
                number = content.num_rows
                content, dropped = conversion.without_missing(source, content)
                self._rows, self._dropped = self._rows + number, self._dropped + dropped
                self.fraction = source.fraction
                if dropped == number:
                    continue
                data = convert(source, roles, conversion, content, rule)
                if not self._taken and not self._named:  # the first rows decide whether these are logits
                    check_not_probabilities(source, data)
                self._taken, self.class_names = data.taken, data.class_names
                yield data
            if not self._taken:
                reason = "every row has missing values: no row is left" if self._rows else "has no rows"
                raise source.error(reason)
            if conversion.positive is not None and roles.label is not None:
                check_positive(source, roles.label, conversion.positive, rule)

    def sums(
        self,
        *,
        num_bins: int = 15,
        ignore_index: int = -100,
        binary: str | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> CalibrationSums:
        """Read the file and sum up its predictions.

        Args:
            num_bins: number of bins of the calibration errors.
            ignore_index: label of samples to leave out.
            binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`.
            progress: called after each chunk with the fraction of the file that was read.

        Raises:
            PredictionsError: the file cannot be read, or its values or labels are invalid.
            ValueError: an option is invalid, or there is no sample.
        """
        total: CalibrationSums | None = None
        for data in self:
            if bool((data.target != ignore_index).any()):
                check_usable(data, ignore_index)
                with _rows_of_file(data, ignore_index):
                    part = CalibrationSums.from_predictions(
                        data.values,
                        data.target,
                        input=data.input,
                        num_bins=num_bins,
                        ignore_index=ignore_index,
                        binary=binary,
                        clusters=self._clusters(data),
                    )
                total = part if total is None else total + part
            if progress is not None:
                progress(self.fraction)
        if total is None:
            raise PredictionsError(f"{self.path}: no samples: every label is ignore_index = {ignore_index}")
        return total

    def _clusters(self, data: Predictions) -> NDArray[Any] | None:
        """Return the clusters of a chunk, which must be numbers in all chunks, or texts in all: 17 is not "17"."""
        if data.clusters is None:
            return None
        kind = "texts" if data.clusters.dtype.kind == "U" else "numbers"
        if self._cluster_kind not in ("", kind):
            row = data.row_of_file(0)
            raise PredictionsError(
                f"{self.path}: the clusters from row {row} on are {kind}, but those before are {self._cluster_kind}: "
                "write all of them in the same way"
            )
        self._cluster_kind = kind
        return data.clusters


def stream_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    split: str | None = None,
    default_split: str | None = None,
    positive: str | None = None,
    class_names: str | Sequence[str] | None = None,
    percent: bool = False,
    drop_missing: bool = False,
    num_rows: int | None = None,
    max_memory: int | str | None = None,
) -> PredictionStream:
    """Read labelled predictions in one pass, chunk by chunk, for files that are larger than the memory.

    What the names and the first chunk mean holds for the whole file: if later labels are of another kind (names after
    numbers, for example), or columns named like the labels lack one, this is an error.

    Args:
        path: a ``.npy``, ``.safetensors``, ``.parquet``, ``.csv`` or ``.tsv`` file; text may be gzipped.
        logits: see :func:`~dualfocal.predictions.load_predictions`, also for the other options.
        probs: the same for probabilities.
        target: name of the array or column of labels, or another file.
        cluster: name of an array or column with the cluster of each sample, or another file.
        split: prefix of the names.
        default_split: the split to read if ``split`` is not given and the names have such prefixes.
        positive: with one score per sample, the label of class 1.
        class_names: names of the classes, in order.
        percent: whether probabilities are in percent.
        drop_missing: leave out rows with NaN or empty cells.
        num_rows: number of rows of a chunk (None: as many as fit into 64 MB, or into ``max_memory`` if that is less).
        max_memory: the most memory that a chunk may take (None: half of the free memory).

    Returns:
        An iterable of the chunks.

    Raises:
        PredictionsError: the file cannot be read in one pass, or names are missing or ambiguous. Errors of the content
            are raised during the iteration.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "predictions.csv")
    ...     _ = path.write_text("prob_cat,prob_dog,label\\n0.9,0.1,cat\\n0.4,0.6,cat\\n0.3,0.7,dog\\n")
    ...     [chunk.labels.tolist() for chunk in stream_predictions(path, num_rows=2)]
    [[0, 0], [1]]
    """
    with one_line_errors(Path(path), kinds=(MemoryError, ValueError, OverflowError)):
        options = NameOptions(logits=logits, probs=probs, target=target, cluster=cluster, split=split)
        source, options = open_source(Path(path), options, default_split, max_memory)
        source.in_chunks = True
        roles = find_names(source, options, required=True)
        if roles.values.kind == "confidence":
            raise source.error(
                f"holds only the confidence of the predicted class ({roles.values.names[0]!r}), which needs all rows: "
                "they decide how predictions and labels are compared"
            )
        conversion = Conversion(
            positive=positive,
            class_names=None if class_names is None else parse_class_names(class_names),
            percent=percent,
            drop_missing=drop_missing,
        )
        needed = source.bytes_per_row(roles.values.names, roles.others) + SCORED_BYTES
        source.check_memory(needed)
        if num_rows is None:
            num_rows = max(1, min(CHUNK_BYTES, memory_limit(max_memory)) // needed)
        return PredictionStream(source, roles, conversion, num_rows, named=logits is not None)


def sum_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    split: str | None = None,
    positive: str | None = None,
    class_names: str | Sequence[str] | None = None,
    percent: bool = False,
    drop_missing: bool = False,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
) -> CalibrationSums:
    """Sum up the predictions of a file of any size in one pass: ``sum_predictions(path).evaluate()`` evaluates it.

    Args:
        path: see :func:`stream_predictions`, also for the options up to ``drop_missing``.
        logits: name of the logits.
        probs: name of the probabilities.
        target: name of the labels, or another file.
        cluster: name of the clusters, or another file.
        split: prefix of the names.
        positive: with one score per sample, the label of class 1.
        class_names: names of the classes, in order.
        percent: whether probabilities are in percent.
        drop_missing: leave out rows with NaN or empty cells.
        num_bins: number of bins of the calibration errors.
        ignore_index: label of samples to leave out.
        binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`.

    Raises:
        PredictionsError: the file cannot be read in one pass, or its names, values or labels are invalid.
        ValueError: an option is invalid.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "predictions.csv")
    ...     _ = path.write_text("prob_cat,prob_dog,label\\n0.9,0.1,cat\\n0.4,0.6,cat\\n0.3,0.7,dog\\n")
    ...     sum_predictions(path)
    CalibrationSums(3 samples, 2 classes, 15 bins)
    """
    stream = stream_predictions(
        path,
        logits=logits,
        probs=probs,
        target=target,
        cluster=cluster,
        split=split,
        positive=positive,
        class_names=class_names,
        percent=percent,
        drop_missing=drop_missing,
    )
    return stream.sums(num_bins=num_bins, ignore_index=ignore_index, binary=binary)


@contextmanager
def _rows_of_file(data: Predictions, ignore_index: int) -> Iterator[None]:
    """Turn errors of the metrics into errors that name file and row."""
    try:
        yield
    except RowError as error:
        kept = (data.target != ignore_index).reshape(-1).nonzero()[:, 0]
        row = int(kept[error.row]) // (data.target.numel() // len(data.target))
        raise PredictionsError(f"{data.path}: {error.rule}: row {data.row_of_file(row)} {error.problem}") from error
    except (ValueError, IndexError) as error:
        first, last = data.row_of_file(0), data.row_of_file(len(data.target) - 1)
        raise PredictionsError(f"{data.path}: {error} (in rows {first} to {last})") from error
