"""Read what a layer returns as a map of the image, whatever its axes (§4.3 assumes A ∈ R^{C×H×W}; networks differ).

A map has shape (B, C, h, w), (B, h, w, C) in Swin, or is tokens (B, N, C) or (N, B, C) in vision transformers,
where class, distillation and register tokens come before the h·w patches. Only the shapes of tensor and image decide: a
map has the image's proportions.
Shapes: B batch, C channels, H W pixels, h w cells of the map, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, NamedTuple

from torch import Tensor

from saligraft import checks

Grid = tuple[int, int]

# Without a patch grid seen earlier in the pass, more leading tokens than this do not count as a prefix:
# networks in use have at most 1 class + 1 distillation + 8 register tokens.
MOST_PREFIX_TOKENS = 16


class Layout(NamedTuple):
    """How a layer's tensor is laid out.

    Args:
        axes: their order.
        prefix: number of tokens before the patches.
    """

    axes: Literal["bchw", "bhwc", "bnc", "nbc", "bcthw", "bcl"]
    prefix: int = 0


class ImageShape(NamedTuple):
    """Size of a batch of images.

    Args:
        batch: B.
        height: H.
        width: W.
    """

    batch: int
    height: int
    width: int


class Reading(NamedTuple):
    """A tensor read as a map.

    Args:
        layout: the order of its axes.
        grid: (h, w).
    """

    layout: Layout
    grid: Grid


def image_shape(images: Tensor) -> ImageShape:
    """Return the size of images (B, C, H, W), of a video's frames, or of signals, which are 1 high."""
    return ImageShape(images.shape[0], *checks.frame_size(images))


def read_map(shape: tuple[int, ...], image: ImageShape, *, strict: bool) -> Reading | None:
    """Read four axes: channels first if that has the image's proportions, else channels last if that has them.

    Args:
        shape: shape of the tensor.
        image: size of the images.
        strict: whether the proportions must fit. Strides may differ between the axes, as for spectrograms; unless
            strict, channels first is then assumed.
    """
    if len(shape) != 4 or shape[0] != image.batch:
        return None
    first, last = (shape[2], shape[3]), (shape[1], shape[2])
    if _has_proportions(first, image):
        return Reading(Layout("bchw"), first)
    if _has_proportions(last, image):
        return Reading(Layout("bhwc"), last)
    if not strict and first[0] * first[1] > 1 and first[0] <= image.height and first[1] <= image.width:
        return Reading(Layout("bchw"), first)
    return None


def read_tokens(shape: tuple[int, ...], image: ImageShape, grids_seen: Collection[Grid]) -> Reading | None:
    """Read three axes: a prefix and a grid that was seen before the tokens, or one that results from merging its cells.

    If only the image's pixels were seen as a grid, it is the likeliest one. Other counts, as after dropping patches,
    form no grid; if cells were merged, at most one class token counts as a prefix. One value each is no token, but a
    pooled vector of channels, (B, C, 1).

    Args:
        shape: shape of the tensor.
        image: size of the images.
        grids_seen: grids of maps and tokens earlier in the pass.
    """
    if len(shape) != 3 or image.batch not in shape[:2] or shape[2] == 1:
        return None
    axes: Literal["bnc", "nbc"] = "bnc" if shape[0] == image.batch else "nbc"
    tokens = shape[1] if axes == "bnc" else shape[0]
    grid = max((grid for grid in grids_seen if _cells(grid) <= tokens), key=_cells, default=(0, 0))
    if tokens - _cells(grid) < max(_cells(grid), MOST_PREFIX_TOKENS + 1) and _cells(grid) > 1:
        return Reading(Layout(axes, tokens - _cells(grid)), grid)
    coarser = [seen for seen in grids_seen if _cells(seen) < image.height * image.width]
    for prefix in range(min(1 if coarser else MOST_PREFIX_TOKENS, tokens - 2) + 1):
        merged = token_grid(tokens - prefix, image)
        if merged is not None and (not coarser or any(_merged_from(merged, seen) for seen in coarser)):
            return Reading(Layout(axes, prefix), merged)
    return None


def token_grid(cells: int, image: ImageShape) -> Grid | None:
    """Return the (h, w), h · w = cells, that square patches of one size cut from the image, or None if no size does."""
    pairs = [(h, cells // h) for h in range(1, cells + 1) if cells % h == 0]
    fitting = [pair for pair in pairs if _cut_by_patches(pair, image)]
    return min(fitting, key=lambda pair: _disproportion(pair, image), default=None)


def channels_first(features: Tensor, layout: Layout) -> Tensor:
    """Bring features to (B, C, h, w), or (B, C, h·w, 1) for tokens, whose prefix is dropped.

    Frames of videos count as channels, (B, C·t, h, w); maps of signals are one row, (B, C, 1, l).
    """
    if layout.axes == "bchw":
        return features
    if layout.axes == "bcthw":
        return features.flatten(1, 2)  # summed over channels and frames alike
    if layout.axes == "bcl":
        return features[:, :, None]
    if layout.axes == "bhwc":
        return features.permute(0, 3, 1, 2)
    if layout.axes == "bnc":
        return features[:, layout.prefix :].transpose(1, 2).unsqueeze(-1)
    return features[layout.prefix :].permute(1, 2, 0).unsqueeze(-1)


def _cells(grid: Grid) -> int:
    return grid[0] * grid[1]


def _has_proportions(grid: Grid, image: ImageShape) -> bool:
    """Whether a single stride, give or take one cell at the border, turns the image into the grid."""
    (h, w), (height, width) = grid, image[1:]
    if h * w < 2 or h > height + 2 or w > width + 2:  # padding adds at most two cells
        return False
    smallest = max(height / (h + 1), width / (w + 1))
    largest = min(height / (h - 1) if h > 1 else math.inf, width / (w - 1) if w > 1 else math.inf)
    return smallest < largest


def _cut_by_patches(grid: Grid, image: ImageShape) -> bool:
    """Like `_has_proportions`, but exact: both axes round the same way, so a square image has a square grid."""
    (h, w), (height, width) = grid, image[1:]
    if h * w < 2 or h > height or w > width:
        return False
    rounded_down = max(height / (h + 1), width / (w + 1)) < min(height / h, width / w)
    rounded_up = max(height / h, width / w) < min(
        height / (h - 1) if h > 1 else math.inf, width / (w - 1) if w > 1 else math.inf
    )
    return rounded_down or rounded_up


def _merged_from(grid: Grid, finer: Grid) -> bool:
    """Whether merging squares of cells of the finer grid, the last ones cropped or padded, results in the grid."""
    h, w = finer
    return any(grid in ((h // side, w // side), (-(-h // side), -(-w // side))) for side in range(2, max(h, w) + 1))


def _disproportion(grid: Grid, image: ImageShape) -> float:
    return abs(math.log(grid[0] / grid[1]) - math.log(image.height / image.width))
