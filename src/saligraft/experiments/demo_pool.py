"""Several trainings at once, each in a process of its own with one thread.

Steps this small gain little from a second thread, and lose much where another program holds one of the cores: all
threads of a step wait for the slowest. Two processes of one thread do not wait for each other.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import torch

from saligraft.training.accelerator import only_cpu


def worker_count() -> int:
    """As many as this process may use cores; one where trainings share a GPU."""
    if not only_cpu():
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def single_threaded_workers(count: int) -> Iterator[Executor]:
    """Processes that are ended at once if the block is left by an error or Ctrl-C."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads half-way
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    pool.shutdown()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """Do not train on for nobody if the first process is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
