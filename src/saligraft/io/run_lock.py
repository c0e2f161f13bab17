"""One run per folder: a lock that the system lifts when its holder ends, however it ends."""

import errno
import os
from pathlib import Path
from typing import Self

from saligraft.io.files import name_in_errors

try:
    import fcntl
except ImportError:  # Windows has no such lock: there two runs in one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"

_held: set[int] = set()  # the locks' file handles


def _let_go_after_fork() -> None:
    """A forked process, such as a loader's worker, shares these locks, and would hold them after its parent's end."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)


class RunLock:
    """Held from its making until `release` or the end of the process; a second one on the same folder is refused."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.made_folders = _make_folders(folder)
        try:
            with name_in_errors(self.path):
                self._acquire()
        except (ValueError, OSError):
            self._remove_folders()
            raise

    def _acquire(self) -> None:
        while True:
            if self.path.is_symlink() or (self.path.exists() and not self.path.is_file()):
                raise ValueError(f"{self.path} must be the lock of a run, got a link or no file: remove it")
            existed = self.path.exists()
            self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            self._take()
            if self._is_current():
                break
            os.close(self.handle)  # its last holder removed the file while we waited in line
        holder = os.pread(self.handle, 20, 0)
        if holder and not (holder.isdigit() and len(holder) < 20):
            os.close(self.handle)
            raise ValueError(f"{self.path} must be the lock of a run, got another file: choose another folder")
        self.content_before = holder if existed else None
        _held.add(self.handle)
        try:
            os.ftruncate(self.handle, 0)
            os.pwrite(self.handle, str(os.getpid()).encode(), 0)
        except OSError:
            self.release()
            raise

    def _take(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # a file system without locks
            holder = os.pread(self.handle, 20, 0).decode(errors="replace") or "unknown"
            os.close(self.handle)
            raise ValueError(
                f"the run folder {self.path.parent} is in use by another run (process {holder}): "
                "wait for it, or choose another folder"
            ) from None

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.handle), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self, *, restore: bool = False) -> None:
        """Let others in and delete the file and empty folders made for the lock.

        With `restore`, a file that existed before gets its content back instead: without a run, it may be the user's.
        """
        if restore and self.content_before is not None:
            os.ftruncate(self.handle, 0)
            os.pwrite(self.handle, self.content_before, 0)
        else:
            self.path.unlink(missing_ok=True)
        _held.discard(self.handle)
        os.close(self.handle)
        self._remove_folders()

    def _remove_folders(self) -> None:
        for folder in self.made_folders:
            try:
                folder.rmdir()
            except OSError:
                return  # holds something now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _make_folders(folder: Path) -> list[Path]:
    """Make the folder and its parents; returns those that were not there, innermost first."""
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    folder.mkdir(parents=True, exist_ok=True)
    return missing
