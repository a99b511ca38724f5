"""The most over-confident mistakes, with their images where the data are at hand."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dualfocal.data import DataSet
from dualfocal.report.run_data import RunData
from dualfocal.report.subjects import Reading, Subject

SHOWN = 12  # mistakes of each subject
MOST_IMAGE_BYTES = 400_000  # of all images of a page, as base64
MOST_SIDE = 64  # pixels; larger images are scaled down


@dataclass
class Pictures:
    """Images by key, each kept once however many models are wrong about it."""

    uris: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def add(self, key: str, pixels: Tensor) -> bool:
        """Keep an image (C, H, W) of numbers from 0 to 1; False: there is no room for it."""
        if key not in self.uris:
            uri = _data_uri(pixels)
            if self.size + len(uri) > MOST_IMAGE_BYTES:
                return False
            self.uris[key] = uri
            self.size += len(uri)
        return True


def find_mistakes(subject: Subject) -> list[int]:
    """Rows that are wrong, the most confident first."""
    wrong = (~subject.seen.right).nonzero()[:, 0]
    order = subject.seen.uncertainty[wrong].argsort(stable=True)[:SHOWN]
    return [int(row) for row in wrong[order]]


def describe_mistakes(
    subjects: Sequence[Subject], reading: Reading, run_data: RunData
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """For each subject its mistakes and a line on their images; and the images by key."""
    pictures = Pictures()
    found = []
    for subject in subjects:
        rows = find_mistakes(subject)
        places = _places(subject, reading)
        data, why = run_data.images_of(subject) if rows else (None, "")
        items = []
        low, high = (0.0, 1.0) if data is None else _range(data, reading, [int(places[row]) for row in rows])
        for row in rows:
            item = _describe(subject, row, int(places[row]))
            if data is not None:
                place = int(data.splits[subject.part(reading)][int(places[row])])
                pixels = (data.inputs[place].double() - low) / max(high - low, 1e-9)
                key = f"{run_data.key(subject)}-{place}"
                if pictures.add(key, pixels):
                    item["image"] = key
                else:
                    why = "Some images are left out: the page would get too large."
            items.append(item)
        total = int((~subject.seen.right).sum())
        found.append({"items": items, "total": total, "note": why})
    return found, pictures.uris


def _places(subject: Subject, reading: Reading) -> Tensor:
    """The place in the file of each row: ignored samples are no rows."""
    return (subject.data.target.reshape(-1) != reading.ignore_index).nonzero()[:, 0]


def _describe(subject: Subject, row: int, place: int) -> dict[str, Any]:
    names, nll = subject.class_names, subject.seen.nll
    assert nll is not None
    return {
        "place": place,
        "true": names[int(subject.rows.target[row])],
        "predicted": names[int(subject.predicted[row])],
        "confidence": float(1 / subject.seen.uncertainty[row]),
        "ofTrue": float((-nll[row]).exp()),
    }


def _range(data: DataSet, reading: Reading, places: list[int]) -> tuple[float, float]:
    """The darkest and the brightest value of the images shown; photographs of bytes stay as they are."""
    images = data.inputs[data.splits[reading.split or "test"][places]]
    if images.dtype == torch.uint8 and images.shape[1] == 3:
        return 0.0, 255.0
    return float(images.min()), float(images.max())


def _data_uri(pixels: Tensor) -> str:
    pixels = pixels.nan_to_num(0.0)  # of values so far apart that their range is infinite
    array = np.rint(255 * pixels.clamp(0, 1).permute(1, 2, 0).numpy()).astype(np.uint8)
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    if max(image.size) > MOST_SIDE:
        image.thumbnail((MOST_SIDE, MOST_SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
