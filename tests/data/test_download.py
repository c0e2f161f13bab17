"""Data sets brought into their folder: by HTTP, from an archive put there by hand, or not at all."""

import contextlib
import dataclasses
import hashlib
import io
import multiprocessing
import os
import shlex
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from saligraft.config.recipe_file import load_recipe
from saligraft.data import DATASETS, load
from saligraft.data import download as download_module
from saligraft.data.download import SOURCES, download, fetch
from saligraft.names import SMALL_RECIPES

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
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def hostile() -> Iterator[Callable[[Iterable[bytes]], str]]:
    """The address of a server that answers with these pieces, as fast as they come, until the client disconnects."""
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


def test_an_interrupted_transfer_resumes(server: Server, path: Path) -> None:
    server.breaks = [300_000, 1, 400_000]
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges == [None, "bytes=300000-", "bytes=300001-", "bytes=700001-"]


def test_the_part_of_an_earlier_call_is_used(server: Server, path: Path) -> None:
    path.with_name("set.tar.gz.part").write_bytes(CONTENT[:999_000])
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges == ["bytes=999000-"]


def test_a_server_that_stops_sending_is_abandoned_and_the_part_kept(server: Server, path: Path) -> None:
    server.breaks = [300_000] + [0] * download_module.ATTEMPTS
    with pytest.raises(
        ConnectionError, match=r"connection was lost\); the 300,000 bytes in .*set.tar.gz.part are kept"
    ):
        fetch(server.url, path, DIGEST)
    assert not path.exists()
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert server.ranges[-1] == "bytes=300000-"


def test_a_server_without_ranges_starts_over(server: Server, path: Path) -> None:
    server.knows_ranges, server.breaks = False, [300_000]
    fetch(server.url, path, DIGEST)
    assert arrived(path)
    assert len(server.ranges) == 2


def test_a_complete_part_is_used(server: Server, path: Path) -> None:
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
    with pytest.raises(ConnectionError, match=rf"127.0.0.1.*set.tar.gz responded {status}"):
        fetch(server.url, path, DIGEST)
    assert len(server.ranges) == 1


def test_a_missing_server_is_reported_at_once(unused_port: int, path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"cannot be downloaded \(.*refused\)"):
        fetch(f"http://127.0.0.1:{unused_port}/x", path, DIGEST)


def test_a_full_disk_is_no_broken_connection(server: Server, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download_module.os, "fsync", full)
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
def test_an_endless_body_is_aborted_in_time(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch, pieces: Pieces, kept: int
) -> None:
    monkeypatch.setattr(download_module, "MOST_SECONDS", 1.5)  # a busy machine sends the first bytes late
    with pytest.raises(ConnectionError, match=r"set.tar.gz cannot be downloaded \(it takes longer than 1.5 s\)"):
        fetch(hostile(pieces), path, DIGEST)  # which would never return
    assert not path.exists()
    assert path.with_name("set.tar.gz.part").stat().st_size >= kept


def test_an_endless_header_is_aborted_in_time(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "_HEADER_SECONDS", 0.5)
    with pytest.raises(ConnectionError, match=r"cannot be downloaded \(no complete header within 0.5 s\)"):
        fetch(hostile(Pieces(OK + b"Field: ", b"x", 0.05)), path, DIGEST)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("length", [b"", b"Content-Length: 8000001\r\n", b"Content-Length: 1234567890123456789\r\n"])
def test_more_bytes_than_any_official_archive_are_refused(
    hostile: Callable[..., str], path: Path, monkeypatch: pytest.MonkeyPatch, length: bytes
) -> None:
    monkeypatch.setattr(download_module, "MOST_BYTES", 8_000_000)
    with pytest.raises(ValueError, match=r"set.tar.gz sends more than 8,000,000 bytes, so it is not the official file"):
        fetch(hostile(Pieces(OK + length + b"\r\n", bytes(100_000))), path, DIGEST)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("length", ["abc", "-5", "1_000", "1e3", "", "٣", "9" * 5000])
def test_a_content_length_that_is_no_number_is_named(hostile: Callable[..., str], path: Path, length: str) -> None:
    with pytest.raises(ConnectionError) as caught:
        fetch(hostile([OK + f"Content-Length: {length}\r\n\r\nx".encode()]), path, DIGEST)
    assert "set.tar.gz cannot be downloaded (its Content-Length must be an integer, got '" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 200


def test_an_empty_body_is_refused(hostile: Callable[..., str], path: Path) -> None:
    with pytest.raises(ValueError, match="damaged or not the official file"):
        fetch(hostile([OK + b"Content-Length: 0\r\n\r\n"]), path, DIGEST)


FILES = {"cifar-100-python/train": b"t", "cifar-100-python/test": b"u"}


