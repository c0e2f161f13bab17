"""The demo's order, budget, numbers, workers and bars, with the training replaced by a clock that the test sets."""

import io
import multiprocessing
import os
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from saligraft.experiments import demo
from saligraft.experiments.demo import (
    ARMS,
    EQUAL_TIME,
    GRAFTING,
    ORDER,
    PLAIN,
    DemoSettings,
    demo_recipe,
)
from saligraft.experiments.demo_page import result_table
from saligraft.experiments.runner import progress_bars, single_threaded_workers, update_bars, worker_count
from saligraft.training import EpochMetrics, EpochTiming
from saligraft.training.run_folder import RunFolder

SECONDS = {PLAIN: 10.0, "cutmix": 11.0, GRAFTING: 20.0}  # of one epoch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Replace training by a run that takes known time and ends at a known error; remember what was trained."""
    now, trained = [0.0], []

    def train(recipe, out, **_):
        method, epochs, seed = recipe.method.name, recipe.training.epochs, recipe.seed
        trained.append((method, seed, epochs))
        warm = recipe.training.warmup_epochs
        seconds = [SECONDS[PLAIN if e < warm else method] for e in range(epochs)]
        now[0] += sum(seconds)
        folder = RunFolder.open(out, overwrite=True)
        folder.start(recipe, torch.device("cpu"), processes=1)
        folder.close()
        errors = [50.0 - e + seed for e in range(epochs)]
        return SimpleNamespace(
            summary={"top1_error": {"best": min(errors), "last10_mean": 40.0 + seed, "final": errors[-1]}},
            metrics=tuple(EpochMetrics(e + 1, 0.1, 1.0, 1.0, error, 5.0) for e, error in enumerate(errors)),
            timing=tuple(EpochTiming(e + 1, 2 * spent, 500 / spent, 1.0, spent) for e, spent in enumerate(seconds)),
            folder=None,
        )

    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "write_run_page", lambda _: None)
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    return trained


