"""Forward + backward of dual focal loss on the CPU, beside F.cross_entropy and the published expression.

    python benchmarks/loss_cpu.py [--csv benchmarks/results/loss_cpu.csv] [--seconds 10]

float32 logits, mean reduction, gamma 5; targets are class indices, or probabilities, as mixup makes them ("soft"). All
contenders of a row are timed in turn, call by call, in one process, so that a busy machine slows them alike; medians
are reported. "compiled" is torch.compile(fullgraph=True) against compiled cross-entropy; compilation is not timed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _measure import cpu_name, write_csv
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import dualfocal

SHAPES = [(128, 10), (4096, 1000), (512, 32000)]
THREADS = [1, 2]
# The most that (ours / peer) may be, by shape.
GOALS = {
    ("eager", "cross_entropy"): {(4096, 1000): 2.5, (512, 32000): 2.0},
    ("eager", "published"): {(128, 10): 1.0, (4096, 1000): 1 / 2, (512, 32000): 1 / 2.5},
    ("compiled", "cross_entropy"): {(4096, 1000): 1.2, (512, 32000): 1.2},
}

Loss = Callable[[Tensor, Tensor], Tensor]


def published(logits: Tensor, target: Tensor) -> Tensor:
    """The loss as the paper's equation is usually coded: top-1 of the softmax where it is below the target's."""
    p = F.softmax(logits, dim=1)
    log_p_k = F.log_softmax(logits, dim=1).gather(1, target[:, None])[:, 0]
    p_k = p.gather(1, target[:, None])
    p_j = torch.topk(p * (p < p_k), k=1, dim=1).values[:, 0]
    return (-((1 - p_k[:, 0] + p_j) ** 5.0) * log_p_k).mean()


def published_soft(logits: Tensor, target: Tensor) -> Tensor:
    """The same for target probabilities: every class in the target's place, its rival the next below it."""
    p, log_p = F.softmax(logits, dim=1), F.log_softmax(logits, dim=1)
    ranked, order = p.sort(dim=1)
    p_j = torch.zeros_like(p).scatter(1, order, F.pad(ranked[:, :-1], (1, 0)))
    return -(target * (1 - p + p_j) ** 5.0 * log_p).sum(1).mean()


def medians(losses: dict[str, Loss], logits: Tensor, target: Tensor, seconds: float) -> dict[str, float]:
    """Median milliseconds of one forward and backward, the contenders taking turns."""

    def step(loss: Loss) -> float:
        logits.grad = None
        start = time.perf_counter()
        loss(logits, target).backward()
        return (time.perf_counter() - start) * 1e3

    for loss in losses.values():  # warm up, and compile
        for _ in range(3):
            step(loss)
    times: dict[str, list[float]] = {name: [] for name in losses}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["ours"]) < 7:
        for name, loss in losses.items():
            times[name].append(step(loss))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(seconds: float) -> list[dict[str, object]]:
    """One record for each shape, number of threads, mode and peer."""
    records: list[dict[str, object]] = []
    for threads, shape in track([(t, s) for t in THREADS for s in SHAPES], "measuring"):
        torch.set_num_threads(threads)
        torch.compiler.reset()
        torch.manual_seed(0)
        logits = torch.randn(shape, requires_grad=True)
        index = torch.randint(shape[1], shape[:1])
        mixed = 0.7 * F.one_hot(index, shape[1]) + 0.3 * F.one_hot(index.flip(0), shape[1])
        eager: dict[str, Loss] = {
            "cross_entropy": F.cross_entropy,
            "published": published,
            "ours": dualfocal.dual_focal_loss,
        }
        compiled: dict[str, Loss] = {
            name: torch.compile(eager[name], fullgraph=True, dynamic=False) for name in ("cross_entropy", "ours")
        }
        soft: dict[str, Loss] = {**eager, "published": published_soft}
        for mode, losses in (("eager", eager), ("compiled", compiled), ("soft", soft)):
            result = medians(losses, logits, mixed if mode == "soft" else index, seconds)
            for peer in list(result)[:-1]:
                ratio, goal = result["ours"] / result[peer], GOALS.get((mode, peer), {}).get(shape)
                records.append(
                    {
                        "rows": shape[0],
                        "classes": shape[1],
                        "threads": threads,
                        "mode": mode,
                        "peer": peer,
                        "peer_ms": round(result[peer], 4),
                        "ours_ms": round(result["ours"], 4),
                        "ours_over_peer": round(ratio, 3),
                        "goal": "" if goal is None else round(goal, 3),
                        "torch": torch.__version__,
                        "cpu": cpu_name(),
                    }
                )
    return records


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each row and mode (default 10)")
    args = parser.parse_args()
    records = measure(args.seconds)
    table = Table(title="dual focal loss, forward + backward, float32, CPU")
    for column in ("shape", "threads", "mode", "peer", "peer ms", "ours ms", "ours / peer", "goal at most"):
        table.add_column(column, justify="right")
    for r in records:
        met = r["goal"] == "" or float(str(r["ours_over_peer"])) <= float(str(r["goal"]))
        ratio = f"{r['ours_over_peer']:.2f}" if met else f"[red]{r['ours_over_peer']:.2f}[/]"
        shape = f"{r['rows']} x {r['classes']}"
        times = (f"{r['peer_ms']:.3f}", f"{r['ours_ms']:.3f}", ratio, str(r["goal"]))
        table.add_row(shape, str(r["threads"]), str(r["mode"]), str(r["peer"]), *times)
    Console(width=110).print(table)
    if args.csv:
        write_csv(records, args.csv)


if __name__ == "__main__":
    main()
