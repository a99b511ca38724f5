"""A model on shifted data: error, NLL and ECE of each set, and how well the model's uncertainty notices the shift.

The error has Wilson's interval; with clusters, for the number of independent samples that carry the same information.
The intervals of NLL and ECE come from a bootstrap of samples or clusters. The interval of the ECE is about the expected
ECE of so many samples, which includes the noise floor: compare the ECE with its floor. AUROC has DeLong's interval, see
:mod:`dualfocal.metrics.auroc`. ``benchmarks/shift_coverage.py`` checks the coverage of all of them by simulation.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal.checks import check_count, check_level
from dualfocal.metrics._several import named_errors, tracked
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.auroc import Auroc, placements
from dualfocal.metrics.comparison import LEAST, interval
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.resampling import ShareDone, resample
from dualfocal.metrics.rows import Rows, as_rows, image_clusters
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import tied_ranks, uncertainty
from dualfocal.metrics.shift.scores import ShiftEvaluation, ShiftScores, severity_order

TEST = "test"
SCORES = {"entropy": "entropy", "confidence": "max_prob"}  # what tells shifted from test samples


class ShiftSet(NamedTuple):
    """Predictions of one set of samples; a tuple ``(logits, target)`` is enough.

    Args:
        logits: see :func:`~dualfocal.metrics.evaluate`.
        target: class indices (None: no labels).
        clusters: see :func:`~dualfocal.metrics.evaluate`. A cluster may have samples in several sets, such as an image
            and its distorted copies; without clusters, the images of dense predictions of different sets are different.
        input: ``"logits"`` or ``"probs"``, see :func:`~dualfocal.metrics.evaluate`.
    """

    logits: Array
    target: Array | None = None
    clusters: Array | str | None = None
    input: str | None = None


def evaluate_shift(
    test: ShiftSet | tuple[Array, Array],
    shifted: Mapping[str, ShiftSet | tuple[Array, Array | None]],
    *,
    input: str | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
) -> ShiftEvaluation:
    """Evaluate a model on a test set and on shifted sets: distorted, later, or from another place.

    Args:
        test: logits and target of the test set, or a :class:`ShiftSet`.
        shifted: name -> the same for each shifted set; without labels (``(logits, None)``), only AUROC is computed.
            Names that end in numbers, such as ``"noise-3"``, are put in the order of these numbers.
        input: ``"logits"`` or ``"probs"``, for sets that do not say it, see :func:`~dualfocal.metrics.evaluate`.
        num_bins: see :func:`~dualfocal.metrics.evaluate`.
        ignore_index: see :func:`~dualfocal.metrics.evaluate`.
        binary: see :func:`~dualfocal.metrics.evaluate`.
        level: nominal coverage of the intervals.
        seed: seed of the draws behind floors, tests and intervals.
        progress: called with the share of the sets that are done.

    Returns:
        Error, NLL and ECE of each set, with intervals, and the AUROC of entropy and confidence.

    Raises:
        ValueError: a set is invalid (the message names it), sets differ in their classes, or only some have clusters.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(1000, 5, generator=generator)
    >>> target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    >>> blurred = 0.7 * logits + torch.randn(1000, 5, generator=generator)
    >>> result = evaluate_shift((logits, target), {"blur-1": (blurred, target)})
    >>> print(result.shifted[0].auroc["entropy"])
    AUROC 62.2 % (90 % interval 60.1 to 64.2; 1,000 positive, 1,000 negative)
    """
    sets = shift_rows(test, shifted, input=input, ignore_index=ignore_index, binary=binary)
    return evaluate_shift_rows(sets, num_bins=num_bins, level=level, seed=seed, progress=progress)


@dataclass(frozen=True)
class ShiftRows:
    """Rows of one set.

    ``cluster`` is like ``rows.cluster``, but numbers the clusters of all sets together.
    """

    rows: Rows
    labelled: bool
    cluster: Tensor | None


def shift_rows(
    test: ShiftSet | tuple[Array, Array],
    shifted: Mapping[str, ShiftSet | tuple[Array, Array | None]],
    *,
    input: str | None = None,
    ignore_index: int = -100,
    binary: str | None = None,
) -> dict[str, ShiftRows]:
    """Check all sets and return them as rows; the test set comes first."""
    if not shifted:
        raise ValueError("shifted must hold at least one set")
    if TEST in shifted:
        raise ValueError(f"{TEST!r} is the name of the test set: give the shifted set another name")
    sets = {TEST: ShiftSet(*test)} | {name: ShiftSet(*shifted[name]) for name in severity_order(shifted)}
    if sets[TEST].target is None:
        raise ValueError("the test set needs labels: pass (logits, target)")
    sets = {name: _with_clusters(name, shift_set) for name, shift_set in sets.items()}
    without = [name for name, shift_set in sets.items() if shift_set.clusters is None]
    if without and len(without) < len(sets):
        raise ValueError(f"either all sets have clusters or none, but {without[0]!r} has none")
    codes = None if without else _joint_codes([shift_set.clusters for shift_set in sets.values()])
    result: dict[str, ShiftRows] = {}
    for place, (name, shift_set) in enumerate(sets.items()):
        with named_errors(name):
            own_codes = None if codes is None else codes[place]
            result[name] = _set_rows(shift_set, shift_set.input or input, ignore_index, binary, own_codes)
            number, expected = (result[key].rows.num_classes for key in (name, TEST))
            if number != expected:
                raise ValueError(f"it has {number} classes, but the test set has {expected}")
    return result


def evaluate_shift_rows(
    sets: Mapping[str, ShiftRows],
    *,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
) -> ShiftEvaluation:
    """Evaluate the sets, of which the first is the test set; see :func:`evaluate_shift`."""
    check_level(level)
    check_count("num_bins", num_bins)
    results: list[ShiftScores] = []
    test_scores: dict[str, Tensor] = {}
    test = next(iter(sets.values()))
    for name, shift_set in tracked(sets.items(), progress):
        rows, labelled = shift_set.rows, shift_set.labelled
        with named_errors(name):
            stats = scan(rows, num_bins=num_bins, scores=labelled, classwise=labelled)
        scores = {label: uncertainty(rows, score) for label, score in SCORES.items()}
        auroc: dict[str, Auroc] = {}
        if results:
            auroc = {label: _shift_auroc(test, test_scores[label], shift_set, scores[label], level) for label in SCORES}
        test_scores = test_scores or scores
        result = ShiftScores(name, len(rows), auroc=auroc)
        if labelled:
            result = _with_labels(result, rows, stats, scores["confidence"], num_bins, level, seed)
        results.append(result)
    return ShiftEvaluation(results[0], tuple(results[1:]), level, seed)


def wilson(error: float, number: float, level: float) -> tuple[float, float]:
    """Return Wilson's interval of a share among ``number`` samples, which need not be whole.

    >>> [round(end, 4) for end in wilson(0.0, 100, 0.9)]
    [0.0, 0.0263]
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (error + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z / (1 + z**2 / number) * math.sqrt(error * (1 - error) / number + (z / (2 * number)) ** 2)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def _set_rows(
    shift_set: ShiftSet, input: str | None, ignore_index: int, binary: str | None, codes: np.ndarray | None
) -> ShiftRows:
    labelled, target = shift_set.target is not None, shift_set.target
    if target is None:
        values = as_tensor("logits", shift_set.logits)
        single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
        shape = values.shape[:1] if single else values.shape[:1] + values.shape[2:]
        target = torch.zeros(shape, dtype=torch.int64, device=values.device)
    options: dict[str, Any] = {"input": input, "ignore_index": ignore_index, "binary": binary}
    rows = as_rows(shift_set.logits, target, clusters=shift_set.clusters, **options)
    if codes is None:
        return ShiftRows(rows, labelled, None)
    kept = (as_tensor("target", target) != ignore_index).cpu().numpy()
    by_sample = np.broadcast_to(codes.reshape(*codes.shape, *[1] * (kept.ndim - codes.ndim)), kept.shape)
    return ShiftRows(rows, labelled, torch.from_numpy(by_sample[kept]).to(rows.values.device))


def _with_clusters(name: str, shift_set: ShiftSet) -> ShiftSet:
    """Return a set whose clusters are the images of dense predictions, unless others are given."""
    clusters = image_clusters(shift_set.logits, shift_set.clusters)
    if clusters is not None and shift_set.clusters is None:
        clusters = np.char.add(f"{name} ", np.asarray(clusters).astype(np.str_))  # not those of another set
    return shift_set._replace(clusters=clusters)


def _joint_codes(clusters: Sequence[Any]) -> list[np.ndarray]:
    """Number the clusters of all sets together: equal names are one cluster."""
    names = []
    for values in clusters:
        array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        is_whole = array.dtype.kind == "f" and (array == np.floor(array)).all()
        names.append((array.astype(np.int64) if is_whole else array).astype(np.str_))
    codes = np.unique(np.concatenate([array.ravel() for array in names]), return_inverse=True)[1]
    parts = np.split(codes, np.cumsum([array.size for array in names])[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, names, strict=True)]


def _shift_auroc(test: ShiftRows, test_score: Tensor, shifted: ShiftRows, score: Tensor, level: float) -> Auroc:
    """AUROC of telling the samples of a set from test samples."""
    if test_score.device != score.device:
        raise ValueError(f"the test set is on {test_score.device}, a shifted set on {score.device}: move one")
    positive = torch.arange(len(test_score) + len(score), device=score.device) >= len(test_score)
    cluster = None
    if test.cluster is not None and shifted.cluster is not None:
        cluster = torch.cat([test.cluster, shifted.cluster])
    return placements(tied_ranks(torch.cat([test_score, score])), positive, cluster).auroc(level)


def _with_labels(
    result: ShiftScores, rows: Rows, stats: Scan, score: Tensor, num_bins: int, level: float, seed: int
) -> ShiftScores:
    """Add what needs labels: the evaluation, the intervals, and the AUROC of right and wrong predictions."""
    if rows.cluster is None and (problem := copies_warning(rows)) is not None:
        warnings.warn(f"{result.name}: {problem}", stacklevel=4)
    evaluation = evaluate_rows(rows, stats, num_bins, settings=Settings(level=level, seed=seed))
    intervals = {"error": _error_interval(evaluation.error, rows, stats, level)}
    if min(len(rows), rows.num_clusters or LEAST) >= LEAST:
        drawn = resample([(rows, stats)], num_bins, seed=seed, classwise=False)
        for name in ("nll", "ece"):
            low, high = interval(drawn[name][:, 0], getattr(evaluation, name), level)
            if math.isfinite(low) and math.isfinite(high):
                intervals[name] = max(low, 0.0), high
    auroc = dict(result.auroc)
    wrong = torch.from_numpy(~stats.right).to(score.device)
    if bool(wrong.any()) and not bool(wrong.all()):
        auroc["errors"] = placements(tied_ranks(score), wrong, rows.cluster).auroc(level)
    return replace(result, evaluation=evaluation, intervals=intervals, auroc=auroc)


def _error_interval(error: float, rows: Rows, stats: Scan, level: float) -> tuple[float, float]:
    number = float(len(rows))
    if stats.cluster is not None:
        clusters = int(stats.cluster.max()) + 1
        residual = ~stats.right - error
        variance = error * (1 - error) / number
        squares = float((np.bincount(stats.cluster, residual) ** 2).sum())
        clustered = squares / number**2 * clusters / max(clusters - 1, 1)
        number = number * variance / max(clustered, variance) if clustered > 0 else float(clusters)
    return wilson(error, number, level)
