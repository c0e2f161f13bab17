"""Textures as fields over the frame: clouds, stripes, checks, dots and gradients.

They are functions of the place in the frame, not of the pixel: the same scene at every size.
Shapes: B images, H W samples.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("clouds", "stripes", "checks", "dots", "gradient")
LATTICES = (3, 6, 13)  # knots per side of the three scales of noise
_FORM = 6 + len(LATTICES)  # kind, angle, frequency, phase, sharpness, warp, and the weight of each scale
COLUMNS = _FORM + sum(side * side for side in LATTICES)  # uniforms per texture


def texture(draws: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A field in [0,1], (B,H,W), from uniforms (B,COLUMNS) at x (W,) and y (H,); the shorter side is [-1,1]."""
    form = draws[:, :_FORM, None, None].unbind(1)
    noise = _noise(draws[:, _FORM:], torch.stack(form[6:], dim=1), (len(y), len(x)))
    angle, frequency = 2 * math.pi * form[1], 4.5 + 8.5 * form[2]
    y = y[:, None]
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    warp = 1.2 * form[5] ** 2 * noise
    u = frequency * along + 2 * math.pi * form[3] + warp
    v = frequency * across + 2 * math.pi * form[3] - warp
    patterns = (noise, u.sin(), 1.6 * u.sin() * v.sin(), u.cos() + v.cos() - 0.5, 1.3 * along + 0.3 * noise)
    kind = (form[0] * len(KINDS)).long()
    chosen = sum((torch.where(kind == i, pattern, 0.0) for i, pattern in enumerate(patterns)), torch.zeros(()))
    return torch.sigmoid((1.5 + 6.0 * form[4] ** 2) * chosen)


def _noise(knots: Tensor, weights: Tensor, size: tuple[int, ...]) -> Tensor:
    """Smooth noise of about unit spread, (B,H,W): knots at three scales, bicubically joined."""
    sides = [side * side for side in LATTICES]
    total, norm = torch.zeros(()), weights.square().sum(1).sqrt() + 1e-3
    for side, part, weight in zip(LATTICES, torch.split(knots, sides, dim=1), weights.unbind(1), strict=True):
        lattice = (part - 0.5).reshape(-1, 1, side, side) * math.sqrt(12)
        layer = F.interpolate(lattice, size=size, mode="bicubic", align_corners=True).squeeze(1)
        total = total + weight / norm * layer
    return total
