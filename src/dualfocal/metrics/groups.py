"""Calibration of subgroups of samples, with p-values adjusted for the number of groups."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.arrays import Array
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.inference_result import Inference, holm
from dualfocal.metrics.result import Evaluation, inference_of
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import scan
from dualfocal.metrics.several import named_errors, tracked
from dualfocal.metrics.sums import CalibrationSums
from dualfocal.metrics.verdict import p_text
from dualfocal.tables import Table

MOST_GROUPS = 1000
MOST_SHOWN = 20  # groups in a table
QUANTILES = 5  # groups of numbers that are not whole
FEW = 5  # samples per label: with fewer, labels can lie in one group each by chance


@dataclass(frozen=True)
class GroupEvaluation:
    """The metrics of one group of samples."""

    name: str
    evaluation: Evaluation
    p_adjusted: float  # p-value of the test of calibration, adjusted for the number of groups (Holm)

    @property
    def inference(self) -> Inference:
        """Noise floors, test and confidence interval of the group."""
        return inference_of(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        return {"group": self.name, "p_adjusted": self.p_adjusted, **self.evaluation.to_dict()}


def evaluate_groups(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    groups: Array,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    convention: str | None = None,
    progress: Callable[[float], None] | None = None,
    **options: Unpack[SampleOptions],
) -> list[GroupEvaluation]:
    """Evaluate each group of samples, and sort the groups, worst first.

    Groups are sorted by the lower end of the confidence interval of the debiased error, then by how far the ECE exceeds
    its noise floor: a group comes first if it is certainly miscalibrated. A group whose samples are all ignored is left
    out, and so is one whose samples all have weight 0.

    Args:
        logits: predictions; or :class:`~dualfocal.metrics.Samples`.
        target: class indices; None with samples.
        groups: the group of each given sample, ``(N,)``: texts, integers or booleans; see also :func:`quantile_groups`.
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the intervals.
        seed: seed of the draws.
        convention: see :func:`~dualfocal.metrics.evaluate`.
        progress: called with the share of the groups that are done.
        **options: what predictions and targets mean, see :meth:`~dualfocal.metrics.Samples.from_arrays`.

    Raises:
        ValueError: there are more than 1000 groups, or all samples of a group are in one cluster.
    """
    samples = as_samples(logits, target, options)
    group = samples.column("groups", groups)
    names = np.unique(group).tolist()
    if len(names) > MOST_GROUPS:
        raise ValueError(
            f"at most {MOST_GROUPS} groups are supported, got {len(names)}: make a few groups of numbers, with "
            "quantile_groups"
        )
    settings = Settings(level=level, seed=seed, tests=len(names))
    evaluations: dict[str, Evaluation] = {}
    for name in tracked(names, progress):
        with named_errors(f"group {str(name)!r}"):
            part = samples.part(group == name).by_image()
            stats = scan(part, num_bins=num_bins, scores=True, classwise=True)
        evaluations[str(name)] = evaluate_samples(part, stats, num_bins, settings=settings, convention=convention)
    return rank_groups(evaluations)


def evaluate_many(
    sums: Mapping[str, CalibrationSums],
    *,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[GroupEvaluation]:
    """Evaluate the sums of several groups, tasks or sets, and sort them, worst first, as :func:`evaluate_groups` does.

    Args:
        sums: name -> sums.
        level: nominal coverage of the intervals.
        draws: number of draws for floors and p-values; small p-values are computed from more draws.
        seed: seed of the draws.
        progress: called with the share of the groups that are done.
    """
    settings = Settings(level, draws, seed, tests=len(sums))
    return rank_groups({name: sums[name].summarize(settings) for name in tracked(list(sums), progress)})


def rank_groups(evaluations: Mapping[str, Evaluation]) -> list[GroupEvaluation]:
    """Adjust the p-values of groups, by name, and sort the groups as :func:`evaluate_groups` does."""
    groups = [GroupEvaluation(name, evaluation, math.nan) for name, evaluation in evaluations.items()]
    groups.sort(
        key=lambda g: (g.inference.debiased_ece[0], g.evaluation.ece - g.inference.floors["ece"].mean), reverse=True
    )
    adjusted = holm([group.inference.joint_p_value for group in groups])
    return [replace(group, p_adjusted=p) for group, p in zip(groups, adjusted, strict=True)]


def quantile_groups(numbers: NDArray[Any], num_groups: int = QUANTILES) -> NDArray[np.str_]:
    """Cut numbers into groups of about equal size, named by their ranges. Equal numbers share a group.

    >>> print(quantile_groups(np.array([20, 31, 45, 45, 60, 78]), 3))
    ['20 to 31' '20 to 31' '45' '45' '60 to 78' '60 to 78']

    Args:
        numbers: ``(N,)``, integers or floating point.
        num_groups: number of groups; fewer if many numbers are equal.

    Raises:
        ValueError: a value is not a number, or is NaN.
    """
    if numbers.dtype.kind not in "iuf" or np.isnan(numbers).any():
        raise ValueError(f"groups by quantiles need numbers and no NaN, got {numbers.dtype}")
    ranks = [-(-k * len(numbers) // num_groups) - 1 for k in range(1, num_groups)]  # in integers: no rounding
    edges = np.sort(numbers)[ranks]
    index = np.searchsorted(edges, numbers, side="left")  # a number on an edge belongs below it
    names = np.empty(num_groups, dtype=object)
    for group in np.unique(index):
        members = numbers[index == group]
        low, high = f"{members.min():.4g}", f"{members.max():.4g}"
        names[group] = low if low == high else f"{low} to {high}"
    return names[index].astype(np.str_)


def groups_follow_labels(samples: Samples, groups: Array) -> bool:
    """Return whether each label lies in one group only, as if the groups had been made from the labels."""
    if samples.pixels > 1 or samples.confidence_only:  # the labels of confidences say right or wrong
        return False
    columns = samples.target.cpu().numpy(), samples.column("groups", groups)
    labels, index = (np.unique(column, return_inverse=True)[1] for column in columns)
    counts = np.bincount(index * (labels.max() + 1) + labels, minlength=(index.max() + 1) * (labels.max() + 1))
    return label_counts_follow_groups(counts.reshape(index.max() + 1, -1))


def label_counts_follow_groups(counts: NDArray[Any]) -> bool:
    """Return the same as :func:`groups_follow_labels`, from the number of samples by group and label, ``(G, C)``."""
    counts = counts[:, counts.sum(0) > 0]
    num_groups, num_labels = counts.shape
    one_group_each = bool(((counts > 0).sum(0) == 1).all())
    return one_group_each and num_groups > 1 and num_labels > 1 and counts.sum() >= FEW * num_labels


def group_table(column: str, groups: Sequence[GroupEvaluation], most: int = MOST_SHOWN) -> Table:
    """Return a table with a row for each of the first ``most`` groups, in percent."""
    rows = [group_row(group.name, group.evaluation, group.p_adjusted) for group in groups[:most]]
    headings = [column, "N", *group_headings(groups[0].evaluation), "adjusted p"]
    which = f"the worst {most} of {len(groups)} groups" if len(groups) > most else "worst first"
    return Table(headings, rows, f"by {column}, {which}; percent")


def group_headings(evaluation: Evaluation) -> list[str]:
    """Return the headings of :func:`group_row` between the number of samples and the p-value."""
    gap = "prob - freq" if evaluation.positive else "conf - acc"
    return ["error", gap, "ECE", "floor", f"debiased, {100 * inference_of(evaluation).level:.4g} %"]


def group_row(name: str, evaluation: Evaluation, p_value: float) -> list[str]:
    """Return the row of a group in a table, in percent."""
    inference = inference_of(evaluation)
    low, high = inference.debiased_ece
    return [
        name,
        f"{evaluation.num_samples:,}",
        f"{100 * evaluation.error:.1f}",
        f"{100 * evaluation.overconfidence:+.1f}",
        f"{100 * evaluation.ece:.1f}",
        f"{100 * inference.floors['ece'].mean:.1f}",
        f"{100 * low:.1f} - {100 * high:.1f}",
        p_text(p_value),
    ]
