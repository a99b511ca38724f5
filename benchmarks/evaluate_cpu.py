"""Time of `evaluate(inference=True)` beside another version of this package, and beside the ECE of torchmetrics.

    git worktree add ../before COMMIT
    python benchmarks/evaluate_cpu.py --before ../before/src [--csv FILE] [--rounds 7]

Each version runs in a process of its own, one thread; they take turns, call by call. The time is the median of the
rounds, in CPU seconds. The functions of the package that one call enters, and the files that they are in, are counted
by ``sys.setprofile`` for 600 x 10.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from _measure import cpu_name

CASES = ("2000x10", "10000x100", "4000x10 clusters", "4000x10 weights", "1000000x10", "50000x1000")
COLUMNS = ("case", "ours_s", "before_s", "torchmetrics_ece_s", "before_over_ours", "rounds", "date", "torch", "cpu")


def data(case: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return logits, labels and options of a case."""
    import torch

    size, _, structure = case.partition(" ")
    n, num_classes = map(int, size.split("x"))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, num_classes, generator=generator)
    target = torch.cat(
        [torch.multinomial(part.softmax(1), 1, generator=generator)[:, 0] for part in logits.split(100_000)]
    )
    options: dict[str, Any] = {"inference": True}
    if structure == "clusters":
        options["clusters"] = torch.arange(n) // 20
    if structure == "weights":
        options["sample_weight"] = torch.rand(n, generator=generator) + 0.5
    return logits, target, options


def serve() -> None:
    """Answer each line, a case, with the CPU seconds of one call; the data of the last case are kept."""
    import torch

    from dualfocal import evaluate

    torch.set_num_threads(1)
    kept: dict[str, Any] = {}
    for line in sys.stdin:
        case, what = json.loads(line)
        if case not in kept:
            kept = {case: data(case)}
        logits, target, options = kept[case]
        if what == "count":
            answer: Any = count(lambda: evaluate(*data("600x10")[:2], inference=True))
        elif what == "torchmetrics":
            from torchmetrics.functional.classification import multiclass_calibration_error

            start = time.process_time()
            multiclass_calibration_error(logits.softmax(1), target, logits.shape[1], n_bins=15)
            answer = time.process_time() - start
        else:
            start = time.process_time()
            evaluate(logits, target, **options)
            answer = time.process_time() - start
        print(json.dumps(answer), flush=True)


def count(call: Any) -> tuple[int, int]:
    """Return the number of different functions of the package that a call enters, and of their files."""
    call()  # what is imported late
    entered: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/dualfocal/" in code.co_filename:
            entered.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    call()
    sys.setprofile(None)
    return len(entered), len({file for file, _ in entered})


class Server:
    """A process with a version of the package."""

    def __init__(self, source: Path | None) -> None:
        environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, case: str, what: str = "evaluate") -> Any:
        """Return the answer to a question."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, what]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    """Measure, print and write a CSV file."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, help="src folder of the other version")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    ours, before = Server(None), Server(options.before.resolve())
    counts = {name: server.ask("2000x10", "count") for name, server in (("ours", ours), ("before", before))}
    note = "; ".join(f"{name}: {functions} functions in {files} files" for name, (functions, files) in counts.items())
    print(note)
    records = []
    for case in CASES:
        times: dict[str, list[float]] = {"ours": [], "before": [], "torchmetrics": []}
        for round_number in range(options.rounds + 1):
            for name, server, what in (
                ("ours", ours, "evaluate"),
                ("before", before, "evaluate"),
                ("torchmetrics", ours, "torchmetrics"),
            ):
                seconds = server.ask(case, what)
                if round_number:  # the first call warms up
                    times[name].append(seconds)
        median = {name: statistics.median(values) for name, values in times.items()}
        ratio = median["before"] / median["ours"]
        values = [case, *(f"{seconds:.4f}" for seconds in median.values()), f"{ratio:.2f}", options.rounds]
        records.append([*values, date.today(), torch.__version__, cpu_name()])
        print(*values)
    if options.csv is not None:
        with options.csv.open("w", newline="") as file:
            file.write(f"# benchmarks/evaluate_cpu.py --rounds {options.rounds}; {note}; CPU seconds, one thread\n")
            csv.writer(file).writerows([COLUMNS, *records])


if __name__ == "__main__":
    main()
