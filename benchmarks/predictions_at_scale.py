"""Evaluation of stored predictions, from a million to a hundred million rows of 10 classes in parquet files.

    python benchmarks/predictions_at_scale.py [--csv FILE] [--sizes 1e6,1e7] [--repeats 3] [--folder FOLDER]

duckdb     DuckDB delivers batches, `dualfocal.integrations.sql` sums them up
stream     pyarrow reads batches, `CalibrationSums` sums them up
ray        Ray Data, `dualfocal.integrations.ray_data`
group by   DuckDB computes the ECE by a GROUP BY of the bins, and nothing else
in memory  pandas loads all rows; torchmetrics computes the ECE, scikit-learn the NLL and the accuracy. Only up to 1e7
           rows, and nothing else: no class-wise errors, no AURC, no test

Files of a million rows, float32, uncompressed, are written to a temporary folder (4.2 GB for 1e8 rows) and removed.
Each way runs in a process of its own, in one thread (Ray: on all cores). The numbers of the first three must agree.

wall, cpu  seconds from the first file to the sums, or to the scores; CPU time of the process and its children. Best and
           median of the repeats. Other jobs on the machine lengthen the wall time, so the CPU time is the fair number
peak MiB   largest sum of the resident memory of the process and its children, sampled every 50 ms, imports included
verdict    seconds from the sums to all metrics, noise floors and tests; it does not depend on the number of rows
"""

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import Record, cpu_name, say_missing, show

