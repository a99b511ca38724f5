"""Downloads from a real server on this machine, which misbehaves on request: its path says how."""

import gzip
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualfocal.data import download
from dualfocal.data.download import checksum_of, fetch, fetch_data
from dualfocal.data.sources import OFFICIAL, OfficialFile

BODY = random.Random(0).randbytes(400_007)  # several chunks, and not a whole number of them
HALF = len(BODY) // 2
TAMPERED = BODY[:300_000] + bytes([BODY[300_000] ^ 1]) + BODY[300_001:]
NAME = "data.tar.gz"
DATA = Path(download.__file__).parent


@dataclass
class Request:
    mode: str
    range: str | None
    encoding: str | None
    sent: int = 0


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def log_message(self, *_):
        pass

    def do_GET(self):
        mode = self.path.strip("/")
        earlier = sum(request.mode == mode for request in self.server.requests)
        self.request_ = Request(mode, self.headers["Range"], self.headers["Accept-Encoding"])
        self.server.requests.append(self.request_)
        self.server.asked.set()
        getattr(self, mode.replace("-", "_"), self.number)(earlier)

    def answer(self, status=200, body=b"", length=None, **headers):
        """Status, headers and body; the connection ends with it, which is the only end a body without length has."""
        self.send_response(status)
        headers |= {} if length is None else {"Content_Length": length}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.write(body)

    def write(self, body):
        self.request_.sent += len(body)  # before, as the client may be done before this thread goes on
        self.wfile.write(body)

    def part(self, body, stop=None):
        """What was asked for, with the right headers; but its bytes only up to ``stop``."""
        start = int(re.fullmatch(r"bytes=(\d+)-", self.request_.range)[1]) if self.request_.range else 0
        extent = {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        self.answer(206 if start else 200, body[start:stop], len(body) - start, **extent)

    def number(self, _):
        self.answer(int(self.request_.mode))

    def good(self, _):
        self.part(BODY)

    def no_range(self, _):
        self.answer(body=BODY, length=len(BODY))

    def no_length(self, _):
        self.answer(body=BODY)

    def chunked(self, _):
        self.protocol_version = "HTTP/1.1"
        self.answer(Transfer_Encoding="chunked", Connection="close")
        for at in range(0, len(BODY), 30_000):
            piece = BODY[at : at + 30_000]
            self.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.write(b"0\r\n\r\n")

    def cut_once(self, earlier):
        self.part(BODY, None if earlier else HALF)

    def cut_always(self, _):
        self.part(BODY, HALF)

    def cut_no_range(self, earlier):
        self.answer(body=BODY[: None if earlier else HALF], length=len(BODY))

    def ends_early(self, earlier):
        """Neither a length nor an error: only the size that is known beforehand shows that something is missing."""
        self.answer(body=BODY if earlier else BODY[:HALF])

    def tampered(self, _):
        self.part(TAMPERED)

    def tampered_then_cut(self, _):
        self.part(bytes(HALF) + BODY[HALF:], HALF)

    def endless(self, _):
        self.answer()
        while True:
            self.write(BODY)

    def endless_range(self, _):
        self.answer(206, Content_Range=f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}")
        while True:
            self.write(BODY)

    def longer(self, _):
        self.answer(body=BODY + b"x", length=len(BODY) + 1)

    def shorter(self, _):
        self.answer(body=BODY[:-1], length=len(BODY) - 1)

    def other_size(self, _):
        self.answer(206, b"x", 1, Content_Range=f"bytes {HALF}-{HALF}/{HALF + 1}")

    def bad_lengths(self, _):
        self.answer(body=BODY, length="many")

    def wrong_range(self, _):
        if self.request_.range:
            self.answer(206, BODY, len(BODY), Content_Range=f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        else:
            self.part(BODY)

    def unsatisfiable(self, _):
        if self.request_.range:
            self.answer(416, Content_Range=f"bytes */{len(BODY)}")
        else:
            self.part(BODY)

    def busy_once(self, earlier):
        self.part(BODY) if earlier else self.answer(503)

    def hanging(self, _):
        self.server.gate.wait()

    def hanging_midway(self, earlier):
        self.part(BODY, None if earlier else HALF)
        if not earlier:
            self.server.gate.wait()

    def gated(self, _):
        """The first half; the rest once the gate is open."""
        if self.server.gate.is_set():
            return self.part(BODY)
        self.part(BODY, HALF)
        self.server.gate.wait()
        self.write(BODY[HALF:])

    def redirect(self, _):
        self.answer(302, Location="/good", length=0)

    def redirect_file(self, _):
        self.answer(302, Location="file:///etc/passwd", length=0)

    def redirect_forever(self, _):
        self.answer(302, Location="/redirect_forever", length=0)

    def gzip_label(self, _):
        self.answer(body=BODY, length=len(BODY), Content_Encoding="x-gzip")

    def gzip_added(self, _):
        self.answer(body=gzip.compress(BODY), Content_Encoding="gzip")

    def gzip_added_length(self, _):
        packed = gzip.compress(BODY)
        self.answer(body=packed, length=len(packed), Content_Encoding="gzip")


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for their sockets

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.gate, self.asked = threading.Event(), threading.Event()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may leave
            super().handle_error(request, client_address)

    def source(self, *modes, **changes):
        urls = tuple(f"http://127.0.0.1:{self.server_port}/{mode}" for mode in modes)
        checksum = "md5:" + hashlib.md5(BODY).hexdigest()
        return OfficialFile(**{"file": NAME, "urls": urls, "checksum": checksum, "size": len(BODY)} | changes)

    @property
    def asked_for(self):
        return [(request.mode, request.range) for request in self.requests]


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


def ranges_from(*starts):
    return [f"bytes={start}-" if start else None for start in starts]


@pytest.mark.parametrize(
    "mode", ["good", "no_range", "no_length", "chunked", "bad_lengths", "redirect", "gzip_label", "busy_once"]
)
def test_a_file_comes_as_it_is(server, tmp_path, mode):
    folder = tmp_path / "not" / "there"
    path = fetch(server.source(mode), folder)
    assert path == folder / NAME
    assert path.read_bytes() == BODY
    assert files(folder) == {NAME}
    assert {request.encoding for request in server.requests} == {"identity"}


def test_a_new_file_may_be_read_by_whom_the_umask_says(server, tmp_path):
    (tmp_path / "other").touch()
    assert fetch(server.source("good"), tmp_path).stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_right_file_is_not_fetched_again(server, tmp_path):
    (tmp_path / NAME).write_bytes(BODY)
    before = (tmp_path / NAME).stat().st_mtime_ns
    calls = []
    assert fetch(server.source("good"), tmp_path, progress=calls.append) == tmp_path / NAME
    assert server.requests == []
    assert (tmp_path / NAME).stat().st_mtime_ns == before
    assert os.listdir(tmp_path) == [NAME]  # a folder that cannot be written to will do
    assert calls == [len(BODY)]


def test_a_wrong_file_of_the_user_is_kept_and_refused(server, tmp_path):
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"data\.tar\.gz: exists.*not md5:.*Move it away"):
        fetch(server.source("good"), tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    assert server.requests == []


def test_a_link_that_leads_nowhere_is_kept(server, tmp_path):
    (tmp_path / NAME).symlink_to(tmp_path / "not_mounted")
    with pytest.raises(FileNotFoundError, match=NAME):
        fetch(server.source("good"), tmp_path)
    assert (tmp_path / NAME).is_symlink()
    assert server.requests == []


# --- going on ---


def test_goes_on_from_a_part_and_gets_only_the_rest(server, tmp_path, part):
    part.write_bytes(BODY[:HALF])
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.asked_for == [("good", f"bytes={HALF}-")]
    assert server.requests[0].sent == len(BODY) - HALF
    assert files(tmp_path) == {NAME}


def test_goes_on_through_a_redirect(server, tmp_path, part):
    part.write_bytes(BODY[:HALF])
    assert fetch(server.source("redirect"), tmp_path).read_bytes() == BODY
    assert server.requests[-1].sent == len(BODY) - HALF


def test_goes_on_within_one_call(server, tmp_path):
    assert fetch(server.source("cut_once"), tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(0, HALF)
    assert sum(request.sent for request in server.requests) == len(BODY)


@pytest.mark.parametrize("mode", ["cut_no_range", "ends_early"])
def test_starts_anew_where_ranges_are_not_known(server, tmp_path, mode):
    assert fetch(server.source(mode), tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(0, HALF)
    assert server.requests[1].sent == len(BODY)


@pytest.mark.parametrize("mode", ["wrong_range", "unsatisfiable"])
def test_starts_anew_where_the_answer_to_a_range_is_wrong(server, tmp_path, part, mode):
    part.write_bytes(BODY[:HALF])
    assert fetch(server.source(mode), tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(HALF, 0)


def test_a_part_survives_a_place_with_another_file(server, tmp_path, part):
    part.write_bytes(BODY[:HALF])
    assert fetch(server.source("other_size", "good"), tmp_path).read_bytes() == BODY
    assert server.asked_for == [("other_size", f"bytes={HALF}-"), ("good", f"bytes={HALF}-")]


def test_a_full_part_needs_no_server(server, tmp_path, part):
    part.write_bytes(BODY)
    assert fetch(server.source("404"), tmp_path).read_bytes() == BODY
    assert server.requests == []
    assert files(tmp_path) == {NAME}


def test_a_part_that_is_too_long_is_forgotten(server, tmp_path, part):
    part.write_bytes(BODY + b"x")
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.asked_for == [("good", None)]


def test_the_next_call_goes_on(server, tmp_path, part):
    with pytest.raises(ConnectionError) as raised:
        fetch(server.source("cut_always"), tmp_path)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith(f"{NAME}: cannot be downloaded: http://127.0.0.1:{server.server_port}/cut_always: ")
    assert f"{HALF:,} of {len(BODY):,} bytes are on disk" in message
    assert "run the same command again to resume" in message
    assert [request.range for request in server.requests] == ranges_from(0, *[HALF] * download.TRIES)
    assert part.read_bytes() == BODY[:HALF]
    assert files(tmp_path) == {part.name}

    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.requests[-1].sent == len(BODY) - HALF


def test_an_interrupt_leaves_the_part(server, tmp_path, part):
    def interrupt(there):
        if there > HALF:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server.source("good"), tmp_path, progress=interrupt)
    there = part.stat().st_size
    assert there > HALF
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(0, there)


# The package around the module takes seconds to import, for torch; an empty one in its place takes none.
ALONE = f"""
import sys, types
for name, folder in (("dualfocal", {str(DATA.parent)!r}), ("dualfocal.data", {str(DATA)!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
"""
CHILD = """
from pathlib import Path
from dualfocal.data.download import fetch
from dualfocal.data.sources import OFFICIAL, OfficialFile

url, checksum, size, folder = sys.argv[1:]
source = OfficialFile("data.tar.gz", (url,), checksum, int(size))
fetch(source, Path(folder), progress=lambda there: print(there, flush=True))
"""


def test_a_killed_process_goes_on(server, tmp_path, part):
    source = server.source("gated")
    arguments = [sys.executable, "-c", ALONE + CHILD, source.urls[0], source.checksum, str(source.size), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) > HALF - download.CHUNK:  # the rest waits at the gate
                break
        child.kill()
    there = part.stat().st_size
    assert 0 < there <= HALF
    server.gate.set()
    assert fetch(source, tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(0, there)
    assert server.requests[1].sent == len(BODY) - there


# --- wrong bytes ---


def test_tampered_bytes_are_deleted(server, tmp_path):
    source = server.source("tampered")
    with pytest.raises(ConnectionError, match="cannot be downloaded") as raised:
        fetch(source, tmp_path)
    message = str(raised.value)
    assert "\n" not in message
    for named in (NAME, source.urls[0], source.checksum, hashlib.md5(TAMPERED).hexdigest(), "deleted"):
        assert named in message
    assert files(tmp_path) == set()
    assert len(server.requests) == 1  # it came in one piece: no use to ask again


def test_after_tampered_bytes_the_next_place_starts_anew(server, tmp_path):
    assert fetch(server.source("tampered", "good"), tmp_path).read_bytes() == BODY
    assert server.asked_for == [("tampered", None), ("good", None)]


def test_pieces_that_do_not_fit_are_fetched_once_more(server, tmp_path, part):
    part.write_bytes(bytes(HALF))
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert [request.range for request in server.requests] == ranges_from(HALF, 0)


def test_a_full_part_that_is_wrong_is_fetched_once_more(server, tmp_path, part):
    part.write_bytes(TAMPERED)
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY
    assert server.asked_for == [("good", None)]


def test_pieces_of_two_places_that_do_not_fit_are_fetched_once_more(server, tmp_path):
    assert fetch(server.source("tampered_then_cut", "good"), tmp_path).read_bytes() == BODY
    assert server.asked_for[-2:] == [("good", f"bytes={HALF}-"), ("good", None)]


def test_pieces_that_do_not_fit_are_fetched_only_once_more(server, tmp_path, part):
    part.write_bytes(BODY[:HALF])
    with pytest.raises(ConnectionError, match="deleted"):
        fetch(server.source("tampered"), tmp_path)
    assert [request.range for request in server.requests] == ranges_from(HALF, 0)
    assert files(tmp_path) == set()


@pytest.mark.parametrize("mode", ["endless", "endless_range"])
def test_an_endless_answer_is_left(server, tmp_path, part, mode):
    if mode == "endless_range":
        part.write_bytes(BODY[:HALF])
    with pytest.raises(ConnectionError, match=f"{mode}: (delivered a file with checksum md5:|HTTP 206, but not)"):
        fetch(server.source(mode), tmp_path)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("longer", "has 400,008 bytes instead of 400,007"),
        ("shorter", "has 400,006 bytes instead of 400,007"),
        ("gzip_added_length", "bytes instead of 400,007"),
        ("403", "HTTP 403 Forbidden"),
        ("404", "HTTP 404 Not Found"),
        ("202", "HTTP 202 Accepted"),
    ],
)
def test_a_place_without_the_file_is_asked_once_and_a_part_is_kept(server, tmp_path, part, mode, why):
    part.write_bytes(BODY[:9])
    with pytest.raises(ConnectionError, match=re.escape(why) + ".*; 9 of 400,007 bytes are on disk") as raised:
        fetch(server.source(mode), tmp_path)
    assert "\n" not in str(raised.value)
    assert part.read_bytes() == BODY[:9]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("redirect_file", "No connection adapters were found for 'file:///etc/passwd'"),
        ("redirect_forever", "Exceeded 30 redirects"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_named(server, tmp_path, part, mode, why):
    part.write_bytes(BODY[:9])
    with pytest.raises(ConnectionError, match=re.escape(why) + ".*; 9 of 400,007 bytes are on disk"):
        fetch(server.source(mode), tmp_path)
    assert part.read_bytes() == BODY[:9]


def test_an_answer_that_was_compressed_is_not_taken_for_the_file(server, tmp_path):
    with pytest.raises(ConnectionError, match="gzip_added: "):
        fetch(server.source("gzip_added"), tmp_path)
    assert not (tmp_path / NAME).exists()


def test_a_server_error_is_tried_again(server, tmp_path):
    with pytest.raises(ConnectionError, match=r"/500: HTTP 500 Internal Server Error$"):
        fetch(server.source("500"), tmp_path)
    assert len(server.requests) == download.TRIES


def test_all_places_are_named(server, tmp_path):
    closed = Server()
    closed.server_close()
    with pytest.raises(ConnectionError) as raised:
        fetch(server.source("404", urls=(*server.source("404").urls, *closed.source("good").urls)), tmp_path)
    message = str(raised.value)
    assert f":{server.server_port}/404: HTTP 404 Not Found; http://127.0.0.1:{closed.server_port}/good: " in message
    assert "refused" in message
    assert "Max retries" not in message
    assert "object at 0x" not in message
    assert "\n" not in message


def test_the_cause_is_the_download_s_own(server, tmp_path):
    """Not that of an error that the caller is just handling."""
    closed = Server()
    closed.server_close()
    try:
        raise KeyError("of the caller")
    except KeyError:
        with pytest.raises(ConnectionError, match="refused"):
            fetch(closed.source("good"), tmp_path)


def test_the_second_place_is_used(server, tmp_path):
    assert fetch(server.source("404", "cut_always", "good"), tmp_path).read_bytes() == BODY
    assert server.asked_for[0] == ("404", None)
    assert server.asked_for[-1] == ("good", f"bytes={HALF}-")


def test_a_server_that_hangs_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "READ_SECONDS", 0.05)
    with pytest.raises(ConnectionError, match="/hanging: timed out"):
        fetch(server.source("hanging"), tmp_path)


def test_goes_on_after_a_server_that_hangs_midway(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "READ_SECONDS", 1)  # the first half must come within it
    assert fetch(server.source("hanging_midway"), tmp_path).read_bytes() == BODY
    start = int(server.requests[1].range[len("bytes=") : -1])
    assert HALF - download.CHUNK < start <= HALF


# --- around it ---


@pytest.mark.parametrize("mode", ["good", "cut_once", "part"])
def test_progress_goes_forward_to_the_size(server, tmp_path, part, mode):
    if mode == "part":
        part.write_bytes(BODY[:HALF])
    calls = []
    fetch(server.source("good" if mode == "part" else mode), tmp_path, progress=calls.append)
    assert calls == sorted(calls)
    assert calls[0] == (HALF if mode == "part" else 0)
    assert calls[-1] == len(BODY)
    assert len(set(calls)) > 3


def test_an_error_of_progress_is_the_caller_s(server, tmp_path, part):
    """A ValueError of theirs is not taken for a wrong checksum."""

    def fail(there):
        if there > HALF:
            raise ValueError("of the caller")

    with pytest.raises(ValueError, match=r"^of the caller$"):
        fetch(server.source("good"), tmp_path, progress=fail)
    assert part.stat().st_size > HALF


def test_a_disk_that_is_too_small_is_seen_before(server, tmp_path, part, monkeypatch):
    part.write_bytes(BODY[:7])
    free = len(BODY) - 8
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(OSError, match=r"data\.tar\.gz: needs 400,000 more bytes in .* 399,999 are free"):
        fetch(server.source("good"), tmp_path)
    assert server.requests == []
    free += 1
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY


def test_two_at_once_download_once(server, tmp_path):
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(server.source("gated"), tmp_path))) for _ in "ab"]
    for thread in threads:
        thread.start()
    server.asked.wait()
    threads[1].join(0.2)  # time enough for a second request, if nothing held it up
    server.gate.set()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / NAME] * 2
    assert paths[0].read_bytes() == BODY
    assert server.asked_for == [("gated", None)]


