"""Locks between processes: the system releases them when their holder ends, however it ends.

They are filelock's native locks, flock on POSIX and LockFileEx on Windows. filelock closes them in forked children, so
that a loader worker that outlives a killed run does not keep the run folder locked.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from saligraft.io.files import name_in_errors

LOCK = ".lock"
LONGEST = 20  # bytes; a process id is shorter
_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Wait until no other process holds the lock file, and hold it during the block.

    Args:
        path: The lock file; it is created if missing and stays in place.

    Yields:
        False where the file system has no locks, otherwise True.
    """
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


class RunLock:
    """Allow one run per folder: held from creation until `release`; a second lock on the same folder is refused.

    Where the file system has no locks, the folder is not protected.

    Args:
        folder: The run folder; it and its parents are created if missing.

    Raises:
        ValueError: Another process, which the message names, holds the lock, or `.lock` is not a lock file.
        OSError: The lock file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._created_folders = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # Within the timeout filelock retries if the last holder is just removing the file.
        self._lock = FileLock(
            self.path, timeout=0.1, thread_local=False, fallback_to_soft=False, on_acquired=self._write_process_id
        )
        try:
            with name_in_errors(self.path):
                self._acquire()
        except (ValueError, OSError):
            self._remove_folders()
            raise

    def _acquire(self) -> None:
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
            raise ValueError(f"{self.path} must be the lock of a run, got a link or no file: remove it")
        self._content_before = self._content() if self.path.exists() else None
        content = (self._content_before or b"").strip()
        # Checked before the file is opened, since some versions of filelock truncate it.
        if content and not (content.isdigit() and len(content) < LONGEST):
            raise ValueError(f"{self.path} must be the lock of a run, got another file: choose another folder")
        try:
            self._lock.acquire()
        except Timeout:
            holder = self._content(start=1).decode(errors="replace") or "unknown"
            raise ValueError(
                f"the run folder {self.path.parent} is in use by another run (process {holder}): "
                "wait for it, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            with self.path.open("r+b") as file:
                self._write_process_id(file.fileno())

    def _write_process_id(self, handle: int) -> None:
        """Write the holder's process id, from byte 1 on: on Windows others cannot read byte 0, which is locked."""
        try:
            _overwrite(handle, b" %d" % os.getpid())
        except OSError:
            if self._content_before is None:
                self._unlink()
            else:
                with suppress(OSError):
                    _overwrite(handle, self._content_before)
            raise

    def _content(self, start: int = 0) -> bytes:
        with suppress(OSError), self.path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(LONGEST)
        return b""

    def release(self, *, restore: bool = False) -> None:
        """Unlock the folder; remove the lock file, and folders created for it that are still empty.

        Args:
            restore: Restore the content of a lock file that existed before: without a run, it may be the user's.
        """
        if restore and self._content_before is not None:
            with self.path.open("r+b") as file:
                _overwrite(file.fileno(), self._content_before)
        else:
            self._unlink()
        self._lock.release()
        self._remove_folders()

    def _unlink(self) -> None:
        with suppress(PermissionError):  # Windows cannot remove an open file; filelock removes it later
            self.path.unlink(missing_ok=True)

    def _remove_folders(self) -> None:
        with suppress(OSError):  # a folder that is no longer empty stays, with its parents
            for folder in self._created_folders:
                folder.rmdir()


def _overwrite(handle: int, content: bytes) -> None:
    """Replace the content in place: truncated first, it could be lost if another program fills the disk meanwhile."""
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, content)
    os.ftruncate(handle, len(content))
