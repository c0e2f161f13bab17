"""A lock keeps processes apart, and a dead one holds none."""

import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from saligraft.io.locks import locked


def _work(path: Path, log: Path, number: int) -> None:
    with path.open("ab") as file, locked(file) as alone, log.open("a") as entries:
        entries.write(f"{number} {alone}\n")
        entries.flush()
        time.sleep(0.05)
        entries.write(f"{number} {alone}\n")
        if number == 0:
            entries.flush()
            os._exit(9)  # dies with the lock in its hands


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


def test_where_there_are_no_locks_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (tmp_path / "lock").open("ab") as file, locked(file) as alone:
        assert not alone
