"""scikit-learn's digits: the data set that is always there."""

import torch

from dualfocal.data.dataset import DataSet, Size, check_seed, random_split, sizes
from dualfocal.data.transforms import Normalize

NUM_TRAIN = 800
MAX_PIXEL = 16


def digits(
    root: object = None, *, noise: float = 0.0, val_size: Size = 200, val2_size: Size = 0, split_seed: int = 0
) -> DataSet:
    """1,797 digits of 8 x 8 pixels: 800 to train (of which 200 validate), 997 to test.

    There is no official split: a seed draws it, and the noise.

    Args:
        root: not looked at, the images come with scikit-learn.
        noise: std of gaussian noise, drawn once and kept, on pixels from 0 to 1; .3 makes the task hard enough for a
            small network to be wrong, as the demo wants it. Pixels are floats then, and not clipped.
        val_size: how many of the 800 validate.
        val2_size: how many more make a second validation part.
        split_seed: of noise and split.
    """
    if not isinstance(noise, int | float) or not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be a std of 0 or more, got {noise!r}")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, target = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    check_seed(split_seed)
    rng = torch.Generator().manual_seed(split_seed)
    drawn = torch.randn(images.shape, generator=rng)  # always, so that the split does not depend on the noise
    if noise:
        images = images / MAX_PIXEL
        images += noise * drawn
        encoder: torch.nn.Module = torch.nn.Identity()
    else:
        images = images.to(torch.uint8)
        encoder = Normalize(mean=(0.0,), std=(MAX_PIXEL / 255,))
    development, test = torch.randperm(len(images), generator=rng).tensor_split([NUM_TRAIN])
    parts = {"train": torch.arange(NUM_TRAIN)}
    if any(sizes(NUM_TRAIN, val_size=val_size, val2_size=val2_size)):
        parts = random_split(NUM_TRAIN, val_size=val_size, val2_size=val2_size, seed=split_seed)
    return DataSet(
        name="digits",
        class_names=tuple(map(str, range(10))),
        inputs=images,
        target=target,
        splits={**{part: development[index] for part, index in parts.items()}, "test": test},
        encoder=encoder,
    )
