"""Distributions of model outputs: maximum logits, and the probability of the rival class, q_j(x)."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dualfocal.losses import true_and_rival
from dualfocal.plots.style import Look, axes_or_new, check_named, look_of, plain, tidy

Floats = NDArray[np.float64]
Array = Tensor | ArrayLike

BINS = 60
HEIGHT = 0.85  # of the tallest histogram; baselines are 1 apart


def maximum_logits(logits: Array) -> Floats:
    """Return the largest logit of each sample.

    >>> import torch
    >>> maximum_logits(torch.tensor([[1.0, 3.0], [5.0, -2.0]]))
    array([3., 5.])
    """
    return np.asarray(_as_tensor(logits).detach().double().amax(1).cpu())


def rival_probabilities(logits: Array, target: Array) -> Floats:
    """Return q_j(x) of each sample: the largest probability strictly below that of the true class, or 0 (Eq. 3).

    >>> import torch
    >>> rival_probabilities(torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]).log(), torch.tensor([0, 1])).round(6)
    array([0.2, 0.1])
    """
    rows = _as_tensor(logits).detach().double()
    return np.asarray(true_and_rival(rows, _as_tensor(target).long())[1].cpu())


def shared_histograms(values: Mapping[str, Floats], bins: int = BINS) -> tuple[Floats, dict[str, Floats]]:
    """Return common bin edges, and the density of each method over them; all areas are 1.

    >>> edges, densities = shared_histograms({"a": np.array([0.0, 1.0]), "b": np.array([4.0])}, bins=2)
    >>> print(edges, densities["a"], densities["b"])
    [0. 2. 4.] [0.5 0. ] [0.  0.5]
    """
    if not values or any(not len(data) for data in values.values()):
        raise ValueError("histograms need at least one method, and at least one value per method")
    low, high = min(data.min() for data in values.values()), max(data.max() for data in values.values())
    edges = np.histogram_bin_edges([low, high], bins)
    return edges, {name: np.histogram(data, edges, density=True)[0] for name, data in values.items()}


def max_logit_histogram(
    logits: Mapping[str, Array],
    *,
    looks: Mapping[str, Look] | None = None,
    bins: int = BINS,
    ax: Axes | None = None,
) -> Axes:
    """Draw a histogram of the largest logit of each sample for each method, one above the other.

    All histograms have the same area and the same scale; a line marks the median.

    Args:
        logits: method -> logits, (N, C).
        looks: method -> colour; by default that of the loss of this name, see ``LOOKS``.
        bins: number of bins.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    >>> import torch
    >>> from matplotlib.figure import Figure
    >>> logits = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> ax = max_logit_histogram({"focal": logits, "cross_entropy": 5 * logits}, ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['focal', 'cross_entropy']
    """
    check_named(logits, object, "method -> logits")
    values = {name: maximum_logits(rows) for name, rows in logits.items()}
    edges, densities = shared_histograms(values, bins)
    scale = HEIGHT / max(density.max() for density in densities.values())
    baselines = np.arange(len(values))[::-1]
    with axes_or_new(ax, (5.2, 0.42 * len(values) + 1.2)) as axis:
        for place, (name, density) in enumerate(densities.items()):
            colour, base = look_of(name, place, looks).colour, baselines[place]
            top = base + scale * density
            axis.stairs(top, edges, baseline=base, fill=True, color=colour, alpha=0.3)
            axis.stairs(top, edges, baseline=base, color=colour, linewidth=1.0)
            axis.axhline(base, color="black", linewidth=0.6, zorder=3)
            median = float(np.median(values[name]))
            axis.plot([median, median], [base, base + HEIGHT], color="black", linewidth=1.2)
        axis.set_yticks(baselines, [plain(name) for name in values])
        axis.set(xlabel="maximum logit", ylim=(-0.05, len(values) - 1 + HEIGHT + 0.1))
        return tidy(axis, rows=True)


def rival_boxplot(
    predictions: Mapping[str, tuple[Array, Array]],
    *,
    looks: Mapping[str, Look] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a box plot of q_j(x), the largest probability below that of the true class, for each method.

    Outliers are not drawn, as in the paper; diamonds are means.

    Args:
        predictions: method -> logits, (N, C), and target, (N,).
        looks: method -> colour; by default that of the loss of this name, see ``LOOKS``.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    >>> import torch
    >>> from matplotlib.figure import Figure
    >>> logits, target = torch.randn(100, 3, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 3
    >>> ax = rival_boxplot({"focal": (logits, target), "cross_entropy": (5 * logits, target)}, ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['focal', 'cross_entropy']
    """
    check_named(predictions, Sequence, "method -> (logits, target)")
    if not predictions:
        raise ValueError("a box plot needs at least one method")
    values = {name: rival_probabilities(*pair) for name, pair in predictions.items()}
    with axes_or_new(ax, (5.2, 0.42 * len(values) + 1.2)) as axis:
        drawn = axis.boxplot(
            list(values.values()),
            positions=np.arange(len(values))[::-1],
            tick_labels=[plain(name) for name in values],
            whis=1.5,
            widths=0.6,
            orientation="horizontal",
            showfliers=False,
            showmeans=True,
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 1.8},
            meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4},
            whiskerprops={"linewidth": 0.9},
            capprops={"linewidth": 0.9},
        )
        for place, (box, name) in enumerate(zip(drawn["boxes"], values, strict=True)):
            colour = look_of(name, place, looks).colour
            box.set(facecolor=to_rgba(colour, 0.5), edgecolor="black", linewidth=0.8)
        low = -0.01 * axis.get_xlim()[1]  # keeps a whisker at 0 visible
        axis.set(xlabel="$q_j(x)$, largest probability below that of the true class", xlim=(low, None))
        return tidy(axis, grid="x", rows=True)


def _as_tensor(array: Array) -> Tensor:
    return array if isinstance(array, Tensor) else torch.as_tensor(np.asarray(array))
