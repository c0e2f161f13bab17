"""Small pictures of images, saliency maps and masks, as uint8 arrays.

Shapes: C channels, H W pixels, h w cells of a map or mask. Overlays are drawn on the picture enlarged by an integer
factor, so that pixels stay square and cell borders fall where the graft's borders fall.
"""

import base64
import io
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from saligraft import grafting

Picture = npt.NDArray[np.uint8]  # (H, W, 3)
Plane = npt.NDArray[np.float32]  # (H, W)

LARGEST_PNG = 20_000  # bytes: a tile with enlarged pixels takes less, one of a photograph twice as much
TILE_SIZE = 192  # smallest side of an overlay: twice its size on the page, for high-density screens
FINEST_GRID = 16  # finer masks are per pixel: lines between their cells would hide the picture
SOURCE_COLOUR = (240, 110, 20)  # orange and blue stay distinct for all common kinds of colour blindness


def to_picture(image: Tensor) -> Picture:
    """Convert an image to RGB pixels.

    Args:
        image: (C,H,W) in [0,1]; fewer than three channels are averaged to grey, those beyond three dropped.

    Returns:
        (H,W,3) uint8.
    """
    if image.ndim != 3:
        raise ValueError(f"image must have shape (C,H,W), got {tuple(image.shape)}")
    channels = image[:3] if image.shape[0] >= 3 else image.float().mean(0, keepdim=True).expand(3, -1, -1)
    pixels: Picture = channels.detach().float().cpu().clamp(0, 1).mul(255).round().byte().numpy()
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def spread_cells(cells: Tensor, height: int, width: int) -> Plane:
    """Spread cells (h,w) over (H,W) pixels exactly as the graft spreads its mask.

    Args:
        cells: Map or mask (h,w).
        height: H.
        width: W.

    Returns:
        (H,W) float32.
    """
    pixels = grafting.spread(cells.detach().float().cpu()[None], height, width)[0]
    out: Plane = pixels.expand(height, width).numpy()
    return out


