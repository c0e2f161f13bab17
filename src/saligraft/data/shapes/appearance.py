"""Colours and textures of a scene.

Colours are drawn in OKLCh, so that contrast is perceptual: lightness in [0,1], chroma in
[0, about 0.3], hue in turns. Textures (clouds, stripes, checks, dots, gradients) are functions of the position
in the frame, not of the pixel, so a scene is the same at every size. Neither depends on the class.
Shapes: B images, H W samples.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# OKLab to the cube roots of cone responses, and cone responses to linear sRGB: constants by Ottosson.
_TO_CONES = (
    (1.0, 0.3963377774, 0.2158037573),
    (1.0, -0.1055613458, -0.0638541728),
    (1.0, -0.0894841775, -1.2914855480),
)
_TO_LINEAR = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)
PALETTE_COLUMNS = 12  # uniforms per scene, without its clutter
KINDS = ("clouds", "stripes", "checks", "dots", "gradient")
LATTICES = (3, 6, 13)  # knots per side of the three scales of noise
_FORM = 6 + len(LATTICES)  # kind, angle, frequency, phase, sharpness, warp, and the weight of each scale
TEXTURE_COLUMNS = _FORM + sum(side * side for side in LATTICES)  # uniforms per texture


def oklch_to_rgb(lightness: Tensor, chroma: Tensor, hue: Tensor) -> Tensor:
    """Convert OKLCh coordinates to sRGB in [0,1], (..., 3); colours outside sRGB are clipped.

    Args:
        lightness: (...).
        chroma: (...).
        hue: Hue in turns, (...).
    """
    angle = 2 * math.pi * hue
    lab = torch.stack([lightness, chroma * angle.cos(), chroma * angle.sin()], dim=-1)
    cones = (lab @ lab.new_tensor(_TO_CONES).T) ** 3
    linear = (cones @ cones.new_tensor(_TO_LINEAR).T).clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


class Palette(NamedTuple):
    """The colours of B scenes, sRGB in [0,1].

    Args:
        ground: (B,3).
        ground_accent: (B,3).
        fill: Colour of the object, (B,3).
        fill_accent: (B,3).
        clutter: Colours of P pieces, (B,P,3).
    """

    ground: Tensor
    ground_accent: Tensor
    fill: Tensor
    fill_accent: Tensor
    clutter: Tensor


def draw_palette(scene: Tensor, clutter: Tensor) -> Palette:
    """Turn uniforms into colours.

    Object and clutter follow one distribution: colour alone cannot tell the object from its surroundings.

    Args:
        scene: Uniforms (B,PALETTE_COLUMNS).
        clutter: Uniforms (B,P,3).
    """
    u = scene.unbind(-1)
    dark = u[0] < 0.5
    ground_l = torch.where(dark, 0.26 + 0.40 * u[0], 0.60 + 0.32 * u[0])  # 0.26 to 0.46, or 0.76 to 0.92
    away = torch.where(dark, 1.0, -1.0)
    ground_c, ground_h = 0.015 + 0.065 * u[1], u[2]
    ground = oklch_to_rgb(ground_l, ground_c, ground_h)
    # The accents differ in opposite directions, so that texture does not reduce the contrast.
    accent_l = (ground_l - away * (0.03 + 0.09 * u[3])).clamp(0.18, 0.97)
    ground_accent = oklch_to_rgb(accent_l, 0.02 + 0.07 * u[4], ground_h + 0.3 * (u[5] - 0.5))
    fill_l, fill_c, fill_h = _against(away, ground_l, ground_h, u[6:9])
    fill = oklch_to_rgb(fill_l, fill_c, fill_h)
    accent_l = (fill_l + away * (0.02 + 0.08 * u[9])).clamp(0.35, 0.95)
    fill_accent = oklch_to_rgb(accent_l, fill_c * (0.75 + 0.35 * u[10]), fill_h + 0.14 * (u[11] - 0.5))
    pieces = _against(away[:, None], ground_l[:, None], ground_h[:, None], clutter.unbind(-1))
    return Palette(ground, ground_accent, fill, fill_accent, oklch_to_rgb(*pieces))


def _against(away: Tensor, ground_l: Tensor, ground_h: Tensor, u: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """A colour (lightness, chroma, hue) that contrasts with its ground, from three uniforms."""
    hue = ground_h + 0.18 + 0.64 * u[2]
    lightness = ground_l + away * (0.24 + 0.16 * u[0])
    # Dark yellows and greens look muddy: colours near their hue, a third of a turn, are made slightly lighter.
    lightness = lightness + 0.05 * torch.cos(2 * math.pi * (hue - 0.31))
    return lightness, 0.09 + 0.09 * u[1], hue


def texture(draws: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return a field in [0,1], (B,H,W).

    Args:
        draws: Uniforms (B,TEXTURE_COLUMNS).
        x: Positions (W,); the shorter side of the frame is [-1,1].
        y: Positions (H,).
    """
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
    """Smooth noise of about unit standard deviation, (B,H,W): knots at three scales, bicubic interpolation."""
    sides = [side * side for side in LATTICES]
    total, norm = torch.zeros(()), weights.square().sum(1).sqrt() + 1e-3
    for side, part, weight in zip(LATTICES, torch.split(knots, sides, dim=1), weights.unbind(1), strict=True):
        lattice = (part - 0.5).reshape(-1, 1, side, side) * math.sqrt(12)
        layer = F.interpolate(lattice, size=size, mode="bicubic", align_corners=True).squeeze(1)
        total = total + weight / norm * layer
    return total
