"""`saligraft train`, from recipe to run folder."""

import json
from pathlib import Path

import pytest

from saligraft.cli import run

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
    first = tmp_path / "runs" / "shapes-wrn-10-2-saliency-grafting-seed2"
    result = json.loads((first / "result.json").read_text())
    assert (result["seed"], result["method"], result["network"]) == (2, "saliency-grafting", "wrn-10-1")
    shown = capsys.readouterr()
    assert f"{result['top1_error']['final']:.2f}" in shown.out
    assert "report.html" in shown.out
    assert "epoch 1/1" in shown.err

    assert run(["train", str(first / "recipe.toml"), "--out", "again"]) == 0
    for name in ("recipe.toml", "metrics.jsonl", "result.json"):
        assert (first / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_an_earlier_run_is_refused_then_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "shapes-wrn-10-2", *TINY, "--out", str(tmp_path)]
    assert run(arguments) == 0
    capsys.readouterr()
    assert run(arguments) == 2
    assert "is not empty" in capsys.readouterr().err
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
    arguments = ["train", "shapes-wrn-10-2-saliency-grafting", *TINY, "--set", "optimizer.lr=1e30"]
    assert run([*arguments, "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("saligraft: error: training diverged in epoch 1 at batch ")
    assert last.endswith("; there is no checkpoint")


def test_a_choice_that_cannot_be_trained_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["method.name=random-choice", "method.choices.puzzlemix=0.5", "method.choices.saliency-grafting=0.5"]
    settings = [part for change in changes for part in ("--set", change)]
    assert run(["train", "shapes-wrn-10-2", *settings]) == 2
    message = capsys.readouterr().err
    assert "saliency.name must be given for methods whose own sources differ" in message
    assert message.count("\n") == 1
