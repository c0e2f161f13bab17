"""Worker processes: one thread each, as many as cores, and none left behind."""

import multiprocessing
import os
import time

import pytest
import torch

from saligraft.experiments.demo_pool import single_threaded_workers, worker_count


def test_there_is_a_worker_for_each_core_this_process_may_use() -> None:
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
