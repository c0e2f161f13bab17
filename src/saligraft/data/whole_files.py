"""Files that are whole or not there at all, whenever the power goes: written aside, synced, renamed."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace the file by this text; a reader, or a kill at any moment, finds the old text or the new."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    rename_whole(aside, path)


def rename_whole(aside: Path, path: Path) -> None:
    """Give a synced file or folder its name, for good."""
    aside.replace(path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
