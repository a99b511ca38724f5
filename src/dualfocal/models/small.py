"""A net that trains in seconds on a CPU, for examples and trials."""

from torch import nn

from dualfocal.models._common import AveragePool, check_sizes


def small_cnn(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Two convolutions and two linear layers: 38,282 parameters for 10 classes and 1 channel.

    Images of any size from 2x2 are pooled to 4x4. Arguments as :func:`~dualfocal.models.resnet.resnet50`.
    """
    check_sizes(num_classes, in_channels)
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), AveragePool(4)),
        *(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes)),
    )
