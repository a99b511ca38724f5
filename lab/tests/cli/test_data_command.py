"""`dualfocal data`: CIFAR-10 in its official layout, but small, comes from a real server on this machine.

The server's paths say how it behaves.
"""

import functools
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import socket
import tarfile
import threading
from collections.abc import Iterable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dualfocal_lab.data import download, load_data
from dualfocal_lab.data.paths import DataNotFoundError
from dualfocal_lab.data.sources import OFFICIAL, OfficialFile

ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
EACH, NUM_TEST = 1_020, 20  # of five training files; 5,000 images validate, so 100 train
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COLOURS = np.array(  # one for each class; from 0 to 255, so that a picture keeps them
    [
        [255, 0, 0],
        [0, 200, 0],
        [0, 0, 255],
        [255, 255, 0],
        [0, 255, 255],
        [255, 0, 255],
        [120, 60, 0],
        [0, 90, 140],
        [250, 130, 10],
        [90, 0, 140],
    ],
    dtype=np.uint8,
)
SUMMARY = "cifar10: 100 train, 5,000 val, 20 test; 10 classes; 3 x 32 x 32 uint8\n"


def records(number: int) -> bytes:
    """Images of one colour, classes in turn: a label, then the red, the green and the blue plane."""
    labels = np.arange(number) % 10
    rows = np.concatenate([labels[:, None].astype(np.uint8), COLOURS[labels].repeat(1024, axis=1)], axis=1)
    return rows.tobytes()


@functools.cache
def batches() -> dict[str, bytes]:
    train = {f"data_batch_{i}.bin": records(EACH) for i in range(1, 6)}
    return {**train, "test_batch.bin": records(NUM_TEST), "batches.meta.txt": "\n".join(NAMES).encode()}


