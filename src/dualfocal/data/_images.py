"""Image files to one tensor of bytes, by Pillow, on threads: it decodes without holding Python's lock."""

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

DecodedShare = Callable[[float], None]
Image = tuple[str, npt.NDArray[np.uint8]]  # name, pixels
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
    progress: DecodedShare | None = None,
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
    decode = partial(_decode, channels=channels, size=size, resize=resize)
    pixels: npt.NDArray[np.uint8] = np.empty((0,), np.uint8)
    done = 0
    for name, image in _in_parallel(decode, read_files(path, place.__contains__, limit=limit)):
        if not done:
            _check_memory(path, len(names) * image.nbytes)
            pixels = np.empty((len(names), *image.shape), np.uint8)
        if image.shape != pixels.shape[1:]:
            raise ValueError(
                f"{path}: all images must be of one size: {name} has {image.shape[1]} x {image.shape[2]} pixels, "
                f"others {pixels.shape[2]} x {pixels.shape[3]}; give a size to resize them to"
            )
        pixels[place[name]] = image
        done += 1
        if progress is not None and (done % 100 == 0 or done == len(names)):
            progress(done / len(names))
    if done < len(names):
        raise ValueError(f"{path}: {done} of {len(names)} images were found")
    return torch.from_numpy(pixels)


def _check_memory(path: Path, size: int) -> None:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else size
    if size > there:  # a large allocation may succeed, and the system ends the process later
        sizes = f"{size / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f}"
        raise ValueError(f"{path}: the images take {sizes}; give a smaller size")


def _in_parallel(decode: Callable[[str, bytes], Image], files: Iterable[tuple[str, bytes]]) -> Iterator[Image]:
    """In the order of the files, which are read while others are decoded."""
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
                raise ValueError(f"has {image.width} x {image.height} pixels, which is too many")
            if image.mode[0] in "IF":  # Pillow would cut larger values to 255
                raise ValueError(f"has pixels of more than 8 bits (mode {image.mode})")
            upright = ImageOps.exif_transpose(image)
            if "transparency" in upright.info:  # Pillow warns of it unless it becomes a channel, which is then dropped
                upright = upright.convert("RGBA")
            upright = upright.convert(MODES[channels])
            if resize and size is not None:
                upright = ImageOps.fit(upright, (size[1], size[0]), PIL.Image.Resampling.BILINEAR)
            pixels = np.asarray(upright)
    except (OSError, ValueError, SyntaxError, EOFError, PIL.Image.DecompressionBombError) as error:
        reason = "of no known format" if isinstance(error, PIL.UnidentifiedImageError) else error  # its text is no help
        raise ValueError(f"{name}: is no image that can be read: {reason}") from error
    if size is not None and pixels.shape[:2] != size:
        raise ValueError(f"{name}: must have {size[0]} x {size[1]} pixels, has {pixels.shape[0]} x {pixels.shape[1]}")
    return name, pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)
