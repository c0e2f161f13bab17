"""Streamed batches: the same whatever the workers and wherever one starts, and clear words when a worker fails."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from saligraft.data import Batch, StreamedData, StreamingLoader, make_data_loader, streaming_loader
from saligraft.data.keyed_draws import key

MEAN, STD = (0.4, 0.5), (0.2, 0.25)


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(StreamedData):
    """Images that depend on index and draws alone; `behaviour` is what sample 3 does."""

    behaviour: str = ""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 2, 3, 4

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        if index == 3 and self.behaviour == "damaged":
            raise ValueError("bird.jpg is truncated")
        if index == 3 and self.behaviour == "bug":
            raise KeyError("bug")
        if index == 3 and self.behaviour == "dies":
            os.kill(os.getpid(), signal.SIGBUS)
        start = draws.randrange(1000) if draws else 0
        return (torch.arange(24).view(2, 3, 4) + start + index).to(torch.uint8), (start, index)


class Facts(Noise):
    """What a worker is: pid, group, threads, whether it ignores SIGINT."""

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        ignores = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        facts = os.getpid(), os.getpgid(0), torch.get_num_threads(), int(ignores)
        return super().sample(index, draws)[0], facts


def make_data(count: int = 23, kind: type[Noise] = Noise, **options: Any) -> Noise:
    labels = torch.arange(count) % 5
    return kind(name="noise", labels=labels, classes=tuple("abcde"), mean=MEAN, std=STD, **options)


def epoch(loader: StreamingLoader, number: int = 0, start: int = 0) -> list[Batch]:
    loader.set_epoch(number)
    batches = list(loader.batches(start))
    assert len(batches) == max(0, len(loader) - start)
    return batches


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def same(left: list[Batch], right: list[Batch]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("train", [True, False])
def test_any_number_of_workers_and_any_start_give_the_same_batches(train: bool) -> None:
    plain, one, two = (
        StreamingLoader(make_data(), batch_size=4, train=train, workers=workers) for workers in (0, 1, 2)
    )
    for number in (0, 1):  # the second epoch meets the workers of the first
        whole = epoch(plain, number)
        assert same(whole, epoch(one, number))
        for start in (1, 4, len(plain)):
            assert same(whole[start:], epoch(two, number, start))
            assert same(whole[start:], epoch(plain, number, start))


@pytest.mark.parametrize("flip", [True, False])
def test_batches_are_the_samples_views_normalised_and_mirrored(flip: bool) -> None:
    data = make_data(64)
    loader = StreamingLoader(data, batch_size=8, train=True, seed=5, flip=flip)
    seen, mirrored = [], 0
    for batch in epoch(loader, 2):
        assert batch.images.dtype == torch.float32
        for image, label, index, (*place, flipped) in zip(
            batch.images, batch.labels, batch.index, batch.geometry.tolist(), strict=True
        ):
            view, expected = data.sample(int(index), random.Random(key(loader.augmentation, int(index))))
            view = view.flip(-1) if flipped else view
            normal = (view.double() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
            torch.testing.assert_close(image.double(), normal, atol=1e-5, rtol=0)
            assert (tuple(place), label) == (expected, data.labels[index])
            seen.append(int(index))
            mirrored += flipped
    assert sorted(seen) == list(range(64))
    assert 16 < mirrored < 48 if flip else mirrored == 0


def test_every_part_of_a_batch_is_moved_without_waiting_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    monkeypatch.setattr("saligraft.data.streaming_loader.to_device", lambda part, _: moved.append(part) or part)
    [batch] = epoch(StreamingLoader(make_data(4), batch_size=4, train=False))
    assert len(moved) == len(batch)
    assert all(any(part is each for each in moved) for part in batch[1:])


def test_epochs_seeds_and_ranks_differ_as_the_order_says() -> None:
    data = make_data(32)
    one = StreamingLoader(data, batch_size=8, train=True)
    assert not same(epoch(one), epoch(one, 1))
    assert not same(epoch(one), epoch(StreamingLoader(data, batch_size=8, train=True, seed=1)))
    halves = [StreamingLoader(data, batch_size=4, train=True, rank=r, world_size=2) for r in range(2)]
    for batch, *parts in zip(epoch(one), *map(epoch, halves), strict=True):
        assert sorted(batch.index) == sorted(torch.cat([part.index for part in parts]))


def test_testing_shows_every_sample_once_in_order_unmirrored() -> None:
    batches = epoch(StreamingLoader(make_data(), batch_size=4, train=False, workers=2))
    assert torch.equal(torch.cat([batch.index for batch in batches]), torch.arange(23))
    assert all(not batch.geometry[:, [0, 2]].any() for batch in batches)


def test_workers_stay_use_one_thread_and_leave_the_runs_signals_alone() -> None:
    loader = StreamingLoader(make_data(kind=Facts), batch_size=4, train=True, workers=2)
    first, second = (torch.cat([batch.geometry for batch in epoch(loader, number)]) for number in (0, 1))
    assert first[:, 0].unique().tolist() == second[:, 0].unique().tolist()
    assert os.getpid() not in first[:, 0]
    assert torch.equal(first[:, 0], first[:, 1])  # a group of its own: Ctrl-C and killpg pass it by
    assert first[:, 2:4].eq(1).all()


def test_workers_need_no_child_signals_and_no_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither."""
    options: dict[str, Any] = {"batch_size": 4, "train": True, "workers": 1}
    expected = epoch(StreamingLoader(make_data(), **options))
    names = {name: value for name, value in vars(signal).items() if name != "SIGCHLD"}
    monkeypatch.setattr(streaming_loader, "signal", SimpleNamespace(**names))
    monkeypatch.delattr(os, "setpgid")
    assert same(epoch(StreamingLoader(make_data(), **options)), expected)


