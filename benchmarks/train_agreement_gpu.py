"""Does the fast step train the same? The same batches of CIFAR-10 through ResNet-50, step by step, in four ways.

    python benchmarks/train_agreement_gpu.py --data-root DATA [--csv benchmarks/results/train_agreement_gpu.csv]

All start from the same weights and see the same images, varied alike. float32 by eager steps is the yardstick, and the
same again in another order of summation (channels_last) says how far apart rounding alone drives two trainings. Losses
are means over a batch. Deterministic algorithms.
"""

import argparse
import statistics
from datetime import date
from pathlib import Path

import torch
from _measure import show

from dualfocal.data import DataSet, load_data
from dualfocal.paper.recipes import preset
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward
from dualfocal.train.preparation import make_batches, make_optimizer, prepare_model, repeatable
from dualfocal.train.step import make_step

WAYS = {
    "float32, eager": ["precision=float32", "step=eager", "channels_last=false"],
    "float32, eager, channels_last": ["precision=float32", "step=eager", "channels_last=true"],
    "bfloat16, eager": ["precision=bfloat16", "step=eager"],
    "bfloat16, captured": ["precision=bfloat16", "step=captured"],
}


def losses(settings: list[str], data: DataSet, steps: int, device: torch.device) -> list[float]:
    """Mean loss of each batch."""
    recipe = preset("cifar10_resnet50", ["deterministic=true", *settings]).on(device)
    with repeatable(recipe, device):
        model = prepare_model(recipe, data, device)
        optimizer = make_optimizer(recipe, list(model.parameters()))
        step = make_step(
            recipe, data, Forward(model, recipe, device), recipe.make_loss(), optimizer, Group(0, 1, device)
        )
        step.begin(0)
        taken = [step(batch).loss for batch in make_batches(recipe, data, 0)[:steps]]
        return (torch.stack(taken) / recipe.batch_size).tolist()


def main() -> None:
    """Run each way, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the table there")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("train_agreement_gpu.py needs a CUDA device")
    device = torch.device("cuda")
    data = load_data("cifar10", args.data_root).to(device)
    found = {way: losses(settings, data, args.steps, device) for way, settings in WAYS.items()}
    yardstick = found["float32, eager"]
    records = []
    for way, these in found.items():
        off = [abs(mine - other) / other for mine, other in zip(these, yardstick, strict=True)]
        records.append(
            {
                "way": way,
                **{f"loss_{i}": round(these[i - 1], 5) for i in (1, 10, 25, args.steps)},
                "mean_of_last_10": round(statistics.mean(these[-10:]), 5),
                "median_off_percent": round(100 * statistics.median(off), 3),
                "most_off_percent": round(100 * max(off), 3),
                "same_bits_as_bf16_eager": these == found["bfloat16, eager"],
                "steps": args.steps,
                "gpu": torch.cuda.get_device_name(device),
                "torch": torch.__version__,
                "date": date.today().isoformat(),
            }
        )
    show("The same steps in several ways", records, args.csv)


if __name__ == "__main__":
    main()
