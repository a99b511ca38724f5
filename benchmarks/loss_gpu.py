"""Forward + backward of dual focal loss on one GPU, beside F.cross_entropy and other code, in one run.

    python benchmarks/loss_gpu.py [--csv benchmarks/results/loss_gpu.csv] [--rounds 30]

Mean reduction, gamma 5, class indices. Contenders take turns; medians, in milliseconds.

- Large inputs: time of the GPU by CUDA events, after the L2 cache was overwritten. The GPU is kept busy before, so that
  it does not wait for Python, as in a training loop. "copy" is out.copy_(logits): the logits are read and a gradient
  written once, the least that loss and gradient can cost.
- Small inputs are bound by launches: 200 steps without waiting for the GPU between them, by the clock, median of five
  processes; and in a CUDA graph, where only the GPU's time counts.
- A linear head and its loss: "products" are the three matrix products of forward and backward alone, on the whole
  batch, with results in bfloat16. Memory is what is added to the inputs at the peak, also less the float32 sum of the
  weight gradient.

"published" is the expression as the paper's equation is usually coded; "liger" is the cross-entropy of liger-kernel, if
it is installed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from _measure import Record, gpu_ms, show
from loss_cpu import published
from torch import Tensor

from dualfocal import dual_focal_loss
from dualfocal.losses import linear_dual_focal_loss

LARGE = [
    (8192, 32000, torch.bfloat16),
    (8192, 128256, torch.bfloat16),
    (4096, 151936, torch.bfloat16),
    (8192, 32000, torch.float32),
    (8192, 128256, torch.float32),
    (4096, 151936, torch.float32),
    (65536, 1000, torch.bfloat16),
    (1048576, 10, torch.float32),
]
SMALL = [(128, 10, torch.float32), (4096, 1000, torch.float32)]
LINEAR = (8192, 4096, 128256)  # rows, size of the hidden states, classes
PROCESSES, STEPS = 5, 200
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


def sample(num_rows: int, num_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits and target."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = 3 * torch.randn(num_rows, num_classes, device="cuda", generator=generator, dtype=dtype)
    return logits.requires_grad_(), torch.randint(num_classes, (num_rows,), device="cuda", generator=generator)


def measure_large(num_rows: int, num_classes: int, dtype: torch.dtype, rounds: int) -> dict[str, float]:
    """Median milliseconds of every contender, and the extra memory of ours."""
    torch.compiler.reset()
    logits, target = sample(num_rows, num_classes, dtype)
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
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
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dual_focal_loss(logits, target).backward()
    return result | {"extra_gib": (torch.cuda.max_memory_allocated() - before) / 2**30}


def measure_small(num_rows: int, num_classes: int, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds a step of every contender, by the clock, and in a CUDA graph."""
    logits, target = sample(num_rows, num_classes, dtype)
    losses = {name: loss for name, loss in contenders(logits.numel()).items() if name != "liger"}
    times: dict[str, list[float]] = {name: [] for name in losses}

    def step(loss: Loss) -> None:
        logits.grad = None
        loss(logits, target).backward()

    for turn in range(8):
        for name, loss in losses.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(STEPS):
                step(loss)
            torch.cuda.synchronize()
            times[name] += [(time.perf_counter() - start) / STEPS * 1e3] if turn else []
    result = {name: statistics.median(values) for name, values in times.items()}
    for name in ("cross_entropy", "ours"):
        result[f"{name}, graph"] = graph_ms(losses[name], logits, target)
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
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    hidden = torch.randn(num_rows, size, **options).requires_grad_()  # type: ignore[call-overload]
    weight = (torch.randn(num_classes, size, **options) * size**-0.5).requires_grad_()  # type: ignore[call-overload]
    target = torch.randint(num_classes, (num_rows,), device="cuda", generator=generator)

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
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            took = gpu_ms(step)
            memory[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
            times[name] += [took] if turn >= 2 else []
    accumulator = 4 * weight.numel() / 2**30
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        {"rows": num_rows, "size": size, "classes": num_classes, "contender": name, "ms": f"{medians[name]:.2f}"}
        | {"over_products": f"{medians[name] / medians['products']:.3f}", "gib": f"{memory[name]:.2f}"}
        | {"gib_above_sum": f"{memory[name] - accumulator:.2f}"}
        for name in steps
    ]


def about() -> Record:
    """The machine and the versions."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    versions = {
        name: metadata.version(name) for name in ("triton", "liger-kernel") if find_spec(name.replace("-", "_"))
    }
    return {"gpu": torch.cuda.get_device_name(), "driver": driver, "torch": torch.__version__} | versions


def record_of(num_rows: int, num_classes: int, dtype: torch.dtype, result: dict[str, float]) -> Record:
    """One line of the table: milliseconds, and ratios to ours."""
    ours = result["ours"]
    record: Record = {"rows": num_rows, "classes": num_classes, "dtype": str(dtype).removeprefix("torch.")}
    record |= {name: f"{value:.4f}" for name, value in result.items()}
    if "copy" in result:
        record["share_of_copy"] = f"{result['copy'] / ours:.3f}"
    for peer in ("cross_entropy", "liger", "published"):
        record[f"{peer}_over_ours"] = f"{result[peer] / ours:.2f}" if peer in result else ""
    return record


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here, NAME_small.csv and NAME_linear.csv")
    parser.add_argument("--rounds", type=int, default=30, help="timed rounds of large sizes (default %(default)s)")
    parser.add_argument("--small", action="store_true", help="print the times of the small sizes as JSON")
    args = parser.parse_args()
    if args.small:
        print(json.dumps([measure_small(*size) for size in SMALL]))
        return
    large = [record_of(*size, measure_large(*size, args.rounds)) | about() for size in LARGE]
    names = list(dict.fromkeys(name for record in large for name in record))
    show("forward + backward, milliseconds", [{name: r.get(name, "") for name in names} for r in large], args.csv)
    command = [sys.executable, __file__, "--small"]
    runs = [json.loads(subprocess.check_output(command).splitlines()[-1]) for _ in range(PROCESSES)]
    small = []
    for i, size in enumerate(SMALL):
        medians = {name: statistics.median(run[i][name] for run in runs) for name in runs[0][i]}
        small.append(record_of(*size, medians) | about())
    file = args.csv.with_stem(args.csv.stem + "_small") if args.csv else None
    show("small sizes, forward + backward, milliseconds", small, file)
    file = args.csv.with_stem(args.csv.stem + "_linear") if args.csv else None
    show("linear head and loss", [r | about() for r in measure_linear(*LINEAR, max(3, args.rounds // 3))], file)


if __name__ == "__main__":
    main()
