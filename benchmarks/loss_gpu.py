"""Forward + backward of dual focal loss on one GPU, beside F.cross_entropy and other code, in one run.

    python benchmarks/loss_gpu.py [--csv benchmarks/results/loss_gpu.csv] [--rounds 30] [--parts small,large,linear]

Mean reduction, gamma 5, class indices. Contenders take turns; medians, in milliseconds.

- small: inputs that are bound by launches: 200 steps without waiting for the GPU between them, by the clock, median of
  five processes; and in a CUDA graph, where only the GPU's time counts.
- large: time of the GPU by CUDA events, after the L2 cache was overwritten. The GPU is kept busy before, so that it
  does not wait for Python, as in a training loop. "copy" is out.copy_(logits): the logits are read and a gradient
  written once, the least that loss and gradient can cost.
- linear: a linear head and its loss. "products" are the three matrix products of forward and backward alone, on the
  whole batch, with results in bfloat16. Memory is what is added to the inputs at the peak, also less the float32 sum of
  the weight gradient.

"published" is the expression as the paper's equation is usually coded; "liger" is the cross-entropy of liger-kernel, if
it is installed. The last table has the goals, and whether each is met. With --csv NAME.csv the large sizes go there,
the other tables to NAME_small.csv, NAME_linear.csv and NAME_goals.csv, each as soon as it is measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from _measure import DEVICE, Record, about_gpu, gpu_ms, gpu_options, show, synchronize, with_peak_bytes, write_csv
from loss_cpu import published
from torch import Tensor

from dualfocal import dual_focal_loss
from dualfocal.losses import linear_dual_focal_loss


class Case(NamedTuple):
    """Size of the logits, and the smallest ratio that each column of the results should have."""

    rows: int
    classes: int
    dtype: torch.dtype
    goals: dict[str, float]

    def __str__(self) -> str:
        return f"{self.rows} x {self.classes} {str(self.dtype).removeprefix('torch.')}"


BF16, FP32 = torch.bfloat16, torch.float32
LONG_BF16 = {"share_of_copy": 0.85, "cross_entropy_over_ours": 3.5, "liger_over_ours": 1.7}
LAUNCHES = {
    "published_over_ours": 1.0,  # faster than the published code
    "cross_entropy_over_ours": 0.5,  # at most twice as long as F.cross_entropy
    "graph_cross_entropy_over_ours": 1.0,  # in a CUDA graph not slower than it
}
LARGE = [
    Case(8192, 32000, BF16, LONG_BF16),
    Case(8192, 128256, BF16, LONG_BF16),
    Case(4096, 151936, BF16, LONG_BF16),
    Case(8192, 32000, FP32, {"share_of_copy": 0.85}),
    Case(8192, 128256, FP32, {"share_of_copy": 0.72}),
    Case(4096, 151936, FP32, {"share_of_copy": 0.72}),
    Case(65536, 1000, BF16, {"cross_entropy_over_ours": 1.5}),
    Case(1048576, 10, FP32, {"cross_entropy_over_ours": 3.0}),
]
SMALL = [Case(128, 10, FP32, LAUNCHES), Case(4096, 1000, FP32, LAUNCHES)]
LINEAR = (8192, 4096, 128256)  # rows, size of the hidden states, classes
LINEAR_GOALS = {"over_products": 1.15, "gib_above_sum": 1.0}  # at most
PROCESSES, STEPS, TURNS = 5, 200, 8
MAX_PUBLISHED = 2**29  # logits; the published expression needs several times their memory

Loss = Callable[[Tensor, Tensor], Tensor]


def contenders(numel: int) -> dict[str, Loss]:
    """Losses by name."""
    losses: dict[str, Loss] = {
        "cross_entropy": F.cross_entropy,
        "ours": dual_focal_loss,
        "ours, compiled": torch.compile(dual_focal_loss, fullgraph=True, dynamic=False),
    }
    if numel <= MAX_PUBLISHED:
        losses["published"] = published
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    except ImportError:
        return losses

    def liger(logits: Tensor, target: Tensor) -> Tensor:
        # It overwrites the logits by the gradient, so it gets a copy; the copy is not timed.
        loss: Tensor = LigerCrossEntropyFunction.apply(logits, target, None, -100, 0.0, 0.0, "mean")[0]
        return loss

    return losses | {"liger": liger}


def sample(case: Case) -> tuple[Tensor, Tensor]:
    """Logits and target."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    logits = 3 * torch.randn(case.rows, case.classes, device=DEVICE, generator=generator, dtype=case.dtype)
    return logits.requires_grad_(), torch.randint(case.classes, (case.rows,), device=DEVICE, generator=generator)


