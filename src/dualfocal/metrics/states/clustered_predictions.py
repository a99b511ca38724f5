"""An evaluation of dense predictions, or of other samples in clusters, from sums by cluster; no sample is kept."""

from typing import Self

import numpy as np

from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.bins import SUMS
from dualfocal.metrics.states._cluster_table import Integers
from dualfocal.metrics.states.binned import BinnedPredictions
from dualfocal.metrics.states.clustered import ClusteredState, cluster_name, names_and_codes
from dualfocal.tables import quantity


class ClusteredPredictions(ClusteredState[BinnedPredictions]):
    """Sums of predictions in clusters, such as the pixels of images, for all classes.

    ``update`` adds the samples of one cluster; ``a + b`` merges two states, whether their clusters are the same or not.
    ``evaluate`` computes what ``evaluate(logits, target, clusters=...)`` computes from the samples themselves.
    ``to_dict`` and ``from_dict`` write and read the state as JSON.

    Args:
        num_bins: number of bins of the calibration errors.

    Attributes:
        binned: sums of all samples; None before the first.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> state = ClusteredPredictions()
    >>> for image in range(60):  # of any size
    ...     logits = torch.randn(3, 8, 8, generator=generator)
    ...     target = torch.randint(0, 3, (8, 8), generator=generator)
    ...     state.update(logits[None], target[None], cluster=image)
    >>> state
    ClusteredPredictions(3,840 samples in 60 clusters, 3 classes, 15 bins)
    >>> state.evaluate().inference.clusters.number
    60
    """

    binned_type = BinnedPredictions

    @classmethod
    def from_predictions(
        cls,
        logits: Array,
        target: Array,
        clusters: Array | None = None,
        *,
        input: str | None = None,
        num_bins: int = 15,
        ignore_index: int = -100,
    ) -> Self:
        """Sum up predictions cluster by cluster.

        Args:
            logits: see :func:`~dualfocal.metrics.ece`.
            target: see :func:`~dualfocal.metrics.ece`.
            clusters: the cluster of each sample or image, ``(N,)``. By default, each of the N images of dense
                predictions, ``(N, C, d1, ...)``, is a cluster.
            input: see :func:`~dualfocal.metrics.ece`.
            num_bins: number of bins of the calibration errors.
            ignore_index: target value of samples to leave out.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid.
            IndexError: a target is not a class index.
        """
        values, labels = as_tensor("logits", logits), as_tensor("target", class_targets(logits, target))
        if values.ndim < 3 and clusters is None:
            raise ValueError(
                f"predictions of shape {tuple(values.shape)} need clusters, one entry per sample: only dense "
                "predictions, (N, C, d1, ...), have images as clusters by default"
            )
        number = np.arange(len(values)) if clusters is None else clusters
        names, codes = names_and_codes(number, len(values))
        state = cls(num_bins)
        for i, name in enumerate(names):
            here = (codes == i).nonzero()[:, 0].to(values.device)
            state.update(values[here], labels[here], name, input=input, ignore_index=ignore_index)
        return state

    def update(
        self,
        logits: Array,
        target: Array,
        cluster: int | str,
        *,
        input: str | None = None,
        ignore_index: int = -100,
    ) -> None:
        """Add samples of one cluster, which can be added in several parts. If they are invalid, nothing is added.

        Samples that are all ignored change nothing.

        Args:
            logits: ``(N, C)`` or ``(N, C, d1, ...)``, see :func:`~dualfocal.metrics.ece`; an image is ``image[None]``.
            target: ``(N,)`` or ``(N, d1, ...)``.
            cluster: number or name of the cluster.
            input: see :func:`~dualfocal.metrics.ece`.
            ignore_index: target value of samples to leave out.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype or probability is invalid, or the number of classes has changed.
            IndexError: a target is not a class index.
        """
        name, labels = cluster_name(cluster), as_tensor("target", target)
        if labels.numel() and bool((labels == ignore_index).all()):
            return
        part = BinnedPredictions.from_predictions(
            logits, labels, input=input, num_bins=self.num_bins, ignore_index=ignore_index
        )
        self._add(part, [name], [self._sums(part)])

    def _sums(self, part: BinnedPredictions) -> Integers:
        """Return counts, units and correct samples by middle cell, and the sums of (p - y) by class and bin."""
        count, whole, units, correct = (getattr(part.fine, name).numpy() for name in SUMS)
        cells = [np.add.reduceat(x, self.starts) for x in (count, units + (whole << 32), correct)]
        classes = part.classes
        residual = (classes.units + ((classes.whole - classes.correct) << 32)).numpy()  # (C, 2, B)
        by_class = np.concatenate([residual.sum(1), residual[:, 1].sum(1, keepdims=True)], axis=1)
        return np.concatenate([*cells, by_class.reshape(-1)])

    def __repr__(self) -> str:
        samples = f"{quantity(self.num_samples, 'sample')} in {quantity(self.num_clusters, 'cluster')}"
        classes = 0 if self.binned is None else self.binned.num_classes
        return f"ClusteredPredictions({samples}, {classes} classes, {quantity(self.num_bins, 'bin')})"
