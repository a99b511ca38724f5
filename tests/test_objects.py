"""Custom objects and plug-ins: found by name, imported only to be used."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from case_loops import for_each

from dualfocal._objects import check_options, is_object_name, load_object, plugins, source_of
from dualfocal.calibrators import compare_calibrators, make_calibrator
from dualfocal.data import load_data
from dualfocal.models import make_model
from dualfocal.runs import Recipe
from dualfocal.study import make_study

PLUGIN = """
    import numpy as np
    from dualfocal import DualFocalLoss, TemperatureScaling
    from torch import nn

    class Tilted(DualFocalLoss):
        def __init__(self, *, tilt=1.0, reduction="mean"):
            super().__init__(gamma=tilt, reduction=reduction)

    def net(num_classes):
        return nn.Linear(3, num_classes)

    def data(*, size=30):
        return np.ones((size, 3)), np.arange(size) % 3

    class Scaling(TemperatureScaling):
        pass
"""
ENTRY_POINTS = """
    [dualfocal.losses]
    tilted = {module}:Tilted
    focal = {module}:Tilted
    broken = not a name

    [dualfocal.models]
    plug_net = {module}:net

    [dualfocal.data]
    plug_data = {module}:data

    [dualfocal.calibrators]
    plug_scaling = {module}:Scaling [extra]
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed distribution with plug-ins; returns the name of its module, which nothing has imported."""
    module = "plugin_for_tests"
    site = tmp_path / "site"
    info = site / "plugin_for_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{module}.py").write_text(textwrap.dedent(PLUGIN))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-for-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS.format(module=module)))
    monkeypatch.syspath_prepend(site)
    yield module
    sys.modules.pop(module, None)


def test_plugins_are_listed_without_being_imported(plugin: str) -> None:
    assert plugins("loss") == {"tilted": f"{plugin}:Tilted", "focal": f"{plugin}:Tilted"}
    assert plugins("calibrator") == {"plug_scaling": f"{plugin}:Scaling"}
    for make in (
        lambda: Recipe(data="digits", model="small_cnn", loss="tilte"),
        lambda: Recipe(data="digits", model="plug_nett"),
        lambda: make_model("plug_nett", num_classes=2),
        lambda: load_data("plug_dat"),
        lambda: make_calibrator("plug"),
    ):
        with pytest.raises(ValueError, match=r"did you mean (tilted|plug_net|plug_data)|plug_scaling"):
            make()
    assert plugin not in sys.modules


def test_a_recipe_names_the_object_of_a_plugin_and_does_not_import_it(plugin: str) -> None:
    recipe = Recipe(data="plug_data", model="plug_net", loss="tilted", loss_options={"tilt": 3})
    assert (recipe.loss, recipe.model, recipe.data) == (f"{plugin}:Tilted", f"{plugin}:net", "plug_data")
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert make_study(["tilted", "cross_entropy"], dataset="plug_data").entries == ["tilted", "cross_entropy"]
    assert plugin not in sys.modules


def test_plugins_are_used_by_their_names(plugin: str) -> None:
    loss = Recipe(data="digits", model="small_cnn", loss="tilted", loss_options={"tilt": 3}).make_loss()
    assert (loss.gamma, loss.reduction) == (3, "sum")
    assert make_model("plug_net", num_classes=4).out_features == 4
    assert load_data("plug_data", size=40).target.tolist() == [i % 3 for i in range(40)]
    assert type(make_calibrator("plug_scaling+vector")[0]).__name__ == "Scaling"
    logits = torch.randn(200, 3)
    assert "plug_scaling" in str(compare_calibrators(logits, logits.argmax(1), ["temperature", "plug_scaling"]))


def test_names_of_this_package_win(plugin: str) -> None:
    assert Recipe(data="digits", model="small_cnn", loss="focal").loss == "focal"


@for_each(
    "name, expected",
    [
        *(("a:b", True), ("a.b_2:C.d", True), ("a", False), ("a:", False), (":b", False), ("a:b:c", False)),
        *(("C:\\images", False), ("a b:c", False), ("a.:c", False), ("../a:b", False)),
    ],
)
def test_form_of_an_object(name: str, expected: bool) -> None:
    assert is_object_name(name) is expected


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Write ``mine_for_tests.py`` in the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> Path:
        sys.modules.pop("mine_for_tests", None)
        path = tmp_path / "mine_for_tests.py"
        path.write_text(code)
        return path

    yield write
    sys.modules.pop("mine_for_tests", None)


def test_inner_objects_and_missing_ones(write: Callable[[str], Path]) -> None:
    write("class Outer:\n    class Inner:\n        value = 3\n")
    assert load_object("loss", "mine_for_tests:Outer.Inner.value") == 3
    with pytest.raises(ValueError, match=r"loss 'mine_for_tests:Outer.Iner'.*has no 'Iner'.*did you mean Inner"):
        load_object("loss", "mine_for_tests:Outer.Iner")


def test_the_hash_is_of_the_file_that_defines_the_object(write: Callable[[str], Path]) -> None:
    write("from torch.nn import Linear\nnumber = 3\ndef f(): pass\n")
    first = source_of("loss", "mine_for_tests:f")
    assert first["object"] == "mine_for_tests:f"
    assert source_of("loss", "mine_for_tests:number") == {**first, "object": "mine_for_tests:number"}
    other = source_of("loss", "mine_for_tests:Linear")
    assert other["object"] == "torch.nn.modules.linear:Linear"
    assert other["sha256"] != first["sha256"]
    write("from torch.nn import Linear\nnumber = 4\ndef f(): pass\n")
    assert source_of("loss", "mine_for_tests:f")["sha256"] != first["sha256"]
    assert source_of("loss", "mine_for_tests:Linear") == other


def test_options_are_checked_against_the_signature() -> None:
    def make(*, gamma: float = 1.0, flag: bool = False, reduction: str = "mean") -> None: ...

    check_options("loss", "a:b", make, {"gamma": 2, "flag": True}, ("reduction",))
    for options, words in (
        ({"gama": 2}, "loss a:b has the options gamma, flag; got gama; did you mean gamma"),
        ({"reduction": "sum"}, "has the options gamma, flag; got reduction"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"gamma": True}, "gamma must not be true or false"),
    ):
        with pytest.raises(ValueError, match=words):
            check_options("loss", "a:b", make, options, ("reduction",))
    check_options("loss", "a:b", lambda **options: None, {"anything": True}, ())
