"""A small causal language model with the methods of transformers, and a slow evaluation of any such model."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 23


class Body(nn.Module):
    """The hidden state is the mean of the embeddings of all tokens so far that are attended to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embedded = self.dropout(self.embedding(input_ids)) * mask[..., None]
        return SimpleNamespace(last_hidden_state=embedded.cumsum(1) / mask.cumsum(1).clamp_min(1)[..., None])


class Head(nn.Linear):
    """A head that records the number of rows of each call."""

    rows: list[int]

    def forward(self, input: Tensor) -> Tensor:
        self.rows.append(input.numel() // input.shape[-1])
        return super().forward(input)


class SmallLM(nn.Module):
    """A causal language model like those of transformers."""

    def __init__(self, width: int = 8, sharpness: float = 3.0) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.base_model = Body(width)
        self.head = Head(width, VOCABULARY)
        self.head.rows = []
        with torch.no_grad():
            self.head.weight.mul_(sharpness)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embedding

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return SimpleNamespace(logits=self.head(self.base_model(input_ids, attention_mask).last_hidden_state))


def oracle(model: nn.Module, sequences: list[Tensor], temperature: float = 1.0) -> list[tuple[float, ...]]:
    """Confidence, correctness, NLL, Brier score, predicted token, position and sequence of every token but the first.

    Each sequence is run alone, without padding, and all numbers are computed in float64.
    """
    result = []
    with torch.no_grad():
        for number, tokens in enumerate(sequences):
            logits = model.eval()(input_ids=tokens[None]).logits[0].double() / temperature
            for place in range(1, len(tokens)):
                row, label = logits[place - 1].tolist(), int(tokens[place])
                peak = max(row)
                total = sum(math.exp(z - peak) for z in row)
                p = [math.exp(z - peak) / total for z in row]
                guess = row.index(peak)
                brier = sum((q - (c == label)) ** 2 for c, q in enumerate(p))
                nll = -math.log(p[label])
                result.append((p[guess], float(guess == label), nll, brier, guess, place, number))
    return result


def texts(number: int = 24, seed: int = 0, longest: int = 12) -> list[Tensor]:
    """Sequences of random tokens, of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (number,), generator=generator).tolist()
    return [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(sequences: list[Tensor], side: str, token: int = 0) -> dict[str, Tensor]:
    """Tokens and mask of sequences, padded on one side."""
    longest = max(map(len, sequences))
    rows, masks = [], []
    for tokens in sequences:
        fill = torch.full((longest - len(tokens),), token)
        parts, ones = (tokens, fill), (torch.ones_like(tokens), torch.zeros_like(fill))
        rows.append(torch.cat(parts if side == "right" else parts[::-1]))
        masks.append(torch.cat(ones if side == "right" else ones[::-1]))
    return {"input_ids": torch.stack(rows), "attention_mask": torch.stack(masks)}
