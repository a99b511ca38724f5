"""What the processes of a test do: ``python worker.py FOLDER``, with the variables of torchrun (RANK, ...) set."""

import faulthandler
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dualfocal.losses import DualFocalLoss
from dualfocal_lab.models import make_model
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train import train
from dualfocal_lab.train.distributed import Group, processes
from dualfocal_lab.train.validation import summarize

LIMIT = 120  # seconds; what takes longer hangs
LONG = bytes(range(256)) * 5000 + b"odd"  # more than 1 MB
BEYOND = 2**53 + 1  # the first whole number that float64 does not have


class Nap(nn.Module):
    """Sleep for NAP seconds in each training step, so that a test can stop the training in between."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            time.sleep(float(os.environ.get("NAP", "0")))
        return inputs


def slow_cnn(*, num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(Nap(), make_model("small_cnn", num_classes=num_classes, in_channels=in_channels))


def noisy_cnn(*, num_classes: int, in_channels: int) -> nn.Module:
    """Return a net with batch norm and dropout, which differ between the processes."""
    return nn.Sequential(
        *(Nap(), nn.Conv2d(in_channels, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Flatten(), nn.Linear(72, num_classes)),
    )


def draw(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Draw logits, and labels that follow their softmax."""
    rng = torch.Generator().manual_seed(number)
    logits = 3 * torch.randn(number, 5, generator=rng, dtype=dtype)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]


def exchange(group: Group) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return what each method of a group gives this process."""
    rank = group.rank
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    argument = torch.tensor([rank + 1])
    received = {
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
        answer = group.first_does(lambda message=message: message)
        received[f"message_{name}"] = torch.tensor(list(answer), dtype=torch.uint8)
    group.sum(argument)
    received["argument_of_sum"] = argument
    norm = nn.BatchNorm1d(3)
    norm.running_mean += rank + 1
    norm.num_batches_tracked += BEYOND + rank
    group.same_buffers(norm)
    received |= {"running_mean": norm.running_mean, "num_batches": norm.num_batches_tracked[None]}
    summary = summarize(*map(group.share, draw(1001)), DualFocalLoss(reduction="sum"), 100, group)
    return {name: tensor.contiguous() for name, tensor in received.items()}, summary


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file grow beyond a size in bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def do(job: dict[str, Any]) -> str:
    """Train, or run the program if there are arguments for it; return "done", the error, or the program's stdout."""
    try:
        if "arguments" in job:
            with redirect_stdout(StringIO()) as stdout, suppress(SystemExit):
                from dualfocal.cli import main as program  # here, so that the GPU tests do not need typer

                program(job["arguments"])
            return stdout.getvalue()
        with files_up_to(job["file_limit"]) if "file_limit" in job else nullcontext():
            train(Recipe.from_dict(job["recipe"]), job["out"], device="cpu", progress=False)
        return "done"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder: Path) -> None:
    """Do the jobs of jobs.json one after the other, and write their outcomes to outcomes-RANK.json."""
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    rank = int(os.environ["RANK"])
    plan = json.loads((folder / "jobs.json").read_text())
    os.environ["MASTER_PORT"] = str(plan["exchange"])
    with processes("cpu") as group:
        received, summary = exchange(group)
    save_file(received, folder / f"exchange-{rank}.safetensors")
    (folder / f"summary-{rank}.json").write_text(json.dumps(summary))
    outcomes = {}
    for name, job in plan["jobs"].items():
        os.environ["MASTER_PORT"] = str(job["port"])  # each job has its own process group
        outcomes[name] = do(job)
        (folder / f"outcomes-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
