"""The program: records sections in processes, writes recordings, compares them."""

import argparse
import contextlib
import json
import lzma
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import calibrators
import commands
import evaluations
import figures
import files
import frameworks
import frozen
import lab
import losses
import metrics
import numpy as np
import states
import torch
from comparing import Tolerance, compare
from values import Recording, Section

BASELINE = Path(__file__).with_name("baseline.json.xz")
FROZEN = Path(__file__).with_name("frozen.json")
MODULES = (lab, commands, frameworks, losses, metrics, evaluations, states, calibrators, files, figures)
SECTIONS: dict[str, Section] = {name: section for module in MODULES for name, section in module.SECTIONS.items()}


@dataclass(frozen=True)
class Result:
    """What recording a section gave."""

    section: str
    values: dict[str, Any]
    notes: list[str]
    seconds: float


def environment() -> dict[str, str]:
    """Return what the last bits of the numbers depend on."""
    import matplotlib

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "matplotlib": matplotlib.__version__,
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Work in a temporary folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True) as name:
        os.chdir(name)
        os.environ["XDG_CACHE_HOME"] = str(Path(name, "cache"))
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def record_section(name: str) -> Result:
    """Record one section in a folder of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    start = time.perf_counter()
    with new_folder() as folder:
        rec = Recording(folder)
        try:
            SECTIONS[name].record(rec)
        except Exception:  # the other sections can still tell something
            rec.put("section", "stopped")
            rec.notes.append(f"the section stopped: {traceback.format_exc()[-1500:]}")
    values = {f"{name}/{key}": value for key, value in rec.values.items()}
    return Result(name, values, [f"{name}/{note}" for note in rec.notes], time.perf_counter() - start)


def record(chosen: list[str], jobs: int) -> list[Result]:
    """Record sections in processes, and say how long each took."""
    results = []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(record_section, chosen):
            print(f"{result.section}: {len(result.values)} values, {result.seconds:.0f} s", file=sys.stderr)
            for note in result.notes:
                print(f"NOTE {note}")
            results.append(result)
    return results


def choose(only: list[str] | None) -> list[str]:
    """Return the names of the sections that can be recorded here."""
    chosen = []
    for name in only or SECTIONS:
        missing = [package for package in SECTIONS[name].needs if find_spec(package) is None]
        if missing:
            print(f"NOTE section {name} is left out: {', '.join(missing)} is not installed")
        else:
            chosen.append(name)
    return chosen


def read(path: Path) -> dict[str, Any]:
    """Read a recording."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    return content


def write(path: Path, values: dict[str, Any], sections: list[str]) -> None:
    """Write a recording; sections of the file that were not recorded now stay."""
    kept = {}
    if path.exists():
        kept = {key: of for key, of in read(path)["values"].items() if key.partition("/")[0] in SECTIONS}
    kept = {key: of for key, of in kept.items() if key.partition("/")[0] not in sections}
    content = {"environment": environment(), "values": dict(sorted((kept | values).items()))}
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump(content, file, indent=0)
        file.write("\n")


def check(path: Path, values: dict[str, Any], sections: list[str], tolerance: Tolerance) -> bool:
    """Compare with a recording; return whether all values of these sections are the same."""
    before = read(path)
    if before["environment"] != environment():
        print(f"NOTE recorded with {before['environment']}, here {environment()}: the last bits may differ")
    expected = {key: of for key, of in before["values"].items() if key.partition("/")[0] in sections}
    return compare(expected, dict(sorted(values.items())), tolerance)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Record the numbers of dualfocal on small inputs, or compare them.")
    parser.add_argument("file", type=Path, nargs="?", help="the recording; with --check: default is the baseline")
    parser.add_argument("--check", action="store_true", help="compare with the recording; exit code 1 if values differ")
    parser.add_argument("--only", metavar="SECTION", action="append", choices=SECTIONS, help="can be repeated")
    parser.add_argument("--list", action="store_true", help="list the sections")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument(
        "--tolerance",
        type=float,
        nargs=2,
        metavar=("RELATIVE", "ABSOLUTE"),
        default=(0.0, 0.0),
        help="largest difference of floats that counts as none (default: equal to the bit)",
    )
    parser.add_argument("--frozen", action="store_true", help="p-values, floors and intervals of 30 frozen data sets")
    parser.add_argument("--seed", type=int, default=0, help="with --frozen: first seed of the simulations")
    found = parser.parse_args()
    if found.file is None and not (found.check or found.list):
        parser.error("name the file to write, or give --check")
    return found


def main() -> int:
    """Record, or compare."""
    args = arguments()
    if args.list:
        print("\n".join(SECTIONS))
        return 0
    path = (args.file or (FROZEN if args.frozen else BASELINE)).resolve()
    if args.frozen:
        return frozen.main(path, check=args.check, seed=args.seed, jobs=args.jobs)
    start = time.perf_counter()
    chosen = choose(args.only)
    results = record(chosen, args.jobs)
    values = {key: of for result in results for key, of in result.values.items()}
    took = f"{time.perf_counter() - start:.0f} s"
    if args.check:
        same = check(path, values, chosen, Tolerance(*args.tolerance))
        print(f"{'no value differs' if same else 'values differ'}, {took}")
        return 0 if same else 1
    write(path, values, chosen)
    notes = sum(len(result.notes) for result in results)
    print(f"{len(values)} values in {took}, {notes} notes: {path.name}, {path.stat().st_size:,} bytes")
    return 0
