"""Data sets from their official sources, where those allow it: resumed, checked, unpacked as a whole or not at all."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from saligraft.data.archives import unpack
from saligraft.data.checksums import check_file
from saligraft.data.cifar import CIFAR10, CIFAR100
from saligraft.data.roots import data_root
from saligraft.data.transfer import Report, fetch, no_report
from saligraft.io.locks import locked


@dataclass(frozen=True, kw_only=True)
class Source:
    """An archive of a data set, and what lies in it."""

    url: str
    archive: str  # its file name
    digest: str
    folder: str  # what it becomes under the root
    inside: str | None  # the folder within the archive; None where its files stand at the top
    signs: tuple[str, ...]  # files under the root, any of which shows that the set is there, in this form or another


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SPEECH = "https://storage.googleapis.com/download.tensorflow.org/data/"

# The md5 of CIFAR stand on its page. The others are those on which several public loaders agree; they were compared
# neither with the sources' pages nor with the archives.
SOURCES = {
    "cifar100": Source(
        url=_TORONTO + "cifar-100-python.tar.gz",
        archive="cifar-100-python.tar.gz",
        digest=CIFAR100.pickles.digest,
        folder="cifar-100-python",
        inside="cifar-100-python",
        signs=("cifar-100-python/train", "train", "cifar-100-binary/train.bin", "train.bin"),
    ),
    "cifar10": Source(
        url=_TORONTO + "cifar-10-python.tar.gz",
        archive="cifar-10-python.tar.gz",
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
    "tiny-imagenet": Source(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        archive="tiny-imagenet-200.zip",
        digest="md5:90528d7ca1a48142e341f4ef8d21d0de",
        folder="tiny-imagenet-200",
        inside="tiny-imagenet-200",
        signs=("tiny-imagenet-200/wnids.txt", "wnids.txt"),
    ),
    "speech-commands": Source(
        url=_SPEECH + "speech_commands_v0.01.tar.gz",
        archive="speech_commands_v0.01.tar.gz",
        digest="sha256:743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
        folder="speech_commands_v0.01",
        inside=None,
        signs=(
            "speech_commands_v0.01/testing_list.txt",
            "speech_commands_v0.02/testing_list.txt",
            "testing_list.txt",
        ),
    ),
    "speech-commands-v0.02": Source(
        url=_SPEECH + "speech_commands_v0.02.tar.gz",
        archive="speech_commands_v0.02.tar.gz",
        digest="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        folder="speech_commands_v0.02",
        inside=None,
        signs=("speech_commands_v0.02/testing_list.txt", "testing_list.txt"),
    ),
    "cub": Source(
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
        archive="CUB_200_2011.tgz",
        digest="md5:97eceeb196236b17998738112f37df78",
        folder="CUB_200_2011",
        inside="CUB_200_2011",
        signs=("CUB_200_2011/images.txt", "images.txt"),
    ),
}


def download(name: str, root: str | Path | None = None) -> Path:
    """Bring a data set into `root`, by default `data/NAME` under the working folder, unless it is there; gives `root`.

    The archive stays beside the folder it becomes. One that was put there by hand is used in place of a download.
    """
    place = data_root(name.removesuffix("-v0.02"), root)
    source = _source(name, place)
    if _is_there(source, place):
        return place
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / f".{source.archive}.lock"):
        if not _is_there(source, place):  # another process may have brought it meanwhile
            if (place / source.folder).exists():
                raise ValueError(f"{place / source.folder} is there, but without its {source.signs[0]}: move it away")
            archive = _archive(name, source, place)
            print(f"{name}: unpacking {archive} into {place / source.folder}", file=sys.stderr)
            unpack(archive, place / source.folder, source.inside)
    return place


def _source(name: str, root: Path) -> Source:
    if name == "imagenet":
        raise ValueError(
            "imagenet cannot be downloaded: its terms ask each user to register at https://image-net.org; put its "
            f"folders train and val, each with a folder per class (n01440764 ...), into {root}"
        )
    if name not in SOURCES:
        raise ValueError(f"{name} has nothing to download; valid: {', '.join(SOURCES)}")
    return SOURCES[name]


def _is_there(source: Source, root: Path) -> bool:
    return any((root / sign).is_file() for sign in source.signs)


def _archive(name: str, source: Source, root: Path) -> Path:
    """The checked archive, fetched unless it lies in `root` already."""
    path = root / source.archive
    if path.is_file():
        check_file(path, source.digest)
        return path
    try:
        with _progress(name) as report:
            fetch(source.url, path, source.digest, report)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}. Where the network is closed, put {source.archive} from {source.url} into {root}, then run the "
            "same command again"
        ) from error
    return path


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere one line, so that a log says what took the time."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{name}: downloading", highlight=False)
        yield no_report
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{name}: downloading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
