"""Calibration metrics for the ``Trainer`` of Hugging Face."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal.integrations.hf._token_batches import IGNORED
from dualfocal.metrics import evaluate
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan

STATISTICS = ("confidence", "right", "nll", "brier")  # last dimension of lm_statistics


class EvalPrediction(Protocol):
    """What is used of ``transformers.EvalPrediction``."""

    predictions: Any
    label_ids: Any


def compute_metrics(
    eval_prediction: EvalPrediction | tuple[Any, Any], *, num_bins: int = 15, inference: bool = False, seed: int = 0
) -> dict[str, float]:
    """Compute error, NLL, Brier score, ECE and the other metrics, for ``Trainer(compute_metrics=...)``.

    Trainer puts ``eval_`` in front of the names. It maximises a metric by default: with
    ``metric_for_best_model="nll"``, set ``greater_is_better=False``. Set options by
    ``functools.partial(compute_metrics, inference=True)``.

    Trainer keeps the logits of all samples. For language models, use :func:`compute_lm_metrics`.

    Args:
        eval_prediction: predictions and labels from Trainer, also as a pair. If the model returns several arrays, the
            first one holds the logits. Labels of -100 are left out.
        num_bins: number of bins of the calibration errors.
        inference: whether to add noise floors, p-values and an interval, see :func:`~dualfocal.metrics.evaluate`.
        seed: seed of the draws for ``inference``.

    Returns:
        The scalars of :meth:`Evaluation.scalars <dualfocal.Evaluation.scalars>`, as fractions.

    Raises:
        ValueError: predictions and labels do not fit each other, or no label is left.

    >>> from types import SimpleNamespace
    >>> prediction = SimpleNamespace(predictions=[[2.0, 0.0], [0.0, 1.0]], label_ids=[0, 0])
    >>> compute_metrics(prediction)["error"]
    0.5
    """
    pairs = _batches(eval_prediction)
    parts = [_rows(predictions, labels) for predictions, labels in pairs]
    logits, target = (torch.cat([part[i] for part in parts]) for i in range(2))
    return evaluate(logits, target, num_bins=num_bins, inference=inference, seed=seed).scalars()


def _batches(eval_prediction: EvalPrediction | tuple[Any, Any]) -> list[tuple[Array, Array]]:
    """Pairs of predictions and labels: one, or one per batch with ``eval_do_concat_batches=False``."""
    if isinstance(eval_prediction, tuple | list) and len(eval_prediction) == 2:
        predictions, labels = eval_prediction
    else:
        predictions, labels = eval_prediction.predictions, eval_prediction.label_ids
    if labels is None:
        raise ValueError('there are no labels: the data set for evaluation needs a column "labels"')
    if isinstance(predictions, list) and isinstance(labels, list) and labels and np.ndim(labels[0]) > 0:
        return list(zip(map(_first, predictions), map(_first, labels), strict=True))
    return [(_first(predictions), _first(labels))]


def _first(arrays: Any) -> Array:
    """Return the logits of a model that returns several arrays; the array of others."""
    array: Array = arrays[0] if isinstance(arrays, tuple) else arrays
    return array


def _rows(predictions: Array, labels: Array) -> tuple[Tensor, Tensor]:
    """Return logits (..., C) and labels (...) as rows."""
    logits, target = as_tensor("logits", predictions), as_tensor("target", labels)
    if logits.ndim < 2 or target.is_floating_point() or target.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels for predictions of shape {tuple(logits.shape)} must be class indices of shape "
            f"{tuple(logits.shape[:-1])}, got {target.dtype} of shape {tuple(target.shape)} (one-hot labels: "
            "labels.argmax(-1); multi-label problems: dualfocal.evaluate(..., task='multilabel'))"
        )
    return logits.reshape(-1, logits.shape[-1]), target.reshape(-1)


def lm_statistics(logits: Tensor | Sequence[Tensor], labels: Tensor) -> Tensor:
    """Reduce the logits of a causal language model to four numbers per token, so that Trainer can keep them.

    For ``Trainer(preprocess_logits_for_metrics=lm_statistics, compute_metrics=compute_lm_metrics)``.

    Args:
        logits: logits, shape ``(N, T, V)``; of a tuple, the first tensor.
        labels: tokens, shape ``(N, T)``; the logits of a position predict the next token.

    Returns:
        Confidence, whether the prediction is right, NLL and Brier score of each token, shape ``(N, T, 4)``, float64;
        -100 where there is no label.

    Raises:
        ValueError: the shapes do not fit each other, or logits are NaN or infinite.

    >>> import torch
    >>> lm_statistics(torch.tensor([[[0.0, 0.0], [2.0, 0.0]]]), torch.tensor([[0, 1]]))[0, 0]
    tensor([0.5000, 0.0000, 0.6931, 0.5000], dtype=torch.float64)
    """
    logits = logits if isinstance(logits, Tensor) else logits[0]
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"logits must have shape (N, T, V) and labels (N, T), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    labels = nn.functional.pad(labels.to(logits.device), (0, 1), value=IGNORED)[:, 1:].reshape(-1)
    keep = labels != IGNORED
    numbers = torch.full((len(labels), len(STATISTICS)), float(IGNORED), dtype=torch.float64, device=logits.device)
    if bool(keep.any()):
        samples = Samples.from_arrays(logits.reshape(-1, logits.shape[-1])[keep], labels[keep], input="logits")
        stats = scan(samples, scores=True)
        columns = (stats.confidence, stats.right, stats.nll, stats.brier)
        numbers[keep] = torch.from_numpy(np.stack(columns, axis=1)).to(numbers.device)
    return numbers.view(*logits.shape[:2], len(STATISTICS))


def compute_lm_metrics(
    eval_prediction: EvalPrediction | tuple[Any, Any], *, num_bins: int = 15, inference: bool = False, seed: int = 0
) -> dict[str, float]:
    """Compute calibration metrics of next-token predictions from :func:`lm_statistics`.

    Args:
        eval_prediction: the result of :func:`lm_statistics` as predictions; the labels are not used.
        num_bins: see :func:`compute_metrics`.
        inference: see :func:`compute_metrics`.
        seed: see :func:`compute_metrics`.

    Returns:
        The metrics of :func:`compute_metrics`, without those that need the probabilities of all tokens (classwise ECE
        and its test). The logarithm of the perplexity is ``nll``.

    Raises:
        ValueError: the predictions are not from :func:`lm_statistics`, or there are no labels.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> logits, labels = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]]), torch.tensor([[0, 1]])
    >>> compute_lm_metrics(SimpleNamespace(predictions=lm_statistics(logits, labels), label_ids=labels))["ece"]
    0.5
    """
    parts = [as_tensor("predictions", predictions) for predictions, _ in _batches(eval_prediction)]
    if any(part.ndim != 3 or part.shape[-1] != len(STATISTICS) for part in parts):
        raise ValueError(
            f"predictions must have shape (N, T, {len(STATISTICS)}), got {tuple(parts[0].shape)}: pass "
            "preprocess_logits_for_metrics=lm_statistics to Trainer"
        )
    numbers = torch.cat([part.reshape(-1, len(STATISTICS)) for part in parts])
    numbers = numbers[numbers[:, 0] != IGNORED]
    if not len(numbers):
        raise ValueError(f"no labels: all are {IGNORED}")
    confidence, right, nll, brier = numbers.double().unbind(1)
    result = evaluate(
        confidence, right.long(), input="confidence", num_bins=num_bins, inference=inference, seed=seed
    ).scalars()
    scores = {"error": result.pop("error"), "nll": float(nll.mean()), "brier": float(brier.mean())}
    return {name: value for name, value in (scores | result).items() if np.isfinite(value)}
