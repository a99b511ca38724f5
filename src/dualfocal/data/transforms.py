"""From stored samples to what a model takes, batched, on whatever device they are."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalize(nn.Module):
    """Images of bytes to floats: ``(x / 255 - mean) / std``, channel by channel.

    >>> Normalize(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise ValueError(f"mean and std must be of as many channels, std above 0, got {mean} and {std}")
        self.register_buffer("shift", torch.tensor(mean, dtype=torch.float64).mul(255).float().view(-1, 1, 1))
        self.register_buffer(
            "scale", torch.tensor(std, dtype=torch.float64).mul(255).reciprocal().float().view(-1, 1, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) of any type to float32."""
        # In two steps on what is already float: twice as fast on the CPU as arithmetic between bytes and floats.
        return images.to(torch.float32, copy=True).sub_(self.shift).mul_(self.scale)


class Embed(nn.Module):
    """Words, as numbers, to their vectors, which are not trained; number 0 is padding."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, words: Tensor) -> Tensor:
        """(N, L) to float32 (N, width, L), as convolutions want it."""
        return F.embedding(words, self.vectors).transpose(1, 2)


class CropFlip(nn.Module):
    """Pad with black, crop at a random place, mirror with probability 1/2: the usual variation of small images.

    What is drawn belongs to a sample and an epoch, not to a batch: batches may be put together and split among
    devices in any way, and each image is varied alike.

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
        """For print."""
        return f"padding={self.padding}, flip={self.flip}"

    def draw(self, num_samples: int, *, seed: int, epoch: int) -> Tensor:
        """Where to crop and whether to mirror each sample of a data set, uint8 (N, 3), on the CPU.

        It depends on the seed, the epoch and the sample's place alone, on any machine; more samples leave the draws of
        the first ones as they are. Index the result as you index the samples.
        """
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
        places = 2 * self.padding + 1
        drawn = rng.integers(0, places * places * (1 + self.flip), num_samples, dtype=np.uint32)
        top_left, mirrored = drawn % places**2, drawn // places**2
        return torch.from_numpy(np.stack([top_left // places, top_left % places, mirrored], axis=1).astype(np.uint8))

    def forward(self, images: Tensor, draws: Tensor) -> Tensor:
        """Vary images (N, C, H, W) by their draws (N, 3): rows and columns of the padded image left out, mirrored."""
        n, c, h, w = images.shape
        if not images.numel():
            return images
        pad = self.padding
        padded = images.new_zeros(2, n, c, h + 2 * pad, w + 2 * pad)  # as they are, and mirrored
        padded[0, ..., pad : pad + h, pad : pad + w] = images
        padded[1, ..., pad : pad + h, pad : pad + w] = images.flip(-1)
        top, left, mirrored = draws.long().unbind(1)
        left = torch.where(mirrored == 1, 2 * pad - left, left)  # crop, then mirror = mirror, then crop from the right

        # A row of a crop is w values in one piece: where each begins is computed, and all are copied by one call. That
        # is several times as fast on the CPU as to gather single pixels.
        _, image_step, plane_step, row_step, _ = padded.stride()
        image, channel, row = (torch.arange(size, device=images.device) for size in (n, c, h))
        corner = (mirrored * n + image) * image_step + top * row_step + left  # (N,)
        begin = corner.view(n, 1, 1) + (channel * plane_step).view(c, 1) + row * row_step  # (N, C, H)
        pieces = padded.as_strided((padded.numel() - w + 1, w), (1, 1))
        return pieces.index_select(0, begin.flatten()).view(n, c, h, w)