class Inline(Executor):
    """Runs each training at once, in this process."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def run_demo(out: Path, settings: DemoSettings | None = None, **options):
    return demo.run_demo(out, settings, **{"say": lambda _: None, "pool": Inline(), **options})


def test_all_methods_of_a_seed_end_before_the_next_seed(tmp_path: Path, clock) -> None:
    runs = run_demo(tmp_path, DemoSettings(seeds=2, epochs=2, minutes=60))
    assert clock[:6] == [(method, seed, 2) for seed in (0, 1) for method in ORDER]
    assert [(run.arm, run.seed) for run in runs.runs[:6]] == [(method, seed) for method in ARMS for seed in (0, 1)]
    assert runs.seeds_run == 2
    assert runs.why == "as requested"


def test_a_seed_that_would_not_fit_is_not_started(tmp_path: Path, clock) -> None:
    # One seed takes (10 + 11 + 20) * 2 = 82 s; three minutes hold two of them and no third.
    runs = run_demo(tmp_path, DemoSettings(seeds=3, epochs=2, minutes=3))
    assert runs.seeds_run == 2
    assert {seed for _, seed, _ in clock} == {0, 1}
    assert "3 requested; a seed takes 82 s" in runs.why


def test_one_busy_minute_does_not_count_for_good(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def train_arm(*arguments):
        calls.append(arguments)
        run = real(*arguments)
        return replace(run, wall_seconds=run.wall_seconds + 1000) if len(calls) == 1 else run

    real = demo.train_arm
    monkeypatch.setattr(demo, "train_arm", train_arm)
    # 82 s a seed; with the slow run in mind for good, a third (after 164 s, 1082 s long) would not fit 1180 s.
    runs = run_demo(tmp_path / "a", DemoSettings(seeds=3, epochs=2, minutes=20.5))
    assert clock
    assert runs.seeds_run == 3


def test_the_first_seed_always_ends(tmp_path: Path, clock) -> None:
    runs = run_demo(tmp_path, DemoSettings(seeds=3, epochs=2, minutes=0.01))
    assert clock == [(method, 0, 2) for method in ORDER]
    assert runs.seeds_run == 1


def test_a_slow_machine_is_reported_after_the_first_run(tmp_path: Path, clock) -> None:
    said: list[str] = []
    run_demo(tmp_path / "slow", DemoSettings(seeds=1, epochs=8, minutes=1), say=said.append)
    run_demo(tmp_path / "quick", DemoSettings(seeds=1, epochs=8, minutes=60), say=said.append)
    assert clock
    # 8 epochs of 10 s are 80 s for plain training, about 288 s for a seed.
    warnings = [line for line in said if "one seed will take about 5 minutes" in line]
    assert warnings == [said[4]]  # after both lines of Saliency Grafting and of plain training
    assert "--epochs 4" in warnings[0]


def test_the_start_of_every_training_is_reported_before_it_runs(tmp_path: Path, clock) -> None:
    said: list[tuple[int, str]] = []
    run_demo(tmp_path, DemoSettings(seeds=1, epochs=2), say=lambda line: said.append((len(clock), line)))
    assert (1, "seed 0 · Plain training: started, 2 epochs") in said


def test_plain_training_gets_graftings_time_where_it_fits(tmp_path: Path, clock) -> None:
    runs = run_demo(tmp_path, DemoSettings(seeds=1, epochs=3, minutes=10))
    assert clock[-1] == (PLAIN, 0, 6)  # twice the cost, twice the epochs
    assert runs.of(EQUAL_TIME)[0].seconds == pytest.approx(runs.of(GRAFTING)[0].seconds)


@pytest.mark.parametrize("epochs", [2, 8])
def test_cost_is_the_ratio_of_step_times_after_the_warm_up(tmp_path: Path, clock, epochs: int) -> None:
    runs = run_demo(tmp_path, DemoSettings(seeds=2, epochs=epochs, minutes=60))
    assert clock
    assert runs.cost(GRAFTING) == pytest.approx(2.0)
    assert runs.cost("cutmix") == pytest.approx(1.1)
    assert runs.cost(EQUAL_TIME) == pytest.approx(1.0)


def test_the_table_says_what_was_measured(tmp_path: Path, clock) -> None:
    runs = run_demo(tmp_path, DemoSettings(seeds=2, epochs=2, minutes=60))
    assert clock
    table = result_table(runs)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert set(rows) == {"Plain training", "CutMix", "Saliency Grafting", "Plain, equal time"}
    # Errors 49 and 50 over two seeds: mean 49.5, standard deviation 0.707, standard error 0.5.
    assert rows["CutMix"]["Error"] == "49.5 ± 0.5"
    assert rows["CutMix"]["Last 10"] == "40.5 ± 0.5"
    assert rows["Saliency Grafting"]["Images/s"] == "50"
    assert rows["Saliency Grafting"]["Cost"] == "2.00×"
    assert rows["Plain, equal time"]["Epochs"] == "4"
    assert "2 seeds (as requested)" in table.notes[0]
    assert (3, 1) in table.best  # four epochs reached the lowest error


def test_arms_differ_in_the_method_alone() -> None:
    settings = DemoSettings(epochs=20)
    tables = {arm: demo_recipe(settings, arm, 1, 20).model_dump() for arm in ARMS}
    assert tables["cutmix"]["training"]["warmup_epochs"] == tables[GRAFTING]["training"]["warmup_epochs"] == 5
    for table in tables.values():
        assert table.pop("method")["name"] in ARMS
        table.pop("title")
        table["training"].pop("warmup_epochs")
    assert tables[PLAIN] == tables["cutmix"] == tables[GRAFTING]


def test_an_earlier_demo_is_kept_unless_overwritten(tmp_path: Path, clock) -> None:
    settings = DemoSettings(seeds=1, epochs=1, minutes=0.1)
    run_demo(tmp_path, settings)
    (tmp_path / "report.html").write_text("")
    for name in ("notes.txt", "cutmix/seed-0/notes.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="already holds a demo; give --overwrite"):
        run_demo(tmp_path, settings)
    run_demo(tmp_path, settings, overwrite=True)
    assert len(clock) == 6
    assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "cutmix/seed-0/notes.txt").read_text() == "mine"


def test_a_demo_without_its_page_is_unfinished_and_replaced(tmp_path: Path, clock) -> None:
    settings = DemoSettings(seeds=1, epochs=1, minutes=0.1)
    run_demo(tmp_path, settings)
    run_demo(tmp_path, settings)
    assert len(clock) == 6


def test_runs_of_an_earlier_demo_with_more_seeds_are_removed(tmp_path: Path, clock) -> None:
    run_demo(tmp_path, DemoSettings(seeds=2, epochs=1, minutes=60))
    run_demo(tmp_path, DemoSettings(seeds=1, epochs=1, minutes=0.1))
    assert clock
    assert {folder.name for folder in tmp_path.glob("*/*")} == {"seed-0"}


@pytest.mark.parametrize(
    ("name", "title", "overwrite"),
    [
        ("recipe.toml", "Demo: mine", True),
        ("none/data.csv", "Mine", False),
        ("none/seed-0/recipe.toml", "Mine", True),
        ("none/seed-0/recipe.toml", "Demo: mine", False),
        ("none/seed-0/recipe.toml", "Demo: mine", True),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, clock, name: str, title: str, overwrite: bool) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'title = "{title}"')
    with pytest.raises(ValueError, match="is not empty and holds no demo: choose another --out"):
        run_demo(tmp_path, overwrite=overwrite)
    assert (tmp_path / name).exists()
    assert not clock


def test_a_mistake_leaves_an_earlier_demo_alone(tmp_path: Path, clock) -> None:
    run_demo(tmp_path, DemoSettings(seeds=1, epochs=1))
    with pytest.raises(ValueError, match="unknown network"):
        run_demo(tmp_path, DemoSettings(network="nonsense"), overwrite=True)
    assert clock
    assert (tmp_path / "none" / "seed-0" / "recipe.toml").is_file()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="out must be a folder, got the file"):
        run_demo(tmp_path / "out")


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"epochs": 0}, {"minutes": 0.0}, {"per_class": -1}])
def test_wrong_settings_are_named(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DemoSettings(**wrong)


def test_there_is_a_worker_for_each_available_core() -> None:
    assert 1 <= worker_count() <= (os.cpu_count() or 1)


@pytest.mark.slow
def test_workers_have_one_thread_and_end_with_the_block() -> None:
    before = set(multiprocessing.active_children())
    with single_threaded_workers(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1
        assert pool.submit(os.getpid).result() != os.getpid()
    assert set(multiprocessing.active_children()) == before


@pytest.mark.slow
def test_an_interruption_ends_a_training_at_once() -> None:
    before = set(multiprocessing.active_children())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), single_threaded_workers(1) as pool:  # noqa: PT012
        assert pool.submit(os.getpid).result()
        pool.submit(time.sleep, 600)
        raise KeyboardInterrupt
    while set(multiprocessing.active_children()) != before:
        assert time.monotonic() - began < 60
        time.sleep(0.1)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_counts_the_epochs_written_so_far_on_terminals_only(tmp_path: Path, terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with progress_bars(console) as progress:
        bars = {tmp_path: progress.add_task("seed 0", total=18)}
        update_bars(progress, bars)
        assert progress.tasks[0].completed == 0
        (tmp_path / "metrics.jsonl").write_text("{}\n{}\n{}\n")
        update_bars(progress, bars)
        assert progress.tasks[0].completed == 3
        progress.refresh()
    assert ("epoch 3/18" in console.file.getvalue()) == terminal
    assert bool(console.file.getvalue().strip()) == terminal
