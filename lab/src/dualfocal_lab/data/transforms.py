"""Transforms of batches of stored samples into model inputs, on any device."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """Normalise uint8 images to floats: ``(x / 255 - mean) / std`` for each channel.

    Args:
        mean: mean of each channel, for pixels from 0 to 1.
        std: standard deviation of each channel.

    >>> Normalize(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise ValueError(
                f"mean and std must have one value per channel, and std must be above 0, got {mean} and {std}"
            )
        self.register_buffer("shift", torch.tensor(mean, dtype=torch.float64).mul(255).float().view(-1, 1, 1))
        self.register_buffer(
            "scale", torch.tensor(std, dtype=torch.float64).mul(255).reciprocal().float().view(-1, 1, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images (N, C, H, W) of any dtype; returns float32."""
        # Convert first: twice as fast on the CPU as arithmetic between bytes and floats.
        return images.to(torch.float32, copy=True).sub_(self.shift).mul_(self.scale)


class Embed(nn.Module):
    """Replace word numbers by fixed word vectors; number 0 is padding.

    Args:
        vectors: (number of words + 1, width), with the vector of padding in row 0.
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, words: Tensor) -> Tensor:
        """Embed word numbers (N, L); returns float32 (N, width, L), the layout of convolutions."""
        return F.embedding(words, self.vectors).transpose(1, 2)


class CropFlip(nn.Module):
    """Augment images: pad with black, crop at a random position, and mirror with probability 1/2.

    Draws belong to a sample and an epoch, not to a batch: an image is augmented in the same way however the samples are
    divided into batches or among devices.

    Args:
        padding: number of black pixels on each side.
        flip: whether to mirror images.

    >>> augment = CropFlip(padding=4)
    >>> images = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8)
    >>> draws = augment.draw(6, seed=0, epoch=2)
    >>> torch.equal(augment(images, draws)[4:], augment(images[4:], draws[4:]))
    True
    """

    def __init__(self, padding: int = 4, *, flip: bool = True) -> None:
        super().__init__()
        if not (isinstance(padding, int) and 0 <= padding < 128):
            raise ValueError(f"padding must be an integer from 0 to 127, got {padding!r}")
        self.padding, self.flip = padding, flip

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"padding={self.padding}, flip={self.flip}"

    def draw(self, num_samples: int, *, seed: int, epoch: int) -> Tensor:
        """Draw crop and mirroring of each sample of a data set: uint8 (N, 3), on the CPU.

        The draw of a sample depends only on the seed, the epoch and the index of the sample, on any machine. Index the
        result like the samples.
        """
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
        offsets = 2 * self.padding + 1
        drawn = rng.integers(0, offsets * offsets * (1 + self.flip), num_samples, dtype=np.uint32)
        corner, mirrored = drawn % offsets**2, drawn // offsets**2
        return torch.from_numpy(np.stack([corner // offsets, corner % offsets, mirrored], axis=1).astype(np.uint8))

    def forward(self, images: Tensor, draws: Tensor) -> Tensor:
        """Augment images (N, C, H, W) by their draws (N, 3): top and left offset of the crop, and whether to mirror."""
        n, c, h, w = images.shape
        if not images.numel():
            return images
        pad = self.padding
        padded = images.new_zeros(2, n, c, h + 2 * pad, w + 2 * pad)  # original, and mirrored
        padded[0, ..., pad : pad + h, pad : pad + w] = images
        padded[1, ..., pad : pad + h, pad : pad + w] = images.flip(-1)
        top, left, mirrored = draws.long().unbind(1)
        left = torch.where(mirrored == 1, 2 * pad - left, left)  # crop, then mirror = mirror, then crop from the right

        # The w pixels of each row of a crop are contiguous: compute where each row begins, and copy all in one call.
        # On the CPU this is several times as fast as gathering single pixels.
        _, image_step, plane_step, row_step, _ = padded.stride()
        image, channel, row = (torch.arange(size, device=images.device) for size in (n, c, h))
        corner = (mirrored * n + image) * image_step + top * row_step + left  # (N,)
        begin = corner.view(n, 1, 1) + (channel * plane_step).view(c, 1) + row * row_step  # (N, C, H)
        pieces = padded.as_strided((padded.numel() - w + 1, w), (1, 1))
        return pieces.index_select(0, begin.flatten()).view(n, c, h, w)
