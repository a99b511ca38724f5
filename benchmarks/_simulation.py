"""Simulations in which the truth is known: data sets of many settings, drawn in several processes, as table and CSV."""

import argparse
import csv
import json
import multiprocessing
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import binomtest

NUM_BINS = 15

Record = dict[str, Any]  # a line of the CSV file
Values = dict[str, list[float]]  # name of a number -> its value in each data set
Simulate = Callable[[Any, range], Iterator[dict[str, float]]]  # (setting, data sets) -> numbers of each data set


class Part(NamedTuple):
    """Consecutive data sets of a setting, which one process draws."""

    setting: Any
    first: int
    count: int


def split(setting: Any, repeats: int, size: int) -> Iterator[Part]:
    """Split the data sets of a setting into parts of this size."""
    for first in range(0, repeats, size):
        yield Part(setting, first, min(size, repeats - first))


def run_simulation(
    description: str | None,
    settings: Sequence[Any],
    simulate: Simulate,
    summarize: Callable[[Any, Values], list[Record]],
    *,
    repeats: int,
    chunk: int | None = None,
    parts: Callable[[int], Iterable[Part]] | None = None,
    show: Callable[[list[Record]], None] | None = None,
) -> tuple[list[Record], Path | None]:
    """Read the command line, simulate every setting, print the results, and write them as CSV if a file is given.

    Args:
        description: docstring of the script.
        settings: named tuples, in the order of the CSV file.
        simulate: yields the numbers of each data set of a setting, by name.
        summarize: returns the lines of the CSV file for a setting and its numbers.
        repeats: data sets per setting, by default.
        chunk: data sets that one process draws at a time (None: all of a setting).
        parts: splits all settings into parts, instead of ``chunk``: for numbers of data sets that differ, and to begin
            with slow ones. Its argument is the number of data sets per setting.
        show: prints the results; by default :func:`show_rates`.

    Returns:
        The lines of the CSV file, and its path (None: it was not asked for).
    """
    options = read_options(description, repeats)
    if parts:
        chosen = list(parts(options.repeats))
    else:
        size = chunk or options.repeats
        chosen = [part for setting in settings for part in split(setting, options.repeats, size)]
    values = simulate_parts(simulate, chosen, options)
    records = [record for setting in settings if setting in values for record in summarize(setting, values[setting])]
    (show or show_rates)(records)
    if options.csv:
        write_records(records, options)
    return records, options.csv


def read_options(description: str | None, repeats: int) -> argparse.Namespace:
    """Read the options that all simulations have: csv, repeats, jobs and log."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the results here")
    parser.add_argument("--repeats", type=int, default=repeats, help="data sets per setting (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append every part of the work to this file, and resume from it")
    return parser.parse_args()


def simulate_parts(simulate: Simulate, parts: list[Part], options: argparse.Namespace) -> dict[Any, Values]:
    """Return the numbers of all data sets by setting and name."""
    values: dict[Any, Values] = defaultdict(lambda: defaultdict(list))
    for part, numbers in in_parts(partial(_simulate_part, simulate), parts, options.jobs, options.log):
        for name, some in numbers.items():
            values[part.setting][name] += some
    return values


def _simulate_part(simulate: Simulate, part: Part) -> Values:
    torch.set_num_threads(1)
    values: Values = defaultdict(list)
    for numbers in simulate(part.setting, range(part.first, part.first + part.count)):
        for name, value in numbers.items():
            values[name].append(float(value))
    return values


def in_parts(
    work: Callable[[Part], Values], parts: list[Part], jobs: int | None, log: Path | None
) -> Iterator[tuple[Part, Values]]:
    """Call work(part) for all parts in several processes, and yield each part with its result, in any order.

    Results are appended to the log; parts that are in it already are not computed again.
    """
    keys = {json.dumps(part): part for part in parts}
    done = dict(json.loads(line) for line in log.read_text().splitlines()) if log and log.exists() else {}
    yield from ((part, done[key]) for key, part in keys.items() if key in done)
    missing = [part for key, part in keys.items() if key not in done]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes to come
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        results = pool.imap_unordered(partial(_with_part, work), missing)
        for part, result in track(results, "simulating", total=len(keys), completed=len(keys) - len(missing)):
            if log:
                with log.open("a") as file:
                    file.write(json.dumps([json.dumps(part), result]) + "\n")
            yield part, result


def _with_part(work: Callable[[Part], Values], part: Part) -> tuple[Part, Values]:
    return part, work(part)


def show_rates(records: list[Record], plain: Sequence[str] = ()) -> None:
    """Print a table: numbers in percent, except those in ``plain``; settings that miss their goal in red.

    The columns before the number of repeats describe the setting and are printed as they are.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    described = names[: next(i for i, name in enumerate(names) if "repeats" in name)]
    table = Table(caption="numbers are in percent" + (f", except {', '.join(plain)}" if plain else ""))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for record in records:
        cells = []
        for name in names:
            value = record.get(name, "")
            if isinstance(value, float):
                value = f"{value:.4g}" if name in (*described, *plain) else f"{100 * value:.1f}"
            cells.append(str(value))
        table.add_row(*cells, style="bold red" if record.get("passed") is False else "")
    console = Console(width=200)
    console.print(table)
    judged = [record["passed"] for record in records if isinstance(record.get("passed"), bool)]
    if judged:
        console.print(f"{sum(judged)} of {len(judged)} pass")


def write_records(records: list[Record], options: argparse.Namespace) -> None:
    """Write the CSV file; its first line has the command and the versions that made it."""
    versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    options.csv.parent.mkdir(parents=True, exist_ok=True)
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# benchmarks/{Path(sys.argv[0]).name} --repeats {options.repeats}; {versions}\n")
        names = list(dict.fromkeys(name for record in records for name in record))
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in record.items()})


def passes(outcomes: Sequence[float], goal: tuple[float, float]) -> bool:
    """Whether the 99 % binomial interval of a rate meets the goal."""
    interval = binomtest(int(sum(outcomes)), len(outcomes)).proportion_ci(0.99)
    return bool(interval.high >= goal[0] and interval.low <= goal[1])


def means(values: Values) -> dict[str, float]:
    """Return the mean of each number over the data sets."""
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities in float64."""
    e = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64))
    return e / e.sum(1, keepdims=True)


def draw_labels(probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return the class of each row in which a uniform number falls."""
    label = (probs.cumsum(1) <= uniform[:, None]).sum(1)
    return np.minimum(label, probs.shape[1] - 1)


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """Return the index of the bin (lo, hi] of each confidence."""
    return np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)


def binned_errors(confidence: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """Return RMS error and ECE of a population; ``right`` is the probability that a prediction is right."""
    index = bin_of(confidence)
    count = np.maximum(np.bincount(index, minlength=NUM_BINS), 1)
    gap = np.bincount(index, confidence - right, NUM_BINS)
    return float(np.sqrt((gap**2 / count).sum() / len(index))), float(np.abs(gap).sum() / len(index))


def true_rms_error(logits: np.ndarray, tau: float) -> float:
    """Return the RMS calibration error of a population whose labels are drawn from softmax(logits / tau)."""
    model, truth = softmax(logits), softmax(logits / tau)
    top = model.argmax(1)
    row = np.arange(len(top))
    return binned_errors(model[row, top], truth[row, top])[0]
