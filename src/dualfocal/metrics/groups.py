"""Calibration of groups of samples, each evaluated on its own, with p-values adjusted for their number."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._table import Table
from dualfocal.metrics.evaluation import Evaluation, evaluate
from dualfocal.metrics.inference import Inference
from dualfocal.metrics.rows import Array, as_tensor

MOST_GROUPS = 1000
FEW = 5  # samples of each label, below which it may be chance that each lies in one group


@dataclass(frozen=True)
class GroupEvaluation:
    """The metrics of one group of samples."""

    name: str
    evaluation: Evaluation
    p_adjusted: float  # of "calibrated", adjusted for the number of groups (Holm)

    @property
    def inference(self) -> Inference:
        """The noise floors, test and interval of this group."""
        assert self.evaluation.inference is not None
        return self.evaluation.inference

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"group": self.name, "p_adjusted": self.p_adjusted, **self.evaluation.to_dict()}


def evaluate_groups(
    logits: Array,
    target: Array,
    groups: NDArray[Any],
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
    level: float = 0.9,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[GroupEvaluation]:
    """Evaluate each group of samples, worst first.

    The worst group is the one that is surely bad: groups are sorted by the lower end of the interval of the debiased
    error, then by how far the ECE exceeds its noise floor. A group whose samples are all ignored is left out.

    Args:
        logits: as :func:`~dualfocal.metrics.evaluate`.
        target: likewise.
        groups: ``(N,)``, the group of each sample: strings, integers or booleans.
        input: as :func:`~dualfocal.metrics.evaluate`; likewise ``num_bins`` to ``seed``.
        num_bins: see there.
        ignore_index: see there.
        binary: see there.
        convention: see there.
        level: see there.
        seed: see there.
        progress: called with the share of the groups that is done.

    Raises:
        ValueError: there are more than 1000 groups.
    """
    values, target = as_tensor("logits", logits), as_tensor("target", target)
    names = np.unique(groups).tolist()
    if len(names) > MOST_GROUPS:
        raise ValueError(f"--group-by: at most {MOST_GROUPS} groups can be told apart, there are {len(names)}")
    # Adjusting multiplies p-values by up to the number of groups: they must be able to get small enough.
    draws = min(max(1000, 50 * len(names)), 20_000)
    found: list[GroupEvaluation] = []
    for done, name in enumerate(names, start=1):
        mask = torch.from_numpy(groups == name)
        if bool(target[mask].ne(ignore_index).any()):
            evaluation = evaluate(
                values[mask],
                target[mask],
                input=input,
                num_bins=num_bins,
                inference=True,
                ignore_index=ignore_index,
                binary=binary,
                convention=convention,
                level=level,
                draws=draws,
                seed=seed,
            )
            found.append(GroupEvaluation(str(name), evaluation, math.nan))
        if progress is not None:
            progress(done / len(names))
    found.sort(
        key=lambda of: (of.inference.debiased_ece[0], of.evaluation.ece - of.inference.floors["ece"].mean), reverse=True
    )
    adjusted = holm([group.inference.p_value for group in found])
    return [replace(group, p_adjusted=p) for group, p in zip(found, adjusted, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment: any false alarm among all tests is then as rare as that of one test.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def groups_follow_labels(groups: NDArray[Any], target: Tensor, ignore_index: int = -100) -> bool:
    """Whether every label lies in one group, as if groups had been made from labels: a copy, names, super-classes."""
    kept = (target != ignore_index).numpy()
    if target.ndim > 1 or not kept.any():
        return False
    labels, index = target.numpy()[kept], np.unique(groups[kept], return_inverse=True)[1]
    num_pairs, num_labels = len(np.unique(np.stack([labels, index]), axis=1).T), len(np.unique(labels))
    return bool(num_pairs == num_labels > 1 and index.max() > 0 and len(labels) >= FEW * num_labels)


def group_table(column: str, groups: Sequence[GroupEvaluation]) -> Table:
    """A line for each group, in percent."""
    rows = []
    for group in groups:
        one, inference = group.evaluation, group.inference
        low, high = inference.debiased_ece
        rows.append(
            [
                group.name,
                f"{one.num_samples:,}",
                f"{100 * one.error:.1f}",
                f"{100 * one.overconfidence:+.1f}",
                f"{100 * one.ece:.1f}",
                f"{100 * inference.floors['ece'].mean:.1f}",
                f"{100 * low:.1f} - {100 * high:.1f}",
                f"{group.p_adjusted:.3f}",
            ]
        )
    level = f"debiased, {100 * groups[0].inference.level:.4g} %"
    headings = [column, "N", "error", "conf - acc", "ECE", "floor", level, "adjusted p"]
    return Table(headings, rows, f"by {column}, worst first; percent")
