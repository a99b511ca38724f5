"""A training step on one GPU: the published way, and ours, in one run.

    python benchmarks/train_step_gpu.py [--csv benchmarks/results/train_step_gpu.csv] [--models resnet50,...]

The published way: float32 as torch has it (TF32 in convolutions), a DataLoader with four workers that vary image by
image, the loss as the equation is usually coded, its sum, the gradient clipped to 2, SGD, and loss.item() each step.
Ours is what `dualfocal train` does, read off its log: images a second of whole epochs of training steps, validation and
checkpoints apart; and how long it took before the steps were compiled and captured. Dual focal loss with gamma 5,
batches of 128 random images of 3 x 32 x 32. The published way is timed before and after ours; each is a median. The
first net is timed in every way of ours, the others by the default only. step_times_gpu.py times the other nets.
"""

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import DEVICE, Record, about_gpu, gpu_options, show
from data_cpu import ImageByImage
from loss_cpu import published
from rich.progress import track
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from dualfocal_lab.models import make_model
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train import train

BATCH, WORKERS = 128, 4
GOALS = {"resnet50": 3.0, "wide_resnet26_10": 2.0, "densenet121": 2.0}  # of the default, times the published way
START_UP = 60.0  # seconds, at most
WAYS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, compiled": {"step": "compiled"},
    "ours, TF32": {"precision": "tf32"},
    "ours, eager TF32 as published": {"precision": "tf32", "step": "eager", "channels_last": False},
}


class Published:
    """A net and its loop, as one would write them down from the paper."""

    def __init__(self, model: str, images: Tensor, target: Tensor) -> None:
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.net = make_model(model, num_classes=10, in_channels=3).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        data = ImageByImage(images, target, pillow=True)
        on_cuda = DEVICE.type == "cuda"
        self.loader = DataLoader(
            data, BATCH, True, num_workers=WORKERS, persistent_workers=True, pin_memory=on_cuda, drop_last=True
        )
        self.epoch(3)  # algorithms are chosen, workers started

    def epoch(self, steps: int | None = None) -> float:
        """Seconds of a step."""
        self.net.train()
        batches, total, done = iter(self.loader), 0.0, 0
        start = time.perf_counter()
        for images, labels in batches:
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            self.optimizer.zero_grad()
            loss = len(images) * published(self.net(images), labels)
            loss.backward()
            clip_grad_norm_(self.net.parameters(), 2)
            self.optimizer.step()
            total += loss.item()
            done += 1
            if done == steps:
                break
        return (time.perf_counter() - start) / done


def ours(recipe: Recipe) -> Record:
    """Milliseconds of a step from the second epoch on, and what the run says of its start."""
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe, folder, device=DEVICE, progress=False)
        session = run.result.sessions[0]
        speeds = [line["images_per_second"] for line in run.log[1:]]
        whole = [line["seconds"] for line in run.log[1:]]
    return {
        "ms_a_step": 1000 * BATCH / statistics.median(speeds),
        "least": round(1000 * BATCH / max(speeds), 2),
        "most": round(1000 * BATCH / min(speeds), 2),
        "start_up_s": round(session["start_up_seconds"], 1),
        "epoch_s": round(statistics.median(whole), 2),
        **{name: session[name] for name in ("step", "precision", "channels_last")},
    }


def random_images(file: Path, number: int, size: int, classes: int) -> None:
    """Write images for training, and a ninth as many for validation."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (number + max(number // 9, classes), size, size, 3), np.uint8)
    labels = np.arange(len(images)) % classes
    arrays = {"train": slice(number), "val": slice(number, None), "test": slice(classes)}
    np.savez(
        file,
        **{f"x_{part}": images[rows] for part, rows in arrays.items()},
        **{f"y_{part}": labels[rows] for part, rows in arrays.items()},
    )


def image_recipe(file: Path, model: str, epochs: int, **settings: Any) -> Recipe:
    """The paper's settings, with random images."""
    return Recipe(
        data=str(file),
        data_options={"layout": "NHWC", "padding": 4, "flip": True},
        model=model,
        loss_options={"gamma": 5.0},
        epochs=epochs,
        drop_last=True,
        milestones=(),
        **settings,
    )


def measure(model: str, ways: list[str], file: Path, epochs: int) -> list[Record]:
    """One net, all ways."""
    with np.load(file) as arrays:
        images, target = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])
    peer = Published(model, images.permute(0, 3, 1, 2), target)
    theirs = [peer.epoch() for _ in range(2)]
    records = []
    for way in track(ways, model):
        records.append({"model": model, "way": way, **ours(image_recipe(file, model, epochs, **WAYS[way]))})
        gc.collect()
        torch.cuda.empty_cache()
    theirs += [peer.epoch() for _ in range(2)]
    slow = {"model": model, "way": "published", "ms_a_step": 1000 * statistics.median(theirs)}
    slow |= {"least": round(1000 * min(theirs), 2), "most": round(1000 * max(theirs), 2)}
    slow |= {"start_up_s": "", "epoch_s": "", "step": "eager", "precision": "float32", "channels_last": False}
    for record in records:
        record["times_published"] = round(slow["ms_a_step"] / record["ms_a_step"], 2)
        is_default = record["way"] == "ours" and model in GOALS
        record["goal"] = GOALS[model] if is_default else ""
        fine = is_default and record["times_published"] >= GOALS[model] and record["start_up_s"] <= START_UP
        record["reached"] = ("yes" if fine else "missed") if is_default else ""
    slow |= {"times_published": 1.0, "goal": "", "reached": ""}
    return [slow, *records]


def main() -> None:
    """Measure each net."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(GOALS))
    parser.add_argument("--ways", default=";".join(WAYS), help="of the first net; separated by semicolons")
    parser.add_argument("--images", type=int, default=10_000, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="of ours; the first is not timed")
    args = gpu_options(parser)
    if args.check:
        args.models, args.images, args.epochs = "small_cnn", 4 * BATCH, 2
    if DEVICE.type == "cpu":
        args.ways = "ours"  # the others need CUDA
    about = about_gpu() | {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "random.npz"
        random_images(data, args.images, 32, 10)
        ways = args.ways.split(";")
        for model in args.models.split(","):
            for record in measure(model, ways, data, args.epochs):
                speed = {"images_a_second": round(1000 * BATCH / record["ms_a_step"])}
                records.append(record | {"ms_a_step": round(record["ms_a_step"], 2)} | speed | about)
            ways = ["ours"]
            show("A training step on one GPU", records, args.csv)


if __name__ == "__main__":
    main()
