"""Evaluate predictions in a Ray data set, block by block where the blocks are (``pip install "dualfocal[ray]"``).

Each block becomes a :class:`~dualfocal.metrics.CalibrationSums`, and these are added on the driver. The data set is
streamed: no machine holds more than a few blocks.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dualfocal.metrics import CalibrationSums, Evaluation

__all__ = ["evaluate_dataset", "sums_of_dataset"]

Dataset = Any  # a ray.data.Dataset; ray is not imported here


def evaluate_dataset(
    dataset: Dataset,
    *,
    target: str,
    logits: str | Sequence[str] | None = None,
    probs: str | Sequence[str] | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    inference: bool = True,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Evaluate the predictions of a Ray data set.

    Args:
        dataset: a ``ray.data.Dataset``.
        target: see :func:`sums_of_dataset`.
        logits: see :func:`sums_of_dataset`.
        probs: see :func:`sums_of_dataset`.
        num_bins: number of bins of the calibration errors.
        ignore_index: target value of rows to leave out.
        binary: see :func:`sums_of_dataset`.
        inference: whether to compute noise floors, tests and interval, too.
        level: nominal coverage of the interval.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.

    Returns:
        The result of :meth:`CalibrationSums.evaluate <dualfocal.metrics.CalibrationSums.evaluate>`.

    Raises:
        ValueError: an argument is invalid, or no row is left.
    """
    sums = sums_of_dataset(
        dataset,
        target=target,
        logits=logits,
        probs=probs,
        num_bins=num_bins,
        ignore_index=ignore_index,
        binary=binary,
    )
    return sums.evaluate(inference=inference, level=level, draws=draws, seed=seed)


def sums_of_dataset(
    dataset: Dataset,
    *,
    target: str,
    logits: str | Sequence[str] | None = None,
    probs: str | Sequence[str] | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
) -> CalibrationSums:
    """Sum up the predictions of a Ray data set; the number and order of its blocks do not matter.

    Args:
        dataset: a ``ray.data.Dataset``.
        target: column of class indices.
        logits: column of arrays or lists, one value per class; or the names of numeric columns, one per class.
        probs: the same for probabilities; either ``logits`` or ``probs`` must be given.
        num_bins: number of bins of the calibration errors.
        ignore_index: target value of rows to leave out.
        binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`; for a column with one score per row, that of class
            1.

    Raises:
        ValueError: an argument is invalid, or no row is left. An error in a block is raised by Ray, with the block's
            error as its cause.
    """
    columns = logits if probs is None else probs
    if columns is None or (logits is not None and probs is not None):
        raise ValueError("give either logits= or probs=: the column of the predictions, or one column per class")
    # Without a stated kind, values of logits that look like probabilities are an error.
    options = {"input": None if probs is None else "probs", "num_bins": num_bins}
    options |= {"ignore_index": ignore_index, "binary": binary}
    work = partial(_sum_block, columns=columns, target=target, options=options)
    blocks = dataset.map_batches(work, batch_size=None, batch_format="numpy").iter_rows()
    parts = (CalibrationSums.from_dict(json.loads(row["sums"])) for row in blocks)
    total = sum(parts)  # one at a time
    if total == 0:
        raise ValueError(f"no samples: the data set is empty, or every {target} is ignore_index = {ignore_index}")
    return total


def _sum_block(
    block: Mapping[str, np.ndarray], columns: str | Sequence[str], target: str, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the sums of a block as JSON, in a block with one row; without a row if the block has no samples."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if missing := [name for name in (*names, target) if name not in block]:
        raise ValueError(f"no column {missing[0]!r}; the columns are {', '.join(map(repr, block))}")
    rows: list[str] = []
    if bool((block[target] != options["ignore_index"]).any()):
        values = _array(block, columns) if isinstance(columns, str) else np.stack([block[n] for n in columns], axis=1)
        rows.append(json.dumps(CalibrationSums.from_predictions(values, block[target], **options).to_dict()))
    return {"sums": np.array(rows, dtype=object)}


def _array(block: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a column of arrays or lists as a matrix."""
    values = block[name]
    if values.dtype != object:
        return values
    rows = [np.asarray(row) for row in values]
    if len({row.shape for row in rows}) > 1:
        raise ValueError(f"the rows of column {name!r} must have the same number of classes")
    return np.stack(rows)
