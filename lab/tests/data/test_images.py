"""Image files from strangers: no format but those of the suffixes, and no more pixels than the data set allows."""

import subprocess
import zlib

import numpy as np
import pytest
import torch
from official import TINY, encoded, saying, tiny_imagenet_files, write_folder
from PIL import EpsImagePlugin, Image

from dualfocal_lab.data import load_data
from dualfocal_lab.data._images import FORMATS

BLACK = encoded(np.zeros((64, 64, 3), np.uint8))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n(started) print\nshowpage\n%%EOF\n"


def png_of(width, height):
    """A PNG that claims a size; its pixels are missing."""
    header = bytearray(BLACK[:33])  # signature and IHDR
    header[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    return bytes(header) + BLACK[33:]


def load(folder, **options):
    return load_data(str(folder), folder.parent / "kept", **options)


@pytest.fixture
def started(monkeypatch):
    """The commands of all processes that were started."""
    commands = []

    def refuse(command, *_, **__):
        commands.append(command)
        raise OSError("no process may be started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # whether it is installed, once known
    return commands


def test_an_eps_file_under_the_name_of_another_format_starts_no_process(started, tmp_path):
    for suffix in FORMATS:
        folder = write_folder(tmp_path / suffix[1:], {"cat/a.png": BLACK, f"dog/b{suffix}": EPS})
        with pytest.raises(ValueError, match=saying(f"dog/b{suffix} cannot be read as an image", "not one of .png")):
            load(folder)
    tiny = tiny_imagenet_files(train={"n01": [0], "n02": [0]}, val={0: "n01"})
    write_folder(tmp_path, tiny | {f"{TINY}/train/n02/images/n02_0.JPEG": EPS})
    with pytest.raises(ValueError, match=saying("n02_0.JPEG cannot be read as an image", "not one of .png")):
        load_data("tiny_imagenet", tmp_path, val_size=0)
    assert started == []
    with pytest.raises(OSError, match=r"Ghostscript|process"), Image.open(folder / f"dog/b{suffix}") as image:
        image.load()  # Pillow itself starts one
    assert "gs" in started[0][0]


def test_every_format_of_the_suffixes_is_read_also_under_the_suffix_of_another(tmp_path):
    pixels = np.full((6, 6, 3), 200, np.uint8)
    for i, suffix in enumerate(FORMATS):
        files = {f"{label}/{i}{suffix}": encoded(pixels, suffix) for label in ("cat", "dog")}
        write_folder(tmp_path / "pets", files | {f"cat/{i}_other.png": encoded(pixels, suffix)})
    data = load(tmp_path / "pets", val_size=0, test_size=0)
    assert len(data.inputs) == 3 * len(FORMATS)
    assert torch.all((data.inputs.int() - 200).abs() <= 1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png_of(9_000, 9_000), "dog/b.png has 9000 x 9000 pixels, but must have 64 x 64; set size"),
        (png_of(10_000, 9_000), "dog/b.png has more pixels than Pillow allows"),  # of which Pillow only warns
        (png_of(60_000, 60_000), "dog/b.png has more pixels than Pillow allows"),
    ],
    ids=["larger than the first", "above the limit", "far above the limit"],
)
def test_an_image_that_is_far_too_large_is_refused_before_its_pixels_are_unpacked(content, words, recwarn, tmp_path):
    folder = write_folder(tmp_path / "pets", {"cat/a.png": BLACK, "dog/b.png": content})
    with pytest.raises(ValueError, match=saying(words)):
        load(folder)
    if "Pillow" in words:
        with pytest.raises(ValueError, match=saying(words)):
            load(folder, size=8)
    assert not recwarn.list
