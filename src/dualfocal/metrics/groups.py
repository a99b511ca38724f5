"""Calibration of subgroups of samples, with p-values adjusted for the number of groups."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics._several import tracked
from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.evaluation import evaluate_rows, scored_rows
from dualfocal.metrics.inference_result import Inference, holm
from dualfocal.metrics.result import Evaluation, inference_of
from dualfocal.metrics.rows import image_clusters
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

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        return cls(content["group"], Evaluation.from_dict(content), content["p_adjusted"])


def evaluate_groups(
    logits: Array,
    target: Array,
    groups: NDArray[Any],
    *,
    input: str | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    clusters: NDArray[Any] | str | None = None,
    sample_weight: NDArray[Any] | None = None,
    progress: Callable[[float], None] | None = None,
) -> list[GroupEvaluation]:
    """Evaluate each group of samples, and sort the groups, worst first.

    Groups are sorted by the lower end of the confidence interval of the debiased error, then by how far the ECE exceeds
    its noise floor: a group comes first if it is certainly miscalibrated. A group whose samples are all ignored is left
    out, and so is one whose samples all have weight 0.

    Args:
        logits: see :func:`~dualfocal.metrics.evaluate`.
        target: see :func:`~dualfocal.metrics.evaluate`.
        groups: ``(N,)``, the group of each sample: strings, integers or booleans; see also :func:`quantile_groups`.
        input: see :func:`~dualfocal.metrics.evaluate`.
        num_bins: see :func:`~dualfocal.metrics.evaluate`.
        ignore_index: see :func:`~dualfocal.metrics.evaluate`.
        binary: see :func:`~dualfocal.metrics.evaluate`.
        convention: see :func:`~dualfocal.metrics.evaluate`.
        level: see :func:`~dualfocal.metrics.evaluate`.
        seed: see :func:`~dualfocal.metrics.evaluate`.
        clusters: see :func:`~dualfocal.metrics.evaluate`.
        sample_weight: see :func:`~dualfocal.metrics.evaluate`.
        progress: called with the share of the groups that are done.

    Raises:
        ValueError: there are more than 1000 groups, or all samples of a group are in one cluster.
    """
    values, target = as_tensor("logits", logits), as_tensor("target", class_targets(logits, target))
    names = np.unique(groups).tolist()
    if len(names) > MOST_GROUPS:
        raise ValueError(
            f"--group-by: at most {MOST_GROUPS} groups are supported, got {len(names)}; --group-quantiles {QUANTILES} "
            "makes a few groups of numbers"
        )
    settings = Settings(level=level, seed=seed, tests=len(names))
    evaluations: dict[str, Evaluation] = {}
    for name in tracked(names, progress):
        mask = groups == name
        members = clusters[mask] if isinstance(clusters, np.ndarray) else clusters
        if isinstance(members, np.ndarray) and (members == members[0]).all():
            raise ValueError(f"group {str(name)!r} holds only one cluster, {str(members[0])!r}: leave out such groups")
        weight = None if sample_weight is None else np.asarray(sample_weight)[mask]
        index = torch.from_numpy(mask)
        if not bool(target[index].ne(ignore_index).any()) or (weight is not None and not weight.any()):
            continue
        rows, stats = scored_rows(
            values[index],
            target[index],
            num_bins,
            input=input,
            binary=binary,
            ignore_index=ignore_index,
            clusters=image_clusters(values[index], members),
            sample_weight=weight,
        )
        evaluations[str(name)] = evaluate_rows(rows, stats, num_bins, settings=settings, convention=convention)
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


def groups_follow_labels(groups: NDArray[Any], target: Tensor, ignore_index: int = -100) -> bool:
    """Return whether each label lies in one group only, as if the groups had been made from the labels."""
    kept = (target != ignore_index).numpy()
    if target.ndim > 1 or not kept.any():
        return False
    labels, index = (np.unique(values[kept], return_inverse=True)[1] for values in (target.numpy(), groups))
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
