"""AugMix's image operations on batches, each sample with its own level.

Hendrycks et al., ICLR 2020: none of them is among the corruptions of ImageNet-C and CIFAR-C. Geometry is one
`grid_sample` with one matrix per sample (torchvision takes one per batch); the rest except solarize is torchvision's.
Images (n, 3, H, W), float32 or wider, in [0, 1]; level (n,) up to 10; sign (n,) of −1 and 1 gives the direction.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.import_path import install_command

Operation = Callable[[Tensor, Tensor, Tensor], Tensor]

# What level 10 means in the authors' code.
MOST_DEGREES = 30
MOST_SHEAR = 0.3
MOST_SHIFT = 1 / 3  # of the image's side
MOST_BITS_DROPPED = 4  # of the four that posterize keeps at level 0
WHITE = 256


def _torchvision() -> Any:
    try:
        from torchvision.transforms.v2 import functional
    except ImportError as error:
        raise ImportError(f"AugMix needs torchvision for its operations: {install_command('lab')}") from error
    return functional


def _rounded_down(level: Tensor, most: float) -> Tensor:
    """Round parameters that count degrees, pixels, bits or grey values down, as the authors do."""
    return (level * most / 10).floor()


def autocontrast(images: Tensor, _level: Tensor, _sign: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    return _in_bytes(images, _torchvision().autocontrast)


def equalize(images: Tensor, _level: Tensor, _sign: Tensor) -> Tensor:
    """Equalise each channel's histogram."""
    return _in_bytes(images, _torchvision().equalize)


def posterize(images: Tensor, level: Tensor, _sign: Tensor) -> Tensor:
    """Keep only the highest bits; one bit mask per sample, where torchvision takes one per batch."""
    kept = 4 - _rounded_down(level, MOST_BITS_DROPPED)
    mask = (WHITE - 2 ** (8 - kept)).to(torch.uint8)
    return _in_bytes(images, lambda pixels: pixels & mask[:, None, None, None])


def solarize(images: Tensor, level: Tensor, _sign: Tensor) -> Tensor:
    """Invert what is brighter than the threshold."""
    threshold = (WHITE - _rounded_down(level, WHITE))[:, None, None, None]
    return _in_bytes(images, lambda pixels: torch.where(pixels < threshold, pixels, 255 - pixels))


def rotate(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    angle = sign * _rounded_down(level, MOST_DEGREES) * (math.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    half_height, half_width = images.shape[2] / 2, images.shape[3] / 2
    shift_x = half_width - cosine * half_width + sine * half_height
    shift_y = half_height - sine * half_width - cosine * half_height
    return _warp(images, (cosine, -sine, shift_x), (sine, cosine, shift_y))


def shear_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shear by up to 0.3 along x."""
    one, zero = torch.ones_like(level), torch.zeros_like(level)
    return _warp(images, (one, sign * level * (MOST_SHEAR / 10), zero), (zero, one, zero))


def shear_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Shear by up to 0.3 along y."""
    one, zero = torch.ones_like(level), torch.zeros_like(level)
    return _warp(images, (one, zero, zero), (sign * level * (MOST_SHEAR / 10), one, zero))


def translate_x(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Move by up to a third of the width."""
    one, zero = torch.ones_like(level), torch.zeros_like(level)
    return _warp(images, (one, zero, sign * _rounded_down(level, images.shape[3] * MOST_SHIFT)), (zero, one, zero))


def translate_y(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Move by up to a third of the height."""
    one, zero = torch.ones_like(level), torch.zeros_like(level)
    return _warp(images, (one, zero, zero), (zero, one, sign * _rounded_down(level, images.shape[2] * MOST_SHIFT)))


def _in_bytes(images: Tensor, operation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an operation defined on grey values 0 to 255."""
    pixels = (images * 255).round().to(torch.uint8)
    return operation(pixels).to(images.dtype) / 255


def _warp(images: Tensor, x_row: tuple[Tensor, ...], y_row: tuple[Tensor, ...]) -> Tensor:
    """Show at (x, y), in pixels from the top left corner, the point x_row · (x, y, 1), y_row · (x, y, 1).

    Bilinear; black outside, but not blended into the border pixels, as in Pillow, which the authors use.
    """
    height, width = images.shape[2:]
    y, x = torch.meshgrid(
        torch.arange(height, device=images.device, dtype=images.dtype) + 0.5,
        torch.arange(width, device=images.device, dtype=images.dtype) + 0.5,
        indexing="ij",
    )
    (a, b, c), (d, e, f) = ([entry.to(images.dtype)[:, None, None] for entry in row] for row in (x_row, y_row))
    from_x, from_y = a * x + b * y + c, d * x + e * y + f
    grid = torch.stack((from_x / width, from_y / height), dim=3) * 2 - 1
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    warped = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped * inside[:, None]


OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "rotate": rotate,
    "solarize": solarize,
    "shear-x": shear_x,
    "shear-y": shear_y,
    "translate-x": translate_x,
    "translate-y": translate_y,
}
