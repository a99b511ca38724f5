"""Image files to one tensor of bytes, by Pillow, on threads: it decodes without holding Python's lock."""

import io
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualfocal.data._tree import read_files

Progress = Callable[[float], None]
MODES = {1: "L", 3: "RGB"}
AHEAD = 256  # files in memory that wait to be decoded


def decode_images(
    path: Path,
    names: Sequence[str],
    *,
    channels: int,
    size: tuple[int, int] | None,
    limit: int,
    resize: bool = False,
    progress: Progress | None = None,
) -> Tensor:
    """The images of those names below a folder or in an archive, in that order: uint8 (N, channels, height, width).

    Args:
        path: folder or archive.
        names: as :func:`~dualfocal.data._tree.list_files` gives them.
        channels: 3 for colours, 1 for grey; images are converted.
        size: height and width; None: those of the first image. Others are refused, unless they are to be resized.
        limit: of bytes, see :func:`~dualfocal.data._tree.read_files`.
        resize: scale each so that it covers ``size``, which must be given, and crop its middle.
        progress: called with the share done.
    """
    place = {name: i for i, name in enumerate(names)}
    pixels: npt.NDArray[np.uint8] | None = None
    waiting: deque[tuple[str, Future[npt.NDArray[np.uint8]]]] = deque()
    done = 0

    def keep(name: str, image: npt.NDArray[np.uint8]) -> None:
        nonlocal pixels, done
        if pixels is None:
            _check_memory(path, len(names) * image.nbytes)
            pixels = np.empty((len(names), *image.shape), np.uint8)
        if image.shape != pixels.shape[1:]:
            (_, *found), (_, *first) = image.shape, pixels.shape[1:]
            raise ValueError(
                f"{path}: all images must be of one size: {name} has {found[0]} x {found[1]} pixels, others "
                f"{first[0]} x {first[1]}; give a size to resize them to"
            )
        pixels[place[name]] = image
        done += 1
        if progress is not None and (done % 100 == 0 or done == len(names)):
            progress(done / len(names))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            for name, content in read_files(path, place.__contains__, limit=limit):
                waiting.append((name, pool.submit(_decode, name, content, channels, size, resize)))
                if len(waiting) >= AHEAD:
                    ready, image = waiting.popleft()
                    keep(ready, image.result())
            while waiting:
                ready, image = waiting.popleft()
                keep(ready, image.result())
        finally:
            pool.shutdown(cancel_futures=True)
    if pixels is None or done < len(names):
        raise ValueError(f"{path}: {done} of {len(names)} images were found")
    return torch.from_numpy(pixels)


def _check_memory(path: Path, size: int) -> None:
    """Before the system ends us."""
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > there:
        raise ValueError(f"{path}: the images take {size / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f}")


def _decode(
    name: str, content: bytes, channels: int, size: tuple[int, int] | None, resize: bool
) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or 2**31):
                raise ValueError(f"has {image.width} x {image.height} pixels, which is too many")
            if image.mode[0] in "IF":  # Pillow would cut larger values to 255
                raise ValueError(f"has pixels of more than 8 bits (mode {image.mode})")
            upright = ImageOps.exif_transpose(image)
            if "transparency" in upright.info:  # Pillow warns of it unless it becomes a channel, which is then dropped
                upright = upright.convert("RGBA")
            upright = upright.convert(MODES[channels])
            if resize and size is not None:
                upright = ImageOps.fit(upright, (size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(upright)
    except UnidentifiedImageError as error:  # its text names an object in memory
        raise ValueError(f"{name}: is no image that can be read") from error
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}: is no image that can be read: {error}") from error
    if size is not None and pixels.shape[:2] != size:
        raise ValueError(f"{name}: must have {size[0]} x {size[1]} pixels, has {pixels.shape[0]} x {pixels.shape[1]}")
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)
