"""What processes of tests run, started by hand as torchrun would: ``python worker.py FOLDER``, with RANK and so on."""

import faulthandler
import json
import os
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dualfocal.losses import DualFocalLoss
from dualfocal.models import make_model
from dualfocal.runs import Recipe
from dualfocal.train import train
from dualfocal.train.distributed import Group, processes
from dualfocal.train.validation import summarize

LIMIT = 120  # seconds; what takes longer hangs
LONG = bytes(range(256)) * 5000 + b"odd"  # more than 1 MB
BEYOND = 2**53 + 1  # the first whole number that float64 does not have


class Nap(nn.Module):
    """Takes so long a step as NAP says: so that a test can come in between."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            time.sleep(float(os.environ.get("NAP", "0")))
        return inputs


def slow_cnn(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(Nap(), make_model("small_cnn", num_classes=num_classes, in_channels=in_channels))


def noisy_cnn(*, num_classes: int, in_channels: int) -> nn.Module:
    """With batch norm and dropout: what each process has of its own."""
    return nn.Sequential(
        *(Nap(), nn.Conv2d(in_channels, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Flatten(), nn.Linear(72, num_classes)),
    )


def drawn(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits and labels, some of them right."""
    rng = torch.Generator().manual_seed(number)
    logits = 3 * torch.randn(number, 5, generator=rng, dtype=dtype)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]


def exchange(group: Group) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What each method of a group gives this process."""
    rank = group.rank
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    kept = torch.tensor([rank + 1])
    actual = {
        "sum": group.sum(torch.tensor([BEYOND, -BEYOND, 2**62, rank])),
        "sum_not_contiguous": group.sum(torch.arange(6).view(2, 3).t() * (rank + 1)),
        "gather_3_1": group.gather(rows if rank == 0 else rows[:1] + 10),
        "gather_0_3": group.gather(rows[:0] if rank == 0 else rows),
        "gather_0_0": group.gather(rows[:0]),
        "gather_int64": group.gather(torch.tensor([BEYOND + rank] * (rank + 1))),
        "share": group.share(torch.arange(7)),
        "share_of_1": group.share(torch.arange(1)),
    }
    for name, message in {"empty": b"", "long": LONG, "zero": b"\0"}.items():
        actual[f"tell_{name}"] = torch.tensor(list(group.first_does(lambda told=message: told)), dtype=torch.uint8)
    group.sum(kept)
    actual["argument_of_sum"] = kept
    norm = nn.BatchNorm1d(3)
    norm.running_mean += rank + 1
    norm.num_batches_tracked += BEYOND + rank
    group.same_buffers(norm)
    actual |= {"running_mean": norm.running_mean, "num_batches": norm.num_batches_tracked[None]}
    summary = summarize(*map(group.share, drawn(1001)), DualFocalLoss(reduction="sum"), 100, group)
    return {name: tensor.contiguous() for name, tensor in actual.items()}, summary


def main(folder: Path) -> None:
    """Do the jobs of jobs.json one after the other; say after each what has come of it, in outcomes-RANK.json."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    rank = int(os.environ["RANK"])
    todo = json.loads((folder / "jobs.json").read_text())
    os.environ["MASTER_PORT"] = str(todo["exchange"])
    with processes("cpu") as group:
        actual, summary = exchange(group)
    save_file(actual, folder / f"exchange-{rank}.safetensors")
    (folder / f"summary-{rank}.json").write_text(json.dumps(summary))
    outcomes = {}
    for name, job in todo["jobs"].items():
        os.environ["MASTER_PORT"] = str(job["port"])  # they meet anew, each time in another place
        try:
            train(Recipe.from_dict(job["recipe"]), job["out"], device="cpu", progress=False)
            outcome = "done"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        outcomes[name] = outcome
        (folder / f"outcomes-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
