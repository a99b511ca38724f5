"""The loss for the ``Trainer`` of Hugging Face."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dualfocal.checks import check_choice
from dualfocal.integrations.hf._token_batches import IGNORED
from dualfocal.losses import DualFocalLoss

TASKS = ("classification", "causal_lm")


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
                'labels is None: Trainer takes them from the column "labels" of the data set, so rename yours to it; '
                "labels that are texts are dropped by the data collator, so number the classes, 0, 1, ..."
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
