"""Downloads from a real server on this machine: they resume, and only the official file counts."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from misbehaving_server import BODY, HALF, NAME, SIZE, TAMPERED, Server

from dualfocal_lab.data import download
from dualfocal_lab.data.download import TRIES, checksum_of, fetch, fetch_data
from dualfocal_lab.data.sources import OFFICIAL

DATA = Path(download.__file__).parent


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(download, "BACK_OFF", 0)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def part(tmp_path):
    return tmp_path / f"{NAME}.part"


def files(folder):
    return {path.name for path in folder.iterdir()} - {f".{NAME}.lock"}


def failure(source, folder):
    """The message with which a download fails, which has one line and names the file."""
    with pytest.raises(ConnectionError, match=f"^{NAME}: cannot be downloaded: ") as raised:
        fetch(source, folder)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_the_bytes_of_the_file_arrive_unchanged_however_they_are_sent(server, tmp_path):
    modes = ("good", "no_range", "no_length", "chunked", "bad_lengths", "redirect", "gzip_label", "busy_once")
    for mode in modes:
        folder = tmp_path / mode / "new"
        path = fetch(server.source(mode), folder)
        assert path == folder / NAME
        assert path.read_bytes() == BODY, mode
        assert files(folder) == {NAME}, mode
    assert {request.encoding for request in server.requests} == {"identity"}
    (folder / "other").touch()
    assert path.stat().st_mode == (folder / "other").stat().st_mode  # the umask decides who may read it


def test_the_right_file_is_not_fetched_again(server, tmp_path):
    (tmp_path / NAME).write_bytes(BODY)
    before = (tmp_path / NAME).stat().st_mtime_ns
    calls = []
    assert fetch(server.source("good"), tmp_path, progress=calls.append) == tmp_path / NAME
    assert server.requests == []
    assert (tmp_path / NAME).stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == [NAME]  # the folder may be read-only
    assert calls == [SIZE]


def test_a_wrong_file_or_a_broken_link_of_the_user_is_kept_and_refused(server, tmp_path):
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"data\.tar\.gz: exists.*not md5:.*Move it away"):
        fetch(server.source("good"), tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(tmp_path / "not_mounted")
    with pytest.raises(FileNotFoundError, match=NAME):
        fetch(server.source("good"), tmp_path)
    assert (tmp_path / NAME).is_symlink()
    assert server.requests == []


# Resuming


@pytest.mark.parametrize(
    ("modes", "partial", "starts", "sent"),
    [
        # URLs in their order, content of the .part file, the last requests, and bytes of the very last answer.
        ("good", BODY[:HALF], [("good", HALF)], SIZE - HALF),
        ("redirect", BODY[:HALF], [("redirect", HALF), ("good", HALF)], SIZE - HALF),
        ("cut_once", None, [("cut_once", 0), ("cut_once", HALF)], SIZE - HALF),
        ("cut_no_range", None, [("cut_no_range", 0), ("cut_no_range", HALF)], SIZE),
        ("ends_early", None, [("ends_early", 0), ("ends_early", HALF)], SIZE),
        ("wrong_range", BODY[:HALF], [("wrong_range", HALF), ("wrong_range", 0)], SIZE),
        ("unsatisfiable", BODY[:HALF], [("unsatisfiable", HALF), ("unsatisfiable", 0)], SIZE),
        ("other_size good", BODY[:HALF], [("other_size", HALF), ("good", HALF)], SIZE - HALF),
        ("404 cut_always good", None, [("cut_always", HALF), ("good", HALF)], SIZE - HALF),
        ("404", BODY, [], 0),
        ("good", BODY + b"x", [("good", 0)], SIZE),
        # Wrong bytes are fetched once more, from the start.
        ("tampered good", None, [("tampered", 0), ("good", 0)], SIZE),
        ("good", bytes(HALF), [("good", HALF), ("good", 0)], SIZE),
        ("good", TAMPERED, [("good", 0)], SIZE),
        ("tampered_then_cut good", None, [("good", HALF), ("good", 0)], SIZE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_download_resumes_or_starts_anew(server, tmp_path, part, modes, partial, starts, sent):
    if partial is not None:
        part.write_bytes(partial)
    assert fetch(server.source(*modes.split()), tmp_path).read_bytes() == BODY
    assert files(tmp_path) == {NAME}
    assert server.starts[-len(starts) :] == starts
    if modes.count(" ") < 2 and not modes.startswith("tampered_then"):  # no URL that is tried several times
        assert len(server.requests) == len(starts)
    if starts:
        assert server.requests[-1].sent == sent


def test_the_next_call_resumes(server, tmp_path, part):
    message = failure(server.source("cut_always"), tmp_path)
    for words in (f":{server.server_port}/cut_always: ", f"{HALF:,} of {SIZE:,} bytes are on disk", "again to resume"):
        assert words in message
    assert server.starts == [("cut_always", 0), *[("cut_always", HALF)] * TRIES]
    assert part.read_bytes() == BODY[:HALF]
    assert files(tmp_path) == {part.name}
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.requests[-1].sent == SIZE - HALF


@pytest.mark.parametrize("error", [KeyboardInterrupt("by the caller"), ValueError("by the caller")], ids=repr)
def test_an_interrupt_or_an_error_of_progress_leaves_the_part(server, tmp_path, part, error):
    """A ValueError of the caller is not taken for a wrong checksum."""

    def interrupt(num_bytes):
        if num_bytes > HALF:
            raise error

    with pytest.raises(type(error), match=r"^by the caller$"):
        fetch(server.source("good"), tmp_path, progress=interrupt)
    on_disk = part.stat().st_size
    assert on_disk > HALF
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.starts == [("good", 0), ("good", on_disk)]


# Importing the package takes seconds, because of torch; an empty package in its place takes none.
ALONE = f"""
import sys, types
for name, folder in (("dualfocal_lab", {str(DATA.parent)!r}), ("dualfocal_lab.data", {str(DATA)!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
"""
CHILD = """
from pathlib import Path
from dualfocal_lab.data.download import fetch
from dualfocal_lab.data.sources import OfficialFile

print({"requests", "filelock"} & sys.modules.keys(), flush=True)
url, checksum, size, folder = sys.argv[1:]
source = OfficialFile("data.tar.gz", (url,), checksum, int(size))
fetch(source, Path(folder), progress=lambda num_bytes: print(num_bytes, flush=True))
"""


def test_a_killed_process_is_resumed_and_the_import_is_light(server, tmp_path, part):
    source = server.source("gated")
    arguments = [sys.executable, "-c", ALONE + CHILD, source.urls[0], source.checksum, str(source.size), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "set()\n"  # neither requests nor filelock is imported
        for line in child.stdout:
            if int(line) > HALF - download.CHUNK:  # the rest waits at the gate
                break
        child.kill()
    on_disk = part.stat().st_size
    assert 0 < on_disk <= HALF
    server.gate.set()
    assert fetch(source, tmp_path).read_bytes() == BODY
    assert server.starts == [("gated", 0), ("gated", on_disk)]
    assert server.requests[1].sent == SIZE - on_disk


# Failures


@pytest.mark.parametrize("partial", [None, BODY[:HALF]], ids=["whole", "resumed"])
def test_tampered_bytes_are_deleted(server, tmp_path, part, partial):
    if partial:
        part.write_bytes(partial)
    source = server.source("tampered")
    message = failure(source, tmp_path)
    for words in (source.urls[0], source.checksum, hashlib.md5(TAMPERED).hexdigest(), "deleted"):
        assert words in message
    assert files(tmp_path) == set()
    assert [request.start for request in server.requests] == ([HALF, 0] if partial else [0])  # once more at most


@pytest.mark.parametrize("mode", ["endless", "endless_range"])
def test_an_endless_answer_is_cut_off(server, tmp_path, part, mode):
    if mode == "endless_range":
        part.write_bytes(BODY[:HALF])
    message = failure(server.source(mode), tmp_path)
    assert re.search(f"{mode}: (delivered a file with checksum md5:|HTTP 206, but not)", message)
    assert files(tmp_path) == set()


def test_a_url_without_the_file_is_asked_once_and_a_part_is_kept(server, tmp_path, part):
    part.write_bytes(BODY[:9])
    reasons = {
        "longer": "400,008 bytes instead of 400,007",
        "shorter": "400,006 bytes instead of 400,007",
        "gzip_added_length": "bytes instead of 400,007",
        "403": "HTTP 403 Forbidden",
        "404": "HTTP 404 Not Found",
        "202": "HTTP 202 Accepted",
        "redirect_file": "'file:///etc/passwd'",
        "redirect_forever": "30 redirects",
    }
    for mode, reason in reasons.items():
        server.requests.clear()
        message = failure(server.source(mode), tmp_path)
        assert re.search(f"/{mode}: .*{re.escape(reason)}.*; 9 of 400,007 bytes are on disk", message)
        assert part.read_bytes() == BODY[:9], mode
        assert len(server.requests) == 1 or mode.startswith("redirect"), mode


def test_other_failures_are_named(server, tmp_path, monkeypatch):
    assert "/gzip_added: " in failure(server.source("gzip_added"), tmp_path)  # a compressed answer is not the file
    assert not (tmp_path / NAME).exists()
    server.requests.clear()
    assert "/500: HTTP 500 Internal Server Error" in failure(server.source("500"), tmp_path)
    assert len(server.requests) == TRIES
    monkeypatch.setattr(download, "READ_SECONDS", 0.05)
    assert "/hanging: timed out" in failure(server.source("hanging"), tmp_path)


def test_all_urls_are_named_with_their_own_reasons(server, tmp_path):
    closed = Server()
    closed.server_close()
    source = server.source("404", urls=(*server.source("404").urls, *closed.source("good").urls))
    try:
        raise KeyError("an error that the caller is just handling")
    except KeyError:
        message = failure(source, tmp_path)
    assert f":{server.server_port}/404: HTTP 404 Not Found; http://127.0.0.1:{closed.server_port}/good: " in message
    assert "refused" in message
    for words in ("Max retries", "object at 0x", "the caller"):
        assert words not in message


def test_a_download_resumes_after_a_server_that_hangs_midway(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "READ_SECONDS", 1)  # the first half must arrive in this time
    assert fetch(server.source("hanging_midway"), tmp_path).read_bytes() == BODY
    assert HALF - download.CHUNK < server.requests[1].start <= HALF


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("slow", r"too slow: \d+ bytes in 0 seconds"),
        ("slow_head", "no answer within 0.4 seconds"),
        ("one_byte_each", "bytes read|ended after"),
    ],
)
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, tmp_path, monkeypatch, mode, reason):
    monkeypatch.setattr(download, "READ_SECONDS", 0.3)
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.1)
    assert re.search(f"/{mode}: .*{reason}", failure(server.source(mode), tmp_path))
    assert len(server.requests) == TRIES
    server.gate.set()


# Progress, disk, lock


def test_progress_goes_forward_to_the_size(server, tmp_path):
    for mode, partial in (("good", b""), ("cut_once", b""), ("good", BODY[:HALF])):
        folder = tmp_path / f"{mode}_{len(partial)}"
        folder.mkdir()
        (folder / f"{NAME}.part").write_bytes(partial)
        calls = []
        fetch(server.source(mode), folder, progress=calls.append)
        assert calls == sorted(calls), mode
        assert (calls[0], calls[-1]) == (len(partial), SIZE)
        assert len(set(calls)) > 3, mode


def test_a_disk_that_is_too_small_is_noticed_before_the_download(server, tmp_path, part, monkeypatch):
    part.write_bytes(BODY[:7])
    free = SIZE - 8
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(OSError, match=r"data\.tar\.gz: needs 400,000 more bytes in .* 399,999 are free"):
        fetch(server.source("good"), tmp_path)
    assert server.requests == []
    free += 1
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY


def test_two_at_once_download_once(server, tmp_path):
    (tmp_path / f".{NAME}.lock").touch()  # left by a process that was killed: it blocks nobody
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(server.source("gated"), tmp_path))) for _ in "ab"]
    for thread in threads:
        thread.start()
    server.has_request.wait()
    threads[1].join(0.2)  # enough time for a second request, if nothing blocked it
    server.gate.set()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / NAME] * 2
    assert paths[0].read_bytes() == BODY
    assert server.starts == [("gated", 0)]


# Data sets and checksums


def test_the_files_of_a_data_set_go_to_the_folder_of_its_name_or_stay_in_the_root(server, tmp_path, monkeypatch):
    sources = (server.source("good", file="train_32x32.mat"), server.source("good", file="test_32x32.mat"))
    monkeypatch.setitem(OFFICIAL, "svhn", replace(OFFICIAL["svhn"], sources=sources))
    (tmp_path / "test_32x32.mat").write_bytes(BODY)
    calls = []
    paths = fetch_data("svhn", tmp_path, progress=lambda *call: calls.append(call))
    assert paths == [tmp_path / "svhn" / "train_32x32.mat", tmp_path / "test_32x32.mat"]
    assert calls[0] == ("train_32x32.mat", 0)
    assert calls[-1] == ("test_32x32.mat", SIZE)
    assert len(server.requests) == 1


def test_unpacked_data_are_not_downloaded(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert fetch_data("cifar10", tmp_path) == []
    assert fetch_data("digits", tmp_path) == []
    with pytest.raises(ValueError, match=r"^20newsgroups: cannot be downloaded automatically: get 20news"):
        fetch_data("20newsgroups", tmp_path)


def test_a_checksum_covers_every_byte(tmp_path):
    path = tmp_path / "file"
    for algorithm in ("md5", "sha256"):
        for size in (0, 1, (1 << 20) + 1):
            path.write_bytes(bytes(size))
            checksum = f"{algorithm}:{hashlib.new(algorithm, bytes(size)).hexdigest()}"
            assert checksum_of(path, like=f"{algorithm}:...") == checksum
            path.write_bytes(bytes(size) + b"x")
            assert checksum_of(path, like=checksum) != checksum
