"""Batches of tokens: which token of which sequence is predicted at each place, and what the model is given."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100  # label that Trainer does not count and pads with; such a token is not predicted
NOT_FOR_THE_MODEL = ("labels", "sequence_ids")


@dataclass(frozen=True)
class TokenBatch:
    """A batch of token sequences.

    Args:
        inputs: arguments of the model, by name.
        target: the next token of each place, ``(N, T)``; -100 where there is none, or where it is not to be predicted.
        position: number of tokens of the sequence before that token, ``(N, T)``.
        sequence: the sequence of each place, ``(N, T)``, whole numbers or texts.
        numbered: whether sequences have numbers because they have no ids.
    """

    inputs: dict[str, Any]
    target: Tensor
    position: Tensor
    sequence: NDArray[Any]
    numbered: bool

    @property
    def keep(self) -> Tensor:
        """Places with a token to predict, ``(N, T)``."""
        return self.target != IGNORED


def token_batches(batches: Iterable[Any], shard: int | str) -> Iterator[TokenBatch]:
    """Yield the batches; sequences without ids are called ``"SHARD:0"``, ``"SHARD:1"``, ... in their order.

    Raises:
        TypeError: something is not a batch of tokens.
        ValueError: shapes do not fit each other.
    """
    if isinstance(batches, Mapping):
        raise TypeError("batches must be an iterable of batches, got one batch: pass [batch]")
    number = 0
    for batch in batches:
        columns = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
        tokens = _tokens(columns)
        rows = np.array([f"{shard}:{number + i}" for i in range(len(tokens))])
        yield _token_batch(columns, tokens, rows)
        number += len(tokens)


def _token_batch(columns: Mapping[str, Any], tokens: Tensor, rows: NDArray[Any]) -> TokenBatch:
    attended = _column(columns, "attention_mask", tokens, torch.ones_like(tokens)) != 0
    labels = _column(columns, "labels", tokens, tokens).long()
    sequence = np.broadcast_to(rows[:, None], tokens.shape)
    linked = torch.zeros_like(attended)  # whether a token follows another one of the same sequence
    linked[:, 1:] = attended[:, 1:] & attended[:, :-1]
    if columns.get("sequence_ids") is not None:
        sequence = _sequence_ids(columns["sequence_ids"], tokens)
        linked[:, 1:] &= torch.from_numpy(sequence[:, 1:] == sequence[:, :-1])
    place = torch.arange(tokens.shape[1]).expand_as(tokens)
    position = place - torch.where(linked, 0, place).cummax(1).values
    target = torch.full_like(tokens, IGNORED)
    target[:, :-1] = torch.where(linked, labels, IGNORED)[:, 1:]
    after = torch.zeros_like(tokens)
    after[:, :-1] = position[:, 1:]
    inputs = {name: value for name, value in columns.items() if name not in NOT_FOR_THE_MODEL} | {"input_ids": tokens}
    if columns.get("attention_mask") is not None:
        inputs["attention_mask"] = attended.long()
        if bool((~attended[:, 0]).any()) and "position_ids" not in inputs:  # padding at the left
            inputs["position_ids"] = (attended.long().cumsum(1) - 1).clamp_min(0)
    return TokenBatch(inputs, target, after, sequence, columns.get("sequence_ids") is None)


def _tokens(columns: Mapping[str, Any]) -> Tensor:
    if columns.get("input_ids") is None:
        raise TypeError(f'a batch needs "input_ids", the tokens; got only {", ".join(map(repr, columns)) or "nothing"}')
    try:
        tokens = torch.as_tensor(columns["input_ids"]).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            "input_ids must be a tensor, or lists of token ids of the same length: tokenize texts, and pad them"
        ) from None
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or tokens.is_floating_point() or not tokens.numel():
        raise ValueError(
            f"input_ids must be token ids of shape (N, T), not empty, got {tokens.dtype} of shape {tuple(tokens.shape)}"
        )
    return tokens.long()


def _column(columns: Mapping[str, Any], name: str, tokens: Tensor, default: Tensor) -> Tensor:
    value = columns.get(name)
    if value is None:
        return default
    column = torch.as_tensor(value).cpu()
    column = column[None] if column.ndim == 1 else column
    if column.shape != tokens.shape:
        raise ValueError(f"{name} must have the shape of input_ids, {tuple(tokens.shape)}, got {tuple(column.shape)}")
    return column


def _sequence_ids(ids: Any, tokens: Tensor) -> NDArray[Any]:
    """Return the sequence of each token, (N, T), from ids of tokens or of rows."""
    names = np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids)
    if (names.shape == (len(tokens),) and len(tokens) > 1) or names.shape in ((), (1,)):
        names = names.reshape(-1, 1)
    names = names[None] if names.ndim == 1 else names
    if names.dtype.kind not in "iuU" or names.shape not in (tuple(tokens.shape), (len(tokens), 1)):
        raise ValueError(
            f"sequence_ids must be whole numbers or texts of shape {tuple(tokens.shape)} or ({len(tokens)},), got "
            f"{names.dtype} of shape {names.shape}"
        )
    return np.broadcast_to(names, tuple(tokens.shape))
