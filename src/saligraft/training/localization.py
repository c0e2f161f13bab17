"""Weakly supervised localisation: a box from a class activation map, compared with the true one.

The protocol of Yun et al. (CutMix, ICCV 2019) that the paper's appendix A follows, as in the original code of Choe &
Shim (ADL, CVPR 2019): CAM of the label's class, upsampled to the image and shifted to a minimum of 0; what
exceeds 15 % of its maximum; the smallest box around the largest connected component of that.
Shapes: B batch, H W pixels; a box is x0 y0 x1 y1, ends exclusive.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft import checks
from saligraft.data.shapes import mask_boxes

THRESHOLD = 0.15  # of the map's maximum
LEAST_IOU = 0.5  # above it, a box counts as correct


def map_boxes(maps: Tensor, size: tuple[int, int], threshold: float = THRESHOLD) -> Tensor:
    """Return the box around the largest connected component of each map's high values.

    Pixels that touch, also at a corner, are connected; the largest component has the most pixels; ties go to the first.

    Args:
        maps: Class activation maps (B,h,w); evidence against the class is negative.
        size: H and W of the image, to which maps are resized (bilinear).
        threshold: Threshold as a share of the maximum, once the minimum is 0.

    Returns:
        Boxes (B,4) int64; empty, all zeros, for a map that is constant.

    Example:
        >>> from saligraft.training.localization import map_boxes
        >>> map_boxes(torch.tensor([[[0.0, 9.0, 9.0, 0.0, 1.0], [0.0, 9.0, 0.0, 0.0, 1.0]]]), size=(2, 5))
        tensor([[1, 0, 3, 2]])
    """
    checks.rank("maps", maps, "(B, h, w)")
    checks.probability("threshold", threshold)
    values = F.interpolate(checks.at_least_float32(maps)[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    values = values - values.amin(dim=(1, 2), keepdim=True)
    largest = largest_components(values > threshold * values.amax(dim=(1, 2), keepdim=True))
    not_empty = largest.any(dim=2).any(dim=1)
    return mask_boxes(largest) * not_empty[:, None]


def largest_components(masks: Tensor) -> Tensor:
    """Keep the largest 8-connected component of each mask; ties go to the first, empty masks stay empty.

    Args:
        masks: (B,H,W) bool.
    """
    count, height, width = masks.shape
    pixels = height * width
    # Each pixel points to one of its component. Taking the lowest of the neighbours' and following it halves what
    # remains, until all point to the component's first pixel.
    first = torch.arange(pixels, device=masks.device).expand(count, pixels)
    outside = ~masks.flatten(1)
    while True:
        lowest = -F.max_pool2d(-first.masked_fill(outside, pixels).float().view(count, 1, height, width), 3, 1, 1)
        lower = torch.where(outside, first, lowest.flatten(1).long())
        lower = lower.gather(1, lower)
        if torch.equal(lower, first):
            break
        first = lower
    sizes = torch.zeros(count, pixels, dtype=torch.int64, device=masks.device)
    sizes = sizes.scatter_add(1, first, masks.flatten(1).long())
    return masks & (first == sizes.argmax(dim=1, keepdim=True)).view_as(masks)


def boxes_in_view(boxes: Tensor, geometry: Tensor, size: tuple[int, int]) -> Tensor:
    """Move boxes of stored images into the views that a loader cut out of them, and clip them there.

    Args:
        boxes: Boxes in pixels of the stored images, (B,4).
        geometry: Geometry of each view, see `Batch`.
        size: H and W of the views.

    Returns:
        Boxes (B,4) float32; empty where the view shows nothing of the box.
    """
    height, width = size
    columns = geometry.unbind(1)
    top, left, flipped = columns[0], columns[1], columns[-1]
    rows, across = columns[2:4] if len(columns) > 3 else (torch.full_like(top, height), torch.full_like(top, width))
    x0, y0, x1, y1 = boxes.to(geometry.device).unbind(1)
    x0, x1 = ((x - left) * (width / across) for x in (x0, x1))
    y0, y1 = ((y - top) * (height / rows) for y in (y0, y1))
    mirrored = flipped.bool()
    x0, x1 = torch.where(mirrored, width - x1, x0), torch.where(mirrored, width - x0, x1)
    limits = torch.tensor([width, height, width, height], device=geometry.device)
    return torch.minimum(torch.stack([x0, y0, x1, y1], dim=1).clamp(min=0), limits).float()


def box_masks(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the pixels (B,H,W) bool whose centres lie in boxes (B,4).

    Args:
        boxes: Boxes in pixels.
        size: H and W.
    """
    x0, y0, x1, y1 = (side[:, None] for side in boxes.unbind(1))
    rows, columns = (torch.arange(length, device=boxes.device) + 0.5 for length in size)
    return ((rows > y0) & (rows < y1))[:, :, None] & ((columns > x0) & (columns < x1))[:, None, :]


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union (B,) of boxes (B,4), pair by pair, on the host; 0 for two empty ones.

    Args:
        first: Boxes (B,4).
        second: Boxes (B,4).
    """
    first, second = first.cpu().double(), second.cpu().double()  # not every device has float64
    start, end = torch.maximum(first[:, :2], second[:, :2]), torch.minimum(first[:, 2:], second[:, 2:])
    shared = (end - start).clamp(min=0).prod(dim=1)
    total = sum((box[:, 2:] - box[:, :2]).clamp(min=0).prod(dim=1) for box in (first, second))
    union = total - shared
    return torch.where(union > 0, shared / union, 0.0)
