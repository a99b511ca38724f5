"""Next-token calibration on the CPU: `evaluate_causal_lm` beside all logits and torchmetrics.

    python benchmarks/token_calibration.py [--csv FILE] [--sizes 8x128,16x256,32x256] [--repeats 3]

A Llama with random weights, hidden size 64, two layers and a vocabulary of 50,257 tokens, float32, one thread. Sizes
are sequences x tokens, in batches of 8 sequences. Contenders:

  scan      `scan_causal_lm`: sums of the tokens (confidence, correctness, NLL, Brier score) by sequence and position
  evaluate  `evaluate_causal_lm`: the same, then noise floors, tests and intervals of all tokens and of the groups
  naive     the logits of all batches are kept, then torchmetrics' MulticlassCalibrationError(50257, n_bins=15), which
            computes only the ECE

cpu_seconds  CPU time of a call in a forked child, median of the repeats: the machine may be shared
extra_mib    peak memory of the call beyond what was there before it, the largest of the repeats
ece          of the contender. torchmetrics bins [lo, hi) and in float32, which can differ in the last digits
"""

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchmetrics
import transformers
from _measure import Record, cpu_name, in_child, memory, read_sizes, show
from torch import Tensor, nn
from torchmetrics.classification import MulticlassCalibrationError

from dualfocal.integrations.hf import evaluate_causal_lm, scan_causal_lm

VOCABULARY, BATCH = 50_257, 8


def make_model() -> nn.Module:
    """Return a small Llama with a large vocabulary, whose confidences are spread."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return model


def scanned(model: nn.Module, tokens: Tensor) -> float:
    """Return the ECE from the sums of all tokens."""
    return float(scan_causal_lm(model, tokens.split(BATCH)).total.top.ece())


def evaluated(model: nn.Module, tokens: Tensor) -> float:
    """Return the ECE of the whole evaluation."""
    return evaluate_causal_lm(model, tokens.split(BATCH)).evaluation.ece


def naive(model: nn.Module, tokens: Tensor) -> float:
    """Return the ECE of torchmetrics from the logits of all tokens."""
    with torch.inference_mode():
        logits = torch.cat([model(batch).logits[:, :-1].flatten(0, 1) for batch in tokens.split(BATCH)])
        metric = MulticlassCalibrationError(VOCABULARY, n_bins=15, validate_args=False)
        return float(metric(logits, tokens[:, 1:].flatten()))


CONTENDERS: dict[str, Callable[[nn.Module, Tensor], float]] = {"scan": scanned, "evaluate": evaluated, "naive": naive}


def measure(contender: Callable[[nn.Module, Tensor], float], model: nn.Module, tokens: Tensor) -> dict[str, float]:
    """Call once in this process, after a call on few tokens."""
    contender(model, tokens[:2, :8])
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before, start = memory("VmRSS"), time.process_time()
    ece = contender(model, tokens)
    return {"cpu_seconds": time.process_time() - start, "extra_mib": memory("VmHWM") - before, "ece": ece}


def main() -> None:
    """Measure every size and contender, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--sizes", type=read_sizes, default="8x128,16x256,32x256", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="calls of each contender (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, records = make_model(), list[Record]()
    for sequences, length in args.sizes:
        tokens = torch.randint(VOCABULARY, (sequences, length), generator=torch.Generator().manual_seed(1))
        for name, contender in CONTENDERS.items():
            calls: list[Any] = [
                in_child(lambda c=contender, t=tokens: measure(c, model, t)) for _ in range(args.repeats)
            ]
            records.append(
                {
                    "sequences": sequences,
                    "length": length,
                    "contender": name,
                    "cpu_seconds": f"{statistics.median(call['cpu_seconds'] for call in calls):.2f}",
                    "extra_mib": f"{max(call['extra_mib'] for call in calls):.0f}",
                    "ece": f"{calls[0]['ece']:.6f}",
                    "repeats": args.repeats,
                    "cpu": cpu_name(),
                }
            )
    show("next-token calibration, vocabulary of 50,257", records, args.csv)
    if args.csv:
        versions = (
            f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
        )
        sizes = ",".join("x".join(map(str, size)) for size in args.sizes)
        command = f"benchmarks/token_calibration.py --sizes {sizes} --repeats {args.repeats}"
        text = args.csv.read_text()
        args.csv.write_text(f"# {command}; {versions}, torchmetrics {torchmetrics.__version__}\n{text}")


if __name__ == "__main__":
    main()
