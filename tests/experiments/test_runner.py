"""The runner keeps finished runs, resumes the others, survives kills and failures, and runs on a cluster;
its workers and bars."""

import fcntl
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures.process import _ThreadWakeup
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.experiments.fake_job import jobs
from tests.training.small_sets import write_small_sets

from saligraft.experiments import runner
from saligraft.experiments.experiment import MEASURES, Job, jobs_of, read_measures, rows_of
from saligraft.experiments.paper import EXPERIMENTS, regime
from saligraft.experiments.runner import (
    LocalLauncher,
    OnDone,
    SlurmLauncher,
    check_data,
    progress_bars,
    run_job,
    run_jobs,
    single_threaded_workers,
    update_bars,
    worker_count,
)
from saligraft.training import load_recipe, make_recipe
from saligraft.training.run_folder import RESULT

ROOT = Path(__file__).parents[2]


class Inline:
    """Runs jobs at once, in this process; some fail."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.ran = failing, list[Job]()

    def __call__(self, jobs: Sequence[Job], on_done: OnDone) -> None:
        for job in jobs:
            self.ran.append(job)
            failed = job.folder.name in self.failing
            if not failed:
                job.folder.mkdir(parents=True, exist_ok=True)
                (job.folder / RESULT).write_text('{"top1_error": {"best": 1.0}}')
            on_done(job, ValueError("training\ndiverged") if failed else None)


def test_finished_runs_are_kept_and_a_failure_stops_no_other(tmp_path: Path) -> None:
    lines: list[str] = []
    first, second = Inline("1"), Inline()
    assert run_jobs(jobs(tmp_path), first, lines.append) == {tmp_path / "1": "training diverged"}
    assert lines[0] == "4 runs, 0 of them finished"
    assert lines[2] == "2/4 job 1: training diverged"
    assert run_jobs(jobs(tmp_path), second, lines.append) == {}
    assert [job.folder.name for job in second.ran] == ["1"]
    third = Inline()
    run_jobs(jobs(tmp_path), third, lines.append)
    assert third.ran == []


def test_jobs_of_one_folder_are_one_with_the_measures_of_all(tmp_path: Path) -> None:
    job = jobs(tmp_path)[0]
    launch = Inline()
    other = Job(recipe=job.recipe, folder=job.folder, measures=("maps",), label="other")
    run_jobs([job, other], launch, lambda _: None)
    assert [(ran.label, ran.measures) for ran in launch.ran] == [("job 0", ("maps",))]


def test_nothing_is_launched_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launch = Inline()
    with pytest.raises(NotADirectoryError):
        run_jobs(jobs(tmp_path / "file" / "runs"), launch, lambda _: None)
    assert not launch.ran


def test_a_stop_prints_how_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def launch(_: object, __: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs(tmp_path), launch, lambda _: None)
    assert capsys.readouterr().err == "saligraft: stopped; the same command resumes\n"


def test_a_damaged_result_is_not_finished(tmp_path: Path) -> None:
    job = jobs(tmp_path)[0]
    job.folder.mkdir()
    whole, *damaged = '{"top1_error": {"best": 1.0}}', '{"top1_error": ', '{"top1_error": 3}', '{"top1_error": {}}', ""
    for text, trained in ((whole, True), *((text, False) for text in damaged)):
        (job.folder / RESULT).write_text(text)
        assert job.trained == job.done == trained


def test_finished_runs_on_other_images_are_refused(tmp_path: Path) -> None:
    def job(folder: Path, **options: int) -> Job:
        data = {"name": "shapes", "options": {"size": 16, "per_class": 2, **options}}
        recipe = make_recipe(
            {"data": data, "network": {"name": "wrn-10-1"}, "training": {"epochs": 1, "batch_size": 4}}
        )
        return Job(recipe=recipe, folder=folder, measures=(), label="")

    first = job(tmp_path / "run")
    check_data([first])
    run_job(first)
    check_data([first])
    with pytest.raises(ValueError, match=r"run was tested on other images than those of shapes: choose another --out"):
        check_data([job(tmp_path / "run", seed=1)])  # another set behind the same folder, as behind another data.root
    lost = {"data": {"name": "cifar10", "root": str(tmp_path)}}
    with pytest.raises(FileNotFoundError, match="no files of cifar10"):
        check_data([replace(first, recipe=make_recipe(lost), folder=tmp_path / "new")])
    check_data([replace(first, recipe=make_recipe(lost))])  # finished: its tables need no data


def test_a_run_is_resumed_and_measured_after_its_data_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_small_sets(tmp_path, monkeypatch)["cifar100"]
    table = {"network": {"name": "wrn-10-1"}, "training": {"epochs": 1, "batch_size": 100}}

    def job(root: Path, *measures: str) -> Job:
        recipe = make_recipe({**table, "data": {"name": "cifar100", "root": str(root)}})
        return Job(recipe=recipe, folder=tmp_path / "run", measures=measures, label="")

    run_job(job(root))
    result = (tmp_path / "run" / RESULT).read_text()
    (tmp_path / "run" / RESULT).unlink()  # as if it was killed after its last checkpoint
    moved = root.rename(tmp_path / "moved")
    run_job(job(moved))
    assert (tmp_path / "run" / RESULT).read_text() == result
    assert load_recipe(tmp_path / "run" / "recipe.toml").data.root == str(moved)
    monkeypatch.chdir(tmp_path)
    moved.rename("2024")
    run_job(job(Path("2024"), "training"))
    assert 0 <= read_measures(tmp_path / "run")["training"]["top1_error"] <= 100


def test_a_finished_run_without_its_measures_is_not_done(tmp_path: Path) -> None:
    job = Job(recipe=jobs(tmp_path)[0].recipe, folder=tmp_path, measures=("run", "maps"), label="")
    (tmp_path / RESULT).write_text('{"top1_error": {"best": 1.0}}')
    assert job.missing == ("run", "maps")
    for damaged in ('{"run": {}, "maps": ', '{"run": {}, "maps": null}'):  # measured again
        (tmp_path / MEASURES).write_text(damaged)
        assert not job.done
    (tmp_path / MEASURES).write_text('{"run": {}, "maps": {}}')
    assert job.done


def is_locked(path: Path) -> bool:
    """Whether a process holds the file's lock. Its id in /proc would remain where no init reaps orphans."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_killed_experiment_resumes_with_what_is_missing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-m", "tests.experiments.fake_job", str(tmp_path)]
    with (tmp_path / "errors").open("wb") as errors:
        running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
    deadline = time.monotonic() + 300
    while not all((tmp_path / job / "starts").is_file() for job in "0123"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(timeout=60) == code
    assert number == signal.SIGKILL or "leaked" not in (tmp_path / "errors").read_text()
    assert sorted(path.parent.name for path in tmp_path.glob("*/result.json")) == ["0", "1"]
    deadline = time.monotonic() + 60
    while any(is_locked(tmp_path / job / "alive") for job in "23"):
        assert time.monotonic() < deadline  # workers end with their parent
        time.sleep(0.05)
    (tmp_path / "go").touch()
    assert not (tmp_path / "2" / RESULT).exists()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    assert again.stdout.startswith("4 runs, 2 of them finished")
    assert [(tmp_path / job / "starts").read_text() for job in "0123"] == ["x", "x", "xx", "xx"]


def smoke_job(out: Path) -> Job:
    experiment = EXPERIMENTS["table-speech"]
    return jobs_of(experiment, rows_of(experiment, "smoke", regime, None), 1, out)[0]


def test_a_job_trains_then_measures_and_writes_both(tmp_path: Path) -> None:
    job = smoke_job(tmp_path)
    run_job(job)
    assert job.done
    measures = json.loads((job.folder / MEASURES).read_text())["run"]
    assert (measures["map"], measures["forward"], measures["backward"]) == ("4×4", 2, 2)
    before = (job.folder / RESULT).stat().st_mtime_ns
    run_job(job)
    assert (job.folder / RESULT).stat().st_mtime_ns == before
    result = (job.folder / RESULT).read_text()
    (job.folder / RESULT).write_text(result[:20])
    run_job(job)  # restores it from the last checkpoint
    assert (job.folder / RESULT).read_text() == result


@pytest.mark.slow
def test_jobs_run_through_submitit(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    job = smoke_job(tmp_path)
    launch = SlurmLauncher(folder=tmp_path / "slurm", gpus=0, minutes=5, cluster="local")
    assert run_jobs([job], launch, lambda _: None) == {}
    assert job.done


def test_a_stop_says_that_jobs_of_a_cluster_keep_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SlurmLauncher(folder=tmp_path / "slurm", gpus=0, cluster="debug")([smoke_job(tmp_path)], stop)
    assert "the jobs keep running" in capsys.readouterr().err


def test_a_job_that_is_preempted_is_queued_again(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    from saligraft.experiments.runner import _ClusterTask

    task, job = _ClusterTask(), smoke_job(tmp_path)
    delayed = task.checkpoint(job)
    assert (delayed.function, delayed.args) == (task, (job,))


def test_slurm_without_submitit_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ImportError, match=r"saligraft\[slurm\]"):
        SlurmLauncher(folder=tmp_path)([smoke_job(tmp_path)], lambda *_: None)


def test_there_is_a_worker_for_each_available_core() -> None:
    assert 1 <= worker_count() <= (os.cpu_count() or 1)


@pytest.mark.slow
def test_workers_have_one_thread_and_end_with_the_block() -> None:
    before = set(multiprocessing.active_children())
    with single_threaded_workers() as start_worker:
        pool = start_worker()
        assert pool.submit(torch.get_num_threads).result() == 1
        assert pool.submit(os.getpid).result() != os.getpid()
    assert set(multiprocessing.active_children()) == before


def killed_at_one(job: Job) -> None:
    if job.folder.name == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    (job.folder / RESULT).write_text('{"top1_error": {"best": 1.0}}')


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_stops_no_other_job(tmp_path: Path) -> None:
    for job in jobs(tmp_path):
        job.folder.mkdir(parents=True)
    failures = run_jobs(jobs(tmp_path), LocalLauncher(processes=1, work=killed_at_one), lambda _: None)
    assert failures == {tmp_path / "1": "its process ended unexpectedly, perhaps out of memory"}
    assert all(job.trained for job in jobs(tmp_path) if job.folder.name != "1")


@pytest.mark.slow
def test_an_interruption_ends_a_training_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    close = _ThreadWakeup.close
    monkeypatch.setattr(_ThreadWakeup, "close", lambda pipe: (time.sleep(1), close(pipe)))
    before, threads = set(multiprocessing.active_children()), set(threading.enumerate())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), single_threaded_workers() as start_worker:  # noqa: PT012
        pool = start_worker()
        assert pool.submit(os.getpid).result()
        pool.submit(time.sleep, 600)
        raise KeyboardInterrupt
    assert set(threading.enumerate()) <= threads  # else Python 3.11 may print a traceback at exit
    while not set(multiprocessing.active_children()) <= before:
        assert time.monotonic() - began < 60
        time.sleep(0.1)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@pytest.mark.slow
def test_an_interruption_ends_workers_that_ignore_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECONDS_TO_STOP", 0.1)
    before, began = set(multiprocessing.active_children()), time.monotonic()
    with pytest.raises(KeyboardInterrupt), single_threaded_workers() as start_worker:  # noqa: PT012
        pool = start_worker()
        pool.submit(ignore_sigterm).result()
        pool.submit(time.sleep, 120)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 120
    assert set(multiprocessing.active_children()) <= before


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


def test_at_80_columns_a_long_name_leaves_the_times_whole() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    progress = progress_bars(console)
    progress.add_task("figure-temperature · Saliency Grafting, T = 0.01 · seed 0", total=200, completed=12)
    console.print(progress.get_renderable())
    shown = console.file.getvalue()
    assert "epoch 12/200 0:00:00 left --:--" in shown
    assert "…" not in shown
