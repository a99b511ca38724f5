"""Metrics on one GPU: the confidence pass, streaming ECE beside torchmetrics, and evaluate beside the CPU, in one run.

    python benchmarks/metrics_gpu.py [--csv benchmarks/results/metrics_gpu.csv] [--rounds 30]

The confidence pass reads each row of logits once, like logits.amax(1), which gives the time to beat: top-1 confidence
and correctness, and with "scores" also NLL and Brier term. Both are timed by CUDA events after the L2 cache was
overwritten. Streaming ECE is 20 updates and one compute, by the clock; the peer is MulticlassCalibrationError with
validate_args=False. Contenders take turns; medians. evaluate computes all metrics, the classwise ones too. On the CPU,
--check needs TRITON_INTERPRET=1.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from _measure import (
    DEVICE,
    Record,
    about_gpu,
    clock_ms,
    cpu_name,
    gpu_ms,
    gpu_options,
    say_missing,
    show,
    with_peak_bytes,
)
from torch import Tensor

from dualfocal import metrics
from dualfocal.kernels.confidence import scan_rows

PASS_SIZES = [
    (8192, 128256, torch.bfloat16),
    (8192, 32000, torch.bfloat16),
    (65536, 1000, torch.bfloat16),
    (1048576, 10, torch.float32),
]
SAMPLES = [(1048576, 10), (50000, 1000)]
UPDATES, BINS, WARM_UP = 20, 15, 3
PASS_GOAL, STREAM_GOAL = 0.85, 3.0

Work = Callable[[], Any]


def sample(num_rows: int, num_classes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits and target."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    logits = 3 * torch.randn(num_rows, num_classes, device=DEVICE, generator=generator, dtype=dtype)
    return logits, torch.randint(num_classes, (num_rows,), device=DEVICE, generator=generator)


def take_turns(contenders: dict[str, Work], measure: Callable[[Work], float], rounds: int) -> dict[str, float]:
    """Median milliseconds of each contender."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + WARM_UP):
        for name, work in contenders.items():
            took = measure(work)
            times[name] += [took] if turn >= WARM_UP else []  # after compiling and warming up
    return {name: statistics.median(values) for name, values in times.items()}


def extra_mib(work: Work) -> str:
    """Peak memory of the GPU beyond what was allocated before."""
    return f"{with_peak_bytes(work)[1] / 2**20:.1f}"


def measure_pass(num_rows: int, num_classes: int, dtype: torch.dtype, rounds: int) -> list[Record]:
    """The confidence pass without and with scores, beside amax."""
    logits, target = sample(num_rows, num_classes, dtype)
    flush = torch.empty(2**28 if DEVICE.type == "cuda" else 1, dtype=torch.uint8, device=DEVICE)
    contenders: dict[str, Work] = {
        "amax": lambda: logits.amax(1),
        "confidence": lambda: scan_rows(logits, target, scores=False),
        "confidence and scores": lambda: scan_rows(logits, target, scores=True),
    }
    result = take_turns(contenders, lambda work: gpu_ms(work, flush), rounds)
    size = {"rows": num_rows, "classes": num_classes, "dtype": str(dtype).removeprefix("torch.")}
    return [
        record(name, size, result[name], "amax", result["amax"], PASS_GOAL, extra_mib(contenders[name]))
        for name in list(contenders)[1:]
    ]


def stream_of(make: Callable[[], Any], batches: list[tuple[Tensor, Tensor]]) -> Work:
    """All updates of a fresh metric, and its result."""
    metric = make().to(DEVICE)

    def work() -> float:
        for batch in batches:
            metric.update(*batch)
        return float(metric.compute())

    return work


def measure_stream(num_rows: int, num_classes: int, rounds: int) -> list[Record]:
    """Streaming ECE beside torchmetrics; their values must agree."""
    logits, target = sample(num_rows, num_classes)
    batches = list(zip(logits.tensor_split(UPDATES), target.tensor_split(UPDATES), strict=True))
    try:
        from torchmetrics.classification import MulticlassCalibrationError
    except ImportError as error:
        say_missing("torchmetrics", error)
        return []
    options = {"num_classes": num_classes, "n_bins": BINS, "norm": "l1", "validate_args": False}
    streams: dict[str, Work] = {
        "ours": lambda: stream_of(lambda: metrics.ExpectedCalibrationError(num_bins=BINS), batches),
        "torchmetrics": lambda: stream_of(lambda: MulticlassCalibrationError(**options), batches),
    }
    values = [stream()() for stream in streams.values()]
    assert abs(values[0] - values[1]) < 1e-3, values  # torchmetrics sums in float32
    result = take_turns(streams, lambda stream: clock_ms(stream()), rounds)  # making the metric is not timed
    size = {"rows": num_rows, "classes": num_classes, "dtype": "float32"}
    memory = extra_mib(streams["ours"]())
    return [record("streaming ECE", size, result["ours"], "torchmetrics", result["torchmetrics"], STREAM_GOAL, memory)]


def measure_evaluate(num_rows: int, num_classes: int) -> list[Record]:
    """All metrics, beside the CPU; the median of three."""
    logits, target = sample(num_rows, num_classes)
    host = logits.cpu(), target.cpu()
    works: dict[str, Work] = {
        "ours": lambda: metrics.evaluate(logits, target),
        "CPU": lambda: metrics.evaluate(*host),
    }
    result = {name: statistics.median(clock_ms(work) for _ in range(3)) for name, work in works.items()}
    size = {"rows": num_rows, "classes": num_classes, "dtype": "float32"}
    return [record("evaluate", size, result["ours"], "CPU", result["CPU"], None, extra_mib(works["ours"]))]


def record(
    task: str, size: Record, ours: float, peer: str, peer_ms: float, goal: float | None, extra_mib: str
) -> Record:
    """One line of the table; the ratio is the peer's time over ours."""
    ratio = peer_ms / ours
    row: Record = {"task": task, **size, "ours_ms": f"{ours:.4f}", "peer": peer}
    row |= {"peer_ms": f"{peer_ms:.4f}", "ratio": f"{ratio:.3f}", "goal": "" if goal is None else goal}
    return row | {"met": "" if goal is None else "met" if ratio >= goal else "missed", "extra_mib": extra_mib}


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds (default %(default)s)")
    args = gpu_options(parser)
    shrink = 4096 if args.check else 1
    rounds = 1 if args.check else args.rounds
    records = []
    for num_rows, num_classes, dtype in PASS_SIZES:
        records += measure_pass(max(2, num_rows // shrink), num_classes, dtype, rounds)
    for num_rows, num_classes in SAMPLES:
        records += measure_stream(max(2 * UPDATES, num_rows // shrink), num_classes, rounds)
    for num_rows, num_classes in SAMPLES:
        records += measure_evaluate(max(2 * UPDATES, num_rows // shrink), num_classes)
    machine = about_gpu("torchmetrics") | {"cpu": cpu_name()}
    show("metrics on a GPU", [record | machine for record in records], args.csv)


if __name__ == "__main__":
    main()
