"""Small networks: one for 20 Newsgroups, and one that trains in seconds on a CPU."""

from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal.models._common import AveragePool

MIN_LENGTH = 21  # minimum number of words: three convolutions and two poolings of width 5 remove 4 words each


def small_cnn(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Two convolutions and two linear layers: 38,282 parameters for 10 classes and 1 channel.

    Images of at least 2x2 are pooled to 4x4. See :func:`~dualfocal.models.resnet.resnet50` for the arguments.
    """
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), AveragePool(4)),
        *(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes)),
    )


class TextCNN(nn.Module):
    """Three convolutions of width 5 over embedded words, 247,316 parameters for 20 classes.

    Default initialisation of torch. The frozen word vectors are not part of the network, but of the data.

    Args:
        num_classes: number of classes.
        in_channels: dimension of the word vectors.

    >>> import torch
    >>> TextCNN()(torch.zeros(2, 100, 1000)).shape
    torch.Size([2, 20])
    """

    def __init__(self, *, num_classes: int = 20, in_channels: int = 100) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv1d(in_channels, 128, 5), nn.ReLU(), nn.MaxPool1d(5, stride=1)),
            *(nn.Conv1d(128, 128, 5), nn.ReLU(), nn.MaxPool1d(5, stride=1)),
            *(nn.Conv1d(128, 128, 5), nn.ReLU()),
        )
        self.hidden, self.dropout, self.fc = nn.Linear(128, 128), nn.Dropout(0.3), nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (N, num_classes) of embedded words (N, in_channels, length), with at least 21 words."""
        if x.shape[-1] < MIN_LENGTH:
            raise ValueError(
                f"text_cnn needs texts of at least {MIN_LENGTH} words, got {x.shape[-1]}; pad shorter texts"
            )
        features = self.features(x).amax(dim=-1)  # (N, 128)
        logits: Tensor = self.fc(self.dropout(F.relu(self.hidden(features))))
        return logits
