"""Labels of weighted samples, drawn from the model's own probabilities, for :mod:`.weights`."""

import torch
from torch import Tensor

from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.inference.cluster_noise import Array
from dualfocal.metrics.inference.label_counts import RowLabels
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.units import Binner, from_units, scatter_sum

TILE = 1 << 19  # labels drawn at a time
MOST_LABELS, LEAST_DRAWS = 1 << 28, 200  # labels drawn in all: with more samples, fewer draws
MOST_CLASS_DRAWS, MOST_SUMS, LEAST_CLASS_DRAWS = 1000, 1 << 25, 100  # fewer draws of classes if there are very many
SAME = 1e-9  # relative tolerance of equal weights


def class_weights(rows: Rows) -> Tensor | None:
    """Return the weight of each class, ``(C,)``, if the weights depend on the label alone, or None.

    None also if a class has fewer than two samples: what its weight is cannot be seen.
    """
    if rows.weight is None or int(torch.bincount(rows.target, minlength=rows.num_classes).min()) < 2:
        return None
    start = rows.weight.new_zeros(rows.num_classes)
    low, high = (
        start.scatter_reduce(0, rows.target, rows.weight, reduce, include_self=False) for reduce in ("amin", "amax")
    )
    return high if bool((high - low <= SAME * high).all()) else None


class LabelDraws:
    """Gaps of weighted samples if their labels are drawn from the model's probabilities.

    Weights that depend on the label alone, w_k for class k, are those of the drawn labels. The model is calibrated in
    the weighted population if a sample has label k with probability p_k there, and with probability proportional to
    p_k / w_k among the samples: these are drawn. Other weights are those of the samples, whatever label is drawn.

    Args:
        rows: the weighted rows.
        stats: scan of the rows.
        labels: labels of the rows.
        bins: bins of the ECE.
        adaptive: bins of the adaptive ECE.
        draws: number of draws; fewer of very many samples.
        seed: seed of the draws.

    Attributes:
        by_class: weight of each class, if the weights depend on the label alone.
        top: sums of (confidence - correctness), ``(R, B)``.
        adaptive: the same in the bins of the adaptive ECE.
        classes: sums of (p - y) by class, see :class:`~dualfocal.metrics.inference._class_ranks.ClassDraws`,
            ``(R, C, B + 1)`` with at most 1000 draws.
    """

    def __init__(
        self, rows: Rows, stats: Scan, labels: RowLabels, bins: BinStats, adaptive: BinStats, draws: int, seed: int
    ) -> None:
        assert rows.weight is not None
        self.rows, self.stats, self.labels = rows, stats, labels
        self.by_class = class_weights(rows)
        self.draws = max(min(draws, LEAST_DRAWS), min(draws, MOST_LABELS // len(rows)))
        device, width = rows.values.device, labels.expected.size
        self.class_draws = min(self.draws, MOST_CLASS_DRAWS, max(LEAST_CLASS_DRAWS, MOST_SUMS // width))
        self.generator = torch.Generator(device).manual_seed(seed)
        places = [Binner(part.edges)(stats.confidence) for part in (bins, adaptive)]
        top, equal_mass = (
            torch.zeros(part.num_bins, self.draws, dtype=torch.float64, device=device) for part in (bins, adaptive)
        )
        hits, expected = torch.zeros(2, self.class_draws, width, dtype=torch.float64, device=device)
        for part, p, cell in labels.tiles(max(1, TILE // max(self.draws, width // 16))):
            label, weight = self._draw(part, p)
            right = label == 1 if rows.positive else label == labels.guess[part, None]
            residual = weight * (from_units(stats.confidence[part])[:, None] - right.double())
            for sums, place in zip((top, equal_mass), places, strict=True):
                sums.index_add_(0, place[part], residual)
            self._add_classes(part, p, cell, label, weight, hits, expected)
        if self.by_class is None:
            expected = torch.from_numpy(labels.expected).to(device).view(1, -1)
        self.top, self.adaptive = top.T.cpu().numpy(), equal_mass.T.cpu().numpy()
        shape = (self.class_draws, *labels.expected.shape)
        self.classes: Array = (expected - hits).cpu().numpy().reshape(shape)

    def _draw(self, part: slice, p: Tensor) -> tuple[Tensor, Tensor]:
        """Draw labels of some rows, and return them with their weights, ``(T, R)``."""
        assert self.rows.weight is not None
        share = p if self.by_class is None else p / self.by_class
        cumulative = (share / share.sum(1, keepdim=True)).cumsum(1).float()
        uniform = torch.rand(len(p), self.draws, generator=self.generator, device=p.device)
        label = torch.searchsorted(cumulative, uniform, right=True).clamp_max_(p.shape[1] - 1)
        weight = self.rows.weight[part, None].expand(label.shape) if self.by_class is None else self.by_class[label]
        return label, weight

    def _add_classes(
        self, part: slice, p: Tensor, cell: Tensor, label: Tensor, weight: Tensor, hits: Tensor, expected: Tensor
    ) -> None:
        """Add the weights of drawn labels, and the weighted probabilities, by draw, class and bin."""
        label, weight = label[:, : self.class_draws], weight[:, : self.class_draws]
        guess, width = self.labels.guess[part, None], self.labels.width
        offset = hits.shape[1] * torch.arange(self.class_draws, device=p.device)
        predicted = label == guess
        index = torch.cat(
            [
                (cell.gather(1, label) + offset).reshape(-1),
                (guess * width + self.labels.num_bins + offset)[predicted],
            ]
        )
        values = torch.cat([weight.reshape(-1), weight[predicted]])
        hits += scatter_sum(index, values, hits.numel()).view_as(hits)
        if self.by_class is not None:
            member = torch.zeros(len(p), hits.shape[1], dtype=torch.float64, device=p.device).scatter_(1, cell, p)
            member.scatter_(1, guess * width + self.labels.num_bins, p.gather(1, guess))
            expected += weight.T @ member
