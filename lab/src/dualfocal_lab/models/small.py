"""Small networks: one for 20 Newsgroups, and one that trains in seconds on a CPU."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from dualfocal_lab.models._common import AveragePool

MIN_LENGTH = 21  # minimum number of words: three convolutions and two poolings of width 5 remove 4 words each


def small_cnn(*, num_classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Two convolutions and two linear layers: 38,282 parameters for 10 classes and 1 channel.

    Images of at least 2x2 are pooled to 4x4. See :func:`~dualfocal_lab.models.resnet.resnet50` for the arguments.
    """
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), AveragePool(4)),
        *(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes)),
    )


class TextCNN(nn.Module):
    """Three convolutions of width 5 over embedded words, 247,316 parameters for 20 classes.

    Default initialisation of torch. The frozen word vectors are not part of the network, but of the data.

    On the CPU the texts of a batch are joined into one sequence with little padding, which gives the same results but
    for rounding. A step on 20 Newsgroups, where texts have 218 words, padded to 1,000, is about five times as fast.

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
        if _is_plain(x) and len(x) and not x.requires_grad:  # the gradient of x includes the padding
            features = self._features_of_joined(x)
        else:
            features = self.features(x).amax(dim=-1)  # (N, 128)
        logits: Tensor = self.fc(self.dropout(F.relu(self.hidden(features))))
        return logits

    def _features_of_joined(self, x: Tensor) -> Tensor:
        """Compute ``self.features(x).amax(dim=-1)`` from one sequence of all texts.

        The zeros before the first word of a text are padding. A window of the last convolution sees ``MIN_LENGTH``
        positions; of the equal windows that see only padding, one is kept for each text. Windows that see two texts are
        left out of the maximum. Equal maxima share the gradient, in which the padding of a text counts as one window.
        """
        length = x.shape[-1]
        words = x.transpose(1, 2)  # (N, length, in_channels), contiguous if x comes from Embed
        # A norm reads the batch ten times as fast as a comparison with 0; it is 0 for vectors shorter than 1e-22.
        is_word = torch.linalg.vector_norm(words, dim=2) != 0
        num_padding = (is_word.cumsum(dim=1) == 0).sum(dim=1)
        num_dropped = (num_padding - MIN_LENGTH).clamp(min=0)
        joined = words[torch.arange(length, device=x.device) >= num_dropped[:, None]]

        # Torch has channels-last convolutions and poolings, the fastest on a CPU, only in two dimensions.
        h = joined.T[None, :, None]  # (1, in_channels, 1, sum of lengths)
        for place, conv in enumerate(layer for layer in self.features if isinstance(layer, nn.Conv1d)):
            if place > 0:
                h = F.max_pool2d(F.relu(h), (1, 5), stride=1)
            h = F.conv2d(h, conv.weight[:, :, None].contiguous(memory_format=torch.channels_last), conv.bias)

        between = MIN_LENGTH - 1  # number of windows that see a text and the next one
        sizes = [size for kept in (length - num_dropped).tolist() for size in (kept - between, between)]
        texts = torch.split(h[0, :, 0].T, sizes[:-1])[::2]
        # Not torch.segment_reduce, which gives each of several equal maxima the whole gradient (torch 2.13).
        return F.relu(torch.stack([text.amax(dim=0) for text in texts]))


def _is_plain(x: Tensor) -> bool:
    """Return whether the values of a tensor can be read: on the CPU, not traced and not under a transform."""
    return (
        x.is_cpu
        and type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0  # fake tensors, make_fx, FLOP counters
        and torch._C._get_tracing_state() is None
        and forward_ad.unpack_dual(x).tangent is None  # type: ignore[no-untyped-call]
    )
