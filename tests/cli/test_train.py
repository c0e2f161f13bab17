"""`saligraft train`, from recipe to run folder."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.data import download
from saligraft.training import SilentReporter, trainer

TINY = [
    "--set", "data.options.size=16", "--set", "data.options.per_class=4", "--set", "data.pad=2",
    "--set", "network.name=wrn-10-1", "--set", "training.epochs=1", "--set", "training.batch_size=20",
    "--set", "training.warmup_epochs=0",
]  # fmt: skip


def test_a_bundled_recipe_trains_and_its_own_recipe_trains_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "shapes-wrn-10-2-saliency-grafting", *TINY, "--seed", "2"]) == 0
    first = tmp_path / "runs" / "shapes-wrn-10-1-saliency-grafting-seed2"
    result = json.loads((first / "result.json").read_text())
    assert (result["seed"], result["method"], result["network"]) == (2, "saliency-grafting", "wrn-10-1")
    shown = capsys.readouterr()
    assert f"{result['top1_error']['final']:.2f}" in shown.out
    assert "report.html" in shown.out
    assert "images:     40 trained on, 40 tested on\n" in shown.out
    assert "epoch 1/1" in shown.err

    assert run(["train", str(first / "recipe.toml"), "--out", "again"]) == 0
    for name in ("recipe.toml", "metrics.jsonl", "result.json"):
        assert (first / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_method_picks_the_row_of_its_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "shapes-wrn-10-2", "--method", "cutmix", *TINY]) == 0
    folder = tmp_path / "runs" / "shapes-wrn-10-1-cutmix-seed0"
    assert 'per = "batch"' in (folder / "recipe.toml").read_text()  # not the method's default
    assert run(["train", str(folder), "--method", "mixup", "--resume"]) == 2
    assert "--method must be left out when a run folder is resumed, got mixup" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["shapes-wrn-10-2"], "shapes-wrn-10-2-seed0"),
        (["shapes-wrn-10-2", "--method", "cutmix", "--seed", "3"], "shapes-wrn-10-2-cutmix-seed3"),
        (["shapes-wrn-10-2", "--set", "method.name=cutout+mixup"], "shapes-wrn-10-2-cutout+mixup-seed0"),
        (["shapes-wrn-10-2", "--set", "data.name=folder:my/photos"], "photos-wrn-10-2-seed0"),
        (
            ["shapes-wrn-10-2", "--set", "network.name=timm:resnet18", "--method", "mixup"],
            "shapes-timm-resnet18-mixup-seed0",
        ),
        (["runs/mine-seed4/recipe.toml"], "mine-again-seed0"),
    ],
)
def test_runs_of_different_recipes_get_different_folders(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotTrainedError(Exception):
        pass

    def stop(_recipe: object, folder: Path, **_: object) -> None:
        raise NotTrainedError(folder)

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine-seed4").mkdir(parents=True)
    (tmp_path / "runs" / "mine-seed4" / "recipe.toml").write_text("")
    monkeypatch.setattr("saligraft.training.train", stop)
    with pytest.raises(NotTrainedError, match=re.escape(str(Path("runs") / name)) + "$"):
        run(["train", *arguments])


def test_a_run_folder_is_not_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f3").mkdir()
    (tmp_path / "f3" / "recipe.toml").write_text("")
    assert run(["train", "f3"]) == 2
    message = capsys.readouterr().err
    assert "saligraft train f3 --resume" in message
    assert "saligraft train f3/recipe.toml" in message


def test_an_earlier_run_is_refused_then_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "shapes-wrn-10-2", *TINY, "--out", str(tmp_path)]
    assert run(arguments) == 0
    capsys.readouterr()
    assert run(arguments) == 2
    assert "is not empty: choose another (--out DIR), overwrite it" in capsys.readouterr().err
    assert run([*arguments, "--overwrite"]) == 0


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["train", "shapes-wrn-10-2", *TINY, "--out", str(tmp_path / "file" / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_broken_toml_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.toml").write_text("[training]\nepochs = = 3\n")
    assert run(["train", str(tmp_path / "r.toml")]) == 2
    message = capsys.readouterr().err
    assert "r.toml is not valid TOML" in message
    assert "line 2" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "method", "written"),
    [
        (["method.name=cutout+mixup", "method.options.mixup.alpha=0.2"], "cutout+mixup", "alpha = 0.2"),
        (
            ["method.name=random-choice", "method.choices.cutmix=0.5", "method.choices.saliency-grafting=0.5"],
            "random-choice",
            "saliency-grafting = 0.5",
        ),
        (["method.name=saliency-grafting", "method.saliency.name=cam"], "saliency-grafting", 'name = "cam"'),
        (["network.options.drop_block.block_size=3"], "none", "block_size = 3"),
    ],
)
def test_settings_reach_compositions_choices_and_sources(
    settings: list[str], method: str, written: str, tmp_path: Path
) -> None:
    changes = [part for setting in settings for part in ("--set", setting)]
    assert run(["train", "shapes-wrn-10-2", *TINY, *changes, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == method
    assert written in (tmp_path / "run" / "recipe.toml").read_text()


def test_a_run_that_diverges_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "shapes-wrn-10-2-saliency-grafting", *TINY, "--set", "optimizer.lr=1e6"]
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("saligraft: error: training diverged in epoch 1 (")
    assert last.endswith("; there is no checkpoint")


def test_a_choice_that_cannot_be_trained_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["method.name=random-choice", "method.choices.puzzlemix=0.5", "method.choices.saliency-grafting=0.5"]
    settings = [part for change in changes for part in ("--set", change)]
    assert run(["train", "shapes-wrn-10-2", *settings]) == 2
    message = capsys.readouterr().err
    assert "saliency.name must be given for methods whose own sources differ" in message
    assert message.count("\n") == 1


class Interrupting(SilentReporter):
    """Sends this process a signal at the first step."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def step(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_says_how_to_resume(
    number: signal.Signals,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "my run"
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "make_reporter", lambda: Interrupting(number))
        assert run(["train", "shapes-wrn-10-2", *TINY, "--out", str(folder)]) == code
    messages = capsys.readouterr().err.splitlines()
    assert messages == [f"saligraft: stopped by {number.name}; resume with: saligraft train '{folder}' --resume"]
    *_, command = messages[0].partition("resume with: saligraft ")
    assert run(shlex.split(command)) == 0
    assert "resumed after batch 1 in epoch 1" in capsys.readouterr().err
    assert (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "1"], "--seed must be left out when a run folder is resumed, got 1"),
        (["--set", "training.epochs=2"], "--set must be left out when a run folder is resumed"),
        ([], "is not a run folder: it holds no recipe.toml"),
    ],
)
def test_a_run_folder_is_resumed_as_it_is(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(tmp_path), "--resume", *flags]) == 2
    assert words in capsys.readouterr().err


