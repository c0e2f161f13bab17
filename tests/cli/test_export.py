"""`saligraft export`, as typed."""

from pathlib import Path

import pytest
from tests.runs import train_tiny

from saligraft.cli import run


def test_the_file_is_named_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny(tmp_path / "run")
    assert run(["export", str(tmp_path / "run"), "--format", "torch-export"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == str(tmp_path / "run" / "model.pt2")
    assert shown[1].startswith("compared with the network: logits differ by at most ")
    assert run(["export", str(tmp_path / "run"), "--format", "tflite"]) == 2
    assert "'--format': 'tflite' is not one of 'onnx', 'torch-export'" in capsys.readouterr().err
