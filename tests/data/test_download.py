"""Data sets brought into their folder: by HTTP, from an archive put there by hand, or not at all."""

import dataclasses
import hashlib
import io
import multiprocessing
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from saligraft.data import DATASETS
from saligraft.data.download import SOURCES, download

FILES = {"cifar-100-python/train": b"t", "cifar-100-python/test": b"u"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


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
    point_at(f"http://127.0.0.1:{unused_port}/", content, monkeypatch)
    root = tmp_path / "a" / "root"
    root.mkdir(parents=True)
    (root / "cifar-100-python.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match="leads out of the folder"):
        download("cifar100", root)
    assert not list(tmp_path.rglob("evil"))
    assert not (root / "cifar-100-python").exists()


@pytest.mark.usefixtures("served")
def test_a_folder_without_the_set_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "mine").touch()
    with pytest.raises(ValueError, match="cifar-100-python is there, but without its cifar-100-python/train"):
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
    assert source.archive in source.url
    assert source.signs[0].startswith(f"{source.folder}/")
    assert name.removesuffix("-v0.02") in DATASETS


def test_a_terminal_shows_a_bar(served: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    download("cifar100", tmp_path / "root")
    shown = capsys.readouterr().err
    assert "cifar100: downloading" in shown
    assert f"{len(served)}/{len(served)} bytes" in shown
