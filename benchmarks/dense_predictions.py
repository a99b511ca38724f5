"""Are dense predictions evaluated in flat memory and linear time? Images of 1024 x 1024 pixels and 19 classes.

    python benchmarks/dense_predictions.py [--csv FILE] [--images 10,25,50] [--side 1024]

Images are generated one at a time. Each contender runs in a process of its own with one thread:

  dualfocal             CalibrationSums of every image, then evaluate: all metrics, and floors, tests and
                        interval with images as clusters
  dualfocal ECE         ExpectedCalibrationError.update of every image, then compute: the ECE alone
  torchmetrics          MulticlassCalibrationError(n_bins=15).update of every image, then compute: the ECE alone

`memory` is the peak of the process beyond that after the first image and a second one, in MiB: working memory, and what
is kept. `cpu` is the CPU time of the updates in seconds, without that of the generator; `finish` that of the result.
torchmetrics keeps every confidence, so its memory grows with the number of images.
"""

import argparse
import csv
import ctypes
import gc
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from _measure import in_child, memory
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torchmetrics.classification import MulticlassCalibrationError

from dualfocal.metrics import CalibrationSums, ExpectedCalibrationError

NUM_CLASSES = 19
COLUMNS = ("contender", "images", "pixels", "cpu", "finish", "memory", "ece")


def image(index: int, side: int) -> tuple[Tensor, Tensor]:
    """Logits (1, C, H, W) and labels (1, H, W): regions of 64 x 64 pixels, and noise."""
    generator = torch.Generator().manual_seed(index)
    regions = torch.randint(0, NUM_CLASSES, (1, 1, side // 64, side // 64), generator=generator).float()
    label = torch.nn.functional.interpolate(regions, scale_factor=64)[0].long()
    logits = torch.randn(1, NUM_CLASSES, side, side, generator=generator).mul_(2)
    return logits.scatter_add_(1, label[None], torch.full((1, 1, side, side), 4.0)), label


def run(contender: str, images: int, side: int) -> dict[str, Any]:
    """Measure a contender; to be run in a child."""
    torch.set_num_threads(1)
    state: Any = {
        "dualfocal": lambda: None,
        "dualfocal ECE": ExpectedCalibrationError,
        "torchmetrics": lambda: MulticlassCalibrationError(NUM_CLASSES, n_bins=15, validate_args=False),
    }[contender]()
    cpu, before = 0.0, 0.0
    for index in range(images):
        logits, label = image(index, side)
        start = time.process_time()
        if contender == "dualfocal":
            sums = CalibrationSums.from_predictions(logits, label, clusters=index)
            state = sums if state is None else state + sums
        else:
            state.update(logits, label)
        cpu += time.process_time() - start
        if index == 0:
            del logits, label
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            before = memory("VmRSS")
            logits, label = image(index, side)  # an image and its working memory are no growth
            Path("/proc/self/clear_refs").write_text("5")
            base = memory("VmRSS") - before
        del logits, label
    start = time.process_time()
    ece = state.evaluate().ece if contender == "dualfocal" else float(state.compute())
    finish = time.process_time() - start
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "contender": contender,
        "images": images,
        "pixels": images * side * side,
        "cpu": cpu,
        "finish": finish,
        "memory": memory("VmHWM") - before - base,
        "ece": ece,
    }


def main() -> None:
    """Measure all contenders, print a table and write a CSV file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--images", default="10,25,50")
    parser.add_argument("--side", type=int, default=1024)
    options = parser.parse_args()
    console, table = Console(), Table(*COLUMNS)
    records = []
    for number in map(int, options.images.split(",")):
        for contender in ("dualfocal", "dualfocal ECE", "torchmetrics"):
            record = in_child(lambda contender=contender, number=number: run(contender, number, options.side))
            records.append(record)
            table.add_row(*(f"{x:.6g}" if isinstance(x, float) else str(x) for x in record.values()))
    console.print(table)
    if options.csv is not None:
        versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
        with options.csv.open("w", newline="") as file:
            command = f"benchmarks/dense_predictions.py --images {options.images} --side {options.side}"
            file.write(f"# {command}; {versions}, torchmetrics {torchmetrics.__version__}, one thread\n")
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            for record in records:
                writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in record.items()})


if __name__ == "__main__":
    main()