def measure_large(case: Case, rounds: int) -> dict[str, float]:
    """Median milliseconds of every contender, and the extra memory of ours."""
    torch.compiler.reset()
    logits, target = sample(case)
    flush = torch.empty(2**28 if DEVICE.type == "cuda" else 1, dtype=torch.uint8, device=DEVICE)
    out = torch.empty_like(logits)
    losses = contenders(logits.numel())
    with torch.no_grad():
        expected = F.cross_entropy(logits.float(), target)
        torch.testing.assert_close(dual_focal_loss(logits, target, 0.0), expected, rtol=1e-4, atol=0)
    times: dict[str, list[float]] = {name: [] for name in ("copy", *losses)}
    for turn in range(rounds + 3):
        took = {"copy": gpu_ms(lambda: out.copy_(logits.detach()), flush)}
        for name, loss in losses.items():
            leaf = logits.detach().clone().requires_grad_() if name == "liger" else logits
            leaf.grad = None
            took[name] = gpu_ms(lambda loss=loss, leaf=leaf: loss(leaf, target).backward(), flush)
        for name, value in took.items():
            times[name] += [value] if turn >= 3 else []  # after compiling and warming up
    result = {name: statistics.median(values) for name, values in times.items()}
    logits.grad = None
    _, extra = with_peak_bytes(lambda: dual_focal_loss(logits, target).backward())
    return result | {"extra_gib": extra / 2**30}


def measure_small(case: Case, steps: int) -> dict[str, float]:
    """Milliseconds a step of every contender, by the clock, and in a CUDA graph."""
    logits, target = sample(case)
    losses = {name: loss for name, loss in contenders(logits.numel()).items() if name != "liger"}
    times: dict[str, list[float]] = {name: [] for name in losses}

    def step(loss: Loss) -> None:
        logits.grad = None
        loss(logits, target).backward()

    for turn in range(TURNS):
        for name, loss in losses.items():
            synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                step(loss)
            synchronize()
            times[name] += [(time.perf_counter() - start) / steps * 1e3] if turn else []
    result = {name: statistics.median(values) for name, values in times.items()}
    for name in ("cross_entropy", "ours"):
        result[f"{name}, graph"] = graph_ms(losses[name], logits, target) if DEVICE.type == "cuda" else result[name]
    return result


def graph_ms(loss: Loss, logits: Tensor, target: Tensor) -> float:
    """Milliseconds a step if ten steps are one CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        leaf = logits.detach().clone().requires_grad_()  # whose gradient is accumulated on the stream of the graph

        def step() -> None:
            leaf.grad = None
            loss(leaf, target).backward()

        for _ in range(3):
            step()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(10):
                step()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(30):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 10)
    return float(statistics.median(times))


def measure_linear(num_rows: int, size: int, num_classes: int, rounds: int) -> list[Record]:
    """Median milliseconds and peak memory of a linear head with its loss."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    options = {"device": DEVICE, "dtype": torch.bfloat16, "generator": generator}
    hidden = torch.randn(num_rows, size, **options).requires_grad_()  # type: ignore[call-overload]
    weight = (torch.randn(num_classes, size, **options) * size**-0.5).requires_grad_()  # type: ignore[call-overload]
    target = torch.randint(num_classes, (num_rows,), device=DEVICE, generator=generator)

    def products() -> None:
        x, w = hidden.detach(), weight.detach()
        logits = x @ w.T  # in the place of their gradient
        hidden.grad, weight.grad = logits @ w, logits.T @ x

    steps: dict[str, Callable[[], object]] = {
        "products": products,
        "linear, cross_entropy": lambda: F.cross_entropy(F.linear(hidden, weight), target).backward(),
        "linear, ours": lambda: dual_focal_loss(F.linear(hidden, weight), target).backward(),
        "ours": lambda: linear_dual_focal_loss(hidden, weight, target).backward(),
    }
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger

        steps["liger"] = lambda: Liger.apply(hidden, weight, target)[0].backward()
    except ImportError:
        pass
    times, memory = defaultdict[str, list[float]](list), {}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            hidden.grad = weight.grad = None
            took, extra = with_peak_bytes(lambda step=step: gpu_ms(step))
            memory[name] = extra / 2**30
            times[name] += [took] if turn >= 2 else []
    accumulator = 4 * weight.numel() / 2**30
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        {"rows": num_rows, "size": size, "classes": num_classes, "contender": name, "ms": f"{medians[name]:.2f}"}
        | {"over_products": f"{medians[name] / medians['products']:.3f}", "gib": f"{memory[name]:.2f}"}
        | {"gib_above_sum": f"{memory[name] - accumulator:.2f}"}
        for name in steps
    ]


