"""Fetch one file by HTTP: what has arrived is kept, so that the next attempt goes on from there."""

import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from saligraft.data.checksums import check_file

ATTEMPTS = 3  # in a row without a single new byte, once the server has sent some
_TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 1 << 18

Report = Callable[[int, int | None], object]  # bytes that are there, bytes in all where known


def no_report(_done: int, _total: int | None) -> None:
    """Show nothing."""


def fetch(url: str, path: Path, digest: str, report: Report = no_report) -> None:
    """Bring a file of this digest to `path`, which is whole or absent; the part that has arrived is `path`.part.

    A part goes on where the server can continue (HTTP Range) and starts anew where it cannot. A file of another digest
    is removed. ConnectionError where the server cannot be reached or breaks off again and again.
    """
    part = path.with_name(f"{path.name}.part")
    failures, limit = 0, 1
    while failures < limit:
        before = _size(part)
        try:
            is_whole, reason = _continue(url, part, report), "it broke off"
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{url} answers {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            is_whole, reason = False, str(getattr(error, "reason", error))
        if is_whole:
            _finish(part, path, digest)
            return
        if _size(part) > before:
            failures, limit = 0, ATTEMPTS
        else:
            failures += 1
    kept = f"; the {_size(part):,} bytes in {part} are kept, the same command goes on from there" if _size(part) else ""
    raise ConnectionError(f"{url} cannot be fetched ({reason}){kept}")


def _continue(url: str, part: Path, report: Report) -> bool:
    """Append what is missing; True once everything has arrived."""
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # nothing lies behind the part: it is whole, or of another file, which its checksum tells
            return True
        raise
    with response:
        if start and not _continues_at(response, start):
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        return _append(response, part, start, total, report)


def _append(response: http.client.HTTPResponse, part: Path, start: int, total: int | None, report: Report) -> bool:
    done = start
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        report(done, total)
        try:
            while chunk := response.read(_CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
        finally:
            file.flush()
            os.fsync(file.fileno())
    return total is None or done == total


def _continues_at(response: http.client.HTTPResponse, start: int) -> bool:
    """True where the server sends the rest alone, rather than the whole file again."""
    partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
    return partial and str(response.headers.get("Content-Range")).startswith(f"bytes {start}-")


def _finish(part: Path, path: Path, digest: str) -> None:
    try:
        check_file(part, digest)
    except ValueError as error:
        part.unlink()
        raise ValueError(f"{error}; it was removed, the same command fetches it anew") from None
    part.replace(path)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
