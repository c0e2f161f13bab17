"""A box around the peak of a map, for SaliencyMix (Uddin et al., ICLR 2021, Section 3.2)."""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.maps import usable_maps


def peak_box(saliency: Tensor, ratio: Tensor, height: int, width: int) -> Tensor:
    """Boxes centred at each map's peak, clipped at the border.

    Sized as `draws.boxes` sizes CutMix's: both authors round half a side down, so an odd side loses one pixel. Ties
    go to the first peak, as in the authors' code; a cell that covers several pixels is represented by its centre pixel.
    A map that is not finite has no peak: its box is empty.

    Args:
        saliency: (B, h, w).
        ratio: (B,) in [0, 1], the box's share of the image before clipping.
        height: H of the image.
        width: W of the image.

    Returns:
        (B, 4) as top, left, bottom, right (end exclusive).
    """
    checks.saliency(saliency)
    checks.rank("ratio", ratio, "(B)", saliency, "saliency")
    if len(ratio) != len(saliency):
        raise ValueError(f"ratio must have one entry per map: expected {len(saliency)}, got {len(ratio)}")
    for name, value in (("height", height), ("width", width)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    rows, columns = saliency.shape[1:]
    peak = saliency.flatten(1).argmax(dim=1)
    side = checks.at_least_float32(ratio).sqrt()
    starts, ends = [], []
    for cell, cells, limit in ((peak // columns, rows, height), (peak % columns, columns, width)):
        half = (side * limit).long() // 2
        centre = (2 * cell + 1) * limit // (2 * cells)
        starts.append((centre - half).clamp(min=0))
        ends.append((centre + half).clamp(max=limit))
    box = torch.stack(starts + ends, dim=1)
    return torch.where(usable_maps(saliency)[:, None], box, 0)
