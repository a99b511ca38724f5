"""Does the fast step train the same? The same batches of CIFAR-10 through ResNet-50, step by step, in several ways.

    python benchmarks/train_agreement_gpu.py --data-root DATA [--csv benchmarks/results/train_agreement_gpu.csv]

All start from the same weights and see the same images, varied alike. The yardstick is float32 by eager steps. From the
same state: before each step a way gets the yardstick's weights, momentum and running means, so that one step's
rounding shows, in the loss and in the change of the weights. By itself: each way trains on, and rounding grows, as in
any training at a high learning rate; float32 in another order of summation (channels_last) says how fast. Losses are
means over a batch. Deterministic algorithms.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from _measure import DEVICE, about_gpu, gpu_options, show
from rich.progress import track
from torch import Tensor

from dualfocal_lab.data import DataSet, load_data
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.forward import Forward
from dualfocal_lab.train.model import prepare_model
from dualfocal_lab.train.optimizer import make_optimizer
from dualfocal_lab.train.presets import preset
from dualfocal_lab.train.randomness import make_batches, repeatable
from dualfocal_lab.train.step import make_step

GPU = torch.device("cuda", 0) if DEVICE.type == "cuda" else DEVICE
YARDSTICK = ["precision=float32", "step=eager", "channels_last=false"]
WAYS = {
    "float32, eager, channels_last": ["precision=float32", "step=eager", "channels_last=true"],
    "bfloat16, eager": ["precision=bfloat16", "step=eager", "channels_last=true"],
    "bfloat16, captured": ["precision=bfloat16", "step=captured", "channels_last=true"],
}


class Training:
    """A model that can be trained step by step, and set to another's state."""

    def __init__(self, recipe: Recipe, settings: list[str], data: DataSet) -> None:
        self.recipe = recipe.with_settings(["deterministic=true", *settings]).on(GPU)
        self.model = prepare_model(self.recipe, data, GPU)
        self.optimizer = make_optimizer(self.recipe, list(self.model.parameters()))
        forward, criterion = Forward(self.model, self.recipe, GPU), self.recipe.make_loss().to(GPU)
        self.step = make_step(self.recipe, data, forward, criterion, self.optimizer, Group(0, 1, GPU), say=print)
        self.step.begin(0)

    @torch.no_grad()
    def become(self, other: "Training") -> None:
        """Take over weights, buffers and momentum."""
        for mine, theirs in zip(self.state(), other.state(), strict=True):
            mine.copy_(theirs)

    def state(self) -> list[Tensor]:
        """Everything that a step changes."""
        momentum = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*self.model.state_dict().values(), *momentum]

    def weights(self) -> Tensor:
        """All in one vector, in the order in which they are read."""
        return torch.cat([weight.detach().contiguous().flatten() for weight in self.model.parameters()])

    def take(self, batch: Tensor) -> tuple[float, Tensor]:
        """The mean loss of a batch, and how the step on it changes the weights."""
        before = self.weights()
        loss = float(self.step(batch).loss) / len(batch)
        return loss, self.weights() - before


def compare(recipe: Recipe, settings: list[str], data: DataSet, steps: int) -> dict[str, Any]:
    """One way beside the yardstick: from the same state, and by itself."""
    with repeatable(recipe.with_settings(["deterministic=true", *YARDSTICK]).on(GPU), GPU):
        yardstick, forced, free = (Training(recipe, way, data) for way in (YARDSTICK, settings, settings))
        losses: dict[str, list[float]] = {"yardstick": [], "forced": [], "free": []}
        off = []
        for batch in track(make_batches(yardstick.recipe, data, 0)[:steps], ", ".join(settings)):
            forced.become(yardstick)
            loss, change = forced.take(batch)
            right_loss, right_change = yardstick.take(batch)
            losses["forced"].append(loss)
            losses["yardstick"].append(right_loss)
            losses["free"].append(free.take(batch)[0])
            off.append(float((change - right_change).norm() / right_change.norm()))
        for training in (yardstick, forced, free):
            training.step.close()
    apart = {
        name: [abs(mine - right) / right for mine, right in zip(losses[name], losses["yardstick"], strict=True)]
        for name in ("forced", "free")
    }
    return {
        "loss_off_percent": round(100 * statistics.median(apart["forced"]), 3),
        "loss_most_off_percent": round(100 * max(apart["forced"]), 3),
        "change_off_percent": round(100 * statistics.median(off), 2),
        "by_itself_off_percent": round(100 * statistics.median(apart["free"]), 2),
        "mean_of_last_10": round(statistics.mean(losses["free"][-10:]), 4),
        "yardstick_last_10": round(statistics.mean(losses["yardstick"][-10:]), 4),
        "losses": losses["free"],
    }


def main() -> None:
    """Run each way, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    args = gpu_options(parser)
    recipe, ways = preset("cifar10_resnet50"), WAYS
    if args.check:
        recipe, args.steps = preset("digits"), 3
    if DEVICE.type == "cpu":  # without CUDA graphs
        ways = {way: [setting.replace("captured", "eager") for setting in settings] for way, settings in WAYS.items()}
    data = load_data(recipe.data, args.data_root, **recipe.data_options).to(GPU)
    results = {way: compare(recipe, settings, data, args.steps) for way, settings in ways.items()}
    eager = results["bfloat16, eager"]["losses"]
    records = []
    for way, result in results.items():
        same = {"bits_of_bf16_eager": "yes" if result.pop("losses") == eager else "no"}
        records.append({"way": way, **result, **same, "steps": args.steps, **about_gpu()})
    show("The same steps in several ways", records, args.csv)


if __name__ == "__main__":
    main()
