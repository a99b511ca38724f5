"""The most over-confident mistakes, with images and class names from the data sets of runs.

Data sets are optional: if one is missing or cannot be read, the report has no images.
"""

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dualfocal.data import DataNotFoundError, DataSet, load_data
from dualfocal.data.registry import custom_function
from dualfocal.predictions import Reading
from dualfocal.report.inputs import ReportInput
from dualfocal.report.names import shortened, without_folders
from dualfocal.runs import Recipe

SHOWN = 12  # mistakes per input
MOST_IMAGE_BYTES = 400_000  # base64 of all images of a page
MOST_SIDE = 64  # pixels; larger images are scaled down
LONGEST_REASON = 200  # characters


class RunData:
    """The data sets of runs, each read once, from disk only."""

    def __init__(self, root: Path | None, reading: Reading) -> None:
        self.root = root
        self.reading = reading
        self.read: dict[str, DataSet | str] = {}  # a text says why a data set could not be read

    def named(self, source: ReportInput) -> ReportInput:
        """Return the input with class names from its data set, if its file has none."""
        data = None if source.data.class_names else self.samples_of(source)[0]
        return source if data is None else replace(source, known_names=data.class_names)

    def samples_of(self, source: ReportInput) -> tuple[DataSet | None, str, int]:
        """Return the data set of a run (None if its samples differ), the reason, and a number of the data set."""
        if source.run is None:
            return None, "", 0
        recipe = source.run.recipe
        key = f"{recipe.data} {sorted(recipe.data_options.items())}"
        if key not in self.read:
            self.read[key] = self._load(recipe)
        data = self.read[key]
        number = list(self.read).index(key)
        if isinstance(data, str):
            return None, data, number
        index = data.splits.get(source.part, torch.empty(0, dtype=torch.int64))
        # All labels must agree, so that no image is shown for the wrong sample.
        if not torch.equal(data.target[index], source.data.target.reshape(-1)):
            return None, "No images: the data set on this machine is not the one that the run was tested on.", number
        return data, "", number

    def _load(self, recipe: Recipe) -> DataSet | str:
        if "newsgroups" in recipe.data:
            return "No images: the samples are texts."
        name = shortened(without_folders(recipe.data))
        # A run may come from a stranger: nothing that it names is imported.
        if custom_function(recipe.data) is not None:
            return f"No images: data set {name} is a custom function, which a report does not call."
        try:
            return load_data(recipe.data, self.root, **recipe.data_options)
        except DataNotFoundError:
            return f"No images: data set {name} was not found (see --data-root)."
        except Exception as error:  # damaged files may raise nearly anything
            reason = shortened(without_folders(" ".join(str(error).split())), LONGEST_REASON)
            return f"No images: data set {name} could not be read (see --data-root): {reason or type(error).__name__}"


def mistakes_of(source: ReportInput, run_data: RunData, images: dict[str, str]) -> dict[str, Any]:
    """Return the most confident mistakes and a note; their images are added to ``images`` while they fit."""
    reading, scanned, names = run_data.reading, source.scanned, source.class_names
    assert scanned.nll is not None
    wrong = (~scanned.right).nonzero()[:, 0]
    rows = wrong[scanned.uncertainty[wrong].argsort(stable=True)[:SHOWN]]
    places = (source.data.target.reshape(-1) != reading.ignore_index).nonzero()[rows, 0]  # in the file
    items: list[dict[str, Any]] = [
        {
            "place": int(place),
            "true": names[int(source.rows.target[row])],
            "predicted": names[int(source.predicted[row])],
            "confidence": float(1 / scanned.uncertainty[row]),
            "ofTrue": float((-scanned.nll[row]).exp()),
        }
        for row, place in zip(rows, places, strict=True)
    ]
    data, note, number = run_data.samples_of(source) if items else (None, "", 0)
    if data is not None and (data.inputs.ndim != 4 or data.inputs.shape[1] not in (1, 3)):
        data, note = None, "No images: the samples are not images."
    if data is not None:
        indices = data.splits[source.part][places]
        for item, index, pixels in zip(items, indices.tolist(), _scaled(data.inputs[indices]), strict=True):
            key = f"{number}-{index}"
            uri = images.get(key) or _data_uri(pixels)
            if key not in images and sum(map(len, images.values())) + len(uri) > MOST_IMAGE_BYTES:
                note = "Some images are left out to limit the size of the page."
                continue
            images[key] = uri
            item["image"] = key
    return {"items": items, "total": len(wrong), "note": note}


def _scaled(images: Tensor) -> Tensor:
    """Scale images to the range 0 to 1; RGB images of bytes keep their brightness."""
    low, high = float(images.min()), float(images.max())
    if images.dtype == torch.uint8 and images.shape[1] == 3:
        low, high = 0.0, 255.0
    return (images.double() - low) / max(high - low, 1e-9)


def _data_uri(pixels: Tensor) -> str:
    """Return an image of shape (C, H, W) with values from 0 to 1 as the data URI of a PNG."""
    shades = pixels.nan_to_num(0.0).clamp(0, 1)  # NaN if the range of values is infinite
    array = np.rint(255 * shades.permute(1, 2, 0).numpy()).astype(np.uint8)
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    image.thumbnail((MOST_SIDE, MOST_SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
