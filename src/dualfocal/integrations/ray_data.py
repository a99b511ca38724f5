"""Evaluation of predictions in a Ray data set, block by block where the blocks are (``pip install "dualfocal[ray]"``).

Each block becomes a small :class:`~dualfocal.metrics.BinnedPredictions`, and these are merged on the driver. The data
set is streamed: no machine holds more than a few blocks.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dualfocal.metrics import BinnedPredictions, Evaluation

__all__ = ["bin_dataset", "evaluate_dataset"]

STATE = "state"  # column with the state of a block, as JSON; empty if the block has no samples


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
        target: see :func:`bin_dataset`.
        logits: see :func:`bin_dataset`.
        probs: see :func:`bin_dataset`.
        num_bins: number of bins of the calibration errors.
        ignore_index: target value of rows to leave out.
        binary: see :func:`bin_dataset`.
        inference: whether to compute noise floors, tests and interval, too.
        level: nominal coverage of the interval.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.

    Returns:
        The result of :meth:`BinnedPredictions.evaluate <dualfocal.metrics.evaluate>`.

    Raises:
        ValueError: an argument is invalid, or no row is left.
    """
    state = bin_dataset(
        dataset,
        target=target,
        logits=logits,
        probs=probs,
        num_bins=num_bins,
        ignore_index=ignore_index,
        binary=binary,
    )
    return state.evaluate(inference=inference, level=level, draws=draws, seed=seed)


def bin_dataset(
    dataset: Dataset,
    *,
    target: str,
    logits: str | Sequence[str] | None = None,
    probs: str | Sequence[str] | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
) -> BinnedPredictions:
    """Sum up the predictions of a Ray data set; the number and order of its blocks do not matter.

    Args:
        dataset: a ``ray.data.Dataset``.
        target: column of class indices.
        logits: column of arrays or lists, one value per class; or the names of numeric columns, one per class.
        probs: the same for probabilities; either ``logits`` or ``probs`` must be given.
        num_bins: number of bins of the calibration errors.
        ignore_index: target value of rows to leave out.
        binary: ``"top_label"`` if the column holds one score per row, that of class 1.

    Raises:
        ValueError: an argument is invalid, or no row is left. An error in a block is raised by Ray, with the block's
            error as its cause.
    """
    columns = logits if probs is None else probs
    if columns is None or (logits is not None and probs is not None):
        raise ValueError("give either logits= or probs=: the column of the predictions, or one column per class")
    # As logits, values that look like probabilities are an error, so the kind is not stated for them.
    options = {"input": None if probs is None else "probs", "num_bins": num_bins}
    options |= {"ignore_index": ignore_index, "binary": binary}
    work = partial(_bin_block, columns=columns, target=target, options=options)
    total: BinnedPredictions | None = None
    for row in dataset.map_batches(work, batch_size=None, batch_format="numpy").iter_rows():
        if row[STATE]:
            state = BinnedPredictions.from_dict(json.loads(row[STATE]))
            total = state if total is None else total + state
    if total is None:
        raise ValueError(f"no samples: the data set is empty, or every {target} is ignore_index = {ignore_index}")
    return total


def _bin_block(
    block: Mapping[str, np.ndarray], columns: str | Sequence[str], target: str, options: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the state of a block of rows, as a block with one row."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if missing := [name for name in (*names, target) if name not in block]:
        raise ValueError(f"no column {missing[0]!r}; the columns are {', '.join(map(repr, block))}")
    labels = block[target]
    text = ""
    if len(labels) and bool((labels != options["ignore_index"]).any()):
        values = _array(block, columns) if isinstance(columns, str) else np.stack([block[n] for n in columns], axis=1)
        text = json.dumps(BinnedPredictions.from_predictions(values, labels, **options).to_dict())
    return {STATE: np.array([text], dtype=object)}


def _array(block: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a column of arrays or lists as a matrix."""
    values = block[name]
    if values.dtype != object:
        return values
    rows = [np.asarray(row) for row in values]
    if len({row.shape for row in rows}) > 1:
        raise ValueError(f"the rows of column {name!r} must have the same number of classes")
    return np.stack(rows)
