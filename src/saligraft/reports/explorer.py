"""The data of the interactive view: a few images with their maps, from which the page computes everything itself.

`templates/steps.js` repeats the paper's steps and the other methods in JavaScript, `templates/explorer.js` draws them;
`tests/browser` compares their numbers with the library's. PuzzleMix alone is solved here, once for every pair.
Shapes: n images, C channels, H W pixels, h w cells of a map.
"""

import base64
import math
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.methods import PuzzleMix
from saligraft.methods.puzzlemix.method import puzzlemix
from saligraft.reports import tiles
from saligraft.reports.figures import valid_text
from saligraft.saliency.bottom_up import fine_grained_saliency

IMAGES = 8  # that a page lets choose from
SIDE = 128  # longest side in pixels; larger images are shrunk
LOSSLESS = 64  # larger images are stored as JPEG
BLOCKS = (8, 4, 2)  # per side for PuzzleMix: the first that divides the image
PUZZLE_RATIO = 0.5


def varied(labels: Tensor, count: int = IMAGES) -> Tensor:
    """Choose images of as many classes as possible.

    Args:
        labels: Class of each image, (N,).
        count: Number of images.

    Returns:
        Indices, at most `count`.

    Example:
        >>> varied(torch.tensor([0, 0, 0, 1, 2]), 4).tolist()
        [0, 3, 4, 1]
    """
    by_class = [(labels == label).nonzero()[:, 0].tolist() for label in sorted(set(labels.tolist()))]
    rounds = chain.from_iterable(zip_longest(*by_class))  # the first of each class, then the second
    return torch.tensor([index for index in rounds if index is not None][:count])


def explorer_data(
    images: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    saliency: Tensor,
    *,
    gradients: Tensor | None = None,
    objects: Tensor | None = None,
    origin: str = "",
) -> dict[str, Any]:
    """Describe images for the interactive view, as JSON can hold it.

    Args:
        images: (n,C,H,W) in [0,1], two or more.
        labels: Class indices (n,).
        classes: Names of the classes.
        saliency: The maps S, (n,h,w), at the network's resolution.
        gradients: Input gradients (n,H,W), for PuzzleMix; None leaves it out.
        objects: True on the object of each image, (n,H,W) bool; None if unknown.
        origin: One line on the network that the maps come from.

    Returns:
        What `explorer.html` shows.
    """
    if len(images) < 2:
        raise ValueError(f"images must be at least 2 to make a pair, got {len(images)}")
    images, saliency = images.detach().float().cpu().clamp(0, 1), saliency.detach().cpu()
    longer = max(images.shape[-2:])
    if longer > SIDE:
        size = [max(1, round(side * SIDE / longer)) for side in images.shape[-2:]]
        images = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
        objects = None if objects is None else F.interpolate(objects[:, None].float(), size)[:, 0] > 0.5
    height, width = images.shape[-2:]
    peaks = fine_grained_saliency(images).flatten(1).argmax(dim=1)
    kind = "PNG" if max(height, width) <= LOSSLESS else "JPEG"
    return {
        "height": height,
        "width": width,
        "origin": valid_text(origin),
        "images": [
            {
                "name": valid_text(classes[int(labels[i])]),
                "picture": tiles.data_uri(tiles.to_picture(images[i]), kind),
                "saliency": [[_number(value) for value in row] for row in saliency[i].tolist()],
                "peak": [int(peaks[i]) // width, int(peaks[i]) % width],
                "object": None if objects is None else _bits(objects[i]),
            }
            for i in range(len(images))
        ],
        "puzzle": None if gradients is None else _puzzle(images, gradients.detach().float().cpu()),
    }


def _number(value: float) -> float | None:
    """A value of float32 in as few digits as it takes; None for one that JSON cannot hold."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _bits(mask: Tensor) -> str:
    """A mask (H,W), eight pixels to a byte, in base64."""
    return base64.b64encode(np.packbits(mask.cpu().numpy()).tobytes()).decode("ascii")


def _puzzle(images: Tensor, gradients: Tensor) -> dict[str, Any] | None:
    """PuzzleMix's mask of every pair for λ = ½, and the blocks that either image shows; None if it cannot be solved.

    Instead of the images' pixels, one pixel per block is moved, which holds the block's number: source and destination
    each have a channel, 0 in the other's image.
    """
    count, _, height, width = images.shape
    grid = next((blocks for blocks in BLOCKS if height % blocks == width % blocks == 0), None)
    if grid is None:
        return None
    numbers = torch.arange(1.0, grid * grid + 1).view(1, grid, grid).expand(count, 1, grid, grid)
    nothing = torch.zeros_like(numbers)
    shown = torch.cat((numbers, nothing), dim=1), torch.cat((nothing, numbers), dim=1)
    method, pairs = PuzzleMix(pixel_std=1.0), {}
    for shift in range(1, count):
        partner = torch.arange(count).roll(-shift)
        ratio, terms = torch.full((count,), PUZZLE_RATIO), method.terms
        try:
            mixed = puzzlemix(
                images, partner, gradients, partner=partner, ratio=ratio, grid=grid, terms=terms, shown=shown
            )
        except ImportError:  # no solver is installed
            return None
        for i in range(count):
            mask, (source, destination) = mixed.mask[i], mixed.images[i]
            blocks = (source / mask.clamp(min=0.5), destination / (1 - mask).clamp(min=0.5))
            # A block that is not shown has number 0, so any may stand for it.
            numbers_shown = [(part.round().long() - 1).clamp(min=0).flatten().tolist() for part in blocks]
            pairs[f"{i}-{int(partner[i])}"] = [mask.mul(2).long().flatten().tolist(), *numbers_shown]
    return {"grid": grid, "pairs": pairs}
