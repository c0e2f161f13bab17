"""Scenes: the object whole within the frame, mostly visible, and alike at every size."""

import pytest
import torch
from torch import Tensor

from saligraft.data.shapes.outlines import OUTLINES
from saligraft.data.shapes.scene import COLUMNS, render

COUNT = 60


def uniforms() -> Tensor:
    return torch.rand(COUNT, sum(COLUMNS.values()), generator=torch.Generator().manual_seed(0))


def outlines() -> Tensor:
    return torch.arange(COUNT) % len(OUTLINES)


def without_clutter(draws: Tensor) -> Tensor:
    """Presence is the first uniform of a piece: 0.99 keeps every piece away."""
    bare = draws.clone()
    bare[:, -COLUMNS["pieces"] :] = 0.99
    return bare


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (40, 24)])
def test_the_object_lies_entirely_within_the_frame(size: tuple[int, int]) -> None:
    images, share = render(outlines(), without_clutter(uniforms()), size)
    assert tuple(images.shape) == (COUNT, 3, *size)
    assert images.min() >= 0
    assert images.max() <= 1
    rim = torch.cat([share[:, 0], share[:, -1], share[:, :, 0], share[:, :, -1]], dim=1)
    assert rim.max() < 0.5


def test_clutter_hides_some_of_some_objects_and_all_of_none() -> None:
    whole = render(outlines(), without_clutter(uniforms()), (32, 32))[1].sum((1, 2))
    visible = render(outlines(), uniforms(), (32, 32))[1].sum((1, 2)) / whole
    assert visible.max() <= 1 + 1e-5
    assert visible.min() > 0.4
    assert 0.7 < visible.mean() < 0.97


def test_the_same_draws_show_the_same_scene_at_twice_the_size() -> None:
    small, small_share = render(outlines(), uniforms(), (32, 32))
    large, large_share = render(outlines(), uniforms(), (64, 64))
    assert (torch.nn.functional.avg_pool2d(large, 2) - small).abs().mean() < 0.01
    assert (torch.nn.functional.avg_pool2d(large_share[:, None], 2)[:, 0] - small_share).abs().mean() < 0.01


def test_only_object_pixels_depend_on_the_outline() -> None:
    """Two renderings of the same draws with other classes differ where an object is, and nowhere else."""
    first, first_share = render(outlines(), uniforms(), (32, 32))
    second, second_share = render((outlines() + 3) % len(OUTLINES), uniforms(), (32, 32))
    elsewhere = (first_share == 0) & (second_share == 0)
    difference = (first - second).abs().amax(1)
    assert difference[elsewhere].max() < 1e-6
    assert difference.max() > 0.1
