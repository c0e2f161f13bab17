"""Fetch one file by HTTP: what has arrived is kept, so that the next attempt goes on from there."""

import http.client
import os
import queue
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saligraft.data.checksums import check_file

ATTEMPTS = 3  # in a row without a single new byte, once the server has sent some
MOST_BYTES = 4 << 30  # the largest official archive, Speech Commands v0.02, has 2.4 GB
MOST_SECONDS = 6 * 3600  # in which 1 Mbit/s brings those 2.4 GB; the part is kept, so a slower line needs a second call
_TIMEOUT_SECONDS = 30  # until the server sends something, which may be a single byte
_HEADER_SECONDS = 120  # until it has sent the whole header of its answer
_CHUNK_BYTES = 1 << 18

Report = Callable[[int, int | None], object]  # bytes that are there, bytes in all where known


def no_report(_done: int, _total: int | None) -> None:
    """Show nothing."""


def fetch(url: str, path: Path, digest: str, report: Report = no_report) -> None:
    """Bring a file of this digest to `path`, which is whole or absent; the part that has arrived is `path`.part.

    A part goes on where the server can continue (HTTP Range) and starts anew where it cannot. A file of another digest
    is removed, as is one of more than `MOST_BYTES`. ConnectionError where the server cannot be reached, breaks off
    again and again, or takes longer than `MOST_SECONDS`.
    """
    part = path.with_name(f"{path.name}.part")
    deadline = time.monotonic() + MOST_SECONDS
    failures, limit = 0, 1
    while failures < limit:
        before = _size(part)
        try:
            is_whole, reason = _continue(url, part, report, deadline), "it broke off"
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{url} answers {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            is_whole, reason = False, str(getattr(error, "reason", error))
        if is_whole:
            _finish(part, path, digest)
            return
        if time.monotonic() >= deadline:
            reason = f"it takes longer than {MOST_SECONDS} s"
            break
        if _size(part) > before:
            failures, limit = 0, ATTEMPTS
        else:
            failures += 1
    kept = f"; the {_size(part):,} bytes in {part} are kept, the same command goes on from there" if _size(part) else ""
    raise ConnectionError(f"{url} cannot be fetched ({reason}){kept}")


def _continue(url: str, part: Path, report: Report, deadline: float) -> bool:
    """Append what is missing; True once everything has arrived."""
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = _open(request)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # nothing lies behind the part: it is whole, or of another file, which its checksum tells
            return True
        raise
    with response, _shut_at(deadline, response):
        if start and not _continues_at(response, start):
            start = 0
        length = response.headers.get("Content-Length")
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 20):
            raise ConnectionError(f"its Content-Length must be a whole number, got {length[:40]!r}")
        total = start + int(length) if length is not None else None
        done = _append(response, part, start, total, report)
        if max(done, total or 0) > MOST_BYTES:
            part.unlink()
            raise ValueError(f"{url} sends more than {MOST_BYTES:,} bytes, so it is not the official file")
        return time.monotonic() < deadline if total is None else done == total


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    """`urlopen` with a limit to the whole header: its own timeout begins anew with every byte."""
    answers: queue.SimpleQueue[http.client.HTTPResponse | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_HEADER_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no whole header within {_HEADER_SECONDS} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


@contextmanager
def _shut_at(deadline: float, response: http.client.HTTPResponse) -> Iterator[None]:
    """End a transfer in time, also one that trickles so slowly that a single read takes hours."""
    with socket.fromfd(response.fileno(), socket.AF_INET, socket.SOCK_STREAM) as connection:

        def shut() -> None:
            with suppress(OSError):  # the server may have gone meanwhile
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(deadline - time.monotonic(), shut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _append(response: http.client.HTTPResponse, part: Path, start: int, total: int | None, report: Report) -> int:
    """Write what arrives behind the first `start` bytes; gives the size of the part."""
    done = start
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        report(done, total)
        try:
            while max(done, total or 0) <= MOST_BYTES and (chunk := response.read(_CHUNK_BYTES)):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
        finally:
            file.flush()
            os.fsync(file.fileno())
    return done


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
