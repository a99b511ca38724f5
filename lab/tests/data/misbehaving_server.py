"""An HTTP server on this machine that delivers one file, and misbehaves on request: the path of a URL says how."""

import gzip
import hashlib
import random
import re
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dualfocal_lab.data.sources import OfficialFile

BODY = random.Random(0).randbytes(400_007)  # several chunks, and not a whole number of them
SIZE = len(BODY)
HALF = SIZE // 2
TAMPERED = BODY[:300_000] + bytes([BODY[300_000] ^ 1]) + BODY[300_001:]
NAME = "data.tar.gz"

# Arguments of `Handler.answer`, for paths whose answer never changes.
ANSWERS = {
    "no_range": {"body": BODY, "length": SIZE},
    "no_length": {"body": BODY},
    "bad_lengths": {"body": BODY, "length": "many"},
    "longer": {"body": BODY + b"x", "length": SIZE + 1},
    "shorter": {"body": BODY[:-1], "length": SIZE - 1},
    "other_size": {"status": 206, "body": b"x", "length": 1, "Content_Range": f"bytes {HALF}-{HALF}/{HALF + 1}"},
    "redirect": {"status": 302, "length": 0, "Location": "/good"},
    "redirect_file": {"status": 302, "length": 0, "Location": "file:///etc/passwd"},
    "redirect_forever": {"status": 302, "length": 0, "Location": "/redirect_forever"},
    "gzip_label": {"body": BODY, "length": SIZE, "Content_Encoding": "x-gzip"},
    "gzip_added": {"body": gzip.compress(BODY), "Content_Encoding": "gzip"},
    "gzip_added_length": {
        "body": gzip.compress(BODY),
        "length": len(gzip.compress(BODY)),
        "Content_Encoding": "gzip",
    },
}


@dataclass
class Request:
    mode: str
    start: int  # first byte that is requested
    encoding: str | None
    sent: int = 0


class Handler(BaseHTTPRequestHandler):
    server: "Server"

    def log_message(self, *_):
        pass

    def do_GET(self):
        mode = self.path.strip("/")
        earlier = sum(request.mode == mode for request in self.server.requests)
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        self.asked = Request(mode, start, self.headers["Accept-Encoding"])
        self.server.requests.append(self.asked)
        self.server.has_request.set()
        if mode.isdecimal():
            self.answer(int(mode))
        elif mode in ANSWERS:
            self.answer(**ANSWERS[mode])
        else:
            getattr(self, mode)(earlier)

    def answer(self, status=200, body=b"", length=None, **headers):
        """Send status, headers and body. The connection ends with it: the only end of a body without length."""
        self.send_response(status)
        headers |= {} if length is None else {"Content_Length": length}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.write(body)

    def write(self, body):
        self.asked.sent += len(body)  # before, as the client may be done before this thread goes on
        self.wfile.write(body)

    def part(self, body, stop=None):
        """Send the requested range with the right headers, but its bytes only up to ``stop``."""
        start = self.asked.start
        extent = {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        self.answer(206 if start else 200, body[start:stop], len(body) - start, **extent)

    def good(self, _):
        self.part(BODY)

    def chunked(self, _):
        self.protocol_version = "HTTP/1.1"
        self.answer(Transfer_Encoding="chunked", Connection="close")
        for at in range(0, SIZE, 30_000):
            piece = BODY[at : at + 30_000]
            self.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.write(b"0\r\n\r\n")

    def cut_once(self, earlier):
        self.part(BODY, None if earlier else HALF)

    def cut_always(self, _):
        self.part(BODY, HALF)

    def cut_no_range(self, earlier):
        self.answer(body=BODY[: None if earlier else HALF], length=SIZE)

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
        self.answer(206, Content_Range=f"bytes {HALF}-{SIZE - 1}/{SIZE}")
        while True:
            self.write(BODY)

    def wrong_range(self, _):
        if self.asked.start:
            self.answer(206, BODY, SIZE, Content_Range=f"bytes 0-{SIZE - 1}/{SIZE}")
        else:
            self.part(BODY)

    def unsatisfiable(self, _):
        if self.asked.start:
            self.answer(416, Content_Range=f"bytes */{SIZE}")
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

    def slow(self, _):
        """Send one byte at a time, each of them long before a timeout between two pieces."""
        self.part(BODY, self.asked.start + 1)
        self.drip(bytes(SIZE))

    def slow_head(self, _):
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Header: ")
        self.drip(b"x" * 60_000)

    def one_byte_each(self, _):
        self.part(BODY, self.asked.start + 1)

    def drip(self, body):
        for byte in body:
            self.write(bytes([byte]))
            if self.server.gate.wait(0.01):
                break

    def gated(self, _):
        """Send the first half; the rest once the gate is open."""
        if self.server.gate.is_set():
            return self.part(BODY)
        self.part(BODY, HALF)
        self.server.gate.wait()
        self.write(BODY[HALF:])


class Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for their sockets

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.gate, self.has_request = threading.Event(), threading.Event()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may leave
            super().handle_error(request, client_address)

    def source(self, *modes, **changes):
        urls = tuple(f"http://127.0.0.1:{self.server_port}/{mode}" for mode in modes)
        checksum = "md5:" + hashlib.md5(BODY).hexdigest()
        return OfficialFile(**{"file": NAME, "urls": urls, "checksum": checksum, "size": SIZE} | changes)

    @property
    def starts(self):
        """The path and the first requested byte of each request."""
        return [(request.mode, request.start) for request in self.requests]
