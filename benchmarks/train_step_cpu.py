"""The training engine on the CPU beside a plain loop, written by hand, with the same data, net, loss and optimizer.

    python benchmarks/train_step_cpu.py [--csv benchmarks/results/train_step_cpu.csv] [--rounds 15]

Both take batches from the same DataSet, clip the gradient, keep the sum of the losses and stop at a NaN. The plain loop
does nothing else; the engine also counts for its progress display and minds interruptions. In a round each trains a new
net for two epochs, in random order, in one process; the second is timed, by the engine itself (`images_per_second` in
its log). Medians of the rounds, and the median of their ratios. Validation, log and checkpoint come on top, once an
epoch: the last column, for a validation part of a tenth.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch
from _measure import cpu_name, show
from rich.progress import track
from torch import nn
from torch.nn.utils import clip_grad_norm_

from dualfocal import DualFocalLoss
from dualfocal.data import DataSet, load_data
from dualfocal.models import make_model
from dualfocal.runs import Recipe
from dualfocal.train import train

GOAL = 1.05  # times the seconds of the plain loop
CASES = {  # model, samples, side of the image, channels, batch
    "small_cnn, 8 x 8": ("small_cnn", 5_000, 8, 1, 100),
    "small_cnn, 32 x 32": ("small_cnn", 5_120, 32, 3, 128),
    "densenet40, 32 x 32": ("densenet40", 128, 32, 3, 16),
}


def plain_epoch(data: DataSet, net: nn.Module, optimizer: torch.optim.Optimizer, batch_size: int) -> float:
    """Seconds of one epoch, as one would write it down."""
    criterion = DualFocalLoss(gamma=5.0, reduction="sum")
    weights = list(net.parameters())
    net.train()
    start, total = time.perf_counter(), 0.0
    train_index = data.splits["train"]
    for index in train_index[torch.randperm(len(train_index))].split(batch_size):
        inputs, target = data.batch(index)
        loss = criterion(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(weights, 2.0)
        optimizer.step()
        total += loss.item()
        if not math.isfinite(total):
            raise RuntimeError("the loss is not finite")
    return time.perf_counter() - start


def plain(recipe: Recipe, data: DataSet) -> float:
    """Seconds of the second epoch of a new net, trained by hand."""
    torch.manual_seed(recipe.seed)
    net = make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels)
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=5e-4)
    return [plain_epoch(data, net, optimizer, recipe.batch_size) for _ in range(2)][-1]


def engine(recipe: Recipe, data: DataSet) -> tuple[float, float]:
    """Seconds of the steps of the second epoch of a new net, trained by our engine, and of all of that epoch."""
    with tempfile.TemporaryDirectory() as folder:
        line = train(recipe, folder, progress=False).log[-1]
    return len(data.splits["train"]) / line["images_per_second"], line["seconds"]


def measure(name: str, rounds: int, folder: Path) -> dict[str, object]:
    """One case."""
    model, samples, side, channels, batch_size = CASES[name]
    rng = np.random.default_rng(0)
    file = folder / f"{model}-{side}.npz"
    arrays = {"x_train": rng.integers(0, 256, (samples * 10 // 9, side, side, channels), np.uint8)}
    arrays |= {"x_test": arrays["x_train"][:10], "y_test": np.arange(10)}
    np.savez(file, y_train=rng.integers(0, 10, len(arrays["x_train"])), **arrays)
    recipe = Recipe(
        data=str(file),
        data_options={"val_size": 0.1, "layout": "NHWC"},
        model=model,
        loss_options={"gamma": 5.0},
        epochs=2,
        batch_size=batch_size,
        lr=1e-3,
        milestones=(),
    )
    data = load_data(recipe.data, **recipe.data_options)
    ours, whole, theirs = [], [], []
    for round_ in track(range(rounds + 1), name):
        for contender in random.Random(round_).sample(["plain", "engine"], 2):
            if contender == "plain":
                theirs.append(plain(recipe, data))
            else:
                steps, epoch = engine(recipe, data)
                ours.append(steps)
                whole.append(epoch)
    ours, whole, theirs = ours[1:], whole[1:], theirs[1:]  # the first round warms up
    steps_per_epoch = math.ceil(len(data.splits["train"]) / batch_size)
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return {
        "case": name,
        "batch": batch_size,
        "ours_ms_a_step": round(1000 * statistics.median(ours) / steps_per_epoch, 3),
        "plain_ms_a_step": round(1000 * statistics.median(theirs) / steps_per_epoch, 3),
        "ours_over_plain": round(ratio, 3),
        "goal": GOAL,
        "reached": "yes" if ratio <= GOAL else "missed",
        "with_validation_and_log": round(statistics.median(whole) / statistics.median(theirs), 3),
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "cpu": cpu_name(),
    }


def main() -> None:
    """Measure each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = [measure(name, args.rounds, Path(folder)) for name in CASES]
    show("A training step on the CPU", records, args.csv)


if __name__ == "__main__":
    main()
