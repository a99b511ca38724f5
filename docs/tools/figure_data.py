"""Data of the pictures of docs/concepts: runs in lab/results/, generated predictions, small networks."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dualfocal import LOSSES, Evaluation, TemperatureScaling
from dualfocal.metrics import ece
from dualfocal_lab.runs import Run

ROOT = Path(__file__).parents[2]


def cifar10_run(loss: str, seed: int = 1) -> Run:
    """Return a ResNet-50 of lab/results/cifar10."""
    return Run(ROOT / "lab" / "results" / "cifar10" / f"resnet50-{loss}-seed{seed}")


def scaled_run(run: Run) -> tuple[Tensor, Tensor]:
    """Return test logits divided by the temperature of the validation split, and the test labels."""
    logits, target = run.predictions("test")
    return TemperatureScaling().fit(*run.predictions("val"))(logits), target


def calibrated_model(num_samples: int, seed: int = 0, odds: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw logits of ten classes, and labels from their softmax, whose odds are multiplied by ``odds``."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_samples, 10, generator=generator)
    probs = logits.softmax(1) if odds is None else logits.softmax(1) * odds
    return logits, torch.multinomial(probs, 1, generator=generator)[:, 0]


def day_and_night(num_samples: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw confidences, whether each prediction is right, and its group: 0 is over-confident, 1 under-confident."""
    generator = torch.Generator().manual_seed(seed)
    confidence = 0.5 + 0.5 * torch.rand(num_samples, generator=generator)
    group = torch.arange(num_samples) % 2
    gap = 0.6 * torch.minimum(confidence - 0.5, 1 - confidence)  # opposite gaps, which cancel
    accuracy = confidence + torch.where(group == 0, -gap, gap)
    return confidence, (torch.rand(num_samples, generator=generator) < accuracy).long(), group


def digits_networks(
    loss: str, seed: int, noises: tuple[float, ...]
) -> tuple[float, dict[float, tuple[Tensor, Tensor]]]:
    """Train a small network on 400 digits with noise 0.5.

    Returns:
        The temperature of 400 validation digits, and logits and labels of 997 test digits at each noise.
    """
    pixels, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    clean, unit = torch.tensor(pixels).float() / 16, torch.randn(1797, 64, generator=generator)
    y, order = torch.tensor(labels), torch.randperm(1797, generator=generator)
    train, val, test = order[:400], order[400:800], order[800:]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.01), LOSSES[loss]()
    x = clean + 0.5 * unit
    for _ in range(25):
        for batch in train[torch.randperm(400)].split(100):
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        temperature = TemperatureScaling().fit(model(x[val]), y[val]).temperature
        return float(temperature), {s: (model(clean[test] + s * unit[test]), y[test]) for s in noises}


def class_gaps(logits: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence minus accuracy of the samples predicted as each class, and its standard error."""
    confidence, predicted = logits.softmax(1).max(1)
    gaps, errors = [], []
    for label in range(logits.shape[1]):
        chosen = confidence[predicted == label].double()
        right = (target[predicted == label] == label).double()
        gaps.append(float((chosen - right).mean()))
        errors.append(float((right.var() / len(right)) ** 0.5))
    return np.array(gaps), np.array(errors)


def floor_of(evaluation: Evaluation) -> float:
    """Return the noise floor of the ECE."""
    assert evaluation.inference is not None
    return evaluation.inference.floors["ece"].mean


def severity_errors(run: Run) -> list[float]:
    """Return the ECE in percent after temperature scaling on clean and on noisy test images of severity 1 to 5."""
    scaling, (logits, target) = TemperatureScaling().fit(*run.predictions("val")), run.predictions("test")
    noisy = [run.shifted_logits(severity) for severity in range(1, 6)]
    return [100 * ece(scaling(each.float()), target) for each in (logits, *noisy) if each is not None]
