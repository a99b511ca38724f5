"""Sums of the confidences of predicted classes in clusters."""

import torch
from torch import Tensor

from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.states.binned_confidences import BinnedConfidences, empty_cells, sums_of_scores
from dualfocal.metrics.states.clustered import ClusteredState, names_and_codes
from dualfocal.metrics.units import Binner, equal_edges, to_units


class ClusteredConfidences(ClusteredState[BinnedConfidences]):
    """Sums of the confidences of predicted classes in clusters, for predictions with very many classes.

    ``update`` adds samples; ``a + b`` merges two states, whether their clusters are the same or not. ``evaluate``
    computes the metrics; those that need all class probabilities are NaN. ``to_dict`` and ``from_dict`` write and read
    the state as JSON.

    Args:
        num_bins: number of bins of the calibration errors.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> state = ClusteredConfidences()
    >>> for text in range(100):
    ...     confidence = torch.rand(50, generator=generator)
    ...     right = torch.rand(50, generator=generator) < confidence
    ...     state.update(confidence, right, clusters=text)
    >>> state
    ClusteredConfidences(5,000 samples in 100 clusters, 15 bins)
    >>> result = state.evaluate()
    >>> result.inference.clusters.number, result.inference.p_value > 0.05
    (100, True)
    """

    binned_type = BinnedConfidences

    def __init__(self, num_bins: int = 15) -> None:
        super().__init__(num_bins)
        self.fine_edges = empty_cells(equal_edges(num_bins)).edges
        self.middle = Binner(torch.cat([self.fine_edges[self.starts], self.fine_edges[-1:]]))

    @property
    def bins(self) -> BinStats:
        """Bins of the confidence, for ECE and reliability diagram."""
        binned = BinnedConfidences(BinStats.empty(edges=self.fine_edges)) if self.binned is None else self.binned
        return binned.bins

    def update(
        self,
        confidence: Array,
        right: Array,
        clusters: Array | int | str,
        *,
        nll: Array | None = None,
        brier: Array | None = None,
    ) -> None:
        """Add samples. If an argument is invalid, nothing is added.

        Args:
            confidence: probability of the predicted class of each sample, ``(N,)``, in [0, 1].
            right: whether the predicted class is the true class, ``(N,)``, bool or 0 and 1.
            clusters: the cluster of each sample, ``(N,)``, whole numbers or texts; or one cluster for all samples. A
                cluster can be added in several parts.
            nll: negative log-likelihood of each sample, ``(N,)``. The NLL of the evaluation is NaN unless all samples
                have one.
            brier: Brier score of each sample over all classes, ``(N,)``; likewise.

        Raises:
            ValueError: a shape, dtype or value breaks one of these rules.
        """
        confidence, right = as_tensor("confidence", confidence), as_tensor("right", right)
        fine = BinStats.from_confidence(confidence, right, edges=self.fine_edges).to("cpu")
        scores = sums_of_scores(_scores("nll", nll, len(confidence)), _scores("brier", brier, len(confidence)))
        names, codes = names_and_codes(clusters, len(confidence))
        units, right, codes = (x.cpu() for x in (to_units(confidence.detach()), right, codes))
        size, cells = len(self.starts), self.middle(units)
        sums = torch.zeros(len(names) * 3 * size, dtype=torch.int64)
        for i, values in enumerate((torch.ones_like(units), units, right.long())):
            sums.index_add_(0, (codes * 3 + i) * size + cells, values)
        self._add(BinnedConfidences(fine, **scores), names, list(sums.view(len(names), -1).numpy()))


def _scores(name: str, values: Array | None, number: int) -> Tensor | None:
    """Return the scores of the samples as float64 on the CPU, if there are any."""
    if values is None:
        return None
    scores = as_tensor(name, values).detach().cpu().double()
    if scores.shape != (number,) or not bool((scores >= 0).all()):
        raise ValueError(f"{name} must have shape ({number},) and hold no NaN or negative value")
    return scores
