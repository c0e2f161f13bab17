"""A run's parts: what a recipe says reaches them, and batches are counted over phases."""

from typing import Any

import pytest

from saligraft.data import load
from saligraft.data.loader import InMemoryLoader
from saligraft.losses import mixed_cross_entropy
from saligraft.step import GraftingStep
from saligraft.training import make_recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.session import Stage, Timeline, prepare


def test_label_smoothing_copies_and_warm_up_reach_the_step(tiny_table: dict[str, Any]) -> None:
    training = {**tiny_table["training"], "copies": 3, "label_smoothing": 0.2, "warmup_epochs": 1}
    recipe = make_recipe({**tiny_table, "method": {"name": "saliency-grafting"}, "training": training})
    session = prepare(recipe, make_accelerator(recipe))
    assert isinstance(session.step, GraftingStep)
    assert session.step.copies == 3
    assert session.step.warmup_steps == session.timeline.first_batch(1) == 2
    assert session.step.criterion.func is mixed_cross_entropy
    assert session.step.criterion.keywords == {"label_smoothing": 0.2}


def test_batches_are_counted_over_stages_of_different_length() -> None:
    data = load("shapes", size=16, per_class=4)
    loaders = [InMemoryLoader(data, batch_size=size, train=True) for size in (20, 10)]
    stages = [Stage(first_epoch=first, loader=x, batches=len(x)) for first, x in zip((0, 3), loaders, strict=True)]
    timeline = Timeline(stages, epochs=5)
    assert [timeline.first_batch(epoch) for epoch in range(6)] == [0, 2, 4, 6, 10, 14]
    assert timeline.stage(2).loader is loaders[0]
    assert timeline.stage(3).loader is loaders[1]


def test_more_parts_than_batches_are_refused(tiny_table: dict[str, Any]) -> None:
    training = {**tiny_table["training"], "batch_size": 32, "accumulate": 32}
    data = {**tiny_table["data"], "options": {"size": 16, "per_class": 2}}
    recipe = make_recipe({**tiny_table, "training": training, "data": data})
    with pytest.raises(ValueError, match=r"training.accumulate must be at most the batches of an epoch \(20\), got 32"):
        prepare(recipe, make_accelerator(recipe))


def test_phases_need_images_that_can_be_resized(tiny_table: dict[str, Any]) -> None:
    phases = [{"from_epoch": 0, "size": 16, "batch_size": 8}]
    recipe = make_recipe({**tiny_table, "training": {**tiny_table["training"], "phases": phases}})
    with pytest.raises(ValueError, match=r"training\.phases must be left out for shapes"):
        prepare(recipe, make_accelerator(recipe))