def tar_gz(files: Iterable[tuple[str, bytes | str]]) -> bytes:
    """Names and contents; a string is where a link leads to."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@functools.cache
def good_archive() -> bytes:
    return tar_gz((f"{FOLDER}/{name}", content) for name, content in batches().items())


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        mode, asked = self.path.strip("/"), self.headers["Range"]
        first = not self.server.ranges
        self.server.ranges.append(asked)
        body = self.server.body
        if mode == "missing":
            return self.send_error(404)
        if mode == "tampered":
            body = flipped(body)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        stop = len(body) // 2 if mode == "cut_always" or (mode == "cut_once" and first) else len(body)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        return self.wfile.write(body[start:stop])


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for their sockets

    def __init__(self, monkeypatch):
        super().__init__(("127.0.0.1", 0), Handler)
        self.monkeypatch = monkeypatch
        self.ranges: list[str | None] = []  # of each request

    def publish(self, *modes: str, body: bytes | None = None, url: str | None = None) -> None:
        """From now on the archive is official, and to be had from here."""
        self.body = good_archive() if body is None else body
        urls = (url,) if url else tuple(f"http://127.0.0.1:{self.server_port}/{mode}" for mode in modes)
        checksum = "md5:" + hashlib.md5(self.body).hexdigest()
        make_official(self.monkeypatch, sources=(OfficialFile(ARCHIVE, urls, checksum, len(self.body)),))


def make_official(monkeypatch, name="cifar10", **changes) -> None:
    sums = {
        file: "sha256:" + hashlib.sha256(content).hexdigest()
        for file, content in batches().items()
        if "meta" not in file
    }
    small = {"num_train": 5 * EACH, "num_test": NUM_TEST, "checksums": sums} if name == "cifar10" else {}
    monkeypatch.setitem(OFFICIAL, name, replace(OFFICIAL[name], **small | changes))


@pytest.fixture
def server(monkeypatch):
    with Server(monkeypatch) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Use neither data nor proxies of this machine, and no pauses."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("DUALFOCAL_DATA", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(download, "BACK_OFF", 0)


def not_now(*_, **__):
    raise AssertionError("nothing must be read")


@pytest.fixture
def offline(monkeypatch):
    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, not_now)


@pytest.fixture
def folder(monkeypatch) -> Path:
    """data/cifar-10-batches-bin, as unpacked from the archive; its files are the official ones."""
    make_official(monkeypatch, sources=())
    folder = Path("data", FOLDER)
    folder.mkdir(parents=True)
    for name, content in batches().items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def one_line(run):
    """The one-line message of a command that ends with exit code 2; it may have printed to stdout."""

    def one_line(*arguments: object) -> str:
        err = run(*arguments, code=2)[1]
        assert err.count("\n") == 1
        assert err.startswith("dualfocal: ")
        return err.removeprefix("dualfocal: ").rstrip()

    return one_line


def files(folder: Path | str = "data") -> set[str]:
    """All files below a folder, except locks, which are empty and stay."""
    return {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if not path.is_dir()} - {
        f"cifar10/.{ARCHIVE}.lock"
    }


# --- list ---


def table(printed: str) -> dict[str, str]:
    """The lines of the table by the name of the data set."""
    return {line.split()[0]: line for line in printed.splitlines()[2:]}


def test_list_names_every_data_set_and_its_download(run, offline):
    out, err = run("data", "list", "--data-root", "nothing")
    lines = table(out)
    assert out.startswith("In nothing:\n")
    assert list(lines) == list(OFFICIAL)
    assert "50,000  10,000  no, 170 MB" in lines["cifar10"]
    assert re.search(r" 20 .* no  +texts", lines["20newsgroups"])
    assert " yes " in lines["digits"]
    assert sum(" yes " in line for line in lines.values()) == 1
    assert "x_train, y_train, x_test, y_test" in err
    assert not Path("nothing").exists()


@pytest.mark.parametrize(("how", "inside"), [("option", ""), ("variable", "cifar10/"), ("cache", "")])
def test_list_marks_the_data_that_are_there(run, record, offline, monkeypatch, tmp_path, how, inside):
    root = {"option": Path("here"), "variable": tmp_path / "there", "cache": tmp_path / "cache" / "dualfocal"}[how]
    options = ["--data-root", "here"] if how == "option" else []
    if how != "cache":
        monkeypatch.setenv("DUALFOCAL_DATA", str(tmp_path / "there"))  # the option takes precedence
    for file in (f"{inside}{ARCHIVE}", "20_newsgroups/sci.space/1", "decoded/x"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    lines = table(run("data", "list", *options)[0])
    assert [name for name, line in lines.items() if " yes " in line] == ["cifar10", "20newsgroups", "digits"]
    content = record("data", "list", *options)
    assert content["root"] == str(root)
    assert {row["name"]: row["place"] for row in content["data_sets"] if row["place"]} == {
        "cifar10": str(root / f"{inside}{ARCHIVE}"),
        "20newsgroups": str(root / "20_newsgroups"),
        "digits": "scikit-learn",
    }


def test_list_as_json_has_sizes_and_places(record, offline):
    rows = {row.pop("name"): row for row in record("data", "list", "--data-root", "nothing")["data_sets"]}
    assert list(rows) == list(OFFICIAL)
    assert rows["svhn"] == {
        "about": "house numbers",
        "classes": 10,
        "train": 73_257,
        "test": 26_032,
        "download_bytes": 64_275_384 + 182_040_794,
        "place": None,
    }
    assert rows["20newsgroups"]["download_bytes"] == 0


# --- fetch ---


def test_fetch_downloads_checks_and_decodes(run, server):
    server.publish("good")
    out, err = run("data", "fetch", "cifar10", "--data-root", "data")
    assert out == f"data/cifar10/{ARCHIVE}: checksum ok\n{SUMMARY}"
    assert err == ""
    assert Path("data/cifar10", ARCHIVE).read_bytes() == good_archive()
    [decoded] = files() - {f"cifar10/{ARCHIVE}"}
    assert re.fullmatch(r"decoded/cifar10-\w+\.safetensors", decoded)
    data = load_data("cifar10", "data")
    assert data.class_names == NAMES
    np.testing.assert_array_equal(data.inputs[:, :, 5, 17], COLOURS[data.target])
    assert data.target.tolist() == [*(list(range(10)) * (5 * EACH // 10)), *(list(range(10)) * 2)]


def test_fetch_of_existing_data_makes_no_request(run, server):
    server.publish("good")
    first = run("data", "fetch", "cifar10", "--data-root", "data")
    before = files()
    assert run("data", "fetch", "cifar10", "--data-root", "data") == first
    assert server.ranges == [None]
    assert files() == before
    Path("flat").mkdir()
    Path("flat", ARCHIVE).write_bytes(good_archive())  # in the root itself
    assert run("data", "fetch", "cifar10", "--data-root", "flat")[0].endswith(SUMMARY)
    assert server.ranges == [None]


def test_a_broken_fetch_resumes_when_run_again(run, refused, server):
    half = len(good_archive()) // 2
    server.publish("cut_always")
    line = refused("data", "fetch", "cifar10", "--data-root", "data", code=1)
    assert line.startswith(f"{ARCHIVE}: cannot be downloaded: http://127.0.0.1")
    assert f"{half:,} of {len(good_archive()):,} bytes are on disk; run the same command again" in line
    assert files() == {f"cifar10/{ARCHIVE}.part"}
    assert Path(f"data/cifar10/{ARCHIVE}.part").read_bytes() == good_archive()[:half]

    server.publish("good")
    server.ranges.clear()
    assert run("data", "fetch", "cifar10", "--data-root", "data")[0].endswith(SUMMARY)
    assert server.ranges == [f"bytes={half}-"]


def test_fetch_of_a_tampered_file_leaves_nothing(refused, server):
    server.publish("tampered")
    line = refused("data", "fetch", "cifar10", "--data-root", "data", code=1)
    official = hashlib.md5(good_archive()).hexdigest()
    assert line.startswith(f"{ARCHIVE}: cannot be downloaded: ")
    assert official in line
    assert hashlib.md5(flipped(good_archive())).hexdigest() in line
    assert files() == set()


def test_fetch_keeps_another_file_of_that_name(refused, server):
    server.publish("good")
    Path("data/cifar10").mkdir(parents=True)
    Path("data/cifar10", ARCHIVE).write_bytes(b"mine")
    line = refused("data", "fetch", "cifar10", "--data-root", "data")
    assert line.startswith(f"data/cifar10/{ARCHIVE}: exists, but is not the official file")
    assert Path("data/cifar10", ARCHIVE).read_bytes() == b"mine"
    assert server.ranges == []


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("../evil", b"x", "a path that leads out of it"),
        (f"{FOLDER}/../../../evil", b"x", "a path that leads out of it"),
        ("/tmp/evil", b"x", "a path that leads out of it"),
        (f"{FOLDER}/evil", "/etc", "a link, device or other special file"),
        (f"{FOLDER}/data_batch_6.bin", "../../../evil", "a link, device or other special file"),
    ],
)
def test_fetch_of_a_hostile_archive_decodes_nothing(run, server, tmp_path, where, name, content, reason):
    """The checksum of the published file is right."""
    members = [(f"{FOLDER}/{file}", records(10)) for file in batches()]
    members.insert(0 if where == "first" else len(members), (name, content))
    server.publish("good", body=tar_gz(members))
    out, err = run("data", "fetch", "cifar10", "--data-root", "data", code=2)
    assert out == f"data/cifar10/{ARCHIVE}: checksum ok\n"
    assert err.startswith(f"dualfocal: data/cifar10/{ARCHIVE}: has {name!r}, {reason}")
    assert err.count("\n") == 1
    assert files(tmp_path) == {f"data/cifar10/{ARCHIVE}", f"data/cifar10/.{ARCHIVE}.lock"}
    assert not Path("/tmp/evil").exists()


def test_fetch_of_an_archive_that_has_a_file_twice(one_line, server):
    twice = [(f"{FOLDER}/{file}", records(10)) for file in (*batches(), "data_batch_1.bin")]
    server.publish("good", body=tar_gz(twice))
    assert f"has '{FOLDER}/data_batch_1.bin' twice" in one_line("data", "fetch", "cifar10", "--data-root", "data")
    assert files() == {f"cifar10/{ARCHIVE}"}


def test_fetch_of_a_file_that_is_no_archive(one_line, server):
    server.publish("good", body=b"no archive at all, but with the right checksum")
    line = one_line("data", "fetch", "cifar10", "--data-root", "data")
    assert f"{ARCHIVE}: is damaged, or not a supported archive" in line
    assert files() == {f"cifar10/{ARCHIVE}"}


def test_fetch_from_a_place_without_the_file(refused, server):
    server.publish("missing")
    line = refused("data", "fetch", "cifar10", "--data-root", "data", code=1)
    assert f"http://127.0.0.1:{server.server_port}/missing: HTTP 404 Not Found" in line
    assert "bytes are on disk" not in line
    assert files() == set()


def test_fetch_without_a_network(refused, server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/good"
    server.publish(url=url)
    line = refused("data", "fetch", "cifar10", "--data-root", "data", code=1)
    assert line.startswith(f"{ARCHIVE}: cannot be downloaded: {url}: ")
    assert "refused" in line
    assert files() == set()


def test_an_unknown_name_is_refused_with_all_names(refused, offline):
    for command in ("fetch", "verify"):
        line = refused("data", command, "cifar-10", "--data-root", "data")
        assert all(name in line for name in OFFICIAL), command
        assert "'cifar-10'; did you mean cifar10?" in line
    assert not Path("data").exists()


def test_data_that_cannot_be_downloaded_are_named_with_the_remedy(refused, offline):
    for command in ("fetch", "verify"):
        line = refused("data", command, "20newsgroups", "--data-root", "data")
        assert "get 20news-19997.tar.gz from qwone.com" in line, command
        assert "data fetch" not in line, command


def test_fetch_into_a_file_is_refused(refused, server):
    server.publish("good")
    Path("data").write_text("mine")
    assert "root must be a folder, but data is a file" in refused("data", "fetch", "cifar10", "--data-root", "data")
    assert Path("data").read_text() == "mine"
    assert server.ranges == []


@pytest.fixture
def _nobody(tmp_path):
    """Drop the rights of root, who may write everywhere."""
    tmp_path.chmod(0o755)
    if os.geteuid() == 0:
        import filelock  # noqa: F401  imported before the rights are dropped

        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


@pytest.mark.parametrize("where", ["data", "data/cifar10"])
def test_fetch_into_a_folder_that_cannot_be_written_to(refused, server, request, where):
    server.publish("good")
    Path(where).mkdir(parents=True)
    Path(where).chmod(0o555)
    request.getfixturevalue("_nobody")
    line = refused("data", "fetch", "cifar10", "--data-root", "data")
    assert "Permission denied" in line
    assert where in line
    assert server.ranges == []


@pytest.mark.filterwarnings("default")
def test_data_are_read_although_the_cache_cannot_be_written(run, folder):
    Path("data/decoded").write_text("a file in its place")
    Path("cache").write_text("and one in place of the cache folder")
    out, err = run("data", "verify", "cifar10", "--data-root", "data")
    assert out.endswith("Everything matches.\n")
    assert err.count("\n") == 1
    assert "cannot be written" in err


def test_fetch_prints_folders_without_markup(run, server):
    server.publish("good")
    assert run("data", "fetch", "cifar10", "--data-root", "[/b]")[0].startswith(f"[/b]/cifar10/{ARCHIVE}: checksum")


# --- what is not there ---


def test_missing_data_are_named_with_the_command_that_fetches_them(refused, offline):
    line = refused("data", "verify", "cifar100", "--data-root", "data")
    assert line.startswith("cifar100: no cifar-100-binary or cifar-100-python or ")
    assert " in data: run `dualfocal data fetch cifar100 --data-root data`" in line
    with pytest.raises(DataNotFoundError) as raised:
        load_data("cifar100", "data")
    assert str(raised.value) == line
    assert isinstance(raised.value, FileNotFoundError)
    assert not Path("data").exists()


# --- verify ---


def verdicts(printed: str) -> list[tuple[str, str]]:
    """Word and object of each line but the last."""
    return [tuple(re.match(r"(\w+) +(.+?): ", line).groups()) for line in printed.splitlines()[:-1]]


def test_verify_of_a_right_archive(run, server):
    server.publish("good")
    run("data", "fetch", "cifar10", "--data-root", "data")
    out, err = run("data", "verify", "cifar10", "--data-root", "data")
    assert out.splitlines() == [
        f"ok       data/cifar10/{ARCHIVE}: md5",
        f"ok       {kept()}: decoded earlier",
        "ok       content: 5,100 + 20 samples in 10 classes",
        "Everything matches.",
    ]
    assert err == ""


def test_verify_finds_a_bit_in_what_is_decoded(run, folder):
    run("data", "verify", "cifar10", "--data-root", "data")
    content = bytearray(kept().read_bytes())
    content[-1_000_000] ^= 1
    kept().write_bytes(content)
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert f"WRONG    {kept()}: is damaged; delete it to decode the data again\n" in out
    kept().unlink()
    assert run("data", "verify", "cifar10", "--data-root", "data")[0].endswith("Everything matches.\n")


def kept() -> Path:
    (only,) = Path("data/decoded").iterdir()
    return only


def test_verify_of_a_right_folder_looks_at_each_file(run, folder, offline):
    out, _ = run("data", "verify", "cifar10", "--data-root", "data")
    batch_files = [f"{folder}/data_batch_{i}.bin" for i in range(1, 6)] + [f"{folder}/test_batch.bin"]
    assert verdicts(out) == [*[("ok", file) for file in batch_files], ("ok", "content")]
    assert out.endswith("\nEverything matches.\n")


def test_verify_finds_one_bit_in_an_archive(run, server):
    server.publish("good")
    Path("data").mkdir()
    Path("data", ARCHIVE).write_bytes(flipped(good_archive()))
    out, err = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert out == f"WRONG    data/{ARCHIVE}: md5 differs from the official one\n1 of 1 differ.\n"
    assert err == ""
    assert files() == {ARCHIVE}  # and nothing has been decoded


@pytest.mark.parametrize("cached", [False, True])
def test_verify_finds_one_bit_in_a_folder(run, record, folder, cached):
    if cached:
        run("data", "verify", "cifar10", "--data-root", "data")
    file = folder / "data_batch_3.bin"
    before = file.stat()
    file.write_bytes(flipped(file.read_bytes()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as on a bad disk
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert [what for word, what in verdicts(out) if word == "WRONG"] == [str(file)]
    assert f"WRONG    {file}: sha256 differs from the official one\n" in out
    assert out.endswith(f"\n1 of {6 + cached} differ.\n")


def test_verify_names_the_batch_that_is_missing(run, folder):
    (folder / "data_batch_3.bin").unlink()
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert out.startswith(f"WRONG    {folder}: data_batch_3.bin missing\n")
    assert [word for word, _ in verdicts(out)] == ["WRONG"] + ["ok"] * 5
    assert out.endswith("\n1 of 6 differ.\n")


def test_verify_counts(run, folder, monkeypatch):
    make_official(monkeypatch, sources=(), num_test=10_000)
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert "\nWRONG    content: 5,100 + 20 samples in 10 classes, officially 5,100 + 10,000 in 10\n" in out
    assert out.endswith("1 of 7 differ.\n")


def test_verify_without_published_checksums_is_undecided(run, record, folder, monkeypatch):
    make_official(monkeypatch, sources=(), checksums={})
    out, _ = run("data", "verify", "cifar10", "--data-root", "data")
    assert out.splitlines() == [
        f"unknown  {folder}: no checksums of single files are published",
        "ok       content: 5,100 + 20 samples in 10 classes",
        "No difference found, but not everything could be checked.",
    ]
    checks = record("data", "verify", "cifar10", "--data-root", "data")["checks"]
    assert [check["right"] for check in checks] == [None, True, True]  # what the first run has decoded, too


def test_verify_of_an_archive_without_a_checksum_is_undecided(run, folder, monkeypatch):
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    Path("data", ARCHIVE).write_bytes(good_archive())
    out, _ = run("data", "verify", "cifar10", "--data-root", "data")
    assert out.startswith(f"unknown  data/{ARCHIVE}: no checksum is published\nok       content")
    assert out.endswith("\nNo difference found, but not everything could be checked.\n")


def test_verify_as_json(run, record, folder):
    content = record("data", "verify", "cifar10", "--data-root", "data")
    assert content["name"] == "cifar10"
    assert content["right"] is True
    assert content["checks"][0] == {"what": f"{folder}/data_batch_1.bin", "right": True, "detail": "sha256"}
    assert content["checks"][-1]["detail"] == "5,100 + 20 samples in 10 classes"
    (folder / "test_batch.bin").write_bytes(b"")
    out, err = run("data", "verify", "cifar10", "--data-root", "data", "--json", code=1)
    wrong = json.loads(out)
    assert err == ""
    assert wrong["right"] is False
    assert [check["what"] for check in wrong["checks"] if not check["right"]] == [f"{folder}/test_batch.bin"]


def test_digits_need_no_folder(run, record, offline):
    summary = "digits: 600 train, 200 val, 997 test; 10 classes; 1 x 8 x 8 uint8\n"
    assert run("data", "fetch", "digits", "--data-root", "data") == (summary, "")
    content = record("data", "verify", "digits", "--data-root", "data", "--plot", "x.svg")
    detail = "800 + 997 samples in 10 classes"
    assert content["right"]
    assert content["checks"] == [{"what": "content", "right": True, "detail": detail}]
    assert Path("x.svg").read_bytes().startswith(b"<?xml")
    assert not Path("data").exists()


def test_verify_finds_data_that_cannot_be_decoded(run, folder, monkeypatch):
    make_official(monkeypatch, sources=(), checksums={})
    (folder / "data_batch_3.bin").write_bytes(b"short")
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert "WRONG" in out


def test_verify_checks_the_names_of_the_classes(run, folder):
    (folder / "batches.meta.txt").write_text("\n".join(reversed(NAMES)))
    out, _ = run("data", "verify", "cifar10", "--data-root", "data", code=1)
    assert "WRONG    content: classes are named truck, ship" in out


# --- verify --plot ---


def test_verify_draws_the_images_of_each_class_in_a_row(run, folder):
    out, err = run("data", "verify", "cifar10", "--data-root", "data", "--plot", "x.png")
    assert out.endswith("Everything matches.\n")
    assert err == ""
    with Image.open("x.png") as image:
        assert image.format == "PNG"
        assert image.size == (1248, 720)
        pixels = np.asarray(image.convert("RGB"))
    train = np.bincount(load_data("cifar10", "data").part("train")[1], minlength=10)
    heights, areas = [], []
    for colour in COLOURS:
        rows, columns = (abs(pixels.astype(int) - colour) <= 2).all(axis=2).nonzero()
        heights.append((rows.min(), rows.max()))
        areas.append([(columns < 624 + 40).sum(), (columns >= 624 + 40).sum()])  # names of classes on the left
    assert all(above[1] < below[0] for above, below in itertools.pairwise(heights))
    each, varied = np.array(areas).T / np.minimum(train, 8)
    assert each == pytest.approx(np.full(10, each.mean()), rel=0.1)  # a class with fewer images has a shorter row
    assert (varied < 0.97 * each).all()  # some of each varied image is black
    assert (varied > 0.6 * each).all()


def test_verify_refuses_a_bad_place_for_a_picture_before_any_work(refused, folder, monkeypatch):
    Path("folder.png").mkdir()
    monkeypatch.setattr(importlib.import_module("dualfocal_lab.data.verify"), "verify", not_now)
    for plot, *words in (
        ("x.txt", "--plot", "'.png', '.pdf', '.svg'", "'.txt'"),
        ("x", "--plot", "''"),
        ("folder.png", "folder.png: must be a file"),
        ("missing/x.png", "no folder 'missing'"),
    ):
        line = refused("data", "verify", "cifar10", "--data-root", "data", "--plot", plot)
        assert all(word in line for word in words), plot
    assert not Path("data/decoded").exists()


@pytest.fixture
def texts(monkeypatch):
    """20 Newsgroups by date, with few texts."""
    make_official(monkeypatch, "20newsgroups_bydate", num_train=920, num_test=20)
    for part, each in (("train", 46), ("test", 1)):
        for group in range(20):
            place = Path(f"data/20news-bydate-{part}/group.{group}")
            place.mkdir(parents=True)
            for number in range(each):
                (place / str(number)).write_text(f"Subject: {number}\n\nword{group} and more")


def test_verify_of_texts_needs_no_word_vectors(run, texts, offline):
    out, err = run("data", "verify", "20newsgroups_bydate", "--data-root", "data")
    assert out.splitlines() == [
        "unknown  data/20news-bydate-train: no checksums of single files are published",
        "ok       content: 920 + 20 samples in 20 classes",
        "No difference found, but not everything could be checked.",
    ]
    assert err == ""


def test_verify_draws_no_texts(refused, texts):
    line = refused("data", "verify", "20newsgroups_bydate", "--data-root", "data", "--plot", "x.png")
    assert "20newsgroups_bydate has no images to draw" in line
    assert not Path("x.png").exists()


def test_verify_names_a_picture_that_it_does_not_draw(run, folder):
    (folder / "test_batch.bin").write_bytes(b"")
    out, err = run("data", "verify", "cifar10", "--data-root", "data", "--plot", "x.png", code=1)
    assert Path("x.png").exists() or "x.png" in out + err


# --- help ---


def test_help_has_the_variable_and_examples(run):
    for arguments, words in (
        ([], ["--data-root", "DUALFOCAL_DATA", "list", "fetch", "verify", "decoded/"]),
        (["fetch"], ["to resume the download", "dualfocal data fetch cifar10", "dualfocal data list"]),
        (["verify"], ["code 1", "dualfocal data verify cifar10 --plot cifar10.png", ".pdf"]),
    ):
        printed = " ".join(run("data", *arguments, "--help")[0].split())
        assert [word for word in words if word not in printed] == []
