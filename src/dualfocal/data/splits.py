"""Who trains and who validates: index arrays, drawn as the published code drew them."""

from numbers import Integral

import numpy as np
import torch
from torch import Tensor

Size = int | float
"""A number of samples, or a fraction of them."""


def shuffled(num_samples: int, seed: int) -> Tensor:
    """The numbers below ``num_samples`` in the order in which ``np.random.seed(seed)`` and a shuffle put them.

    >>> shuffled(50_000, seed=1)[:5].tolist()  # the first of CIFAR's published validation part
    [26247, 35067, 34590, 16668, 12196]
    """
    check_seed(seed)
    return torch.from_numpy(np.random.RandomState(seed).permutation(num_samples).astype(np.int64))


def check_seed(seed: int) -> None:
    """Raise a ValueError that names the rule."""
    if isinstance(seed, bool) or not (isinstance(seed, Integral) and 0 <= seed < 2**32):
        raise ValueError(f"split_seed must be an integer from 0 to 2^32 - 1, got {seed!r}")


def random_split(num_train: int, *, val_size: Size, val2_size: Size = 0, seed: int) -> dict[str, Tensor]:
    """Split the first ``num_train`` samples: of their shuffled numbers the first validate, the rest trains.

    A second validation part comes after the first, so that asking for one leaves the first as it was.
    """
    val, val2 = sizes(num_train, val_size=val_size, val2_size=val2_size)
    order = shuffled(num_train, seed)
    return without_empty(train=order[val + val2 :], val=order[:val], val2=order[val : val + val2])


def last_of_each_class(target: Tensor, *, val_size: Size, val2_size: Size = 0) -> dict[str, Tensor]:
    """Split samples so that the last of each class validate: 50 of 500 in Tiny-ImageNet, in the order of the files.

    A second validation part comes before the first, so that asking for one leaves the first as it was.
    """
    val, val2 = sizes(len(target), val_size=val_size, val2_size=val2_size)
    classes = target.bincount().nonzero()[:, 0]
    if val % len(classes) or val2 % len(classes):
        raise ValueError(
            f"val_size and val2_size must be multiples of the {len(classes)} classes, which give equally many; "
            f"got {val} and {val2}"
        )
    each, each2 = val // len(classes), val2 // len(classes)
    splits = []  # train, val2, val of each class
    for label in classes:
        of_class = (target == label).nonzero()[:, 0]
        if len(of_class) <= each + each2:
            raise ValueError(
                f"class {int(label)} has {len(of_class)} samples: {each + each2} to validate leave none to train"
            )
        splits.append(of_class.tensor_split([len(of_class) - each - each2, len(of_class) - each]))
    train, second, first = map(torch.cat, zip(*splits, strict=True))
    return without_empty(train=train, val=first, val2=second)


def sizes(num_samples: int, *, val_size: Size, val2_size: Size) -> tuple[int, int]:
    """The two validation parts in samples, checked: something must be left to train."""
    val, val2 = (as_count(size, num_samples, name) for size, name in ((val_size, "val_size"), (val2_size, "val2_size")))
    if val2 and not val:
        raise ValueError(f"val2_size is of a second validation part: val_size must not be 0, got val2_size={val2_size}")
    if val + val2 >= num_samples:
        asked = f"{val_size} and {val2_size}" if val2 else f"{val_size}"
        raise ValueError(f"val_size must leave something of the {num_samples} training samples, got {asked}")
    return val, val2


def as_count(size: Size, num_samples: int, name: str) -> int:
    """A number of samples: integers are taken as they are, a float from 0 to 1 is a fraction, rounded."""
    fraction = isinstance(size, float)
    if isinstance(size, bool) or not (0 <= size < 1 if fraction else isinstance(size, Integral) and size >= 0):
        raise ValueError(f"{name} must be a number of samples, or a fraction from 0 up to but not 1, got {size!r}")
    count = round(size * num_samples) if fraction else int(size)
    if size and not count:
        raise ValueError(f"{name} of {size} is less than one of {num_samples} samples")
    return count


def without_empty(**parts: Tensor) -> dict[str, Tensor]:
    """Return the parts that have samples."""
    return {part: index for part, index in parts.items() if len(index)}