class QuietHandler(SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012  (each test gets its own)

    def do_GET(self) -> None:
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


def make_archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def point_at(url: str, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let "cifar100" come from this address, with this content's checksum."""
    digest = "md5:" + hashlib.md5(content).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar100", dataclasses.replace(SOURCES["cifar100"], url=url, digest=digest))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """The content of the archive that "cifar100" now comes from, on a local server."""
    content = make_archive(FILES)
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "cifar-100-python.tar.gz").write_bytes(content)
    monkeypatch.setattr(QuietHandler, "requests", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/cifar-100-python.tar.gz"
        point_at(url, content, monkeypatch)
        yield content
        server.shutdown()
        thread.join()


@pytest.fixture
def closed(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The content of an archive whose server cannot be reached."""
    content = make_archive(FILES)
    point_at(f"http://127.0.0.1:{unused_port}/cifar-100-python.tar.gz", content, monkeypatch)
    return content


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_set_is_fetched_checked_and_unpacked(
    served: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a" / "b"
    assert download("cifar100", root) == root
    lock = {".cifar-100-python.tar.gz.lock": b""}
    assert contents(root) == FILES | {"cifar-100-python.tar.gz": served} | lock
    assert capsys.readouterr().err.startswith("cifar100: downloading\ncifar100: unpacking ")


@pytest.mark.usefixtures("served")
def test_the_default_root_is_where_load_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert download("cifar100") == Path("data/cifar100")
    assert (tmp_path / "data/cifar100/cifar-100-python/train").is_file()


@pytest.mark.usefixtures("served")
def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    download("cifar100", tmp_path)
    download("cifar100", tmp_path)
    download("cifar100", tmp_path / "cifar-100-python")  # the set's own folder is a root too
    assert len(QuietHandler.requests) == 1


def test_another_name_of_a_set_is_known(tmp_path: Path) -> None:
    (tmp_path / "images.txt").touch()
    assert download("cub200", tmp_path) == tmp_path


def test_an_archive_put_there_by_hand_needs_no_network(closed: bytes, tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(closed)
    download("cifar100", tmp_path)
    assert (tmp_path / "cifar-100-python" / "train").read_bytes() == b"t"


@pytest.mark.usefixtures("closed")
def test_a_wrong_archive_put_there_by_hand_is_named_and_kept(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(make_archive({"../evil": b"x"}))
    with pytest.raises(ValueError, match=rf"{archive} is damaged or not the official file: its md5"):
        download("cifar100", tmp_path)
    assert archive.exists()
    assert not (tmp_path / "cifar-100-python").exists()


@pytest.mark.usefixtures("closed")
def test_a_closed_network_says_which_file_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError) as caught:
        download("cifar100", tmp_path)
    text = str(caught.value)
    assert "refused" in text
    assert f"put cifar-100-python.tar.gz from {SOURCES['cifar100'].url} into {tmp_path}, then run the same" in text
    assert "\n" not in text


def test_an_official_checksum_does_not_excuse_a_hostile_archive(
    tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make_archive(FILES | {"../../evil": b"x"})
    point_at(f"http://127.0.0.1:{unused_port}/cifar-100-python.tar.gz", content, monkeypatch)
    root = tmp_path / "a" / "root"
    root.mkdir(parents=True)
    (root / "cifar-100-python.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match="outside the folder"):
        download("cifar100", root)
    assert not list(tmp_path.rglob("evil"))
    assert not (root / "cifar-100-python").exists()


@pytest.mark.usefixtures("served")
def test_a_folder_without_the_set_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "mine").touch()
    with pytest.raises(ValueError, match="cifar-100-python exists, but without its cifar-100-python/train"):
        download("cifar100", tmp_path)
    assert not QuietHandler.requests


def test_of_processes_that_come_at_once_one_fetches(served: bytes, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=download, args=("cifar100", tmp_path / "root")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (tmp_path / "root" / "cifar-100-python.tar.gz").read_bytes() == served
    assert len(QuietHandler.requests) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("imagenet", "imagenet cannot be downloaded: its terms .* put its folders train and val, .* into .*x$"),
        ("shapes", "shapes has nothing to download; valid: cifar100, cifar10,"),
        ("folder:/pictures", "folder:/pictures has nothing to download"),
    ],
)
def test_sets_without_a_download_say_why(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        download(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_complete(name: str) -> None:
    source: Any = SOURCES[name]
    algorithm, digest = source.digest.split(":")
    assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]
    assert source.name.endswith((".tar.gz", ".tgz", ".zip"))
    assert source.signs[0].startswith(f"{source.folder}/")
    assert name.removesuffix("-v0.02") in DATASETS


def test_a_terminal_shows_a_bar(served: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    download("cifar100", tmp_path / "root")
    shown = capsys.readouterr().err
    assert "cifar100: downloading" in shown
    assert f"{len(served)}/{len(served)} bytes" in shown


@pytest.mark.parametrize("name", SMALL_RECIPES)
def test_missing_data_name_the_command_that_downloads_them(name: str, tmp_path: Path) -> None:
    for root, setting in ((None, []), (tmp_path / "my data", [f"data.root={tmp_path / 'my data'}"])):
        with pytest.raises((FileNotFoundError, ValueError), match="download it: saligraft train ") as caught:
            load(name, root=root)
        _, _, command = str(caught.value).partition("download it: ")
        program, action, recipe, *words, download, plan = shlex.split(command)
        assert (program, action, download, plan) == ("saligraft", "train", "--download", "--plan")
        assert load_recipe(recipe, [word for word in words if word != "--set"]).data.name == name
        assert words[-1:] == setting or not setting
