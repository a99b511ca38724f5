"""A model on shifted data: error, NLL and ECE of each set, and how well the model's uncertainty notices the shift.

The error has Wilson's interval; with clusters, for the number of independent samples that carry the same information.
The intervals of NLL and ECE come from a bootstrap of samples or clusters. The interval of the ECE is about the expected
ECE of so many samples, which includes the noise floor: compare the ECE with its floor. AUROC has DeLong's interval, see
:mod:`dualfocal.metrics.auroc`. ``benchmarks/shift_coverage.py`` checks the coverage of all of them by simulation.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.checks import check_count, check_level
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.auroc import Auroc, placements
from dualfocal.metrics.comparison import LEAST, interval
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.resampling import ShareDone, resample
from dualfocal.metrics.samples import SampleOptions, Samples
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import tied_ranks, uncertainty
from dualfocal.metrics.several import named_errors, tracked
from dualfocal.metrics.shift.scores import ShiftEvaluation, ShiftScores, severity_order

TEST = "test"
SCORES = {"entropy": "entropy", "confidence": "max_prob"}  # what tells shifted from test samples


ShiftSet = Samples | tuple[Array, Array | None]  # predictions and class indices; None: no labels


def evaluate_shift(
    test: ShiftSet,
    shifted: Mapping[str, ShiftSet],
    *,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
    **options: Unpack[SampleOptions],
) -> ShiftEvaluation:
    """Evaluate a model on a test set and on shifted sets: distorted, later, or from another place.

    Args:
        test: logits and target of the test set; or :class:`~dualfocal.metrics.Samples`, which can have clusters. A
            cluster may have samples in several sets, such as an image and its distorted copies; without clusters, the
            images of dense predictions of different sets are different.
        shifted: name -> the same for each shifted set; without labels (``(logits, None)``), only AUROC is computed.
            Names that end in numbers, such as ``"noise-3"``, are put in the order of these numbers.
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the intervals.
        seed: seed of the draws behind floors, tests and intervals.
        progress: called with the share of the sets that are done.
        **options: what predictions and targets mean, for all sets that are not samples, see
            :meth:`~dualfocal.metrics.Samples.from_arrays`.

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
    sets = shift_samples(test, shifted, options)
    return evaluate_shift_samples(sets, num_bins=num_bins, level=level, seed=seed, progress=progress)


@dataclass(frozen=True)
class ShiftSamples:
    """Samples of one set.

    ``cluster`` is like ``samples.cluster``, but numbers the clusters of all sets together.
    """

    samples: Samples
    cluster: Tensor | None


def shift_samples(test: ShiftSet, shifted: Mapping[str, ShiftSet], options: SampleOptions) -> dict[str, ShiftSamples]:
    """Check all sets; the test set comes first."""
    if not shifted:
        raise ValueError("shifted must hold at least one set")
    if TEST in shifted:
        raise ValueError(f"{TEST!r} is the name of the test set: give the shifted set another name")
    sets: dict[str, Samples] = {}
    names: dict[str, NDArray[np.str_]] = {}  # of the clusters of a set
    for name, given in ({TEST: test} | {name: shifted[name] for name in severity_order(shifted)}).items():
        with named_errors(name):
            samples = given if isinstance(given, Samples) else Samples.from_arrays(*given, **options)
            samples.check_classes("evaluate_shift")
            if samples.weight is not None:
                raise ValueError("evaluate_shift does not apply to weighted samples")
            sets[name] = by_image = samples.by_image()
            number, expected = by_image.num_classes, sets[TEST].num_classes
            if number != expected:
                raise ValueError(f"it has {number} classes, but the test set has {expected}")
        if by_image.cluster_names is not None:
            own = by_image.cluster_names.astype(np.str_)
            names[name] = own if samples.cluster is not None else np.char.add(f"{name} ", own)  # images of this set
    if not sets[TEST].labelled:
        raise ValueError("the test set needs labels: pass (logits, target)")
    if names and len(names) < len(sets):
        without = next(name for name in sets if name not in names)
        raise ValueError(f"either all sets have clusters or none, but {without!r} has none")
    if not names:
        return {name: ShiftSamples(samples, None) for name, samples in sets.items()}
    joint = np.unique(np.concatenate(list(names.values())), return_inverse=True)[1]
    codes = np.split(joint, np.cumsum([len(own) for own in names.values()])[:-1])
    return {
        name: ShiftSamples(samples, torch.from_numpy(own).to(samples.values.device)[samples.cluster])
        for (name, samples), own in zip(sets.items(), codes, strict=True)
    }


