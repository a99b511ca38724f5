"""``make_model``: known names, custom factories, and errors."""

import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from case_loops import for_each
from torch import nn

from dualfocal_lab.models import MODELS, make_model

CUSTOM = """
    from torch import nn

    def plain(num_classes):
        return nn.Linear(5, num_classes)

    def with_channels(*, num_classes, in_channels=7):
        return nn.Linear(in_channels, num_classes)

    def with_everything(**sizes):
        return nn.Linear(sizes.get("in_channels", 9), sizes["num_classes"])

    def positional(num_classes, in_channels=7, /):
        return nn.Linear(in_channels, num_classes)

    def late(num_classes):
        import {neighbour}
        return {neighbour}.net(num_classes)

    def wrong(num_classes):
        return "a net"

    def fails(num_classes):
        raise RuntimeError("my custom trouble")

    class Net(nn.Linear):
        def __init__(self, num_classes):
            super().__init__(5, num_classes)

    net, number = nn.Linear(5, 3), 3
"""
fresh = (f"own_net_{number}" for number in count())  # Python imports a name only once


@pytest.fixture(autouse=True)
def _path() -> Iterator[None]:
    """Searching the current directory must not change the path for later imports."""
    before = list(sys.path)
    yield
    assert sys.path == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, code: str) -> str:
    """Write a module; return its name."""
    name = next(fresh)
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    return name


@pytest.fixture
def custom(folder: Path) -> str:
    neighbour = write(folder, "from torch import nn\n\ndef net(num_classes):\n    return nn.Linear(8, num_classes)\n")
    return write(folder, CUSTOM.format(neighbour=neighbour))


# ---- known names -----------------------------------------------------------------------------------------
@for_each(name=["small_cnn", "text_cnn", "densenet40"])
def test_a_name_gives_the_registered_model(name: str) -> None:
    with torch.device("meta"):
        for sizes in ({"num_classes": 4}, {"num_classes": 4, "in_channels": 2}):
            model, expected = make_model(name, **sizes), MODELS[name](**sizes)
            assert [p.shape for p in model.parameters()] == [p.shape for p in expected.parameters()]


@for_each("name, suggested", [("resnet5", "resnet50"), ("wide_resnet_26_10", "wide_resnet26_10"), ("vit", None)])
def test_an_unknown_name_lists_the_known_ones(name: str, suggested: str | None) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}'") as caught:
        make_model(name, num_classes=10)
    message = str(caught.value)
    assert ", ".join(MODELS) in message
    assert "package.module:function" in message
    assert (f"did you mean {suggested}?" in message) if suggested else ("did you mean" not in message)


@for_each(name=["small_cnn", "own_net:plain"])
def test_bad_sizes_are_refused_before_anything_is_imported(name: str) -> None:
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        make_model(name, num_classes=0)
    with pytest.raises(ValueError, match="in_channels must be at least 1, got -1"):
        make_model(name, num_classes=2, in_channels=-1)


# ---- custom factories ----------------------------------------------------------------------------------
@for_each(
    "function, in_channels, expected",
    [
        *(("plain", None, 5), ("plain", 4, 5)),
        *(("with_channels", None, 7), ("with_channels", 4, 4)),
        *(("with_everything", None, 9), ("with_everything", 4, 9)),  # torchvision's nets take no in_channels
        *(("late", None, 8), ("Net", 4, 5)),
    ],
)
def test_custom_factory_gets_its_arguments(
    custom: str, folder: Path, function: str, in_channels: int | None, expected: int
) -> None:
    assert not {"", str(folder)} & set(sys.path)  # the current directory is searched all the same
    model = make_model(f"{custom}:{function}", num_classes=6, in_channels=in_channels)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (expected, 6)


def test_custom_factory_in_a_package(folder: Path) -> None:
    package = next(fresh)
    (folder / package / "nets").mkdir(parents=True)
    (folder / package / "nets" / "mine.py").write_text(
        "from torch import nn\nnet = lambda num_classes: nn.Identity()\n"
    )
    assert isinstance(make_model(f"{package}.nets.mine:net", num_classes=2), nn.Identity)


def test_the_current_directory_comes_first(custom: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``python -m``."""
    other = tmp_path / "installed"
    other.mkdir()
    (other / f"{custom}.py").write_text("plain = 'not this one'\n")
    monkeypatch.syspath_prepend(other)
    assert isinstance(make_model(f"{custom}:plain", num_classes=6), nn.Linear)


# ---- errors of custom factories -------------------------------------------------------------------------
@for_each(name=["nets:", ":net", "my-nets:net", "..nets:net", "nets/mine.py:net", "a:b:c"])
def test_malformed_names(name: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown model '{name}'.* package\.module:function"):
        make_model(name, num_classes=2)


@for_each(module=["no_such_module_at_all", "no_such.module", "torch.no_such_module", "math.inside"])
def test_module_that_does_not_exist(module: str) -> None:
    with pytest.raises(ValueError, match=f"cannot import '{module}' .*: No module named") as caught:
        make_model(f"{module}:net", num_classes=2)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@for_each(
    "code, reason",
    [
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("import torch.not_there", "ModuleNotFoundError: No module named 'torch.not_there'"),
        ("from torch import not_there", "ImportError: cannot import name 'not_there'"),
        ("def net(:", "SyntaxError: "),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_module_that_exists_but_fails(folder: Path, code: str, reason: str) -> None:
    module = write(folder, code)
    with pytest.raises(ValueError, match=f"cannot import '{module}' .*: {reason}") as caught:
        make_model(f"{module}:net", num_classes=2)
    assert caught.value.__cause__ is not None


def test_a_module_is_not_suggested_as_a_function(folder: Path) -> None:
    module = write(folder, "import numpy as np")
    with pytest.raises(ValueError, match=f"module '{module}' has no 'Nope'$"):
        make_model(f"{module}:Nope", num_classes=2)


def test_missing_function_suggests_the_nearest(custom: str) -> None:
    with pytest.raises(ValueError, match=f"module '{custom}' has no 'plane'.*did you mean plain"):
        make_model(f"{custom}:plane", num_classes=2)


@for_each(
    "function, message",
    [
        ("number", "must be a function .* got a int"),
        ("net", "must be a function .* got a Linear"),
        ("positional", r"must accept num_classes as a keyword .* \(num_classes, in_channels=7, /\)"),
        ("wrong", "must return a torch.nn.Module, got str"),
    ],
)
def test_objects_that_are_not_factories(custom: str, function: str, message: str) -> None:
    with pytest.raises(TypeError, match=f"'{custom}:{function}' {message}"):
        make_model(f"{custom}:{function}", num_classes=2)


def test_an_error_of_the_factory_itself_passes_unchanged(custom: str) -> None:
    with pytest.raises(RuntimeError, match="my custom trouble"):
        make_model(f"{custom}:fails", num_classes=2)


def test_a_path_the_module_adds_itself_stays(folder: Path) -> None:
    module = write(
        folder,
        "import sys\nfrom torch import nn\nsys.path.insert(0, '/added')\nnet = lambda num_classes: nn.Identity()\n",
    )
    before = list(sys.path)
    try:
        make_model(f"{module}:net", num_classes=2)
        assert sys.path == ["/added", *before]
    finally:
        sys.path[:] = before
