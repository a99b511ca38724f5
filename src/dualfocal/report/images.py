"""The most over-confident mistakes, and the data sets of runs: images of samples and names of classes.

Data sets are an extra: where one is missing or cannot be read, a report does without.
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
from dualfocal.report.inputs import ReportInput, shortened, without_folders
from dualfocal.runs import Recipe
from dualfocal.runs.source import Reading

SHOWN = 12  # mistakes of each subject
MOST_IMAGE_BYTES = 400_000  # of all images of a page, as base64
MOST_SIDE = 64  # pixels; larger images are scaled down
LONGEST_REASON = 200  # characters


class RunData:
    """The data sets of runs, each read once, and only where they lie on disk."""

    def __init__(self, root: Path | None, reading: Reading) -> None:
        self.root = root
        self.reading = reading
        self.read: dict[str, DataSet | str] = {}  # or why a data set could not be read

    def named(self, subject: ReportInput) -> ReportInput:
        """The subject, with the names of its classes where its file has none but its data are at hand."""
        data = None if subject.data.class_names else self.samples_of(subject)[0]
        return subject if data is None else replace(subject, known_names=data.class_names)

    def samples_of(self, subject: ReportInput) -> tuple[DataSet | None, str, int]:
        """The data of a run if they hold these very samples, otherwise why not; and the number of the data set."""
        if subject.run is None:
            return None, "", 0
        recipe = subject.run.recipe
        key = f"{recipe.data} {sorted(recipe.data_options.items())}"
        if key not in self.read:
            self.read[key] = self._load(recipe)
        data = self.read[key]
        number = list(self.read).index(key)
        if isinstance(data, str):
            return None, data, number
        index = data.splits.get(subject.part, torch.empty(0, dtype=torch.int64))
        # All labels must agree: an image beside the wrong sample would be worse than none.
        if not torch.equal(data.target[index], subject.data.target.reshape(-1)):
            return None, "No images: the data found here are not those that the run was tested on.", number
        return data, "", number

    def _load(self, recipe: Recipe) -> DataSet | str:
        if "newsgroups" in recipe.data:
            return "The samples are texts: there are no images."
        name = shortened(without_folders(recipe.data))
        try:
            return load_data(recipe.data, self.root, **recipe.data_options)
        except DataNotFoundError:
            return f"No images: {name} is not among the data here (see --data-root)."
        except Exception as error:  # files and options of any kind: a reader may raise nearly anything
            reason = shortened(without_folders(" ".join(str(error).split())), LONGEST_REASON)
            return f"No images: {name} could not be read here (see --data-root): {reason or type(error).__name__}"


def mistakes_of(subject: ReportInput, run_data: RunData, images: dict[str, str]) -> dict[str, Any]:
    """The most confident mistakes, and a note on their images, which are added to ``images`` while there is room."""
    reading, seen, names = run_data.reading, subject.seen, subject.class_names
    assert seen.nll is not None
    wrong = (~seen.right).nonzero()[:, 0]
    rows = wrong[seen.uncertainty[wrong].argsort(stable=True)[:SHOWN]]
    places = (subject.data.target.reshape(-1) != reading.ignore_index).nonzero()[rows, 0]  # in the file
    items: list[dict[str, Any]] = [
        {
            "place": int(place),
            "true": names[int(subject.rows.target[row])],
            "predicted": names[int(subject.predicted[row])],
            "confidence": float(1 / seen.uncertainty[row]),
            "ofTrue": float((-seen.nll[row]).exp()),
        }
        for row, place in zip(rows, places, strict=True)
    ]
    data, note, number = run_data.samples_of(subject) if items else (None, "", 0)
    if data is not None and (data.inputs.ndim != 4 or data.inputs.shape[1] not in (1, 3)):
        data, note = None, "The samples are no images."
    if data is not None:
        indices = data.splits[subject.part][places]
        for item, index, pixels in zip(items, indices.tolist(), _scaled(data.inputs[indices]), strict=True):
            key = f"{number}-{index}"
            uri = images.get(key) or _data_uri(pixels)
            if key not in images and sum(map(len, images.values())) + len(uri) > MOST_IMAGE_BYTES:
                note = "Some images are left out: the page would get too large."
                continue
            images[key] = uri
            item["image"] = key
    return {"items": items, "total": len(wrong), "note": note}


def _scaled(images: Tensor) -> Tensor:
    """Images from 0, the darkest value of all, to 1, the brightest; photographs of bytes keep their brightness."""
    low, high = float(images.min()), float(images.max())
    if images.dtype == torch.uint8 and images.shape[1] == 3:
        low, high = 0.0, 255.0
    return (images.double() - low) / max(high - low, 1e-9)


def _data_uri(pixels: Tensor) -> str:
    """A PNG of an image (C, H, W) of numbers from 0 to 1, as a data URI."""
    shades = pixels.nan_to_num(0.0).clamp(0, 1)  # NaN: values so far apart that their range is infinite
    array = np.rint(255 * shades.permute(1, 2, 0).numpy()).astype(np.uint8)
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    image.thumbnail((MOST_SIDE, MOST_SIDE))  # if it is larger
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
