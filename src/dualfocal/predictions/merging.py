"""Merge the predictions of several files."""

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
