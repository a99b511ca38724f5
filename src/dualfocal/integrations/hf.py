"""Losses and calibration metrics for the ``Trainer`` of Hugging Face (``pip install "dualfocal[hf]"``).

``Trainer(compute_loss_func=loss_func(DualFocalLoss()), compute_metrics=compute_metrics)`` trains and evaluates a
classifier; see ``docs/frameworks.md`` for complete scripts. Nothing here imports transformers.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal._checks import check_choice
from dualfocal.losses import DualFocalLoss
from dualfocal.metrics import evaluate
from dualfocal.metrics.bins import from_units
from dualfocal.metrics.rows import Array, as_rows, as_tensor
from dualfocal.metrics.scan import scan

TASKS = ("classification", "causal_lm")
IGNORED = -100  # label that Trainer leaves out when it counts labels, and with which it pads
STATISTICS = ("confidence", "right", "nll", "brier")  # last dimension of lm_statistics


class EvalPrediction(Protocol):
    """What is used of ``transformers.EvalPrediction``."""

    predictions: Any
    label_ids: Any


def loss_func(criterion: nn.Module | None = None, *, task: str = "classification") -> "TrainerLoss":
    """Return a loss for ``Trainer(compute_loss_func=...)``.

    The loss is the sum of the criterion over all labels except -100, divided by ``num_items_in_batch``, the number of
    these labels in all batches of an optimizer step, on all devices. So gradient accumulation and several devices give
    the gradient of one large batch. (With ``average_tokens_across_devices=False``, Trainer counts the labels of each
    device alone, and the devices are averaged.) A criterion that depends on the batch as a whole, such as
    :class:`~dualfocal.MMCELoss`, is averaged over the batches instead.

    Trainer ignores ``label_smoothing_factor`` if it has such a loss: use ``DualFocalLoss(label_smoothing=...)``. With
    class weights in the criterion, the sum is weighted, but the denominator is still the number of labels. The
    auxiliary loss of a mixture of experts is not added.

    Args:
        criterion: a loss of this package or of torch, with ``reduction="mean"`` and ``ignore_index=-100`` (None:
            ``DualFocalLoss()``).
        task: ``"classification"`` of sequences, images, tokens or masked tokens: logits ``(..., C)``, labels ``(...)``;
            or ``"causal_lm"``: the same for tokens, where the label of a position is the next token.

    Returns:
        A function of ``(outputs, labels, num_items_in_batch=None)``, which can be pickled. Without
        ``num_items_in_batch``, the loss is divided by the number of labels of the batch.

    Raises:
        TypeError: the criterion is not a Module with a ``reduction``.
        ValueError: an option of the criterion or the task is invalid.

    >>> import torch
    >>> outputs = {"logits": torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])}
    >>> compute_loss = loss_func(DualFocalLoss(gamma=2.0))
    >>> compute_loss(outputs, torch.tensor([0, 1]))
    tensor(0.0746)
    >>> compute_loss(outputs, torch.tensor([0, 1]), num_items_in_batch=4)  # half of the labels of a step
    tensor(0.0373)
    """
    return TrainerLoss(criterion, task=task)


class TrainerLoss:
    """A loss for ``Trainer(compute_loss_func=...)``, made by :func:`loss_func`.

    Args:
        criterion: see :func:`loss_func`.
        task: see :func:`loss_func`.
    """

    def __init__(self, criterion: nn.Module | None = None, *, task: str = "classification") -> None:
        check_choice("task", task, TASKS)
        criterion = DualFocalLoss() if criterion is None else criterion
        _check_criterion(criterion)
        self.task = task
        # A shallow copy shares parameters and buffers with the caller's criterion, whose update() must have an effect.
        self.criterion = copy.copy(criterion)
        self.criterion.reduction = "sum"  # type: ignore[assignment]

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | float | None = None
    ) -> Tensor:
        """Return the summed loss divided by the number of labels.

        Args:
            outputs: what the model returns: its logits are ``outputs["logits"]``, or ``outputs[0]`` of a tuple.
            labels: class indices, -100 for those to leave out, or class probabilities of the shape of the logits.
            num_items_in_batch: number of labels of the optimizer step (None: those of this batch).

        Raises:
            ValueError: labels are missing, do not fit the logits, or belong to a multi-label or regression problem.
        """
        _check_kind(outputs, self.task)
        logits = _logits(outputs)
        if labels is None:
            raise ValueError(
                'labels is None: Trainer takes them from the column "labels" of the data set, so rename yours to it'
            )
        labels = labels.to(logits.device)
        if self.task == "causal_lm":  # as in transformers; slices of the logits would be a copy of them
            labels = nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]
        _check_labels(logits, labels)
        soft = labels.is_floating_point()
        num_classes = logits.shape[-1]
        labels = labels.reshape(-1, num_classes) if soft else labels.reshape(-1)
        total: Tensor = self.criterion.to(logits.device)(logits.reshape(-1, num_classes), labels)
        if num_items_in_batch is None:
            return total / (len(labels) if soft else (labels != IGNORED).sum().clamp_min(1))
        if isinstance(num_items_in_batch, Tensor):
            # Under nn.DataParallel, these are as many equal numbers as there are GPUs, and Trainer multiplies the loss
            # by the number of GPUs, although it contains the samples of all of them.
            num_items = num_items_in_batch.to(logits.device).sum().clamp_min(1)
        else:
            num_items = total.new_tensor(max(num_items_in_batch, 1))  # 0 if no sample of the step has a label
        # Trainer counts each entry of the labels, also of class probabilities.
        return total / (num_items / num_classes if soft else num_items)


def _check_criterion(criterion: nn.Module) -> None:
    if not isinstance(criterion, nn.Module) or not hasattr(criterion, "reduction"):
        hint = f": pass {criterion.__name__}(), not the class" if isinstance(criterion, type) else ""
        raise TypeError(
            f"criterion must be a Module with a reduction, such as DualFocalLoss(), got {criterion!r}{hint}"
        )
    if isinstance(criterion, nn.BCEWithLogitsLoss | nn.BCELoss | nn.MSELoss | nn.L1Loss):
        raise ValueError(f"criterion must be a loss of logits and class indices, got {type(criterion).__name__}")
    if criterion.reduction != "mean":
        raise ValueError(
            f'criterion must have reduction="mean", got {criterion.reduction!r}: the sum over a step is divided by the '
            "number of its labels in any case"
        )
    if trained := [name for name, parameter in criterion.named_parameters() if parameter.requires_grad]:
        raise ValueError(
            f"criterion must not have parameters, got {trained[0]}: Trainer trains those of the model only"
        )
    if (ignore_index := getattr(criterion, "ignore_index", IGNORED)) != IGNORED:
        raise ValueError(
            f"criterion must have ignore_index={IGNORED}, got {ignore_index}: Trainer counts all labels except "
            f"{IGNORED}; set the labels to leave out to {IGNORED}"
        )


def _check_kind(outputs: Any, task: str) -> None:
    """Raise a ValueError if the model's outputs are those of another task: their shapes would be valid."""
    kind = type(outputs).__name__
    if task == "classification" and "CausalLM" in kind:
        raise ValueError(f'the model is a causal language model ({kind}): use loss_func(..., task="causal_lm")')
    if task == "causal_lm" and ("Classifier" in kind or kind.startswith(("MaskedLM", "Seq2Seq"))):
        raise ValueError(
            f'the model is not a causal language model ({kind}): use loss_func(..., task="classification")'
        )


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise ValueError(f"the outputs of the model must have logits, but they are {', '.join(outputs)}")
        logits = outputs["logits"]
    else:
        logits = outputs[0] if isinstance(outputs, tuple | list) else getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the logits of the model must be a tensor of shape (..., C), got {shape}")
    return logits


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    """Raise a ValueError unless there is one class index or distribution for each row of logits."""
    shape, expected = tuple(labels.shape), tuple(logits.shape[:-1])
    if logits.shape[-1] == 1:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} have one class: load the model with num_labels=2 for a binary "
            "problem; regression is not supported"
        )
    if labels.is_floating_point() and labels.shape == logits.shape:
        if not bool(((labels.float().sum(-1) - 1).abs() < 1e-2).all() & (labels >= 0).all()):
            raise ValueError(
                "labels of the shape of the logits must be class probabilities that sum to 1. Multi-label problems "
                "have no softmax over classes, and so no rival p_j: train them with the loss of the model"
            )
    elif labels.is_floating_point() or labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels for logits of shape {tuple(logits.shape)} must be class indices of shape {expected}, got "
            f"{labels.dtype} of shape {shape} (one-hot labels: labels.argmax(-1); multi-label problems: train them "
            "with the loss of the model, as dual focal loss has no rival p_j there)"
        )


