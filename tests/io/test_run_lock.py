"""One run per folder, and no lock outlives its holder."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from saligraft.io import run_lock
from saligraft.io.run_lock import RunLock

HOLD = "import sys, time; from pathlib import Path; from saligraft.io.run_lock import RunLock; "
HOLD += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(ValueError, match=r"is in use by another run \(process \d+\)"):
        RunLock(tmp_path)
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_folders_made_for_a_lock_alone_are_taken_away(tmp_path: Path) -> None:
    RunLock(tmp_path / "a" / "b").release()
    assert list(tmp_path.iterdir()) == []
    lock = RunLock(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "result.json").touch()
    lock.release()
    assert (tmp_path / "a" / "b" / "result.json").exists()


def test_a_holder_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=f"process {holder.pid}"):
            RunLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
    RunLock(tmp_path).release()


def test_a_worker_that_outlives_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """Loader workers are forked after the lock was taken, and take seconds to notice that their parent is gone."""
    fork = HOLD.replace("print(", "import os; worker = os.fork(); worker or time.sleep(60); print(worker, ")
    with subprocess.Popen([sys.executable, "-c", fork, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline().split()[0])
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            RunLock(tmp_path).release()
        finally:
            os.kill(worker, signal.SIGKILL)


def link(path: Path) -> None:
    path.with_name("mine").write_text("mine")
    path.symlink_to(path.with_name("mine"))


@pytest.mark.parametrize(
    "place", [link, Path.mkdir, os.mkfifo, lambda path: path.write_text("mine"), lambda path: path.write_text("1" * 30)]
)
def test_what_is_no_lock_is_refused_and_left_alone(place: Callable[[Path], object], tmp_path: Path) -> None:
    """Through a link, a file elsewhere would be emptied and given a process id."""
    place(tmp_path / ".lock")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"\.lock must be the lock of a run, got (a link or no|another) file"):
        RunLock(tmp_path)
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


def test_a_full_disk_names_the_lock_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for name in ("pwrite", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(run_lock.os, name, full)
            with pytest.raises(OSError, match=r"a/b/\.lock could not be written: No space left on device$"):
                RunLock(tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []
    RunLock(tmp_path / "a" / "b").release()
