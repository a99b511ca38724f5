"""Calibration metrics on the CPU beside torchmetrics, netcal, uncertainty-calibration and scikit-learn.

    python benchmarks/metrics_cpu.py [--csv FILE] [--sizes 10000x100,5000000x2] [--seconds 10]
    python benchmarks/metrics_cpu.py --cli [--csv FILE]        a file of 1M x 10 logits to its verdict
    python benchmarks/metrics_cpu.py --stream [--csv FILE]     1e8 samples through a streaming metric

float32 logits, 15 bins, one thread, one process; benchmarks/peers.txt has the peers. Everybody starts from the same
logits, so a peer that wants probabilities pays for its torch.softmax.

seconds   median; the contenders take turns, call by call in shuffled rounds, until the time is up, 3 rounds at least.
          Whoever takes more than 5 s is timed once, in the child that measures memory.
extra MiB peak memory of one call beyond what was there before it (inputs, libraries). A forked child calls once on 256
          rows, returns free heap to the system (malloc_trim), resets its high-water mark ("5" into
          /proc/self/clear_refs) and reports how far VmHWM then rises above VmRSS. Linux only.
value     the contender's result, beside the truth: float64 softmax and float64 sums over bins (lo, hi].

"calibrated" and "confident" (size 5000000x2) are the ECE of perfectly calibrated binary predictions: confidence c
uniform on (0.5, 1) and on (0.94, 1), right with probability c. The second puts 5M samples into one bin, where a sum in
float32 ends up moving in steps of 0.5.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import Contender, Record, cpu_name, in_child, memory, read_sizes, say_missing, show, take_turns
from torch import Tensor

from dualfocal import metrics

SIZES = [(10_000, 100), (50_000, 1000), (1_000_000, 10)]
CALIBRATED_SIZE, CALIBRATED = (5_000_000, 2), {"calibrated": 0.5, "confident": 0.94}  # the least confidence of each
BINS = 15
# The least that (peer / ours) may be, by size; "every peer" is the same as the fastest.
GOALS = {
    ("ece", "torchmetrics"): {(50_000, 1000): 1.5, (1_000_000, 10): 4.0},
    ("ece", "every peer"): {(10_000, 100): 1 / 1.2},
    ("classwise_ece", "torchmetrics"): {(50_000, 1000): 20.0},
    ("evaluate", "torchmetrics"): dict.fromkeys(SIZES, 1 / 1.6),
}
CLI_GOAL = 3.0  # seconds from file to verdict, beyond the start of the program
BATCH, BATCHES, STREAM = 65_536, 8, {"dualfocal": (1e6, 1e7, 1e8), "torchmetrics": (1e6, 1e7)}


# The contenders. They import on call, so that a peer that is missing is found out one at a time.


def torchmetrics_ece(logits: Tensor, target: Tensor) -> Tensor:
    """Applies softmax by itself to values outside [0, 1]."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    return multiclass_calibration_error(logits, target, num_classes=logits.shape[1], n_bins=BINS, norm="l1")


def netcal_ece(logits: Tensor, target: Tensor) -> float:
    """netcal's ECE."""
    from netcal.metrics import ECE

    return ECE(BINS).measure(torch.softmax(logits, 1).numpy(), target.numpy())


def uncertainty_calibration_ece(logits: Tensor, target: Tensor) -> float:
    """The plug-in L1 error in equal-width bins of uncertainty-calibration."""
    from calibration import get_ece

    return get_ece(torch.softmax(logits, 1).numpy(), target.numpy(), num_bins=BINS)


def sklearn_ece(logits: Tensor, target: Tensor) -> float:
    """scikit-learn draws the curve of means; the weights of its bins have to be counted beside it."""
    from sklearn.calibration import calibration_curve

    confidence, predicted = torch.softmax(logits, 1).max(1)
    confidence = confidence.clamp_(max=1).numpy()  # it refuses the 1.0000001 that float32 softmax can give
    accuracy, mean = calibration_curve((predicted == target).numpy(), confidence, n_bins=BINS)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence))
    return float(np.abs(accuracy - mean) @ counts[counts > 0] / len(confidence))


def torchmetrics_classwise(logits: Tensor, target: Tensor) -> float:
    """One binary call for each class, on the columns of the softmax."""
    return torchmetrics_columns(torch.softmax(logits, 1).T, target)


def torchmetrics_contiguous(logits: Tensor, target: Tensor) -> float:
    """The same for a user who knows that it pays to copy the columns into rows first."""
    return torchmetrics_columns(torch.softmax(logits, 1).T.contiguous(), target)


def torchmetrics_columns(columns: Tensor, target: Tensor) -> float:
    """The mean of torchmetrics' binary errors; columns (K, N)."""
    from torchmetrics.functional.classification import binary_calibration_error

    errors = [binary_calibration_error(p_k, target == k, n_bins=BINS, norm="l1") for k, p_k in enumerate(columns)]
    return float(torch.stack(errors).mean())


