"""Bottom-up saliency: computed from contrast or frequency, without a network.

Fine-grained: Montabone & Soto, Image and Vision Computing 2010, as in OpenCV's `StaticSaliencyFineGrained`;
spectral residual: Hou & Zhang, CVPR 2007, as in OpenCV's `StaticSaliencySpectralResidual`. Both process batches, in
floating point where OpenCV rounds to 8 bits between its steps.
Shapes: B batch, C channels, H W pixels. Maps have the images' size, are detached and float32 (or float64).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft import checks
from saligraft.pixels import denormalized
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.chunks import in_chunks

RGB_WEIGHTS = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601, OpenCV's conversion to grey
SURROUNDS = (12, 24, 48, 28, 56, 112)  # half the sides of a pixel's surround, OpenCV's six scales
SPECTRUM_SIDE = 64  # Hou & Zhang, and OpenCV, resize every image to it
GREY_LEVELS = 255.0
# Weights of filters from the centre outwards.
SPECTRUM_BLUR = (1 / 3, 1 / 3)
_MAP_BLUR = [math.exp(-(offset**2) / (2 * 8.0**2)) for offset in range(3)]  # OpenCV: 5 × 5, σ = 8
MAP_BLUR = tuple(weight / (2 * sum(_MAP_BLUR) - 1) for weight in _MAP_BLUR)


def fine_grained_saliency(images: Tensor) -> Tensor:
    """Compute centre–surround contrast over six scales, separately for on-centre and off-centre.

    Each of the two is scaled to a peak of 1, then they are added. Offsets and a scale shared by all channels do not
    change the map; scales that differ between channels, as in most normalisations, change the weight of each colour
    (`FineGrained` can undo them). A flat image has an all-zero map.

    Args:
        images: (B, C, H, W), grey, RGB, or RGB with a fourth channel that is ignored.

    Returns:
        Saliency (B, H, W).

    Example:
        >>> fine_grained_saliency(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8])
    """
    checks.images(images)
    return in_chunks(_fine_grained, images, images.shape[2] * images.shape[3])


def _fine_grained(images: Tensor) -> Tensor:
    grey = _smooth(_grey(images))
    # On a flat image the contrast is rounding error, which must not be scaled up to a peak of 1.
    rounding = 8 * torch.finfo(grey.dtype).eps * grey.abs().amax(dim=(1, 2), keepdim=True)
    grey = grey - grey.mean(dim=(1, 2), keepdim=True)  # smaller sums lose fewer digits
    batch, height, width = grey.shape
    integral = grey.new_zeros(batch, height + 1, width + 1)
    integral[:, 1:, 1:] = grey.cumsum(dim=1).cumsum(dim=2)
    signed, absolute = torch.zeros_like(grey), torch.zeros_like(grey)
    for reach in SURROUNDS:
        box = _windowed(_windowed(integral, reach, dim=1), reach, dim=2)
        area = (_window_size(height, reach, grey)[:, None] * _window_size(width, reach, grey)).to(grey.dtype)
        share = 1 / (area - 1).clamp(min=1)
        contrast = torch.addcmul(grey * (area * share), box, share, value=-1)  # centre − mean of the rest of its box
        signed += contrast
        absolute += contrast.abs_()
    return _to_peak(absolute + signed, rounding) + _to_peak(absolute - signed, rounding)


@checks.without_autocast
def spectral_residual_saliency(images: Tensor) -> Tensor:
    """Transform the difference between the log spectrum and its smoothed version back. A flat image has a flat map.

    Args:
        images: (B, C, H, W) in [0, 1], since the spectrum's zero frequency and the 1 that OpenCV adds to the amplitudes
            before the logarithm depend on range and offset; channels as for `fine_grained_saliency`.

    Returns:
        Saliency (B, H, W).

    Example:
        >>> spectral_residual_saliency(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8])
    """
    checks.images(images)
    height, width = images.shape[2:]
    grey = in_chunks(_small_grey, images, height * SPECTRUM_SIDE)
    return _with_columns(_with_rows(_spectral_residual(grey), height), width)


def _small_grey(images: Tensor) -> Tensor:
    """Grey images of the spectrum's size, (B, C, H, W) -> (B, 64, 64), by bilinear interpolation."""
    # All is linear, so width, channels and height are reduced one after the other.
    narrow = _with_columns(checks.at_least_float32(images.detach()).flatten(1, 2), SPECTRUM_SIDE)
    return _with_rows(_grey(narrow.view(*images.shape[:3], SPECTRUM_SIDE)), SPECTRUM_SIDE)


