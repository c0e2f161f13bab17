"""Outlines: true distances, one area, one centre, within reach."""

import math

import pytest
import torch
from torch import Tensor

from saligraft.data.shapes.outlines import (
    EXTENT,
    OUTLINES,
    REACH,
    RESOLUTION,
    distance_tables,
    outline_distance,
    polygon_distance,
)


def table_places() -> tuple[Tensor, Tensor]:
    side = torch.linspace(-EXTENT, EXTENT, RESOLUTION)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return x, y


def test_polygon_distance_of_a_square_with_a_square_hole() -> None:
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    points = torch.tensor([[0.75, 0.0], [0.0, 0.0], [0.9, 0.0], [2.0, 0.0], [4.0, 5.0]])
    distance = polygon_distance([corners, 0.5 * corners], points)
    torch.testing.assert_close(distance, torch.tensor([-0.25, 0.5, -0.1, 1.0, 5.0]))


@pytest.mark.parametrize("name", OUTLINES)
def test_each_outline_has_the_unit_discs_area_about_its_centroid(name: str) -> None:
    table = distance_tables()[list(OUTLINES).index(name)]
    x, y = table_places()
    cell = 2 * EXTENT / (RESOLUTION - 1)
    share = (0.5 - table / cell).clamp(0, 1)
    assert float(share.sum()) * cell**2 == pytest.approx(math.pi, rel=0.01)
    assert abs(float((x * share).sum() / share.sum())) < 0.01
    assert abs(float((y * share).sum() / share.sum())) < 0.01
    assert float(torch.hypot(x, y)[table < 0].max()) <= REACH < EXTENT


def test_no_two_outlines_are_nearly_the_same() -> None:
    """Up to the turns that poses make, the closest pair (disc and hexagon) still differs in some of its area."""
    inside = distance_tables() < 0
    for first in range(len(OUTLINES)):
        for second in range(first):
            differing = (inside[first] ^ inside[second]).sum() / inside[first].sum()
            assert differing > 0.03, (list(OUTLINES)[first], list(OUTLINES)[second])


def test_look_up_agrees_with_the_disc_and_stays_positive_far_away() -> None:
    disc = torch.tensor([list(OUTLINES).index("disc")])
    x = torch.linspace(-1.7, 1.7, 50).expand(1, 50, 50)
    y = x.mT
    torch.testing.assert_close(outline_distance(disc, x, y), torch.hypot(x, y) - 1, atol=0.02, rtol=0)
    every = torch.arange(len(OUTLINES))
    assert (outline_distance(every, torch.full((len(OUTLINES), 1, 1), 9.0), torch.zeros(len(OUTLINES), 1, 1)) > 0).all()
