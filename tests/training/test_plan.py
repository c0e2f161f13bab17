"""The plan of a run: what it adds up, what it leaves alone, and how it looks."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from saligraft.training import SilentReporter, make_recipe, train
from saligraft.training.plan import Plan, duration, plan, print_plan, size
from saligraft.training.stretches import Stretch

PHASE = Stretch(
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
LAST = dataclasses.replace(
    PHASE, first_epoch=15, epochs=85, mixes=True, size=(224, 192), batch_size=448, steps=2859, peak_memory=None
)
WHOLE = Plan(
    stretches=(PHASE, LAST),
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
    found = plan(recipe, steps=2)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not list(tmp_path.iterdir())
    assert [(part.first_epoch, part.epochs, part.mixes) for part in found.stretches] == [(0, 1, False), (1, 4, True)]
    for part in found.stretches:
        assert (part.batch_size, part.size, part.steps) == (16, (16, 16), 2)
        assert 0 <= part.wait_seconds < part.step_seconds < 60
        assert part.peak_memory is None or part.peak_memory > 1e7
    assert (found.epochs, found.test_images) == (5, 40)
    assert found.test_images_per_second > 0


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
    assert " ".join(lines[1].split()) == "1 to 15 plain 1,024 128 18,765 2,048 20% 21.4 GB 2 h 36 min"
    assert " ".join(lines[2].split()) == "16 to 100 448 224×192 243,015 896 20% unknown 1 d 10 h"
    assert " ".join(lines[3].split()) == "100 tests 2,500 33 min 20 s"
    assert "time to the end:  1 d 13 h" in lines
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


def test_sizes() -> None:
    assert (size(1_500_000), size(2_440_000_000)) == ("1.5 MB", "2.4 GB")
