"""Next-token calibration of a causal language model, in one pass and without the logits of all tokens in memory.

``evaluate_causal_lm(model, batches)`` runs a model of Hugging Face (``pip install "dualfocal[hf]"``) on batches of
tokens. The body of the model returns hidden states; the head is applied to a slice of them at a time, and of each slice
only confidence, correctness, NLL and Brier score of the tokens are kept, as sums by sequence. Nothing here imports
transformers.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from dualfocal.calibrators import Calibrator
from dualfocal.checks import check_choice, check_count
from dualfocal.integrations._evaluation_mode import evaluation_mode
from dualfocal.integrations.hf._causal_lm_head import CausalLM
from dualfocal.integrations.hf._token_batches import IGNORED, TokenBatch, token_batches
from dualfocal.metrics.inputs import check_target
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan
from dualfocal.metrics.tokens import TokenConfidences, TokenEvaluation

HEADS = ("hidden", "logits")
CHUNK_BYTES = 2**28  # of logits at a time


def evaluate_causal_lm(
    model: nn.Module,
    batches: Iterable[object],
    *,
    token_counts: Tensor | dict[int, int] | None = None,
    calibrator: Callable[[Tensor], Tensor] | None = None,
    head: str = "hidden",
    num_bins: int = 15,
    chunk_size: int | None = None,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> TokenEvaluation:
    """Evaluate the calibration of next-token predictions, with sequences as clusters.

    For several processes or parts of a text, call :func:`scan_causal_lm` on each, add the results and call
    ``evaluate()``.

    Args:
        model: see :func:`scan_causal_lm`.
        batches: see :func:`scan_causal_lm`.
        token_counts: see :func:`scan_causal_lm`.
        calibrator: see :func:`scan_causal_lm`.
        head: see :func:`scan_causal_lm`.
        num_bins: number of bins of the calibration errors.
        chunk_size: see :func:`scan_causal_lm`.
        level: nominal coverage of the intervals.
        draws: number of draws for noise floors and p-values, at least.
        seed: seed of the draws.
        progress: see :func:`scan_causal_lm`.

    Returns:
        The evaluation of all tokens, by frequency of the predicted token (if there are counts) and by position.

    Raises:
        TypeError: the model has no language-model head, or a batch holds no tokens.
        ValueError: the model is not causal, a shape is invalid, all labels are ignored, or there is only one sequence.
        IndexError: a label is not in the vocabulary.
    """
    state = scan_causal_lm(
        model,
        batches,
        token_counts=token_counts,
        calibrator=calibrator,
        head=head,
        num_bins=num_bins,
        chunk_size=chunk_size,
        progress=progress,
    )
    return state.evaluate(level=level, draws=draws, seed=seed)


def scan_causal_lm(
    model: nn.Module,
    batches: Iterable[object],
    *,
    token_counts: Tensor | dict[int, int] | None = None,
    calibrator: Callable[[Tensor], Tensor] | None = None,
    head: str = "hidden",
    num_bins: int = 15,
    chunk_size: int | None = None,
    shard: int | str = 0,
    progress: Callable[[int], None] | None = None,
) -> TokenConfidences:
    """Sum up the next-token predictions of a causal language model, in one pass.

    A token is predicted if it follows another token of its sequence, both are attended to and its label is not -100.
    The first token of a sequence, padding at either end and the first token of each packed sequence are not. The model
    keeps its device and dtype; it runs in evaluation mode, and afterwards has its former mode.

    Args:
        model: a causal language model of transformers whose ``get_output_embeddings()`` is the head of the last hidden
            states. Soft caps and scales of logits (Gemma 2, Cohere, Granite and others) are applied as the model does.
            A few tokens are run first, to check that slices give the logits of the model, and that it is causal.
        batches: batches of tokens, such as a ``DataLoader``: dicts with ``input_ids`` and, if needed,
            ``attention_mask``, ``labels`` (not shifted, as for the model itself) and ``sequence_ids``; or tensors of
            tokens, ``(N, T)`` or ``(T,)``. Each row is a sequence, unless ``sequence_ids``, ``(N, T)`` or ``(N,)``,
            names the sequence or document of each token or row. Entries that the model knows are passed to it.
        token_counts: how often each token occurs in a text other than the evaluated one, such as the training text;
            see :func:`count_tokens` and :class:`~dualfocal.metrics.TokenConfidences`. None: no groups by
            frequency.
        calibrator: a function of logits, ``(M, V)``, float32, such as a fitted
            :class:`~dualfocal.calibrators.TemperatureScaling`, or ``lambda logits: logits / 1.3``.
        head: ``"hidden"``: apply the head to slices of hidden states; ``"logits"``: let the model compute all logits of
            one sequence at a time, for models whose logits are not those of their output embeddings.
        num_bins: number of bins of the calibration errors.
        chunk_size: number of tokens whose logits are in memory at a time (None: as many as fit in 256 MiB).
        shard: name of this part of the text. Sequences without ids are numbered, and states with the same name would
            mix them up: use the rank of the process, for instance.
        progress: called after each batch with the number of tokens so far.

    Raises:
        TypeError: the model has no language-model head, or a batch holds no tokens.
        ValueError: the model is not causal, a shape is invalid, there are no batches, or a logit is NaN or infinite.
        IndexError: a label is not in the vocabulary.
    """
    check_choice("head", head, HEADS)
    if chunk_size is not None:
        check_count("chunk_size", chunk_size)
    if isinstance(calibrator, Calibrator):
        calibrator = partial(calibrator, input="logits")
    state = TokenConfidences(token_counts, num_bins)
    parts = token_batches(batches, shard)
    with evaluation_mode(model):
        first = next((part for part in parts if bool(part.keep.any())), None)
        if first is None:
            raise ValueError(
                "no tokens to predict: there are no batches, every label is -100, or no sequence has two tokens"
            )
        with torch.inference_mode():
            lm = CausalLM(model, head, _example(first))
        for part in chain([first], parts):
            _add(state, lm, part, calibrator, chunk_size)
            state.shards |= {str(shard)} if part.numbered else set()
            if progress is not None:
                progress(state.num_tokens)
    return state


def count_tokens(batches: Iterable[object]) -> dict[int, int]:
    """Count the tokens of a text that are attended to, for ``token_counts`` of :func:`evaluate_causal_lm`.

    Count the training text, or another text of the same kind. The evaluated text itself would bias the groups: a
    predicted token that does not occur in it is always wrong.

    Args:
        batches: batches of tokens, see :func:`scan_causal_lm`; labels are not used.

    >>> import torch
    >>> count_tokens([torch.tensor([[5, 7, 5]]), {"input_ids": [[5, 0]], "attention_mask": [[1, 0]]}])
    {5: 3, 7: 1}
    """
    counts: dict[int, int] = {}
    for batch in token_batches(batches, 0):
        tokens = batch.inputs["input_ids"]
        mask = batch.inputs.get("attention_mask")
        distinct, numbers = (tokens if mask is None else tokens[mask != 0]).unique(return_counts=True)
        for token, number in zip(distinct.tolist(), numbers.tolist(), strict=True):
            counts[token] = counts.get(token, 0) + number
    return counts


def _example(batch: TokenBatch) -> Tensor:
    """Return a predicted token with the tokens before it and after it, for a first check."""
    row, place = batch.keep.nonzero()[0].tolist()
    tokens: Tensor = batch.inputs["input_ids"][row, place:]
    mask = batch.inputs.get("attention_mask")
    return tokens if mask is None else tokens[mask[row, place:] != 0]


def _add(
    state: TokenConfidences,
    lm: CausalLM,
    batch: TokenBatch,
    calibrator: Callable[[Tensor], Tensor] | None,
    chunk_size: int | None,
) -> None:
    """Add the tokens of a batch to the state."""
    keep = batch.keep
    target = batch.target[keep]
    if not len(target):
        return
    check_target(target, lm.num_tokens, IGNORED)
    size = chunk_size or max(1, CHUNK_BYTES // (4 * lm.num_tokens))
    parts: list[dict[str, Tensor]] = []
    with torch.inference_mode():
        done = 0
        for logits in lm.slices(batch.inputs, keep, size):
            labels = target[done : done + len(logits)]
            parts.append(_numbers(logits if calibrator is None else calibrator(logits.float()), labels, state))
            done += len(logits)
            del logits  # before the next slice is computed
    columns = {name: torch.cat([part[name].clone() for part in parts]) for name in parts[0]}
    state.update(**columns, sequence=batch.sequence[keep.numpy()], position=batch.position[keep])


def _numbers(logits: Tensor, target: Tensor, state: TokenConfidences) -> dict[str, Tensor]:
    """Reduce logits (M, V) to a few numbers per token, on the CPU."""
    stats = scan(Samples(logits, target.to(logits.device)), scores=True)
    numbers = {"confidence": stats.confidence, "right": stats.right, "nll": stats.nll, "brier": stats.brier}
    if state.decade is not None:
        numbers["predicted"] = stats.predicted
    return {name: torch.from_numpy(column) for name, column in numbers.items()}