def test_a_training_runs_random_state_and_signal_handlers_stay() -> None:
    state, handler = torch.get_rng_state(), signal.getsignal(signal.SIGCHLD)
    epoch(StreamingLoader(make_data(), batch_size=4, train=True, workers=1))
    assert torch.equal(state, torch.get_rng_state())
    assert signal.getsignal(signal.SIGCHLD) is handler


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_one_line_and_others_still_load(workers: int) -> None:
    loader = StreamingLoader(make_data(behaviour="damaged"), batch_size=2, train=False, workers=workers)
    for _ in range(2):
        batches = loader.batches()
        next(batches)
        with pytest.raises(ValueError, match=r"^bird\.jpg is truncated$"):
            next(batches)
    assert len(list(loader.batches(2))) == len(loader) - 2


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(KeyError, match="in sample"):
        list(StreamingLoader(make_data(behaviour="bug"), batch_size=2, train=False, workers=1))


def test_a_killed_worker_is_named_and_the_next_iteration_has_new_ones() -> None:
    loader = StreamingLoader(make_data(200, Facts), batch_size=2, train=False, workers=2)
    batches = loader.batches()
    next(batches)
    pid = int(next(batches).geometry[0, 0])
    os.kill(pid, signal.SIGKILL)
    while pid in [child.pid for child in multiprocessing.active_children()]:
        time.sleep(0.01)
    words = rf"^data worker 1 \(pid {pid}\) died: killed by SIGKILL, as the system does when memory runs out$"
    with pytest.raises(ChildProcessError, match=words):
        list(batches)
    assert len(list(loader)) == len(loader)


@pytest.mark.slow
def test_a_worker_that_dies_while_its_batch_is_awaited_is_named() -> None:
    batches = StreamingLoader(make_data(behaviour="dies"), batch_size=4, train=False, workers=1).batches()
    with pytest.raises(ChildProcessError, match=r"^data worker 0 \(pid \d+\) died: killed by SIGBUS, as when shared"):
        next(batches)


def test_an_interrupted_iteration_leaves_nothing_to_the_next_and_cannot_continue() -> None:
    loader = StreamingLoader(make_data(), batch_size=4, train=True, workers=2)
    old = loader.batches()
    next(old)
    new = loader.batches(2)
    next(new)
    with pytest.raises(RuntimeError, match="cannot continue after a new one has started"):
        next(old)
    assert same(epoch(loader), epoch(StreamingLoader(make_data(), batch_size=4, train=True)))


@pytest.mark.slow
def test_workers_end_when_their_run_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import time\nfrom tests.data.test_streaming_loader import *\n"
        "batches = StreamingLoader(make_data(kind=Facts), batch_size=4, train=False, workers=2).batches()\n"
        "print(int(next(batches).geometry[0, 0]), flush=True)\ntime.sleep(60)\n",
        encoding="utf-8",
    )
    root = Path(__file__).parents[2]
    run = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(root)})
    assert run.stdout is not None
    worker = int(run.stdout.readline())
    assert exists(worker)
    run.kill()
    run.wait()
    run.stdout.close()
    deadline = time.monotonic() + 30
    while exists(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_make_data_loader_streams_what_is_on_disk() -> None:
    loader = make_data_loader(make_data(), batch_size=4, train=True, workers=1, flip=False)
    assert isinstance(loader, StreamingLoader)
    assert loader.workers == 1
    assert not loader._reader.flip


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="workers must be >= 0, got -1"):
        StreamingLoader(make_data(), batch_size=4, train=True, workers=-1)
    with pytest.raises(ValueError, match="epoch must be >= 0, got -1"):
        StreamingLoader(make_data(), batch_size=4, train=True).set_epoch(-1)


def test_close_ends_the_workers() -> None:
    loader = StreamingLoader(make_data(kind=Facts), batch_size=4, train=False, workers=1)
    worker = int(epoch(loader)[0].geometry[0, 0])
    assert exists(worker)
    loader.close()
    assert not exists(worker)
    assert len(epoch(loader)) == len(loader)
