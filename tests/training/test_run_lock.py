"""One run per folder, and no lock outlives its holder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from saligraft.training.run_lock import RunLock

HOLD = "import sys, time; from pathlib import Path; from saligraft.training.run_lock import RunLock; "
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
