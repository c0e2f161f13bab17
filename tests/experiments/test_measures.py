"""Measurements of a finished run."""

from pathlib import Path

import torch

from saligraft.experiments.measures import training
from saligraft.training import SilentReporter, load_recipe, train
from saligraft.training.setup import load_split

SMALL = [
    "data.options.size=16",
    "data.options.per_class=4",
    "data.pad=2",
    "data.per_class_subset=3",
    "network.name=wrn-10-1",
]


def test_the_training_error_is_that_of_the_images_trained_on(tmp_path: Path) -> None:
    recipe = load_recipe(
        "shapes-wrn-10-2", [*SMALL, "training.epochs=2", "training.batch_size=10", "optimizer.lr=0.001"]
    )
    network = train(recipe, tmp_path / "run", reporter=SilentReporter()).network
    data = load_split(recipe, "train")
    images = torch.stack([data[place][0] for place in range(len(data))])
    with torch.no_grad():
        wrong = (network(images).argmax(dim=1) != data.labels).float().mean()
    assert len(data) == 30
    assert abs(training(tmp_path / "run")["top1_error"] - 100 * float(wrong)) < 1e-4
