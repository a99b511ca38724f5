"""Wide ResNets: 26-10, post-activation, of the paper's tables, and 34-10, pre-activation, of the KDE comparison.

Zagoruyko and Komodakis, BMVC 2016, arXiv:1605.07146.
"""

from torch import nn

from dualfocal.models._common import he_normal_
from dualfocal.models.preact_resnet import PreActResNet
from dualfocal.models.resnet import BasicBlock, ResNet

WIDTHS = (160, 320, 640)  # ten times 16, 32, 64


def wide_resnet26_10(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Wide-ResNet-26-10 of Mukhoti et al., 36,481,434 parameters for 10 classes: four blocks a stage, no dropout.

    Unlike Zagoruyko's it activates after the sum, and batch norm follows the 1x1 shortcuts. Convolutions start from
    N(0, 2 / (k * k * out)). Arguments as :func:`~dualfocal.models.resnet.resnet50`.
    """
    return he_normal_(ResNet(BasicBlock, 16, WIDTHS, (4, 4, 4), num_classes=num_classes, in_channels=in_channels))


def wide_resnet34_10(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Wide-ResNet-34-10, 46,160,474 parameters for 10 classes: five pre-activation blocks a stage, no dropout.

    The depth counts 31 convolutions and 3 projections. Convolutions start from N(0, 2 / (k * k * out)). Arguments as
    :func:`~dualfocal.models.resnet.resnet50`.
    """
    return he_normal_(PreActResNet(WIDTHS, 5, num_classes=num_classes, in_channels=in_channels))
