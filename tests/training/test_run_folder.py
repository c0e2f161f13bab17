"""The run folder: made once, never overwritten unasked."""

import json
import os
import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from saligraft.training.recipe import Recipe
from saligraft.training.recipe_file import load_recipe
from saligraft.training.results import EpochMetrics, EpochTiming
from saligraft.training.run_folder import RunFolder, load_weights

METRICS = EpochMetrics(1, 0.1, 1.5, 1.25, 40.0, 10.0)
TIMING = EpochTiming(1, 2.0, 50.0, 0.5, 1.9)


def test_a_folder_holds_what_was_written(tmp_path: Path) -> None:
    folder = RunFolder.plan(tmp_path / "a" / "b")
    recipe = Recipe(title="x", seed=4)
    folder.start(recipe, torch.device("cpu"), processes=1)
    folder.add_epoch(METRICS, TIMING)
    folder.add_epoch(METRICS._replace(epoch=2), TIMING)
    network = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
    folder.finish({"seed": 4}, network)

    assert load_recipe(folder.path / "recipe.toml") == recipe
    metrics = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in metrics] == [1, 2]
    assert metrics[0] == METRICS._asdict()
    machine, *epochs = [json.loads(line) for line in (folder.path / "timing.jsonl").read_text().splitlines()]
    assert machine["machine"]["threads"] == torch.get_num_threads()
    assert epochs[0] == TIMING._asdict()
    assert json.loads((folder.path / "result.json").read_text()) == {"seed": 4}

    other = nn.Conv2d(1, 2, 3)
    load_weights(folder.path, other)
    assert torch.equal(other.weight, network.weight)


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty: .*--overwrite"):
        RunFolder.plan(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_foreign_folder_is_not_taken_for_a_run_to_resume(tmp_path: Path) -> None:
    """Its checkpoints folder, of whatever program, would be deleted."""
    mine = tmp_path / "checkpoints" / "mine.pt"
    mine.parent.mkdir()
    mine.touch()
    with pytest.raises(ValueError, match="is not empty"):
        RunFolder.plan(tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert mine.exists()


def test_a_run_killed_before_its_recipe_was_written_may_be_resumed(tmp_path: Path) -> None:
    for name in ("timing.jsonl", ".recipe.toml.partial"):
        (tmp_path / name).write_text("half")
    RunFolder.plan(tmp_path, resume=True).close()


def test_overwriting_removes_checkpoints_before_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill between the two would leave a later run of another recipe to find them."""
    folder = RunFolder.plan(tmp_path)
    folder.start(Recipe(), torch.device("cpu"), processes=1)
    (tmp_path / "checkpoints").mkdir()

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        folder.start(Recipe(seed=1), torch.device("cpu"), processes=1)
    monkeypatch.undo()
    assert not (tmp_path / "checkpoints").exists()
    assert load_recipe(tmp_path / "recipe.toml") == Recipe()


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="the system has no limit on file sizes")
def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    folder = RunFolder.plan(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors could not be written: .*too large"):
            folder.finish({}, nn.Linear(64, 64))
        with pytest.raises(OSError, match=r"metrics\.jsonl could not be written: .*too large"):
            folder.add_epoch(METRICS, TIMING)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.close()
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl"}


def test_overwriting_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    for name in ("notes.txt", "metrics.jsonl", "result.json"):
        (tmp_path / name).write_text("old")
    folder = RunFolder.plan(tmp_path, overwrite=True)
    assert (tmp_path / "result.json").read_text() == "old"  # until the new run starts
    folder.start(Recipe(), torch.device("cpu"), processes=1)
    folder.close()
    assert {file.name for file in tmp_path.iterdir()} == {"notes.txt", "recipe.toml", "timing.jsonl"}


def test_all_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = RunFolder.plan(tmp_path / "run")
        folder.start(Recipe(), torch.device("cpu"), processes=1)
        folder.finish({}, nn.Linear(2, 2))
    finally:
        after = os.umask(before)
    assert after == 0o027
    assert {file.stat().st_mode & 0o777 for file in folder.path.iterdir()} == {0o640}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="run is a file"):
        RunFolder.plan(tmp_path / "run")


def test_a_number_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path).add_epoch(METRICS._replace(train_loss=float("nan")), TIMING)


def test_weights_that_are_missing_or_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no model.safetensors"):
        load_weights(tmp_path, nn.Linear(2, 2))
    folder = RunFolder(tmp_path)
    folder.finish({}, nn.Linear(2, 2))
    with pytest.raises(ValueError, match="does not fit the recipe's network"):
        load_weights(tmp_path, nn.Linear(3, 3))
    with pytest.raises(ValueError, match="does not fit the recipe's network"):
        load_weights(tmp_path, nn.Sequential(nn.Linear(2, 2)))
    folder.finish({}, nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))
    with pytest.raises(ValueError, match=r"size mismatch for 0\.weight: [^;\n]+ \(and 17 more\)$"):
        load_weights(tmp_path, nn.Sequential(*(nn.Linear(3, 3) for _ in range(9))))
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        load_weights(tmp_path, nn.Linear(2, 2))
