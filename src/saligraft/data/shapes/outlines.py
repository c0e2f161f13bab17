"""The outlines of the ten classes, as signed distances looked up per pixel.

Every outline is centred on its centroid and scaled to the area of the unit disc, so that neither position nor
number of object pixels determines the class.
Shapes: K outlines, B images, P points, H W pixels, S segments of a contour, R samples of a distance table.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

EXTENT = 1.75  # the tables cover [-EXTENT, EXTENT]²; no outline of unit-disc area below reaches past REACH
REACH = 1.6
RESOLUTION = 160  # samples per side of a table: an outline spans about 100 of them
ROUNDING = 0.06  # radius of the softened outer corners, in radii of the equal-area disc


def _circle(radius: float = 1.0, centre: float = 0.0, start: float = 0.0, stop: float = 2 * math.pi) -> Tensor:
    """Points of an arc, without its last point."""
    angle = torch.linspace(start, stop, 65, dtype=torch.float64)[:-1]
    return torch.stack([centre + radius * angle.cos(), radius * angle.sin()], dim=1)


def _regular(corners: int, inner: float = 1.0, start: float = -0.25) -> Tensor:
    """A regular polygon with a corner at `start`, in turns; a star if every second corner lies at `inner`."""
    angle = 2 * math.pi * (start + torch.arange(corners, dtype=torch.float64) / corners)
    radius = torch.where(torch.arange(corners) % 2 == 0, 1.0, inner)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def _cross(arm: float = 0.34) -> Tensor:
    corner = [(1, -arm), (1, arm), (arm, arm)]
    turns = [[(x, y), (-y, x), (-x, -y), (y, -x)] for x, y in corner]
    return torch.tensor([turns[i][turn] for turn in range(4) for i in range(3)], dtype=torch.float64)


def _crescent(inner: float = 0.82, shift: float = 0.58) -> Tensor:
    """A disc minus another disc: the outer arc forward, the inner arc back."""
    x = (1 - inner**2 + shift**2) / (2 * shift)
    outer_horn = math.atan2(math.sqrt(1 - x**2), x)
    inner_horn = math.atan2(math.sqrt(1 - x**2), x - shift)
    forth = _circle(1.0, 0.0, outer_horn, 2 * math.pi - outer_horn)
    back = _circle(inner, shift, 2 * math.pi - inner_horn, inner_horn)
    return torch.cat([forth, back])


def _heart() -> Tensor:
    t = torch.linspace(0, 2 * math.pi, 97, dtype=torch.float64)[:-1]
    x = 16 * t.sin() ** 3
    y = 13 * t.cos() - 5 * (2 * t).cos() - 2 * (3 * t).cos() - (4 * t).cos()
    return torch.stack([x, -y], dim=1)


def _arrow() -> Tensor:
    right = [(0.0, -1.0), (0.85, -0.05), (0.33, -0.05), (0.33, 0.95)]
    left = [(-x, y) for x, y in reversed(right[1:])]
    return torch.tensor(right + left, dtype=torch.float64)


# Similar on purpose: disc, hexagon and square, ring and crescent, arrow and triangle, star and cross.
OUTLINES: dict[str, Callable[[], list[Tensor]]] = {
    "disc": lambda: [_circle()],
    "hexagon": lambda: [_regular(6)],
    "square": lambda: [_regular(4, start=0.125)],
    "triangle": lambda: [_regular(3)],
    "star": lambda: [_regular(10, inner=0.48)],
    "cross": lambda: [_cross()],
    "ring": lambda: [_circle(), _circle(0.52)],
    "crescent": lambda: [_crescent()],
    "heart": lambda: [_heart()],
    "arrow": lambda: [_arrow()],
}


def polygon_distance(contours: list[Tensor], points: Tensor) -> Tensor:
    """Return the signed distance (P,) to closed contours under the even-odd rule: negative inside.

    Args:
        contours: Corners of each, (S,2).
        points: (P,2).
    """
    distance = torch.full(points.shape[:1], math.inf, dtype=points.dtype)
    inside = torch.zeros(points.shape[:1], dtype=torch.bool)
    for contour in contours:
        start, stop = contour, contour.roll(-1, dims=0)
        edge = stop - start
        offset = points[:, None] - start  # (P,S,2)
        along = ((offset * edge).sum(-1) / edge.square().sum(-1)).clamp(0, 1)
        distance = torch.minimum(distance, (offset - along[..., None] * edge).norm(dim=-1).amin(1))
        straddles = (start[:, 1] > points[:, 1:]) != (stop[:, 1] > points[:, 1:])
        crossing = start[:, 0] + (points[:, 1:] - start[:, 1]) * edge[:, 0] / edge[:, 1]
        inside ^= ((straddles & (points[:, :1] < crossing)).sum(1) % 2).bool()
    return torch.where(inside, -distance, distance)


def _grid(resolution: int) -> Tensor:
    side = torch.linspace(-EXTENT, EXTENT, resolution, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


def _table(contours: list[Tensor]) -> Tensor:
    """Rounded, centred, equal-area distance table of one outline, (R,R) float32."""
    reach = max(float(contour.norm(dim=1).max()) for contour in contours)
    contours = [contour / reach for contour in contours]
    coarse, side = _grid(RESOLUTION // 2), 2 * EXTENT / (RESOLUTION // 2 - 1)
    # Samples on the border count partially: counted fully, they would bias outlines with sides along the grid.
    share = (0.5 - (polygon_distance(contours, coarse) - ROUNDING) / side).clamp(0, 1)
    centre = (coarse * share[:, None]).sum(0) / share.sum()
    scale = math.sqrt(math.pi / (float(share.sum()) * side**2))
    distance = scale * (polygon_distance(contours, _grid(RESOLUTION) / scale + centre) - ROUNDING)
    return distance.reshape(RESOLUTION, RESOLUTION).float()


@cache
def distance_tables() -> Tensor:
    """Return the distance tables of all outlines, (K,R,R), in the order of `OUTLINES`."""
    return torch.stack([_table(contours()) for contours in OUTLINES.values()])


def outline_distance(outline: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the signed distance (B,H,W) of points to the outline of each image.

    Outside the table the distance is too small, but positive: no outline comes near the table's border.

    Args:
        outline: Index of the outline, (B,).
        x: Horizontal place in the outline's own frame, (B,H,W).
        y: Likewise.
    """
    tables = distance_tables()[outline].unsqueeze(1)
    places = torch.stack([x, y], dim=-1) / EXTENT
    return F.grid_sample(tables, places, padding_mode="border", align_corners=True).squeeze(1)
