"""The input of multi-label metrics and calibrators: one probability and one 0 or 1 for each sample and label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dualfocal.checks import check_choice, check_ignore_index, listed
from dualfocal.metrics.arrays import Array, as_tensor, column_names, in_column_order, names_of_classes
from dualfocal.metrics.inputs import INPUTS, ROUNDING, check_independent, cluster_codes
from dualfocal.metrics.samples import SampleOptions, Samples


@dataclass(frozen=True)
class Entries:
    """Checked multi-label predictions, without samples whose entries are all ignored."""

    values: Tensor  # (N, L) log-odds or probabilities
    target: Tensor  # (N, L) int64, 0 or 1; anything where the entry is ignored
    keep: Tensor  # (N, L) bool, False for ignored entries
    input: str  # "logits" or "probs"
    names: tuple[str, ...]  # of the labels
    cluster: Tensor | None = None  # (N,) int64, as the caller gave them

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: Tensor) -> "Entries":
        """Return some of the samples."""
        cluster = None if self.cluster is None else self.cluster[index]
        return replace(
            self, values=self.values[index], target=self.target[index], keep=self.keep[index], cluster=cluster
        )

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return self.values.shape[1]

    def label(self, index: int) -> Samples | None:
        """Return the entries of a label as samples of a binary problem; None if all are ignored."""
        keep = self.keep[:, index]
        if not bool(keep.any()):
            return None
        cluster = None if self.cluster is None else self.cluster[keep]
        return self._samples(self.values[keep, index], self.target[keep, index], cluster)

    def pooled(self) -> Samples:
        """Return all entries as samples of one binary problem, in the clusters given, or else by sample."""
        cluster = torch.arange(len(self), device=self.values.device) if self.cluster is None else self.cluster
        return self._samples(
            self.values[self.keep], self.target[self.keep], cluster[:, None].expand_as(self.keep)[self.keep]
        )

    def _samples(self, values: Tensor, target: Tensor, cluster: Tensor | None) -> Samples:
        return Samples.from_arrays(
            values,
            target,
            input=self.input,
            ignore_index=-1,
            binary="positive",
            clusters=None if cluster is None or not bool((cluster != cluster[0]).any()) else cluster,
        )


def as_entries(logits: Array | Samples, target: Array | None, options: SampleOptions) -> Entries:
    """Check multi-label predictions; without ``input``, logits are meant, which is checked.

    Raises:
        TypeError: an argument is not an array.
        ValueError: a shape, dtype, value or option is invalid, or no entry is left.

    >>> entries = as_entries([[2.0, -1.0], [0.5, -3.0]], [[1, 0], [0, -100]], {"class_names": ["cat", "dog"]})
    >>> entries.keep.tolist(), entries.names
    ([[True, True], [True, False]], ('cat', 'dog'))
    """
    if isinstance(logits, Samples) or target is None:
        raise TypeError("task='multilabel' takes logits and target, each of shape (N, L)")
    for name in ("binary", "sample_weight"):
        if options.get(name) is not None:
            raise ValueError(f"{name} does not apply to task='multilabel': leave it out")
    input, class_names, clusters = options.get("input"), options.get("class_names"), options.get("clusters")
    ignore_index = options.get("ignore_index", -100)
    if isinstance(clusters, str):
        check_independent(clusters)
        clusters = None
    check_choice("input", input, (None, *INPUTS))
    check_ignore_index(ignore_index)
    if ignore_index in (0, 1):
        raise ValueError(f"ignore_index must not be 0 or 1 with task='multilabel', got {ignore_index}")
    if columns := column_names(logits):
        target = in_column_order("target", target, columns, "the predictions")
    elif class_names is not None:
        target = in_column_order("target", target, tuple(map(str, class_names)), "class_names")
    values = as_tensor("logits" if input != "probs" else "probabilities", logits).detach()
    labels = as_tensor("target", target).detach()
    _check_shapes(values, labels)
    number = values.shape[1]
    names = names_of_classes(logits, class_names, number=number, kind="label") or tuple(map(str, range(number)))
    if len(set(names)) < number:
        raise ValueError(f"the columns of the predictions must have distinct names, got {listed(names)}")
    keep = labels != ignore_index
    _check_targets(labels, keep, ignore_index, names)
    if input is None and bool(((values >= 0) & (values <= 1) | ~keep).all()):
        raise ValueError(
            'logits must not be probabilities, but all of them lie in [0, 1]: pass input="probs", or input="logits" if '
            "they are logits nevertheless"
        )
    _check_values(values, keep, input or "logits", names)
    used, labels = keep.any(1), labels.long()
    cluster = None if clusters is None else cluster_codes(clusters, values.shape[:1])[1][used.cpu()].to(values.device)
    if not bool(used.all()):
        values, labels, keep = values[used], labels[used], keep[used]
    return Entries(values, labels, keep, input or "logits", names, cluster)


def _check_shapes(values: Tensor, target: Tensor) -> None:
    shape = tuple(values.shape)
    if not values.is_floating_point() or values.ndim != 2 or not values.numel():
        hint = "; a single label is a binary problem: binary='positive'" if values.ndim == 1 else ""
        raise ValueError(
            "task='multilabel' needs floating-point logits or probabilities of shape (N, L), one column per label, got "
            f"{values.dtype} of shape {shape}{hint}"
        )
    if target.shape != values.shape:
        hint = "; if each sample has exactly one class, leave out task" if target.ndim == 1 else ""
        raise ValueError(
            f"target must have the shape of the predictions, {shape}, with a 0 or 1 for each sample and label, got "
            f"{tuple(target.shape)}{hint}"
        )
    if values.device != target.device:
        raise ValueError(f"predictions are on {values.device}, target is on {target.device}: move one to the other")


def _check_targets(target: Tensor, keep: Tensor, ignore_index: int, names: Sequence[str]) -> None:
    wrong = keep & (target != 0) & (target != 1)
    if bool(wrong.any()):
        row, label = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"target must hold 0, 1 or ignore_index = {ignore_index}, got {target[row, label].item()} in row {row}, "
            f"label {names[label]!r}"
        )
    if not bool(keep.any()):
        raise ValueError(f"no samples: every target is ignore_index = {ignore_index}")


def _check_values(values: Tensor, keep: Tensor, input: str, names: Sequence[str]) -> None:
    if input == "logits":
        bad, rule = values.isnan() | (values == torch.inf), "logits must not be NaN or +inf"
    else:
        bad = ~((values >= -ROUNDING) & (values <= 1 + ROUNDING))
        rule = "probabilities must lie in [0, 1] and not be NaN"
    bad &= keep
    if bool(bad.any()):
        row, label = bad.nonzero()[0].tolist()
        value = float(values[row, label])
        hint = "; are these logits?" if input == "probs" and value == value else ""
        raise ValueError(f"{rule}, got {value:.6g} in row {row}, label {names[label]!r}{hint}")
