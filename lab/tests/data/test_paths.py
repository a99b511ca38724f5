"""The folders in which data are looked for, and the message if they are missing."""

from pathlib import Path

import pytest

from dualfocal_lab.data.paths import VARIABLE, DataNotFoundError, data_root, find, look_for, on_disk
from dualfocal_lab.data.sources import OFFICIAL


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "cache" / "dualfocal"


def test_the_argument_comes_before_the_variable_and_that_before_the_cache_folder(cache, monkeypatch) -> None:
    assert VARIABLE == "DUALFOCAL_DATA"
    assert data_root() == data_root(None) == data_root("") == cache
    monkeypatch.setenv(VARIABLE, "")
    assert data_root() == cache
    monkeypatch.setenv(VARIABLE, "/from/the/variable")
    assert data_root() == Path("/from/the/variable")
    assert data_root("/given") == data_root(Path("/given")) == Path("/given")


def test_the_home_folder_is_expanded(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "~/variable")
    assert data_root() == tmp_path / "variable"
    assert data_root("~/given") == data_root(Path("~/given")) == tmp_path / "given"
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "file").touch()
    assert look_for("name", "~/given", "file") == tmp_path / "given" / "file"


def test_files_and_folders_are_found_in_the_root_in_the_named_folder_or_as_the_root(tmp_path) -> None:
    assert look_for("name", tmp_path, "data") is None
    (tmp_path / "name" / "data").mkdir(parents=True)
    assert look_for("name", tmp_path, "data") == tmp_path / "name" / "data"
    assert look_for("name", tmp_path / "name" / "data", "data") == tmp_path / "name" / "data"
    assert look_for("other", tmp_path, "data") is None
    (tmp_path / "data").touch()
    assert look_for("name", tmp_path, "data") == tmp_path / "data"
    assert look_for("name", tmp_path / "name", "other") is None  # a root with another name is not the data


def test_a_root_that_is_a_file_is_refused(tmp_path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ValueError, match=r"root must be a folder, .*data is a file"):
        data_root(tmp_path / "data")


def test_the_first_of_several_names_is_found_wherever_it_is(tmp_path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "second").touch()
    (tmp_path / "third").touch()
    assert look_for("name", tmp_path, "first", "second", "third") == tmp_path / "second"
    (tmp_path / "name" / "first").touch()
    assert look_for("name", tmp_path, "first", "second", "third") == tmp_path / "name" / "first"
    assert find("name", tmp_path, "first", "second", "third") == tmp_path / "name" / "first"


def test_the_variable_and_the_cache_folder_are_searched(cache, tmp_path, monkeypatch) -> None:
    cache.mkdir(parents=True)
    (cache / "data").touch()
    assert find("cifar10", None, "data") == cache / "data"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (tmp_path / "data").touch()
    assert find("cifar10", None, "data") == tmp_path / "data"


def test_the_searched_folder_is_named_if_none_was_given_and_not_made(cache) -> None:
    with pytest.raises(DataNotFoundError, match=r"cifar10: no one or two in .*cache/dualfocal: run"):
        find("cifar10", None, "one", "two")
    assert not cache.exists()


def test_data_without_download_are_explained(tmp_path) -> None:
    official = OFFICIAL["20newsgroups"]
    assert not official.sources
    with pytest.raises(DataNotFoundError) as caught:
        find("20newsgroups", tmp_path, *official.layouts)
    message = str(caught.value)
    for words in ("20news-19997.tar.gz from qwone.com", "use 20newsgroups_bydate", str(tmp_path), VARIABLE):
        assert words in message
    assert "fetch" not in message
    assert "\n" not in message


def test_a_data_set_of_parts_is_on_disk_when_all_of_them_are(tmp_path) -> None:
    assert on_disk("svhn", tmp_path) is None
    (tmp_path / "test_32x32.mat").touch()
    assert on_disk("svhn", tmp_path) is None
    (tmp_path / "train_32x32.mat").touch()
    assert on_disk("svhn", tmp_path) == tmp_path / "train_32x32.mat"
    assert on_disk("cifar10", tmp_path) is None
    assert on_disk("digits", tmp_path) == tmp_path
    with pytest.raises(ValueError, match=r"must be one of .*got 'cifar-10'; did you mean cifar10\?"):
        on_disk("cifar-10", tmp_path)
