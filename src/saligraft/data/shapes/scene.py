"""One scene per image: ground, clutter, object, and clutter that partly occludes it.

Everything is placed in the frame, whose shorter side is [-1,1], and rendered at `SUPERSAMPLING` samples per pixel
and side, so that a scene looks the same at every size.
Shapes: B images, P pieces of clutter, H W pixels, h w samples.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.data.shapes.appearance import PALETTE_COLUMNS, TEXTURE_COLUMNS, draw_palette, texture
from saligraft.data.shapes.outlines import OUTLINES, REACH, outline_distance

SUPERSAMPLING = 2
TURN = 0.08  # largest rotation to either side, in turns
STRETCH = 1.15  # largest elongation along some axis
BEHIND = ("solid", "fragment", "solid", "solid")  # clutter from back to front: a solid is a bar or a blob
BEFORE = ("fragment", "solid")  # what may occlude a part of the object
PRESENT = 0.7  # probability that a piece of clutter is present
_PIECE_COLUMNS = 12  # presence, kind, outline, position (2), angle, size, slenderness, cut, and the colour (3)

COLUMNS: dict[str, int] = {  # uniforms per image, by purpose
    "pose": 7,
    "palette": PALETTE_COLUMNS,
    "ground": TEXTURE_COLUMNS,
    "fill": TEXTURE_COLUMNS,
    "light": 2,
    "pieces": len(BEHIND + BEFORE) * _PIECE_COLUMNS,
}


class Frame(NamedTuple):
    """The points at which an image is sampled.

    Args:
        x: Coordinates (w,).
        y: Coordinates (h,).
        spacing: Distance between samples.
    """

    x: Tensor
    y: Tensor
    spacing: float

    @property
    def half(self) -> Tensor:
        """Half the frame's width and height, (2,); the smaller is 1."""
        return torch.tensor([len(self.x), len(self.y)]) * (self.spacing / 2)


class Pose(NamedTuple):
    """The object's position and shape.

    Args:
        centre: (B,2).
        radius: Radius of the disc of equal area, (B,).
        inverse: Map into the object's own frame, (B,2,2).
    """

    centre: Tensor
    radius: Tensor
    inverse: Tensor


