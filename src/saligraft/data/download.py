"""Downloads of data sets from their official sources, where permitted: resumed, verified, unpacked atomically."""

import http.client
import os
import queue
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from saligraft.data.archives import unpack
from saligraft.data.cifar import CIFAR10, CIFAR100
from saligraft.data.files import check_file, data_root
from saligraft.io.files import rename_durably
from saligraft.io.locks import locked
from saligraft.names import DATA_ALIASES

ATTEMPTS = 3  # consecutive ones without a new byte, once the server has sent some
MOST_BYTES = 4 << 30  # the largest official archive, Speech Commands v0.02, has 2.4 GB
MOST_SECONDS = 6 * 3600  # enough for 2.4 GB at 1 Mbit/s; the partial file is kept, so a slower line needs a second call
_TIMEOUT_SECONDS = 30  # until the server sends something, even a single byte
_HEADER_SECONDS = 120  # until it has sent the complete response header
_CHUNK_BYTES = 1 << 18

Report = Callable[[int, int | None], object]  # bytes so far, total bytes if known


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive of a data set and its content.

    Args:
        url: Its official address.
        digest: "md5:..." or "sha256:...".
        folder: Its folder under the root.
        inside: The folder within the archive; None if its files are at the top level.
        signs: Files under the root, any of which indicates that the set exists, in this form or another.
    """

    url: str
    digest: str
    folder: str
    inside: str | None
    signs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its file name."""
        return self.url.rpartition("/")[2].partition("?")[0]


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SPEECH = "https://storage.googleapis.com/download.tensorflow.org/data/"

# The md5 of CIFAR are from its page. The others are those on which several public loaders agree; they were not compared
# with the sources' pages or with the archives.
SOURCES = {
    "cifar100": Archive(
        url=_TORONTO + "cifar-100-python.tar.gz",
        digest=CIFAR100.pickles.digest,
        folder="cifar-100-python",
        inside="cifar-100-python",
        signs=("cifar-100-python/train", "train", "cifar-100-binary/train.bin", "train.bin"),
    ),
    "cifar10": Archive(
        url=_TORONTO + "cifar-10-python.tar.gz",
        digest=CIFAR10.pickles.digest,
        folder="cifar-10-batches-py",
        inside="cifar-10-batches-py",
        signs=(
            "cifar-10-batches-py/data_batch_1",
            "data_batch_1",
            "cifar-10-batches-bin/data_batch_1.bin",
            "data_batch_1.bin",
        ),
    ),
    "tiny-imagenet": Archive(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        digest="md5:90528d7ca1a48142e341f4ef8d21d0de",
        folder="tiny-imagenet-200",
        inside="tiny-imagenet-200",
        signs=("tiny-imagenet-200/wnids.txt", "wnids.txt"),
    ),
    "speech-commands": Archive(
        url=_SPEECH + "speech_commands_v0.01.tar.gz",
        digest="sha256:743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
        folder="speech_commands_v0.01",
        inside=None,
        signs=(
            "speech_commands_v0.01/testing_list.txt",
            "speech_commands_v0.02/testing_list.txt",
            "testing_list.txt",
        ),
    ),
    "speech-commands-v0.02": Archive(
        url=_SPEECH + "speech_commands_v0.02.tar.gz",
        digest="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        folder="speech_commands_v0.02",
        inside=None,
        signs=("speech_commands_v0.02/testing_list.txt", "testing_list.txt"),
    ),
    "cub": Archive(
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
        digest="md5:97eceeb196236b17998738112f37df78",
        folder="CUB_200_2011",
        inside="CUB_200_2011",
        signs=("CUB_200_2011/images.txt", "images.txt"),
    ),
}


def download(name: str, root: str | Path | None = None) -> Path:
    """Download and unpack a data set, unless it exists.

    The archive is kept beside its folder. An archive placed there by the user is used instead of a download.

    Args:
        name: The data set; "speech-commands-v0.02" is the larger version.
        root: The folder, by default `data/NAME` under the working folder.

    Returns:
        The folder.
    """
    name = DATA_ALIASES.get(name, name)
    place = data_root(name.removesuffix("-v0.02"), root)
    if name == "imagenet":
        raise ValueError(
            "imagenet cannot be downloaded: its terms ask each user to register at https://image-net.org; put its "
            f"folders train and val, each with a folder per class (n01440764 ...), into {place}"
        )
    if name not in SOURCES:
        raise ValueError(f"{name} has nothing to download; valid: {', '.join(SOURCES)}")
    source = SOURCES[name]
    if _is_there(source, place):
        return place
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / f".{source.name}.lock"):
        if not _is_there(source, place):  # another process may have downloaded it meanwhile
            if (place / source.folder).exists():
                raise ValueError(f"{place / source.folder} exists, but without its {source.signs[0]}: move it away")
            archive = _archive(name, source, place)
            print(f"{name}: unpacking {archive} into {place / source.folder}", file=sys.stderr)
            unpack(archive, place / source.folder, source.inside)
    return place


