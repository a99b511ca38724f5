"""Decoded data are read from the cache the next time, unless a file that they were made of has changed."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dualfocal.data import _cache
from dualfocal.data._cache import Samples, cached_files, decoded, is_whole
from dualfocal.data.paths import cache_folder

NAMES, WORDS = ("größe", "猫", 'a "quote", a\nline'), ("", "naïve", "🎈", "\\")


def samples(first: int = 0) -> Samples:
    inputs = torch.arange(first, first + 12, dtype=torch.uint8).view(3, 4)
    return Samples(inputs, torch.tensor([2, 0, 1]), NAMES, num_train=2, words=WORDS)


def assert_same(samples: Samples, expected: Samples) -> None:
    assert torch.equal(samples.inputs, expected.inputs)
    assert samples.inputs.dtype == expected.inputs.dtype
    assert torch.equal(samples.target, expected.target)
    assert samples.target.dtype == torch.int64
    assert (samples.class_names, samples.num_train, samples.words) == (
        expected.class_names,
        expected.num_train,
        expected.words,
    )


class Decoder:
    """Gives other samples each time, so that it shows whether a result was decoded or read."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Samples:
        self.calls += 1
        return samples(first=self.calls)


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a").write_text("content")
    (folder / "b").write_text("content")
    return folder


def cache_file(root: Path) -> Path:
    (only,) = (root / "decoded").iterdir()  # nothing else is there, temporary files neither
    return only


def test_it_is_decoded_once(tmp_path, source) -> None:
    decode = Decoder()
    for _ in range(3):
        assert_same(decoded("name", tmp_path, [source], decode), samples(first=1))
    assert decode.calls == 1
    assert cache_file(tmp_path).name.startswith("name-")
    decoded("name", tmp_path, [source], decode).inputs.zero_()  # does not change the file
    assert_same(decoded("name", tmp_path, [source], decode), samples(first=1))


def test_inputs_of_any_type_and_layout_come_back(tmp_path, source) -> None:
    for dtype in (torch.uint8, torch.int32, torch.float32):
        inputs = torch.arange(24).view(4, 3, 2).transpose(0, 2).to(dtype)
        original = Samples(inputs, torch.tensor([[0, 9], [1, 9]])[:, 0], ("a", "b"), num_train=1)
        assert not inputs.is_contiguous()
        decoded(f"{dtype}", tmp_path, [source], lambda original=original: original)
        assert_same(decoded(f"{dtype}", tmp_path, [source], Decoder()), original)


def write_later(folder: Path) -> None:
    """Change the content and the time, but not the size."""
    file = folder / "deep" / "a"
    status = file.stat()
    file.write_text("CONTENT")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))


def set_back(folder: Path) -> None:
    status = (folder / "b").stat()
    os.utime(folder / "b", ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))


def lengthen(folder: Path) -> None:
    (folder / "deep" / "a").write_text("content and more")


CHANGES = {  # one after the other
    "written later": write_later,
    "set back": set_back,
    "longer": lengthen,
    "added": lambda folder: (folder / "deep" / "c").touch(),
    "renamed": lambda folder: (folder / "b").rename(folder / "c"),
    "moved": lambda folder: (folder / "c").rename(folder / "deep" / "b"),
    "removed": lambda folder: (folder / "deep" / "b").unlink(),
}


def test_any_change_in_the_folder_decodes_again(tmp_path, source) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    for calls, (name, change) in enumerate(CHANGES.items(), start=2):
        change(source)
        for _ in range(2):
            assert_same(decoded("name", tmp_path, [source], decode), samples(first=calls))
        assert decode.calls == calls, name
        assert cache_file(tmp_path)


def test_a_change_of_one_of_several_files_decodes_again(tmp_path, source) -> None:
    decode, files = Decoder(), [source / "b", source / "deep" / "a"]
    for calls, change in enumerate([lambda _: None, write_later, lengthen], start=1):
        change(source)
        for _ in range(2):
            assert_same(decoded("name", tmp_path, files, decode), samples(first=calls))
        assert decode.calls == calls


