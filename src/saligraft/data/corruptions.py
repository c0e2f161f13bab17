"""Corrupted test images: twelve corruptions at five severities, the same for the same sample in every run.

They follow the kinds of Hendrycks & Dietterich (ICLR 2019), noise, blur, weather and digital, with strengths of our
own, so the errors compare with each other and not with ImageNet-C. Lengths are shares of the image's shorter side.
Shapes: B batch, C channels, H W pixels.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft import checks
from saligraft.data.keyed_draws import key, keyed_uniforms

SEVERITIES = (1, 2, 3, 4, 5)
SEED = 2022  # fixed: every run is tested on the same corrupted images

Draw = Callable[[int], Tensor]  # number of uniforms per sample -> (B, number)


def corrupt(images: Tensor, index: Tensor, name: str, severity: int) -> Tensor:
    """Corrupt images. Pure: what is random depends on (name, severity, index) alone.

    Args:
        images: Pixels in [0,1], (B,C,H,W).
        index: Place of each sample in its data set, (B,).
        name: One of `CORRUPTIONS`.
        severity: Severity from 1 to 5.

    Returns:
        Images (B,C,H,W), clamped to [0,1].

    Example:
        >>> from saligraft.data.corruptions import corrupt
        >>> corrupt(torch.full((1, 1, 1, 2), 0.4), torch.tensor([7]), "brightness", 3)
        tensor([[[[0.7000, 0.7000]]]])
    """
    checks.images(images)
    checks.per_sample("index", index, images)
    checks.one_of("corruption", name, tuple(CORRUPTIONS))
    checks.whole_number("severity", severity, least=1, most=len(SEVERITIES))
    function, strengths = CORRUPTIONS[name]
    stream = key(SEED, list(CORRUPTIONS).index(name), severity)

    def draw(count: int) -> Tensor:
        return keyed_uniforms(stream, index, count)

    return function(images, strengths[severity - 1], draw).clamp(0, 1)


def _normals(images: Tensor, draw: Draw) -> Tensor:
    uniforms = draw(images[0].numel()).clamp(min=2.0**-25)  # a uniform of 0 would be minus infinity
    normals: Tensor = torch.special.ndtri(uniforms)
    return normals.view(images.shape).to(images.dtype)


def _gaussian_noise(images: Tensor, deviation: float, draw: Draw) -> Tensor:
    return images + deviation * _normals(images, draw)


def _shot_noise(images: Tensor, photons: float, draw: Draw) -> Tensor:
    """Poisson noise in its normal approximation, for so many photons at white."""
    return images + (images / photons).sqrt() * _normals(images, draw)


def _impulse_noise(images: Tensor, share: float, draw: Draw) -> Tensor:
    """Salt and pepper: this share of the values becomes 0 or 1."""
    uniforms = draw(images[0].numel()).view(images.shape)
    return torch.where(uniforms < share / 2, 0.0, torch.where(uniforms > 1 - share / 2, 1.0, images))


def _gaussian_blur(images: Tensor, share: float, draw: Draw) -> Tensor:
    del draw
    deviation = share * min(images.shape[2:])
    radius = min(math.ceil(3 * deviation), min(images.shape[2:]) - 1)
    place = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    kernel = (-(place**2) / (2 * deviation**2)).exp()
    kernel = kernel / kernel.sum()
    channels = images.shape[1]
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def _motion_blur(images: Tensor, share: float, draw: Draw) -> Tensor:
    """The mean over a straight path of this length, in a direction drawn for each sample."""
    height, width = images.shape[2:]
    length = share * min(height, width)
    angle = math.pi * draw(1).to(images.dtype)  # (B,1)
    towards = torch.cat([angle.cos() / width, angle.sin() / height], dim=1) * length  # half of it in [-1,1] coordinates
    steps = 2 * math.ceil(length) + 1
    identity = torch.eye(2, 3, device=images.device, dtype=images.dtype).expand(len(images), 2, 3)
    grid = F.affine_grid(identity, list(images.shape), align_corners=False)
    total = torch.zeros_like(images)
    for step in torch.linspace(-1, 1, steps).tolist():
        shifted = grid + step * towards[:, None, None, :]
        total += F.grid_sample(images, shifted, padding_mode="border", align_corners=False)
    return total / steps


def _brightness(images: Tensor, amount: float, draw: Draw) -> Tensor:
    del draw
    return images + amount


def _contrast(images: Tensor, share: float, draw: Draw) -> Tensor:
    """Only this share of each image's deviation from its mean remains."""
    del draw
    return torch.lerp(images.mean(dim=(1, 2, 3), keepdim=True).expand_as(images), images, share)


