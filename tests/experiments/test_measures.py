"""Measurements of a finished run."""

from pathlib import Path

import torch

from saligraft.experiments.measures import label_course, label_truth, maps, training
from saligraft.training import SilentReporter, load_recipe, load_run, train
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
    assert abs(training(load_run(tmp_path / "run"))["top1_error"] - 100 * float(wrong)) < 1e-4


def test_maps_are_those_of_the_trained_network_though_it_was_grafted_by_a_frozen_one(tmp_path: Path) -> None:
    settings = [*SMALL, "training.epochs=1", "training.batch_size=10", "method.options.grids=[4]"]
    frozen = ["method.saliency.network.name=resnet-10-small", "method.saliency.layer=stages.3"]
    recipe = load_recipe("shapes-wrn-10-2-saliency-grafting", [*settings, *frozen, "training.warmup_epochs=0"])
    train(recipe, tmp_path / "run", reporter=SilentReporter())
    shares = maps(load_run(tmp_path / "run"))
    assert 0 < shares["grafted cells, 4×4"] < 16


def test_the_course_of_label_truth_ends_with_that_of_the_finished_run(tmp_path: Path) -> None:
    settings = [
        "training.epochs=4",
        "training.keep_checkpoints=3",
        "training.batch_size=10",
        "method.options.grids=[4]",
    ]
    recipe = load_recipe("shapes-wrn-10-2-saliency-grafting", [*SMALL, *settings, "training.warmup_epochs=1"])
    train(recipe, tmp_path / "run", reporter=SilentReporter())
    run = load_run(tmp_path / "run")
    course, final = label_course(run), label_truth(run)
    assert {place.rpartition(", ")[2] for place in course} == {"50 %", "75 %", "100 %"}
    for label in ("area", "calibrated"):
        assert course[f"{label} labels, 100 %"] == final[f"saliency-grafting, error of {label} labels"]
    assert course["calibrated labels, 50 %"] != course["calibrated labels, 100 %"]
    gap = final["saliency-grafting, error of calibrated labels"] - final["saliency-grafting, error of area labels"]
    assert abs(final["saliency-grafting, calibrated minus area"] - gap) < 1e-9
