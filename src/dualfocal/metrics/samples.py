"""Predictions and targets, checked once: what evaluations, comparisons, calibrators, figures and reports take."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._tensors import class_indices, first_true, wide_dtype
from dualfocal.checks import check_choice, check_ignore_index
from dualfocal.metrics.arrays import Array, as_numpy, as_tensor, class_targets, names_of_classes
from dualfocal.metrics.rounding import Rounding, SumError, are_rounded_probabilities, renormalise

INPUTS = ("logits", "probs")
BINARY = (None, "top_label", "positive")
FEW_CLASSES = 64  # with fewer classes, tiles are transposed: rows are too short to vectorise along
ROUNDING = 1e-6  # a probability may lie outside [0, 1] by this much
FIRST_ROWS = 256  # looked at first
EQUAL = 1e-12  # relative tolerance of equal weights

INDEPENDENT = "none"  # clusters of samples that are independent
VOID = 255  # label of pixels without a class in many data sets
ONE_IMAGE = (
    "the pixels of one image are treated as independent, which they are not: noise floors and p-values are too small "
    'and intervals too short; evaluate several images, or pass clusters="none" to accept this'
)


class RowError(ValueError):
    """A row of the predictions is invalid.

    Args:
        rule: what must hold for all rows.
        row: the row, without ignored samples.
        problem: what the row holds instead.
    """

    def __init__(self, rule: str, row: int, problem: str) -> None:
        super().__init__(f"{rule}: row {row} {problem}")
        self.rule, self.row, self.problem = rule, row, problem


class SampleOptions(TypedDict, total=False):
    """What the predictions and targets of a metric mean: keyword arguments of :meth:`Samples.from_arrays`."""

    input: str | None
    ignore_index: int
    binary: str | None
    class_names: Sequence[str] | None
    clusters: Array | str | None
    sample_weight: Array | None


@dataclass(frozen=True, eq=False)  # == of tensors is not a bool
class Samples:
    """Predictions and targets that were checked, one row per sample; make them with :meth:`from_arrays`.

    Every function that takes logits and targets also takes samples instead, and does not check them again. Samples that
    are ignored, or have weight 0, are left out.
    """

    values: Tensor  # (N, C) logits or probabilities, N >= 1, C >= 2
    target: Tensor  # (N,) int64 in [0, C)
    input: str = "logits"  # whether the values are "logits" or "probs"
    weight: Tensor | None = None  # (N,) float64, above 0, with mean 1; None: all samples count the same
    cluster: Tensor | None = None  # (N,) int64, 0, 1, ...: samples of one cluster may depend on each other
    cluster_names: NDArray[Any] | None = None  # names of the clusters 0, 1, ...
    class_names: tuple[str, ...] | None = None
    positive: bool = False  # whether the confidence is the probability of class 1 instead of the predicted class
    confidence_only: bool = False  # class 1 is "the prediction is right", and nothing is known of the classes
    labelled: bool = True  # False: the target is 0 for every sample and means nothing
    one_score: bool = False  # whether one score per sample was given, of which the values are made
    independent: bool = False  # whether the caller says that samples, or pixels, are independent
    dtype: torch.dtype = torch.float64  # precision of the caller's values: edges of bins are rounded to it
    rounding: Rounding | None = None  # how the probabilities were rounded; None: they were not
    index: Tensor | None = None  # (N,) int64, which of the given samples, or pixels, these are; None: all of them
    pixels: int = 1  # number of pixels per image of dense predictions

    @classmethod
    def from_arrays(
        cls,
        logits: Array,
        target: Array | None,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        binary: str | None = None,
        class_names: Sequence[str] | None = None,
        clusters: Array | str | None = None,
        sample_weight: Array | None = None,
    ) -> Self:
        """Check predictions and targets.

        Args:
            logits: ``(N, C)`` or ``(N, C, d1, ...)``: a tensor, a numpy array, a data frame or a list; or ``(N,)``, the
                score of class 1, with ``binary``. GPU tensors are processed on the GPU.
            target: class indices, ``(N,)`` or ``(N, d1, ...)``; or names of classes. None: there are no labels.
            input: ``"logits"`` or ``"probs"``, whichever ``logits`` holds. None means logits, and raises an error if
                the values look like probabilities. ``"confidence"`` if only the confidence of the predicted class is
                known: then ``logits`` holds these confidences, ``(N,)``, and ``target`` is 1 where the prediction is
                right and 0 where it is wrong.
            ignore_index: target value of samples to leave out.
            binary: for two classes only: ``"top_label"`` scores the probability of the predicted class (as with more
                classes), ``"positive"`` that of class 1.
            class_names: names of the classes, in the order of the columns of ``logits``, for labels that are texts and
                for texts of results. Not needed if ``logits`` is a data frame whose columns are named like the classes.
            clusters: the cluster of each sample, whole numbers or texts, ``(N,)``: samples of one cluster may depend on
                each other, such as the pixels of an image or the images of a patient. Noise floors, tests and intervals
                allow for it, see :mod:`dualfocal.metrics.inference`. Without it, the N images of dense predictions,
                ``(N, C, d1, ...)``, are the clusters, and other samples count as independent. ``"none"``: pixels are
                independent, too.
            sample_weight: weight of each sample, ``(N,)`` or ``(N, d1, ...)``, not negative: survey weights, or
                importance weights of a population with other inputs or labels. Metrics and inference are those of the
                weighted population. Only the ratios of the weights matter; samples of weight 0 are left out.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype or option is invalid, no sample is left, or rounding does not explain a sum.
            IndexError: a label is out of range.

        >>> samples = Samples.from_arrays([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [0, 1, -100])
        >>> len(samples), samples.num_classes
        (2, 2)
        """
        # NaN, infinities and sums are checked in the pass over all values, see dualfocal.metrics.scan.scan; except for
        # the sums of rounded probabilities, whose rows are made to sum to 1 here.
        check_choice("input", input, (None, *INPUTS, "confidence"))
        check_choice("binary", binary, BINARY)
        check_ignore_index(ignore_index)
        confidence_only = input == "confidence"
        if confidence_only:  # calibrated like the probability of class 1, which is "the prediction is right"
            input, binary, class_names = "probs", "positive", None
        kind, labelled = input or "logits", target is not None
        names = names_of_classes(logits, class_names)
        if target is None:
            logits = as_tensor("logits", logits)
            target, binary = _no_labels(logits), binary or ("top_label" if logits.ndim == 1 else None)
        values, target, dtype, one_score = _checked_arrays(logits, target, kind, binary, class_names)
        shape = target.shape
        weight = None if sample_weight is None else _weights(sample_weight, shape).to(values.device)
        if values.ndim > 2:
            values = values.movedim(1, -1).reshape(-1, values.shape[1])
        samples = cls(
            values,
            class_indices(target.reshape(-1)),
            kind,
            weight,
            class_names=names,
            positive=binary == "positive",
            confidence_only=confidence_only,
            labelled=labelled,
            one_score=one_score,
            independent=isinstance(clusters, str),
            dtype=dtype,
            pixels=shape[1:].numel(),
        )
        keep = samples.target != ignore_index
        if weight is not None:
            keep &= weight > 0
            if not bool(keep.any()):
                raise ValueError("sample_weight is 0 for every sample that is not ignored: no sample is left")
        samples = samples if bool(keep.all()) else samples.at(keep)
        samples = replace(samples, weight=_with_mean_one(samples.weight))
        if isinstance(clusters, str):
            check_independent(clusters)
        elif clusters is not None:
            samples = samples._with_clusters(*cluster_codes(clusters, shape))
        if input is None and are_probabilities(samples.values):
            raise ValueError(
                'logits must not be probabilities, but all rows lie in [0, 1] and sum to 1: pass input="probs", or '
                'input="logits" if they are logits nevertheless'
            )
        check_target(samples.target, samples.num_classes, ignore_index)
        if kind == "probs" and one_score:
            _check_scores(samples.values[:, 1])
        # Computing 1 - p, or renormalising, can turn 0 into -1e-10, whose logarithm is NaN.
        if kind == "probs" and -ROUNDING <= float(samples.values.min()) < 0:
            samples = replace(samples, values=samples.values.clamp_min(0.0))
        return samples._renormalised() if kind == "probs" else samples

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.values.shape[1]

    @property
    def num_clusters(self) -> int | None:
        """Number of clusters; None if the samples are independent."""
        return None if self.cluster is None else int(self.cluster.max()) + 1

    def __len__(self) -> int:
        return self.values.shape[0]

    def at(self, index: slice | Tensor) -> Self:
        """Return some of the samples, with their weights and the numbers of their clusters as they are."""
        weight, cluster = (None if column is None else column[index] for column in (self.weight, self.cluster))
        position = torch.arange(len(self), device=self.values.device) if self.index is None else self.index
        return replace(
            self,
            values=self.values[index],
            target=self.target[index],
            weight=weight,
            cluster=cluster,
            index=position[index],
        )

    def part(self, keep: NDArray[np.bool_]) -> Self:
        """Return a part of the samples as samples of their own: weights have mean 1, clusters are numbered again.

        Raises:
            ValueError: all samples of the part are in one cluster.
        """
        part = self.at(torch.from_numpy(keep).to(self.values.device))
        part = replace(part, weight=_with_mean_one(part.weight))
        if part.cluster is None or self.cluster_names is None:
            return part
        codes, cluster = np.unique(part.cluster.cpu().numpy(), return_inverse=True)
        if len(codes) < 2:
            raise ValueError(f"it holds only one cluster, {str(self.cluster_names[codes[0]])!r}")
        return replace(
            part,
            cluster=torch.from_numpy(cluster).to(self.values.device),
            cluster_names=self.cluster_names[codes],
        )

    def by_image(self) -> Self:
        """Return the samples with the images of dense predictions as clusters, unless others are given.

        The pixels of a single image count as independent, with a warning.
        """
        if self.cluster is not None or self.independent or self.pixels == 1:
            return self
        images, cluster = np.unique(self.image(), return_inverse=True)
        if len(images) == 1:
            warnings.warn(ONE_IMAGE, stacklevel=3)
            return self
        return replace(self, cluster=torch.from_numpy(cluster).to(self.values.device), cluster_names=images)

    def column(self, name: str, values: Array) -> NDArray[Any]:
        """Return the entries of the samples in a column with one entry per given sample; pixels have that of the image.

        Raises:
            ValueError: the column is shorter, or has no single dimension.
        """
        column = as_numpy(name, values.cpu() if isinstance(values, Tensor) else values)
        image = self.image()
        if column.ndim != 1 or len(column) <= image.max() or (self.index is None and len(column) > image.max() + 1):
            raise ValueError(f"{name} must have one entry per sample, but has shape {column.shape}")
        entries: NDArray[Any] = column[image]
        return entries

    def position(self) -> NDArray[np.int64]:
        """Return which of the given samples, or of all pixels, each one is, ``(N,)``."""
        return np.arange(len(self)) if self.index is None else self.index.cpu().numpy()

    def image(self) -> NDArray[np.int64]:
        """Return the image that each pixel is in, ``(N,)``; of other predictions, :meth:`position`."""
        return self.position() // self.pixels

    def cpu(self) -> Self:
        """Return the samples in the memory of the CPU."""
        weight, cluster, index = (None if c is None else c.cpu() for c in (self.weight, self.cluster, self.index))
        return replace(
            self, values=self.values.cpu(), target=self.target.cpu(), weight=weight, cluster=cluster, index=index
        )

    def check_classes(self, metric: str) -> None:
        """Raise a ValueError if only confidences are known, which is too little for a metric."""
        if self.confidence_only:
            raise ValueError(f"{metric} needs the probabilities of all classes, but only confidences are given")

    def _with_clusters(self, names: NDArray[Any], codes: Tensor) -> Self:
        """Add the clusters of all given samples; those of which all samples are left out are not counted."""
        codes = codes if self.index is None else codes[self.index.cpu()]
        used, cluster = np.unique(codes, return_inverse=True)
        if len(used) == 1:
            raise ValueError(
                "the samples that are not ignored lie in one cluster, which does not show how much clusters differ: "
                'add samples of other clusters, or pass clusters="none" to treat samples as independent'
            )
        return replace(self, cluster=torch.from_numpy(cluster).to(self.values.device), cluster_names=names[used])

    def _renormalised(self) -> Self:
        """Make rows of rounded probabilities sum to 1; raises a RowError if rounding does not explain a sum."""
        result = renormalise(self.values, self.dtype, weight=self.weight)
        if isinstance(result, SumError):
            raise RowError(result.rule, result.row, result.problem)
        values, rounding = result
        return self if rounding is None else replace(self, values=values, rounding=rounding)


def as_samples(logits: Array | Samples, target: Array | None, options: SampleOptions) -> Samples:
    """Return samples as they are, and make them of arrays: how every function with predictions begins.

    Raises:
        TypeError: samples are given with a target or options, or arrays without a target.
    """
    if not isinstance(logits, Samples):
        if target is None:
            raise TypeError("target is missing: pass class indices after the predictions")
        return Samples.from_arrays(logits, target, **options)
    given = [*(["target"] if target is not None else []), *options]
    if given:
        raise TypeError(f"samples were checked with their own target and options: leave out {', '.join(given)}")
    if not logits.labelled:
        raise ValueError("these samples have no labels: make them with a target")
    return logits


def same_samples(a: Samples, b: Samples) -> bool:
    """Return whether two models were scored on the same samples, as far as labels and weights show it."""
    if a.num_classes != b.num_classes or a.positive != b.positive or not torch.equal(a.target, b.target):
        return False
    if a.weight is None or b.weight is None:
        return a.weight is b.weight
    return torch.allclose(a.weight, b.weight)


def with_logits(samples: Samples, logits: Tensor) -> Samples:
    """Return the samples with other predictions, ``(N, C)`` logits, such as those of a calibrator."""
    return replace(samples, values=logits, input="logits", dtype=torch.float64, rounding=None)


def check_independent(clusters: str) -> None:
    """Raise a ValueError unless a text in place of clusters says that samples are independent."""
    if clusters != INDEPENDENT:
        raise ValueError(f'clusters must be an array with one entry per sample, or "none", got {clusters!r}')


def _checked_arrays(
    values: Array, target: Array, input: str, binary: str | None, class_names: Sequence[str] | None
) -> tuple[Tensor, Tensor, torch.dtype, bool]:
    """Check shapes and dtypes.

    Returns values (N, C, d1, ...), target (N, d1, ...), the dtype that edges have, and whether there is one score per
    sample.
    """
    name = "logits" if input == "logits" else "probabilities"
    target = as_tensor("target", class_targets(values, target, class_names))
    values = as_tensor(name, values).detach()
    if not values.is_floating_point():
        swapped = target.is_floating_point() and target.ndim > values.ndim
        hint = f"; the predictions come first, then the labels: ({name}, target)" if swapped else ""
        raise ValueError(f"{name} must be floating point, got {values.dtype}{hint}")
    if target.is_floating_point() or target.is_complex():
        raise ValueError(f"target must hold integer class indices, got {target.dtype}{_float_hint(target)}")
    if values.device != target.device:
        raise ValueError(f"{name} are on {values.device}, target is on {target.device}: move one to the other")
    dtype = values.dtype if input == "probs" else torch.float64
    if binary is not None and values.ndim == 2 and values.shape[1] == 1:  # one score per sample, in the layout of Keras
        values, target = values[:, 0], target[:, 0] if target.shape == values.shape else target
    one_score = values.ndim == 1
    if one_score:
        values = _two_columns(values, input, name, binary)
    if values.ndim < 2 or values.shape[1] < 2:
        raise ValueError(
            f"{name} must have shape (N, C) or (N, C, d1, ...) with at least two classes, got {tuple(values.shape)}"
        )
    if binary is not None and values.shape[1] != 2:
        raise ValueError(f"binary={str(binary)!r} needs two classes, but {name} have {values.shape[1]}")
    shape = values.shape[:1] + values.shape[2:]
    if target.shape != shape:
        hint = (
            "use target.squeeze(1)"
            if target.shape == (*shape[:1], 1, *shape[1:])
            else "one class index per sample (one-hot labels: target.argmax(1); several labels per sample: "
            "task='multilabel')"
        )
        raise ValueError(
            f"target for {name} of shape {tuple(values.shape)} must have shape {tuple(shape)}, got "
            f"{tuple(target.shape)}: {hint}"
        )
    return values, target, dtype, one_score


def _no_labels(values: Tensor) -> Tensor:
    """Return a target of zeros for predictions, in the shape that labels would have."""
    single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    shape = values.shape[:1] if single else values.shape[:1] + values.shape[2:]
    return torch.zeros(shape, dtype=torch.int64, device=values.device)


def _float_hint(target: Tensor) -> str:
    """Return the remedy for floating-point labels, for an error."""
    if target.ndim > 1:
        return "; of one-hot labels, use target.argmax(1)"
    if (missing := first_true(target.isnan())) is not None:
        return f", and entry {missing} is missing: leave out such samples, or set their labels to ignore_index"
    if target.is_floating_point() and bool((target == target.floor()).all()):
        return "; use target.long(), of a numpy array target.astype(int)"
    return "; a regression target has no classes and cannot be evaluated"


def are_probabilities(values: Tensor) -> bool:
    """Whether all rows of (N, C) values lie in [0, 1] and sum to 1, up to the rounding to a dtype or to decimals."""
    tolerance = 1e-2 if values.dtype in (torch.float16, torch.bfloat16) else 1e-3
    for part in (values[:FIRST_ROWS], values[FIRST_ROWS:]):  # of logits, the first part is enough
        low, high = (part.amin(1), part.amax(1)) if len(part) else (part[:, 0], part[:, 0])
        total = part.sum(1, dtype=wide_dtype(part))
        in_range = (low >= 0) & (high <= 1 + ROUNDING)
        if not bool((in_range & ((total - 1).abs() <= tolerance)).all()):
            return bool(in_range.all()) and are_rounded_probabilities(values)
    return len(values) > 0


def cluster_codes(clusters: Array, shape: Sequence[int]) -> tuple[NDArray[Any], Tensor]:
    """Return what :func:`cluster_names` returns, or raise a ValueError if there is only one cluster.

    >>> cluster_codes(["b", "a"], (2, 3))[1]
    tensor([1, 1, 1, 0, 0, 0])
    """
    names, codes = cluster_names(clusters, shape)
    if len(names) < 2:
        raise ValueError(
            f"clusters must hold at least two different values, got only {names.tolist()}: one cluster does not show "
            "how much clusters differ"
        )
    return names, codes


def cluster_names(clusters: Array, shape: Sequence[int]) -> tuple[NDArray[Any], Tensor]:
    """Return the names of the clusters, sorted, and the index of the name of each sample, ``(N,)``.

    Of dense predictions, clusters of images are repeated for their pixels.
    """
    names = clusters.cpu().numpy() if isinstance(clusters, Tensor) else as_numpy("clusters", clusters)
    if names.shape not in (tuple(shape), tuple(shape[:1])):
        raise ValueError(f"clusters must have one entry per sample, shape {tuple(shape[:1])}, got shape {names.shape}")
    if names.dtype.kind in "fOT":
        missing = [name is None or name != name for name in names.ravel().tolist()]
        if any(missing):
            raise ValueError(
                f"clusters must name the cluster of every sample, but entry {missing.index(True)} is missing: leave "
                "out such samples, or give each of them a cluster of its own"
            )
    if names.dtype.kind == "f" and bool((names == np.floor(names)).all()):
        names = names.astype(np.int64)
    if names.dtype.kind not in "iubUOT":
        raise ValueError(f"clusters must be whole numbers or texts, got {names.dtype}, such as {names.flat[0]}")
    unique, codes = np.unique(names.astype(np.str_) if names.dtype.kind in "OT" else names, return_inverse=True)
    codes = codes.reshape(*names.shape, *[1] * (len(shape) - names.ndim))
    return unique, torch.from_numpy(np.broadcast_to(codes, tuple(shape)).reshape(-1).copy())


def _weights(sample_weight: Array, shape: Sequence[int]) -> Tensor:
    """Check the weights of samples of this shape, and return them relative to the largest, (N,), float64.

    Of dense predictions, weights of images are repeated.
    """
    weight = as_tensor("sample_weight", sample_weight).detach()
    if weight.shape not in (tuple(shape), tuple(shape[:1])):
        raise ValueError(
            f"sample_weight must have one entry per sample, shape {tuple(shape)}, got shape {tuple(weight.shape)}"
        )
    if weight.is_complex():
        raise ValueError(f"sample_weight must hold real numbers, got {weight.dtype}")
    weight = weight.to("cpu", torch.float64)
    good = (weight >= 0) & weight.isfinite()
    if not bool(good.all()):
        first = int((~good).reshape(-1).nonzero()[0])
        value = float(weight.reshape(-1)[first])
        raise ValueError(f"sample_weight must be finite and not negative, but entry {first} is {value:g}")
    if not bool((weight > 0).any()):
        raise ValueError("sample_weight must not be 0 for all samples: no sample is left")
    weight = weight / weight.max()
    return weight.view(*weight.shape, *[1] * (len(shape) - weight.ndim)).expand(tuple(shape)).reshape(-1)


def _with_mean_one(weight: Tensor | None) -> Tensor | None:
    """Return the weights with mean 1: only their ratios matter. Equal weights are no weights."""
    if weight is None or not len(weight) or float(weight.max() - weight.min()) <= EQUAL * float(weight.max()):
        return None
    return weight / weight.mean()


def _two_columns(values: Tensor, input: str, name: str, binary: str | None) -> Tensor:
    """Turn one score per sample into two columns: sigmoid(z) = softmax(0, z)[1]."""
    if binary is None:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} are one score per sample, a binary problem: choose the confidence "
            "to score with binary='top_label' (of the predicted class) or binary='positive' (of class 1). A single "
            "sample has shape (1, C), its target (1,)"
        )
    values = values if values.device.type == "mps" else values.double()
    return torch.stack([torch.zeros_like(values) if input == "logits" else 1 - values, values], dim=1)


def _check_scores(scores: Tensor) -> None:
    """Raise an error unless each score, (N,), is a probability of class 1."""
    good = (scores >= -ROUNDING) & (scores <= 1 + ROUNDING)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        rule = "probabilities of class 1 must lie in [0, 1] and not be NaN"
        raise RowError(rule, row, f"holds {float(scores[row]):.6g}; are these logits?")


def check_target(target: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise an error unless there are class indices (N,), and all are in range."""
    if not len(target):
        raise ValueError(f"no samples: the input is empty, or every target is ignore_index = {ignore_index}")
    low, high = (int(end) for end in torch.aminmax(target))
    if low < 0 or high >= num_classes:
        hint = ""
        if low >= 1 and high == num_classes:
            hint = "; if the labels start at 1, subtract 1"
        if high == VOID:
            hint = f"; if {VOID} marks samples without a class, leave them out with ignore_index={VOID}"
        raise IndexError(
            f"target {low if low < 0 else high} is out of range: a class index must lie in [0, {num_classes - 1}] "
            f"or equal ignore_index = {ignore_index}{hint}"
        )


def check_logits(peak: Tensor, start: int = 0) -> None:
    """Raise a ValueError for the first row of invalid logits, given the maximum of each row.

    NaN in a row makes its maximum NaN. -inf is allowed: it rules out a class.
    """
    good = peak.isfinite()
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        problem = "NaN" if bool(peak[row].isnan()) else "no finite value" if peak[row] < 0 else "+inf"
        rule = "logits must not be NaN or +inf, and each row needs a finite value"
        raise RowError(rule, start + row, f"holds {problem}")
