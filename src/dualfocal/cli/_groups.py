"""Groups of samples, each evaluated on its own: `--group-by` of `dualfocal evaluate`."""

from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from dualfocal.cli._common import print_table
from dualfocal.metrics import Evaluation
from dualfocal.predictions import Predictions

MOST_GROUPS = 1000
FEW = 5  # samples of each label, below which it may be chance that each lies in one group


def check_groups(name: str, data: Predictions) -> None:
    """Raise a ValueError if the groups are the labels."""
    if data.group_name is not None and data.group_name == data.label_name:
        raise ValueError(
            f"--group-by: {data.group_name!r} of {name} holds the labels, and among samples of one label no model is "
            "calibrated; group by what is known before the label is"
        )


def groups_follow_labels(data: Predictions, ignore_index: int) -> bool:
    """Whether every label lies in one group, as if groups had been made from labels: a copy, names, super-classes."""
    assert data.groups is not None
    kept = (data.target != ignore_index).numpy()
    if data.target.ndim > 1 or not kept.any():
        return False
    labels, groups = data.target.numpy()[kept], np.unique(data.groups[kept], return_inverse=True)[1]
    pairs, num_labels = len(np.unique(np.stack([labels, groups]), axis=1).T), len(np.unique(labels))
    return pairs == num_labels > 1 and groups.max() > 0 and len(labels) >= FEW * num_labels


def by_group(
    data: Predictions, ignore_index: int, run: Callable[..., Evaluation], err: Console
) -> dict[str, tuple[Evaluation, float]]:
    """Each group's evaluation and its p-value adjusted for their number (Holm), worst first.

    Worst is what is surely bad: by the lower end of the interval, then by how far the ECE exceeds its floor.
    """
    assert data.groups is not None
    names = np.unique(data.groups).tolist()
    if len(names) > MOST_GROUPS:
        raise ValueError(f"--group-by: at most {MOST_GROUPS} groups can be told apart, there are {len(names)}")
    # Adjusting multiplies p-values by up to the number of groups: they must be able to get small enough.
    draws = min(max(1000, 50 * len(names)), 20_000)
    found = {}
    for name in track(names, "groups", console=err, transient=True, disable=len(names) < 5 or not err.is_terminal):
        mask = torch.from_numpy(data.groups == name)
        values, target = data.values[mask], data.target[mask]
        if bool(target.ne(ignore_index).any()):
            found[str(name)] = run(values, target, data.input, draws)

    def badness(item: tuple[str, Evaluation]) -> tuple[float, float]:
        inference = item[1].inference
        assert inference is not None
        return inference.debiased_ece[0], item[1].ece - inference.floors["ece"].mean

    worst_first = sorted(found.items(), key=badness, reverse=True)
    adjusted = holm([result.inference.p_value for _, result in worst_first if result.inference is not None])
    return {name: (result, p) for (name, result), p in zip(worst_first, adjusted, strict=True)}


def holm(p_values: list[float]) -> list[float]:
    """Holm's adjustment: with it, any false alarm among all groups is as rare as one test's."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def print_groups(out: Console, column: str, groups: dict[str, tuple[Evaluation, float]]) -> None:
    rows, level = [], 0.9
    for name, (result, p) in groups.items():
        assert result.inference is not None
        level = result.inference.level
        low, high = (100 * end for end in result.inference.debiased_ece)
        percent = [f"{100 * result.error:.1f}", f"{100 * result.overconfidence:+.1f}", f"{100 * result.ece:.1f}"]
        floor = f"{100 * result.inference.floors['ece'].mean:.1f}"
        rows.append([name, f"{result.num_samples:,}", *percent, floor, f"{low:.1f} - {high:.1f}", f"{p:.3f}"])
    headings = [column, "N", "error", "conf - acc", "ECE", "floor", f"debiased, {100 * level:.4g} %", "adjusted p"]
    print_table(out, f"by {column}, worst first; percent", headings, rows)
    found = sum(p <= 0.05 for _, p in groups.values())
    text = (
        f"{found} of {len(groups)} groups are miscalibrated at 5 %, p-values adjusted for {len(groups)} tests (Holm). "
        "Worst first by the lower end of the interval."
    )
    out.print(text, style="bold", markup=False, highlight=False, soft_wrap=True)
