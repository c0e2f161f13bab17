"""The plan of a run: what it adds up, what it leaves alone, and how it looks."""

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from saligraft import data as datasets
from saligraft import names
from saligraft.data import Batch, StreamedData
from saligraft.training import SilentReporter, make_recipe, train
from saligraft.training import plan as plan_module
from saligraft.training.accelerator import make_accelerator
from saligraft.training.plan import (
    Plan,
    Segment,
    duration,
    measure_segments,
    measure_test_speed,
    plan,
    print_plan,
)
from saligraft.training.trainer import Trainer

PHASE = Segment(
    first_epoch=0,
    epochs=15,
    mixes=False,
    size=(128, 128),
    batch_size=1024,
    steps=1251,
    step_seconds=0.5,
    wait_seconds=0.1,
    peak_memory=21_400_000_000,
)
LAST = replace(
    PHASE, first_epoch=15, epochs=85, mixes=True, size=(224, 192), batch_size=448, steps=2859, peak_memory=None
)
WHOLE = Plan(
    segments=(PHASE, LAST),
    epochs=100,
    test_images=50_000,
    test_images_per_second=2500.0,
    checkpoint_bytes=306_000_000,
    kept_checkpoints=2,
    machine={"device": "cpu", "device_name": "x86_64", "processes": 2, "threads": 1},
)


def test_the_whole_is_all_steps_and_all_tests() -> None:
    assert PHASE.images_per_second == 2048
    assert WHOLE.test_seconds == 100 * 20
    assert WHOLE.seconds == 15 * 1251 * 0.5 + 85 * 2859 * 0.5 + 2000


def test_a_plan_follows_the_recipe_and_writes_nothing(
    tiny_table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_table["training"].update(warmup_epochs=1, epochs=5, accumulate=2, ema_decay=0.9, trackers=["tensorboard"])
    recipe = make_recipe({**tiny_table, "method": {"name": "saliency-grafting"}})
    random_state = torch.get_rng_state()
    notes: list[str] = []
    estimate = plan(recipe, steps=2, note=notes.append)
    assert [note.partition(",")[0] for note in notes[1:-1]] == [
        "Measuring steps as in epochs 1 to 1",
        "Measuring steps as in epochs 2 to 5",
    ]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not list(tmp_path.iterdir())
    assert [(part.first_epoch, part.epochs, part.mixes) for part in estimate.segments] == [(0, 1, False), (1, 4, True)]
    for part in estimate.segments:
        assert (part.batch_size, part.size, part.steps) == (16, (16, 16), 2)
        assert 0 <= part.wait_seconds < part.step_seconds < 60
        assert part.peak_memory is None or part.peak_memory > 1e7
    assert (estimate.epochs, estimate.test_images) == (5, 40)
    assert estimate.test_images_per_second > 0


def test_the_size_of_a_checkpoint_is_that_of_one_written(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    tiny_table["training"].update(epochs=1, ema_decay=0.9)
    recipe = make_recipe(tiny_table)
    train(recipe, tmp_path / "run", reporter=SilentReporter())
    (written,) = (tmp_path / "run" / "checkpoints").iterdir()
    total = sum(file.stat().st_size for file in written.glob("*.safetensors"))
    assert total == pytest.approx(plan(recipe, steps=1).checkpoint_bytes, rel=0.1)


def test_it_fits_a_narrow_terminal() -> None:
    stream = io.StringIO()
    print_plan(WHOLE, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert "…" not in stream.getvalue()
    assert " ".join(lines[1].split()) == "1 to 15 plain 1,024 128 18,765 2,048 20 % 21.4 GB 2 h 36 min"
    assert " ".join(lines[2].split()) == "16 to 100 448 224×192 243,015 896 20 % unknown 1 d 10 h"
    assert " ".join(lines[3].split()) == "100 tests 2,500 33 min 20 s"
    assert "estimated time:   1 d 13 h" in lines
    assert "measured on:      cpu (x86_64), 2 processes, 1 thread each" in lines
    assert "checkpoint:       306.0 MB; the newest 2 are kept" in lines


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3599.6, "1 h"),
        (3600 + 59.9 * 60, "2 h"),
        (86400 * 3 + 3600 * 4 + 1000, "3 d 4 h"),
        (86400 - 60, "23 h 59 min"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


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
def trainer(tiny_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setitem(datasets.DATASETS, "noise", noise)
    monkeypatch.setattr(names, "DATA_SETS", (*names.DATA_SETS, "noise"))
    phases = [{"from_epoch": 0, "size": 8, "batch_size": 20}, {"from_epoch": 4, "size": 12, "batch_size": 10}]
    training = {"epochs": 6, "phases": phases, "warmup_epochs": 2}
    recipe = make_recipe({**tiny_table, "data": {"name": "noise"}, "training": training})
    return Trainer(recipe, make_accelerator(recipe))


def test_phases_and_the_warm_up_are_segments_of_their_own(trainer: Trainer) -> None:
    segments = measure_segments(trainer, steps=1, seconds=60)
    assert [(part.first_epoch, part.epochs, part.mixes) for part in segments] == [
        (0, 2, False),
        (2, 2, True),
        (4, 2, True),
    ]
    assert [(part.size, part.batch_size, part.steps) for part in segments] == [
        ((8, 8), 20, 2),
        ((8, 8), 20, 2),
        ((12, 12), 10, 4),
    ]
    assert measure_test_speed(trainer) > 0


@pytest.fixture
def clock(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Data that takes 1 s to come, but 5 s every fourth time; first steps of 100 s, then of 7 s, one hampered."""
    clock, durations = Clock(), [100.0, 100.0, 7.0, 30.0, 7.0, 7.0]
    steps: list[int] = []

    def step(batches: Iterator[Batch], number: int) -> None:
        next(batches)
        clock.now += durations[len(steps) % len(durations)]
        steps.append(number)

    loader = trainer.timeline.stages[0].loader
    original_batches = loader.batches

    def slow_batches(start: int = 0) -> Iterator[Batch]:
        for batch in original_batches(start):
            clock.now += 5.0 if len(steps) % 4 == 3 else 1.0
            yield batch

    monkeypatch.setattr(loader, "batches", slow_batches)
    monkeypatch.setattr(trainer, "optimizer_step", step)
    monkeypatch.setattr(plan_module, "time", clock)
    return clock


def test_first_steps_do_not_count_and_one_slow_step_changes_nothing(trainer: Trainer, clock: Clock) -> None:
    first = measure_segments(trainer, steps=4, seconds=1000)[0]
    assert first.wait_seconds == 2.0  # of four, one took 5 s
    assert first.step_seconds == 7.0 + 2.0
    assert clock.now > 0


def test_patience_ends_with_at_least_one_step_measured(trainer: Trainer, clock: Clock) -> None:
    first = measure_segments(trainer, steps=4, seconds=1)[0]
    assert first.step_seconds == 101.0
    assert clock.now > 0
