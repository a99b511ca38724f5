"""The confusion matrix of a page: all classes, or those that are confused most if there are too many to draw."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from dualfocal.report.curves import rounded
from dualfocal.report.inputs import ReportInput
from dualfocal.report.tables import column, number, small_decimals

MOST_CLASSES = 100  # in a matrix with all classes
RESTRICTED = 40  # classes of a matrix with the most confused ones
MOST_CELLS = 60_000  # in all matrices of a page together
MOST_PAIRS = 20  # rows of the table of pairs
DIGITS = 6  # of sums of weights


def confusion_figure(source: ReportInput, models: int) -> dict[str, Any]:
    """Return the counts by true and predicted class, and the most confused pairs.

    Args:
        source: the predictions.
        models: number of models on the page, which share its size.

    Returns:
        ``classes``: the classes shown, in their order; ``names``: their names; ``cells``: row, column and count of
        the cells that are not 0, one after the other; ``samples``: number of samples of each shown class, also of those
        predicted as classes that are not shown; ``predicted``: the same by predicted class; ``numClasses``; ``errors``:
        number of wrong predictions; ``shownErrors``: those within the matrix; ``pairs``: a table.
    """
    samples = source.samples
    matrix = confusion_matrix(samples.target, source.predicted, samples.num_classes, samples.weight)
    true, predicted, count = _pairs(matrix)
    most = min(MOST_CLASSES, math.isqrt(MOST_CELLS // models))
    shown = np.arange(samples.num_classes)
    if samples.num_classes > most:
        shown = most_confused(true, predicted, count, min(RESTRICTED, most))
    part = matrix[shown][:, shown].tocoo()
    labels, guesses = (np.asarray(matrix.sum(axis)).ravel() for axis in (1, 0))
    errors, shown_errors = rounded([count.sum(), part.data[part.row != part.col].sum()], DIGITS)
    return {
        "numClasses": samples.num_classes,
        "classes": shown.tolist(),
        "names": [source.class_names[c] for c in shown],
        "cells": rounded(np.stack([part.row, part.col, part.data], axis=1).ravel(), DIGITS),
        "samples": rounded(labels[shown], DIGITS),
        "predicted": rounded(guesses[shown], DIGITS),
        "errors": errors,
        "shownErrors": shown_errors,
        "pairs": _pair_table(source, true, predicted, count, labels),
    }


def confusion_matrix(
    target: torch.Tensor, predicted: torch.Tensor, num_classes: int, weight: torch.Tensor | None = None
) -> sparse.csr_matrix:
    """Return the number of samples, or their weight, by true and predicted class, sparse.

    >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0]), 2).toarray()
    array([[1., 0.],
           [2., 0.]])
    """
    weights = np.ones(len(target)) if weight is None else weight.numpy()
    counts = sparse.coo_matrix((weights, (target.numpy(), predicted.numpy())), shape=(num_classes, num_classes))
    return counts.tocsr()  # which adds up repeated cells


def most_confused(
    true: NDArray[np.int64], predicted: NDArray[np.int64], count: NDArray[np.float64], most: int
) -> NDArray[np.int64]:
    """Return up to ``most`` classes: those of the most confused pairs, whichever of the two is true.

    Without errors, the first classes.

    >>> most_confused(np.array([7, 2, 3]), np.array([2, 7, 5]), np.array([3.0, 2.0, 4.0]), 2)
    array([2, 7])
    """
    low, high = np.minimum(true, predicted), np.maximum(true, predicted)
    pairs, index = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    total = np.bincount(index.ravel(), count, minlength=len(pairs))
    chosen: dict[int, None] = {}
    for i in np.argsort(-total, kind="stable"):
        new = [c for c in pairs[i].tolist() if c not in chosen]
        if len(chosen) + len(new) > most:
            break
        chosen.update(dict.fromkeys(new))
    return np.array(sorted(chosen) if chosen else range(most), dtype=np.int64)


def _pairs(matrix: sparse.csr_matrix) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return true class, predicted class and count of the confused pairs, the largest count first."""
    cells = matrix.tocoo()
    wrong = cells.row != cells.col
    true, predicted, count = cells.row[wrong].astype(np.int64), cells.col[wrong].astype(np.int64), cells.data[wrong]
    order = np.lexsort((predicted, true, -count))
    return true[order], predicted[order], count[order]


def _pair_table(
    source: ReportInput,
    true: NDArray[np.int64],
    predicted: NDArray[np.int64],
    count: NDArray[np.float64],
    samples: NDArray[np.float64],
) -> dict[str, Any] | None:
    if not len(count):
        return None
    names, errors = source.class_names, float(count.sum())
    decimals = small_decimals(float(count[0]) / errors)
    shown = slice(MOST_PAIRS)
    rows = [
        [
            [names[i], i],
            [names[j], j],
            number(n, 0),
            number(100 * n / float(samples[i]), 1),
            number(100 * n / errors, decimals),
        ]
        for i, j, n in zip(true[shown].tolist(), predicted[shown].tolist(), count[shown].tolist(), strict=True)
    ]
    columns = [
        column("true class", numeric=False),
        column("predicted as", numeric=False),
        column("samples", "samples of the true class that are predicted as the other class"),
        column("of the class %", "share of the samples of the true class"),
        column("of all errors %", "share of all wrong predictions"),
    ]
    which = f"{len(rows)} of {len(count):,}" if len(rows) < len(count) else "all"
    return {"caption": f"Most confused pairs ({which})", "columns": columns, "rows": rows, "sortable": True}
