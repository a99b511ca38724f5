"""Writing predictions: reading gives what was written, and a write that fails changes nothing on disk."""

import os
import re
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from dualfocal.predictions import PredictionsError, load_predictions, rewrite_predictions, save_predictions

SUFFIXES = [".npz", ".safetensors", ".csv", ".parquet"]
ARRAYS, TABLES = SUFFIXES[:2], SUFFIXES[2:]
NAMES = ("dog", "black cat", "thé", 'a, "b";c;d;e;f', "x\ty", "-3%", "a_", "grade1", "#", "'", "猫.10")


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (10 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def labels(*shape: int, classes: int = 3) -> Tensor:
    return torch.arange(int(np.prod(shape))).mul(7).remainder(classes).reshape(shape)


def as_read(values: Tensor, suffix: str) -> Tensor:
    """The documented changes of dtype; none of them changes a value."""
    if suffix == ".csv":
        return values.double()
    return values.float() if values.dtype == torch.bfloat16 and suffix != ".safetensors" else values


def assert_round_trip(
    path: Path, values: Tensor, kind: str, target: Tensor | None, names: tuple[str, ...] | None = None
) -> None:
    save_predictions(path, values, input=kind, target=target, class_names=names)
    assert os.listdir(path.parent) == [path.name]
    data = load_predictions(path, labels=False)
    assert data.input == kind
    assert data.class_names == names
    torch.testing.assert_close(data.values, as_read(values, path.suffix), rtol=0, atol=0, equal_nan=True)
    if target is None:
        assert data.labels is None
        assert data.taken.endswith(", no labels")
        with pytest.raises(PredictionsError, match=r"holds no labels with a usual name.*--target NAME"):
            load_predictions(path)
    else:
        assert torch.equal(data.target, target)
        assert torch.equal(load_predictions(path).target, target)


# Round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_labels_and_class_names_come_back(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    for kind in ("logits", "probs"):
        for target in (labels(7), None):
            for names in (None, ("dog", "cat", "bird")):
                assert_round_trip(path, made(7, 3), kind, target, names)
        for target in (labels(7, classes=2), None):  # one score per sample
            assert_round_trip(path, made(7), kind, target)
    for target in (labels(2, 4, 5), None):
        if suffix in ARRAYS:
            assert_round_trip(path, made(2, 3, 4, 5), "logits", target, ("dog", "cat", "bird"))
    save_predictions(path, made(4, 1), input="logits", target=labels(4, classes=2))
    assert torch.equal(load_predictions(path).values, as_read(made(4, 1)[:, 0], suffix))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_float_is_exact(tmp_path, suffix):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        info = torch.finfo(dtype)
        special = [info.max, -info.max, info.tiny, info.smallest_normal / 2, 0.0, -0.0, 1 / 3]
        special += [torch.inf, -torch.inf, torch.nan]
        values = torch.cat([torch.tensor(special, dtype=dtype), made(90, dtype=dtype)]).reshape(20, 5)
        assert_round_trip(tmp_path / f"file{suffix}", values, "logits", labels(20))
        loaded = load_predictions(tmp_path / f"file{suffix}").values
        assert torch.equal(torch.signbit(loaded), torch.signbit(values)), dtype


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_class_names_come_back_unchanged(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    for names in (NAMES, ("a;b;c;d", "e\tf\tg\th"), ("class_10", "class_2", "class_1")):
        assert_round_trip(path, made(30, len(names)), "probs", labels(30, classes=len(names)), names)


UNICODE = st.characters(codec="utf-8", exclude_characters="\0")  # strings of numpy lose a NUL at the end
NAME = st.text(UNICODE, max_size=6) | st.text(" _.-,;\"\t'a1é\n", max_size=6)


@settings(max_examples=200)
@given(st.lists(NAME, min_size=2, max_size=4), st.sampled_from(SUFFIXES))
def test_any_class_names_come_back_or_are_refused(names, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path, values = Path(folder, f"file{suffix}"), made(4, len(names))
        try:
            save_predictions(path, values, input="probs", class_names=names)
        except ValueError:
            assert os.listdir(folder) == []
        else:
            assert_round_trip(path, values, "probs", labels(4, classes=len(names)), tuple(names))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_labels_that_are_no_class_come_back(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    for strange in (-100, 3, 255):
        target = torch.tensor([0, strange, 2, 1])
        for names in (None, ("dog", "cat", "bird"), ("grade1", "grade2", "grade3")):
            assert_round_trip(path, made(4, 3), "logits", target, names)
        assert_round_trip(path, made(4, 3), "logits", torch.full((4,), strange), ("dog", "cat", "bird"))
        if strange < 0 or suffix in ARRAYS:
            assert_round_trip(path, made(4, 3), "logits", target, ("1", "2", "3"))
        else:
            message = refusal(path, made(4, 3), target=target, class_names=("1", "2", "3"))
            assert re.search(rf"must be negative .*\(1, 2, 3\), got {strange}", message)


def test_many_rows_and_classes_of_a_csv(tmp_path, monkeypatch):
    monkeypatch.setattr("dualfocal.predictions.saving.BLOCK", 10)
    for rows in (30, 31):  # the last row may be alone in its block
        assert_round_trip(tmp_path / "file.csv", made(rows, 12), "logits", labels(rows, classes=12))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_views_with_gradients_and_labels_of_any_integer_type_are_written(tmp_path, suffix):
    values = made(3, 10).requires_grad_().T[2:9]
    path = tmp_path / f"file{suffix}"
    for dtype in (torch.int64, torch.uint8):
        save_predictions(str(path), values, input="logits", target=labels(14).to(dtype)[::2])
        data = load_predictions(path)
        assert torch.equal(data.values, as_read(values.detach(), suffix))
        assert torch.equal(data.target, labels(14)[::2])
    save_predictions(path, made(3), input="logits", target=torch.tensor([True, False, True]))
    assert load_predictions(path).target.tolist() == [1, 0, 1]


# Content of the files


def test_the_content_of_each_format(tmp_path):
    """Others read these files, too: names and text must not change."""
    path = tmp_path / "a.npz"
    save_predictions(path, made(4, 2), input="probs", target=labels(4), class_names=["no", "yes"])
    with np.load(path, allow_pickle=False) as file:
        content = {name: (array.dtype.kind, array.shape) for name, array in file.items()}
    assert content == {"probs": ("f", (4, 2)), "target": ("i", (4,)), "class_names": ("U", (2,))}

    values, path = torch.tensor([[0.5, 0.1], [1.0, -2.0]]), tmp_path / "a.csv"
    save_predictions(path, values, input="logits", target=torch.tensor([1, 0]))
    assert path.read_text() == "logit_0,logit_1,target\n0.5,0.10000000149011612,1\n1.0,-2.0,0\n"
    save_predictions(path, values, input="probs", target=torch.tensor([1, 0]), class_names=["a,b", "thé"])
    expected = '"prob_a,b",prob_thé,target\n0.5,0.10000000149011612,thé\n1.0,-2.0,"a,b"\n'
    assert path.read_bytes() == expected.encode()
    save_predictions(path, values[:, 0], input="probs")
    assert path.read_text() == "probs\n0.5\n1.0\n"

    path = tmp_path / "a.PARQUET"  # a suffix may be in capitals
    save_predictions(path, made(4, 2), input="probs", target=labels(4, classes=2), class_names=["no", "yes"])
    table = pq.read_table(path)
    assert table.column_names == ["prob_no", "prob_yes", "target"]
    assert table["target"].to_pylist() == ["no", "yes", "no", "yes"]
    save_predictions(path, made(4), input="logits")
    assert pq.read_table(path).column_names == ["logits"]


# Class names in files of others


def test_class_names_that_do_not_fit_are_ignored(tmp_path):
    arrays = {"logits": made(4, 3), "target": labels(4)}
    for names in (["a", "b"], ["a", "b", "c", "d"], [["a", "b", "c"]], "abc", [1, 2, 3], [b"a", b"b", b"c"]):
        for array in (np.array(names), np.array(names, dtype=object)):  # the second is pickled
            np.savez(tmp_path / "a.npz", **arrays, class_names=array)
            assert load_predictions(tmp_path / "a.npz").class_names is None, names
    texts = ("", "a,b,c", "3", '["a", "b"]', '["a", "b", 3]', '{"a": 0, "b": 1, "c": 2}')
    for metadata in ({"other": "x"}, *({"class_names": text} for text in texts)):
        save_file(arrays, tmp_path / "a.safetensors", metadata=metadata)
        assert load_predictions(tmp_path / "a.safetensors").class_names is None, metadata
    np.savez(tmp_path / "a.npz", probs=made(2), target=labels(2), class_names=np.array(["no", "yes"]))
    assert load_predictions(tmp_path / "a.npz").class_names is None


# Errors


def refusal(path: Path, values: Tensor, **options: object) -> str:
    """Message with which a write is refused, in one line, without the file; nothing may have been written."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    try:
        save_predictions(path, values, **{"input": "logits"} | options)
    except ValueError as error:
        message = str(error)
    else:
        pytest.fail(f"written: {path.name}, {options}")
    assert len(message.splitlines()) == 1
    assert before is None or sorted(path.parent.iterdir()) == before
    return message.removeprefix(f"{path}: ")


def test_places_that_cannot_be_written_are_refused(tmp_path, monkeypatch):
    values = made(4, 2)
    for name in ("a.pkl", "a.pt", "a"):
        words = rf"must end in \.npz, \.safetensors, \.csv, \.parquet, got {Path(name).suffix!r}"
        assert re.search(words, refusal(tmp_path / name, values))
    assert f"no folder {str(tmp_path / 'none')!r}" in refusal(tmp_path / "none" / "a.npz", values)
    (tmp_path / "folder.npz").mkdir()
    for folder in (tmp_path / "folder.npz", tmp_path):
        assert "must be a file, but is a folder" in refusal(folder, values)
    with pytest.raises((ValueError, OSError), match="File name too long"):
        save_predictions(tmp_path / ("x" * 300 + ".npz"), values, input="logits")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    words = r"cannot be written: .*pip install .*dualfocal\[cli\]"
    assert re.search(words, refusal(tmp_path / "a.parquet", values))
    assert os.listdir(tmp_path) == ["folder.npz"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_that_cannot_be_written_are_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    assert re.search("input .*'logits', 'probs', got 'scores'", refusal(path, made(4, 2), input="scores"))
    for values, form in (
        (labels(4, 2), "4 x 2, int64"),
        (torch.tensor(0.5), "scalar, float32"),
        (made(0, 2), "0 x 2,"),
    ):
        assert re.search(f"logits must be float16, .*at least one row, got .{form}", refusal(path, values))
    for target, form in ((made(4), "4, float32"), (labels(3), "3, int64"), (labels(4, 1), "4 x 1, int64")):
        message = refusal(path, made(4, 2), target=target)
        assert re.search(rf"labels must be integers, \(N,\) for .*got \({form}\) for \(4 x 2, float32\)", message)
    assert "got (scalar, int64) for" in refusal(path, made(4, 2), target=torch.tensor(1))
    assert "labels must be integers" in refusal(path, made(4, 2, 5), target=labels(4))
    for values, names in ((made(4, 2), ("a",)), (made(4, 2), ("a", "a")), (made(4), ("a", "b"))):
        message = refusal(path, values, class_names=names)
        assert "class_names must be one distinct name per class" in message
        assert str(names) in message


@pytest.mark.parametrize("suffix", TABLES)
def test_content_that_tables_cannot_hold_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    message = refusal(path, made(4, 3, 2))
    assert re.search(r"table must be \(N, C\) or \(N,\), got \(4 x 3 x 2, .*use \.npz or \.safetensors", message)
    for name in ("", "1", "1.5", "nan", " a", "a ", "_a", ".a", "a\nb", "a\rb", "a\u2028b"):
        message = refusal(path, made(4, 2), class_names=["b", name])
        assert re.search("class name in a table must be one line, not a number", message), name
        assert message.endswith(f"got {name!r}")


# Rewriting


def test_a_list_column_named_like_one_of_its_classes_is_rewritten(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["x", "y"], "logit_1": made(2, 3).tolist(), "target": [2, 0]}), path)
    original = load_predictions(path, logits="logit_1")
    rewrite_predictions(tmp_path / "b.csv", original, 2 * original.values)
    assert (tmp_path / "b.csv").read_text().splitlines()[0] == "id,logit_0,logit_1,logit_2,target"
    data = load_predictions(tmp_path / "b.csv")
    assert torch.equal(data.values, 2 * original.values.double())
    assert data.target.tolist() == [2, 0]


# All of a file or nothing


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), RuntimeError("no\nway"), KeyboardInterrupt()], ids=repr
)
def test_a_write_that_fails_changes_nothing(tmp_path, monkeypatch, suffix, error):
    """It fails after the first bytes, as on a full disk."""
    path = tmp_path / f"a{suffix}"
    save_predictions(path, made(4, 2), input="logits")
    before = path.read_bytes()

    def fail(*arguments: object, **options: object) -> None:
        for argument in arguments:
            if isinstance(argument, Path):
                argument.write_bytes(b"half")
            elif hasattr(argument, "write"):
                argument.write(b"half")
        raise error

    if suffix == ".csv":
        calls = iter("....")  # repr is called for each value: fail at the fifth

        def failing_repr(value: float) -> str:
            return next(calls, None) or fail()  # type: ignore[return-value]

        monkeypatch.setattr("dualfocal.predictions.saving.repr", failing_repr, raising=False)
    else:
        places = {
            ".npz": (np, "savez"),
            ".safetensors": (safetensors.torch, "save_file"),
            ".parquet": (pq, "write_table"),
        }
        monkeypatch.setattr(*places[suffix], fail)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            save_predictions(path, made(8, 2), input="logits")
    else:
        reason = str(error).splitlines()[0]
        assert refusal(path, made(8, 2)) == f"cannot be written: {reason}"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]
    path.unlink()
    with pytest.raises((ValueError, KeyboardInterrupt)):
        save_predictions(path, made(8, 2), input="logits")
    assert os.listdir(tmp_path) == []


def test_a_name_may_be_as_long_as_it_can_be(tmp_path):
    path = tmp_path / ("x" * 251 + ".npz")
    save_predictions(path, made(4, 2), input="logits")
    assert os.listdir(tmp_path) == [path.name]


def test_permissions_follow_the_umask_or_the_existing_file(tmp_path):
    for suffix in SUFFIXES:
        for umask in (0o022, 0o002, 0o077):
            path = tmp_path / f"{umask}{suffix}"
            before = os.umask(umask)
            try:
                save_predictions(path, made(4, 2), input="logits")
                assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
                path.chmod(0o640)  # somebody chose it
                save_predictions(path, made(4, 2), input="logits")
                assert stat.S_IMODE(path.stat().st_mode) == 0o640, path.name
            finally:
                os.umask(before)


def test_links_are_followed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "a.npz").symlink_to(tmp_path / "store" / "1")  # not there yet, and of no suffix
    save_predictions(tmp_path / "a.npz", made(4, 2), input="logits")
    assert (tmp_path / "a.npz").is_symlink()
    save_predictions(tmp_path / "a.npz", made(4, 2), input="logits")  # once more, over the file
    assert os.listdir(tmp_path / "store") == ["1"]
    assert torch.equal(load_predictions(tmp_path / "a.npz", labels=False).values, made(4, 2))


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    def denied(*arguments: object, **options: object) -> None:  # not by chmod: root may write anywhere
        raise PermissionError(13, "Permission denied", "the temporary file")

    monkeypatch.setattr(Path, "touch", denied)
    assert "cannot be written: Permission denied" in refusal(tmp_path / "a.npz", made(4, 2))


def test_a_folder_is_no_place_for_a_file(tmp_path):
    (tmp_path / "a.npz").mkdir()
    assert "must be a file, but is a folder" in refusal(tmp_path / "a.npz", made(4, 2))
    assert os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_predictions_on_a_gpu_are_written(tmp_path):
    for suffix in SUFFIXES:
        save_predictions(tmp_path / f"a{suffix}", made(4, 3).cuda(), input="logits", target=labels(4).cuda())
        data = load_predictions(tmp_path / f"a{suffix}")
        assert torch.equal(data.values, as_read(made(4, 3), suffix)), suffix
        assert torch.equal(data.target, labels(4)), suffix
