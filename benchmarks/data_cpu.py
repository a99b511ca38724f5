"""Training batches of CIFAR-like images on the CPU: ours, all of a batch at once, beside pipelines image by image.

    python benchmarks/data_cpu.py [--csv benchmarks/results/data_cpu.csv] [--rounds 7]

50,000 images of 3 x 32 x 32 bytes (random ones: the pixels do not matter), batches of 128 in random order, each image
padded by 4, cropped, mirrored or not, and normalised to float32. A round is one epoch of each contender, in random
order, in one process; medians of the rounds are reported. Workers of a DataLoader are started before, and stay.
That all contenders make the same of the same draws is checked first.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
import torch
from _measure import cpu_name, show
from PIL import Image, ImageOps
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dualfocal_lab.data import CropFlip, DataSet, Normalize
from dualfocal_lab.data.transforms import CIFAR_MEAN, CIFAR_STD

NUM_IMAGES, BATCH, PADDING, SIDE, WORKERS = 50_000, 128, 4, 32, 2
GOAL = 10  # times the images/s of Pillow and a DataLoader with two workers
MEAN, STD = (torch.tensor(of).view(3, 1, 1) for of in (CIFAR_MEAN, CIFAR_STD))


class ImageByImage(Dataset[tuple[Tensor, int]]):
    """As data sets are usually written: one image is varied at a time, by Pillow or by slicing an array."""

    def __init__(self, images: Tensor, target: Tensor, *, pillow: bool) -> None:
        self.images, self.target = images.permute(0, 2, 3, 1).contiguous().numpy(), target.tolist()
        self.vary = vary_by_pillow if pillow else vary_by_slicing

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        draw = (random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING), random.random() < 0.5)
        return normalize(self.vary(self.images[i], *draw)), self.target[i]


def vary_by_pillow(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    """(H, W, 3) bytes to the same."""
    picture = ImageOps.expand(Image.fromarray(image), PADDING).crop((left, top, left + SIDE, top + SIDE))
    if mirrored:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(picture)


def vary_by_slicing(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    """The same without Pillow."""
    padded = np.zeros((SIDE + 2 * PADDING, SIDE + 2 * PADDING, 3), np.uint8)
    padded[PADDING:-PADDING, PADDING:-PADDING] = image
    crop = padded[top : top + SIDE, left : left + SIDE]
    return np.ascontiguousarray(crop[:, ::-1] if mirrored else crop)


def normalize(image: np.ndarray) -> Tensor:
    """(H, W, 3) bytes to (3, H, W) floats."""
    return torch.from_numpy(image).permute(2, 0, 1).contiguous().float().div_(255).sub_(MEAN).div_(STD)


def ours(data: DataSet) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch, as a training loop has it."""
    draws = data.draw(seed=0, epoch=0)
    for index in torch.randperm(len(data.inputs)).split(BATCH):
        yield data.batch(index, draws)


def check_same(images: Tensor) -> None:
    """Ours and both pipelines make the same of the same draws."""
    augment = CropFlip(PADDING)
    draws = augment.draw(len(images), seed=0, epoch=0)
    batch = Normalize(CIFAR_MEAN, CIFAR_STD)(augment(images, draws))
    for image, draw, mine in zip(images.permute(0, 2, 3, 1).contiguous().numpy(), draws.tolist(), batch, strict=True):
        for vary in (vary_by_pillow, vary_by_slicing):
            torch.testing.assert_close(normalize(vary(image, *draw[:2], bool(draw[2]))), mine, atol=1e-5, rtol=0)


def images_per_second(epoch: Callable[[], Iterator[tuple[Tensor, Tensor]]], threads: int) -> float:
    """Of one epoch whose batches are thrown away."""
    torch.set_num_threads(threads)
    start, count = time.perf_counter(), 0
    for batch, _ in epoch():
        count += len(batch)
    return count / (time.perf_counter() - start)


def main() -> None:
    """Check, then measure, then print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (NUM_IMAGES, 3, SIDE, SIDE), dtype=torch.uint8, generator=rng)
    target = torch.randint(10, (NUM_IMAGES,), generator=rng)
    check_same(images[:500])

    def loader(pillow: bool, workers: int) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
        data = ImageByImage(images, target, pillow=pillow)
        made = DataLoader(data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
        return lambda: iter(made)

    mine = DataSet(
        name="random",
        class_names=tuple(map(str, range(10))),
        inputs=images,
        target=target,
        splits={"train": torch.arange(NUM_IMAGES)},
        encoder=Normalize(CIFAR_MEAN, CIFAR_STD),
        augment=CropFlip(PADDING),
    )
    contenders = {  # epoch, threads of the main process
        "ours, 2 threads": (lambda: ours(mine), 2),
        "ours, 1 thread": (lambda: ours(mine), 1),
        f"Pillow, {WORKERS} workers": (loader(pillow=True, workers=WORKERS), 1),
        "Pillow, no workers": (loader(pillow=True, workers=0), 1),
        f"slices, {WORKERS} workers": (loader(pillow=False, workers=WORKERS), 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in track(range(args.rounds + 1), "rounds"):  # the first warms up
        for name in random.Random(round_).sample(list(contenders), len(contenders)):
            rate = images_per_second(*contenders[name])
            if round_:
                rates[name].append(rate)
    median = {name: statistics.median(of) for name, of in rates.items()}
    best = median["ours, 2 threads"]
    records = [
        {
            "contender": name,
            "images_per_s": round(rate),
            "lowest": round(min(rates[name])),
            "highest": round(max(rates[name])),
            "ours_over_it": round(best / rate, 1),
            "goal": GOAL if name == f"Pillow, {WORKERS} workers" else "",
            "reached": ("yes" if best / rate >= GOAL else "missed") if name == f"Pillow, {WORKERS} workers" else "",
            "date": date.today().isoformat(),
            "torch": torch.__version__,
            "cpu": cpu_name(),
        }
        for name, rate in median.items()
    ]
    show(f"Training batches of {BATCH}, median of {args.rounds} epochs", records, args.csv)


if __name__ == "__main__":
    main()
