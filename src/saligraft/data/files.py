"""A data set's source files: where they are, whether they are the official ones, and folders of class folders."""

import hashlib
import io
import itertools
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

import torch
from torch import Tensor

from saligraft.names import SMALL_RECIPES

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))
_SYSTEM_FILES = frozenset(("Thumbs.db", "desktop.ini", "__MACOSX"))


def data_root(name: str, root: str | Path | None) -> Path:
    """Return the folder of a data set's files.

    Args:
        name: The data set.
        root: The user's choice, which may start with "~"; None for `data/NAME`, where downloads are stored.
    """
    try:
        return Path("data") / name if root is None else Path(root).expanduser()
    except RuntimeError as error:
        raise ValueError(f"root must name a folder, got {str(root)!r}: {error}") from None


def download_command(name: str, root: Path) -> str:
    """Return the command that downloads a data set into a folder, and trains nothing.

    Args:
        name: The data set.
        root: The folder.

    Example:
        >>> download_command("cub", Path("birds"))
        'saligraft train cub-resnet-10 --set data.root=birds --download --plan'
    """
    elsewhere = "" if root == data_root(name, None) else f" --set {shlex.quote(f'data.root={root}')}"
    return f"saligraft train {SMALL_RECIPES[name]}{elsewhere} --download --plan"


def check_file(path: Path, digest: str, content: bytes | None = None) -> None:
    """Refuse a file that is not the one published by its official source.

    Most sources publish an md5. It detects damage and mix-ups, but not an attacker who can create md5 collisions, so
    matching files are not trusted either: archives are extracted, and pickles read, as untrusted input.

    Args:
        path: The file.
        digest: The published digest, "md5:..." or "sha256:...".
        content: The file's content, if already read.
    """
    algorithm, expected = digest.split(":")
    with path.open("rb") if content is None else io.BytesIO(content) as file:
        actual = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    if actual != expected:
        raise ValueError(f"{path} is damaged or not the official file: its {algorithm} is {actual}, not {expected}")


def read_lines(path: Path) -> list[str]:
    """Read the lines of an annotation file, without trailing whitespace; it must be text and not empty.

    Args:
        path: The file, which comes with the official archive.
    """
    try:
        lines = [line.rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; the official archive contains it") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it must be text, got {error}") from error
    if not any(lines):
        raise ValueError(f"{path} is damaged: it is empty")
    return lines


class FileNames:
    """A sequence of file names in one block of bytes.

    A million strings would gradually be copied into every worker, since reference counts are written to their pages.

    Args:
        names: The names in order; bytes that are not UTF-8 are kept.
    """

    def __init__(self, names: Iterable[str | PurePath] = ()) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._text = b"".join(encoded)
        self._ends = torch.tensor([0, *itertools.accumulate(map(len, encoded))])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {index}")
        return os.fsdecode(self._text[self._ends[index] : self._ends[index + 1]])

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names in order, faster than by index."""
        ends = self._ends.tolist()
        return (os.fsdecode(self._text[start:end]) for start, end in itertools.pairwise(ends))

    def subset(self, indices: Tensor) -> "FileNames":
        """Return these names, in this order.

        Args:
            indices: Their indices, (n,).
        """
        return FileNames(self[int(index)] for index in indices)


def class_names(folder: Path) -> tuple[str, ...]:
    """List the folders in `folder`, sorted; hidden ones are ignored.

    Args:
        folder: The folder of one split.
    """
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name)))


def loose_image(folder: Path) -> str | None:
    """Return the first image directly in `folder`, outside any class folder, or None.

    Args:
        folder: The folder of one split.
    """
    names = (name for name in os.listdir(folder) if _is_image(name) and not is_hidden(name))  # noqa: PTH208
    return min(names, default=None)


def labelled_files(folder: Path, classes: tuple[str, ...]) -> tuple[FileNames, Tensor]:
    """List every image under `folder`, including nested folders, class by class; any other file is an error.

    Args:
        folder: The folder of one split.
        classes: The names of all classes; a folder not among them is an error.

    Returns:
        The images' paths in `folder`, and their labels (N,).
    """
    files: list[str] = []
    labels: list[int] = []
    for name in class_names(folder):
        if name not in classes:
            raise ValueError(f"class folder {folder / name} must be one of the {len(classes)} classes of train")
        members = sorted(_walk(folder, name))
        if not members:
            raise ValueError(f"class folder {folder / name} must hold images, got none")
        files += members
        labels += [classes.index(name)] * len(members)
    return FileNames(files), torch.tensor(labels, dtype=torch.int64)


def image_files(path: Path) -> list[Path]:
    """Return the file itself, or all images below a folder in order of their names; hidden ones are ignored.

    Args:
        path: An image file or a folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"image file not found: {path}")
    files = (file for file in path.rglob("*") if _is_image(file.name) and file.is_file())
    shown = sorted(file for file in files if not any(map(is_hidden, file.relative_to(path).parts)))
    if not shown:
        raise ValueError(f"folder {path} must hold images ({', '.join(sorted(SUFFIXES))}), got none")
    return shown


def is_hidden(name: str) -> bool:
    """Return whether a file is hidden, such as those that operating systems create.

    Args:
        name: The file's name, without its folder.
    """
    return name.startswith(".") or name in _SYSTEM_FILES


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def _walk(folder: Path, inner: str) -> Iterator[str]:
    with os.scandir(folder / inner) as scan:
        entries = [entry for entry in scan if not is_hidden(entry.name)]
    for entry in entries:
        path = f"{inner}/{entry.name}"
        if entry.is_dir():
            yield from _walk(folder, path)
        elif not _is_image(entry.name):
            raise ValueError(f"class folders must hold only images ({', '.join(sorted(SUFFIXES))}), got {entry.path}")
        elif not entry.is_file():
            raise ValueError(f"image file {entry.path} is missing: a broken link")
        else:
            yield path
