"""Bars follow the lines of the run folders, on a terminal alone."""

import io
from pathlib import Path

from rich.console import Console

from saligraft.experiments.demo_progress import TrainingBars


def test_a_bar_counts_the_epochs_written_so_far(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with TrainingBars(console) as bars:
        bars.add(tmp_path, "seed 0", 18)
        bars.update()
        assert bars.progress.tasks[0].completed == 0
        (tmp_path / "metrics.jsonl").write_text("{}\n{}\n{}\n")
        bars.update()
        assert bars.progress.tasks[0].completed == 3
        bars.progress.refresh()
        bars.remove(tmp_path)
    assert "epoch 3/18" in console.file.getvalue()
    assert not bars.tasks


def test_elsewhere_nothing_is_written(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with TrainingBars(console) as bars:
        bars.add(tmp_path, "seed 0", 18)
        bars.update()
        bars.remove(tmp_path)
    assert console.file.getvalue().strip() == ""