CLASSES, ROWS = 10, 1_000_000  # rows of a file
COLUMNS = [f"prob_{k}" for k in range(CLASSES)]
BATCH = 1 << 17
NUMBERS = ("error", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc")  # must agree
IN_MEMORY_ROWS = 10**7  # the most rows that are loaded at once
INTERVAL = 0.05  # seconds between two looks at the memory
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def write_files(folder: Path, rows: int) -> Path:
    """Write files of slightly over-confident predictions, and return a folder with those of the first ``rows`` rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    linked = folder / f"{rows:.0e}"
    linked.mkdir(parents=True, exist_ok=True)
    for start in range(0, rows, ROWS):
        path = folder / f"{start // ROWS:04d}.parquet"
        if not path.exists():
            generator = np.random.default_rng(start)
            count = min(ROWS, rows - start)
            logits = 3 * generator.standard_normal((count, CLASSES), dtype=np.float32)
            p, truth = (torch.from_numpy(logits * scale).softmax(1).numpy() for scale in (1, 0.97))
            label = (generator.random((count, 1), dtype=np.float32) > truth.cumsum(1)).sum(1).clip(0, CLASSES - 1)
            columns = {name: p[:, k].copy() for k, name in enumerate(COLUMNS)}
            pq.write_table(pa.table({**columns, "label": label.astype(np.int8)}), path, compression="none")
        if not (linked / path.name).exists():
            (linked / path.name).hardlink_to(path)
    return linked


# The ways. Each returns the sums, or the scores, of all files in a folder.


def with_duckdb(folder: Path) -> Any:
    """Sum up batches from DuckDB."""
    import duckdb

    from dualfocal.integrations.sql import PredictionTable

    with duckdb.connect(config={"threads": 1}) as connection:
        return PredictionTable.find(connection, f"SELECT * FROM '{folder}/*.parquet'").sums()


def with_stream(folder: Path) -> Any:
    """Sum up batches from pyarrow."""
    import pyarrow.parquet as pq

    from dualfocal.metrics import CalibrationSums

    total: Any = 0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            p = np.stack([batch[name].to_numpy() for name in COLUMNS], axis=1)
            target = batch["label"].to_numpy().astype(np.int64)
            total += CalibrationSums.from_predictions(p, target, input="probs")
    return total


def with_ray(folder: Path) -> Any:
    """Sum up the blocks of a Ray data set."""
    import ray

    from dualfocal.integrations.ray_data import sums_of_dataset

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    return sums_of_dataset(ray.data.read_parquet(str(folder)), probs=COLUMNS, target="label")


def group_by(folder: Path) -> Any:
    """Compute the ECE in the database."""
    import duckdb

    confidence = f"GREATEST({', '.join(COLUMNS)})"
    right = f"CASE label {' '.join(f'WHEN {k} THEN {name}' for k, name in enumerate(COLUMNS))} END = {confidence}"
    rows = f"SELECT {confidence} AS confidence, {right} AS correct FROM '{folder}/*.parquet'"
    gaps = f"SELECT ABS(SUM(confidence::DOUBLE) - SUM(correct::INT)) AS gap, COUNT(*) AS n FROM ({rows}) "
    with duckdb.connect(config={"threads": 1}) as connection:
        query = f"SELECT SUM(gap) / SUM(n) FROM ({gaps} GROUP BY CEIL(confidence * 15))"
        return {"ece": connection.execute(query).fetchall()[0][0]}


def in_memory(folder: Path) -> Any:
    """Load all rows, and compute three scores."""
    import pandas
    from sklearn.metrics import accuracy_score, log_loss
    from torchmetrics.functional.classification import multiclass_calibration_error

    frame = pandas.read_parquet(folder)
    p, target = frame[COLUMNS].to_numpy(), frame["label"].to_numpy()
    ece = multiclass_calibration_error(torch.tensor(p), torch.tensor(target).long(), CLASSES, 15)
    return {
        "ece": float(ece),
        "nll": log_loss(target, p, labels=range(CLASSES)),
        "accuracy": accuracy_score(target, p.argmax(1)),
    }


WAYS = {"duckdb": with_duckdb, "stream": with_stream, "ray": with_ray, "group by": group_by, "in memory": in_memory}
PACKAGES = {"duckdb": "duckdb", "stream": "pyarrow", "ray": "ray", "group by": "duckdb", "in memory": "pandas"}


def run_way(way: str, folder: Path) -> None:
    """Run one way in this process, and print the result as JSON; used by :func:`measure`."""
    from dualfocal.metrics import CalibrationSums

    start, cpu = time.perf_counter(), time.process_time()
    result = WAYS[way](folder)
    record: Record = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    if isinstance(result, CalibrationSums):
        start = time.perf_counter()
        evaluation = result.evaluate()
        record |= {"verdict": time.perf_counter() - start, **{name: getattr(evaluation, name) for name in NUMBERS}}
    else:
        record |= result
    print(json.dumps(record))


def measure(way: str, folder: Path) -> Record:
    """Run one way in a process of its own, and watch the memory and CPU time of its process tree."""
    words = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    peak, cpu = 0, dict[int, float]()
    while process.poll() is None:
        usage = tree_usage(process.pid)
        peak = max(peak, sum(memory for _, memory in usage.values()))
        cpu |= {pid: seconds for pid, (seconds, _) in usage.items()}
        time.sleep(INTERVAL)
    output = process.stdout.read() if process.stdout else ""
    if process.returncode != 0:
        raise RuntimeError(f"{way} failed")
    record: Record = json.loads(output.splitlines()[-1])
    record["cpu"] += sum(seconds for pid, seconds in cpu.items() if pid != process.pid)
    return record | {"peak_mib": peak / 2**20}


def tree_usage(root: int) -> dict[int, tuple[float, int]]:
    """Return CPU seconds and resident bytes of a process and its descendants, by process id."""
    parents, usage = dict[int, int](), dict[int, tuple[float, int]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid], usage[pid] = int(fields[1]), ((int(fields[11]) + int(fields[12])) / TICK, int(fields[21]) * PAGE)
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return {pid: usage[pid] for pid in tree if pid in usage}


def compare_ways(folder: Path, rows: int, repeats: int, ways: list[str]) -> list[Record]:
    """Measure all ways for one number of rows; they take turns."""
    linked = write_files(folder, rows)
    runs: dict[str, list[Record]] = {way: [] for way in ways if way != "in memory" or rows <= IN_MEMORY_ROWS}
    for _ in range(repeats):
        for way, records in runs.items():
            records.append(measure(way, linked))
            print(f"{rows:.0e} {way}: {records[-1]['wall']:.1f} s", file=sys.stderr)
    evaluated = [record for records in runs.values() for record in records if "verdict" in record]
    for name in NUMBERS:
        values = [record[name] for record in evaluated]
        assert max(values) - min(values) < 1e-9, f"the ways have different values of {name}: {values}"
    base = min((record["cpu"] for record in runs.get("in memory", [])), default=None)
    rows_of_table = []
    for way, records in runs.items():
        wall, cpu = ([record[name] for record in records] for name in ("wall", "cpu"))
        rows_of_table.append(
            {
                "rows": f"{rows:.0e}",
                "way": way,
                "wall_best": f"{min(wall):.2f}",
                "wall_median": f"{statistics.median(wall):.2f}",
                "cpu_best": f"{min(cpu):.2f}",
                "cpu_median": f"{statistics.median(cpu):.2f}",
                "cpu_to_in_memory": "" if base is None else f"{min(cpu) / base:.2f}",
                "peak_mib": f"{min(record['peak_mib'] for record in records):.0f}",
                "verdict_s": "" if "verdict" not in records[0] else f"{min(r['verdict'] for r in records):.2f}",
                "ece": f"{records[0]['ece']:.6f}",
                "repeats": len(records),
                "date": str(date.today()),
                "torch": torch.__version__,
                "cpu": cpu_name(),
            }
        )
    return rows_of_table


def main() -> None:
    """Measure all ways, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--sizes", default="1e6,1e7,1e8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--folder", type=Path, help="keep the files here, to use them again")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return run_way(options.way, options.folder)
    ways = [way for way in options.ways.split(",") if find_spec(PACKAGES[way])]
    for way in set(options.ways.split(",")) - set(ways):
        say_missing(way, ImportError(PACKAGES[way]))
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="predictions") as temporary:
        folder = options.folder or Path(temporary)
        for size in options.sizes.split(","):
            rows = int(float(size))
            repeats = 1 if rows > IN_MEMORY_ROWS else options.repeats
            records += compare_ways(folder, rows, repeats, ways)
    show("stored predictions", records, options.csv)


if __name__ == "__main__":
    main()
