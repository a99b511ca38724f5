"""ResNets for small images: ResNet-50, the wide-bottleneck "ResNet-110" of the calibration papers, and Tiny-ImageNet's.

He et al., CVPR 2016, arXiv:1512.03385, with a 3x3 stem of stride 1 and no max-pooling.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from dualfocal_lab.models._common import AveragePool, conv1x1, conv3x3, he_normal_
from dualfocal_lab.models.normalization import normalize, normalize_for_two

Pair = tuple[Tensor, Tensor]  # the same image twice, for the branch and the shortcut of the next block


def resnet50(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """ResNet-50 for 32x32 images, 23,520,842 parameters for 10 classes. Default initialisation of torch.

    Args:
        num_classes: number of classes.
        in_channels: number of image channels.

    Returns:
        A network that maps (N, in_channels, height, width) to logits (N, num_classes).

    >>> import torch
    >>> with torch.device("meta"):
    ...     net = resnet50()
    >>> sum(p.numel() for p in net.parameters())
    23520842
    """
    return _bottlenecks((3, 4, 6, 3), num_classes, in_channels)


def resnet110(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """ResNet-110 of Mukhoti et al. and the dual focal paper: 26 bottlenecks in stage three, 45,864,522 parameters.

    It is not the ResNet-110 of He et al. with 1.7 M parameters; ``resnet110_kde`` is similar to that one. See
    :func:`resnet50` for the arguments.
    """
    return _bottlenecks((3, 4, 26, 3), num_classes, in_channels)


def tiny_resnet50(*, num_classes: int = 200, in_channels: int = 3) -> nn.Module:
    """ResNet-50 for the 64x64 images of Tiny-ImageNet, 25,138,952 parameters for 200 classes.

    Like :func:`resnet50`, but the last 8x8 feature maps are pooled to 2x2, so the linear layer has 8192 inputs.
    Convolutions are initialised from N(0, 2 / (k * k * out)). See :func:`resnet50` for the arguments.
    """
    return he_normal_(_bottlenecks((3, 4, 6, 3), num_classes, in_channels, grid=2))


def _bottlenecks(depths: Sequence[int], num_classes: int, in_channels: int, grid: int = 1) -> "ResNet":
    return ResNet(
        Bottleneck, 64, (256, 512, 1024, 2048), depths, num_classes=num_classes, in_channels=in_channels, grid=grid
    )


class ResNet(nn.Module):
    """Stem, stages of post-activation blocks that halve the image size, average pooling, linear layer.

    Args:
        block: function that builds a block from (in_channels, out_channels, stride).
        stem: number of channels of the first convolution.
        widths: number of output channels of each stage.
        depths: number of blocks in each stage.
        num_classes: number of classes.
        in_channels: number of image channels.
        grid: size of the feature maps after pooling.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        stem: int,
        widths: Sequence[int],
        depths: Sequence[int],
        *,
        num_classes: int,
        in_channels: int,
        grid: int = 1,
    ) -> None:
        super().__init__()
        self.stem = Stem(conv3x3(in_channels, stem), nn.BatchNorm2d(stem), nn.ReLU())
        self.stages = nn.Sequential()
        for channels, width, depth in zip((stem, *widths), widths, depths, strict=False):
            first = block(channels, width, 2 if len(self.stages) else 1)
            self.stages.append(nn.Sequential(first, *(block(width, width, 1) for _ in range(depth - 1))))
        self.pool, self.fc = AveragePool(grid), nn.Linear(widths[-1] * grid**2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, num_classes) of images (N, in_channels, height, width)."""
        last, _ = self.stages(self.stem(x))
        logits: Tensor = self.fc(self.pool(last))
        return logits


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions; the 3x3 has a quarter of the channels and the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        inner = out_channels // 4
        self.conv1, self.bn1 = conv1x1(in_channels, inner), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv3x3(inner, inner, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv1x1(inner, out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, both: Pair) -> Pair:
        """Apply the block; see :func:`~dualfocal_lab.models.normalization.normalize_for_two` for the pairs."""
        branch = normalize(self.bn1, self.conv1(both[0]))
        branch = normalize(self.bn2, self.conv2(branch))
        return normalize_for_two(self.bn3, self.conv3(branch), self.shortcut(both[1]))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; the first has the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels)
        self.conv2, self.bn2 = conv3x3(out_channels, out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, both: Pair) -> Pair:
        """Apply the block, like :class:`Bottleneck`."""
        branch = normalize(self.bn1, self.conv1(both[0]))
        return normalize_for_two(self.bn2, self.conv2(branch), self.shortcut(both[1]))


class Stem(nn.Sequential):
    """Convolution, batch norm and ReLU."""

    def forward(self, x: Tensor) -> Pair:
        """Compute the input of the first block."""
        return normalize_for_two(self[1], self[0](x))


class Projection(nn.Sequential):
    """Convolution and batch norm of a shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply both in sequence."""
        return normalize(self[1], self[0](x), relu=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if in_channels == out_channels and stride == 1:
        return nn.Identity()
    return Projection(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))
