"""Measuring a run's stretches: what counts, on a clock of our own."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from saligraft import data as datasets
from saligraft.data import Batch, StreamedData
from saligraft.training import make_recipe, stretches
from saligraft.training.accelerator import make_accelerator
from saligraft.training.session import Session, prepare
from saligraft.training.stretches import images_tested_per_second, measure_stretches


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(StreamedData):
    """Images of any size."""

    height: int = 8

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, self.height, self.height

    def resized(self, size: int) -> "Noise":
        return replace(self, height=size)

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, tuple[int, ...]]:
        del draws
        return torch.full(self.image_shape, index, dtype=torch.uint8), (0, 0, self.height, self.height)


def noise(*, split: str = "train", root: str | None = None) -> Noise:
    del split, root
    statistics = {"mean": (0.5,) * 3, "std": (0.2,) * 3}
    return Noise(name="noise", labels=torch.arange(40) % 2, classes=("a", "b"), **statistics)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def session(tiny_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setitem(datasets.DATASETS, "noise", noise)
    phases = [{"from_epoch": 0, "size": 8, "batch_size": 20}, {"from_epoch": 4, "size": 12, "batch_size": 10}]
    training = {"epochs": 6, "phases": phases, "warmup_epochs": 2}
    recipe = make_recipe({**tiny_table, "data": {"name": "noise"}, "training": training})
    return prepare(recipe, make_accelerator(recipe))


def test_phases_and_the_warm_up_are_stretches_of_their_own(session: Session) -> None:
    found = measure_stretches(session, steps=1, seconds=60)
    assert [(part.first_epoch, part.epochs, part.mixes) for part in found] == [
        (0, 2, False),
        (2, 2, True),
        (4, 2, True),
    ]
    assert [(part.size, part.batch_size, part.steps) for part in found] == [
        ((8, 8), 20, 2),
        ((8, 8), 20, 2),
        ((12, 12), 10, 4),
    ]
    assert images_tested_per_second(session) > 0


@pytest.fixture
def clock(session: Session, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Data that takes 1 s to come, but 5 s every fourth time; first steps of 100 s, then of 7 s, one hampered."""
    clock, durations = Clock(), [100.0, 100.0, 7.0, 30.0, 7.0, 7.0]
    taken: list[int] = []

    def step(_: Session, batches: Iterator[Batch], number: int, __: Any) -> None:
        next(batches)
        clock.now += durations[len(taken) % len(durations)]
        taken.append(number)

    loader = session.timeline.stages[0].loader
    given = loader.batches

    def slow_batches(start: int = 0) -> Iterator[Batch]:
        for batch in given(start):
            clock.now += 5.0 if len(taken) % 4 == 3 else 1.0
            yield batch

    monkeypatch.setattr(loader, "batches", slow_batches)
    monkeypatch.setattr(stretches, "optimizer_step", step)
    monkeypatch.setattr(stretches, "time", clock)
    return clock


def test_first_steps_do_not_count_and_one_slow_step_changes_nothing(session: Session, clock: Clock) -> None:
    first = measure_stretches(session, steps=4, seconds=1000)[0]
    assert first.wait_seconds == 2.0  # of four, one took 5 s
    assert first.step_seconds == 7.0 + 2.0
    assert clock.now > 0


def test_patience_ends_with_at_least_one_step_measured(session: Session, clock: Clock) -> None:
    first = measure_stretches(session, steps=4, seconds=1)[0]
    assert first.step_seconds == 101.0
    assert clock.now > 0
