"""Predictions and targets, checked once: what evaluations, comparisons, calibrators, figures and reports take."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._tensors import class_indices
from dualfocal.checks import check_choice, check_ignore_index
from dualfocal.metrics.arrays import Array, as_numpy, as_tensor, names_of_classes
from dualfocal.metrics.inputs import (
    BINARY,
    INPUTS,
    ROUNDING,
    RowError,
    are_probabilities,
    check_independent,
    check_scores,
    check_target,
    checked_arrays,
    checked_weights,
    cluster_codes,
    no_labels,
    with_mean_one,
)
from dualfocal.metrics.rounding import Rounding, SumError, renormalise

ONE_IMAGE = (
    "the pixels of one image are treated as independent, which they are not: noise floors and p-values are too small "
    'and intervals too short; evaluate several images, or pass clusters="none" to accept this'
)


class SampleOptions(TypedDict, total=False):
    """What the predictions and targets of a metric mean: keyword arguments of :meth:`Samples.from_arrays`."""

    input: str | None
    ignore_index: int
    binary: str | None
    class_names: Sequence[str] | None
    clusters: Array | str | None
    sample_weight: Array | None


@dataclass(frozen=True, eq=False, repr=False)  # == of tensors is not a bool
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
    given: int | None = None  # number of the given samples, or images; None: as many as these
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

        >>> Samples.from_arrays([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [0, 1, -100])
        Samples(2 samples, 2 classes, logits)
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
            target, binary = no_labels(logits), binary or ("top_label" if logits.ndim == 1 else None)
        values, target, dtype, one_score = checked_arrays(logits, target, kind, binary, class_names)
        shape = target.shape
        weight = None if sample_weight is None else checked_weights(sample_weight, shape).to(values.device)
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
            given=shape[0],
            pixels=shape[1:].numel(),
        )
        keep = samples.target != ignore_index
        if weight is not None:
            keep &= weight > 0
            if not bool(keep.any()):
                raise ValueError("sample_weight is 0 for every sample that is not ignored: no sample is left")
        samples = samples if bool(keep.all()) else samples.at(keep)
        samples = replace(samples, weight=with_mean_one(samples.weight))
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
            check_scores(samples.values[:, 1])
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

    def __repr__(self) -> str:
        """Sizes, on one line."""
        classes = "confidences" if self.confidence_only else f"{self.num_classes} classes, {self.input}"
        clusters = "" if self.cluster is None else f", {self.num_clusters} clusters"
        weighted = "" if self.weight is None else ", weighted"
        return f"Samples({len(self)} samples, {classes}{clusters}{weighted})"

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
        part = replace(part, weight=with_mean_one(part.weight))
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
            ValueError: the column has another number of entries.
        """
        column = as_numpy(name, values.cpu() if isinstance(values, Tensor) else values)
        number = len(self) if self.given is None else self.given
        if column.shape != (number,):
            raise ValueError(f"{name} must have one entry per sample, shape ({number},), got shape {column.shape}")
        entries: NDArray[Any] = column[self.image()]
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
        TypeError: samples are given with a target or options, arrays without a target, or there is no such option.
    """
    if unknown := [name for name in options if name not in SampleOptions.__annotations__]:
        known = ", ".join(SampleOptions.__annotations__)
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}; predictions have the options {known}")
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
