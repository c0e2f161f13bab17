"""Files that are whole or not there."""

import errno
import os
import stat
from pathlib import Path

import pytest

from saligraft.io import files
from saligraft.io.files import sync, write_atomic


def fail_to_sync(number: int, *, folders: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fsync answer this error, for folders or for files."""
    fsync = os.fsync

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode) is folders:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", failing)


def test_the_old_text_stays_until_the_new_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, "old")
    with monkeypatch.context() as patched:
        fail_to_sync(errno.ENOSPC, folders=False, monkeypatch=patched)
        with pytest.raises(OSError, match=f"^{path} could not be written: No space left on device$"):
            write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_file_system_that_does_not_sync_folders_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some network file systems; any other answer, and any about a file, is an error."""
    with monkeypatch.context() as patched:
        fail_to_sync(errno.EINVAL, folders=True, monkeypatch=patched)
        write_atomic(tmp_path / "a", "text")
        sync(tmp_path)
    for number, folders in ((errno.EIO, True), (errno.EINVAL, False)):
        with monkeypatch.context() as patched:
            fail_to_sync(number, folders=folders, monkeypatch=patched)
            with pytest.raises(OSError, match="could not be written"):
                write_atomic(tmp_path / "b", "text")


def test_what_a_kill_left_aside_is_removed(tmp_path: Path) -> None:
    """Be it half a file, or one under a name that the writing library chose."""
    for name in ("a", ".tmpX"):
        (tmp_path / ".a.partial").mkdir(exist_ok=True)
        (tmp_path / ".a.partial" / name).write_text("half")
    write_atomic(tmp_path / "a", "text")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("a", "text")]
