"""Exported networks: the same logits at any batch size, with class names and normalisation inside."""

import json
from pathlib import Path

import pytest
import torch
from tests.runs import train_tiny
from torch import nn

from saligraft.training import export_run, load_run
from saligraft.training.saved_run import SavedRun

FACTS = {"network": "wrn-10-1", "data": "shapes", "image_shape": [3, 16, 16], "test_crop": 1.0, "keep_ratio": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("run")
    train_tiny(folder, training={"epochs": 1, "batch_size": 20, "channels_last": True})
    return load_run(folder)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(7))


def check_facts(facts: dict[str, object], run: SavedRun) -> None:
    assert facts.items() >= FACTS.items()
    assert facts["classes"] == list(run.classes)
    assert (facts["mean"], facts["std"]) == (list(run.inputs.mean), list(run.inputs.std))


def test_onnx(run: SavedRun, images: torch.Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path, difference = export_run(run, "onnx", tmp_path / "mine.onnx")
    assert path == tmp_path / "mine.onnx"
    assert difference is not None
    assert difference < 1e-5
    session = onnxruntime.InferenceSession(str(path))
    [logits] = session.run(["logits"], {"images": images.numpy()})
    with torch.no_grad():
        assert (run.network(images) - torch.from_numpy(logits)).abs().max() < 1e-5
    check_facts(json.loads(session.get_modelmeta().custom_metadata_map["saligraft"]), run)


def test_torch_export(run: SavedRun, images: torch.Tensor) -> None:
    path, difference = export_run(run, "torch-export")
    assert path == run.folder / "model.pt2"
    assert difference is not None
    extra = {"saligraft.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    with torch.no_grad():
        assert (run.network(images) - program(images)).abs().max() < 1e-5
    check_facts(json.loads(extra["saligraft.json"]), run)


def test_what_cannot_be_exported_leaves_no_file(run: SavedRun, tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images if images.sum().item() > 0 else -images

    object.__setattr__(run, "network", Branch())
    with pytest.raises(ValueError, match=r"torch\.export cannot trace Branch") as raised:
        export_run(run, "torch-export", tmp_path / "a.pt2")
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="there is no folder"):
        export_run(run, "onnx", tmp_path / "nowhere" / "a.onnx")
    with pytest.raises(ValueError, match="format must be one of 'onnx', 'torch-export'; got 'tflite'"):
        export_run(run, "tflite")