def uncertainty_calibration_classwise(logits: Tensor, target: Tensor) -> float:
    """The same plug-in error, averaged over the classes."""
    from calibration import get_ece

    return get_ece(torch.softmax(logits, 1).numpy(), target.numpy(), num_bins=BINS, mode="marginal")


def published_classwise(logits: Tensor, target: Tensor) -> float:
    """The definition as it is usually coded: a loop over classes, and in it a loop over bins."""
    p = torch.softmax(logits, 1)
    total = torch.zeros(())
    for k in range(p.shape[1]):
        p_k, is_k = p[:, k], target == k
        for lo, hi in pairwise(torch.linspace(0, 1, BINS + 1)):
            inside = (p_k > lo) & (p_k <= hi)
            share = inside.float().mean()
            if share > 0:
                total += (p_k[inside].mean() - is_k[inside].float().mean()).abs() * share
    return float(total / p.shape[1])


# Ours comes first: the others are divided by it.
TASKS: dict[str, dict[str, Contender]] = {
    "ece": {
        "dualfocal": metrics.ece,
        "torchmetrics": torchmetrics_ece,
        "netcal": netcal_ece,
        "uncertainty-calibration": uncertainty_calibration_ece,
        "scikit-learn": sklearn_ece,
    },
    "classwise_ece": {
        "dualfocal": metrics.classwise_ece,
        "torchmetrics": torchmetrics_classwise,
        "torchmetrics (contiguous)": torchmetrics_contiguous,
        "uncertainty-calibration": uncertainty_calibration_classwise,
        "published": published_classwise,
    },
    # Every metric at once, against the one ECE.
    "evaluate": {"dualfocal": lambda x, y: metrics.evaluate(x, y).ece, "torchmetrics": torchmetrics_ece},
}
CALIBRATED_ECE = {"dualfocal": lambda x, y: metrics.ece(x, y, input="probs"), "torchmetrics": torchmetrics_ece}
TASKS |= dict.fromkeys(CALIBRATED, CALIBRATED_ECE)


