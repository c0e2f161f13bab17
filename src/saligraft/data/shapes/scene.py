"""One scene per image: ground, clutter, object, and what stands before it.

Everything is placed in the frame, whose shorter side is [-1,1], and rendered at `SUPERSAMPLING` samples per pixel
and side, so that a scene looks the same at every size.
Shapes: B images, P pieces of clutter, H W pixels, h w samples.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.data.shapes.outlines import OUTLINES, REACH, outline_distance
from saligraft.data.shapes.palette import COLUMNS as PALETTE_COLUMNS
from saligraft.data.shapes.palette import draw_palette
from saligraft.data.shapes.textures import COLUMNS as TEXTURE_COLUMNS
from saligraft.data.shapes.textures import texture

SUPERSAMPLING = 2
BEHIND, BEFORE = 6, 2  # pieces of clutter behind the object and before it
STRETCH = 1.15  # most that an object is longer along some axis
BARS, BLOBS, FRAGMENTS = 0.30, 0.55, 0.80  # shares of the kinds, summed up; the rest stays away
_PIECE_COLUMNS = 11  # kind, outline, place (2), angle, size, slenderness, cut, and the colour (3)

COLUMNS: dict[str, int] = {  # uniforms per image, by what they decide
    "pose": 7,
    "palette": PALETTE_COLUMNS,
    "ground": TEXTURE_COLUMNS,
    "fill": TEXTURE_COLUMNS,
    "light": 2,
    "pieces": (BEHIND + BEFORE) * _PIECE_COLUMNS,
}


class Pose(NamedTuple):
    """Where the object lies: centre (B,2), radius (B,) of the equal-area disc, and the map (B,2,2) into its frame."""

    centre: Tensor
    radius: Tensor
    inverse: Tensor


def render(outline: Tensor, draws: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Render images (B,3,H,W) in [0,1] and the share (B,H,W) of each pixel that the visible object fills.

    `outline` (B,) picks the object; `draws` (B, sum of COLUMNS) are uniforms that decide all else.
    """
    part = dict(zip(COLUMNS, draws.split(list(COLUMNS.values()), dim=1), strict=True))
    points, spacing = frame_points(size)
    aspect = points.abs().amax((0, 1))
    pose = draw_pose(part["pose"], aspect)
    pieces = part["pieces"].unflatten(1, (BEHIND + BEFORE, _PIECE_COLUMNS))
    palette = draw_palette(part["palette"], pieces[..., -3:])
    light = _light(part["light"], points)
    cover = _piece_cover(pieces, pose, points, spacing)

    local = _transform(pose.inverse, points - pose.centre[:, None, None])
    distance = outline_distance(outline, local) * pose.radius[:, None, None]
    visible = _cover(distance, spacing)

    canvas = _blend(palette.ground, palette.ground_accent, texture(part["ground"], points))
    canvas = canvas * (1 + 0.5 * light)
    for i in range(BEHIND):
        canvas = _over(canvas, palette.clutter[:, i, :, None, None] * (1 + light), cover[i])
    fill = _blend(palette.fill, palette.fill_accent, texture(part["fill"], points)) * (1 + 2 * light)
    canvas = _over(canvas, fill, visible)
    for i in range(BEHIND, BEHIND + BEFORE):
        canvas = _over(canvas, palette.clutter[:, i, :, None, None] * (1 + light), cover[i])
        visible = visible * (1 - cover[i])
    shrink = SUPERSAMPLING
    return F.avg_pool2d(canvas.clamp(0, 1), shrink), F.avg_pool2d(visible[:, None], shrink).squeeze(1)


def frame_points(size: tuple[int, int]) -> tuple[Tensor, float]:
    """Samples of the frame, (h,w,2) as x y, and the space between them."""
    height, width = (SUPERSAMPLING * side for side in size)
    spacing = 2 / min(height, width)
    y = (torch.arange(height) - (height - 1) / 2) * spacing
    x = (torch.arange(width) - (width - 1) / 2) * spacing
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1), spacing


def draw_pose(draws: Tensor, aspect: Tensor) -> Pose:
    """Scale, turn, stretch and place the object from uniforms (B,7), whole within the frame whatever its class."""
    scale, x, y, turn, stretch, axis, mirror = draws.unbind(-1)
    radius = 0.34 + 0.18 * scale
    stretch = 1 + (STRETCH - 1) * stretch  # longer by this along `axis`, shorter across: the area stays
    room = (aspect - 0.02 - (radius * REACH * STRETCH)[:, None]).clamp(min=0)
    centre = (2 * torch.stack([x, y], dim=-1) - 1) * room
    squeeze = torch.diag_embed(torch.stack([1 / stretch, stretch], dim=-1))
    axes = _rotation(axis)
    flip = torch.diag_embed(torch.stack([torch.ones_like(mirror), torch.where(mirror < 0.5, -1.0, 1.0)], dim=-1))
    inverse = flip @ _rotation(turn) @ axes @ squeeze @ axes.mT / radius[:, None, None]
    return Pose(centre, radius, inverse)


