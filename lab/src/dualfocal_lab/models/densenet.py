"""DenseNets for small images: DenseNet-121 of the paper's tables, DenseNet-40 of the comparison with KDE-XE.

Huang et al., CVPR 2017, arXiv:1608.06993, with a 3x3 stem of stride 1 and no max-pooling.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dualfocal_lab.models._common import PreActNet, conv1x1, conv3x3, he_normal_
from dualfocal_lab.models.normalization import normalize


def densenet121(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """DenseNet-121 for 32x32 images, growth 32, 6,956,298 parameters for 10 classes. Default initialisation of torch.

    See :func:`~dualfocal_lab.models.resnet.resnet50` for the arguments.
    """
    return DenseNet(
        64, 32, (6, 12, 24, 16), bottleneck=True, compression=0.5, num_classes=num_classes, in_channels=in_channels
    )


def densenet40(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """DenseNet-40, growth 12, 1,019,722 parameters for 10 classes: no bottlenecks, no compression, no dropout.

    Convolutions are initialised from N(0, 2 / (k * k * out)). See :func:`~dualfocal_lab.models.resnet.resnet50` for the
    arguments.
    """
    return he_normal_(
        DenseNet(
            16, 12, (12, 12, 12), bottleneck=False, compression=1.0, num_classes=num_classes, in_channels=in_channels
        )
    )


class DenseNet(PreActNet):
    """Dense blocks with transitions between them.

    Args:
        stem: number of channels of the first convolution.
        growth: number of channels added by each layer.
        depths: number of layers in each block.
        bottleneck: whether a 1x1 convolution reduces the input of each layer to ``4 * growth`` channels.
        compression: fraction of the channels kept by a transition.
        num_classes: number of classes.
        in_channels: number of image channels.
    """

    def __init__(
        self,
        stem: int,
        growth: int,
        depths: Sequence[int],
        *,
        bottleneck: bool,
        compression: float,
        num_classes: int,
        in_channels: int,
    ) -> None:
        first, blocks, channels = conv3x3(in_channels, stem), nn.Sequential(), stem
        for depth in depths:
            if len(blocks):  # transition: halves height and width
                kept = int(channels * compression)
                blocks.append(Activated(nn.BatchNorm2d(channels), nn.ReLU(), conv1x1(channels, kept), nn.AvgPool2d(2)))
                channels = kept
            layers = [DenseLayer(channels + growth * place, growth, bottleneck) for place in range(depth)]
            blocks.append(nn.Sequential(*layers))
            channels += growth * depth
        super().__init__(first, blocks, channels, num_classes)


class DenseLayer(nn.Module):
    """Batch norm, ReLU and 3x3 convolution, optionally after a 1x1 bottleneck; the output is appended to the input."""

    def __init__(self, in_channels: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        inner = 4 * growth if bottleneck else in_channels
        self.narrow = (
            Activated(nn.BatchNorm2d(in_channels), nn.ReLU(), conv1x1(in_channels, inner)) if bottleneck else None
        )
        self.bn, self.conv = nn.BatchNorm2d(inner), conv3x3(inner, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in_channels, height, width) to (N, in_channels + growth, height, width)."""
        inner = x if self.narrow is None else self.narrow(x)
        return torch.cat([x, self.conv(normalize(self.bn, inner))], dim=-3)


class Activated(nn.Sequential):
    """Batch norm and ReLU (fused if possible), followed by other modules."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the modules in sequence."""
        x = normalize(self[0], x)
        for module in list(self)[2:]:
            x = module(x)
        return x
