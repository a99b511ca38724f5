"""What nets share: convolutions, pooling, initial weights, and how a net of pre-activation blocks ends."""

import math
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal.models.normalization import normalize

Net = TypeVar("Net", bound=nn.Module)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A projection without bias: batch norm follows, or has been before."""
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps height and width at stride 1."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def he_normal_(net: Net) -> Net:
    """Draw every convolution's weights anew from N(0, 2 / (k * k * out)). He et al., ICCV 2015, arXiv:1502.01852.

    The linear layer keeps torch's own draws, batch norm its ones and zeros.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            height, width = module.kernel_size
            nn.init.normal_(module.weight, std=math.sqrt(2 / (height * width * module.out_channels)))
    return net


class AveragePool(nn.Module):
    """The values of ``nn.AdaptiveAvgPool2d(grid)``, flattened: (N, channels, height, width) -> (N, channels * grid^2).

    Where the grid divides the image, the plain pooling stands in: its gradient on CUDA is the same in every run, and
    ``torch.use_deterministic_algorithms`` accepts it.
    """

    def __init__(self, grid: int = 1) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        """Average over grid x grid parts of the image."""
        height, width = x.shape[-2:]
        if height % self.grid or width % self.grid:
            return F.adaptive_avg_pool2d(x, self.grid).flatten(-3)
        return F.avg_pool2d(x, (height // self.grid, width // self.grid)).flatten(-3)


class PreActNet(nn.Module):
    """A stem, blocks that activate before they convolve, batch norm, ReLU, average pooling, a linear layer."""

    def __init__(self, stem: nn.Module, blocks: nn.Sequential, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem, self.blocks, self.bn = stem, blocks, nn.BatchNorm2d(channels)
        self.pool, self.fc = AveragePool(), nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, num_classes) of images (N, in_channels, height, width)."""
        logits: Tensor = self.fc(self.pool(normalize(self.bn, self.blocks(self.stem(x)))))
        return logits
