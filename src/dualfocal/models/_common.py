"""What nets share: checks of arguments, convolutions, pooling, initial weights."""

import math
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

Net = TypeVar("Net", bound=nn.Module)


def check_sizes(num_classes: int, in_channels: int = 1) -> None:
    """Refuse sizes that no net can have."""
    for name, value in (("num_classes", num_classes), ("in_channels", in_channels)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


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

    def extra_repr(self) -> str:
        """For ``repr``."""
        return f"grid={self.grid}"