def enlarge(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Repeat pixels by the integer factor that brings the longer side to about `TILE_SIZE`; never shrink.

    Args:
        picture: (H,W) or (H,W,3).

    Returns:
        The picture with every pixel repeated along both sides.
    """
    factor = max(1, round(TILE_SIZE / max(picture.shape[:2])))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def heat(image: Tensor, saliency: Tensor, covered: Tensor | None = None) -> Picture:
    """Draw a saliency map as heat over the grey image, with its cells visible.

    Args:
        image: (C,H,W) in [0,1].
        saliency: (h,w).
        covered: Mask (h,w) of cells to cross out, or None.

    Returns:
        The enlarged picture.
    """
    height, width = image.shape[-2:]
    grey = enlarge(to_picture(image)).mean(2, keepdims=True)
    blend = 0.30 * grey + 0.70 * _inferno(enlarge(spread_cells(_scaled(saliency), height, width)))
    if max(saliency.shape[-2:]) <= FINEST_GRID:
        _draw_grid(blend, saliency.shape[-2:], height, width, strength=0.22)
    if covered is not None:
        _hatch(blend, enlarge(spread_cells(covered, height, width)) > 0.5)
    return _rounded(blend)


def plain_heat(values: Tensor) -> Picture:
    """Draw a map on its own as heat, scaled to its peak, for features that belong to no image.

    Args:
        values: (h,w), non-negative.

    Returns:
        The enlarged picture.
    """
    return enlarge(_rounded(_inferno(_scaled(values).detach().float().cpu().numpy())))


def chosen_cells(image: Tensor, chosen: Tensor, among: Tensor | None = None) -> Picture:
    """Show only the chosen cells of an image, outlined.

    Args:
        image: (C,H,W) in [0,1].
        chosen: Mask (h,w).
        among: Mask (h,w) of the cells that could have been chosen, shown dimmed; None for no such cells.

    Returns:
        The enlarged picture.
    """
    height, width = image.shape[-2:]
    base = enlarge(to_picture(image)).astype(np.float32)
    shown = enlarge(spread_cells(chosen, height, width))
    half = np.zeros_like(shown) if among is None else enlarge(spread_cells(among, height, width)) * (1 - shown)
    grey = base.mean(2, keepdims=True)
    dim = 0.16 * grey + np.array([22, 24, 30])
    faint = 0.40 * base + 0.12 * grey + np.array([14, 15, 18])
    out = shown[..., None] * base + (1 - shown[..., None]) * np.where(half[..., None] > 0.5, faint, dim)
    if 1 < chosen.shape[-1] <= FINEST_GRID:
        _draw_grid(out, chosen.shape[-2:], height, width, strength=0.10)
    _outline(out, shown > 0.5)
    return _rounded(out)


def grafted(image: Tensor, mask: Tensor) -> Picture:
    """Outline the source's patches in a mixed image; a blend, whose mask has no edge, is left unchanged.

    Args:
        image: Mixed image (C,H,W) in [0,1].
        mask: (h,w), 1 where the source shows.

    Returns:
        The enlarged picture.
    """
    out = enlarge(to_picture(image)).astype(np.float32)
    _outline(out, enlarge(spread_cells(mask, *image.shape[-2:])) > 0.5)
    return _rounded(out)


def data_uri(picture: Picture, kind: str | None = None) -> str:
    """Encode a picture as a `data:` URL to embed in a page.

    Args:
        picture: (H,W,3) uint8.
        kind: "PNG", or "JPEG" for photographs: a fifth of the size, but lossy. None for PNG where it is small.

    Returns:
        The URL, `data:image/png;base64,...`.
    """
    # Without subsampling, JPEG keeps the colour of thin lines.
    options: dict[str, Any] = {"quality": 85, "subsampling": 0} if kind == "JPEG" else {"optimize": True}
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, kind or "PNG", **options)
    if kind is None and buffer.tell() > LARGEST_PNG:
        return data_uri(picture, "JPEG")
    kind = kind or "PNG"
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _scaled(values: Tensor) -> Tensor:
    """Divide by the peak; an empty map stays zero."""
    peak = float(values.max())
    return values / peak if peak > 0 else torch.zeros_like(values)


def _inferno(values: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    return np.asarray(matplotlib.colormaps["inferno"](values)[..., :3]) * 255


def _rounded(values: npt.NDArray[np.floating]) -> Picture:
    rounded: Picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _outline(canvas: npt.NDArray[np.floating], inside: npt.NDArray[np.bool_]) -> None:
    """Paint the border of a region, two pixels wide, in place; the picture's edge counts as border."""
    if not inside.any() or inside.all():
        return
    padded = np.pad(inside, 1)
    edge = np.zeros_like(padded)
    across, down = padded[:, 1:] != padded[:, :-1], padded[1:] != padded[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= down
    edge[:-1] |= down
    canvas[edge[1:-1, 1:-1]] = SOURCE_COLOUR


def _draw_grid(canvas: npt.NDArray[np.floating], cells: torch.Size, height: int, width: int, strength: float) -> None:
    """Lighten the lines between cells, in place: a checkerboard changes colour at exactly these lines."""
    board = ((torch.arange(cells[0])[:, None] + torch.arange(cells[1])) % 2).float()
    colour = enlarge(spread_cells(board, height, width)) > 0.5
    edge = np.zeros_like(colour)
    edge[:, 1:] |= colour[:, 1:] != colour[:, :-1]
    edge[1:] |= colour[1:] != colour[:-1]
    canvas[edge] = canvas[edge] * (1 - strength) + 255 * strength


def _hatch(canvas: npt.NDArray[np.floating], covered: npt.NDArray[np.bool_]) -> None:
    """Stripe and outline the covered cells, the hidden part of the destination, in place."""
    rows, columns = np.indices(covered.shape)
    stripes = covered & ((rows + columns) % 8 < 2)
    canvas[covered] *= 0.45
    canvas[stripes] = 0.5 * canvas[stripes] + 0.5 * np.array(SOURCE_COLOUR)
    _outline(canvas, covered)