def record_of(case: Case, result: dict[str, float]) -> Record:
    """One line of the table: milliseconds, and ratios to ours."""
    ours = result["ours"]
    record: Record = {"rows": case.rows, "classes": case.classes, "dtype": str(case.dtype).removeprefix("torch.")}
    record |= {name: f"{value:.4f}" for name, value in result.items()}
    if "copy" in result:
        record["share_of_copy"] = f"{result['copy'] / ours:.3f}"
    for peer in ("cross_entropy", "liger", "published"):
        record[f"{peer}_over_ours"] = f"{result[peer] / ours:.2f}" if peer in result else ""
    if "ours, graph" in result:
        ratio = result["cross_entropy, graph"] / result["ours, graph"]
        record["graph_cross_entropy_over_ours"] = f"{ratio:.2f}"
    return record


def goal_records(size: str, measured: Record, goals: dict[str, float], *, at_most: bool = False) -> list[Record]:
    """One line for each goal of a size: the goal, what was measured, and whether it is met."""
    records = []
    for name, goal in goals.items():
        value = measured.get(name, "")
        met = value != "" and (float(value) <= goal if at_most else float(value) >= goal)
        result = "not measured" if value == "" else "met" if met else "missed"
        limit = f"at {'most' if at_most else 'least'} {goal}"
        records.append({"logits": size, "quantity": name, "goal": limit, "measured": value, "result": result})
    return records


def small_part(args: argparse.Namespace, cases: list[Case]) -> tuple[list[Record], list[Record]]:
    """Records and goals of the small sizes; medians of several processes."""
    command = [sys.executable, __file__, "--worker", *(["--check"] if args.check else [])]
    processes = 1 if args.check else PROCESSES
    runs = [json.loads(subprocess.check_output(command).splitlines()[-1]) for _ in range(processes)]
    records, goals = [], []
    for i, case in enumerate(cases):
        records.append(record_of(case, {name: statistics.median(run[i][name] for run in runs) for name in runs[0][i]}))
        goals += goal_records(str(case), records[-1], case.goals)
    return records, goals


def large_part(args: argparse.Namespace, cases: list[Case]) -> tuple[list[Record], list[Record]]:
    """Records and goals of the large sizes."""
    records, goals = [], []
    for case in cases:
        records.append(record_of(case, measure_large(case, args.rounds)))
        goals += goal_records(str(case), records[-1], case.goals)
        print(f"{case}: {records[-1]['ours']} ms", flush=True)
    names = list(dict.fromkeys(name for record in records for name in record))
    return [{name: record.get(name, "") for name in names} for record in records], goals


def linear_part(args: argparse.Namespace) -> tuple[list[Record], list[Record]]:
    """Records and goals of a linear head with its loss."""
    size = (8, 16, 32) if args.check else LINEAR
    records = measure_linear(*size, max(3, args.rounds // 3))
    ours = next(record for record in records if record["contender"] == "ours")
    return records, goal_records(" x ".join(map(str, size)), ours, LINEAR_GOALS, at_most=True)


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of large sizes (default %(default)s)")
    parser.add_argument("--parts", default="small,large,linear", help="what to measure (default %(default)s)")
    parser.add_argument("--worker", action="store_true", help="print the times of the small sizes as JSON")
    args = gpu_options(parser)
    small, large, steps = SMALL, LARGE, STEPS
    if args.check:
        args.rounds, steps = 1, 2
        small, large = (
            [case._replace(rows=8, classes=case.classes // 8 + 2) for case in cases] for cases in (SMALL, LARGE)
        )
        large = large[-2:]
    if args.worker:
        print(json.dumps([measure_small(case, steps) for case in small]))
        return
    parts = {
        "small": lambda: small_part(args, small),
        "large": lambda: large_part(args, large),
        "linear": lambda: linear_part(args),
    }
    goals: list[Record] = []
    about = about_gpu("liger-kernel")

    def file(suffix: str) -> Path | None:
        return args.csv.with_stem(args.csv.stem + suffix) if args.csv else None

    for name in args.parts.split(","):
        records, more_goals = parts[name]()
        goals += [goal | about for goal in more_goals]
        with_machine = [record | about for record in records]
        show(f"{name}, forward + backward, milliseconds", with_machine, file("" if name == "large" else f"_{name}"))
        if goals_file := file("_goals"):
            write_csv(goals, goals_file)
    show("goals", goals, None)


if __name__ == "__main__":
    main()