def _saturation(images: Tensor, share: float, draw: Draw) -> Tensor:
    """Only this share of each pixel's colour remains beside its grey."""
    del draw
    return torch.lerp(images.mean(dim=1, keepdim=True).expand_as(images), images, share)


def _fog(images: Tensor, share: float, draw: Draw) -> Tensor:
    """Bright fog whose thickness varies smoothly over the image, on average this share."""
    coarse = draw(16).view(-1, 1, 4, 4).to(images.dtype)
    thickness = F.interpolate(coarse, images.shape[2:], mode="bilinear", align_corners=True)
    return torch.lerp(images, torch.full_like(images, 0.9), share * (0.5 + thickness))


def _pixelate(images: Tensor, share: float, draw: Draw) -> Tensor:
    """Blocks: averaged down to this share of each side, and enlarged again."""
    del draw
    height, width = images.shape[2:]
    small = F.adaptive_avg_pool2d(images, (max(1, round(share * height)), max(1, round(share * width))))
    return F.interpolate(small, (height, width), mode="nearest")


def _quantization(images: Tensor, levels: float, draw: Draw) -> Tensor:
    """So many levels of each channel remain."""
    del draw
    return (images * (levels - 1)).round() / (levels - 1)


def _patches(images: Tensor, count: float, draw: Draw) -> Tensor:
    """So many grey squares of a quarter of the shorter side, anywhere in the image."""
    height, width = images.shape[2:]
    side = max(1, round(min(height, width) / 4))
    corners = draw(2 * int(count)).view(len(images), -1, 2)
    top = (corners[..., 0] * (height - side + 1)).long()[..., None]  # (B,count,1)
    left = (corners[..., 1] * (width - side + 1)).long()[..., None]
    rows, columns = (torch.arange(length, device=images.device) for length in (height, width))
    inside_rows = (rows >= top) & (rows < top + side)  # (B,count,H)
    inside_columns = (columns >= left) & (columns < left + side)
    hidden = (inside_rows[..., :, None] & inside_columns[..., None, :]).any(dim=1)
    return images.masked_fill(hidden[:, None], 0.5)


# By name: the function, and its strength at each severity.
CORRUPTIONS: dict[str, tuple[Callable[[Tensor, float, Draw], Tensor], tuple[float, ...]]] = {
    "gaussian-noise": (_gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot-noise": (_shot_noise, (100, 50, 25, 12, 6)),
    "impulse-noise": (_impulse_noise, (0.01, 0.03, 0.06, 0.12, 0.2)),
    "gaussian-blur": (_gaussian_blur, (0.0125, 0.02, 0.03, 0.04, 0.055)),
    "motion-blur": (_motion_blur, (0.06, 0.1, 0.15, 0.2, 0.28)),
    "brightness": (_brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (_contrast, (0.7, 0.5, 0.35, 0.2, 0.1)),
    "saturation": (_saturation, (0.7, 0.5, 0.3, 0.15, 0.0)),
    "fog": (_fog, (0.2, 0.3, 0.4, 0.5, 0.6)),
    "pixelate": (_pixelate, (0.5, 0.4, 0.3, 0.2, 0.15)),
    "quantization": (_quantization, (16, 8, 5, 3, 2)),
    "patches": (_patches, (1, 2, 3, 5, 8)),
}
