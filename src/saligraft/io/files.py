"""Atomic writes, so that a crash leaves the old content or the new: write to a temporary name, sync, rename."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's text; readers see the old text or the new, also after a kill at any moment.

    Args:
        path: The file, in an existing folder.
        text: Its new content, stored as UTF-8.

    Raises:
        OSError: The file, which the message names, cannot be written.
    """
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


def check_place(flag: str, path: Path, *, folder: bool) -> None:
    """Refuse a place that cannot be written to since a file or folder is in the way, before the work begins.

    Args:
        flag: The option that names the place.
        path: The place.
        folder: Whether it becomes a folder; else a file.
    """
    if folder and path.exists() and not path.is_dir():
        raise ValueError(f"{flag} must be a folder, got the file {path}")
    if not folder and path.is_dir():
        raise ValueError(f"{flag} must be the file to write, got the folder {path}")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(f"{flag} must be in a folder, got {path} below the file {parent}")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Write a file or folder under a temporary name in the block, then rename it to `path`; an error leaves nothing.

    Args:
        path: The final name.

    Yields:
        The name to write to. It is in a folder of its own, since safetensors also writes to a temporary name beside
        its file.

    Raises:
        OSError: `path`, which the message names, cannot be written.
    """
    work = path.with_name(f".{path.name}.partial")
    with name_in_errors(path):
        shutil.rmtree(work, ignore_errors=True)  # left by a kill
        try:
            work.mkdir()
            yield work / path.name
            sync(work / path.name)
            rename_durably(work / path.name, path)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block, such as a full disk, into one line that names the file.

    Args:
        path: The file to name.
    """
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error


def rename_durably(aside: Path, path: Path) -> None:
    """Rename a file or folder and wait until the new name is on disk.

    Args:
        aside: The current name; its content should be synced.
        path: The new name, on the same file system; an existing file is replaced.
    """
    aside.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk.

    Args:
        path: The file or folder.
    """
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs only writable files
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync folders; a power cut may lose new names there.
        if not (is_folder and error.errno in (errno.EINVAL, errno.EBADF)):
            raise
    finally:
        os.close(handle)