def _spectral_residual(grey: Tensor) -> Tensor:
    """Maps of images of the spectrum's size, (B, 64, 64) -> (B, 64, 64)."""
    spectrum = torch.fft.fft2(grey * GREY_LEVELS)
    amplitude = _magnitude(spectrum)
    log_amplitude = amplitude.log1p()
    residual = (log_amplitude - _filtered(log_amplitude, SPECTRUM_BLUR)).exp_()
    # Relative to the largest, since a scale does not change the map. In a flat image all others are rounding error:
    # dividing by infinity removes them.
    peak = amplitude.amax(dim=(1, 2), keepdim=True)
    relative = amplitude / torch.where(peak == 0, 1.0, peak)
    relative = F.threshold(relative, 2 * torch.finfo(peak.dtype).eps, float("inf"), inplace=True)
    peaks = _magnitude(torch.fft.ifft2(spectrum.mul_(residual / relative)))
    return _to_peak(_filtered(peaks, MAP_BLUR).square_())


@dataclass(frozen=True, kw_only=True)
class BottomUp(SaliencySource):
    """What both bottom-up sources share: they read pixels, so normalisation must be undone first.

    Args:
        mean: of the data set, one value per channel or one for all; None if the images are not normalised.
        std: likewise; both or neither must be set.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        mean, std = checks.statistics(self.mean, self.std)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    def _pixels(self, images: Tensor) -> Tensor:
        """Undo the normalisation, if it is known."""
        checks.images(images)
        images = checks.at_least_float32(images.detach())
        if self.mean is None or self.std is None:
            return images
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, images.shape[1]):
                raise ValueError(f"{name} must have 1 or {images.shape[1]} entries, one per channel, got {len(values)}")
        return denormalized(images, self.mean, self.std)


@dataclass(frozen=True, kw_only=True)
class FineGrained(BottomUp):
    """Contrast of each pixel with its surround, at six scales; used by SaliencyMix.

    `fine_grained_saliency` as a source.

    Args:
        mean: of the data set, to undo normalisation: one value per channel or one for all; None uses images as passed.
        std: likewise.

    Example:
        >>> FineGrained(mean=(0.5,), std=(0.25,))(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8])
    """

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return fine_grained_saliency(self._pixels(images))


@dataclass(frozen=True, kw_only=True)
class SpectralResidual(BottomUp):
    """What is unexpected in the image's spectrum.

    `spectral_residual_saliency` as a source.

    Args:
        mean: of the data set, to undo normalisation: one value per channel or one for all; None stretches each image
            to [0, 1].
        std: likewise.

    Example:
        >>> SpectralResidual()(torch.randn(2, 3, 8, 8)).shape
        torch.Size([2, 8, 8])
    """

    def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:  # noqa: ARG002
        pixels = self._pixels(images)
        if self.mean is None:
            low, high = pixels.amin(dim=(1, 2, 3), keepdim=True), pixels.amax(dim=(1, 2, 3), keepdim=True)
            pixels = (pixels - low) / torch.where(high > low, high - low, 1.0)
        return spectral_residual_saliency(pixels)


def _grey(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H, W), float32 or wider."""
    channels = images.shape[1]
    if channels not in (1, 3, 4):
        raise ValueError(f"images must have 1 (grey), 3 (RGB) or 4 (RGB, one ignored) channels, got {channels}")
    planes = checks.at_least_float32(images.detach()).unbind(dim=1)
    if channels == 1:
        return planes[0]
    grey = planes[0] * RGB_WEIGHTS[0]
    for plane, weight in zip(planes[1:3], RGB_WEIGHTS[1:], strict=True):
        grey = grey.add_(plane, alpha=weight)
    return grey