def test_a_change_behind_a_link_decodes_again(tmp_path, source) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "deep").symlink_to(source / "deep", target_is_directory=True)
    decode = Decoder()
    for _ in range(2):
        decoded("name", tmp_path, [tmp_path / "linked"], decode)
    assert decode.calls == 1
    lengthen(source)
    assert_same(decoded("name", tmp_path, [tmp_path / "linked"], decode), samples(first=2))


def test_the_same_files_in_another_folder_are_decoded_again(tmp_path, source) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    source.rename(tmp_path / "other")
    assert_same(decoded("name", tmp_path, [tmp_path / "other"], decode), samples(first=2))


def test_names_that_are_not_utf8_are_signed(tmp_path, source) -> None:
    try:
        Path(os.fsdecode(os.fsencode(source) + b"/\xff\xfe")).write_text("x")
    except OSError:
        pytest.skip("this disk has no such names")
    decode = Decoder()
    for _ in range(2):
        decoded("name", tmp_path, [source], decode)
    assert decode.calls == 1


def test_each_name_and_each_set_of_options_has_its_own_file(tmp_path, source) -> None:
    cases = [("a", None), ("b", None), ("a", {"size": 8}), ("a", {"size": 9}), ("a", {"size": None}), ("a", [1])]
    cases += [("a", {"size": (8, 8), 1: "ü"})]  # JSON writes a list and a text
    decode = Decoder()
    for _ in range(2):
        for i, (name, options) in enumerate(cases):
            assert_same(decoded(name, tmp_path, [source], decode, options=options), samples(first=i + 1))
    assert decode.calls == len(cases) == len(list((tmp_path / "decoded").iterdir()))


def test_another_schema_decodes_again(tmp_path, source, monkeypatch) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    monkeypatch.setattr(_cache, "SCHEMA", _cache.SCHEMA + 1)
    for _ in range(2):
        assert_same(decoded("name", tmp_path, [source], decode), samples(first=2))
    cache_file(tmp_path)


def rewrite(path: Path, about: object, **tensors: torch.Tensor) -> None:
    """Write the same file with other metadata or tensors."""
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
    stored = {name: tensor for name, tensor in (stored | tensors).items() if tensor is not None}
    save_file(stored, path, metadata={_cache.KEY: about if isinstance(about, str) else json.dumps(about)})


def about(path: Path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()[_cache.KEY])


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not safetensors" * 100),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "header of any size": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    "no metadata": lambda path: save_file({"inputs": torch.zeros(1), "target": torch.zeros(1)}, path),
    "foreign metadata": lambda path: save_file({"inputs": torch.zeros(1)}, path, metadata={"format": "pt"}),
    "metadata that is no json": lambda path: rewrite(path, "{"),
    "metadata of no dictionary": lambda path: rewrite(path, []),
    "metadata of a number": lambda path: rewrite(path, 5),
    "metadata of nothing": lambda path: rewrite(path, None),
    "metadata of a text": lambda path: rewrite(path, '"text"'),
    "made of nothing": lambda path: rewrite(path, {}),
    "field missing": lambda path: rewrite(path, {k: v for k, v in about(path).items() if k != "words"}),
    "field too many": lambda path: rewrite(path, about(path) | {"more": 1}),
    "field of another type": lambda path: rewrite(path, about(path) | {"class_names": 3}),
    "too many training samples": lambda path: rewrite(path, about(path) | {"num_train": 4}),
    "no inputs": lambda path: rewrite(path, about(path), inputs=None),
    "no target": lambda path: rewrite(path, about(path), target=None),
}


def test_a_damaged_or_foreign_file_is_replaced(tmp_path, source) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    for calls, (damage, change) in enumerate(DAMAGES.items(), start=2):
        change(cache_file(tmp_path))
        for _ in range(2):
            assert_same(decoded("name", tmp_path, [source], decode), samples(first=calls))
        assert decode.calls == calls, damage
        assert cache_file(tmp_path)


