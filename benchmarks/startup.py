"""How long the library and the command line take to start, beside `import torch` in the same run.

    python benchmarks/startup.py [--csv benchmarks/results/startup.csv] [--rounds 9]

CPU seconds (user and system) of fresh processes that take turns; medians. `dualfocal evaluate` reads an .npz of
500 x 5 logits and prints the evaluation with its noise floors and tests. Both need torch, so that what counts is the
time beside that of `import torch`. The goals are .1 and .5 s beyond it where it takes .69 s, as ratios.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
from _measure import Record, cpu_name, installed_version, show

GOALS = {"import torch": None, "dualfocal.DualFocalLoss": 1.15, "dualfocal evaluate": 1.72}  # times import torch


def commands(predictions: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "dualfocal.DualFocalLoss": [sys.executable, "-c", "import torch, dualfocal; dualfocal.DualFocalLoss(gamma=5)"],
        "dualfocal evaluate": [sys.executable, "-m", "dualfocal", "evaluate", str(predictions)],
    }


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of a process."""
    # As for users: with compiled sources, which PYTHONDONTWRITEBYTECODE would not keep.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def write_predictions(path: Path) -> None:
    """Over-confident predictions of 500 samples and five classes."""
    generator = np.random.default_rng(0)
    logits = generator.normal(scale=3, size=(500, 5)).astype(np.float32)
    target = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    np.savez(path, logits=logits, target=target)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the results to this file")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in GOALS}
    with tempfile.TemporaryDirectory() as folder:
        predictions = Path(folder, "predictions.npz")
        write_predictions(predictions)
        contenders = commands(predictions)
        for command in contenders.values():
            cpu_seconds(command)  # compiles the sources and fills the cache of the disk
        for _ in range(args.rounds):
            for name in random.sample(list(contenders), len(contenders)):
                times[name].append(cpu_seconds(contenders[name]))
    medians = {name: statistics.median(values) for name, values in times.items()}
    torch_seconds = medians["import torch"]
    records: list[Record] = []
    for name, seconds in medians.items():
        goal, ratio = GOALS[name], seconds / torch_seconds
        record: Record = {
            "what": name,
            "cpu_s": f"{seconds:.2f}",
            "times_import_torch": f"{ratio:.2f}",
            "cpu_s_beyond_torch": f"{seconds - torch_seconds:.2f}",
            "goal": "" if goal is None else goal,
            "result": "" if goal is None else "met" if ratio <= goal else "missed",
        }
        about = {"cpu": cpu_name(), "date": date.today().isoformat(), "torch": installed_version("torch")}
        records.append(record | about)
    show("Start-up", records, args.csv)


if __name__ == "__main__":
    main()
