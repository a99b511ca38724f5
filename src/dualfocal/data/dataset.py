"""What every data set is once it has been read: samples, labels, who is in which part, and the way into a model."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal.data.transforms import CropFlip

PARTS = ("train", "val", "val2", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """All samples of a data set in one tensor, and index arrays that say which of them train, validate and test.

    ``batch`` gives what a model takes; the tensors themselves are there, too:

    >>> from dualfocal.data import load_data
    >>> data = load_data("digits", val_size=100)
    >>> print(data)
    digits: 700 train, 100 val, 997 test; 10 classes; 1 x 8 x 8 uint8
    >>> inputs, target = data.batch(data.splits["train"][:32])
    >>> inputs.shape, inputs.dtype, target.shape
    (torch.Size([32, 1, 8, 8]), torch.float32, torch.Size([32]))

    Args:
        name: of the data set.
        class_names: in the order of their indices.
        inputs: as they are stored: uint8 images (N, C, H, W), int32 words (N, L), or floats (N, ...).
        target: class indices, int64 (N,).
        splits: part -> places in ``inputs``, int64. Parts are "train", "val", "test" and, if asked for, "val2".
        encoder: from stored inputs to what a model takes: normalised images, embedded words.
        test_encoder: another one for the test part, where a published table had that.
        augment: how training images are varied, if they are.
        notes: what a reader of the results should know of the data.
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
                f"{self.name}: there must be one int64 label for each of {len(self.inputs)} inputs, got "
                f"{self.target.dtype} {tuple(self.target.shape)}"
            )
        if len(self.target) and not 0 <= int(self.target.min()) <= int(self.target.max()) < self.num_classes:
            raise ValueError(
                f"{self.name}: labels must be from 0 to {self.num_classes - 1}, "
                f"got {int(self.target.min())} to {int(self.target.max())}"
            )
        if unknown := set(self.splits) - set(PARTS):
            raise ValueError(f"{self.name}: parts are {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
        for part, index in self.splits.items():
            if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.ndim != 1:
                raise ValueError(f"{self.name}: the {part} split must be an int64 tensor (n,) of places in the inputs")
        taken = torch.cat([torch.empty(0, dtype=torch.int64, device=self.target.device), *self.splits.values()])
        if len(taken) and not (taken.min() >= 0 and taken.max() < len(self.inputs) and taken.bincount().max() == 1):
            raise ValueError(f"{self.name}: splits must be of places from 0 to {len(self.inputs) - 1}, each only once")

    @property
    def num_classes(self) -> int:
        """How many classes there are, with or without samples."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input as a model takes it."""
        with torch.no_grad():
            return tuple(self.encoder(self.inputs[:1]).shape[1:])

    @property
    def in_channels(self) -> int:
        """The first dimension of an input: channels of an image, width of word vectors, number of features."""
        return self.input_shape[0]

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """Inputs as stored, and labels, of a whole part."""
        if name not in self.splits:
            raise ValueError(f"{self.name} has the parts {', '.join(self.splits)}, got {name!r}")
        return self._select(self.splits[name])

    def draw(self, *, seed: int, epoch: int) -> Tensor | None:
        """How each sample is varied in one epoch, for :meth:`batch`, on the data's device; None: not at all."""
        draws = None if self.augment is None else self.augment.draw(len(self.inputs), seed=seed, epoch=epoch)
        return None if draws is None else draws.to(self.inputs.device)

    def batch(self, index: Tensor, draws: Tensor | None = None, *, part: str | None = None) -> tuple[Tensor, Tensor]:
        """Some samples: inputs as a model takes them, and labels.

        Args:
            index: their places in ``inputs``, int64 (B,).
            draws: for training, what :meth:`draw` gave. None: inputs are not varied.
            part: they belong to. It must be said where parts are encoded differently, unless there are draws.
        """
        if part is None and draws is None and self.test_encoder is not None:
            raise ValueError(f"{self.name}: the test part is encoded differently: say which part the samples are of")
        inputs, target = self._select(index)
        if draws is not None:
            if self.augment is None or len(draws) != len(self.inputs):
                raise ValueError(f"{self.name}: draws must be what its own draw() gives")
            inputs = self.augment(inputs, draws.index_select(0, index))
        return self.encoder_of(part or "train")(inputs), target

    def _select(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs.index_select(0, index), self.target.index_select(0, index)  # faster than inputs[index]

    def encoder_of(self, part: str) -> nn.Module:
        """The encoder for the inputs of one part: the same for all, but where ``test_encoder`` is set."""
        if part not in PARTS:
            raise ValueError(f"parts are {', '.join(PARTS)}, got {part!r}")
        return self.test_encoder if part == "test" and self.test_encoder is not None else self.encoder

    def to(self, device: torch.device | str) -> "DataSet":
        """The same with all tensors on a device."""
        return replace(
            self,
            inputs=self.inputs.to(device),
            target=self.target.to(device),
            splits={part: index.to(device) for part, index in self.splits.items()},
            encoder=deepcopy(self.encoder).to(device),  # a module moves itself, not a copy
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
    """The numbers below ``num_samples`` in the order in which ``np.random.seed(seed)`` and a shuffle put them.

    >>> shuffled(50_000, seed=1)[:5].tolist()  # the first of CIFAR's published validation part
    [26247, 35067, 34590, 16668, 12196]
    """
    if isinstance(seed, bool) or not (isinstance(seed, Integral) and 0 <= seed < 2**32):
        raise ValueError(f"split_seed must be an integer from 0 to 2^32 - 1, got {seed!r}")
    return torch.from_numpy(np.random.RandomState(seed).permutation(num_samples).astype(np.int64))


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
    counts = target.bincount()
    classes = counts.nonzero()[:, 0]
    (each, rest), (each2, rest2) = divmod(val, len(classes)), divmod(val2, len(classes))
    if rest or rest2 or each + each2 >= counts[classes].min():
        raise ValueError(
            f"val_size and val2_size must be multiples of the {len(classes)} classes, which give equally many, and "
            f"leave some of each class to train: the smallest has {counts[classes].min()} samples; got {val} and {val2}"
        )
    places = [(target == label).nonzero()[:, 0] for label in classes]
    splits = [of.tensor_split([len(of) - each - each2, len(of) - each]) for of in places]
    train, second, first = map(torch.cat, zip(*splits, strict=True))
    return without_empty(train=train, val=first, val2=second)


def sizes(num_samples: int, *, val_size: Size, val2_size: Size) -> tuple[int, int]:
    """The two validation parts in samples, checked: something must be left to train."""
    val, val2 = (as_count(size, num_samples, name) for size, name in ((val_size, "val_size"), (val2_size, "val2_size")))
    if val2 and not val:
        raise ValueError(f"val2_size is of a second validation part: val_size must not be 0, got val2_size={val2_size}")
    if val + val2 >= num_samples:
        raise ValueError(
            f"val_size and val2_size must leave something of the {num_samples} training samples, got {val_size} and "
            f"{val2_size}"
        )
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
