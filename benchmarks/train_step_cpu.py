"""The training engine on the CPU beside a plain loop, written by hand, with the same data, net, loss and optimizer.

    python benchmarks/train_step_cpu.py [--csv benchmarks/results/train_step_cpu.csv] [--rounds 9]

Both take batches from the same DataSet, clip the gradient, keep the sum of the losses and stop at a NaN. The plain loop
does nothing else; the engine also counts for its progress display and minds interruptions. A round is an epoch of each,
in turns, in one process; the engine says itself how long the steps of an epoch took (`images_per_second` in its log).
Medians of the rounds, and the median of the ratios of neighbours. Validation, log and checkpoint come on top, once an
epoch: the last column, for a validation part of a tenth.
"""

import argparse
import math
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
from dualfocal.train import Recipe, train

GOAL = 1.05  # times the seconds of the plain loop
CASES = {  # model, samples, side of the image, channels, batch
    "small_cnn, 8 x 8": ("small_cnn", 5_000, 8, 1, 100),
    "small_cnn, 32 x 32": ("small_cnn", 2_560, 32, 3, 128),
    "densenet40, 32 x 32": ("densenet40", 128, 32, 3, 64),
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


class Engine:
    """Our engine, an epoch at a time: each call goes on with the run, of which one epoch is added."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder, self.round = recipe, folder, 0

    def epoch(self) -> tuple[float, float]:
        """Seconds of the steps of two epochs' second one, and of all of that epoch."""
        self.round += 1
        run = train(self.recipe, self.folder / str(self.round), progress=False)
        line = run.log[-1]
        return len(load_index(self.recipe)) / line["images_per_second"], line["seconds"]


def load_index(recipe: Recipe) -> torch.Tensor:
    """The training part."""
    return load_data(recipe.data, **recipe.data_options).splits["train"]


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
    net = make_model(model, num_classes=10, in_channels=channels)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    engine = Engine(recipe, folder / name.replace(" ", ""))
    ours, whole, theirs, ratios = [], [], [], []
    for round_ in track(range(rounds + 1), name):
        plain = statistics.mean(plain_epoch(data, net, optimizer, batch_size) for _ in range(2)) if round_ % 2 else None
        steps, epoch = engine.epoch()
        if plain is None:
            plain = statistics.mean(plain_epoch(data, net, optimizer, batch_size) for _ in range(2))
        if round_:  # the first warms up
            ours.append(steps), whole.append(epoch), theirs.append(plain), ratios.append(steps / plain)
    steps_per_epoch = math.ceil(len(data.splits["train"]) / batch_size)
    ratio = statistics.median(ratios)
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
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = [measure(name, args.rounds, Path(folder)) for name in CASES]
    show("A training step on the CPU", records, args.csv)


if __name__ == "__main__":
    main()
