"""Decode image files to one uint8 tensor, with Pillow on several threads (it releases the GIL)."""

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualfocal_lab.data._tree import read_files

DecodedShare = Callable[[float], None]  # called with the share of the images that are decoded, from 0 to 1
Image = tuple[str, npt.NDArray[np.uint8]]  # name, pixels
MODES = {1: "L", 3: "RGB"}
AHEAD = 256  # files that are read ahead of decoding
# Suffixes of images and their formats. Pillow may read no other format, whatever the suffix: for EPS it would start
# Ghostscript.
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
    ".ppm": "PPM",
    ".pgm": "PPM",
}


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
        names: names of the images, as returned by :func:`~dualfocal_lab.data._tree.list_files`.
        channels: number of channels to convert to, 3 (RGB) or 1 (grey).
        size: required height and width (None: those of the first image).
        limit: maximum number of bytes, see :func:`~dualfocal_lab.data._tree.read_files`.
        resize: whether to scale each image to cover ``size`` and crop its centre.
        progress: called with the share of the images that are decoded.

    Raises:
        ValueError: an image is missing, unreadable or of another size, or the images do not fit into memory.
    """
    import PIL.Image

    index = {name: i for i, name in enumerate(names)}
    files = iter(read_files(path, index.__contains__, limit=limit))
    first = next(files, None)
    if first is None:
        raise ValueError(f"{path}: found none of {len(names)} images")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
        # The first image alone, because its size is that of all others.
        decoded = _decode(path, *first, channels=channels, size=size, resize=resize)
        shape = decoded[1].shape
        pixels: npt.NDArray[np.uint8] = np.empty((len(names), *shape), np.uint8)
        remedy = "; set size to resize all images" if size is None else ""
        decode = partial(_decode, path, channels=channels, size=shape[1:], resize=resize, remedy=remedy)
        done = 0
        for name, image in chain([decoded], _in_parallel(decode, files)):
            pixels[index[name]] = image
            done += 1
            if progress is not None and (done % 100 == 0 or done == len(names)):
                progress(done / len(names))
    if done < len(names):
        raise ValueError(f"{path}: found only {done} of {len(names)} images")
    return torch.from_numpy(pixels)


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


class _UnsuitableImageError(ValueError):
    """The image can be read, but does not fit the data set."""


def _decode(
    path: Path,
    name: str,
    content: bytes,
    *,
    channels: int,
    size: tuple[int, int] | None,
    resize: bool,
    remedy: str = "",
) -> Image:
    """Decode the image ``name`` of ``path``: uint8 (channels, height, width)."""
    import PIL.Image
    from PIL import ImageOps

    try:
        with PIL.Image.open(io.BytesIO(content), formats=sorted(set(FORMATS.values()))) as image:
            if image.mode[0] in "IF":  # Pillow would clip larger values to 255
                raise _UnsuitableImageError(f"has pixels of more than 8 bits (mode {image.mode})")
            if size is not None and not resize and sorted(size) != sorted(image.size):  # before pixels are unpacked
                raise _UnsuitableImageError(_wrong_size((image.height, image.width), size) + remedy)
            upright = ImageOps.exif_transpose(image)
            if "transparency" in upright.info:  # avoids a warning of Pillow; the channel is dropped below
                upright = upright.convert("RGBA")
            upright = upright.convert(MODES[channels])
            if resize and size is not None:
                upright = ImageOps.fit(upright, (size[1], size[0]), PIL.Image.Resampling.BILINEAR)
            pixels = np.asarray(upright)
            if size is not None and pixels.shape[:2] != size:  # EXIF data turned it
                raise _UnsuitableImageError(_wrong_size(pixels.shape[:2], size) + remedy)
    except _UnsuitableImageError as error:
        raise ValueError(f"{path}: {name} {error}") from error
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise ValueError(
            f"{path}: {name} has more pixels than Pillow allows, {PIL.Image.MAX_IMAGE_PIXELS:,}; scale it down"
        ) from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        unknown = f"is not one of {', '.join(FORMATS)}"  # Pillow's own text does not help
        reason = unknown if isinstance(error, PIL.UnidentifiedImageError) else error
        raise ValueError(f"{path}: {name} cannot be read as an image: {reason}") from error
    return name, pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)


def _wrong_size(actual: tuple[int, ...], required: tuple[int, int]) -> str:
    return f"has {actual[0]} x {actual[1]} pixels, but must have {required[0]} x {required[1]}"
