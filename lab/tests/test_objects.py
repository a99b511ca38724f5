"""Custom objects: found by name, imported only to be used."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from case_loops import for_each

from dualfocal_lab.objects import check_options, is_object_name, load_object, source_of
from dualfocal_lab.runs.losses import make_loss


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


def test_a_custom_loss_without_reduction_gets_the_rule() -> None:
    with pytest.raises(
        ValueError, match=r"unexpected keyword argument 'reduction'; a custom loss is .*reduction='sum'"
    ):
        make_loss("torch.nn:Sigmoid", {})  # a Module without a constructor of its own
