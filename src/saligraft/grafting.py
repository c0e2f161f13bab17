"""Step 3, the augmentation function φ: M ⊙ x_i + (1 − M) ⊙ x_j (Table 1).

A mask of any resolution is spread over the pixels: pixel y shows cell ⌊y·h/H⌋, so edges fall on whole pixels.
`graft` validates; the functions below it trust their callers.
"""

import torch
from torch import Tensor

from saligraft import checks


def graft(source: Tensor, destination: Tensor, mask: Tensor) -> Tensor:
    """Show the source where the mask is True (or in its proportion), the destination elsewhere: φ of Table 1.

    Where the mask is 0 or 1 the pixels of one image are copied bit for bit.

    Args:
        source: (B, C, H, W), the images x_i that give.
        destination: (B, C, H, W), the images x_j that receive.
        mask: (B, h, w), bool or in [0, 1], no finer than the image; or (1, h, w) for all.

    Returns:
        The mixed images (B, C, H, W).

    Example:
        >>> import torch, saligraft as sg
        >>> mask = torch.tensor([[[True, False]]])
        >>> sg.graft(torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), mask)
        tensor([[[[1., 1., 0., 0.]]]])
    """
    checks.images(source, "source")
    checks.images(destination, "destination")
    if source.shape != destination.shape:
        shapes = f"{checks.shape_of(source)} and {checks.shape_of(destination)}"
        raise ValueError(f"source and destination must have the same shape, got {shapes}")
    if source.dtype != destination.dtype:
        dtypes = f"{source.dtype} and {destination.dtype}"
        raise TypeError(f"source and destination must have the same dtype, got {dtypes}")
    checks.same_device("destination", destination, source, "source")
    checks.rank("mask", mask, "(B, h, w)", source, "source")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask must be bool or floating point, got {mask.dtype}")
    checks.mask_values(mask)
    height, width = source.shape[2:]
    if mask.shape[1] > height or mask.shape[2] > width:
        raise ValueError(f"mask must not be finer than the image ({height}, {width}), got {checks.shape_of(mask)}")
    if len(mask) not in (1, len(source)):
        raise ValueError(f"mask must have one map per image: expected {len(source)}, got {len(mask)}")
    return overlay(source, destination, mask)


def overlay(source: Tensor, destination: Tensor, mask: Tensor) -> Tensor:
    """`graft` without validation."""
    shown = spread(mask, source.shape[2], source.shape[3])[:, None]
    if mask.dtype == torch.bool:
        return torch.where(shown, source, destination)
    return blend(source, destination, shown)


def blend(source: Tensor, destination: Tensor, weight: Tensor) -> Tensor:
    """weight · source + (1 − weight) · destination in the source's dtype, rounded once: the weight is the label's."""
    wide = checks.at_least_float32(source)
    return torch.lerp(checks.at_least_float32(destination), wide, weight.to(wide.dtype)).to(source.dtype)


def spread(mask: Tensor, height: int, width: int) -> Tensor:
    """The mask at the image's resolution: (B, h, w) -> (B, H, W); a mask (B, 1, 1) stays, since it broadcasts."""
    rows, columns = mask.shape[1:]
    if rows == 1 and columns == 1:
        return mask
    # A mask of pixels needs no gather; but asking for it in a compiled graph would compile another for that grid.
    compiling = torch.compiler.is_compiling()
    if compiling or rows != height:
        mask = mask.index_select(1, torch.arange(height, device=mask.device) * rows // height)
    if compiling or columns != width:
        mask = mask.index_select(2, torch.arange(width, device=mask.device) * columns // width)
    return mask


def pixel_area(mask: Tensor, height: int, width: int) -> Tensor:
    """The share of the image's pixels that show the source, (B,) in float32: the mean of the mask once spread.

    Each cell counts by its number of pixels, which need not be equal: at 33 pixels and 4 cells the first
    cell has 9 and the others 8.

    Args:
        mask: (B, h, w), bool or in [0, 1].
        height: H of the image.
        width: W of the image.
    """
    rows = _pixels_per_cell(mask.shape[1], height, mask.device)
    columns = _pixels_per_cell(mask.shape[2], width, mask.device)
    pixels = (checks.at_least_float32(mask) * rows[:, None] * columns).sum(dim=(1, 2))
    return pixels / (height * width)


def _pixels_per_cell(cells: int, pixels: int, device: torch.device) -> Tensor:
    edge = (torch.arange(cells + 1, device=device) * pixels + cells - 1) // cells  # cell k starts at ⌈k·H/h⌉
    return edge[1:] - edge[:-1]
