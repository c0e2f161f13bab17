"""Files that are written atomically, so that a crash leaves the old content or the new: write aside, sync, rename."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Replace the file by this text; a reader, or a kill at any moment, finds the old text or the new."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A name to write to in the block, which then becomes `path`; after an error, which names `path`, nothing stays.

    It stands in a folder of its own, since safetensors, too, writes to a temporary name beside its file.
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
    """Let an error of writing, such as a full disk's, say in one line which file it struck."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error


def rename_durably(aside: Path, path: Path) -> None:
    """Give a synced file or folder its name, for good."""
    aside.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs only what it may write
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems do not sync folders; there is nothing more that one can do for their names.
        if not (is_folder and error.errno in (errno.EINVAL, errno.EBADF)):
            raise
    finally:
        os.close(handle)
