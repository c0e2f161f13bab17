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
        source: (B, C, H, W), the images x_i that give; or videos (B, C, T, H, W), or signals (B, C, L).
        destination: In the source's shape, the images x_j that receive.
        mask: (B, h, w), bool or in [0, 1], no finer than the image; or (1, h, w) for all. It covers every frame of a
            video; a signal is 1 high, so its mask is (B, 1, l).

    Returns:
        The mixed images, in the source's shape.

    Example:
        >>> import torch, saligraft as sg
        >>> mask = torch.tensor([[[True, False]]])
        >>> sg.graft(torch.ones(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), mask)
        tensor([[[[1., 1., 0., 0.]]]])
    """
    checks.images(source, "source", checks.ANY_SHAPE)
    checks.images(destination, "destination", checks.ANY_SHAPE)
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
    checks.not_finer("mask", mask, source)
    if len(mask) not in (1, len(source)):
        raise ValueError(f"mask must have one map per image: expected {len(source)}, got {len(mask)}")
    shown = _broadcast(spread(mask, *checks.frame_size(source)), source)
    return torch.where(shown, source, destination) if mask.dtype == torch.bool else blend(source, destination, shown)


def graft_onto_partners(images: Tensor, partner: Tensor, shown: Tensor) -> Tensor:
    """`graft` of images onto images[partner], without validation; written into the gathered partners where possible.

    Args:
        images: (B, ..., H, W).
        partner: (B,).
        shown: (B, H, W) or (B, 1, 1), bool or in [0, 1]: where the source shows.
    """
    partners, shown = images[partner], _broadcast(shown, images)
    is_bool = shown.dtype == torch.bool
    # Gradients, and a compiler that fuses both, need the result apart; half precision is blended wider.
    apart = partners.requires_grad or shown.requires_grad or torch.compiler.is_compiling()
    if is_bool:
        return torch.where(shown, images, partners, out=None if apart else partners)
    if apart or images.dtype != shown.dtype:
        return blend(images, partners, shown)
    return torch.lerp(partners, images, shown, out=partners)


def _broadcast(shown: Tensor, images: Tensor) -> Tensor:
    """The mask (B, H, W) with axes of size 1 for the channels, and frames, of the images."""
    for _ in range(images.ndim - shown.ndim):
        shown = shown[:, None]
    return shown


def blend(source: Tensor, destination: Tensor, weight: Tensor) -> Tensor:
    """weight · source + (1 − weight) · destination in the source's dtype, rounded once: the weight is the label's."""
    wide = checks.at_least_float32(source)
    return torch.lerp(checks.at_least_float32(destination), wide, weight.to(wide.dtype)).to(source.dtype)


def spread(mask: Tensor, height: int, width: int) -> Tensor:
    """The mask at the image's resolution: (B, h, w) -> (B, H, W); a mask (B, 1, 1) stays, since it broadcasts."""
    rows, columns = mask.shape[1:]
    if rows == 1 and columns == 1:
        return mask
    if torch.compiler.is_compiling():  # a question about the grid would compile one more graph
        if mask.dtype == torch.bool:
            # Columns by a matrix product of the small mask: a row of it is then read as vectors, not cell by cell.
            cells = torch.arange(columns, device=mask.device)[:, None]
            mask = mask.float() @ (cells == _cell_of_pixel(columns, width, mask)).float() > 0.5
            return mask.index_select(1, _cell_of_pixel(rows, height, mask))
    elif (rows, columns) == (height, width):
        return mask
    elif height % rows == 0 and width % columns == 0:
        cells = mask[:, :, None, :, None].expand(-1, -1, height // rows, -1, width // columns)
        return cells.reshape(len(mask), height, width)
    mask = mask.index_select(1, torch.arange(0, height * rows, rows, device=mask.device) // height)
    return mask.index_select(2, torch.arange(0, width * columns, columns, device=mask.device) // width)


def _cell_of_pixel(cells: int, pixels: int, like: Tensor) -> Tensor:
    """The cell ⌊y·h/H⌋ that each pixel of an axis shows, (pixels,), of a size that does not depend on the grid."""
    return torch.arange(pixels, device=like.device) * cells // pixels


def pixel_area(mask: Tensor, height: int, width: int, shown: Tensor | None = None) -> Tensor:
    """The share of the image's pixels that show the source, (B,) in float32 (float64 for such masks).

    Each cell counts by its number of pixels, which need not be equal: at 33 pixels and 4 cells the first
    cell has 9 and the others 8.

    Args:
        mask: (B, h, w), bool or in [0, 1].
        height: H of the image.
        width: W of the image.
        shown: The mask spread over the pixels, if known already.
    """
    dtype = torch.float64 if mask.dtype == torch.float64 else torch.float32
    rows, columns = mask.shape[1:]
    if torch.compiler.is_compiling():  # from the cells, so that a graph need not read the pixels once more
        pixels = _pixels_of_cell(rows, height, mask)[:, None] * _pixels_of_cell(columns, width, mask)
        return (mask * pixels).sum(dim=(1, 2), dtype=dtype) / (height * width)
    if height % rows or width % columns:
        mask = spread(mask, height, width) if shown is None else shown
    return mask.mean(dim=(1, 2), dtype=dtype)


def _pixels_of_cell(cells: int, pixels: int, like: Tensor) -> Tensor:
    """How many pixels of an axis show each cell: (cells,)."""
    cell = torch.arange(cells, device=like.device)
    first, end = ((cell + step) * pixels + cells - 1 for step in (0, 1))
    return end // cells - first // cells