def render(outline: Tensor, draws: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Render scenes.

    Args:
        outline: Index of the object that each image shows, (B,).
        draws: Uniforms (B, sum of COLUMNS) that determine everything else.
        size: Height and width.

    Returns:
        Images (B,3,H,W) in [0,1], and the share (B,H,W) of each pixel that the visible object fills.
    """
    part = dict(zip(COLUMNS, torch.split(draws, list(COLUMNS.values()), dim=1), strict=True))
    frame = make_frame(size)
    pose = draw_pose(part["pose"], frame.half)
    pieces = part["pieces"].reshape(-1, len(BEHIND + BEFORE), _PIECE_COLUMNS)
    palette = draw_palette(part["palette"], pieces[..., -3:])
    covers = _piece_covers(pieces, pose, frame)
    light = _light(part["light"], frame)
    clutter = palette.clutter[..., None, None] * (1 + light[:, None])

    canvas = _blend(palette.ground, palette.ground_accent, texture(part["ground"], frame.x, frame.y))
    canvas = canvas * (1 + 0.5 * light)
    for i in range(len(BEHIND)):
        canvas = _over(canvas, clutter[:, i], covers[i])
    fill = _blend(palette.fill, palette.fill_accent, texture(part["fill"], frame.x, frame.y)) * (1 + 2 * light)
    distance = outline_distance(outline, *_local(pose.inverse, pose.centre, frame)) * pose.radius[:, None, None]
    visible = _cover(distance, frame)
    canvas = _over(canvas, fill, visible)
    for i in range(len(BEHIND), len(covers)):
        canvas = _over(canvas, clutter[:, i], covers[i])
        visible = visible * (1 - covers[i])
    pooled = F.avg_pool2d(torch.cat([canvas.clamp(0, 1), visible[:, None]], dim=1), SUPERSAMPLING)
    return pooled[:, :3], pooled[:, 3]


def make_frame(size: tuple[int, int]) -> Frame:
    """Return the frame of an image.

    Args:
        size: Height and width.
    """
    height, width = (SUPERSAMPLING * side for side in size)
    spacing = 2 / min(height, width)
    x, y = ((torch.arange(count) - (count - 1) / 2) * spacing for count in (width, height))
    return Frame(x, y, spacing)


def draw_pose(draws: Tensor, half: Tensor) -> Pose:
    """Scale, rotate, stretch and place the object inside the frame, whatever its class.

    Args:
        draws: Uniforms (B,7).
        half: Half the frame's width and height, (2,).
    """
    scale, x, y, turn, stretch, axis, mirror = draws.unbind(-1)
    radius = 0.37 + 0.17 * scale
    stretch = 1 + (STRETCH - 1) * stretch  # longer by this along `axis`, shorter across, so that the area is constant
    room = (half - 0.02 - (radius * REACH * STRETCH)[:, None]).clamp(min=0)
    centre = (2 * torch.stack([x, y], dim=-1) - 1) * room
    squeeze = torch.diag_embed(torch.stack([1 / stretch, stretch], dim=-1))
    axes = _rotation(axis)
    flip = torch.diag_embed(torch.stack([torch.where(mirror < 0.5, -1.0, 1.0), torch.ones_like(mirror)], dim=-1))
    inverse = flip @ _rotation(TURN * (2 * turn - 1)) @ axes @ squeeze @ axes.mT / radius[:, None, None]
    return Pose(centre, radius, inverse)


def _rotation(turns: Tensor) -> Tensor:
    """(...,) in turns to matrices (...,2,2)."""
    angle = 2 * math.pi * turns
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], dim=-1).reshape(*turns.shape, 2, 2)


def _local(matrix: Tensor, centre: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
    """The samples' x and y, (B,h,w) each, in the frames of maps (B,2,2) about centres (B,2)."""
    x = (frame.x - centre[:, :1])[:, None, :]
    y = (frame.y - centre[:, 1:])[:, :, None]
    m = matrix[..., None, None]
    return m[:, 0, 0] * x + m[:, 0, 1] * y, m[:, 1, 0] * x + m[:, 1, 1] * y


def _piece_covers(pieces: Tensor, pose: Pose, frame: Frame) -> list[Tensor]:
    """Coverage (B,h,w) of each piece of clutter: bars, blobs and fragments of any outline, whatever the class.

    Pieces behind the object may be anywhere. Pieces in front of it cross its border and are thin or small, so that most
    of it stays visible.
    """
    covers = []
    for i, kind in enumerate(BEHIND + BEFORE):
        u = pieces[:, i].unbind(-1)
        if i < len(BEHIND):
            centre = (2 * pieces[:, i, 3:5] - 1) * frame.half
        else:
            centre = pose.centre + (pose.radius * (0.55 + 0.6 * u[4]))[:, None] * _rotation(u[3])[..., 0]
        x, y = _local(_rotation(u[5]), centre, frame)
        if kind == "fragment":
            distance = _fragment_distance(x, y, u[2], 0.15 + 0.10 * u[6], u[8])
        else:
            bar = torch.stack([0.3 + 0.5 * u[6], 0.035 + 0.06 * u[7]])
            blob = (0.10 + 0.10 * u[6]) * torch.stack([1 + 0.5 * u[7], 1 - 0.3 * u[7]])
            distance = _box_distance(x, y, torch.where(u[1] < 0.5, bar, blob))
        covers.append(torch.where(u[0][:, None, None] < PRESENT, _cover(distance, frame), 0.0))
    return covers


def _fragment_distance(x: Tensor, y: Tensor, outline: Tensor, radius: Tensor, cut: Tensor) -> Tensor:
    """An outline chosen by a uniform (B,) and cut by a straight line, so that it belongs to no class: (B,h,w)."""
    radius = radius[:, None, None]
    x, y = x / radius, y / radius
    uncut = outline_distance((outline * len(OUTLINES)).long(), x, y)
    return torch.maximum(uncut, x - (0.5 * cut - 0.2)[:, None, None]) * radius


def _box_distance(x: Tensor, y: Tensor, half: Tensor) -> Tensor:
    """Signed distance (B,h,w) to a box of half sides (2,B) whose ends are round."""
    radius = half.amin(0)[:, None, None]
    x = x.abs() - (half[0][:, None, None] - radius)
    y = y.abs() - (half[1][:, None, None] - radius)
    return torch.hypot(x.clamp(min=0), y.clamp(min=0)) + torch.maximum(x, y).clamp(max=0) - radius


def _light(draws: Tensor, frame: Frame) -> Tensor:
    """Soft light from one side, (B,1,h,w), centred at zero: it shades ground, clutter and object."""
    towards = _rotation(draws[:, 0])[..., 0] * (0.05 + 0.09 * draws[:, 1:])
    towards = towards[..., None, None]
    return (towards[:, 0] * frame.x + towards[:, 1] * frame.y[:, None]).unsqueeze(1)


def _cover(distance: Tensor, frame: Frame) -> Tensor:
    """Share of a sample inside an outline at this signed distance."""
    return (0.5 - distance / frame.spacing).clamp(0, 1)


def _blend(first: Tensor, second: Tensor, field: Tensor) -> Tensor:
    """Mix colours (B,3) by a field (B,h,w): (B,3,h,w)."""
    return torch.lerp(first[:, :, None, None], second[:, :, None, None], field[:, None])


def _over(canvas: Tensor, colour: Tensor, cover: Tensor) -> Tensor:
    return torch.lerp(canvas, colour.expand_as(canvas), cover[:, None])