def test_a_root_that_cannot_be_written_is_replaced_by_the_cache_folder(tmp_path, source) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "decoded").write_text("no folder")
    decode = Decoder()
    for _ in range(2):
        assert_same(decoded("name", root, [source], decode), samples(first=1))
    assert decode.calls == 1
    assert cached_files("name", root) == [cache_file(cache_folder())]
    lengthen(source)
    assert_same(decoded("name", root, [source], decode), samples(first=2))


def test_without_a_place_to_write_there_is_a_warning(tmp_path, source, monkeypatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "decoded").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "decoded"))
    decode = Decoder()
    for i in range(2):
        with pytest.warns(UserWarning, match="cannot be written: .*decoded on every run") as caught:
            assert_same(decoded("name", root, [source], decode), samples(first=i + 1))
        assert len(caught) == 1
        assert str(caught[0].message).startswith(f"{root / 'decoded' / 'name-'}")
    assert (root / "decoded").read_text() == "no folder"


def test_a_folder_in_the_place_of_the_file_is_kept(tmp_path, source) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    path = cache_file(tmp_path)
    path.unlink()
    (path / "precious").mkdir(parents=True)
    with pytest.warns(UserWarning, match="is a folder"):
        assert_same(decoded("name", tmp_path, [source], decode), samples(first=2))
    assert (path / "precious").is_dir()
    assert cache_file(tmp_path) == path


def test_an_error_while_writing_leaves_the_old_file(tmp_path, source, monkeypatch) -> None:
    decode = Decoder()
    decoded("name", tmp_path, [source], decode)
    before = cache_file(tmp_path).read_bytes()
    (source / "c").touch()

    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert_same(decoded("name", tmp_path, [source], decode), samples(first=2))
    assert cache_file(tmp_path).read_bytes() == before


def test_an_error_of_decoding_leaves_nothing(tmp_path, source) -> None:
    def decode() -> Samples:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match=r"^damaged$"):
        decoded("name", tmp_path, [source], decode)
    assert list((tmp_path / "decoded").iterdir()) == []


def test_one_of_many_decodes_and_the_others_wait(tmp_path, source) -> None:
    together = threading.Barrier(8)
    decode = Decoder()

    def load(_: int) -> Samples:
        together.wait()
        return decoded("name", tmp_path, [source], slowly)

    def slowly() -> Samples:
        threading.Event().wait(0.3)  # long enough for the others to find no file, and wait
        return decode()

    with ThreadPoolExecutor(8) as pool:
        for loaded in pool.map(load, range(8)):
            assert_same(loaded, samples(first=1))
    assert decode.calls == 1
    cache_file(tmp_path)


def test_a_changed_byte_of_the_tensors_is_detected(tmp_path, source) -> None:
    decoded("name", tmp_path, [source], Decoder())
    path = cache_file(tmp_path)
    assert cached_files("name", tmp_path) == [path]
    assert is_whole(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not is_whole(path)
    path.write_bytes(b"no cache")
    assert not is_whole(path)


def test_a_folder_called_decoded_belongs_to_the_data_unless_it_is_the_cache(tmp_path) -> None:
    (tmp_path / "pets" / "decoded").mkdir(parents=True)
    image = tmp_path / "pets" / "decoded" / "a.png"
    image.write_text("one")
    decode = Decoder()
    decoded("name", tmp_path, [tmp_path / "pets"], decode)
    image.write_text("other")
    decoded("name", tmp_path, [tmp_path / "pets"], decode)
    assert decode.calls == 2


def test_a_root_that_is_the_data_itself_is_not_changed_by_its_cache(source) -> None:
    decode = Decoder()
    for _ in range(2):
        decoded("name", source, [source], decode)
    assert decode.calls == 1
