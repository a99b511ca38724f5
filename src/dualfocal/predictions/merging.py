"""Several files: parts of one set of predictions, or two models on the same samples."""

from collections.abc import Mapping

import numpy as np
import torch

from dualfocal.predictions.loading import Predictions


def merge_predictions(parts: Mapping[str, Predictions]) -> Predictions:
    """Concatenate labelled predictions that are parts of one set.

    Args:
        parts: the predictions by name, which errors mention; at least one.

    Raises:
        ValueError: the parts differ in the kind or shape of their values, or in their classes.
    """
    (first_name, first), *others = parts.items()
    for name, part in others:
        if part.input != first.input or part.values.shape[1:] != first.values.shape[1:]:
            raise ValueError(f"--merge: {first_name} has {first.taken}, but {name} has {part.taken}")
        if part.class_names != first.class_names:
            raise ValueError(f"--merge: the classes of {name} are not those of {first_name}, in the same order")
    every = list(parts.values())
    return Predictions(
        values=torch.cat([part.values for part in every]),
        input=first.input,
        labels=torch.cat([part.target for part in every]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in every]),
        class_names=first.class_names,
        taken=f"{len(parts)} files; of the first, {first.taken}",
    )


def check_same_labels(a: Predictions, b: Predictions) -> None:
    """Raise a ValueError unless both have the same labels, so that they can be of the same samples."""
    if a.class_names and b.class_names and a.class_names != b.class_names:
        raise ValueError("both files must have the same classes in the same order")
    if a.target.shape != b.target.shape:
        shapes = f"{tuple(a.target.shape)} and {tuple(b.target.shape)}"
        raise ValueError(f"both files must hold the same labels, got shapes {shapes}")
    differ = (a.target != b.target).reshape(-1).nonzero()[:, 0]
    if len(differ):
        i = int(differ[0])
        labels = f"{int(a.target.reshape(-1)[i])} and {int(b.target.reshape(-1)[i])}"
        raise ValueError(f"both files must hold the same labels: {len(differ)} differ, the first at {i}: {labels}")