def make_logits(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits of spread-out confidence; half the targets are drawn from their softmax, the others at random."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator).mul_(2)
    target = torch.randint(classes, (rows,), generator=generator)
    half = logits[: rows // 2]
    for x, y in zip(half.split(10_000), target[: rows // 2].split(10_000), strict=True):
        y.copy_(torch.multinomial(torch.softmax(x, 1), 1, generator=generator)[:, 0])
    order = torch.randperm(rows, generator=generator)
    return logits[order], target[order]


def make_calibrated(rows: int, least: float) -> tuple[Tensor, Tensor]:
    """Probabilities [c, 1 - c], c uniform from `least` to 1, and labels that are 0 with probability c."""
    generator = torch.Generator().manual_seed(0)
    c = least + (1 - least) * torch.rand(rows, generator=generator)
    wrong = torch.rand(rows, generator=generator, dtype=torch.float64) >= c
    return torch.stack([c, 1 - c], 1), wrong.long()


def true_errors(x: Tensor, target: Tensor, *, probs: bool = False) -> tuple[float, float]:
    """ECE and classwise ECE in float64, a few rows at a time."""
    rows, classes = x.shape
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    # Sum over the bin of confidence minus outcome: for the top class, and for each class.
    top, each = np.zeros(BINS), np.zeros(classes * BINS)
    for some, y in zip(x.split(10_000), target.split(10_000), strict=True):
        p = (some.double() if probs else torch.softmax(some.double(), 1)).numpy()  # (n, K)
        right = p.argmax(1) == y.numpy()
        top += np.bincount(np.searchsorted(edges, p.max(1)), p.max(1) - right, minlength=BINS)
        cell = np.searchsorted(edges, p) + BINS * np.arange(classes)  # left: p on an edge belongs to the bin below
        gap = p.copy()
        gap[np.arange(len(y)), y.numpy()] -= 1
        each += np.bincount(cell.ravel(), gap.ravel(), minlength=classes * BINS)
    return float(np.abs(top).sum() / rows), float(np.abs(each).sum() / rows / classes)


def measure(sizes: list[tuple[int, int]], seconds: float) -> list[Record]:
    """One record for each size, task and contender."""
    records = []
    for size in sizes:
        if size == CALIBRATED_SIZE:
            for task, least in CALIBRATED.items():
                x, target = make_calibrated(size[0], least)
                records += measure_task(task, x, target, true_errors(x, target, probs=True)[0], seconds)
        else:
            x, target = make_logits(*size)
            ece, classwise = true_errors(x, target)
            for task, truth in (("ece", ece), ("classwise_ece", classwise), ("evaluate", ece)):
                records += measure_task(task, x, target, truth, seconds)
    return records


def measure_task(task: str, x: Tensor, target: Tensor, truth: float, seconds: float) -> list[Record]:
    """One record for each contender."""
    size = (x.shape[0], x.shape[1])
    print(f"{size[0]} x {size[1]}: {task}", file=sys.stderr)
    found = take_turns(TASKS[task], x, target, seconds)
    records = []
    for name in TASKS[task]:
        result, ratio, goal = found.get(name), None, None
        if result and name != "dualfocal":
            ratio = result["seconds"] / found["dualfocal"]["seconds"]
            goal = GOALS.get((task, name), {}).get(size) or GOALS.get((task, "every peer"), {}).get(size)
        installed = "" if name == "published" else version(name.split()[0]) if result else "not installed"
        records.append(
            {
                "rows": size[0],
                "classes": size[1],
                "task": task,
                "contender": name,
                "version": installed,
                "seconds": f"{result['seconds']:.5f}" if result else "",
                "calls": result["calls"] if result else "",
                "peer_over_ours": f"{ratio:.3f}" if ratio else "",
                "goal_at_least": f"{goal:.3f}" if goal else "",
                "met": ("met" if ratio >= goal else "missed") if ratio and goal else "",
                "extra_mib": f"{result['extra_mib']:.1f}" if result else "",
                "value": f"{result['value']:.8f}" if result else "",
                "truth": f"{truth:.8f}",
                "torch": torch.__version__,
                "cpu": cpu_name(),
            }
        )
    return records


def measure_cli() -> list[Record]:
    """Seconds from a file of 1M x 10 logits to the verdict, less those of --version."""
    times: dict[str, list[float]] = {"evaluate": [], "--version": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "predictions.npz")
        logits, target = make_logits(1_000_000, 10)
        np.savez(file, logits=logits.numpy(), target=target.numpy())
        for _ in range(5):
            for name, arguments in (("evaluate", ["evaluate", str(file)]), ("--version", ["--version"])):
                start = time.perf_counter()
                done = subprocess.run([sys.executable, "-m", "dualfocal", *arguments], capture_output=True, text=True)
                times[name].append(time.perf_counter() - start)
                if done.returncode != 0:
                    raise SystemExit(f"dualfocal {name} failed:\n{done.stdout}{done.stderr}")
    evaluate, start_up = (statistics.median(values) for values in times.values())
    beyond = evaluate - start_up
    record: Record = {"date": date.today().isoformat(), "rows": 1_000_000, "classes": 10, "calls": 5}
    record |= {"evaluate_s": f"{evaluate:.3f}", "version_s": f"{start_up:.3f}", "beyond_start_up_s": f"{beyond:.3f}"}
    record |= {"goal_below": CLI_GOAL, "met": "met" if beyond < CLI_GOAL else "missed"}
    return [record | {"dualfocal": version("dualfocal"), "torch": torch.__version__, "cpu": cpu_name()}]


def make_streaming(name: str) -> Any:
    """An empty streaming ECE."""
    if name == "dualfocal":
        return metrics.ExpectedCalibrationError(num_bins=BINS)
    from torchmetrics.classification import MulticlassCalibrationError

    return MulticlassCalibrationError(num_classes=10, n_bins=BINS, norm="l1")


def stream(name: str, batches: list[tuple[Tensor, Tensor]]) -> list[Record]:
    """Resident memory, state and speed as the samples go by, in whole rounds of the batches; to be run in a child."""
    make_streaming(name).update(*batches[0])  # touch the code
    metric, seconds, samples, records = make_streaming(name), 0.0, 0, []
    for goal in (0, *STREAM[name]):
        while samples < goal:
            start = time.perf_counter()
            for batch in batches:
                metric.update(*batch)
            seconds += time.perf_counter() - start
            samples += BATCH * BATCHES
        record: Record = {"date": date.today().isoformat(), "contender": name, "samples": samples}
        record |= {"resident_mib": f"{memory('VmRSS'):.1f}", "pickled_state_bytes": len(pickle.dumps(metric))}
        speed, value = (f"{samples / seconds:.0f}", f"{float(metric.compute()):.8f}") if samples else ("", "")
        records.append(record | {"samples_per_s": speed, "value": value})
    return records


def measure_stream() -> list[Record]:
    """One record for each contender and number of samples."""
    logits, target = make_logits(BATCH * BATCHES, 10)
    truth, _ = true_errors(logits, target)
    batches = list(zip(logits.split(BATCH), target.split(BATCH), strict=True))
    records = []
    for name in STREAM:
        try:
            make_streaming(name)
        except ImportError as error:
            say_missing(name, error)
            continue
        both = {"truth": f"{truth:.8f}", "version": version(name), "torch": torch.__version__, "cpu": cpu_name()}
        records += [record | both for record in in_child(lambda name=name: stream(name, batches))]
    return records


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument(
        "--sizes",
        type=read_sizes,
        default=[*SIZES, CALIBRATED_SIZE],
        help="only these, as 10000x100,5000000x2",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each size and task (default 10)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--cli", action="store_true", help="time the command line instead")
    mode.add_argument("--stream", action="store_true", help="measure the streaming metric instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.cli:
        records = measure_cli()
    elif args.stream:
        records = measure_stream()
    else:
        records = measure(args.sizes, args.seconds)
    show(f"calibration metrics, float32, {BINS} bins, one thread", records, args.csv)


if __name__ == "__main__":
    main()
