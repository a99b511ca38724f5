"""How long does a report take, and how large is its page?

    python benchmarks/report_speed.py [--csv FILE] [--only 10000x10]

One model, arrays of float32 logits, default calibrators. There is no peer: no other package writes such a page. Goals:
1,000,000 x 10 in under 15 seconds, 50,000 x 1000 in under 60, and every page under 4 MB. ``load`` is the number of
other processes that were running (the load average of the last minute before the start): on a busy machine, the
seconds of the CPU say more than those of the clock.
"""

import argparse
import csv
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dualfocal.report import write_report

SIZES = [(10_000, 10), (1_000_000, 10), (50_000, 1000)]
FIELDS = ("samples", "classes", "seconds", "cpu_seconds", "megabytes", "threads", "cores", "load")


def measure(samples: int, classes: int, folder: Path) -> dict[str, object]:
    """Write a report on random predictions that are twice too sharp."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(samples, classes, generator=generator)
    target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]
    load = os.getloadavg()[0]
    start, cpu_start = time.perf_counter(), time.process_time()
    size = write_report({"model": (logits, target)}, folder / "report.html")
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    values = (
        samples,
        classes,
        f"{seconds:.1f}",
        f"{cpu:.1f}",
        f"{size / 1e6:.2f}",
        torch.get_num_threads(),
        os.cpu_count(),
        f"{load:.1f}",
    )
    return dict(zip(FIELDS, values, strict=True))


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--only", metavar="NxC", help="measure only this size")
    arguments = parser.parse_args()
    rows = []
    print(*FIELDS, sep="\t")
    with tempfile.TemporaryDirectory() as folder:
        for samples, classes in SIZES:
            if arguments.only in (None, f"{samples}x{classes}"):
                rows.append(measure(samples, classes, Path(folder)))
                print(*rows[-1].values(), sep="\t", flush=True)
    if arguments.csv is not None:
        versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# benchmarks/report_speed.py; {versions}\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
