"""Are the verdicts of `BinnedPredictions.evaluate`, which keeps no rows, right? And are they those of `evaluate`?

    python benchmarks/binned_inference.py [--csv FILE] [--repeats 400] [--jobs 2]

The populations are those of `inference_coverage.py`, with known truth. For each of many samples of N:

- class_alarms: how often the class-wise test, which draws counts of labels by cell instead of labels, rejects at 5 %;
- for every second sample, alarms: how often the joint verdict at 5 % (both tests, by Holm's method) rejects;
- for one sample in ten, the same from the rows: how often the two verdicts agree, and the mean absolute difference of
  the p-values of both tests; bound_aurc and bound_adaptive_ece are the means of the proven bounds, off_aurc and
  off_adaptive_ece those of the differences.

Goal: alarms of calibrated models 3 to 7 %. A setting passes if the 99 % binomial interval of both rates meets the band.
N above 5,000 has a quarter of the samples.
"""

import argparse
import csv
import os
import platform
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import in_parts
from inference_coverage import ALARM_GOAL, MANY_SAMPLES, SHIFT, SIGNIFICANCE, Chunk, Setting, passes, population
from rich.console import Console
from rich.table import Table

from dualfocal.metrics import BinnedPredictions, Evaluation, evaluate
from dualfocal.metrics.inference.classwise import classwise_test
from dualfocal.metrics.inference.label_counts import CellLabels

JOINT, ROWS = 2, 10  # one sample in so many also has the joint verdict, and that from the rows
CHUNK = 20
SETTINGS = [
    *(Setting("moderate", 1_000, k) for k in (2, 3, 10, 100)),
    *(Setting("moderate", 5_000, k) for k in (2, 3, 10, 100)),
    *(Setting(kind, 5_000, k) for kind in ("sharp", "imbalanced") for k in (3, 10)),
    *(Setting("moderate", 50_000, k) for k in (2, 3, 10, 100)),
    Setting("moderate", 5_000, 10, tau=1.1),
    *(Setting("class shift", 5_000, k, factor=SHIFT) for k in (3, 10)),
]


def simulate(chunk: Chunk) -> dict[str, list[float]]:
    """Return one value per sample of each rate."""
    torch.set_num_threads(1)
    setting = chunk.setting
    people = population(setting.kind, setting.num_classes, setting.tau, setting.factor)
    rng = np.random.default_rng([setting.n, setting.num_classes, round(1000 * setting.tau), chunk.first])
    values = defaultdict[str, list[float]](list)
    for repeat in range(chunk.first, chunk.first + chunk.count):
        pick, label = people.draw(setting.n, rng)
        state = BinnedPredictions.from_predictions(people.logits[pick], label)
        if repeat % JOINT:
            labels = CellLabels(state.classes, state.squares.double(), state.cubes.double(), repeat)
            values["class_alarms"].append(classwise_test(labels)[0].p_value <= SIGNIFICANCE)
            continue
        binned = state.evaluate(seed=repeat)
        joint, *_, of_classes = p_values(binned)
        values["class_alarms"].append(of_classes <= SIGNIFICANCE)
        values["alarms"].append(joint <= SIGNIFICANCE)
        if repeat % ROWS == 0:
            for name, value in compare_with_rows(people.logits[pick], label, binned, repeat).items():
                values[name].append(value)
    return {name: [float(value) for value in numbers] for name, numbers in values.items()}


def p_values(result: Evaluation) -> tuple[float, float, float]:
    """P-values of the joint verdict, of the confidence and of the classes."""
    inference = result.inference
    assert inference is not None
    assert inference.classwise is not None
    return inference.joint_p_value, inference.p_value, inference.classwise.p_value


def compare_with_rows(logits: np.ndarray, label: np.ndarray, binned: Evaluation, seed: int) -> dict[str, float]:
    """Return what differs between an evaluation of cells and of rows."""
    rows = evaluate(logits, label, inference=True, seed=seed)
    ours, theirs = p_values(binned), p_values(rows)
    assert (binned.ece, binned.classwise_ece, binned.mce) == (rows.ece, rows.classwise_ece, rows.mce)
    off = {name: abs(getattr(binned, name) - getattr(rows, name)) for name in binned.bounds}
    assert all(off[name] <= bound for name, bound in binned.bounds.items())
    return {
        "row_alarms": float(theirs[0] <= SIGNIFICANCE),
        "agree": float((ours[0] <= SIGNIFICANCE) == (theirs[0] <= SIGNIFICANCE)),
        "p_off_confidence": abs(ours[1] - theirs[1]),
        "p_off_classes": abs(ours[2] - theirs[2]),
        **{f"bound_{name}": bound for name, bound in binned.bounds.items()},
        **{f"off_{name}": value for name, value in off.items()},
    }


def chunks(repeats: int) -> list[Chunk]:
    """Split all settings into parts, slow ones first."""
    parts = []
    for setting in sorted(SETTINGS, key=lambda s: -s.n * s.num_classes):
        count = max(CHUNK, repeats // 4) if setting.n > MANY_SAMPLES else repeats
        parts += [Chunk(setting, first, min(CHUNK, count - first)) for first in range(0, count, CHUNK)]
    return parts


def record(setting: Setting, values: dict[str, list[float]]) -> dict[str, Any]:
    """Return one line of the CSV file."""
    passed: bool | str = ""
    if setting.calibrated:
        passed = all(passes(values[name], ALARM_GOAL) for name in ("class_alarms", "alarms"))
    names = ("kind", "n", "num_classes", "tau", "factor")
    first = {name: getattr(setting, name) for name in names}
    repeats = {f"{name}_repeats": len(values[name]) for name in ("class_alarms", "alarms", "agree")}
    return first | repeats | {"passed": passed} | {name: float(np.mean(v)) for name, v in values.items()}


def show(records: list[dict[str, Any]]) -> None:
    """Print the rates of every setting; those outside the goals in red."""
    shown = [name for name in records[0] if isinstance(records[0][name], float) and name not in ("tau", "factor")]
    table = Table(title="in %", caption="goal: alarms of calibrated models 3 to 7 %")
    for heading in ("kind", "N", "classes", "tau", *shown):
        table.add_column(heading, justify="right")
    for r in records:
        percent = [f"{100 * r[name]:.{3 if 'off' in name or 'bound' in name else 1}f}" for name in shown]
        style = "bold red" if r["passed"] is False else ""
        table.add_row(r["kind"], f"{r['n']:,}", str(r["num_classes"]), str(r["tau"]), *percent, style=style)
    Console(width=200).print(table)


def main() -> None:
    """Simulate every setting, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the rates here")
    parser.add_argument("--repeats", type=int, default=400, help="samples per setting (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    args = parser.parse_args()
    values = defaultdict[Setting, dict[str, list[float]]](lambda: defaultdict(list))
    for chunk, some in in_parts(simulate, chunks(args.repeats), args.jobs, None):
        for name, numbers in some.items():
            values[chunk.setting][name] += numbers
    records = [record(setting, values[setting]) for setting in SETTINGS]
    show(records)
    if args.csv:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="") as file:
            versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
            file.write(f"# benchmarks/binned_inference.py --repeats {args.repeats}; {versions}\n")
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)


if __name__ == "__main__":
    main()
