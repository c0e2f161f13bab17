"""`saligraft match-temperature`: k of T and T of k on one run, against maps that are read by hand."""

from pathlib import Path

import pytest
import torch
from tests.runs import train_tiny

from saligraft import feature_saliency, resize_saliency, salient_regions
from saligraft.cli import run
from saligraft.data import load
from saligraft.training import load_recipe
from saligraft.training.match_temperature import match_temperature


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("match") / "run"
    data = {"name": "shapes", "options": {"size": 16, "per_class": 4}, "pad": 0, "flip": False}
    train_tiny(folder, data=data, training={"epochs": 1, "batch_size": 40})
    return folder


def test_cells_are_those_of_the_maps_in_training_mode(trained: Path) -> None:
    """One batch of all images, uncropped, so that batch statistics do not depend on the order."""
    from saligraft.networks import build_network
    from saligraft.training.run_folder import load_weights

    network = build_network("wrn-10-1", 10)
    load_weights(trained, network)
    data = load("shapes", size=16, per_class=4)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in (data.mean, data.std))
    images = (data.images.float() / 255 - mean) / std
    with torch.no_grad():
        saliency = resize_saliency(feature_saliency(network.train().forward_features(images)), 8)
    expected = 0.5 * salient_regions(saliency, 0.1).sum().item() / 40
    found = match_temperature(trained, temperature=0.1)
    assert found.cells == pytest.approx(expected, abs=0.05)
    assert (found.images, found.map_size) == (40, (4, 4))


def test_k_of_a_temperature_and_temperature_of_that_k(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["match-temperature", str(trained)]) == 0
    shown = capsys.readouterr().out
    assert "maps         40 training images, 4x4 cells, resized to 8x8" in shown
    assert "temperature  0.2\n" in shown
    k = int(shown.rpartition("k = ")[2])
    assert run(["match-temperature", str(trained), "--k", str(k), "--images", "40"]) == 0
    solved = float(capsys.readouterr().out.partition("temperature  ")[2].split()[0])
    assert match_temperature(trained, temperature=solved).cells == pytest.approx(k, abs=0.3)


def test_mistakes_are_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([str(trained), "--k", "3", "--temperature", "0.1"], "give --temperature or --k, not both: got 0.1 and 3"),
        ([str(trained), "--k", "64"], "k must be between"),
        ([str(trained), "--temperature", "0"], "temperature must be a finite number > 0, got 0"),
        ([str(trained), "--grid", "1"], "--grid must be >= 2, got 1"),
        ([str(tmp_path)], "is not a run folder"),
    ):
        assert run(["match-temperature", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert load_recipe(trained / "recipe.toml").method.saliency.name is None
