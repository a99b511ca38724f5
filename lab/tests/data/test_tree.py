"""Folders and archives are read alike; a damaged or hostile archive is refused, in little memory."""

import gzip
import io
import os
import stat
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from archive_bytes import compressed, header, pack, padded, pax, tar_of, with_checksum, zip_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualfocal_lab.data import _tree
from dualfocal_lab.data._tree import list_files, read_files

FILES = {"top/a.txt": b"first", "top/z": b"last" * 200, "top/deep/b.bin": bytes(range(256)) * 3, "top/deep/er/c": b""}
LIMIT = 10_000
MEGABYTE = 2**20
TARS = [".tar", ".tar.gz"]
ARCHIVES = [*TARS, ".zip"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """The current folder; the folder above it is watched, too, and so are temporary files."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setattr(tempfile, "tempdir", str(inside))
    return inside


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def put(suffix: str, content: bytes, folder: Path | None = None) -> Path:
    path = (folder or Path.cwd()) / f"data{suffix}"
    path.write_bytes(content)
    return path


def unpacked(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "top"


def read(path: Path, wanted=lambda _: True, limit: int = LIMIT) -> list[tuple[str, bytes]]:
    return list(read_files(path, wanted, limit=limit))


def on_disk(top: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def refusal(path: Path, limit: int = LIMIT, peak: int = MEGABYTE) -> str:
    """Message with which an archive is refused, after the path: without much memory, and with nothing written."""
    watched = Path.cwd().parent
    before = on_disk(watched)
    tracemalloc.start()
    try:
        files = read(path, limit=limit)
    except ValueError as error:
        message = str(error)
    else:
        pytest.fail(f"{path.name} was read: {[name for name, _ in files]}")
    finally:
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert memory < peak
    assert on_disk(watched) == before
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# Reading


def test_an_archive_holds_the_files_of_its_folder(here) -> None:
    folder = unpacked(FILES, here)
    assert read(folder) == list(FILES.items())
    for suffix in ARCHIVES:
        path = put(suffix, pack(suffix, FILES))
        assert read(path) == list(FILES.items()), suffix
        if suffix == ".zip":  # now by the usual tools
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for file in [folder, *sorted(folder.rglob("*"))]:
                    archive.write(file, file.relative_to(here))
        else:
            with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w:") as archive:
                archive.add(folder, "./top")  # the names of `tar c .`
        assert dict(read(path)) == FILES, suffix


@pytest.mark.parametrize("suffix", ["", *ARCHIVES])
def test_only_wanted_files_are_read_but_all_are_offered_and_counted(suffix, here) -> None:
    path = put(suffix, pack(suffix, FILES)) if suffix else unpacked(FILES, here)
    offered = []

    def wanted(name: str) -> bool:
        offered.append(name)
        return name.endswith((".bin", "z"))

    assert read(path, wanted) == [(name, FILES[name]) for name in ("top/z", "top/deep/b.bin")]
    assert offered == list(FILES) == list_files(path, limit=LIMIT)
    size = sum(map(len, FILES.values()))
    assert len(read(path, limit=size)) == len(FILES)
    assert "at least 1 bytes more than this data set can have" in refusal(path, limit=size - 1)
    if suffix:  # in a folder only wanted files count
        with pytest.raises(ValueError, match="more than this data set can have"):
            list_files(path, limit=size - 1)


def test_unusual_names_are_read(here) -> None:
    names = {f"top/{'long' * 60}/größe-猫": b"1", "top/x": b"2"}
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(here / "data.tar", "w", format=kind) as archive:
            for name, content in names.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        assert dict(read(here / "data.tar")) == dict(read(put(".zip", zip_of(names)))) == names
    files = {"top/a": b"1", "top/ab": b"2"}  # the name of one begins with that of the other
    folder = header("top", kind=tarfile.DIRTYPE)
    for suffix in ARCHIVES:
        assert dict(read(put(suffix, pack(suffix, files)))) == files
        twice = zip_of({"top/": b"", "TOP/": b"", "top/a": b"1"}).replace(b"TOP/", b"top/")
        content = twice if suffix == ".zip" else compressed(suffix, folder + folder + tar_of({"top/a": b"1"}))
        assert read(put(suffix, content)) == [("top/a", b"1")], suffix


def test_a_folder_may_be_relative(here, monkeypatch) -> None:
    folder = unpacked(FILES, here)
    assert read(Path("top")) == list(FILES.items())
    monkeypatch.chdir(folder)
    assert read(Path(".")) == list(FILES.items())
    assert [name for name, _ in read(Path("deep"))] == ["deep/b.bin", "deep/er/c"]


def test_links_in_a_folder_are_followed_unless_they_lead_back(here) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "c").write_bytes(b"linked")
    folder = unpacked(FILES, here)
    (folder / "link").symlink_to(here / "elsewhere", target_is_directory=True)
    (folder / "y").symlink_to(here / "elsewhere" / "c")
    (here / "other").symlink_to(folder, target_is_directory=True)
    assert dict(read(folder)) == FILES | {"top/link/c": b"linked", "top/y": b"linked"}
    assert [name for name, _ in read(here / "other")][:2] == ["other/a.txt", "other/y"]
    for one, other in ("ab", "ba"):
        (here / "loop" / one).mkdir(parents=True, exist_ok=True)
        for link in "lm":
            (here / "loop" / one / link).symlink_to(here / "loop" / other)
    with pytest.raises(ValueError, match="leads back to a folder"):
        read(here / "loop")


def test_pipes_and_devices_in_a_folder_are_not_read(here) -> None:
    (here / "top").mkdir()
    os.mkfifo(here / "top" / "pipe")
    with pytest.raises(ValueError, match="has 'top/pipe', a link, device"):
        read(here / "top")
    (here / "top" / "pipe").unlink()
    (here / "top" / "zeros").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="has 'top/zeros', a link, device"):
        read(here / "top")


# Hostile archives


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_path_that_leads_out_is_refused(suffix) -> None:
    names = ["/etc/x", "../x", "a/../../x", "top/..", "..", "a\\x", "..\\x", "C:/x", "C:x", "c:\\x", "//server/x"]
    for name in names:
        path = put(suffix, pack(suffix, {"top/a": b"1", name: b"2"}))
        assert f"has {name!r}, a path that leads out of it" in refusal(path)


def test_links_and_devices_are_refused(here) -> None:
    words = "has 'top/odd', a link, device or other special file"
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, b"Z")
    for kind in kinds:
        odd = header("top/odd", 0, kind, at_157=b"/etc/passwd")
        for suffix in TARS:
            assert words in refusal(put(suffix, compressed(suffix, odd + tar_of(FILES)))), kind
    for mode in (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK):
        info = zipfile.ZipInfo("top/odd")
        info.external_attr = (mode | 0o777) << 16
        with zipfile.ZipFile(here / "data.zip", "w") as archive:
            archive.writestr(info, "/etc/passwd")
        assert words in refusal(here / "data.zip"), mode


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_duplicate_file_is_refused(suffix) -> None:
    for name in ("top/a", "top//a", "./top/a", "top/./a"):
        if suffix == ".zip":
            content = zip_of({"top/a": b"1", "@" * len(name): b"2"}).replace(b"@" * len(name), name.encode())
        else:
            content = compressed(suffix, header("top/a", 1) + padded(b"1") + tar_of({name: b"2"}))
        assert f"has {name!r} twice" in refusal(put(suffix, content))


def test_too_many_files_are_refused(monkeypatch) -> None:
    for suffix in ARCHIVES:
        path = put(suffix, pack(suffix, {f"top/{i}": b"" for i in range(5)}))
        monkeypatch.setattr(_tree, "MAX_FILES", 5)
        assert len(read(path)) == 5
        monkeypatch.setattr(_tree, "MAX_FILES", 4)
        assert "has more than 4 files" in refusal(path)


SPARSE = {"at_386": b"%011o\0" % 0 + b"%011o\0" % 5, "at_483": b"%011o\0" % (8**11 - 1)}
TOO_LARGE = {
    "octal": header("top/a", 8**11 - 1),
    "binary": header("top/a", 2**62),
    "beyond any file": header("top/a", 2**85),
    "pax": pax(size=10**12) + header("top/a", 5),
    "sparse": header("top/a", 5, tarfile.GNUTYPE_SPARSE, **SPARSE),
    "pax sparse": pax(GNU_sparse_map="0,5", GNU_sparse_size=10**12) + header("top/a", 5),
    "pax header": header("pax", 4 * 10**9, tarfile.XHDTYPE),
    "global header": header("pax", 4 * 10**9, tarfile.XGLTYPE),
    "long name": header("name", 4 * 10**9, tarfile.GNUTYPE_LONGNAME),
    "long link": header("name", 2**70, tarfile.GNUTYPE_LONGLINK),
}
NEGATIVE = {
    "file": header("top/a", -(2**40)),
    "file, a little": header("top/a", -1),
    "file, back to itself": header("top/a", -512),
    "pax": pax(size=-(10**12)) + header("top/a", 5),
    "sparse": header("top/a", -(2**40), tarfile.GNUTYPE_SPARSE, **(SPARSE | {"at_483": b"%011o\0" % 5})),
    "pax header": header("pax", -512, tarfile.XHDTYPE),
    "long name": header("name", -(2**40), tarfile.GNUTYPE_LONGNAME),
    "pax header, all of it": header("pax", -1, tarfile.XHDTYPE),
}


@pytest.mark.parametrize("suffix", TARS)
def test_a_tar_that_states_a_huge_or_negative_size_is_refused(suffix) -> None:
    start = tar_of({"top/first": b"1"})[:1024]
    for lie, block in TOO_LARGE.items():
        message = refusal(put(suffix, compressed(suffix, start + block + bytes(3_000_000))))
        assert "more than this data set can have" in message or "sparse" in lie, lie
    for lie, block in NEGATIVE.items():
        tar = start + block + padded(b"12345") + tar_of({"top/last": b"1"})
        assert refusal(put(suffix, compressed(suffix, tar))), lie


def gnu_map() -> bytes:
    """A header of a sparse file that continues for 4 MB."""
    places = b"%011o\0" % 1 * 42 + b"\1" + bytes(7)  # the 1 says that there is more
    first = header("top/a", 0, tarfile.GNUTYPE_SPARSE, at_386=places[:96] + b"\1" + b"%011o\0" % 5)
    return first + places * (4 * MEGABYTE // 512)


def pax_map() -> bytes:
    """The same in text, its numbers as wide as a block."""
    start = pax(GNU_sparse_major=1, GNU_sparse_minor=0, GNU_sparse_name="top/a", GNU_sparse_realsize=5)
    numbers = 4 * MEGABYTE // 512
    return start + header("top/a", 5) + f"{numbers // 2:0511}\n".encode() + f"{1:0511}\n".encode() * numbers


def test_headers_without_end_are_refused() -> None:
    for tar in (gnu_map() + bytes(10240), pax_map() + bytes(10240), pax(a="b") * 5000 + tar_of(FILES)):
        assert refusal(put(".tar.gz", gzip.compress(tar)), peak=4 * MEGABYTE)


def test_a_zip_that_unfolds_beyond_the_limit_is_refused() -> None:
    path = put(".zip", zip_of({"top/a": bytes(20_000_000)}))
    assert path.stat().st_size < 50_000
    assert "at least 19,990,000 bytes more than this data set can have" in refusal(path)


METHODS = [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]


def test_a_zip_that_unfolds_beyond_its_stated_size_is_refused() -> None:
    for method in METHODS:
        content = bytearray(zip_of({"top/a": bytes(20_000_000)}, method))
        content[22:26] = struct.pack("<I", 10)
        entry = content.index(b"PK\1\2")
        content[entry + 24 : entry + 28] = struct.pack("<I", 10)
        assert refusal(put(".zip", bytes(content)), peak=12 * MEGABYTE), method


# Damaged archives


def test_a_file_that_is_not_an_archive_of_its_suffix_is_refused() -> None:
    words = "is damaged, or not a supported archive: "
    for suffix in ARCHIVES:
        for content in (b"", b"not an archive", b"not an archive" * 1000, bytes(5000)):
            path = put(suffix, content)
            if suffix == ".tar" and content == bytes(5000):
                assert read(path) == []  # an empty tar
            else:
                assert words in refusal(path), (suffix, content[:20])
        for other in set(ARCHIVES) - {suffix}:
            assert words in refusal(put(suffix, pack(other, FILES))), (suffix, other)
    for content in (b"not a tar" * 1000, b"", tar_of(FILES)[:300]):
        assert words in refusal(put(".tar.gz", gzip.compress(content))), content[:20]


def test_a_damaged_zip_is_refused() -> None:
    content = bytearray(zip_of({"top/a": b"1"}))
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    assert "encrypted" in refusal(put(".zip", bytes(content)))
    for method in (1, 9, 12, 14, 99):
        content = bytearray(zip_of(FILES))
        content[8] = method
        content[content.index(b"PK\1\2") + 10] = method
        assert refusal(put(".zip", bytes(content)), peak=12 * MEGABYTE), method
    for method in METHODS:
        content = bytearray(zip_of({"top/a": FILES["top/deep/b.bin"]}, method))
        content[60:80] = bytes(20)
        assert refusal(put(".zip", bytes(content)), peak=12 * MEGABYTE), method
    assert refusal(put(".zip", zip_of({"@": b"1"}).replace(b"@", b"\0")))  # a file without a name
    content = bytearray(zip_of(FILES))
    end = content.index(b"PK\5\6")
    content[end + 16 : end + 20] = struct.pack("<I", 10**9)  # it begins before its file
    assert refusal(put(".zip", bytes(content)))


def test_a_damaged_tar_is_refused() -> None:
    tar = bytearray(tar_of(FILES))
    tar[1024 + 3] ^= 1  # a header in the middle must not pass for the end: the files after it would be missing
    for suffix in TARS:
        assert refusal(put(suffix, compressed(suffix, bytes(tar)))), suffix
    content = bytearray(gzip.compress(tar_of(FILES) + bytes(20_000)))
    content[-6] ^= 1
    assert "CRC" in refusal(put(".tar.gz", bytes(content)))
    assert refusal(put(".tar.gz", pack(".tar.gz", FILES) + b"garbage"))


def read_or_refuse(suffix: str, content: bytes, folder: Path) -> list[tuple[str, bytes]] | None:
    """The files of an archive that may be damaged; None if it is refused in the usual way."""
    path = put(suffix, content, folder)
    try:
        return read(path)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 it need not be raised
        return None


@pytest.mark.parametrize("suffix", ARCHIVES)
@settings(max_examples=80)
@given(share=st.floats(0, 1, exclude_max=True))
@example(share=0.0)
@example(share=1024 / len(tar_of(FILES)))  # between two files
@example(share=1100 / len(tar_of(FILES)))  # in a header
def test_an_archive_cut_short_is_refused_or_has_all_its_files(suffix, share, scratch) -> None:
    whole = pack(suffix, FILES)
    assert read_or_refuse(suffix, whole[: int(share * len(whole))], scratch) in (None, list(FILES.items()))


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)
TWO = {"top/a": b"first", "top/b": b"second"}


def changed(content: bytes, changes: list[tuple[float, int]]) -> bytes:
    result = bytearray(content)
    for share, value in changes:
        result[int(share * len(result))] = value
    return bytes(result)


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_are_refused_or_read(suffix, changes, scratch) -> None:
    files = read_or_refuse(suffix, changed(pack(suffix, TWO), changes), scratch) or []
    assert sum(len(content) for _, content in files) <= LIMIT


@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_of_a_header_with_the_right_checksum_are_refused_or_read(changes, scratch) -> None:
    tar = with_checksum(changed(header("top/a", 5), changes)) + padded(b"first") + tar_of({"top/b": b"second"})
    files = read_or_refuse(".tar", tar, scratch) or []
    assert sum(len(content) for _, content in files) <= LIMIT


@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_of_a_gz_are_refused_or_harmless(changes, scratch) -> None:
    files = read_or_refuse(".tar.gz", changed(pack(".tar.gz", TWO), changes), scratch)
    assert files in (None, list(TWO.items()))
