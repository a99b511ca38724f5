"""What the nets are made of: parameters, layers and sizes, counted without allocating them."""

import inspect
import math
from functools import cache

import pytest
import torch
from case_loops import for_each
from torch import Tensor, nn

from dualfocal_lab.models import MODELS, make_model
from dualfocal_lab.models._common import AveragePool

NAMES = [
    *("resnet50", "resnet110", "wide_resnet26_10", "densenet121", "tiny_resnet50", "text_cnn", "small_cnn"),
    *("resnet110_kde", "resnet110_sd", "wide_resnet34_10", "densenet40"),
]
IMAGE_NETS = [name for name in NAMES if name != "text_cnn"]
DEEP_NETS = [name for name in IMAGE_NETS if name != "small_cnn"]


@cache
def on_paper(name: str, **sizes: int) -> nn.Module:
    with torch.device("meta"):
        return MODELS[name](**sizes)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def convs(net: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: module for name, module in net.named_modules() if isinstance(module, nn.Conv2d)}


def is_projection(name: str) -> bool:
    return ".shortcut." in name or name.endswith(".projection")


def before_pooling(net: nn.Module, image: Tensor) -> tuple[torch.Size, torch.Size]:
    """Shapes that enter the last pooling and leave the net."""
    (pool,) = (module for module in net.modules() if isinstance(module, AveragePool))
    shapes: list[torch.Size] = []
    with pool.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape)):
        logits = net(image)
    return shapes[0], logits.shape


def test_names_and_their_order() -> None:
    assert list(MODELS) == NAMES


@for_each(name=NAMES)
def test_factories_take_two_keywords_with_defaults(name: str) -> None:
    defaults = {"tiny_resnet50": (200, 3), "text_cnn": (20, 100)}.get(name, (10, 3))
    parameters = inspect.signature(MODELS[name]).parameters
    assert list(parameters) == ["num_classes", "in_channels"]
    assert all(p.kind is p.KEYWORD_ONLY and p.annotation is int for p in parameters.values())
    assert tuple(p.default for p in parameters.values()) == defaults


@for_each(
    "name, num_classes, expected",
    [
        ("resnet50", 10, 23_520_842),
        ("resnet50", 100, 23_705_252),
        ("resnet110", 10, 45_864_522),
        ("resnet110", 100, 46_048_932),
        ("wide_resnet26_10", 10, 36_481_434),
        ("wide_resnet26_10", 100, 36_539_124),
        ("densenet121", 10, 6_956_298),
        ("densenet121", 100, 7_048_548),
        ("tiny_resnet50", 200, 25_138_952),
        ("wide_resnet34_10", 10, 46_160_474),
        ("densenet40", 10, 1_019_722),
    ],
)
def test_parameter_counts_are_the_published_nets(name: str, num_classes: int, expected: int) -> None:
    assert count(on_paper(name, num_classes=num_classes)) == expected


@for_each(name=["resnet110_kde", "resnet110_sd"])
def test_parameter_count_of_thin_resnet110(name: str) -> None:
    stem, last_norm, linear = 9 * 3 * 16, 2 * 64, 64 * 10 + 10
    stage1 = 18 * (2 * 9 * 16**2 + 2 * 2 * 16)  # two convolutions and two norms a block
    # The first block: a wider convolution, a norm of the old width and one of the new, a projection.
    stage2 = 9 * 16 * 32 + 9 * 32**2 + 2 * (16 + 32) + 16 * 32 + 17 * (2 * 9 * 32**2 + 2 * 2 * 32)
    stage3 = 9 * 32 * 64 + 9 * 64**2 + 2 * (32 + 64) + 32 * 64 + 17 * (2 * 9 * 64**2 + 2 * 2 * 64)
    assert count(on_paper(name)) == stem + stage1 + stage2 + stage3 + last_norm + linear == 1_730_522


def test_parameter_counts_of_shallow_nets() -> None:
    text = (5 * 100 * 128 + 128) + 2 * (5 * 128**2 + 128) + (128**2 + 128) + (128 * 20 + 20)
    assert count(on_paper("text_cnn")) == text
    assert count(on_paper("small_cnn", in_channels=1)) == 38_282