def _is_there(source: Archive, root: Path) -> bool:
    return any((root / sign).is_file() for sign in source.signs)


def _archive(name: str, source: Archive, root: Path) -> Path:
    """The verified archive, downloaded unless it is in `root`."""
    path = root / source.name
    if path.is_file():
        check_file(path, source.digest)
        return path
    try:
        with _progress(name) as report:
            fetch(source.url, path, source.digest, report)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}. Without network access, put {source.name} from {source.url} into {root}, then run the "
            "same command again"
        ) from error
    return path


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """Show a bar on a terminal; elsewhere one line, so that a log shows what took the time."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{name}: downloading", highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{name}: downloading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def fetch(url: str, path: Path, digest: str, report: Report = lambda _done, _total: None) -> None:
    """Download a file by HTTP; a partial file is kept as `path`.part, so that the next attempt resumes from it.

    It is resumed if the server supports HTTP Range, and replaced otherwise.

    Args:
        url: Its address.
        path: Path of the result, which is complete or absent.
        digest: "md5:..." or "sha256:..."; a file with another digest is removed.
        report: Called with the bytes so far and, if known, the total.

    Raises:
        ValueError: The file is not the official one, or has more than `MOST_BYTES`.
        ConnectionError: The server cannot be reached, disconnects repeatedly, or takes longer than `MOST_SECONDS`.
    """
    part = path.with_name(f"{path.name}.part")
    deadline = time.monotonic() + MOST_SECONDS
    failures, limit = 0, 1
    while failures < limit:
        before = _size(part)
        try:
            is_complete, reason = _continue(url, part, report, deadline), "the connection was lost"
        except urllib.error.HTTPError as error:
            raise ConnectionError(f"{url} responded {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            is_complete, reason = False, str(getattr(error, "reason", error))
        if is_complete:
            try:
                check_file(part, digest)
            except ValueError as error:
                part.unlink()
                raise ValueError(f"{error}; it was removed, the same command downloads it again") from None
            rename_durably(part, path)
            return
        if time.monotonic() >= deadline:
            reason = f"it takes longer than {MOST_SECONDS} s"
            break
        if _size(part) > before:
            failures, limit = 0, ATTEMPTS
        else:
            failures += 1
    kept = f"; the {_size(part):,} bytes in {part} are kept, the same command resumes there" if _size(part) else ""
    raise ConnectionError(f"{url} cannot be downloaded ({reason}){kept}")


def _continue(url: str, part: Path, report: Report, deadline: float) -> bool:
    """Append the missing bytes; True once the file is complete."""
    start = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = _open(request)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            # no bytes after the part: it is complete, or of another file, which its checksum detects
            return True
        raise
    with response, _shut_at(deadline, response):
        partial = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if not (partial and str(response.headers.get("Content-Range")).startswith(f"bytes {start}-")):
            start = 0  # the server sends the complete file, not only the rest
        length = response.headers.get("Content-Length")
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 20):
            raise ConnectionError(f"its Content-Length must be an integer, got {length[:40]!r}")
        total = start + int(length) if length is not None else None
        done = _append(response, part, start, total, report)
        if max(done, total or 0) > MOST_BYTES:
            part.unlink()
            raise ValueError(f"{url} sends more than {MOST_BYTES:,} bytes, so it is not the official file")
        return time.monotonic() < deadline if total is None else done == total


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    """`urlopen` with a time limit for the complete header: its own timeout restarts with every byte."""
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
        raise TimeoutError(f"no complete header within {_HEADER_SECONDS} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


@contextmanager
def _shut_at(deadline: float, response: http.client.HTTPResponse) -> Iterator[None]:
    """End a transfer at its deadline, even one so slow that a single read takes hours."""
    with socket.fromfd(response.fileno(), socket.AF_INET, socket.SOCK_STREAM) as connection:

        def shut() -> None:
            with suppress(OSError):  # the connection may already be closed
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(deadline - time.monotonic(), shut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _append(response: http.client.HTTPResponse, part: Path, start: int, total: int | None, report: Report) -> int:
    """Write the bytes received after the first `start`; return the size of the part."""
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
