"""Checkpoints: complete or skipped, pruned, and truthful about a full disk."""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from saligraft.training import checkpoint

TENSORS = {"weight": torch.arange(12.0).reshape(3, 4).t(), "count": torch.tensor(7)}


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def save(folder: Path, step: int, accelerator: Accelerator, **state: Any) -> Path:
    return checkpoint.save(folder, step, {"step": step, **state}, TENSORS, {"losses": torch.rand(2)}, accelerator)


def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path, accelerator: Accelerator) -> None:
    assert checkpoint.latest(tmp_path, accelerator) is None
    path = save(tmp_path, 12, accelerator, loss=0.1 + 0.2)
    found = checkpoint.latest(tmp_path, accelerator)
    assert found is not None
    assert found.path == path
    assert found.state["loss"] == 0.1 + 0.2
    assert found.shared().keys() == TENSORS.keys()
    assert all(torch.equal(found.shared()[name], value) for name, value in TENSORS.items())
    assert found.own(0)["losses"].shape == (2,)
    assert sorted(file.suffix for file in path.iterdir()) == [".json", ".safetensors", ".safetensors"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def misdate(path: Path) -> None:
    """Change one number and nothing of the form."""
    path.write_text(path.read_text().replace('"step": ', '"step": 1'))


def of_the_future(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def nest(path: Path) -> None:
    path.write_text("[" * 200_000)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("shared.safetensors", flip, "shared.safetensors does not match its checksum"),
        ("rank-0.safetensors", cut, "rank-0.safetensors does not match its checksum"),
        ("shared.safetensors", Path.unlink, "shared.safetensors cannot be read"),
        ("state.json", cut, "state.json cannot be read"),
        ("state.json", Path.unlink, "state.json cannot be read"),
        ("state.json", misdate, "state.json does not match its own checksum"),
        ("state.json", of_the_future, "state.json must have format 2, got 99"),
        ("state.json", nest, "state.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    name: str, damage: Callable[[Path], None], words: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    older, newer = (save(tmp_path, step, accelerator) for step in (9, 10))
    damage(newer / name)
    with pytest.warns(UserWarning, match=f"^checkpoint {newer} is damaged and skipped: .*{re.escape(words)}") as caught:
        newest = checkpoint.latest(tmp_path, accelerator)
    assert newest is not None
    assert newest.path == older
    assert len(caught) == 1
    damage(older / name)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match=r"all 2 checkpoints .* damaged"):
        checkpoint.latest(tmp_path, accelerator)


def test_a_half_written_checkpoint_is_none(tmp_path: Path, accelerator: Accelerator) -> None:
    """Each state in which a kill during saving can leave the folder."""
    older = save(tmp_path, 1, accelerator)
    newer = save(tmp_path, 2, accelerator)
    partial = newer.rename(newer.with_name(f".{newer.name}.partial"))
    for name in ("state.json", "shared.safetensors", "rank-0.safetensors"):
        (partial / name).unlink()
        found = checkpoint.latest(tmp_path, accelerator)
        assert found is not None
        assert found.path == older
    assert save(tmp_path, 2, accelerator) == newer
    checkpoint.prune(tmp_path, keep=2, newest=newer)
    assert sorted(path.name for path in older.parent.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("moment", ["_discard", "rename_durably"])
def test_a_kill_while_a_step_is_replaced_loses_nothing(
    moment: str, tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the removal of the only checkpoint and the renaming of the one that takes its place."""
    notes = save(tmp_path, 5, accelerator, attempt=1) / "notes.txt"
    notes.write_text("mine")

    discard = checkpoint._discard

    def kill(path: Path, *_: Path) -> None:
        if moment == "_discard":
            discard(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, moment, kill)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 5, accelerator, attempt=2)
    monkeypatch.undo()
    found = checkpoint.latest(tmp_path, accelerator)
    assert found is not None
    assert found.state["attempt"] == 2
    assert [path.name for path in checkpoint.paths(tmp_path)] == ["step-00000005"]
    assert notes.read_text() == "mine"


def test_damaged_checkpoints_do_not_crowd_out_intact_ones(tmp_path: Path, accelerator: Accelerator) -> None:
    older, damaged = (save(tmp_path, step, accelerator) for step in (10, 30))
    cut(damaged / "state.json")
    newest = save(tmp_path, 13, accelerator)
    checkpoint.prune(tmp_path, keep=1, newest=newest)
    assert checkpoint.paths(tmp_path) == [newest]
    assert not older.exists()


def test_a_state_that_does_not_fit_is_skipped(tmp_path: Path, accelerator: Accelerator) -> None:
    older, newer = (save(tmp_path, step, accelerator) for step in (9, 10))

    def check(state: Mapping[str, Any]) -> None:
        if state["step"] == 10:
            raise ValueError("lines are missing")

    with pytest.warns(UserWarning, match=f"^checkpoint {newer} is damaged and skipped: lines are missing$"):
        newest = checkpoint.latest(tmp_path, accelerator, check)
    assert newest is not None
    assert newest.path == older


FOREIGN = (
    "mine.pt",
    "step-100.ckpt",
    "step-best/state.json",
    "step-100/state.json",
    "step-0000004x/shared.safetensors",
    ".step-mine.partial/a.txt",
    ".step-best.old/state.json",
    "step-00000007/notes.txt",  # beside what the checkpoint of this name is made of
    "step-00000099/model.safetensors",
)


@pytest.mark.parametrize("all_of_them", [False, True])
def test_what_a_user_puts_among_checkpoints_is_neither_taken_for_one_nor_deleted(
    all_of_them: bool, tmp_path: Path, accelerator: Accelerator
) -> None:
    own = [save(tmp_path, step, accelerator) for step in (4, 7, 8)]
    place, elsewhere = own[0].parent, tmp_path / "elsewhere" / "shared.safetensors"
    for file in (*(place / name for name in FOREIGN), elsewhere):
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    (place / "step-00000005").symlink_to(elsewhere.parent)
    assert checkpoint.paths(tmp_path) == [own[0], place / "step-00000005", *own[1:]]
    if all_of_them:
        checkpoint.remove_all(tmp_path)
    else:
        checkpoint.prune(tmp_path, 1, newest=own[-1])
    left = {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert {name: text for name, text in left.items() if place / name not in own[-1].glob("*")} == dict.fromkeys(
        FOREIGN, b"mine"
    )
    assert own[-1].exists() is not all_of_them
    assert elsewhere.read_text() == "mine"


def test_a_checkpoint_takes_over_what_a_user_put_into_the_one_it_replaces(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    path = save(tmp_path, 5, accelerator)
    (path / "mine").mkdir()
    (path / "mine" / "notes.txt").write_text("mine")
    for attempt in (2, 3):
        assert save(tmp_path, 5, accelerator, attempt=attempt) == path
        assert (path / "mine" / "notes.txt").read_text() == "mine"
        found = checkpoint.latest(tmp_path, accelerator)
        assert found is not None
        assert found.state["attempt"] == attempt


def test_a_user_s_file_that_a_kill_left_under_a_hidden_name_comes_back(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    hidden = tmp_path / "checkpoints" / ".step-00000005.old"
    hidden.mkdir(parents=True)
    (hidden / "notes.txt").write_text("mine")
    path = save(tmp_path, 5, accelerator)
    for _ in range(2):
        checkpoint.remove_leftovers(tmp_path)
        assert (path / "notes.txt").read_text() == "mine"
        checkpoint.remove_all(tmp_path)
    assert list(hidden.parent.iterdir()) == [path]
    assert [file.name for file in path.iterdir()] == ["notes.txt"]


def test_what_kills_left_of_checkpoints_is_deleted_and_no_longer_in_the_way(
    tmp_path: Path, accelerator: Accelerator
) -> None:
    for step, ending in ((1, "old"), (2, "partial")):
        path = save(tmp_path, step, accelerator)
        (path / ".tmpCyKt96").touch()  # by safetensors
        path.rename(path.with_name(f".{path.name}.{ending}"))
    newest = save(tmp_path, 1, accelerator)
    newest = save(tmp_path, 1, accelerator)
    checkpoint.prune(tmp_path, 1, newest)
    assert list(newest.parent.iterdir()) == [newest]
    checkpoint.remove_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [1, 3, 9])
def test_old_checkpoints_are_pruned(keep: int, tmp_path: Path, accelerator: Accelerator) -> None:
    for step in (99_999_998, 3, 100_000_001, 20, 7):  # more digits than the names are padded to
        save(tmp_path, step, accelerator)
    checkpoint.prune(tmp_path, keep, newest=checkpoint.paths(tmp_path)[-1])
    steps = [int(path.name.removeprefix("step-")) for path in checkpoint.paths(tmp_path)]
    assert steps == [3, 7, 20, 99_999_998, 100_000_001][-keep:]


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="the system has no limit on file sizes")
def test_a_full_disk_stops_the_run_with_one_line_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    """A limit on file sizes fails a write as a full disk does."""
    recipe = ["--set", "data.options.size=16", "--set", "data.options.per_class=4", "--set", "data.pad=2"]
    recipe += ["--set", "network.name=wrn-10-1", "--set", "training.batch_size=20", "--set", "training.epochs=3"]
    program = (
        "import resource, sys; from saligraft.cli import run; from saligraft.training import checkpoint\n"
        "save = checkpoint.save\n"
        "def limited(folder, step, *rest):\n"
        "    if step == 4: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))\n"
        "    return save(folder, step, *rest)\n"
        "checkpoint.save = limited\n"
        "sys.exit(run(sys.argv[1:]))"
    )
    arguments = ["train", "shapes-wrn-10-2", *recipe, "--out", str(tmp_path / "run")]
    ended = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("saligraft: error: checkpoint ")
    assert last.endswith("; the last good one is step-00000002")
    assert "Traceback" not in ended.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    resumed = [sys.executable, "-m", "saligraft", "train", str(tmp_path / "run"), "--resume"]
    assert subprocess.run(resumed, capture_output=True, check=False).returncode == 0