def compute_metrics(
    eval_prediction: EvalPrediction, *, num_bins: int = 15, inference: bool = False, seed: int = 0
) -> dict[str, float]:
    """Compute error, NLL, Brier score, ECE and the other metrics, for ``Trainer(compute_metrics=...)``.

    Trainer puts ``eval_`` in front of the names. It maximises a metric by default: with
    ``metric_for_best_model="nll"``, set ``greater_is_better=False``. Set options by
    ``functools.partial(compute_metrics, inference=True)``.

    Trainer keeps the logits of all samples. For language models, use :func:`compute_lm_metrics`.

    Args:
        eval_prediction: predictions and labels from Trainer. If the model returns several arrays, the first one holds
            the logits. Labels of -100 are left out.
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


def _batches(eval_prediction: EvalPrediction) -> list[tuple[Array, Array]]:
    """Pairs of predictions and labels: one, or one per batch with ``eval_do_concat_batches=False``."""
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
            "labels.argmax(-1); multi-label problems: evaluate each label on its own)"
        )
    return logits.reshape(-1, logits.shape[-1]), target.reshape(-1)


def lm_statistics(logits: Tensor | Sequence[Tensor], labels: Tensor) -> Tensor:
    """Reduce the logits of a causal language model to four numbers per token, so that Trainer can keep them.

    For ``Trainer(preprocess_logits_for_metrics=lm_statistics, compute_metrics=compute_lm_metrics)``.

    Args:
        logits: logits, shape ``(N, T, V)``; of a tuple, the first tensor.
        labels: tokens, shape ``(N, T)``; the logits of a position predict the next token.

    Returns:
        Confidence, whether the prediction is right, NLL and Brier score of each token, shape ``(N, T, 4)``, float64
        (float32 on mps); -100 where there is no label.

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
    dtype = torch.float32 if logits.device.type == "mps" else torch.float64
    numbers = torch.full((len(labels), len(STATISTICS)), float(IGNORED), dtype=dtype, device=logits.device)
    if bool(keep.any()):
        rows = as_rows(logits.reshape(-1, logits.shape[-1])[keep], labels[keep], input="logits")
        stats = scan(rows, scores=True)
        columns = (from_units(stats.confidence), stats.right, stats.nll, stats.brier)
        numbers[keep] = torch.stack([column.to(dtype) for column in columns], dim=1)
    return numbers.view(*logits.shape[:2], len(STATISTICS))


def compute_lm_metrics(
    eval_prediction: EvalPrediction, *, num_bins: int = 15, inference: bool = False, seed: int = 0
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
