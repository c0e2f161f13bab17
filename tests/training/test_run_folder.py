"""The run folder: made once, never overwritten unasked."""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import load_recipe
from saligraft.io import files
from saligraft.reports.page import write_page
from saligraft.training import run_folder
from saligraft.training.results import EpochMetrics, EpochTiming
from saligraft.training.run_folder import History, RunFolder, load_weights

METRICS = EpochMetrics(1, 0.1, 1.5, 1.25, 40.0, 10.0)
TIMING = EpochTiming(1, 2.0, 50.0, 0.5, 1.9)
CPU = torch.device("cpu")


def test_a_folder_holds_what_was_written(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path / "a" / "b")
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


def started(path: Path, recipe: Recipe | None = None) -> RunFolder:
    folder = RunFolder.open(path)
    folder.start(recipe or Recipe(), CPU, processes=1)
    return folder


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.parametrize(
    "file", ["notes.txt", "recipe.toml", "model.safetensors", "checkpoints/mine.pt", "saligraft/mine.py", "run.json"]
)
def test_a_folder_that_no_run_made_is_refused_with_what_it_holds(
    file: str, options: dict[str, bool], tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text('{"format": "mine", "run": "1", "files": []}')
    with pytest.raises(
        ValueError, match=f"is not empty and has no valid run.json of a run, but {Path(file).parts[0]}: choose another$"
    ):
        RunFolder.open(tmp_path, **options)
    assert names(tmp_path) == {file}


@pytest.mark.parametrize("content", ["", "4711"])
def test_a_lock_file_in_a_folder_that_no_run_made_stays(content: str, tmp_path: Path) -> None:
    """Other programs use the name too, for empty files and for process ids."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".lock").write_text(content)
    with pytest.raises(ValueError, match="is not empty"):
        RunFolder.open(tmp_path, overwrite=True)
    assert (tmp_path / ".lock").read_text() == content
    (tmp_path / "notes.txt").unlink()
    RunFolder.open(tmp_path).close()  # beside nothing else, it is what a killed run left
    assert names(tmp_path) == set()


def test_of_many_names_some_are_listed(tmp_path: Path) -> None:
    for name in "hgfedcba":
        (tmp_path / name).touch()
    with pytest.raises(
        ValueError, match=r"has no valid run\.json of a run, but a, b, c, d, e and 3 more: choose another$"
    ):
        RunFolder.open(tmp_path)


def test_a_run_is_refused_unless_it_is_to_be_overwritten_or_resumed(tmp_path: Path) -> None:
    started(tmp_path).close()
    with pytest.raises(ValueError, match=r"is not empty: .*--overwrite.* or resume its run \(--resume\)$"):
        RunFolder.open(tmp_path)
    for options in ({"resume": True}, {"overwrite": True}):
        RunFolder.open(tmp_path, **options).close()
    with pytest.raises(ValueError, match="overwrite and resume cannot be combined"):
        RunFolder.open(tmp_path, overwrite=True, resume=True)


@pytest.mark.parametrize(
    "damage", ["", "[", "[" * 200_000, "3", '"x"', '{"format": "saligraft run 1", "run": "../..", "files": []}']
)
def test_a_damaged_marker_proves_nothing(damage: str, tmp_path: Path) -> None:
    started(tmp_path).close()
    (tmp_path / "run.json").write_text(damage)
    with pytest.raises(
        ValueError, match=r"has no valid run\.json of a run, but recipe\.toml, run\.json, timing\.jsonl"
    ):
        RunFolder.open(tmp_path, overwrite=True)


def test_a_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    folder = started(tmp_path)
    ids = [json.loads((tmp_path / "run.json").read_text())["run"]]
    folder.start(Recipe(), CPU, processes=1)
    ids.append(json.loads((tmp_path / "run.json").read_text())["run"])
    assert len({*ids}) == 2
    assert all(len(each) == 32 for each in ids)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_run_killed_in_its_first_moments_may_be_started_again(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def killed(path: Path, text: str) -> None:
        if len(done) == writes:
            raise Killed
        files.write_atomic(path, text)
        done.append(path.name)

    folder = RunFolder.open(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_atomic", killed)
        with pytest.raises(Killed):
            folder.start(Recipe(), CPU, processes=1)
    folder.close()
    assert done == ["run.json", "recipe.toml", "run.json"][:writes]
    folder = RunFolder.open(tmp_path, resume=writes > 1)
    folder.start(Recipe(), CPU, processes=1)
    assert names(tmp_path) - {".lock"} == {"run.json", "recipe.toml", "timing.jsonl"}


def test_what_a_user_puts_beside_a_mere_marker_is_the_user_s(tmp_path: Path) -> None:
    """File names belong to a run only once its recipe is written."""
    (tmp_path / "run.json").write_text(json.dumps({"format": "saligraft run 1", "run": "0" * 32, "files": []}))
    RunFolder.open(tmp_path).close()
    mine = {"model.safetensors", "recipe.toml", "checkpoints/step-00000001/state.json"}
    for name in mine:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    for options in ({"resume": True}, {"overwrite": True}):
        folder = RunFolder.open(tmp_path, **options)
        with pytest.raises(ValueError, match=r"holds recipe\.toml, model\.safetensors of no run: choose another"):
            folder.start(Recipe(), CPU, processes=1)
        folder.close()
    assert names(tmp_path) == mine | {"run.json"}
    assert {(tmp_path / name).read_text() for name in mine} == {"mine"}


def test_what_a_kill_left_of_a_deleted_checkpoint_goes_with_the_next_resume(tmp_path: Path) -> None:
    """Of the last one of a run, which prunes no more."""
    folder = started(tmp_path)
    left = tmp_path / "checkpoints" / ".step-00000002.old" / "shared.safetensors"
    left.parent.mkdir(parents=True)
    left.touch()
    folder.resume(Recipe(), History([], []), CPU, processes=1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_overwriting_removes_checkpoints_before_their_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill between the two would leave a later run of another recipe to find them."""
    folder = started(tmp_path)
    state = tmp_path / "checkpoints" / "step-00000001" / "state.json"
    state.parent.mkdir(parents=True)
    state.touch()
    unlink = Path.unlink

    def kill(path: Path, missing_ok: bool = False) -> None:
        if path.name == "recipe.toml":
            raise Killed
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(Killed):
        folder.start(Recipe(seed=1), CPU, processes=1)
    monkeypatch.undo()
    assert not (tmp_path / "checkpoints").exists()
    assert load_recipe(tmp_path / "recipe.toml") == Recipe()


def test_overwriting_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    folder = started(tmp_path)
    folder.add_epoch(METRICS, TIMING)
    folder.finish({}, nn.Linear(2, 2))
    with folder.record_new_files():
        for name in ("saligraft/7/hparams.yml", "saligraft/events.1"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    folder.close()
    mine = {"notes.txt", "saligraft/mine.py", "checkpoints/mine.pt", "wandb/run.log"}
    for name in mine:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = names(tmp_path)
    folder = RunFolder.open(tmp_path, overwrite=True)
    assert names(tmp_path) - {".lock"} == before  # until the new run starts
    folder.start(Recipe(), CPU, processes=1)
    folder.close()
    assert names(tmp_path) == mine | {"run.json", "recipe.toml", "timing.jsonl"}
    assert not (tmp_path / "saligraft" / "7").exists()


def test_a_marker_reaches_no_further_than_its_folder(tmp_path: Path) -> None:
    """Be it from elsewhere, or a folder that the user has since replaced by a link."""
    folder = started(tmp_path / "run")
    outside = [tmp_path / "a.txt", tmp_path / "linked" / "b.txt", tmp_path / "run" / "full" / "c.txt"]
    for file in outside:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "linked")
    files = ["../a.txt", str(tmp_path / "a.txt"), "link/b.txt", "full", "", ".", ".."]
    assert folder.marker is not None
    (tmp_path / "run" / "run.json").write_text(json.dumps({**folder.marker, "files": files}))
    folder.close()
    folder = RunFolder.open(tmp_path / "run", overwrite=True)
    folder.remove()
    assert all(file.exists() for file in outside)


def start(folder: RunFolder) -> None:
    folder.start(Recipe(), CPU, processes=1)


def finish(folder: RunFolder) -> None:
    folder.finish({"seed": 1}, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("file", "act", "written"),
    [
        ("run.json", start, []),
        ("recipe.toml", start, []),
        ("timing.jsonl", start, ["recipe.toml"]),
        ("timing.jsonl", lambda folder: folder.resume(Recipe(), History([METRICS], [TIMING]), CPU, processes=1), []),
        ("metrics.jsonl", lambda folder: folder.resume(Recipe(), History([METRICS], [TIMING]), CPU, processes=1), []),
        ("metrics.jsonl", lambda folder: folder.add_epoch(METRICS, TIMING), []),
        ("model.safetensors", finish, []),
        ("result.json", finish, ["model.safetensors"]),
        ("report.html", lambda folder: write_page(folder.path / "report.html", "base.html", title=""), []),
    ],
)
def test_a_full_disk_names_the_file_and_leaves_nothing_half_written(
    file: str,
    act: Callable[[RunFolder], object],
    written: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().name == file:
            raise OSError(28, "No space left on device")

    folder = RunFolder.open(tmp_path)
    if act is not start:
        start(folder)
    before = names(tmp_path) | set(written) | ({"run.json"} if file != "run.json" else set())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=rf"^{tmp_path / file} could not be written: No space left on device$"):
            act(folder)
    assert names(tmp_path) == before
    assert not list(tmp_path.rglob("*.partial"))
    folder.close()
    folder = RunFolder.open(tmp_path, resume=True)
    start(folder)
    folder.add_epoch(METRICS, TIMING)


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="the system has no limit on file sizes")
def test_a_disk_that_fills_in_the_middle_of_a_file_leaves_no_part_of_it(tmp_path: Path) -> None:
    folder = RunFolder.open(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        with pytest.raises(OSError, match=r"run\.json could not be written: .*too large"):
            folder.start(Recipe(), CPU, processes=1)
        with pytest.raises(OSError, match=r"model\.safetensors could not be written: .*too large"):
            folder.finish({}, nn.Linear(64, 64))
        with pytest.raises(OSError, match=r"metrics\.jsonl could not be written: .*too large"):
            folder.add_epoch(METRICS, TIMING)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_all_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = RunFolder.open(tmp_path / "run")
        folder.start(Recipe(), torch.device("cpu"), processes=1)
        folder.finish({}, nn.Linear(2, 2))
    finally:
        after = os.umask(before)
    assert after == 0o027
    assert {file.stat().st_mode & 0o777 for file in folder.path.iterdir()} == {0o640}


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="run is a file"):
        RunFolder.open(tmp_path / "run")


def test_a_number_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path).add_epoch(METRICS._replace(train_loss=float("nan")), TIMING)


def shared_tensors(seed: int) -> nn.Module:
    """A batch norm under two names, two weights in one memory, and a buffer that shows part of another."""
    torch.manual_seed(seed)
    norm, one, other = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)
    norm.num_batches_tracked.fill_(seed)
    other.weight.data = one.weight.data
    one.register_buffer("part", other.bias.detach()[:2])
    return nn.Sequential(norm, one, norm, other)


def test_tensors_that_share_memory_are_saved_and_loaded(tmp_path: Path) -> None:
    saved, loaded = shared_tensors(1), shared_tensors(2)
    RunFolder(tmp_path).finish({}, saved)
    load_weights(tmp_path, loaded)
    for name, value in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


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