def test_a_lock_that_was_left_holds_nobody_up(server, tmp_path):
    (tmp_path / f".{NAME}.lock").touch()
    assert fetch(server.source("good"), tmp_path).read_bytes() == BODY


def test_import_is_light():
    code = ALONE + "import dualfocal.data.download; print({'requests', 'filelock'} & sys.modules.keys())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"


# --- fetch_data ---


def test_the_files_of_a_data_set_go_to_the_folder_of_its_name_or_stay_in_the_root(server, tmp_path, monkeypatch):
    sources = (server.source("good", file="train_32x32.mat"), server.source("good", file="test_32x32.mat"))
    monkeypatch.setitem(OFFICIAL, "svhn", replace(OFFICIAL["svhn"], sources=sources))
    (tmp_path / "test_32x32.mat").write_bytes(BODY)
    calls = []
    paths = fetch_data("svhn", tmp_path, progress=lambda *call: calls.append(call))
    assert paths == [tmp_path / "svhn" / "train_32x32.mat", tmp_path / "test_32x32.mat"]
    assert calls[0] == ("train_32x32.mat", 0)
    assert calls[-1] == ("test_32x32.mat", len(BODY))
    assert len(server.requests) == 1


def test_what_is_there_unpacked_is_not_downloaded(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert fetch_data("cifar10", tmp_path) == []
    assert fetch_data("digits", tmp_path) == []
    with pytest.raises(ValueError, match=r"^20newsgroups: cannot be downloaded automatically: get 20news"):
        fetch_data("20newsgroups", tmp_path)


# --- checksum_of ---


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_checksum_of_every_byte(tmp_path, algorithm, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    checksum = f"{algorithm}:{hashlib.new(algorithm, bytes(size)).hexdigest()}"
    assert checksum_of(path, like=f"{algorithm}:...") == checksum
    path.write_bytes(bytes(size) + b"x")
    assert checksum_of(path, like=checksum) != checksum
