"""Bytes of tars and zips, written by hand: with any header, also those that no tool writes."""

import gzip
import io
import tarfile
import zipfile


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields: bytes) -> bytes:
    """A header of a tar with any size, also one that no file has; fields are ``at_N`` bytes."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    for place, value in fields.items():
        begin = int(place.removeprefix("at_"))
        block[begin : begin + len(value)] = value
    return with_checksum(block)


def with_checksum(block: bytes) -> bytes:
    checksum = sum(block[:148]) + sum(block[156:512]) + 8 * ord(" ")
    return bytes(block[:148]) + b"%06o\0 " % checksum + bytes(block[156:])


def pax(**records: object) -> bytes:
    """A header with records for the next one; ``_`` in names are dots."""
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
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def pack(suffix: str, files: dict[str, bytes]) -> bytes:
    if suffix == ".zip":
        return zip_of(files)
    return compressed(suffix, tar_of(files))


def compressed(suffix: str, tar: bytes) -> bytes:
    return gzip.compress(tar, mtime=0) if suffix.endswith("gz") else tar
