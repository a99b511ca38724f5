"""Find the columns of predictions that are not in a file, such as a table of a database, by the same names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualfocal.checks import listed
from dualfocal.predictions._class_columns import parse_class_names
from dualfocal.predictions._formats.interface import Content, Look, PredictionsError, Table, shortened
from dualfocal.predictions._labels import positions_are_clear
from dualfocal.predictions._names import find_names
from dualfocal.predictions._questions import NameOptions


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of predictions, labels, groups and clusters.

    Args:
        input: ``"logits"`` or ``"probs"``.
        values: one column per class, in class order, or the only column: an array per row, or one score per sample.
        target: column of the labels.
        group: column of the groups (None: not requested).
        class_names: class names, from the names of the columns (None: unknown, or 0, 1, ...).
        ordered: whether the caller gave the order of the classes.
        cluster: column of the clusters (None: not requested).
    """

    input: str
    values: tuple[str, ...]
    target: str
    group: str | None
    class_names: tuple[str, ...] | None
    ordered: bool
    cluster: str | None = None

    @property
    def numbers_are_positions(self) -> bool:
        """Whether labels 0, 1, ... can only be the positions of the classes."""
        return self.class_names is None or self.ordered or positions_are_clear(self.class_names)

    def named(self, place: str, class_names: str | Sequence[str | int], num_classes: int) -> "PredictionColumns":
        """Return the columns with names of the classes, by the rules for files.

        Args:
            place: what has the columns, for messages.
            class_names: see :func:`~dualfocal.predictions.load_predictions`; numbers are allowed, too.
            num_classes: number of classes.

        Raises:
            PredictionsError: there is not one distinct name per class, or the columns have other names.
        """
        names = parse_class_names(class_names if isinstance(class_names, str) else [*map(str, class_names)])
        if len(names) != num_classes or len(set(names)) < num_classes:
            raise PredictionsError(
                f"{place}: --class-names must be {num_classes} distinct names, one per class, got {listed(names)}"
            )
        if self.class_names is not None and not all(map(str.isdecimal, self.class_names)) and names != self.class_names:
            raise PredictionsError(
                f"{place}: --class-names must be those of the columns, {listed(self.class_names)}, in the same order, "
                f"got {listed(names)}"
            )
        return replace(self, class_names=names, ordered=True)


def find_columns(
    place: str,
    names: Sequence[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> PredictionColumns:
    """Find the columns of logits or probabilities, labels, groups and clusters, as in a file with these columns.

    Columns named like the labels (``cat``, ``dog``, ``label``) are not recognised: no row is read. Give their names.

    Args:
        place: what has the columns, for messages.
        names: names of all columns.
        logits: see :func:`~dualfocal.predictions.load_predictions`.
        probs: see :func:`~dualfocal.predictions.load_predictions`.
        target: see :func:`~dualfocal.predictions.load_predictions`.
        group: see :func:`~dualfocal.predictions.load_predictions`.
        cluster: see :func:`~dualfocal.predictions.load_predictions`.

    Raises:
        PredictionsError: a name is missing or ambiguous; the message says which option decides.

    >>> columns = find_columns("predictions", ["id", "prob_cat", "prob_dog", "label"])
    >>> columns.input, columns.values, columns.target, columns.class_names
    ('probs', ('prob_cat', 'prob_dog'), 'label', ('cat', 'dog'))
    """
    if logits is not None and probs is not None:
        raise PredictionsError(f"{place}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    source = _Columns(place, names)
    options = NameOptions(logits=logits, probs=probs, target=target, group=group, cluster=cluster)
    roles = find_names(source, options, required=True)
    values = roles.values
    assert roles.label is not None  # it is required
    if values.kind == "confidence":
        raise source.error("has only the predicted class and its confidence: export the rows to a file for that")
    return PredictionColumns(
        values.kind, tuple(values.names), roles.label, roles.group, values.classes, values.ordered, roles.cluster
    )


class _Columns(Table):
    """Names of columns without their content."""

    def __init__(self, place: str, names: Sequence[str]) -> None:
        super().__init__(Path())
        self.place_name, self.names = place, list(names)

    @property
    def command(self) -> list[str]:
        return ["dualfocal", "evaluate", "--sql", "..."]

    def read(self, values: list[str], others: list[str]) -> Content:
        raise self.error("no row is read")

    def looks(self) -> dict[str, Look]:
        return {}

    def carried(self, names: list[str]) -> dict[str, Any]:
        raise self.error("no row is read")

    def error(self, text: str) -> PredictionsError:
        return PredictionsError(f"{self.place_name}: {shortened(text, 2000)}")
