"""Which groups of tokens are calibrated if the model is? A simulation in which every probability is exact.

    python benchmarks/token_groups.py [--csv FILE] [--repeats 200]

Texts are drawn from a table of next-token probabilities (1000 tokens, whose frequencies follow Zipf's law), and the
model is that table: it is calibrated in every sense. Each data set has 60 sequences of 50 tokens. Tokens are grouped by
decades of a count, and the groups are tested as `TokenConfidences` does, with sequences as clusters:

  predicted token, other text      by the count of the predicted token in another text of the same size
  predicted token, evaluated text  by its count in the evaluated text
  target token, other text         by the count of the token that follows, in another text

alarms: how often at least one group is significant at 5 %, after Holm's adjustment; it should be about 5 %.
largest_gap: largest |mean confidence - accuracy| of a group with at least 100 tokens, mean over the data sets.
"""

import argparse
import csv
import platform
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from dualfocal.metrics.inference.holm import holm
from dualfocal.metrics.states.token_confidences import TokenConfidences

VOCABULARY, SEQUENCES, LENGTH = 1000, 60, 50
LEAST, SIGNIFICANCE = 100, 0.05
KINDS = {
    "predicted token, other text": ("predicted", "other"),
    "predicted token, evaluated text": ("predicted", "evaluated"),
    "target token, other text": ("target", "other"),
}


def draw_text(table: Tensor, first: Tensor, generator: torch.Generator) -> Tensor:
    """Draw sequences of tokens, (SEQUENCES, LENGTH)."""
    tokens = torch.multinomial(first, SEQUENCES, replacement=True, generator=generator)[:, None]
    while tokens.shape[1] < LENGTH:
        following = torch.multinomial(table[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def simulate(seed: int) -> dict[str, tuple[bool, float]]:
    """Return for each kind of groups whether one of them is significant, and the largest gap."""
    generator = torch.Generator().manual_seed(seed)
    first = 1 / torch.arange(1, VOCABULARY + 1).double()
    table = (2.5 * torch.randn(VOCABULARY, VOCABULARY, generator=generator).double() + first.log()).softmax(1)
    text, other = (draw_text(table, first, generator) for _ in range(2))
    counts = {
        name: tokens.flatten().bincount(minlength=VOCABULARY)
        for name, tokens in (("evaluated", text), ("other", other))
    }
    target = text[:, 1:].flatten()
    confidence, predicted = table[text[:, :-1].flatten()].max(1)
    grouping = {"predicted": predicted, "target": target}
    result = {}
    for kind, (tokens, source) in KINDS.items():
        state = TokenConfidences(counts[source])
        state.update(
            confidence,
            predicted == target,
            predicted=grouping[tokens],
            sequence=torch.arange(SEQUENCES).repeat_interleave(LENGTH - 1),
            position=torch.arange(1, LENGTH).repeat(SEQUENCES),
        )
        groups = [group.evaluate(seed=seed) for group in state.by_frequency.values() if group.num_clusters > 1]
        adjusted = holm([group.inference.p_value for group in groups if group.inference is not None])
        gaps = [abs(group.overconfidence) for group in groups if group.num_samples >= LEAST]
        result[kind] = (min(adjusted) <= SIGNIFICANCE, max(gaps))
    return result


def main() -> None:
    """Simulate, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the rates here")
    parser.add_argument("--repeats", type=int, default=200, help="number of data sets (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [simulate(seed) for seed in track(range(args.repeats))]
    records = []
    for kind in KINDS:
        alarms, gaps = np.array([result[kind] for result in results]).T
        records.append([kind, args.repeats, f"{alarms.mean():.4g}", f"{gaps.mean():.4g}"])
    table = Table("groups by", "data sets", "alarms", "largest gap")
    for record in records:
        table.add_row(*map(str, record))
    Console().print(table)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
            file.write(f"# benchmarks/token_groups.py --repeats {args.repeats}; {versions}\n")
            writer = csv.writer(file)
            writer.writerows([["groups", "repeats", "alarms", "largest_gap"], *records])


if __name__ == "__main__":
    main()