@for_each(name=[name for name in NAMES if name != "resnet110_sd"])
def test_docstrings_state_the_parameter_count(name: str) -> None:
    net = on_paper(name, in_channels=1) if name == "small_cnn" else on_paper(name)
    assert f"{count(net):,} parameters" in (inspect.getdoc(MODELS[name]) or "")


@for_each(
    "name, depth",
    [
        *(("resnet50", 50), ("resnet110", 110), ("tiny_resnet50", 50), ("resnet110_kde", 110), ("resnet110_sd", 110)),
        *(("wide_resnet26_10", 26), ("densenet121", 121), ("densenet40", 40)),
    ],
)
def test_depth_is_the_one_in_the_name(name: str, depth: int) -> None:
    layers = [name for name in convs(on_paper(name)) if not is_projection(name)]
    assert len(layers) + 1 == depth  # with the linear layer


def test_depth_of_wide_resnet34_counts_projections_but_not_the_linear_layer() -> None:
    names = list(convs(on_paper("wide_resnet34_10")))
    assert len(names) == 34
    assert sum(map(is_projection, names)) == 3


@for_each(
    "name, side, shape",
    [
        *(("resnet50", 32, (2048, 4, 4)), ("resnet110", 32, (2048, 4, 4)), ("tiny_resnet50", 64, (2048, 8, 8))),
        *(("wide_resnet26_10", 32, (640, 8, 8)), ("wide_resnet34_10", 32, (640, 8, 8))),
        *(("densenet121", 32, (1024, 4, 4)), ("densenet40", 32, (448, 8, 8))),
        *(("resnet110_kde", 32, (64, 8, 8)), ("resnet110_sd", 32, (64, 8, 8)), ("small_cnn", 8, (32, 4, 4))),
    ],
)
def test_sizes_with_other_classes_and_channels(name: str, side: int, shape: tuple[int, int, int]) -> None:
    net = on_paper(name, num_classes=100, in_channels=5)
    assert next(iter(convs(net).values())).in_channels == 5
    pooled, logits = before_pooling(net, torch.empty(2, 5, side, side, device="meta"))
    assert (pooled, logits) == ((2, *shape), (2, 100))


@for_each(name=["resnet50", "resnet110", "tiny_resnet50"])
def test_bottlenecks_stride_in_the_3x3(name: str) -> None:
    strided = {key: conv for key, conv in convs(on_paper(name)).items() if conv.stride != (1, 1)}
    assert len(strided) == 6  # three blocks and their shortcuts
    for key, conv in strided.items():
        assert conv.kernel_size == ((1, 1) if is_projection(key) else (3, 3))


@for_each(name=DEEP_NETS)
def test_convolutions_have_no_bias_and_nothing_drops_out(name: str) -> None:
    net = on_paper(name)
    assert all(conv.bias is None for conv in convs(net).values())
    assert not any(isinstance(module, nn.Dropout) for module in net.modules())
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}


@for_each(name=["resnet50", "densenet40", "small_cnn"])
def test_images_of_any_size(name: str) -> None:
    assert on_paper(name, num_classes=100)(torch.empty(2, 3, 48, 36, device="meta")).shape == (2, 100)


@for_each(grid=[1, 2, 4], shape=[(8, 8), (7, 5), (12, 9), (3, 3)])
def test_average_pool_is_torchs_adaptive_pool(grid: int, shape: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, dtype=torch.float64)
    expected = nn.AdaptiveAvgPool2d(grid)(x).flatten(1)
    torch.testing.assert_close(AveragePool(grid)(x), expected, rtol=1e-14, atol=1e-15)


@for_each(
    "name, bad",
    [*((name, 0) for name in NAMES), *(("small_cnn", bad) for bad in (-3, 2.0, True, "10", math.nan))],
    argument=["num_classes", "in_channels"],
)
def test_bad_sizes_are_named(name: str, bad: object, argument: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{argument} must be (at least 1|an integer), got {bad!r}$"):
        make_model(name, **({"num_classes": 10} | {argument: bad}))  # type: ignore[arg-type]
