"""`saligraft export`, as typed."""

from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.training import SilentReporter, make_recipe, train


def test_the_file_is_named_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = {"options": {"size": 16, "per_class": 2}, "pad": 2}
    table = {"data": data, "network": {"name": "wrn-10-1"}, "training": {"epochs": 1, "batch_size": 10}}
    train(make_recipe(table), tmp_path / "run", reporter=SilentReporter())
    assert run(["export", str(tmp_path / "run"), "--format", "torch-export"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == str(tmp_path / "run" / "model.pt2")
    assert shown[1].startswith("compared with the network: logits differ by at most ")
    assert run(["export", str(tmp_path / "run"), "--format", "tflite"]) == 2
    assert "'--format': 'tflite' is not one of 'onnx', 'torch-export'" in capsys.readouterr().err
