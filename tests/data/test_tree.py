"""Folders and archives are read alike; an archive that is damaged or hostile is refused, in little memory."""

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
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualfocal.data import _tree
from dualfocal.data._tree import list_files, read_files

FILES = {"top/a.txt": b"first", "top/z": b"last" * 200, "top/deep/b.bin": bytes(range(256)) * 3, "top/deep/er/c": b""}
LIMIT = 10_000
MEGABYTE = 2**20
TARS = [".tar", ".tar.gz"]
ARCHIVES = [*TARS, ".zip"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder to be in, with one above it that is also watched; temporary files would be seen, too."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setattr(tempfile, "tempdir", str(inside))
    return inside


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields: bytes) -> bytes:
    """Of a tar, with any size, also one that no file has; fields are ``at_N`` bytes."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    for place, value in fields.items():
        begin = int(place.removeprefix("at_"))
        block[begin : begin + len(value)] = value
    return with_checksum(block)


def with_checksum(block: bytes) -> bytes:
    summed = sum(block[:148]) + sum(block[156:512]) + 8 * ord(" ")
    return bytes(block[:148]) + b"%06o\0 " % summed + bytes(block[156:])


def pax(**records: object) -> bytes:
    """A header that says more of the next one; ``_`` in names are dots."""
    body = b""
    for key, value in records.items():
        record = f" {key.replace('_', '.')}={value}\n".encode()
        length = len(record) + 1
        while len(str(length)) + len(record) != length:
            length += 1
        body += str(length).encode() + record
    return header("pax", len(body), tarfile.XHDTYPE) + padded(body)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def tar_of(files: dict[str, bytes]) -> bytes:
    return b"".join(header(name, len(content)) + padded(content) for name, content in files.items()) + bytes(1024)


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return held.getvalue()


def pack(suffix: str, files: dict[str, bytes]) -> bytes:
    if suffix == ".zip":
        return zip_of(files)
    return compressed(suffix, tar_of(files))


def compressed(suffix: str, tar: bytes) -> bytes:
    return gzip.compress(tar, mtime=0) if suffix.endswith("gz") else tar


def put(suffix: str, content: bytes, folder: Path | None = None) -> Path:
    path = (folder or Path.cwd()) / f"data{suffix}"
    path.write_bytes(content)
    return path


def unpacked(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "top"


def everything(_: str) -> bool:
    return True


def read(path: Path, wanted=everything, limit: int = LIMIT) -> list[tuple[str, bytes]]:
    return list(read_files(path, wanted, limit=limit))


def on_disk(top: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in top.rglob("*")}


def refused(path: Path, limit: int = LIMIT, peak: int = MEGABYTE) -> str:
    """What is said of an archive that must be refused, without much memory, with nothing written anywhere near."""
    watched = Path.cwd().parent
    before = on_disk(watched)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 each caller matches what comes after the path
            read(path, limit=limit)
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()
    assert on_disk(watched) == before
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# What is there is read


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_holds_what_its_folder_holds(suffix, here) -> None:
    folder = unpacked(FILES, here)
    assert read(put(suffix, pack(suffix, FILES))) == read(folder) == list(FILES.items())


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_archives_of_the_usual_tools_are_read(suffix, here) -> None:
    folder, path = unpacked(FILES, here), here / f"data{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in [folder, *sorted(folder.rglob("*"))]:
                archive.write(file, file.relative_to(here))
    else:
        with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w:") as archive:
            archive.add(folder, "./top")  # as `tar c .` names them
    assert dict(read(path)) == FILES


@pytest.mark.parametrize("suffix", ["", *ARCHIVES])
def test_only_wanted_files_are_given_and_all_are_offered(suffix, here) -> None:
    path = put(suffix, pack(suffix, FILES)) if suffix else unpacked(FILES, here)
    offered = []

    def wanted(name: str) -> bool:
        offered.append(name)
        return name.endswith((".bin", "z"))

    assert read(path, wanted) == [(name, FILES[name]) for name in ("top/z", "top/deep/b.bin")]
    assert offered == list(FILES) == list_files(path, limit=LIMIT)


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read(kind, here) -> None:
    names = {f"top/{'long' * 60}/größe-猫": b"1", "top/x": b"2"}
    with tarfile.open(here / "data.tar", "w", format=kind) as archive:
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert dict(read(here / "data.tar")) == dict(read(put(".zip", zip_of(names)))) == names


def test_a_folder_may_be_relative(here, monkeypatch) -> None:
    folder = unpacked(FILES, here)
    assert read(Path("top")) == list(FILES.items())
    monkeypatch.chdir(folder)
    assert read(Path(".")) == list(FILES.items())
    assert [name for name, _ in read(Path("deep"))] == ["deep/b.bin", "deep/er/c"]


def test_links_in_a_folder_are_followed(here) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "c").write_bytes(b"linked")
    folder = unpacked(FILES, here)
    (folder / "link").symlink_to(here / "elsewhere", target_is_directory=True)
    (folder / "y").symlink_to(here / "elsewhere" / "c")
    (here / "other").symlink_to(folder, target_is_directory=True)
    assert dict(read(folder)) == FILES | {"top/link/c": b"linked", "top/y": b"linked"}
    assert [name for name, _ in read(here / "other")][:2] == ["other/a.txt", "other/y"]


@pytest.mark.parametrize("suffix", ["", *ARCHIVES])
def test_the_limit_is_of_all_files_together(suffix, here) -> None:
    path = put(suffix, pack(suffix, FILES)) if suffix else unpacked(FILES, here)
    size = sum(map(len, FILES.values()))
    assert len(read(path, limit=size)) == len(FILES)
    assert refused(path, limit=size - 1) == "has at least 1 bytes more than this data set can have"


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_files_that_are_not_wanted_count_too(suffix) -> None:
    path = put(suffix, pack(suffix, FILES))
    with pytest.raises(ValueError, match="more than this data set can have"):
        list_files(path, limit=sum(map(len, FILES.values())) - 1)


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_file_with_the_name_of_a_folder_stays_apart_from_it(suffix) -> None:
    files = {"top/a": b"1", "top/ab": b"2"}
    assert dict(read(put(suffix, pack(suffix, files)))) == files


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_folder_may_be_named_twice(suffix) -> None:
    if suffix == ".zip":
        content = zip_of({"top/": b"", "TOP/": b"", "top/a": b"1"}).replace(b"TOP/", b"top/")
    else:
        folder = header("top", kind=tarfile.DIRTYPE)
        content = compressed(suffix, folder + folder + tar_of({"top/a": b"1"}))
    assert read(put(suffix, content)) == [("top/a", b"1")]


# Hostile archives


LEADS_OUT = ["/etc/x", "../x", "a/../../x", "top/..", "..", "a\\x", "..\\x", "C:/x", "C:x", "c:\\x", "//server/x"]


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize("name", LEADS_OUT)
def test_a_path_that_leads_out_is_refused(name, suffix) -> None:
    path = put(suffix, pack(suffix, {"top/a": b"1", name: b"2"}))
    assert refused(path) == f"has {name!r}, a path that leads out of it"


KINDS = {
    "symlink": (tarfile.SYMTYPE, stat.S_IFLNK),
    "hardlink": (tarfile.LNKTYPE, None),
    "fifo": (tarfile.FIFOTYPE, stat.S_IFIFO),
    "character device": (tarfile.CHRTYPE, stat.S_IFCHR),
    "block device": (tarfile.BLKTYPE, stat.S_IFBLK),
    "socket": (None, stat.S_IFSOCK),
    "unknown": (b"Z", None),
}


@pytest.mark.parametrize("suffix", TARS)
@pytest.mark.parametrize("kind", [name for name, (of_tar, _) in KINDS.items() if of_tar])
def test_links_and_devices_in_a_tar_are_refused(kind, suffix) -> None:
    odd = header("top/odd", 0, KINDS[kind][0], at_157=b"/etc/passwd")
    path = put(suffix, compressed(suffix, odd + tar_of(FILES)))
    assert refused(path) == "has 'top/odd', a link, device or other special file; only files and folders are read"


@pytest.mark.parametrize("kind", [name for name, (_, of_zip) in KINDS.items() if of_zip])
def test_links_and_devices_in_a_zip_are_refused(kind, here) -> None:
    info = zipfile.ZipInfo("top/odd")
    info.external_attr = (KINDS[kind][1] | 0o777) << 16
    with zipfile.ZipFile(here / "data.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    assert (
        refused(here / "data.zip")
        == "has 'top/odd', a link, device or other special file; only files and folders are read"
    )


@pytest.mark.parametrize("again", ["top/a", "top//a", "./top/a", "top/./a"])
@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_file_that_is_there_twice_is_refused(suffix, again) -> None:
    if suffix == ".zip":
        content = zip_of({"top/a": b"1", "@" * len(again): b"2"}).replace(b"@" * len(again), again.encode())
    else:
        content = compressed(suffix, header("top/a", 1) + padded(b"1") + tar_of({again: b"2"}))
    assert refused(put(suffix, content)) == f"has {again!r} twice"


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_too_many_files_are_refused(suffix, monkeypatch) -> None:
    path = put(suffix, pack(suffix, {f"top/{i}": b"" for i in range(5)}))
    monkeypatch.setattr(_tree, "MAX_FILES", 5)
    assert len(read(path)) == 5
    monkeypatch.setattr(_tree, "MAX_FILES", 4)
    assert refused(path) == "has more than 4 files"


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


@pytest.mark.parametrize("suffix", TARS)
@pytest.mark.parametrize("lie", TOO_LARGE)
def test_a_tar_that_states_a_huge_size_is_refused(lie, suffix) -> None:
    tar = tar_of({"top/first": b"1"})[:1024] + TOO_LARGE[lie] + bytes(3_000_000)
    message = refused(put(suffix, compressed(suffix, tar)))
    assert "more than this data set can have" in message or "sparse" in lie


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
@pytest.mark.parametrize("lie", NEGATIVE)
def test_a_tar_that_states_a_size_below_0_is_refused(lie, suffix) -> None:
    tar = tar_of({"top/first": b"1"})[:1024] + NEGATIVE[lie] + padded(b"12345") + tar_of({"top/last": b"1"})
    assert refused(put(suffix, compressed(suffix, tar)))


def gnu_map() -> bytes:
    """A header of a sparse file that goes on for 4 MB."""
    places = b"%011o\0" % 1 * 42 + b"\1" + bytes(7)  # the 1 says that there is more
    first = header("top/a", 0, tarfile.GNUTYPE_SPARSE, at_386=places[:96] + b"\1" + b"%011o\0" % 5)
    return first + places * (4 * MEGABYTE // 512)


def pax_map() -> bytes:
    """The same in text, its numbers as wide as a block."""
    message = pax(GNU_sparse_major=1, GNU_sparse_minor=0, GNU_sparse_name="top/a", GNU_sparse_realsize=5)
    numbers = 4 * MEGABYTE // 512
    return message + header("top/a", 5) + f"{numbers // 2:0511}\n".encode() + f"{1:0511}\n".encode() * numbers


@pytest.mark.parametrize("make", [gnu_map, pax_map])
def test_headers_that_unfold_without_end_are_refused(make) -> None:
    assert refused(put(".tar.gz", gzip.compress(make() + bytes(10240))), peak=4 * MEGABYTE)


def test_headers_of_headers_are_refused() -> None:
    assert refused(put(".tar.gz", gzip.compress(pax(a="b") * 5000 + tar_of(FILES))), peak=4 * MEGABYTE)


def test_a_zip_that_unfolds_beyond_the_limit_is_refused() -> None:
    path = put(".zip", zip_of({"top/a": bytes(20_000_000)}))
    assert path.stat().st_size < 50_000
    assert refused(path) == "has at least 19,990,000 bytes more than this data set can have"


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_unfolds_beyond_what_it_states_is_refused(method) -> None:
    content = bytearray(zip_of({"top/a": bytes(20_000_000)}, method))
    content[22:26] = struct.pack("<I", 10)
    entry = content.index(b"PK\1\2")
    content[entry + 24 : entry + 28] = struct.pack("<I", 10)
    assert refused(put(".zip", bytes(content)), peak=12 * MEGABYTE)


# Damaged archives


NO_ARCHIVES = {"empty": b"", "short": b"not an archive", "long": b"not an archive" * 1000, "zeros": bytes(5000)}


@pytest.mark.parametrize("content", NO_ARCHIVES)
@pytest.mark.parametrize("suffix", ARCHIVES)
def test_what_is_no_archive_is_refused(suffix, content) -> None:
    path = put(suffix, NO_ARCHIVES[content])
    if suffix == ".tar" and content == "zeros":
        assert read(path) == []  # which is an empty tar
    else:
        assert refused(path).startswith("is damaged, or not a supported archive: ")


@pytest.mark.parametrize("content", [b"not a tar" * 1000, b"", tar_of(FILES)[:300]], ids=["text", "empty", "cut"])
def test_what_is_no_tar_but_compressed_is_refused(content) -> None:
    assert refused(put(".tar.gz", gzip.compress(content))).startswith("is damaged, or not a supported archive: ")


@pytest.mark.parametrize("other", ARCHIVES)
@pytest.mark.parametrize("suffix", ARCHIVES)
def test_an_archive_of_another_kind_is_refused(suffix, other) -> None:
    path = put(suffix, pack(other, FILES))
    if suffix == other:
        assert dict(read(path)) == FILES
    else:
        assert refused(path).startswith("is damaged, or not a supported archive: ")


def test_encrypted_files_are_refused() -> None:
    content = bytearray(zip_of({"top/a": b"1"}))
    content[6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    assert "encrypted" in refused(put(".zip", bytes(content)))


@pytest.mark.parametrize("method", [1, 9, 12, 14, 99])
def test_a_zip_that_states_another_method_is_refused(method) -> None:
    content = bytearray(zip_of(FILES))
    content[8] = method
    content[content.index(b"PK\1\2") + 10] = method
    assert refused(put(".zip", bytes(content)), peak=12 * MEGABYTE)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_content_of_a_zip_is_refused(method) -> None:
    content = bytearray(zip_of({"top/a": FILES["top/deep/b.bin"]}, method))
    content[60:80] = bytes(20)
    assert refused(put(".zip", bytes(content)), peak=12 * MEGABYTE)


def test_a_file_without_a_name_is_refused() -> None:
    assert refused(put(".zip", zip_of({"@": b"1"}).replace(b"@", b"\0")))


def test_a_zip_that_begins_before_its_file_is_refused() -> None:
    content = bytearray(zip_of(FILES))
    end = content.index(b"PK\5\6")
    content[end + 16 : end + 20] = struct.pack("<I", 10**9)
    assert refused(put(".zip", bytes(content)))


@pytest.mark.parametrize("suffix", TARS)
def test_a_damaged_header_in_the_middle_is_refused(suffix) -> None:
    """It must not pass for the end: what comes after it would be missing, and nobody told."""
    tar = bytearray(tar_of(FILES))
    tar[1024 + 3] ^= 1
    assert refused(put(suffix, compressed(suffix, bytes(tar))))


def test_a_wrong_checksum_of_a_gz_is_refused() -> None:
    content = bytearray(gzip.compress(tar_of(FILES) + bytes(20_000)))
    content[-6] ^= 1
    assert "CRC" in refused(put(".tar.gz", bytes(content)))


def test_a_gz_with_garbage_at_its_end_is_refused() -> None:
    assert refused(put(".tar.gz", pack(".tar.gz", FILES) + b"garbage"))


@pytest.mark.parametrize("suffix", ARCHIVES)
@settings(max_examples=80)
@given(share=st.floats(0, 1, exclude_max=True))
@example(share=0.0)
@example(share=1024 / len(tar_of(FILES)))  # between two files
@example(share=1100 / len(tar_of(FILES)))  # in a header
def test_an_archive_cut_short_is_refused_or_has_all_its_files(suffix, share, scratch) -> None:
    whole = pack(suffix, FILES)
    path = put(suffix, whole[: int(share * len(whole))], scratch)
    try:
        assert read(path) == list(FILES.items())
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 it need not be raised


CHANGES = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4)


def changed(content: bytes, changes: list[tuple[float, int]]) -> bytearray:
    result = bytearray(content)
    for share, value in changes:
        result[int(share * len(result))] = value
    return result


@pytest.mark.parametrize("suffix", ARCHIVES)
@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_are_refused_or_read(suffix, changes, scratch) -> None:
    content = pack(suffix, {"top/a": b"first", "top/b": b"second"})
    path = put(suffix, bytes(changed(content, changes)), scratch)
    try:
        assert all(len(content) <= LIMIT for _, content in read(path))
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 it need not be raised


@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_of_a_header_with_the_right_checksum_are_refused_or_read(changes, scratch) -> None:
    tar = with_checksum(changed(header("top/a", 5), changes)) + padded(b"first") + tar_of({"top/b": b"second"})
    path = put(".tar", tar, scratch)
    try:
        assert sum(len(content) for _, content in read(path)) <= LIMIT
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 it need not be raised


@settings(max_examples=200)
@given(changes=CHANGES)
def test_changed_bytes_of_a_gz_are_refused_or_harmless(changes, scratch) -> None:
    files = {"top/a": b"first", "top/b": b"second"}
    path = put(".tar.gz", bytes(changed(pack(".tar.gz", files), changes)), scratch)
    try:
        assert dict(read(path)) == files
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 it need not be raised


def test_folders_that_lead_to_each_other_are_refused(here) -> None:
    for one, other in ("ab", "ba"):
        (here / "top" / one).mkdir(parents=True, exist_ok=True)
        for link in "lm":
            (here / "top" / one / link).symlink_to(here / "top" / other)
    with pytest.raises(ValueError, match="leads back to a folder"):
        read(here / "top")


def test_pipes_and_devices_in_a_folder_are_not_read(here) -> None:
    (here / "top").mkdir()
    os.mkfifo(here / "top" / "pipe")
    with pytest.raises(ValueError, match="has 'top/pipe', a link, device"):
        read(here / "top")
    (here / "top" / "pipe").unlink()
    (here / "top" / "zeros").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="has 'top/zeros', a link, device"):
        read(here / "top")
