"""Bring predictions with the same classes in another order into one order."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dualfocal.predictions.loading import Predictions


def class_order(names: Sequence[str] | None, wanted: Sequence[str] | None) -> list[int] | None:
    """Return where each wanted class stands among ``names``, or None if the order is the same or unknown.

    >>> class_order(("cat", "dog"), ("dog", "cat")), class_order(("cat", "dog"), ("cat", "dog"))
    ([1, 0], None)

    Raises:
        ValueError: the classes are not the same.
    """
    if not names or not wanted or tuple(names) == tuple(wanted):
        return None
    kinds = {"missing": set(wanted) - set(names), "additional": set(names) - set(wanted)}
    if any(kinds.values()) or len(names) != len(wanted):
        differences = [f"{kind} {', '.join(sorted(some)[:5])}" for kind, some in kinds.items() if some]
        raise ValueError(f"the classes must be {', '.join(wanted[:10])}: {'; '.join(differences)}")
    places = {name: place for place, name in enumerate(names)}
    return [places[name] for name in wanted]


def reorder_classes(data: Predictions, order: Sequence[int]) -> Predictions:
    """Return the predictions with class ``order[k]`` as class k."""
    names, columns = data.class_names, data.columns
    return replace(
        data,
        values=data.values[:, list(order)],
        labels=None if data.labels is None else _renumber(data.labels, order),
        class_names=None if names is None else tuple(names[place] for place in order),
        columns=tuple(columns[place] for place in order) if len(columns) == len(order) else columns,
        taken=f"{data.taken}, classes brought into the same order",
    )


def _renumber(labels: Tensor, order: Sequence[int]) -> Tensor:
    """Return the labels in the new numbering; labels that are no class, such as ignored ones, stay as they are."""
    new = torch.empty(len(order), dtype=torch.int64)
    new[torch.tensor(order)] = torch.arange(len(order))
    is_class = (labels >= 0) & (labels < len(order))
    return torch.where(is_class, new[labels.clamp(0, len(order) - 1)], labels)
