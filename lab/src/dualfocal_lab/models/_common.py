"""Building blocks shared by the networks: convolutions, pooling, initialisation, pre-activation networks."""

import math
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.models.normalization import normalize

Net = TypeVar("Net", bound=nn.Module)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """1x1 convolution without bias."""
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """3x3 convolution without bias, padded to keep height and width at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def he_normal_(net: Net) -> Net:
    """Initialise all convolutions from N(0, 2 / (k * k * out)). He et al., ICCV 2015, arXiv:1502.01852.

    Linear layers and batch norm keep the default initialisation of torch.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, std=math.sqrt(2 / (height * width * module.out_channels)))
    return net


class AveragePool(nn.Module):
    """``nn.AdaptiveAvgPool2d(grid)``, flattened: (N, channels, height, width) -> (N, channels * grid^2).

    If the grid divides the image, plain average pooling is used instead, because its CUDA gradient is deterministic.
    """

    def __init__(self, grid: int = 1) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        """Average each of the grid x grid parts of the image."""
        height, width = x.shape[-2:]
        if height % self.grid or width % self.grid:
            return F.adaptive_avg_pool2d(x, self.grid).flatten(-3)
        return F.avg_pool2d(x, (height // self.grid, width // self.grid)).flatten(-3)


class PreActNet(nn.Module):
    """Pre-activation network: stem, blocks, batch norm, ReLU, average pooling, linear layer."""

    def __init__(self, stem: nn.Module, blocks: nn.Sequential, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.bn = stem, blocks, nn.BatchNorm2d(channels)
        self.pool, self.fc = AveragePool(), nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, num_classes) of images (N, in_channels, height, width)."""
        logits: Tensor = self.fc(self.pool(normalize(self.bn, self.blocks(self.stem(x)))))
        return logits
