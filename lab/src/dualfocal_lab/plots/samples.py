"""Sheets of images of a data set, by class."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from dualfocal.plots.style import NotebookFigure


def sample_sheet(blocks: Mapping[str, Sequence[Tensor]], row_names: Sequence[str]) -> Figure:
    """Draw images in rows by class, in one or several blocks side by side.

    Args:
        blocks: title -> one tensor of images (N, C, H, W) per row; N may differ. Values are scaled to the range of
            the block.
        row_names: labels of the rows.
    """
    columns = max(len(images) for rows in blocks.values() for images in rows)
    figure = NotebookFigure(
        figsize=(0.55 * columns * len(blocks) + 1.6, 0.55 * len(row_names) + 0.5), layout="constrained"
    )
    for axis, (title, rows) in zip(figure.subplots(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True):
        channels, height, width = rows[0].shape[1:]
        sheet = np.ones((len(rows), height + 2, columns, width + 2, channels))  # with a white border around each image
        low, high = min(float(row.min()) for row in rows if len(row)), max(float(row.max()) for row in rows if len(row))
        for row, images in enumerate(rows):
            pixels = (images.double().numpy() - low) / max(high - low, 1e-9)
            sheet[row, 1:-1, : len(images), 1:-1] = pixels.transpose(2, 0, 3, 1)
        axis.imshow(sheet.reshape(len(rows) * (height + 2), -1, channels).squeeze(), cmap="gray", vmin=0, vmax=1)
        axis.set(
            xticks=[],
            yticks=(np.arange(len(rows)) + 0.5) * (height + 2) if axis.get_subplotspec().is_first_col() else [],
        )
        axis.set_title(title, fontsize=10)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    figure.axes[0].set_yticklabels([name.replace("$", r"\$") for name in row_names], fontsize=9)
    return figure
