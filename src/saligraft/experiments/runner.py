"""Run the jobs of experiments: finished ones are kept, missing ones resumed, here or on a cluster.

A run that was stopped resumes from its last checkpoint. Ctrl-C saves one first; a kill or a lost machine costs what was
trained since the last, `training.checkpoint_epochs` at most.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from saligraft.config.recipe_file import toml_value
from saligraft.experiments.experiment import MEASURES, Job, read_measures
from saligraft.experiments.measures import MEASURE_FUNCTIONS
from saligraft.import_path import install_command
from saligraft.io.files import write_atomic
from saligraft.names import one_line, plural
from saligraft.training import RunStopped, SilentReporter, load_run, train
from saligraft.training.accelerator import only_cpu
from saligraft.training.run_folder import METRICS, read_marker
from saligraft.training.setup import load_split

UPDATE_SECONDS = 0.5  # between two updates of the progress bars
SECONDS_TO_STOP = 60.0  # for a step and a checkpoint after Ctrl-C
MOST_REQUEUES = 1000  # of a job that is out of time; submitit's 3 would end long runs
OnDone = Callable[[Job, BaseException | None], None]


class Launcher(Protocol):
    """Runs jobs and reports the end of each."""

    def __call__(self, jobs: Sequence[Job], on_done: OnDone) -> None:
        """Return when all jobs have ended."""


def run_jobs(jobs: Sequence[Job], launch: Launcher, say: Callable[[str], None] = print) -> dict[Path, str]:
    """Run what is missing of the jobs; those that share a folder are one.

    Args:
        jobs: Jobs in the order of their start.
        launch: Launcher that runs them.
        say: Receives a line when each ends.

    Returns:
        Why runs failed, by folder. A failure does not stop the others.

    Raises:
        OSError: The folder of the first run cannot be created.
    """
    merged: dict[Path, Job] = {}
    for job in jobs:
        known = merged.get(job.folder, job)
        measures = tuple(dict.fromkeys((*known.measures, *job.measures)))
        merged[job.folder] = replace(known, measures=measures)
    missing = [job for job in merged.values() if not job.done]
    say(f"{plural(len(merged), 'run')}, {len(merged) - len(missing)} of them finished")
    failures: dict[Path, str] = {}
    ended = 0

    def on_done(job: Job, error: BaseException | None) -> None:
        nonlocal ended
        ended += 1
        if error is not None:
            failures[job.folder] = one_line(error)
        say(f"{ended}/{len(missing)} {job.label}: {failures.get(job.folder, 'done')}")

    if missing:
        missing[0].folder.mkdir(parents=True, exist_ok=True)  # where nothing can be written, not every run must fail
        try:
            launch(missing, on_done)
        except (KeyboardInterrupt, SystemExit):  # by SIGTERM
            print("saligraft: stopped; the same command resumes", file=sys.stderr)
            raise
    return failures


def check_failures(failures: Mapping[Path, str], jobs: Sequence[Job]) -> None:
    """Raise an error that counts the failed runs and names the first, if there are any.

    Args:
        failures: Result of `run_jobs`.
        jobs: The jobs that were run; those that share a folder are one.
    """
    if failures:
        folder, reason = next(iter(failures.items()))
        count = len({job.folder for job in jobs})
        raise ValueError(f"{len(failures)} of {count} runs failed; the first is {folder}: {reason}")


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse data that are missing, or other than those that finished runs of the same recipe were tested on.

    Args:
        jobs: Jobs to be run, finished ones too; where all are finished, the data may be gone.
    """
    by_data: dict[str, list[Job]] = {}
    for job in jobs:
        by_data.setdefault(job.recipe.data.model_dump_json(), []).append(job)
    for same in by_data.values():
        finished = [job for job in same if job.trained]
        try:
            test = load_split(same[0].recipe, "test")
        except (OSError, ValueError):
            if len(finished) == len(same):
                continue
            raise
        digest = test.digest() if finished else ""
        for job in finished:
            known = ((read_marker(job.folder) or {}).get("data") or {}).get("test", {}).get("digest", digest)
            if known != digest:
                raise ValueError(
                    f"{job.folder} was tested on other images than those of {same[0].recipe.data.root or test.name}: "
                    "choose another --out"
                )


