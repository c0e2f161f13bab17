"""One process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def locked(file: BinaryIO) -> Iterator[bool]:
    """Wait until no other process holds this open file; False where the system or its file system knows no locks.

    The system frees the lock of a process that dies.
    """
    try:
        import fcntl  # not on Windows

        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
