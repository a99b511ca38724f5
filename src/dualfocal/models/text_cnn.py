"""The convolutional net for 20 Newsgroups."""

from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal.models._common import check_sizes

MIN_LENGTH = 21  # three convolutions and two poolings of width 5 take 4 words each


def text_cnn(*, num_classes: int = 20, in_channels: int = 100) -> nn.Module:
    """Three convolutions of width 5 over embedded words, 247,316 parameters for 20 classes.

    Torch's own initial weights. The word vectors are no part of the net: they are frozen, the data look them up.

    Args:
        num_classes: width of the logits.
        in_channels: width of the word vectors.

    Returns:
        A net from (N, in_channels, length), length at least 21, to (N, num_classes).

    >>> import torch
    >>> text_cnn()(torch.zeros(2, 100, 1000)).shape
    torch.Size([2, 20])
    """
    return TextCNN(num_classes, in_channels)


class TextCNN(nn.Module):
    """See :func:`text_cnn`."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        check_sizes(num_classes, in_channels)
        self.features = nn.Sequential(
            *(nn.Conv1d(in_channels, 128, 5), nn.ReLU(), nn.MaxPool1d(5, stride=1)),
            *(nn.Conv1d(128, 128, 5), nn.ReLU(), nn.MaxPool1d(5, stride=1)),
            *(nn.Conv1d(128, 128, 5), nn.ReLU()),
        )
        self.hidden = nn.Linear(128, 128)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, num_classes) of embedded words (N, in_channels, length)."""
        if x.shape[-1] < MIN_LENGTH:
            raise ValueError(f"text_cnn needs texts of at least {MIN_LENGTH} words, got {x.shape[-1]}: pad them")
        features = self.features(x).amax(dim=-1)  # (N, 128)
        logits: Tensor = self.fc(self.dropout(F.relu(self.hidden(features))))
        return logits