def _rotation(turns: Tensor) -> Tensor:
    """(...,) in turns to matrices (...,2,2)."""
    angle = 2 * math.pi * turns
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))


def _transform(matrix: Tensor, points: Tensor) -> Tensor:
    """Matrices (B,2,2) applied to points (B,h,w,2)."""
    return (points.flatten(1, 2) @ matrix.mT).unflatten(1, points.shape[1:3])


def _piece_cover(pieces: Tensor, pose: Pose, points: Tensor, spacing: float) -> list[Tensor]:
    """Cover, P times (B,h,w), of the clutter: bars, blobs and fragments of any outline, drawn without regard to the class.

    Pieces behind lie anywhere. Pieces before straddle the object's rim and are slim or small against it,
    so that most of it stays visible.
    """
    kind, outline, x, y, turn, size, slender, cut = pieces[..., :-3].unbind(-1)
    anywhere = (2 * torch.stack([x, y], dim=-1) - 1) * points.abs().amax((0, 1))
    reach = pose.radius[:, None] * (0.55 + 0.6 * y)
    rim = pose.centre[:, None] + reach[..., None] * _rotation(x)[..., 0]
    before = torch.arange(BEHIND + BEFORE) >= BEHIND
    centre = torch.where(before[:, None], rim, anywhere)

    bar = torch.stack([0.3 + 0.5 * size, 0.035 + 0.06 * slender], dim=-1)
    blob = (0.10 + 0.10 * size)[..., None] * torch.stack([1 + 0.5 * slender, 1 - 0.3 * slender], dim=-1)
    half = torch.where((kind < BARS)[..., None], bar, blob)
    covers = []
    for i in range(BEHIND + BEFORE):  # one at a time: their samples then stay in the processor's cache
        local = _transform(_rotation(turn[:, i]), points - centre[:, i, None, None])
        fragment = _fragment_distance(local, outline[:, i], 0.15 + 0.10 * size[:, i], cut[:, i])
        share = kind[:, i, None, None]
        distance = torch.where(share < BLOBS, _box_distance(local, half[:, i]), fragment)
        covers.append(torch.where(share < FRAGMENTS, _cover(distance, spacing), 0.0))
    return covers


def _fragment_distance(local: Tensor, outline: Tensor, radius: Tensor, cut: Tensor) -> Tensor:
    """An outline picked by a uniform (B,) and cut by a straight line, so that it is of no class: (B,h,w)."""
    unit = local / radius[:, None, None, None]
    whole = outline_distance((outline * len(OUTLINES)).long(), unit)
    line = unit[..., 0] - (0.5 * cut - 0.2)[:, None, None]
    return torch.maximum(whole, line) * radius[:, None, None]


def _box_distance(local: Tensor, half: Tensor) -> Tensor:
    """Signed distance (B,h,w) to a box of half sides (B,2) whose ends are round."""
    radius = half.amin(-1)[:, None, None]
    x, y = (local.abs() - half[:, None, None]).unbind(-1)
    x, y = x + radius, y + radius
    return torch.hypot(x.clamp(min=0), y.clamp(min=0)) + torch.maximum(x, y).clamp(max=0) - radius


def _light(draws: Tensor, points: Tensor) -> Tensor:
    """Soft light from one side, (B,1,h,w), about zero: it shades ground, clutter and object alike."""
    towards = _rotation(draws[:, 0])[..., 0] * (0.05 + 0.09 * draws[:, 1:])
    return torch.einsum("bj,hwj->bhw", towards, points).unsqueeze(1)


def _cover(distance: Tensor, spacing: float) -> Tensor:
    """Share of a sample inside an outline at this signed distance."""
    return (0.5 - distance / spacing).clamp(0, 1)


def _blend(first: Tensor, second: Tensor, field: Tensor) -> Tensor:
    """Mix colours (B,3) by a field (B,h,w): (B,3,h,w)."""
    return torch.lerp(first[:, :, None, None], second[:, :, None, None], field[:, None])


def _over(canvas: Tensor, colour: Tensor, cover: Tensor) -> Tensor:
    return torch.lerp(canvas, colour.expand_as(canvas), cover[:, None])
