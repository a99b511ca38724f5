"""The text network on the CPU, which joins the texts of a batch, gives the results of the padded network."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from case_loops import for_each
from torch import Tensor
from torch.nn import functional as F

from dualfocal_lab.models.small import TextCNN

LENGTH, WIDTH = 1_000, 8


def text_of(num_words: int) -> Tensor:
    """Random word vectors (WIDTH, LENGTH) behind the padding."""
    return F.pad(torch.randn(WIDTH, num_words), (LENGTH - num_words, 0))


def repeated(num_words: int) -> Tensor:
    """One word again and again: most windows tie."""
    return F.pad(torch.randn(WIDTH, 1).expand(-1, num_words), (LENGTH - num_words, 0))


def with_unknown_words(num_words: int) -> Tensor:
    """Words without a vector in the middle and at the end."""
    text = text_of(num_words)
    text[:, -num_words // 2 : -num_words // 4] = 0
    text[:, -30:] = 0
    return text


def a_net() -> TextCNN:
    """Without dropout; some features of the last convolution are 0 for all texts."""
    torch.manual_seed(3)
    net = TextCNN(in_channels=WIDTH).eval()
    with torch.no_grad():
        net.get_parameter("features.6.bias")[:10] = -100.0
    return net


def padded(net: TextCNN, x: Tensor) -> Tensor:
    features = net.features(x).amax(dim=-1)
    logits: Tensor = net.fc(net.dropout(F.relu(net.hidden(features))))
    return logits


def results(net: TextCNN, logits: Tensor) -> list[Tensor]:
    """Logits, and the gradients of all parameters."""
    net.zero_grad()
    F.cross_entropy(logits, torch.arange(len(logits))).backward()
    return [logits.detach(), *(weight.grad for weight in net.parameters() if weight.grad is not None)]


def largest_error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Largest difference of any tensor, relative to the largest number in it."""
    assert len(actual) == len(expected) == 11
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(actual, expected, strict=True))


# In float64: a text has 10^5 maxima of five numbers, and rounding to float32 may exchange the largest two.
@for_each(
    texts=[
        *([(text_of, num_words)] for num_words in (0, 1, 20, 21, 979, 980, LENGTH)),
        [(repeated, 20)],
        [(repeated, 500)],
        [(with_unknown_words, 300)],
        [(text_of, 20), (text_of, 0), (text_of, LENGTH), (text_of, 0), (repeated, 100), (with_unknown_words, 985)],
    ]
)
def test_logits_and_gradients_are_those_of_the_padded_network(texts: list[tuple[Callable[[int], Tensor], int]]) -> None:
    net, x = a_net().double(), torch.stack([make(num_words) for make, num_words in texts]).double()
    expected = results(net, padded(net, x))
    assert largest_error(results(net, net(x)), expected) < 1e-12


@for_each(num_words=[0, 1, 20])
def test_float32_has_an_error_of_a_millionth(num_words: int) -> None:
    net, x = a_net(), text_of(num_words)[None]
    exact = deepcopy(net).double()
    expected = results(exact, padded(exact, x.double()))
    assert largest_error(results(net, net(x)), expected) < 1e-6


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch warns of its own switch
def test_bfloat16_autocast_is_as_near_as_the_padded_networks() -> None:
    net, x = a_net(), torch.stack([text_of(num) for num in (0, 1, 20, 200, LENGTH)])
    with torch.no_grad():
        exact = padded(net, x)
        # Without oneDNN: in virtual machines that announce AMX but do not have it, its bf16 kernels end the process.
        with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
            joined, unjoined = net(x), padded(net, x)
    assert joined.dtype == torch.bfloat16
    assert (joined.float() - exact).norm() < 1.5 * (unjoined.float() - exact).norm() < 0.02 * exact.norm()


def test_one_window_of_padding_is_computed_for_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    conv2d = F.conv2d

    def recording(x: Tensor, *args: Tensor) -> Tensor:
        lengths.append(x.shape[-1])
        return conv2d(x, *args)

    monkeypatch.setattr(F, "conv2d", recording)
    a_net()(torch.stack([text_of(num) for num in (0, 1, 300, 990)]))
    total = 21 + 22 + 321 + 1_000
    assert lengths == [total, total - 8, total - 16]


def test_an_input_that_needs_a_gradient_gets_it_for_its_padding() -> None:
    net, x = a_net(), torch.stack([text_of(5), text_of(100)])
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(net(x).sum(), x)
    (expected,) = torch.autograd.grad(padded(net, x).sum(), x)
    assert expected[0, :, :900].any()
    torch.testing.assert_close(gradient, expected)


def test_transforms_and_the_compiler_take_the_padded_network() -> None:
    net, x = a_net(), torch.stack([text_of(5), text_of(100)])
    torch.compiler.reset()
    with torch.no_grad():
        expected = padded(net, x)
        torch.testing.assert_close(torch.func.vmap(lambda text: net(text[None])[0])(x), expected)
        torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), expected)


def test_no_texts_give_no_logits() -> None:
    assert a_net()(torch.empty(0, WIDTH, LENGTH)).shape == (0, 20)
