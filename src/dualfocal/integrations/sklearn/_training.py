"""Training of a multilayer perceptron with any loss, in torch, without touching torch's global random state."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOLERANCE = 1e-4  # a loss that falls by less has converged, as in scikit-learn

Layers = list[tuple[Tensor, Tensor]]  # weight (inputs, outputs) and bias (outputs,) of each layer


@dataclass(frozen=True)
class Samples:
    """Features, class indices and weights of samples; the weights have mean 1."""

    features: Tensor  # (N, D)
    target: Tensor  # (N,) int64
    weight: Tensor | None  # (N,); None: all samples count the same

    def __len__(self) -> int:
        return len(self.target)

    def at(self, index: Tensor) -> "Samples":
        """Return a subset of the samples, whose weights are not normalised again."""
        weight = None if self.weight is None else self.weight[index]
        return Samples(self.features[index], self.target[index], weight)


@dataclass(frozen=True)
class Settings:
    """Settings of the training."""

    batch_size: int
    max_iter: int
    learning_rate: float
    alpha: float
    patience: int  # number of epochs without a lower validation NLL, or else training loss, that count as convergence


@dataclass(frozen=True)
class Trained:
    """Result of the training."""

    layers: Layers
    num_epochs: int
    loss_curve: list[float]
    validation_curve: list[float]  # NLL; empty without validation samples
    converged: bool


def new_layers(sizes: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Layers:
    """Create layers of these sizes: weights uniform with Glorot's variance, biases 0."""
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        weight = nn.init.xavier_uniform_(torch.empty(inputs, outputs, dtype=dtype), generator=generator)
        layers.append((weight.requires_grad_(), torch.zeros(outputs, dtype=dtype, requires_grad=True)))
    return layers


def forward(layers: Layers, features: Tensor) -> Tensor:
    """Return the logits, (N, C), with ReLU between the layers."""
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        features = torch.addmm(hidden_bias, features, hidden_weight).relu()
    return torch.addmm(bias, features, weight)


def train_layers(
    layers: Layers,
    criterion: nn.Module,
    samples: Samples,
    validation: Samples | None,
    settings: Settings,
    generator: torch.Generator,
) -> Trained:
    """Minimise mean loss + alpha / 2 * (sum of squared weights) with Adam.

    With validation samples, the layers of the epoch with the lowest validation NLL are returned, and a criterion with
    the method ``update`` adapts to them after each epoch.

    Raises:
        FloatingPointError: the loss or a weight is not finite.
    """
    parameters = [part for layer in layers for part in layer]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate, fused=True)
    best, best_epoch = layers, 0
    loss_curve: list[float] = []
    validation_curve: list[float] = []
    for epoch in range(1, settings.max_iter + 1):
        loss_curve.append(train_epoch(layers, criterion, samples, optimizer, settings, generator))
        if not (math.isfinite(loss_curve[-1]) and all(bool(part.isfinite().all()) for part in parameters)):
            raise FloatingPointError(f"the loss is {loss_curve[-1]:g} in epoch {epoch}, or a weight is not finite")
        if validation is None:
            continue
        with torch.no_grad():
            logits = forward(layers, validation.features)
        validation_curve.append(weighted_mean(F.cross_entropy(logits, validation.target, reduction="none"), validation))
        if validation_curve[-1] <= min(validation_curve):
            best, best_epoch = [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers], epoch
        elif epoch - best_epoch >= settings.patience:
            break
        if adapts(criterion):
            criterion.update(logits, validation.target)  # type: ignore[operator]
    if validation is None:
        converged = stalled(loss_curve, settings.patience)
    else:
        converged = len(loss_curve) - best_epoch >= settings.patience
    return Trained(best, len(loss_curve), loss_curve, validation_curve, converged)


def stalled(curve: list[float], epochs: int) -> bool:
    """Return whether the loss has not fallen by more than the tolerance in the last epochs."""
    return len(curve) > epochs and min(curve[-epochs:]) > min(curve[:-epochs]) - TOLERANCE


def train_epoch(
    layers: Layers,
    criterion: nn.Module,
    samples: Samples,
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    generator: torch.Generator,
) -> float:
    """Take one step for each batch, and return the mean loss, without the penalty."""
    total = 0.0
    for batch in batches(samples, settings.batch_size, generator):
        with torch.enable_grad():  # the caller may have switched it off
            loss = mean_loss(criterion, forward(layers, batch.features), batch)
            penalty = sum((weight.square().sum() for weight, _ in layers), start=loss.new_zeros(()))
            optimizer.zero_grad()
            (loss + settings.alpha / 2 * penalty).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item() * len(batch)
    return total / len(samples)


def batches(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Samples]:
    """Yield all samples in a random order; if one batch holds them all, in their own order."""
    if len(samples) <= batch_size:
        yield samples
        return
    order = torch.randperm(len(samples), generator=generator)
    for start in range(0, len(samples), batch_size):
        yield samples.at(order[start : start + batch_size])


def adapts(criterion: nn.Module) -> bool:
    """Return whether a loss adapts to validation data, like AdaFocal."""
    return callable(getattr(criterion, "update", None))


def mean_loss(criterion: nn.Module, logits: Tensor, samples: Samples) -> Tensor:
    """Return the weighted mean of the losses of the samples.

    Raises:
        ValueError: there are weights, but the loss is one number for all samples.
    """
    losses: Tensor = criterion(logits, samples.target)
    if samples.weight is None:
        return losses.mean()
    if losses.shape != samples.target.shape or not getattr(criterion, "per_sample", True):
        raise ValueError(
            f"{type(criterion).__name__} is computed over a whole batch, so samples and classes cannot have weights: "
            "leave sample_weight and class_weight out, or use a loss with one value per sample"
        )
    return (losses * samples.weight).mean()


def weighted_mean(values: Tensor, samples: Samples) -> float:
    """Return the mean of one value per sample, by the weights of the samples."""
    weight = torch.ones_like(values) if samples.weight is None else samples.weight
    return float((values * weight).sum() / weight.sum())
