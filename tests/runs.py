"""A run that takes a second, for the tests of what is done with a finished run."""

from pathlib import Path
from typing import Any

from saligraft.training import Result, SilentReporter, make_recipe, train

TINY: dict[str, Any] = {
    "data": {"options": {"size": 16, "per_class": 4}, "pad": 2},
    "network": {"name": "wrn-10-1"},
    "training": {"epochs": 1, "batch_size": 20},
}


def train_tiny(folder: Path, **sections: Any) -> Result:
    """Train on 40 small images for an epoch, with other sections in place of these."""
    return train(make_recipe({**TINY, **sections}), folder, reporter=SilentReporter())
