"""What the benchmarks of speed share: contenders that take turns, memory of one call, tables and CSV files."""

import argparse
import csv
import ctypes
import gc
import multiprocessing
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

ONCE = 5.0  # seconds: whoever takes longer is timed once
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # of the GPU scripts, which have --check
HEAD_START = 4_000_000  # clock cycles of a GPU, about 2 ms: Python takes less than this to launch a step
# Columns of result files that are not printed.
MACHINE = {"date", "cpu", "gpu", "driver", "torch", "triton", "liger-kernel", "torchmetrics"}

Record = dict[str, Any]
Contender = Callable[[Tensor, Tensor], Any]  # of (N, C) predictions and (N,) targets; its result is a number


def in_child(work: Callable[[], Any]) -> Any:
    """Return the result of work() in a forked child, whose memory starts from ours and ends with it."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: sender.send(work()))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError("the measuring child failed") from None
    finally:
        child.join()


def memory(field: str) -> float:
    """Return a field of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def timed(contender: Contender, x: Tensor, target: Tensor) -> tuple[float, float]:
    """Return the seconds of one call, and its result."""
    start = time.perf_counter()
    value = float(contender(x, target))
    return time.perf_counter() - start, value


def first_call(contender: Contender, x: Tensor, target: Tensor, few: tuple[Tensor, Tensor]) -> Record:
    """Return seconds, result and peak MiB of one call beyond what was resident before; to be run in a child."""
    contender(*few)  # touch the code
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    took, value = timed(contender, x, target)
    return {"took": took, "value": value, "extra_mib": memory("VmHWM") - before}


def take_turns(
    contenders: dict[str, Contender],
    x: Tensor,
    target: Tensor,
    seconds: float,
    *,
    once: float = ONCE,
    few: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Record]:
    """Return median seconds, number of timed calls, result and memory of each contender that is installed.

    The first call is made in a child that measures memory; for whoever takes more than ``once`` seconds it is the only
    one. ``few`` are the samples that warm up: 256 rows unless given.
    """
    records: dict[str, Record] = {}
    times: dict[str, list[float]] = {}
    few = (x[:256], target[:256]) if few is None else few
    for name, contender in contenders.items():
        try:
            contender(*few)  # imports
        except ImportError as error:
            say_missing(name, error)
            continue
        records[name] = in_child(lambda c=contender: first_call(c, x, target, few))
        took = records[name].pop("took")
        times[name] = [took] if took > once else []
        if took < 1:
            contender(x, target)  # warm up, where it makes a difference
    names, shuffle, rounds = [name for name in records if not times[name]], random.Random(0).shuffle, 0
    end = time.perf_counter() + seconds
    while names and (rounds < 3 or time.perf_counter() < end):
        shuffle(names)
        for name in names:
            times[name].append(timed(contenders[name], x, target)[0])
        rounds += 1
    for name, record in records.items():
        record |= {"seconds": statistics.median(times[name]), "calls": len(times[name])}
    return records


def gpu_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line of a GPU script.

    All of them have ``--csv`` and ``--check``; without ``--check`` they need a GPU.
    """
    parser.add_argument("--csv", type=Path, help="write the results to this file")
    parser.add_argument(
        "--check", action="store_true", help="try the script with tiny sizes, on the CPU if there is no GPU"
    )
    args = parser.parse_args()
    if DEVICE.type == "cpu" and not args.check:
        parser.error("this needs a CUDA device; --check tries the script on the CPU")
    return args


def gpu_ms(work: Callable[[], Any], flush: Tensor | None = None) -> float:
    """Return milliseconds of the GPU, which is kept busy before, so that it does not wait for Python.

    ``flush`` is overwritten first: if it is larger than the L2 cache, nothing else is in there.
    """
    if DEVICE.type == "cpu":
        return clock_ms(work)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(HEAD_START)
    if flush is not None:
        flush.zero_()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def clock_ms(work: Callable[[], Any]) -> float:
    """Milliseconds by the clock, until the GPU has finished."""
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return (time.perf_counter() - start) * 1e3


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def with_peak_bytes(work: Callable[[], Any]) -> tuple[Any, int]:
    """Result of work(), and the memory of the GPU at the peak beyond what was allocated before (0 on the CPU)."""
    if DEVICE.type == "cpu":
        return work(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def about_gpu(*packages: str) -> Record:
    """GPU, driver, date and versions. CUDA is not initialised: a process of its own may be about to do that."""
    gpu, driver = cpu_name(), ""
    if DEVICE.type == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu, driver = subprocess.check_output(query, text=True).splitlines()[0].split(", ")
    about = {"gpu": gpu, "driver": driver, "date": date.today().isoformat(), "torch": torch.__version__}
    return about | {package: installed_version(package) for package in ("triton", *packages)}


def installed_version(package: str) -> str:
    """Version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def say_missing(name: str, error: ImportError) -> None:
    """Warn loudly: without the peer there is no comparison."""
    print(f"\n*** {name} IS NOT INSTALLED: {error}. See benchmarks/peers.txt. ***\n", file=sys.stderr)


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return name.replace(",", "")


def read_sizes(text: str) -> list[tuple[int, ...]]:
    """Return 10000x100,5000000x2 as [(10000, 100), (5000000, 2)]."""
    return [tuple(map(int, size.split("x"))) for size in text.split(",")]


def show(title: str, records: list[Record], file: Path | None) -> None:
    """Print a table of the records, and write them as CSV if there is a file to write to."""
    table = Table(title=title)
    shown = [name for name in records[0] if name not in MACHINE]
    for name in shown:
        table.add_column(name.replace("_", " "), justify="right")
    colours = {"missed": "[red]missed[/]", "not installed": "[bold red]NOT INSTALLED[/]"}
    for record in records:
        table.add_row(*(colours.get(str(record[name]), str(record[name])) for name in shown))
    Console(width=200).print(table)
    if file:
        write_csv(records, file)


def write_csv(records: list[Record], file: Path) -> None:
    """Write one line per record, and print the name of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    print(f"written: {file}")
