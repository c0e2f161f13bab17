"""Small pictures of images, saliency maps and masks: uint8 arrays, and PNG files inlined in a page.

Shapes: C channels, H W pixels, h w cells of a map or mask. Every overlay is drawn on the picture enlarged
by a whole number, so that pixels stay square and cell borders fall where the graft's borders fall.
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

TILE_SIZE = 192  # smallest side of an overlay: twice what the page shows, for dense screens
FINEST_GRID = 16  # a finer mask is one of pixels, and lines between them would hide the picture
SOURCE_COLOUR = (240, 110, 20)  # orange and blue stay apart for all common kinds of colour blindness


def to_picture(image: Tensor) -> Picture:
    """An image (C,H,W) in [0,1] as RGB: one channel becomes grey, further ones beyond three are left out."""
    if image.ndim != 3:
        raise ValueError(f"image must have shape (C,H,W), got {tuple(image.shape)}")
    channels = image[:3] if image.shape[0] >= 3 else image.float().mean(0, keepdim=True).expand(3, -1, -1)
    pixels: Picture = channels.detach().float().cpu().clamp(0, 1).mul(255).round().byte().numpy()
    return np.ascontiguousarray(pixels.transpose(1, 2, 0))


def spread(cells: Tensor, height: int, width: int) -> Plane:
    """Cells (h,w) spread over H×W pixels exactly as the graft spreads its mask."""
    pixels = grafting.spread(cells.detach().float().cpu()[None], height, width)[0]
    out: Plane = pixels.expand(height, width).numpy()
    return out


def enlarge(picture: npt.NDArray[Any], size: int = TILE_SIZE) -> npt.NDArray[Any]:
    """Repeat pixels by the whole number that brings the longer side to about `size`; never smaller."""
    factor = max(1, round(size / max(picture.shape[:2])))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def heat(image: Tensor, saliency: Tensor, covered: Tensor | None = None) -> Picture:
    """A saliency map (h,w) as heat over the grey image, its cells visible; `covered` cells are crossed out."""
    height, width = image.shape[-2:]
    peak = float(saliency.max())
    scaled = saliency / peak if peak > 0 else torch.zeros_like(saliency)
    level = enlarge(spread(scaled, height, width))
    base = enlarge(to_picture(image)).astype(np.float32)
    grey = base.mean(2, keepdims=True)
    colour = np.asarray(matplotlib.colormaps["inferno"](level)[..., :3]) * 255
    blend = 0.30 * grey + 0.70 * colour
    if max(saliency.shape[-2:]) <= FINEST_GRID:
        _draw_grid(blend, saliency.shape[-2:], height, width, strength=0.22)
    if covered is not None:
        _hatch(blend, enlarge(spread(covered, height, width)) > 0.5)
    return _bytes(blend)


def plain_heat(values: Tensor) -> Picture:
    """A map (h,w) >= 0 by itself as heat, scaled to its peak: of features, which lie over no picture."""
    peak = float(values.max())
    scaled = (values / peak if peak > 0 else torch.zeros_like(values)).detach().float().cpu().numpy()
    return enlarge(_bytes(np.asarray(matplotlib.colormaps["inferno"](scaled)[..., :3]) * 255))


def chosen_cells(image: Tensor, chosen: Tensor, among: Tensor | None = None) -> Picture:
    """The image with only the `chosen` cells (h,w) lit and outlined; cells of `among` not chosen stay half lit."""
    height, width = image.shape[-2:]
    base = enlarge(to_picture(image)).astype(np.float32)
    shown = enlarge(spread(chosen, height, width))
    half = np.zeros_like(shown) if among is None else enlarge(spread(among, height, width)) * (1 - shown)
    grey = base.mean(2, keepdims=True)
    dim = 0.16 * grey + np.array([22, 24, 30])
    faint = 0.40 * base + 0.12 * grey + np.array([14, 15, 18])
    out = np.where(half[..., None] > 0.5, faint, dim)
    out = shown[..., None] * base + (1 - shown[..., None]) * out
    if 1 < chosen.shape[-1] <= FINEST_GRID:
        _draw_grid(out, chosen.shape[-2:], height, width, strength=0.10)
    _outline(out, shown > 0.5, SOURCE_COLOUR)
    return _bytes(out)


def grafted(image: Tensor, mask: Tensor) -> Picture:
    """The mixed image with the source's patches outlined; a blend (no hard edge in the mask) is left as it is."""
    height, width = image.shape[-2:]
    out = enlarge(to_picture(image)).astype(np.float32)
    _outline(out, enlarge(spread(mask, height, width)) > 0.5, SOURCE_COLOUR)
    return _bytes(out)


def png_bytes(picture: Picture) -> bytes:
    """One picture as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def data_uri(picture: Picture) -> str:
    """One picture as a `data:` address that a page carries inside itself."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(picture)).decode("ascii")


def photo_uri(picture: Picture) -> str:
    """The same for a photograph, as JPEG: a fifth of a PNG's size, and no pixel of it need be exact."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _bytes(values: npt.NDArray[np.floating]) -> Picture:
    rounded: Picture = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return rounded


def _borders(regions: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbour, or left or upper one, lies in another region."""
    edge = np.zeros_like(regions)
    across, down = regions[:, 1:] != regions[:, :-1], regions[1:] != regions[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= down
    edge[:-1] |= down
    return edge


def _outline(canvas: npt.NDArray[np.floating], inside: npt.NDArray[np.bool_], colour: tuple[int, ...]) -> None:
    """Paint the border of a region, two pixels wide, in place; the picture's own rim counts as border."""
    if not inside.any() or inside.all():
        return
    padded = np.pad(inside, 1)
    edge = _borders(padded)[1:-1, 1:-1]
    canvas[edge] = colour


def _draw_grid(canvas: npt.NDArray[np.floating], cells: torch.Size, height: int, width: int, strength: float) -> None:
    """Lighten the lines between cells, in place: a checkerboard changes colour at exactly these lines."""
    rows, columns = torch.arange(cells[0]), torch.arange(cells[1])
    board = ((rows[:, None] + columns) % 2).float()
    across = enlarge(spread(board, height, width)) > 0.5
    edge = np.zeros_like(across)
    edge[:, 1:] |= across[:, 1:] != across[:, :-1]
    edge[1:] |= across[1:] != across[:-1]
    canvas[edge] = canvas[edge] * (1 - strength) + 255 * strength


def _hatch(canvas: npt.NDArray[np.floating], covered: npt.NDArray[np.bool_]) -> None:
    """Stripe the covered cells in place and outline them: this part of the destination is lost."""
    rows, columns = np.indices(covered.shape)
    stripes = covered & ((rows + columns) % 8 < 2)
    canvas[covered] *= 0.45
    canvas[stripes] = 0.5 * canvas[stripes] + 0.5 * np.array(SOURCE_COLOUR)
    _outline(canvas, covered, SOURCE_COLOUR)
