"""Runs killed at any moment end as if never killed: a short form of `kill_trials.py`."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kill_trials import CASES, KINDS, Kind, Trial, make_images, run_trial, table


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
def test_a_killed_run_ends_with_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    if kind.streamed:
        make_images(tmp_path / "images")
    trial = run_trial(0, kind, tmp_path, random.Random(7), most_kills=1)
    assert len(trial.kills) == 1
    assert trial.identical


@pytest.mark.slow
def test_a_run_killed_at_any_file_system_event_loses_nothing(tmp_path: Path) -> None:
    """A sample of the events; in a process of its own, whose forks have no threads of other tests."""
    script = Path(__file__).parents[2] / "benchmarks" / "kill_trials.py"
    command = [sys.executable, str(script), "--everywhere", "--every", "31", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[2:-1] for line in (tmp_path / "everywhere.md").read_text().splitlines()[2:]]
    counts = [[int(cell) for cell in row] for row in rows]
    assert len(counts) == len(CASES)
    assert all(kills == resumed + refused and kills > 1 for kills, resumed, refused, _ in counts), counts


def test_the_table_counts_trials_and_kills() -> None:
    trials = [Trial(0, "one", ["step-3", "step-9"], True), Trial(1, "two", ["no checkpoint"], False)]
    assert "| 1 | one | step-3, step-9 | yes |\n| 2 | two | no checkpoint | **no** |" in table(trials)
    assert table(trials).endswith("1 of 2 trials identical after 3 kills.")
