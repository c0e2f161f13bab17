"""Fetching from servers that break off, know no ranges, or send something else."""

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from saligraft.data import transfer
from saligraft.data.transfer import fetch

CONTENT = os.urandom(1_000_000)
DIGEST = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `breaks` holds after how many bytes each answer breaks off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.knows_ranges, self.says_length = CONTENT, True, True
        self.breaks: list[int] = []
        self.ranges: list[str | None] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/set.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.knows_ranges else 0
        if server.status != 200 or start >= len(server.content):
            self.send_error(server.status if server.status != 200 else 416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        if server.says_length:
            self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        end = start + server.breaks.pop(0) if server.breaks else None
        with contextlib.suppress(ConnectionError):
            self.wfile.write(server.content[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def hostile() -> Iterator[Callable[[Iterable[bytes]], str]]:
    """The address of a server that answers with these pieces, as fast as they come, until nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(pieces: Iterable[bytes]) -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(10_000)
                        for piece in pieces:
                            connection.sendall(piece)

        def serve(pieces: Iterable[bytes]) -> str:
            threading.Thread(target=answer, args=(pieces,), daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/set.tar.gz"

        yield serve


class Pieces:
    """A beginning, and then the same piece for ever, with a pause before each."""

    def __init__(self, first: bytes, then: bytes, seconds: float = 0.0) -> None:
        self.first, self.then, self.seconds = first, then, seconds

    def __iter__(self) -> Iterator[bytes]:
        yield self.first
        while True:
            time.sleep(self.seconds)
            yield self.then


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.tar.gz"


def arrived(path: Path) -> bool:
    return path.read_bytes() == CONTENT and [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("says_length", [True, False])
def test_a_file_arrives_whole(server: Server, path: Path, says_length: bool) -> None:
    server.says_length = says_length
    reports: list[tuple[int, int | None]] = []
    fetch(server.url, path, DIGEST, lambda done, total: reports.append((done, total)))
    assert arrived(path)
    assert reports[0] == (0, len(CONTENT) if says_length else None)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] == len(CONTENT)


def test_a_transfer_that_breaks_off_goes_on_from_there(server: Server, path: Path) -> None:
    server.breaks = [300_000, 1, 400_000]
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges == [None, "bytes=300000-", "bytes=300001-", "bytes=700001-"]


def test_the_part_of_an_earlier_call_is_used(server: Server, path: Path) -> None:
    path.with_name("set.tar.gz.part").write_bytes(CONTENT[:999_000])
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges == ["bytes=999000-"]


def test_a_server_that_sends_nothing_more_is_given_up_and_the_part_kept(server: Server, path: Path) -> None:
    server.breaks = [300_000] + [0] * transfer.ATTEMPTS
    with pytest.raises(ConnectionError, match=r"broke off\); the 300,000 bytes in .*set.tar.gz.part are kept"):
        fetch(server.url, path, DIGEST)
    assert not path.exists()
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges[-1] == "bytes=300000-"


def test_a_server_without_ranges_starts_anew(server: Server, path: Path) -> None:
    server.knows_ranges, server.breaks = False, [300_000]
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert len(server.ranges) == 2


def test_a_part_that_is_already_whole_is_taken(server: Server, path: Path) -> None:
    path.with_name("set.tar.gz.part").write_bytes(CONTENT)
    fetch(server.url, path, DIGEST)
    assert arrived(path)


@pytest.mark.parametrize("part", [b"", b"x" * 10, b"x" * 1_000_000, b"x" * 1_000_001])
def test_another_checksum_is_refused_and_removed(server: Server, path: Path, part: bytes) -> None:
    """Wrong content on the server, or a part of another file, shorter, as long or longer."""
    if part:
        path.with_name("set.tar.gz.part").write_bytes(part)
    else:
        server.content = CONTENT[::-1]
    with pytest.raises(ValueError, match=r"damaged or not the official file: its sha256 is .* it was removed"):
        fetch(server.url, path, DIGEST)
    assert not list(path.parent.iterdir())
    server.content = CONTENT
    fetch(server.url, path, DIGEST)
    assert arrived(path)


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_refusing_server_is_named(server: Server, path: Path, status: int) -> None:
    server.status = status
    with pytest.raises(ConnectionError, match=rf"127.0.0.1.*set.tar.gz answers {status}"):
        fetch(server.url, path, DIGEST)
    assert len(server.ranges) == 1


def test_no_server_is_told_at_once(unused_port: int, path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"cannot be fetched \(.*refused\)"):
        fetch(f"http://127.0.0.1:{unused_port}/x", path, DIGEST)


def test_a_full_disk_is_no_broken_connection(server: Server, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(server.url, path, DIGEST)
    assert len(server.ranges) == 1


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (Pieces(OK + b"Content-Length: 1000000\r\n\r\n12345", b"x", 0.05), 5),
        (Pieces(OK + b"\r\n12345", b"x", 0.05), 5),
        (Pieces(CHUNKED + b"5\r\n12345\r\n", b"1\r\nx\r\n", 0.05), 0),
        (Pieces(CHUNKED + b"5\r\n12345\r\n", b"0", 0.05), 0),
        (Pieces(CHUNKED + b"5\r\n12345\r\n0\r\n", b"Field: value\r\n"), 0),
    ],
    ids=["length", "no length", "chunks", "a chunk's size", "trailers"],
)
def test_a_body_without_end_is_given_up_in_time(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch, pieces: Pieces, kept: int
) -> None:
    monkeypatch.setattr(transfer, "MOST_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"set.tar.gz cannot be fetched \(it takes longer than 0.5 s\)"):
        fetch(hostile(pieces), path, DIGEST)
    assert time.monotonic() - start < 5
    assert not path.exists()
    assert path.with_name("set.tar.gz.part").stat().st_size >= kept


def test_a_header_without_end_is_given_up_in_time(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_HEADER_SECONDS", 0.5)
    with pytest.raises(ConnectionError, match=r"cannot be fetched \(no whole header within 0.5 s\)"):
        fetch(hostile(Pieces(OK + b"Field: ", b"x", 0.05)), path, DIGEST)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("length", [b"", b"Content-Length: 8000001\r\n", b"Content-Length: 1234567890123456789\r\n"])
def test_more_bytes_than_any_official_archive_are_refused(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch, length: bytes
) -> None:
    monkeypatch.setattr(transfer, "MOST_BYTES", 8_000_000)
    with pytest.raises(ValueError, match=r"set.tar.gz sends more than 8,000,000 bytes, so it is not the official file"):
        fetch(hostile(Pieces(OK + length + b"\r\n", bytes(100_000))), path, DIGEST)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("length", ["abc", "-5", "1_000", "1e3", "", "٣", "9" * 5000])
def test_a_content_length_that_is_no_number_is_named(hostile: Callable[..., str], path: Path, length: str) -> None:
    with pytest.raises(ConnectionError) as caught:
        fetch(hostile([OK + f"Content-Length: {length}\r\n\r\nx".encode()]), path, DIGEST)
    assert "set.tar.gz cannot be fetched (its Content-Length must be a whole number, got '" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


def test_an_empty_body_is_refused(hostile: Callable[..., str], path: Path) -> None:
    with pytest.raises(ValueError, match="damaged or not the official file"):
        fetch(hostile([OK + b"Content-Length: 0\r\n\r\n"]), path, DIGEST)
