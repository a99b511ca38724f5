"""How far does bfloat16 turn the gradients of a network that is nearly trained? On the CPU, by emulation.

    python benchmarks/bfloat16_gradients.py RUN --data-root DATA [--csv benchmarks/results/bfloat16_gradients.csv]

RUN is a folder of `dualfocal train` or `paper reproduce` that has a checkpoint. The same batches, varied as in
training, go through its network twice: in float32, and with weights rounded to bfloat16 and the outputs of
convolutions, batch norms and linear layers, forth and back, too: where mixed precision rounds, but for sums.
Gradients are those of the sum over a batch, of all weights in one vector. The cosine between two batches says how much
they vary by sampling alone. The margin is the logit of the true class less the largest other one.
"""

import argparse
import statistics
from datetime import date
from pathlib import Path

import torch
from _measure import show
from rich.progress import track
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal import dual_focal_loss
from dualfocal_lab.data import load_data
from dualfocal_lab.models import make_model
from dualfocal_lab.runs import Run
from dualfocal_lab.runs.layout import CHECKPOINT

LOSSES = {
    "dual focal, gamma 5": lambda logits, target: dual_focal_loss(logits, target, gamma=5, reduction="sum"),
    "cross-entropy": lambda logits, target: F.cross_entropy(logits, target, reduction="sum"),
}


class Rounded(torch.autograd.Function):
    """To bfloat16 and back, on the way forth and on the way back."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Of values."""
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        """Of their gradients."""
        return gradient.bfloat16().float()


def rounded(model: nn.Module) -> nn.Module:
    """The same model as mixed precision sees it."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            module.register_forward_hook(lambda module, inputs, output: Rounded.apply(output))
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            for weight in module.parameters():
                weight.data = weight.data.bfloat16().float()
    return model


def of_checkpoint(run: Run, num_classes: int) -> tuple[nn.Module, nn.Module]:
    """The network in training mode, in float32 and rounded."""
    with safe_open(run.path / CHECKPOINT, "pt") as file:
        names = [name for name in file.keys() if name.startswith("model.")]  # noqa: SIM118 (no dictionary)
        weights = {name.removeprefix("model."): file.get_tensor(name) for name in names}
    models = [make_model(run.recipe.model, num_classes=num_classes).train() for _ in range(2)]
    for model in models:
        model.load_state_dict(weights)
    return models[0], rounded(models[1])


def gradient(model: nn.Module, inputs: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Of all weights in one vector; and the margins."""
    model.zero_grad()
    logits = model(inputs)
    LOSSES[loss](logits, target).backward()
    logits = logits.detach()
    own = target.unsqueeze(1)
    margins = logits.gather(1, own).squeeze(1) - logits.scatter(1, own, -torch.inf).amax(1)
    vector = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return vector.double(), margins  # float32 cannot add up 20 million squares


def main() -> None:
    """Measure, show, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--batches", type=int, default=16, help="at least 2 (default: %(default)s)")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    if asked.batches < 2:
        parser.error(f"--batches must be 2 or more, got {asked.batches}")
    run = Run(asked.run)
    if not (run.path / CHECKPOINT).exists():
        parser.error(f"{run.path}: has no {CHECKPOINT}; a run keeps one until it is finished")

    data = load_data(run.recipe.data, root=asked.data_root, **run.recipe.data_options)
    exact, coarse = of_checkpoint(run, data.num_classes)
    order = data.splits["train"][torch.randperm(len(data.splits["train"]), generator=torch.Generator().manual_seed(0))]
    draws = data.draw(seed=0, epoch=0)
    size = run.recipe.batch_size

    records = []
    for loss in LOSSES:
        cosines, lengths, between, noise, bias = [], [], [], [], []
        last = None
        for batch in track(range(asked.batches), loss, transient=True):
            inputs, target = data.batch(order[batch * size : (batch + 1) * size], draws)
            truth, margins = gradient(exact, inputs, target, loss)
            found, moved = gradient(coarse, inputs, target, loss)
            cosines.append(F.cosine_similarity(truth, found, dim=0).item())
            lengths.append((found.norm() / truth.norm()).item())
            noise.append((moved - margins).std().item())
            bias.append((moved - margins).mean().item())
            if last is not None:
                between.append(F.cosine_similarity(truth, last, dim=0).item())
            last = truth
        records.append(
            {
                "loss": loss,
                "cosine": round(statistics.mean(cosines), 4),
                "least_cosine": round(min(cosines), 4),
                "cosine_between_batches": round(statistics.mean(between), 3),
                "length_ratio": round(statistics.median(lengths), 4),
                "length_ratios": f"{min(lengths):.3f} to {max(lengths):.3f}",
                "margin_noise": round(statistics.mean(noise), 4),
                "margin_bias": round(statistics.mean(bias), 4),
                "batches": asked.batches,
                "epoch": len(run.log),
                "torch": torch.__version__,
                "date": date.today().isoformat(),
            }
        )
    show("Gradients in bfloat16 and in float32", records, asked.csv)


if __name__ == "__main__":
    main()
