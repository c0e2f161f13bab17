"""A lock keeps processes apart, and none outlives its holder."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from saligraft.io import locks
from saligraft.io.locks import RunLock, locked

HOLD = "import sys, time; from pathlib import Path; from saligraft.io.locks import RunLock; "
HOLD += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def _work(path: Path, log: Path, number: int) -> None:
    with locked(path) as held, log.open("a") as entries:
        entries.write(f"{number} {held}\n")
        entries.flush()
        time.sleep(0.05)
        entries.write(f"{number} {held}\n")
        if number == 0:
            entries.flush()
            os._exit(9)  # dies while it holds the lock


def test_one_at_a_time_also_after_a_death(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(tmp_path / "lock", tmp_path / "log", n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 8
    assert lines[::2] == lines[1::2]  # nobody wrote between another's two entries
    assert all(line.endswith("True") for line in lines)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_tolerated(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path / "lock") as held:
        assert not held
    run = tmp_path / "run"
    lock = RunLock(run)
    assert (run / ".lock").read_text().strip() == str(os.getpid())
    lock.release()
    assert not run.exists()
    run.mkdir()
    (run / ".lock").write_text("mine")
    with pytest.raises(ValueError, match="got another file"):
        RunLock(run)
    assert (run / ".lock").read_text() == "mine"


def test_another_error_of_the_lock_file_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), locked(tmp_path / "file" / "lock"):
        pass


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(ValueError, match=rf"is in use by another run \(process {os.getpid()}\)"):
        RunLock(tmp_path)
    lock.release()
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_folders_created_for_a_lock_alone_are_removed(tmp_path: Path) -> None:
    RunLock(tmp_path / "a" / "b").release()
    assert list(tmp_path.iterdir()) == []
    lock = RunLock(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "result.json").touch()
    lock.release()
    assert (tmp_path / "a" / "b" / "result.json").exists()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match=rf"\(process {holder.pid}\)"):
            RunLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
    RunLock(tmp_path).release()


def test_a_worker_that_outlives_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """Loader workers are forked while the lock is held, and take seconds to notice that their parent is gone."""
    # The worker, which has its copy of the lock until it runs for the first time, says when it does.
    fork = "import os; read, write = os.pipe(); worker = os.fork(); worker or (os.write(write, b'.'), time.sleep(60)); "
    fork = HOLD.replace("print(", fork + "os.read(read, 1); print(worker, ")
    with subprocess.Popen([sys.executable, "-c", fork, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline().split()[0])
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        try:
            RunLock(tmp_path).release()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_worker_that_ends_leaves_its_parents_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    worker = multiprocessing.get_context("fork").Process(target=sys.exit)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    code = HOLD.replace("time.sleep(60)", "")
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"(process {os.getpid()})" in second.stderr
    lock.release()


def link(path: Path, content: str) -> None:
    path.with_name("mine").write_text(content)
    path.symlink_to(path.with_name("mine"))


@pytest.mark.parametrize(
    "place",
    [
        lambda path: link(path, "mine"),
        lambda path: link(path, ""),  # as an empty lock would be
        Path.mkdir,
        os.mkfifo,
        lambda path: path.write_text("mine"),
        lambda path: path.write_text("1" * 30),
    ],
)
def test_what_is_no_lock_is_refused_and_left_alone(place: Callable[[Path], object], tmp_path: Path) -> None:
    """Through a link, a file elsewhere would be overwritten with a process id."""
    place(tmp_path / ".lock")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"\.lock must be the lock of a run, got (a link or no|another) file"):
        RunLock(tmp_path)
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before


def test_a_full_disk_names_the_lock_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for name in ("write", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(locks.os, name, full)
            with pytest.raises(OSError, match=r"a/b/\.lock could not be written: No space left on device$"):
                RunLock(tmp_path / "a" / "b")
        assert list(tmp_path.iterdir()) == []
    RunLock(tmp_path / "a" / "b").release()


@pytest.mark.parametrize("content", ["", "123", " 4567890"])
@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_leaves_a_lock_file_that_existed_as_it_was(
    content: str, written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the user's; the disk may fill before or while the process id is written."""
    (tmp_path / ".lock").write_text(content)
    write = os.write

    def full(handle: int, data: bytes) -> int:
        monkeypatch.setattr(locks.os, "write", write)
        write(handle, data[:written])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(locks.os, "write", full)
    with pytest.raises(OSError, match=r"\.lock could not be written: No space left on device$"):
        RunLock(tmp_path)
    assert (tmp_path / ".lock").read_text() == content
