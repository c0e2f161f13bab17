"""A checkpoint holds everything that a run needs, and conditions that do not fit are reported."""

import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from saligraft.training import Recipe, RunStopped, SilentReporter, make_recipe, train
from saligraft.training import checkpoint as checkpoints
from saligraft.training.accelerator import make_accelerator
from saligraft.training.state import check_conditions, check_data, run_conditions
from saligraft.training.trainer import Trainer


def trainer_of(table: dict[str, Any], **training: Any) -> Trainer:
    recipe = make_recipe({**table, "training": {**table["training"], **training}})
    return Trainer(recipe, make_accelerator(recipe))


def conditions(trainer: Trainer) -> dict[str, Any]:
    return run_conditions(trainer.recipe, trainer.accelerator, trainer.train_data, trainer.test_data)


def saved(trainer: Trainer, folder: Path) -> checkpoints.Checkpoint:
    state, shared, own = trainer.learner.capture(trainer.position)
    checkpoints.save(folder, 1, {**conditions(trainer), **state}, shared, own, trainer.accelerator)
    newest = checkpoints.latest(folder, trainer.accelerator)
    assert newest is not None
    return newest


def test_a_restored_learner_captures_the_same(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    table = {**tiny_table, "optimizer": {"name": "adamw", "lr": 0.01}}
    trained, fresh = (trainer_of(table, ema_decay=0.5, channels_last=True) for _ in range(2))
    trained.train_epoch()
    before = trained.learner.capture(trained.position)
    after = fresh.learner.capture(fresh.learner.restore(saved(trained, tmp_path)))
    assert after[0] == before[0]
    for one, other in zip(after[1:], before[1:], strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert momentum_strides(fresh) == momentum_strides(trained)


def momentum_strides(trainer: Trainer) -> dict[int, tuple[int, ...]]:
    state = trainer.optimizer.state_dict()["state"]
    return {index: entry["exp_avg"].stride() for index, entry in state.items()}


def test_other_conditions_are_reported_and_impossible_ones_refused(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    trainer = trainer_of(tiny_table)
    now, checkpoint = conditions(trainer), saved(trainer, tmp_path)
    assert check_conditions(now, checkpoint) == []
    older = replace(checkpoint, state={**checkpoint.state, "threads": 99, "torch": "1.0"})
    assert check_conditions(now, older) == [
        f"threads 99, now {torch.get_num_threads()}",
        f"torch 1.0, now {torch.__version__}",
    ]
    with pytest.raises(ValueError, match=r"resumed with as many processes as it was started with \(2\), got 1"):
        check_conditions(now, replace(checkpoint, state={**checkpoint.state, "processes": 2}))
    with pytest.raises(ValueError, match="belongs to another recipe"):
        check_conditions(conditions(trainer_of(tiny_table, epochs=3)), checkpoint)
    reordered = {**now["data"], "classes": now["data"]["classes"][::-1]}
    with pytest.raises(ValueError, match=r"with the 10 classes .*, got 10 \(in another order\)"):
        check_data(reordered, now["data"])


def test_tensors_of_another_network_are_refused(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = saved(trainer_of(tiny_table), tmp_path)
    other = trainer_of({**tiny_table, "network": {"name": "wrn-16-1"}})
    with pytest.raises(ValueError, match=r"the checkpoint must hold the network's \d+ tensors, got \d+"):
        other.learner.restore(checkpoint)


def picture(path: Path, seed: int, side: int = 16) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def pictures(folder: Path, *classes: str) -> None:
    for name in classes:
        for number in range(5):
            picture(folder / name / f"{number}.png", number)


class Stopping(SilentReporter):
    """Stops the run after its first step."""

    def step(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Pets:
    """Three classes of five pictures, and two runs on them: "finished", and "stopped" after a step."""

    folder: Path
    recipe: Recipe

    def resume(self, run: str) -> None:
        train(self.recipe, self.folder / run, resume=True, reporter=SilentReporter())


@pytest.fixture(scope="module")
def pets_once(tmp_path_factory: pytest.TempPathFactory) -> Pets:
    folder = tmp_path_factory.mktemp("pets")
    pictures(folder / "data", "cat", "dog", "emu")
    data = {"name": f"folder:{folder / 'data'}", "options": {"size": 16}}
    training = {"epochs": 1, "batch_size": 6}
    recipe = make_recipe({"data": data, "network": {"name": "wrn-10-1"}, "training": training})
    train(recipe, folder / "finished", reporter=SilentReporter())
    with pytest.raises(RunStopped):
        train(recipe, folder / "stopped", reporter=Stopping())
    return Pets(folder, recipe)


@pytest.fixture
def pets(pets_once: Pets, tmp_path: Path) -> Iterator[Pets]:
    """The same for one test, put back afterwards."""
    shutil.copytree(pets_once.folder, tmp_path / "kept")
    yield pets_once
    shutil.rmtree(pets_once.folder)
    shutil.copytree(tmp_path / "kept", pets_once.folder)


CLASS_CHANGES = {
    "renamed": (
        lambda data: (data / "cat").rename(data / "zebra"),
        "got 3 (1 removed, such as 'cat'; 1 new, such as 'zebra')",
    ),
    "added": (lambda data: pictures(data, "ape"), "got 4 (1 new, such as 'ape')"),
    "removed": (lambda data: shutil.rmtree(data / "dog"), "got 2 (1 removed, such as 'dog')"),
}


def damage_checkpoints(run: Path) -> None:
    for file in run.glob("checkpoints/*/shared.safetensors"):
        file.write_bytes(b"")


def delete_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
@pytest.mark.parametrize("lose", [damage_checkpoints, delete_checkpoints])
def test_the_data_of_a_finished_run_are_checked_without_its_checkpoints(
    lose: Callable[[Path], None], pets: Pets
) -> None:
    lose(pets.folder / "finished")
    picture(pets.folder / "data" / "cat" / "9.png", 9)
    with pytest.warns(UserWarning, match=r"^the data changed since the run began.*: train had 12 samples, now 13$"):
        pets.resume("finished")
    (pets.folder / "data" / "cat").rename(pets.folder / "data" / "zebra")
    with pytest.raises(ValueError, match="a run must be resumed with the 3 classes that it was started with"):
        pets.resume("finished")


@pytest.mark.parametrize("run", ["finished", "stopped"])
@pytest.mark.parametrize(("change", "message"), CLASS_CHANGES.values(), ids=CLASS_CHANGES)
def test_a_run_is_not_resumed_with_other_classes(
    change: Callable[[Path], Any], message: str, run: str, pets: Pets
) -> None:
    before = contents(pets.folder / run)
    change(pets.folder / "data")
    expected = "a run must be resumed with the 3 classes that it was started with, " + message
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        pets.resume(run)
    assert contents(pets.folder / run) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


OTHER_CHANGES = {
    "added": (lambda data: picture(data / "cat" / "9.png", 9), "train had 12 samples, now 13"),
    "removed": (lambda data: (data / "cat" / "2.png").unlink(), "train had 12 samples, now 11"),
    "replaced": (lambda data: picture(data / "emu" / "1.png", 9, side=24), "has other files or contents"),
    "renamed": (lambda data: (data / "emu" / "1.png").rename(data / "emu" / "x.png"), "has other files or contents"),
}


@pytest.mark.parametrize(("change", "message"), OTHER_CHANGES.values(), ids=OTHER_CHANGES)
def test_other_changes_of_the_data_are_warned_of(change: Callable[[Path], Any], message: str, pets: Pets) -> None:
    change(pets.folder / "data")
    for run in ("stopped", "stopped", "finished"):  # the second time a run that has ended
        with pytest.warns(UserWarning, match=f"^the data changed since the run began.*: .*{message}") as caught:
            pets.resume(run)
        assert len(caught) == 1


@pytest.mark.parametrize("run", ["finished", "stopped"])
def test_equal_data_are_not_warned_of(run: str, pets: Pets) -> None:
    for file in (pets.folder / "data").rglob("*.png"):
        os.utime(file, (0, 0))  # a copy has other times
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pets.resume(run)
