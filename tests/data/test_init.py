"""Data sets by name."""

import subprocess
import sys

import pytest
import torch

from saligraft.data import DATASETS, load
from saligraft.names import DATA_SETS


def test_shapes_is_the_default() -> None:
    data = load(per_class=1)
    assert data.name == "shapes"
    assert torch.equal(data.images, load("shapes", split="train", root=None, per_class=1).images)


def test_options_reach_the_data_set() -> None:
    data = load("shapes", split="test", size=[20, 24], per_class=2, seed=3)
    assert tuple(data.images.shape) == (20, 3, 20, 24)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "shape"}, "data set must be one of " + ", ".join(map(repr, DATASETS))),
        ({"split": "val"}, "split must be one of 'train', 'test'; got 'val'"),
        ({"sise": 32}, "option of shapes must be one of 'size', 'per_class', 'seed'; got 'sise'"),
        ({"root": "somewhere"}, "root must be None for shapes, which reads no files, got 'somewhere'"),
    ],
)
def test_unknown_names_list_the_valid_ones(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(**{"name": "shapes", **arguments})  # type: ignore[arg-type]


def test_shapes_needs_nothing_but_torch() -> None:
    """The data layer imports none of the laboratory's packages, so that `shapes` works where only torch is."""
    lab = ("torchvision", "accelerate", "pydantic", "typer", "rich", "matplotlib", "safetensors", "PIL")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({lab!r}))\n"  # None in sys.modules makes an import fail
        "from saligraft.data import load; print(len(load(per_class=1)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "10", run.stderr


def test_every_data_set_has_its_name() -> None:
    assert tuple(DATASETS) == DATA_SETS
