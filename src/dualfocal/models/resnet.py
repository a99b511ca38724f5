"""ResNets for small images: ResNet-50, the wide-bottleneck "ResNet-110" of the calibration papers, and Tiny-ImageNet's.

He et al., CVPR 2016, arXiv:1512.03385, with a 3x3 stem of stride 1 and no max-pooling.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from dualfocal.models._common import AveragePool, conv1x1, conv3x3, he_normal_
from dualfocal.models.normalization import normalize, normalize_for_two

Pair = tuple[Tensor, Tensor]  # what a block takes and gives: the same image for its branch and for its shortcut


def resnet50(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """ResNet-50 for 32x32 images, 23,520,842 parameters for 10 classes. Torch's own initial weights.

    Args:
        num_classes: width of the logits.
        in_channels: of the image.

    Returns:
        A net from (N, in_channels, height, width) to (N, num_classes).

    >>> import torch
    >>> with torch.device("meta"):
    ...     net = resnet50()
    >>> sum(p.numel() for p in net.parameters())
    23520842
    """
    return _bottlenecks((3, 4, 6, 3), num_classes, in_channels)


def resnet110(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """ResNet-110 of Mukhoti et al. and the dual focal paper: 26 bottlenecks in stage three, 45,864,522 parameters.

    It is not He's ResNet-110 of 1.7 M, for which see ``resnet110_kde``. Arguments as :func:`resnet50`.
    """
    return _bottlenecks((3, 4, 26, 3), num_classes, in_channels)


def tiny_resnet50(*, num_classes: int = 200, in_channels: int = 3) -> nn.Module:
    """ResNet-50 for the 64x64 images of Tiny-ImageNet, 25,138,952 parameters for 200 classes.

    The body of :func:`resnet50`; the last 8x8 are pooled to 2x2, so the linear layer reads 8192 values. Convolutions
    start from N(0, 2 / (k * k * out)). Arguments as :func:`resnet50`.
    """
    return he_normal_(_bottlenecks((3, 4, 6, 3), num_classes, in_channels, grid=2))


def _bottlenecks(depths: Sequence[int], num_classes: int, in_channels: int, grid: int = 1) -> "ResNet":
    return ResNet(
        Bottleneck, 64, (256, 512, 1024, 2048), depths, num_classes=num_classes, in_channels=in_channels, grid=grid
    )


class ResNet(nn.Module):
    """A stem, stages of post-activation blocks that halve the image between them, average pooling, a linear layer.

    Args:
        block: makes a block from (in_channels, out_channels, stride).
        stem: channels of the first convolution.
        widths: channels that leave each stage.
        depths: blocks of each stage.
        num_classes: width of the logits.
        in_channels: of the image.
        grid: the image is averaged to grid x grid.
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
        """Logits (N, num_classes) of images (N, in_channels, height, width)."""
        last, _ = self.stages(self.stem(x))
        logits: Tensor = self.fc(self.pool(last))
        return logits


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, a quarter as wide inside as outside; the 3x3 carries the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        inner = out_channels // 4
        self.conv1, self.bn1 = conv1x1(in_channels, inner), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = conv3x3(inner, inner, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = conv1x1(inner, out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, both: Pair) -> Pair:
        """One block, for an image twice; see :func:`~dualfocal.models.normalization.normalize_for_two`."""
        branch = normalize(self.bn1, self.conv1(both[0]))
        branch = normalize(self.bn2, self.conv2(branch))
        return normalize_for_two(self.bn3, self.conv3(branch), self.shortcut(both[1]))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; the first carries the stride."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels)
        self.conv2, self.bn2 = conv3x3(out_channels, out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, both: Pair) -> Pair:
        """One block, as :class:`Bottleneck`."""
        branch = normalize(self.bn1, self.conv1(both[0]))
        return normalize_for_two(self.bn2, self.conv2(branch), self.shortcut(both[1]))


class Stem(nn.Sequential):
    """A convolution, batch norm, ReLU."""

    def forward(self, x: Tensor) -> Pair:
        """For the first block."""
        return normalize_for_two(self[1], self[0](x))


class Projection(nn.Sequential):
    """A convolution and batch norm."""

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        return normalize(self[1], self[0](x), relu=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    if in_channels == out_channels and stride == 1:
        return nn.Identity()
    return Projection(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))
