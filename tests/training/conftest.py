"""A run that takes a second: 40 small images, a small network, two epochs of two steps."""

from typing import Any

import pytest

from saligraft.training import Recipe, make_recipe


@pytest.fixture
def tiny_table() -> dict[str, Any]:
    return {
        "seed": 3,
        "data": {"name": "shapes", "options": {"size": 16, "per_class": 4}, "pad": 2},
        "network": {"name": "wrn-10-1"},
        "training": {"epochs": 2, "batch_size": 16},
        "optimizer": {"lr": 0.05},
    }


@pytest.fixture
def tiny_recipe(tiny_table: dict[str, Any]) -> Recipe:
    return make_recipe(tiny_table)
