"""Maps of over-confidence: where in an image the confidence is higher than the accuracy around it."""

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import ndimage
from scipy.special import softmax

from dualfocal.checks import check_choice
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.plots.style import BLUE, GREY, VERMILION, NotebookFigure, plain, styled

GAPS = LinearSegmentedColormap.from_list("gaps", [BLUE, "white", VERMILION]).with_extremes(bad=GREY)
MOST_PIXELS = 512  # of a side of a drawn image: larger ones are drawn with fewer pixels

Floats = NDArray[np.float64]


def overconfidence_map(
    values: Array, target: Array, *, input: str = "logits", ignore_index: int = -100, sigma: float | None = None
) -> Floats:
    """Return the smoothed confidence minus correctness of each pixel: above 0 where the model is over-confident.

    Confidence minus correctness of a pixel is averaged over its surroundings with Gaussian weights. Ignored pixels do
    not count, and are NaN in the map.

    Args:
        values: logits or probabilities of one image, ``(C, H, W)``.
        target: class of each pixel, ``(H, W)``.
        input: ``"logits"`` or ``"probs"``.
        ignore_index: label of pixels to leave out.
        sigma: standard deviation of the weights, in pixels (None: 1/40 of the longer side; 0: no smoothing).

    Raises:
        ValueError: a shape or option is invalid.

    >>> import numpy as np
    >>> probs = np.array([[[0.9, 0.9]], [[0.1, 0.1]]])
    >>> overconfidence_map(probs, np.array([[0, 1]]), input="probs", sigma=0).round(2)
    array([[-0.1,  0.9]])
    """
    _, labels, confidence, prediction = _predicted(values, target, input)
    used = labels != ignore_index
    gap = np.where(used, confidence - (prediction == labels), 0.0)
    sigma = max(labels.shape) / 40 if sigma is None else sigma
    weight = used.astype(np.float64)
    if sigma > 0:
        gap, weight = (ndimage.gaussian_filter(x, sigma, mode="constant") for x in (gap, weight))
    smoothed: Floats = np.where(used, gap / np.maximum(weight, 1e-12), np.nan)
    return smoothed


def overconfidence_figure(
    images: Mapping[str, tuple[Array, Array]],
    *,
    input: str = "logits",
    ignore_index: int = -100,
    sigma: float | None = None,
) -> Figure:
    """Draw labels, predicted classes and the map of over-confidence of some images, one row for each.

    Args:
        images: name -> predictions ``(C, H, W)`` and labels ``(H, W)``.
        input: ``"logits"`` or ``"probs"``.
        ignore_index: label of pixels to leave out; they are grey.
        sigma: smoothing of the map, see :func:`overconfidence_map`.

    Raises:
        ValueError: there are no images, or a shape or option is invalid.
    """
    if not images:
        raise ValueError("images is empty: give at least one image")
    with styled():
        figure = NotebookFigure(figsize=(6.6, 2.1 * len(images) + 0.4), layout="constrained")
        axes = figure.subplots(len(images), 3, squeeze=False)
        drawn = None
        for row, (name, (values, target)) in zip(axes, images.items(), strict=True):
            num_classes, labels, _, prediction = _predicted(values, target, input)
            gaps = overconfidence_map(values, target, input=input, ignore_index=ignore_index, sigma=sigma)
            step = max(1, -(-max(labels.shape) // MOST_PIXELS))
            shown = np.where(labels == ignore_index, -1, labels)
            for axis, classes in ((row[0], shown), (row[1], np.where(shown < 0, -1, prediction))):
                axis.imshow(
                    classes[::step, ::step],
                    cmap=_class_colours(num_classes),
                    vmin=-1.5,
                    vmax=num_classes - 0.5,
                    interpolation="nearest",
                )
            drawn = row[2].imshow(gaps[::step, ::step], cmap=GAPS, vmin=-1, vmax=1, interpolation="nearest")
            mean = 100 * float(np.nanmean(gaps)) if not np.isnan(gaps).all() else 0.0
            row[0].set_ylabel(f"{plain(name)}\n{mean:+.1f} points", fontsize=8)
            for axis in row:
                axis.set(xticks=[], yticks=[])
        for axis, title in zip(axes[0], ("labels", "prediction", "confidence - accuracy"), strict=True):
            axis.set_title(title)
        assert drawn is not None
        bar = figure.colorbar(drawn, ax=axes[:, 2].tolist(), fraction=0.05)
        bar.set_ticks([-1, 0, 1], labels=["under-\nconfident", "0", "over-\nconfident"])
    return figure


def _predicted(values: Array, target: Array, input: str) -> tuple[int, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Return the number of classes, the labels, and confidence and class of the predictions of an image."""
    check_choice("input", input, ("logits", "probs"))
    array = as_tensor("values", values).detach().cpu().double().numpy()
    labels = as_tensor("target", target).detach().cpu().numpy().astype(np.int64)
    if array.ndim != 3 or labels.shape != array.shape[1:]:
        raise ValueError(
            f"an image needs predictions (C, H, W) and labels (H, W), got shapes {array.shape} and {labels.shape}"
        )
    probs = softmax(array, axis=0) if input == "logits" else array
    return len(array), labels, probs.max(0), probs.argmax(0)


def _class_colours(num_classes: int) -> ListedColormap:
    """Return grey for ignored pixels, then one colour per class."""
    colours = matplotlib.colormaps["tab20"](np.arange(num_classes) % 20)  # (classes, 4)
    return ListedColormap(np.concatenate([np.array([to_rgba(GREY)]), colours]))
