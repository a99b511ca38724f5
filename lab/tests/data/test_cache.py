"""Decoded data are read from the cache the next time, unless a file that they were made of has changed."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dualfocal_lab.data import _cache
from dualfocal_lab.data._cache import Samples, cached_files, decoded, is_whole
from dualfocal_lab.data.paths import cache_folder

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


class Cache:
    """Loads samples that differ for each call of the decoder, which shows whether they were decoded or read."""

    def __init__(self, root: Path) -> None:
        self.root, self.source, self.calls = root, root / "source", 0
        (self.source / "deep").mkdir(parents=True)
        (self.source / "deep" / "a").write_text("content")
        (self.source / "b").write_text("content")

    def decode(self) -> Samples:
        self.calls += 1
        return samples(first=self.calls)

    def load(self, *files: Path) -> Samples:
        return decoded("name", self.root, list(files) or [self.source], self.decode)

    def check(self, calls: int, *files: Path) -> None:
        """Whether the samples were decoded so many times, and are now read from the only file of the cache."""
        for _ in range(2):
            assert_same(self.load(*files), samples(first=calls))
        assert self.calls == calls
        assert self.file.is_file()

    @property
    def file(self) -> Path:
        (only,) = (self.root / "decoded").iterdir()  # nothing else is there, temporary files neither
        return only


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path)


def test_it_is_decoded_once(cache) -> None:
    cache.check(1)
    assert cache.file.name.startswith("name-")
    cache.load().inputs.zero_()  # does not change the file
    cache.check(1)


def test_inputs_of_any_type_and_layout_come_back(cache) -> None:
    for dtype in (torch.uint8, torch.int32, torch.float32):
        inputs = torch.arange(24).view(4, 3, 2).transpose(0, 2).to(dtype)
        original = Samples(inputs, torch.tensor([[0, 9], [1, 9]])[:, 0], ("a", "b"), num_train=1)
        assert not inputs.is_contiguous()
        decoded(f"{dtype}", cache.root, [cache.source], lambda original=original: original)
        assert_same(decoded(f"{dtype}", cache.root, [cache.source], cache.decode), original)


# Changes


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


def test_any_change_in_the_folder_decodes_again(cache) -> None:
    cache.check(1)
    for calls, change in enumerate(CHANGES.values(), start=2):
        change(cache.source)
        cache.check(calls)
    cache.source.rename(cache.root / "other")
    cache.load(cache.root / "other")
    assert cache.calls == calls + 1


def test_a_change_of_one_of_several_files_decodes_again(cache) -> None:
    files = [cache.source / "b", cache.source / "deep" / "a"]
    for calls, change in enumerate([lambda _: None, write_later, lengthen], start=1):
        change(cache.source)
        cache.check(calls, *files)


def test_a_change_behind_a_link_decodes_again(cache) -> None:
    linked = cache.root / "linked"
    linked.mkdir()
    (linked / "deep").symlink_to(cache.source / "deep", target_is_directory=True)
    cache.check(1, linked)
    lengthen(cache.source)
    cache.check(2, linked)


def test_file_names_that_are_not_utf8_are_part_of_the_signature(cache) -> None:
    try:
        Path(os.fsdecode(os.fsencode(cache.source) + b"/\xff\xfe")).write_text("x")
    except OSError:
        pytest.skip("this disk has no such names")
    cache.check(1)


def test_each_name_and_each_set_of_options_has_its_own_file(cache) -> None:
    cases = [("a", None), ("b", None), ("a", {"size": 8}), ("a", {"size": 9}), ("a", {"size": None}), ("a", [1])]
    cases += [("a", {"size": (8, 8), 1: "ü"})]  # JSON writes a list and a text
    for _ in range(2):
        for i, (name, options) in enumerate(cases):
            loaded = decoded(name, cache.root, [cache.source], cache.decode, options=options)
            assert_same(loaded, samples(first=i + 1))
    assert cache.calls == len(cases) == len(list((cache.root / "decoded").iterdir()))


def test_another_schema_decodes_again(cache, monkeypatch) -> None:
    cache.check(1)
    monkeypatch.setattr(_cache, "SCHEMA", _cache.SCHEMA + 1)
    cache.check(2)


def test_a_folder_called_decoded_belongs_to_the_data_unless_it_is_the_cache(cache) -> None:
    image = cache.root / "pets" / "decoded" / "a.png"
    image.parent.mkdir(parents=True)
    for calls, content in enumerate(("one", "other"), start=1):
        image.write_text(content)
        cache.check(calls, cache.root / "pets")
    for _ in range(2):
        decoded("name", cache.source, [cache.source], cache.decode)  # the data are the root
    assert cache.calls == 3


# Damaged files


def rewrite(path: Path, metadata: object, **tensors: torch.Tensor) -> None:
    """Write the same file with other metadata or tensors."""
    with safe_open(path, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
    stored = {name: tensor for name, tensor in (stored | tensors).items() if tensor is not None}
    save_file(stored, path, metadata={_cache.KEY: metadata if isinstance(metadata, str) else json.dumps(metadata)})


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
    **{text: lambda path, text=text: rewrite(path, text) for text in ("{", "[]", "5", "null", '"text"', "{}")},
    "field missing": lambda path: rewrite(path, {k: v for k, v in about(path).items() if k != "words"}),
    "field too many": lambda path: rewrite(path, about(path) | {"more": 1}),
    "field of another type": lambda path: rewrite(path, about(path) | {"class_names": 3}),
    "too many training samples": lambda path: rewrite(path, about(path) | {"num_train": 4}),
    "no inputs": lambda path: rewrite(path, about(path), inputs=None),
    "no target": lambda path: rewrite(path, about(path), target=None),
}


def test_a_damaged_or_foreign_file_is_replaced_with_a_warning(cache) -> None:
    cache.check(1)
    for calls, (damage, change) in enumerate(DAMAGES.items(), start=2):
        change(cache.file)
        silent = damage == "{}"  # of other files, or of another version
        with nullcontext() if silent else pytest.warns(UserWarning, match="the data set is decoded again") as caught:
            cache.load()
        assert silent or len(caught) == 1, damage
        assert silent or str(caught[0].message).startswith(f"{cache.file}: is damaged"), damage
        assert cache.calls == calls, damage
        cache.check(calls)


def test_a_changed_bit_is_noticed(cache) -> None:
    cache.check(1)
    assert cached_files("name", cache.root) == [cache.file]
    assert is_whole(cache.file)
    content = cache.file.read_bytes()
    for calls, position in enumerate((-1, content.index(b"num_train") + 12), start=2):
        damaged = bytearray(content)
        damaged[position] ^= 1
        cache.file.write_bytes(damaged)
        assert not is_whole(cache.file)
        with pytest.warns(UserWarning, match="is damaged: its checksum is .* decoded again"):
            cache.load()
        cache.check(calls)
    cache.file.write_bytes(b"no cache")
    assert not is_whole(cache.file)


# Writing


def test_a_root_that_cannot_be_written_is_replaced_by_the_cache_folder_or_a_warning(cache, monkeypatch) -> None:
    place = cache.root / "decoded"
    place.write_text("no folder")
    for _ in range(2):
        assert_same(cache.load(), samples(first=1))
    assert [path.parent for path in cached_files("name", cache.root)] == [cache_folder() / "decoded"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    for calls in (2, 3):
        with pytest.warns(UserWarning, match="cannot be written: .*decoded on every run") as caught:
            assert_same(cache.load(), samples(first=calls))
        assert len(caught) == 1
        assert str(caught[0].message).startswith(f"{place / 'name-'}")
    assert place.read_text() == "no folder"


def test_a_folder_in_the_place_of_the_file_is_kept(cache) -> None:
    cache.check(1)
    path = cache.file
    path.unlink()
    (path / "precious").mkdir(parents=True)
    with pytest.warns(UserWarning, match="is a folder"):
        assert_same(cache.load(), samples(first=2))
    assert (path / "precious").is_dir()
    assert cache.file == path


def test_an_error_while_writing_leaves_the_old_file_and_one_of_decoding_leaves_none(cache, monkeypatch) -> None:
    with pytest.raises(ZeroDivisionError):
        decoded("name", cache.root, [cache.source], lambda: 1 / 0)
    assert list((cache.root / "decoded").iterdir()) == []
    cache.check(1)
    before = cache.file.read_bytes()
    (cache.source / "c").touch()

    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert_same(cache.load(), samples(first=2))
    assert cache.file.read_bytes() == before


def test_one_of_many_decodes_and_the_others_wait(cache) -> None:
    together = threading.Barrier(8)

    def slowly() -> Samples:
        threading.Event().wait(0.3)  # long enough for the others to find no file, and wait
        return cache.decode()

    def load(_: int) -> Samples:
        together.wait()
        return decoded("name", cache.root, [cache.source], slowly)

    with ThreadPoolExecutor(8) as pool:
        for loaded in pool.map(load, range(8)):
            assert_same(loaded, samples(first=1))
    cache.check(1)
