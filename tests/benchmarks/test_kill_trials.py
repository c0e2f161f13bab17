"""Runs killed at random moments end as if never killed: a few trials of `benchmarks/kill_trials.py`."""

from pathlib import Path

import pytest
from benchmarks.kill_trials import run_trials


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    """In memory, with loader workers, and on two processes."""
    trials = list(run_trials(tmp_path, trials=3, seed=7, most_kills=1))
    assert [trial.identical for trial in trials] == [True, True, True]
    assert all(trial.kills for trial in trials)
