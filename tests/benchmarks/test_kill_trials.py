"""Runs killed at a random moment end as if never killed: one trial of each of three kinds of `kill_trials.py`."""

import random
from pathlib import Path

import pytest
from benchmarks.kill_trials import KINDS, Kind, Trial, make_images, run_trial, table


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
def test_a_killed_run_ends_with_the_same_bits(kind: Kind, tmp_path: Path) -> None:
    if kind.streamed:
        make_images(tmp_path / "images")
    trial = run_trial(0, kind, tmp_path, random.Random(7), most_kills=1)
    assert len(trial.kills) == 1
    assert trial.identical


def test_the_table_counts_trials_and_kills() -> None:
    trials = [Trial(0, "one", ["step-3", "step-9"], True), Trial(1, "two", ["no checkpoint"], False)]
    assert "| 1 | one | step-3, step-9 | yes |\n| 2 | two | no checkpoint | **no** |" in table(trials)
    assert table(trials).endswith("1 of 2 trials identical after 3 kills.")
