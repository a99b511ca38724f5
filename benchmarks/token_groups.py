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

from collections.abc import Iterator

import torch
from _simulation import Record, Values, means, run_simulation
from torch import Tensor

from dualfocal.metrics import TokenConfidences, holm

VOCABULARY, SEQUENCES, LENGTH = 1000, 60, 50
LEAST, SIGNIFICANCE = 100, 0.05
KINDS = {
    "predicted token, other text": ("predicted", "other"),
    "predicted token, evaluated text": ("predicted", "evaluated"),
    "target token, other text": ("target", "other"),
}
SETTING, CHUNK = "calibrated", 10  # there is one setting; data sets that one process draws at a time


def draw_text(table: Tensor, first: Tensor, generator: torch.Generator) -> Tensor:
    """Draw sequences of tokens, (SEQUENCES, LENGTH)."""
    tokens = torch.multinomial(first, SEQUENCES, replacement=True, generator=generator)[:, None]
    while tokens.shape[1] < LENGTH:
        following = torch.multinomial(table[tokens[:, -1]], 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    return tokens


def simulate(setting: str, repeats: range) -> Iterator[dict[str, float]]:
    """Yield for each kind of groups whether one of them is significant, and the largest gap."""
    for seed in repeats:
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
        numbers: dict[str, float] = {}
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
            numbers[f"{kind}: alarms"] = min(adjusted) <= SIGNIFICANCE
            numbers[f"{kind}: largest gap"] = max(
                abs(group.overconfidence) for group in groups if group.num_samples >= LEAST
            )
        yield numbers


def summarize(setting: str, values: Values) -> list[Record]:
    """Return a line of the CSV file for each kind of groups."""
    rates = means(values)
    return [
        {
            "groups": kind,
            "repeats": len(values[f"{kind}: alarms"]),
            "alarms": float(f"{rates[f'{kind}: alarms']:.4g}"),
            "largest_gap": float(f"{rates[f'{kind}: largest gap']:.4g}"),
        }
        for kind in KINDS
    ]


if __name__ == "__main__":
    run_simulation(__doc__, [SETTING], simulate, summarize, repeats=200, chunk=CHUNK)
