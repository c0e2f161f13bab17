"""Run the jobs of experiments: finished ones are kept, missing ones resumed, here or on a cluster.

A run that was stopped resumes from its last checkpoint. Ctrl-C saves one first; a kill or a lost machine costs what was
trained since the last, `training.checkpoint_epochs` at most.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from saligraft.experiments.experiment import MEASURES, Job, read_json
from saligraft.experiments.measures import MEASURE_FUNCTIONS
from saligraft.io.files import write_atomic
from saligraft.training import RunStopped, SilentReporter, train
from saligraft.training.accelerator import only_cpu
from saligraft.training.run_folder import METRICS

UPDATE_SECONDS = 0.5  # between two updates of the progress bars
SECONDS_TO_STOP = 60.0  # for a step and a checkpoint after Ctrl-C
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
    """
    merged: dict[Path, Job] = {}
    for job in jobs:
        known = merged.get(job.folder, job)
        measures = tuple(dict.fromkeys((*known.measures, *job.measures)))
        merged[job.folder] = replace(known, measures=measures)
    missing = [job for job in merged.values() if not job.done]
    say(f"{len(merged)} run{'s' * (len(merged) != 1)}, {len(merged) - len(missing)} of them finished")
    failures: dict[Path, str] = {}
    ended = 0

    def on_done(job: Job, error: BaseException | None) -> None:
        nonlocal ended
        ended += 1
        if error is not None:
            failures[job.folder] = " ".join(str(error).split()) or type(error).__name__
        say(f"{ended}/{len(missing)} {job.label}: {failures.get(job.folder, 'done')}")

    if missing:
        launch(missing, on_done)
    return failures


def run_job(job: Job) -> None:
    """Train what is missing of one run, then do the missing measurements.

    Args:
        job: The run.
    """
    if not job.trained:
        train(job.recipe, job.folder, resume=True, reporter=SilentReporter())
    for name in job.missing:
        measures = {**read_json(job.folder / MEASURES), name: MEASURE_FUNCTIONS[name](job.folder)}
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
        with progress, single_threaded_workers(count) as pool:
            waiting, running = list(reversed(jobs)), dict[Future[None], Job]()
            while waiting or running:
                while waiting and len(running) < count:  # none is queued inside the pool: it could not be withdrawn
                    job = waiting.pop()
                    running[pool.submit(_stoppable, self.work, job)] = job
                    bars[job.folder] = progress.add_task(job.label, total=job.recipe.training.epochs)
                for future in wait(running, timeout=UPDATE_SECONDS, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    progress.remove_task(bars.pop(job.folder))
                    on_done(job, future.exception())
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
        """Submit all jobs and wait; after Ctrl-C they go on, and the same command collects them later."""
        try:
            import submitit
        except ImportError as error:
            raise ImportError('--launcher slurm needs submitit: pip install "saligraft[slurm]"') from error
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        options: dict[str, Any] = {"slurm_array_parallelism": self.parallel}
        if self.partition is not None:
            options["slurm_partition"] = self.partition
        executor.update_parameters(name="saligraft", timeout_min=self.minutes, gpus_per_node=self.gpus, **options)
        handles = executor.map_array(_ClusterTask(), jobs)
        for job, handle in zip(jobs, handles, strict=True):
            on_done(job, handle.exception())  # waits


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
def single_threaded_workers(count: int) -> Iterator[Executor]:
    """Start processes with one thread each; if the block raises, they save their checkpoints and end.

    Steps this small gain little from a second thread, and lose much where another program occupies a core: all
    threads of a step wait for the slowest. Two single-threaded processes do not wait for each other.

    Args:
        count: Number of processes.

    Yields:
        The pool of processes.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an undefined state
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        workers = set(multiprocessing.active_children()) - before
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(SECONDS_TO_STOP)
        raise
    pool.shutdown()


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
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("epoch {task.completed}/{task.total}"))
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