STOPPED_AND_RESUMED = """
import os, signal
from saligraft.cli import main
from saligraft.training.progress import PlainReporter

broken = os.dup(2)
step, PlainReporter.step = PlainReporter.step, lambda _: os.kill(os.getpid(), signal.SIGHUP)
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 129
PlainReporter.step = step
os.dup2(broken, 2)  # the first run has replaced it
main()
"""


def test_a_run_continues_and_is_saved_after_a_broken_pipe(tmp_path: Path) -> None:
    """In a process of its own: Python writes out its streams once more as it exits."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", STOPPED_AND_RESUMED, "train", "shapes-wrn-10-2", *TINY, "--out", "run", "--resume"]
    ended = subprocess.run(command, stderr=writer, stdout=writer, cwd=tmp_path, check=False)  # 2>&1 | head
    os.close(writer)
    assert ended.returncode == 0
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"step-00000001", "step-00000002"}
    assert (tmp_path / "run" / "report.html").exists()


def test_resume_starts_a_run_if_there_is_none(tmp_path: Path) -> None:
    assert run(["train", "shapes-wrn-10-2", *TINY, "--out", str(tmp_path / "run"), "--resume"]) == 0


def test_a_folder_without_a_run_is_not_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "runs/nope", "--resume"]) == 2
    message = "no run folder runs/nope; to start one: saligraft train RECIPE --out runs/nope --resume"
    assert capsys.readouterr().err == f"saligraft: error: {message}\n"


def test_a_plan_is_printed_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", "shapes-wrn-10-2-saliency-grafting", *TINY, "--plan"]) == 0
    assert "images/s" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_plan_of_a_choice_adds_up_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    choice = ["--best-of", "training.batch_size=5,10", "--seeds", "0,1,2", "--plan"]
    assert run(["train", "shapes-wrn-10-2", *TINY, *choice]) == 0
    shown = capsys.readouterr().out
    assert shown.count("estimated time") == 2
    assert "batch_size = 5, seed 0\n" in shown
    assert "6 runs (2 values, 3 seeds each): " in shown


def test_download_comes_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(download, "download", lambda name, root: asked.append((name, root)))
    arguments = [
        "train",
        "cifar100-wrn-10-2",
        "--set",
        f"data.root={tmp_path}",
        "--download",
        "--out",
        str(tmp_path / "run"),
    ]
    assert run(arguments) == 2  # still no files there
    assert asked == [("cifar100", str(tmp_path))]


def test_the_best_value_over_several_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    choice = ["train", "shapes-wrn-10-2", *TINY, "--best-of", "optimizer.lr=0.01,0.001"]
    assert run([*choice, "--seeds", "0,3"]) == 0
    shown, progress = capsys.readouterr()
    folder = tmp_path / "runs" / "shapes-wrn-10-1-seeds0-3"
    table = json.loads((folder / "best.json").read_text())
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        f"lr-{value}-seed{seed}" for value in ("0.01", "0.001") for seed in (0, 3)
    }
    assert f"saligraft compare {folder.relative_to(tmp_path)}" in shown
    assert "lr = 0.001, seed 3: 1 epoch" in progress
    mean = table["runs"][table["best"]]["mean_top1_error"]
    assert f"best optimizer.lr: {table['best']} ({mean:.2f} % top-1 error, mean of 2 seeds)" in shown
    for arguments, words in (
        ([*choice, "--seeds", "0,x"], "--seeds must be numbers such as 0,1,2, got '0,x'"),
        ([*choice, "--seeds", "1,1"], "seeds must differ, got 1, 1"),
        ([*choice, "--seeds", "0,1", "--seed", "2"], "--seeds needs --best-of, and replaces --seed"),
        ([*choice, "--plan", "--seeds", "0,x"], "--seeds must be numbers such as 0,1,2, got '0,x'"),
        (["train", "shapes-wrn-10-2", "--seeds", "0,1"], "--seeds needs --best-of, and replaces --seed"),
    ):
        assert run(arguments) == 2
        assert words in capsys.readouterr().err
