"""Decode image files to one uint8 tensor, with Pillow on several threads (it releases the GIL)."""

import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualfocal.data._tree import read_files

DecodedShare = Callable[[float], None]  # called with the share of the images that are decoded, from 0 to 1
Image = tuple[str, npt.NDArray[np.uint8]]  # name, pixels
MODES = {1: "L", 3: "RGB"}
AHEAD = 256  # files that are read ahead of decoding


def decode_images(
    path: Path,
    names: Sequence[str],
    *,
    channels: int,
    size: tuple[int, int] | None,
    limit: int,
    resize: bool = False,
    progress: DecodedShare | None = None,
) -> Tensor:
    """Decode images of a folder or an archive, in the order of ``names``: uint8 (N, channels, height, width).

    Args:
        path: folder or archive.
        names: names of the images, as returned by :func:`~dualfocal.data._tree.list_files`.
        channels: number of channels to convert to, 3 (RGB) or 1 (grey).
        size: required height and width (None: those of the first image).
        limit: maximum number of bytes, see :func:`~dualfocal.data._tree.read_files`.
        resize: whether to scale each image to cover ``size`` and crop its centre.
        progress: called with the share of the images that are decoded.

    Raises:
        ValueError: an image is missing, unreadable or of another size, or the images do not fit into memory.
    """
    index = {name: i for i, name in enumerate(names)}
    decode = partial(_decode, channels=channels, size=size, resize=resize)
    pixels: npt.NDArray[np.uint8] = np.empty((0,), np.uint8)
    done = 0
    for name, image in _in_parallel(decode, read_files(path, index.__contains__, limit=limit)):
        if not done:
            _check_memory(path, len(names) * image.nbytes)
            pixels = np.empty((len(names), *image.shape), np.uint8)
        if image.shape != pixels.shape[1:]:
            raise ValueError(
                f"{path}: all images must have the same size: {name} has {image.shape[1]} x {image.shape[2]} pixels, "
                f"others have {pixels.shape[2]} x {pixels.shape[3]}; set size to resize them"
            )
        pixels[index[name]] = image
        done += 1
        if progress is not None and (done % 100 == 0 or done == len(names)):
            progress(done / len(names))
    if done < len(names):
        raise ValueError(f"{path}: found only {done} of {len(names)} images")
    return torch.from_numpy(pixels)


def _check_memory(path: Path, size: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else size
    if size > memory:  # the allocation may succeed, and the system kill the process later
        sizes = f"{size / 2**30:,.0f} GiB, but this machine has {memory / 2**30:,.0f} GiB"
        raise ValueError(f"{path}: the images need {sizes}; set a smaller size")


def _in_parallel(decode: Callable[[str, bytes], Image], files: Iterable[tuple[str, bytes]]) -> Iterator[Image]:
    """Decode files on several threads while the next files are read; yield images in the order of the files."""
    waiting: deque[Future[Image]] = deque()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            for file in files:
                waiting.append(pool.submit(decode, *file))
                if len(waiting) >= AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _decode(name: str, content: bytes, *, channels: int, size: tuple[int, int] | None, resize: bool) -> Image:
    import PIL.Image
    from PIL import ImageOps

    try:
        with PIL.Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > (PIL.Image.MAX_IMAGE_PIXELS or 2**31):
                raise ValueError(f"has {image.width} x {image.height} pixels, too many for Pillow")
            if image.mode[0] in "IF":  # Pillow would clip larger values to 255
                raise ValueError(f"has pixels of more than 8 bits (mode {image.mode})")
            upright = ImageOps.exif_transpose(image)
            if "transparency" in upright.info:  # avoids a warning of Pillow; the channel is dropped below
                upright = upright.convert("RGBA")
            upright = upright.convert(MODES[channels])
            if resize and size is not None:
                upright = ImageOps.fit(upright, (size[1], size[0]), PIL.Image.Resampling.BILINEAR)
            pixels = np.asarray(upright)
    except (OSError, ValueError, SyntaxError, EOFError, PIL.Image.DecompressionBombError) as error:
        reason = "unknown format" if isinstance(error, PIL.UnidentifiedImageError) else error  # its text is unhelpful
        raise ValueError(f"{name}: cannot be read as an image: {reason}") from error
    if size is not None and pixels.shape[:2] != size:
        raise ValueError(f"{name}: must have {size[0]} x {size[1]} pixels, has {pixels.shape[0]} x {pixels.shape[1]}")
    return name, pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)
