"""The common form of all data sets: samples, labels, splits, and the transforms into model inputs."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal_lab.data.transforms import CropFlip

PARTS = ("train", "val", "val2", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A data set: all samples in one tensor, and the indices of the training, validation and test splits.

    :meth:`batch` returns model inputs; the stored tensors are also accessible:

    >>> from dualfocal_lab.data import load_data
    >>> data = load_data("digits", val_size=100)
    >>> print(data)
    digits: 700 train, 100 val, 997 test; 10 classes; 1 x 8 x 8 uint8
    >>> inputs, target = data.batch(data.splits["train"][:32])
    >>> inputs.shape, inputs.dtype, target.shape
    (torch.Size([32, 1, 8, 8]), torch.float32, torch.Size([32]))

    Args:
        name: name of the data set.
        class_names: class names, in the order of the class indices.
        inputs: stored samples: uint8 images (N, C, H, W), int32 words (N, L), or floats (N, ...).
        target: class indices, int64 (N,).
        splits: indices into ``inputs``, int64, of each split: "train", "val", "test" and, on request, "val2".
        encoder: module from stored inputs to model inputs: normalises images, embeds words.
        test_encoder: encoder of the test split, if it differs (as in some published results).
        augment: augmentation of training images (None: no augmentation).
        notes: remarks on the data that a reader of the results should know.

    Raises:
        ValueError: labels or splits are invalid.
    """

    name: str
    class_names: tuple[str, ...]
    inputs: Tensor
    target: Tensor
    splits: Mapping[str, Tensor]
    encoder: nn.Module = field(default_factory=nn.Identity)
    test_encoder: nn.Module | None = None
    augment: CropFlip | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.target.dtype != torch.int64 or self.target.shape != self.inputs.shape[:1]:
            raise ValueError(
                f"{self.name}: target must hold one int64 label for each of {len(self.inputs)} inputs, got "
                f"{self.target.dtype} {tuple(self.target.shape)}"
            )
        if len(self.target) and not 0 <= int(self.target.min()) <= int(self.target.max()) < self.num_classes:
            raise ValueError(
                f"{self.name}: labels must be from 0 to {self.num_classes - 1}, "
                f"got {int(self.target.min())} to {int(self.target.max())}"
            )
        if unknown := set(self.splits) - set(PARTS):
            raise ValueError(f"{self.name}: splits must be among {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
        for part, index in self.splits.items():
            if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
                raise ValueError(f"{self.name}: the {part} split must be an int64 tensor (n,) of indices of inputs")
        indices = torch.cat([torch.empty(0, dtype=torch.int64, device=self.target.device), *self.splits.values()])
        if len(indices) and not (
            indices.min() >= 0 and indices.max() < len(self.inputs) and indices.bincount().max() == 1
        ):
            raise ValueError(
                f"{self.name}: splits must hold indices from 0 to {len(self.inputs) - 1}, each at most once"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes, with or without samples."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one model input."""
        with torch.no_grad():
            return tuple(self.encoder(self.inputs[:1]).shape[1:])

    @property
    def in_channels(self) -> int:
        """First dimension of a model input: channels of an image, width of word vectors, number of features."""
        return self.input_shape[0]

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the stored inputs and the labels of a split.

        Raises:
            ValueError: the data set has no such split.
        """
        if name not in self.splits:
            raise ValueError(f"{self.name} has the splits {', '.join(self.splits)}, got {name!r}")
        return self._select(self.splits[name])

    def draw(self, *, seed: int, epoch: int) -> Tensor | None:
        """Draw the augmentation of each sample for one epoch, for :meth:`batch`; None without augmentation."""
        draws = None if self.augment is None else self.augment.draw(len(self.inputs), seed=seed, epoch=epoch)
        return None if draws is None else draws.to(self.inputs.device)

    def batch(self, index: Tensor, draws: Tensor | None = None, *, part: str | None = None) -> tuple[Tensor, Tensor]:
        """Return model inputs and labels of some samples.

        Args:
            index: indices of the samples, int64 (B,).
            draws: for training, the result of :meth:`draw` (None: no augmentation).
            part: split of the samples. Required if the test split has its own encoder, unless there are draws.

        Returns:
            Inputs (B, ...), and labels (B,).

        Raises:
            ValueError: ``part`` is missing, or ``draws`` are not those of this data set.
        """
        if part is None and draws is None and self.test_encoder is not None:
            raise ValueError(f"{self.name}: the test split has its own encoder: give the split of the samples as part")
        inputs, target = self._select(index)
        if draws is not None:
            if self.augment is None or len(draws) != len(self.inputs):
                raise ValueError(f"{self.name}: draws must be the result of draw() of this data set")
            inputs = self.augment(inputs, draws.index_select(0, index))
        return self.encoder_of(part or "train")(inputs), target

    def _select(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs.index_select(0, index), self.target.index_select(0, index)  # index_select is faster than []

    def encoder_of(self, part: str) -> nn.Module:
        """Return the encoder of a split: ``test_encoder`` for the test split if it is set, else ``encoder``."""
        if part not in PARTS:
            raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
        return self.test_encoder if part == "test" and self.test_encoder is not None else self.encoder

    def to(self, device: torch.device | str) -> "DataSet":
        """Return a copy with all tensors on a device."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            target=self.target.to(device),
            splits={part: index.to(device) for part, index in self.splits.items()},
            encoder=deepcopy(self.encoder).to(device),  # Module.to works in place
            test_encoder=None if self.test_encoder is None else deepcopy(self.test_encoder).to(device),
        )

    def __str__(self) -> str:
        parts = ", ".join(f"{len(index):,} {part}" for part, index in self.splits.items())
        shape = " x ".join(map(str, self.inputs.shape[1:]))
        return (
            f"{self.name}: {parts}; {self.num_classes} classes; {shape} {str(self.inputs.dtype).removeprefix('torch.')}"
        )


Size = int | float  # a number of samples, or a fraction of them


def shuffled(num_samples: int, seed: int) -> Tensor:
    """Return the numbers below ``num_samples``, shuffled by numpy's legacy generator with this seed.

    >>> shuffled(50_000, seed=1)[:5].tolist()  # the first indices of CIFAR's published validation split
    [26247, 35067, 34590, 16668, 12196]
    """
    if isinstance(seed, bool) or not (isinstance(seed, Integral) and 0 <= seed < 2**32):
        raise ValueError(f"split_seed must be an integer from 0 to 2^32 - 1, got {seed!r}")
    return torch.from_numpy(np.random.RandomState(seed).permutation(num_samples).astype(np.int64))


def random_split(num_train: int, *, val_size: Size, val2_size: Size = 0, seed: int) -> dict[str, Tensor]:
    """Split the first ``num_train`` samples at random into train, val and val2.

    Of the shuffled indices, the first are val, the next val2: ``val2_size`` does not change val.
    """
    val, val2 = sizes(num_train, val_size=val_size, val2_size=val2_size)
    order = shuffled(num_train, seed)
    return without_empty(train=order[val + val2 :], val=order[:val], val2=order[val : val + val2])


def last_of_each_class(target: Tensor, *, val_size: Size, val2_size: Size = 0) -> dict[str, Tensor]:
    """Split samples into train, val2 and val by their order within each class: the last of each class are val.

    The samples before them are val2: ``val2_size`` does not change val.

    Raises:
        ValueError: a size is not a multiple of the number of classes, or leaves nothing of a class to train on.
    """
    val, val2 = sizes(len(target), val_size=val_size, val2_size=val2_size)
    counts = target.bincount()
    classes = counts.nonzero()[:, 0]
    (each, rest), (each2, rest2) = divmod(val, len(classes)), divmod(val2, len(classes))
    if rest or rest2 or each + each2 >= counts[classes].min():
        raise ValueError(
            f"val_size and val2_size must be multiples of {len(classes)}, the number of classes, and leave training "
            f"samples of each class: the smallest class has {counts[classes].min()}; got {val} and {val2}"
        )
    by_class = [(target == label).nonzero()[:, 0] for label in classes]
    splits = [index.tensor_split([len(index) - each - each2, len(index) - each]) for index in by_class]
    train, second, first = map(torch.cat, zip(*splits, strict=True))
    return without_empty(train=train, val=first, val2=second)


def sizes(num_samples: int, *, val_size: Size, val2_size: Size) -> tuple[int, int]:
    """Return the sizes of both validation splits as numbers of samples.

    Raises:
        ValueError: a size is invalid, or no training samples are left.
    """
    val, val2 = (as_count(size, num_samples, name) for size, name in ((val_size, "val_size"), (val2_size, "val2_size")))
    if val2 and not val:
        raise ValueError(f"val2_size={val2_size} needs a first validation split: val_size must not be 0")
    if val + val2 >= num_samples:
        raise ValueError(
            f"val_size and val2_size must leave some of the {num_samples} samples for training, got {val_size} and "
            f"{val2_size}"
        )
    return val, val2


def as_count(size: Size, num_samples: int, name: str) -> int:
    """Convert a size to a number of samples: an integer is a number, a float below 1 a fraction, rounded."""
    fraction = isinstance(size, float)
    if isinstance(size, bool) or not (0 <= size < 1 if fraction else isinstance(size, Integral) and size >= 0):
        raise ValueError(f"{name} must be a number of samples, or a fraction of at least 0 and below 1, got {size!r}")
    count = round(size * num_samples) if fraction else int(size)
    if size and not count:
        raise ValueError(f"{name}={size} is less than one of {num_samples} samples")
    return count


def without_empty(**parts: Tensor) -> dict[str, Tensor]:
    """Return the splits that have samples."""
    return {part: index for part, index in parts.items() if len(index)}