def _smooth(grey: Tensor) -> Tensor:
    """Filter by 1-4-6-4-1 along both axes, mirrored at the border; the sum per axis is 16 times too large."""
    for dim in (1, 2):
        grey = grey.index_select(dim, _mirrored(grey.shape[dim], 2, grey.device))
        for _ in range(4):  # summing neighbours four times gives 1-4-6-4-1
            size = grey.shape[dim] - 1
            grey = grey.narrow(dim, 0, size) + grey.narrow(dim, 1, size)
    return grey


def _mirrored(size: int, margin: int, device: torch.device) -> Tensor:
    """Indices of an axis with a margin that mirrors it about its outermost cells, without repeating them."""
    period = max(2 * (size - 1), 1)
    index = torch.arange(-margin, size + margin, device=device) % period
    return torch.minimum(index, period - index)


def _windowed(integral: Tensor, reach: int, dim: int) -> Tensor:
    """Sums over (x − reach, x + reach] ∩ [0, size) for every x along an axis of running sums that start with 0.

    Where the window always covers the entire axis, the result has a single entry along it, for broadcasting.
    """
    size = integral.shape[dim] - 1
    total = integral.narrow(dim, size, 1)
    if reach >= size:
        return total
    shape = list(integral.shape)
    shape[dim] = reach
    sums = torch.cat((integral.narrow(dim, reach + 1, size - reach), total.expand(shape)), dim=dim)
    inner = size - reach + 1
    sums.narrow(dim, reach - 1, inner).sub_(integral.narrow(dim, 0, inner))
    return sums


def _window_size(size: int, reach: int, like: Tensor) -> Tensor:
    x = torch.arange(size, device=like.device)
    return (x + reach + 1).clamp(max=size) - (x - reach + 1).clamp(min=0)


def _to_peak(values: Tensor, negligible: Tensor | float = 0.0) -> Tensor:
    """Each map divided by its largest value; all zero where that is negligible."""
    peak = values.amax(dim=(1, 2), keepdim=True)
    return values / torch.where(peak <= negligible, float("inf"), peak)


def _with_rows(values: Tensor, count: int) -> Tensor:
    """Bilinear interpolation along the height: (B, h, w) -> (B, count, w)."""
    size = values.shape[1]
    row = torch.arange(count, device=values.device)
    place = ((row + 0.5) * (size / count) - 0.5).clamp(0, size - 1)
    above = place.long()
    upper, lower = (values.index_select(1, index) for index in (above, (above + 1).clamp(max=size - 1)))
    return torch.lerp(upper, lower, (place - above).to(values.dtype)[:, None])


def _with_columns(values: Tensor, count: int) -> Tensor:
    """Bilinear interpolation along the width: (B, h, w) -> (B, h, count)."""
    return F.interpolate(values, count, mode="linear", align_corners=False)


def _magnitude(values: Tensor) -> Tensor:
    """Absolute values of complex numbers, as a vectorised kernel computes them: a third of the time of `abs`."""
    squares = torch.view_as_real(values).square()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _filtered(values: Tensor, weights: Sequence[float]) -> Tensor:
    """A separable, symmetric filter over maps (B, h, w), mirrored at the border; `weights` from the centre outwards."""
    for dim in (1, 2):
        size = values.shape[dim]
        filtered = values * weights[0]
        for reach, weight in enumerate(weights[1:], start=1):
            inner = size - reach
            filtered.narrow(dim, reach, inner).add_(values.narrow(dim, 0, inner), alpha=weight)
            filtered.narrow(dim, 0, inner).add_(values.narrow(dim, reach, inner), alpha=weight)
            filtered.narrow(dim, 0, reach).add_(values.narrow(dim, 1, reach).flip(dim), alpha=weight)
            filtered.narrow(dim, inner, reach).add_(values.narrow(dim, inner - 1, reach).flip(dim), alpha=weight)
        values = filtered
    return values