def run_job(job: Job) -> None:
    """Train what is missing of one run, then do the missing measurements.

    Args:
        job: The run.
    """
    if not job.trained:
        train(job.recipe, job.folder, resume=True, reporter=SilentReporter())
    if not job.missing:
        return
    root = job.recipe.data.root  # where the data are now, perhaps not where the run was trained
    tested = load_run(job.folder, [] if root is None else [f"data.root={toml_value(root)}"])
    for name in job.missing:
        measures = {**read_measures(job.folder), name: MEASURE_FUNCTIONS[name](tested)}
        write_atomic(job.folder / MEASURES, json.dumps(measures, indent=2) + "\n")


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Processes on this machine, with one thread each.

    Args:
        processes: Number of processes; None for one per core, or one where they share a GPU.
        work: What each does with a job.
    """

    processes: int | None = None
    work: Callable[[Job], None] = run_job

    def __call__(self, jobs: Sequence[Job], on_done: OnDone) -> None:
        """Return when all jobs have ended; Ctrl-C first waits for a checkpoint of each."""
        count = min(self.processes or worker_count(), len(jobs))
        progress, bars = progress_bars(Console(stderr=True)), dict[Path, TaskID]()
        with progress, single_threaded_workers() as start_worker:
            idle = [start_worker() for _ in range(count)]
            waiting, running = list(reversed(jobs)), dict[Future[None], tuple[Job, Executor]]()
            while waiting or running:
                while waiting and idle:
                    job, worker = waiting.pop(), idle.pop()
                    running[worker.submit(_stoppable, self.work, job)] = job, worker
                    bars[job.folder] = progress.add_task(job.label, total=job.recipe.training.epochs)
                for future in wait(running, timeout=UPDATE_SECONDS, return_when=FIRST_COMPLETED).done:
                    (job, worker), error = running.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        worker = start_worker()
                        error = RuntimeError("its process ended unexpectedly, perhaps out of memory")
                    idle.append(worker)
                    progress.remove_task(bars.pop(job.folder))
                    on_done(job, error)
                update_bars(progress, bars)


def _stoppable(work: Callable[[Job], None], job: Job) -> None:
    """End the process after a stopped run: as an answer to the pool, it would wait for another job."""
    try:
        work(job)
    except RunStopped as stopped:
        os._exit(stopped.exit_code)


@dataclass(frozen=True, kw_only=True)
class SlurmLauncher:
    """An array of Slurm jobs, through submitit; a job that is preempted or out of time is queued again and resumes.

    Args:
        folder: Folder for logs and pickles, on a file system that all machines share.
        partition: Slurm partition; None for the default one.
        gpus: GPUs of each job.
        minutes: Time limit of each job.
        parallel: Jobs at the same time at most.
        cluster: "slurm", or for tests submitit's "local" or "debug".
    """

    folder: Path
    partition: str | None = None
    gpus: int = 1
    minutes: int = 24 * 60
    parallel: int = 256
    cluster: str = "slurm"

    def __call__(self, jobs: Sequence[Job], on_done: OnDone) -> None:
        """Submit all jobs and wait; after Ctrl-C they keep running.

        Once they have ended, the same command collects them; earlier, it submits again those that are not finished.
        """
        try:
            import submitit
        except ImportError as error:
            raise ImportError(f"--launcher slurm needs submitit: {install_command('slurm')}") from error
        try:
            requeues = {"slurm_max_num_timeout": MOST_REQUEUES}
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster, **requeues)
        except RuntimeError as error:  # it looks for srun
            raise ValueError(f"--launcher slurm needs a machine with Slurm: {error}") from error
        options: dict[str, Any] = {"slurm_array_parallelism": self.parallel}
        if self.partition is not None:
            options["slurm_partition"] = self.partition
        executor.update_parameters(name="saligraft", timeout_min=self.minutes, gpus_per_node=self.gpus, **options)
        handles = executor.map_array(_ClusterTask(), jobs)
        try:
            for job, handle in zip(jobs, handles, strict=True):
                on_done(job, handle.exception())  # waits
        except KeyboardInterrupt:
            print("saligraft: the jobs keep running: wait for them, or cancel them, before resuming", file=sys.stderr)
            raise


class _ClusterTask:
    """What a cluster job calls; submitit asks `checkpoint` what to queue again."""

    def __call__(self, job: Job) -> None:
        run_job(job)

    def checkpoint(self, job: Job) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self, job)


def worker_count() -> int:
    """Return the number of cores this process may use, or 1 where trainings share a GPU."""
    if not only_cpu():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def single_threaded_workers() -> Iterator[Callable[[], Executor]]:
    """Start processes with one thread each; if the block raises or SIGTERM ends it, they save checkpoints and end.

    Steps this small gain little from a second thread, and lose much where another program occupies a core: all
    threads of a step wait for the slowest. Two single-threaded processes do not wait for each other.

    Yields:
        Function that starts a process, as a pool of its own: where one is killed, the others keep working.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an undefined state
    pools: list[Executor] = []

    def start() -> Executor:
        pools.append(ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker))
        return pools[-1]

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:  # only there may handlers be set
        handler = signal.signal(signal.SIGTERM, _exit_by_signal)
    try:
        yield start
    except BaseException:
        workers = set(multiprocessing.active_children()) - before
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(SECONDS_TO_STOP)
            worker.kill()  # if it is still running; its run resumes from the last checkpoint
        for pool in pools:  # waits for its thread: at exit, Python 3.11 writes to a pipe that this may be closing
            pool.shutdown(cancel_futures=True)
        raise
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, handler)
    for pool in pools:
        pool.shutdown()


def _exit_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _exit_with_parent() -> None:
    """Stop training if the parent process is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def progress_bars(console: Console) -> Progress:
    """Return an empty set of progress bars, one to be added per training; nothing is shown but on terminals.

    Args:
        console: Console that shows the bars.

    Returns:
        The bars.
    """
    # On a narrow terminal the name wraps, so that the times stay readable.
    name = TextColumn("[bold]{task.description}", table_column=Column())
    columns = (name, BarColumn(bar_width=16), TextColumn("epoch {task.completed}/{task.total}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True))
    return Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal)


def update_bars(progress: Progress, bars: Mapping[Path, TaskID]) -> None:
    """Set each bar to the epochs that its training, in another process, has written so far.

    Args:
        progress: The bars.
        bars: The bar of each run folder.
    """
    for folder, bar in bars.items():
        if (folder / METRICS).is_file():
            progress.update(bar, completed=(folder / METRICS).read_bytes().count(b"\n"))