def evaluate_shift_samples(
    sets: Mapping[str, ShiftSamples],
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
        samples, labelled = shift_set.samples, shift_set.samples.labelled
        with named_errors(name):
            stats = scan(samples, num_bins=num_bins, scores=labelled, classwise=labelled)
        scores = {label: uncertainty(samples, score) for label, score in SCORES.items()}
        auroc: dict[str, Auroc] = {}
        if results:
            auroc = {label: _shift_auroc(test, test_scores[label], shift_set, scores[label], level) for label in SCORES}
        test_scores = test_scores or scores
        result = ShiftScores(name, len(samples), auroc=auroc)
        if labelled:
            result = _with_labels(result, samples, stats, scores["confidence"], num_bins, level, seed)
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


def _shift_auroc(test: ShiftSamples, test_score: Tensor, shifted: ShiftSamples, score: Tensor, level: float) -> Auroc:
    """AUROC of telling the samples of a set from test samples."""
    if test_score.device != score.device:
        raise ValueError(f"the test set is on {test_score.device}, a shifted set on {score.device}: move one")
    positive = torch.arange(len(test_score) + len(score), device=score.device) >= len(test_score)
    cluster = None
    if test.cluster is not None and shifted.cluster is not None:
        cluster = torch.cat([test.cluster, shifted.cluster])
    return placements(tied_ranks(torch.cat([test_score, score])), positive, cluster).auroc(level)


def _with_labels(
    result: ShiftScores, samples: Samples, stats: Scan, score: Tensor, num_bins: int, level: float, seed: int
) -> ShiftScores:
    """Add what needs labels: the evaluation, the intervals, and the AUROC of right and wrong predictions."""
    if samples.cluster is None and (problem := copies_warning(samples)) is not None:
        warnings.warn(f"{result.name}: {problem}", stacklevel=4)
    evaluation = evaluate_samples(samples, stats, num_bins, settings=Settings(level=level, seed=seed))
    intervals = {"error": _error_interval(evaluation.error, samples, stats, level)}
    if min(len(samples), samples.num_clusters or LEAST) >= LEAST:
        drawn = resample([(samples, stats)], num_bins, seed=seed, classwise=False)
        for name in ("nll", "ece"):
            low, high = interval(drawn[name][:, 0], getattr(evaluation, name), level)
            if math.isfinite(low) and math.isfinite(high):
                intervals[name] = max(low, 0.0), high
    auroc = dict(result.auroc)
    wrong = torch.from_numpy(~stats.right).to(score.device)
    if bool(wrong.any()) and not bool(wrong.all()):
        auroc["errors"] = placements(tied_ranks(score), wrong, samples.cluster).auroc(level)
    return replace(result, evaluation=evaluation, intervals=intervals, auroc=auroc)


def _error_interval(error: float, samples: Samples, stats: Scan, level: float) -> tuple[float, float]:
    number = float(len(samples))
    if stats.cluster is not None:
        clusters = int(stats.cluster.max()) + 1
        residual = ~stats.right - error
        variance = error * (1 - error) / number
        squares = float((np.bincount(stats.cluster, residual) ** 2).sum())
        clustered = squares / number**2 * clusters / max(clusters - 1, 1)
        number = number * variance / max(clustered, variance) if clustered > 0 else float(clusters)
    return wilson(error, number, level)
