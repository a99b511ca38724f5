"""Pre-activation ResNets of the KDE calibration paper (ResNet-110, also with stochastic depth) and Wide-ResNets.

He et al., ECCV 2016, arXiv:1603.05027; Huang et al., ECCV 2016, arXiv:1603.09382.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dualfocal_lab.models._common import PreActNet, conv1x1, conv3x3, he_normal_
from dualfocal_lab.models.normalization import normalize
from dualfocal_lab.models.resnet import BasicBlock, ResNet


def resnet110_kde(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Pre-activation ResNet-110: 16, 32, 64 channels, 18 basic blocks per stage, 1,730,522 parameters for 10 classes.

    Convolutions are initialised from N(0, 2 / (k * k * out)). See :func:`~dualfocal_lab.models.resnet.resnet50` for the
    arguments.
    """
    return he_normal_(PreActResNet((16, 32, 64), 18, num_classes=num_classes, in_channels=in_channels))


def resnet110_sd(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """:func:`resnet110_kde` with stochastic depth: block l of 54 survives with probability 1 - l / 108.

    The number of parameters is the same. In training the branch of a block is kept or dropped for the whole batch; in
    evaluation it is scaled by the survival probability. A dropped branch is still computed, to avoid synchronising the
    device, so its batch norms are updated by every batch, unlike in Huang et al.
    """
    return he_normal_(
        PreActResNet((16, 32, 64), 18, num_classes=num_classes, in_channels=in_channels, last_survival=0.5)
    )


class PreActResNet(PreActNet):
    """A 3x3 stem with 16 channels, followed by stages of pre-activation blocks.

    Args:
        widths: number of channels of each stage.
        depth: number of blocks per stage.
        num_classes: number of classes.
        in_channels: number of image channels.
        last_survival: survival probability of the last block in training; it decreases linearly from 1 to this value.
    """

    def __init__(
        self, widths: Sequence[int], depth: int, *, num_classes: int, in_channels: int, last_survival: float = 1.0
    ) -> None:
        stem, blocks, channels = conv3x3(in_channels, 16), nn.Sequential(), 16
        for place, width in enumerate(width for width in widths for _ in range(depth)):
            survival = 1 - (1 - last_survival) * (place + 1) / (len(widths) * depth)
            blocks.append(PreActBlock(channels, width, 2 if place and place % depth == 0 else 1, survival))
            channels = width
        super().__init__(stem, blocks, channels, num_classes)


class PreActBlock(nn.Module):
    """Two times batch norm, ReLU and 3x3 convolution, with a 1x1 projection shortcut where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, survival: float = 1.0) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), conv3x3(in_channels, out_channels, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(out_channels), conv3x3(out_channels, out_channels)
        reshapes = in_channels != out_channels or stride != 1
        self.projection = conv1x1(in_channels, out_channels, stride) if reshapes else None
        self.survival = survival

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block. In training, one random draw decides for the whole batch."""
        active = normalize(self.bn1, x)
        shortcut = x if self.projection is None else self.projection(active)
        branch = self.conv2(normalize(self.bn2, self.conv1(active)))
        if self.survival < 1 and self.training:
            # Drawn on the device and never read here: no synchronisation, and each replay of a CUDA graph draws again.
            branch = branch * (torch.rand((), device=x.device) < self.survival)
        elif self.survival < 1:
            branch = branch * self.survival
        out: Tensor = shortcut + branch
        return out


WIDTHS = (160, 320, 640)  # 10 * (16, 32, 64)


def wide_resnet26_10(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Wide-ResNet-26-10 of Mukhoti et al., 36,481,434 parameters for 10 classes: four blocks per stage, no dropout.

    Unlike Zagoruyko's network, it activates after the sum, and batch norm follows the 1x1 shortcuts. Convolutions are
    initialised from N(0, 2 / (k * k * out)). See :func:`~dualfocal_lab.models.resnet.resnet50` for the arguments.
    """
    return he_normal_(ResNet(BasicBlock, 16, WIDTHS, (4, 4, 4), num_classes=num_classes, in_channels=in_channels))


def wide_resnet34_10(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Wide-ResNet-34-10, 46,160,474 parameters for 10 classes: five pre-activation blocks per stage, no dropout.

    The depth counts 31 convolutions and 3 projections. Convolutions are initialised from N(0, 2 / (k * k * out)). See
    :func:`~dualfocal_lab.models.resnet.resnet50` for the arguments.
    """
    return he_normal_(PreActResNet(WIDTHS, 5, num_classes=num_classes, in_channels=in_channels))
