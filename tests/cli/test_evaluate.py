"""`saligraft evaluate` prints a run's final numbers, and those under occlusion."""

import json
from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.training import SilentReporter, make_recipe, train


def test_the_final_numbers_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_recipe(
        {
            "data": {"options": {"size": 16, "per_class": 4}, "pad": 2},
            "network": {"name": "wrn-10-1"},
            "training": {"epochs": 1, "batch_size": 20},
        }
    )
    train(recipe, tmp_path / "run", reporter=SilentReporter())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert run(["evaluate", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"top-1 error  {result['top1_error']['final']:.2f} %" in shown
    assert f"top-5 error  {result['top5_error']['final']:.2f} %" in shown
    assert f"test loss    {result['test_loss']:.4f}" in shown

    assert run(["evaluate", str(tmp_path / "run"), "--set", "data.options.seed=1"]) == 0
    assert capsys.readouterr().out != shown

    assert run(["evaluate", str(tmp_path / "run"), "--occlude", "12.5", "--occlude", "25", "--occlude", "12.5"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "hidden"
    assert [row.split()[:3] for row in rows] == [["0", "%", "0/64"], ["12.5", "%", "8/64"], ["25", "%", "16/64"]]
    assert f"{result['top1_error']['final']:.2f} %" in rows[0]
    assert len({len(row) for row in (head, *rows)}) == 1

    assert run(["evaluate", str(tmp_path / "run"), "--occlude", "101"]) == 2
    assert "--occlude must lie in [0, 100], got 101" in capsys.readouterr().err
    assert run(["evaluate", str(tmp_path / "run"), "--reference", str(tmp_path / "run")]) == 2
    assert "--reference needs --occlude" in capsys.readouterr().err

    (tmp_path / "run" / "model.safetensors").unlink()
    assert run(["evaluate", str(tmp_path / "run")]) == 2
    assert "holds no model.safetensors" in capsys.readouterr().err
