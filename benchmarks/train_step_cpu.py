"""The training engine on the CPU beside a plain loop, written by hand, with the same data and optimizer.

    python benchmarks/train_step_cpu.py [--csv benchmarks/results/train_step_cpu.csv] [--rounds 15] [--case NAME]

Both take batches from the same DataSet, keep the sum of the losses and stop at a NaN; on images both clip the gradient.
The plain loop does nothing else; the engine also counts for its progress display and minds interruptions. In a round
each trains a new net for two epochs, in random order, in one process; the second is timed, by the engine itself
(`images_per_second` in its log). Medians of the rounds, and the median of their ratios. Validation, log and checkpoint
come on top, once an epoch: the last column, for a validation part of a tenth.

On images both train the same net in float32. On texts the plain loop is the published one, float32 and all texts padded
to 1,000 words, and the engine trains in bfloat16, with a third of the rounds: a plain step takes seconds. The texts
have random words, on average 207, a few less than those of 20 Newsgroups (218).
"""

import argparse
import csv
import math
import random
import statistics
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import torch
from _measure import Record, cpu_name, show
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from dualfocal import DualFocalLoss
from dualfocal_lab.data import DataSet, load_data
from dualfocal_lab.data.dataset import random_split
from dualfocal_lab.data.transforms import Embed
from dualfocal_lab.models import make_model
from dualfocal_lab.models.small import TextCNN
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train import train
from dualfocal_lab.train.presets import preset

GOAL, TEXT_GOAL = 1.05, 1 / 8  # times the seconds of the plain loop
TEXT = "text_cnn, 1,000 words"
IMAGES = {  # model, samples, side of the image, channels, batch
    "small_cnn, 8 x 8": ("small_cnn", 5_000, 8, 1, 100),
    "small_cnn, 32 x 32": ("small_cnn", 5_120, 32, 3, 128),
    "densenet40, 32 x 32": ("densenet40", 128, 32, 3, 16),
}


class PaddedTextCNN(TextCNN):
    """The published network, which computes the padding of all texts."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, num_classes) of embedded words (N, in_channels, length)."""
        features = self.features(x).amax(dim=-1)
        logits: Tensor = self.fc(self.dropout(F.relu(self.hidden(features))))
        return logits


def plain_epoch(recipe: Recipe, data: DataSet, net: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Seconds of one epoch, as one would write it down."""
    criterion = DualFocalLoss(**recipe.loss_options, reduction=recipe.reduction)
    weights = list(net.parameters())
    net.train()
    start, total = time.perf_counter(), 0.0
    train_index = data.splits["train"]
    for index in train_index[torch.randperm(len(train_index))].split(recipe.batch_size):
        inputs, target = data.batch(index)
        loss = criterion(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        if recipe.clip_norm is not None:
            clip_grad_norm_(weights, recipe.clip_norm)
        optimizer.step()
        total += loss.item()
        if not math.isfinite(total):
            raise RuntimeError("the loss is not finite")
    return time.perf_counter() - start


def plain(recipe: Recipe, data: DataSet) -> float:
    """Seconds of the second epoch of a new net, trained by hand."""
    torch.manual_seed(recipe.seed)
    if recipe.model == "text_cnn":
        net: nn.Module = PaddedTextCNN(num_classes=data.num_classes, in_channels=data.in_channels)
        optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=recipe.lr)
    else:
        net = make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels)
        optimizer = torch.optim.SGD(net.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=5e-4)
    return [plain_epoch(recipe, data, net, optimizer) for _ in range(2)][-1]


def engine(recipe: Recipe, data: DataSet) -> tuple[float, float]:
    """Seconds of the steps of the second epoch of a new net, trained by our engine, and of all of that epoch."""
    with tempfile.TemporaryDirectory() as folder:
        line = train(recipe, folder, progress=False).log[-1]
    return len(data.splits["train"]) / line["images_per_second"], line["seconds"]


def image_recipe(name: str, folder: Path) -> Recipe:
    """Training on random images, which are written to the folder."""
    model, samples, side, channels, batch_size = IMAGES[name]
    rng = np.random.default_rng(0)
    file = folder / f"{model}-{side}.npz"
    arrays = {"x_train": rng.integers(0, 256, (samples * 10 // 9, side, side, channels), np.uint8)}
    arrays |= {"x_test": arrays["x_train"][:10], "y_test": np.arange(10)}
    np.savez(file, y_train=rng.integers(0, 10, len(arrays["x_train"])), **arrays)
    return Recipe(
        data=str(file),
        data_options={"val_size": 0.1, "layout": "NHWC"},
        model=model,
        loss_options={"gamma": 5.0},
        epochs=2,
        batch_size=batch_size,
        lr=1e-3,
        milestones=(),
    )


def texts() -> DataSet:
    """Random words for three batches and a validation split, in texts as long as those of 20 Newsgroups."""
    num_val, length, rng = 42, 1_000, np.random.default_rng(0)
    samples = 3 * 128 + num_val
    num_words = rng.lognormal(math.log(150), 0.87, samples).clip(max=length).astype(np.int64)
    words = rng.integers(1, 20_000, (samples, length), np.int32)
    words[np.arange(length) < length - num_words[:, None]] = 0
    vectors = rng.standard_normal((20_000, 100), np.float32)
    vectors[0] = 0
    return DataSet(
        name="texts",
        class_names=tuple(map(str, range(20))),
        inputs=torch.from_numpy(words),
        target=torch.from_numpy(rng.integers(0, 20, samples)),
        splits=random_split(samples, val_size=num_val, seed=0),
        encoder=Embed(torch.from_numpy(vectors)),
    )


def measure(name: str, recipe: Recipe, goal: float, rounds: int) -> Record:
    """One case."""
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
    steps_per_epoch = math.ceil(len(data.splits["train"]) / recipe.batch_size)
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return {
        "case": name,
        "batch": recipe.batch_size,
        "ours_ms_a_step": round(1000 * statistics.median(ours) / steps_per_epoch, 3),
        "plain_ms_a_step": round(1000 * statistics.median(theirs) / steps_per_epoch, 3),
        "ours_over_plain": round(ratio, 3),
        "goal": goal,
        "reached": "yes" if ratio <= goal else "missed",
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
    parser.add_argument("--csv", type=Path, help="write the table there; with --case, the rows of other cases stay")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", choices=[*IMAGES, TEXT], help="measure only this case")
    args = parser.parse_args()
    records: list[Record] = []
    if args.case and args.csv:
        with args.csv.open(newline="") as file:
            records = [row for row in csv.DictReader(file) if row["case"] != args.case]
    with tempfile.TemporaryDirectory() as folder:
        for name in [args.case] if args.case else [*IMAGES, TEXT]:
            if name == TEXT:
                text_recipe = preset("20newsgroups_text_cnn", ["precision=bfloat16", "epochs=2", "weights=last"])
                text_recipe = replace(text_recipe, data=f"{Path(__file__).stem}:texts")
                records.append(measure(name, text_recipe, TEXT_GOAL, args.rounds // 3))
            else:
                records.append(measure(name, image_recipe(name, Path(folder)), GOAL, args.rounds))
    show("A training step on the CPU", records, args.csv)


if __name__ == "__main__":
    main()
