"""`shapes`: a data set that the package renders itself, with the true mask and box of every object.

Ten classes of outline in any colour, texture, size and pose, on textured ground among clutter, partly occluded.
Only the outline determines the class: colours, textures, clutter, position and object area are drawn independently.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from saligraft.checks import one_of, whole_number
from saligraft.data.dataset import ImageData, view_size
from saligraft.data.keyed_draws import key, keyed_uniforms
from saligraft.data.shapes.outlines import OUTLINES
from saligraft.data.shapes.scene import COLUMNS, SUPERSAMPLING, render
from saligraft.data.threads import one_thread

CLASSES = tuple(OUTLINES)
SPLITS = ("train", "test")
SMALLEST = 16  # pixels: below this outlines cannot be distinguished
LARGEST = 1024
MOST_PIXELS = 10**9  # per class and split: 30 GB for ten classes
MEAN = (0.494, 0.507, 0.504)  # of the first 4,000 training images of seed 0
STD = (0.320, 0.295, 0.313)
_SAMPLES_PER_BLOCK = 1 << 17  # rendered at once: fits the processor's cache, and memory at any image size


def shapes(*, split: str = "train", size: int | Sequence[int] = 32, per_class: int = 100, seed: int = 0) -> ImageData:
    """Ten classes of outlines, rendered here with the true mask and box of each; needs no files.

    Image i shows class i % 10 and depends only on (seed, split, i, size), so a smaller `per_class` gives the first
    images of a larger one, and train and test are independent.
    The mask contains the pixels of which at least half shows the object; occluded parts do not count. The box encloses
    the mask, which is never empty.

    Args:
        split: "train" or "test".
        size: Side, or (height, width), at least 16; the same seed shows the same scenes at every square size.
        per_class: Images per class.
        seed: Seed of all scenes.
    """
    one_of("split", split, SPLITS)
    height, width = view_size(size, least=SMALLEST, most=LARGEST)
    whole_number("per_class", per_class, least=1, most=MOST_PIXELS // (height * width))
    whole_number("seed", seed, least=0)
    stream = key(seed, SPLITS.index(split))
    # Every block has the same shape, so that vectorised arithmetic rounds the same for any `per_class`.
    samples = len(CLASSES) * height * width * SUPERSAMPLING**2
    numbers = max(1, _SAMPLES_PER_BLOCK // samples)
    with one_thread():
        blocks = [
            _render_block(stream, start * len(CLASSES), numbers * len(CLASSES), (height, width))
            for start in range(0, per_class, numbers)
        ]
    count = per_class * len(CLASSES)
    images, masks = (torch.cat(part)[:count] for part in zip(*blocks, strict=True))
    labels = torch.arange(count) % len(CLASSES)
    return ImageData(
        name="shapes",
        images=images,
        labels=labels,
        classes=CLASSES,
        mean=MEAN,
        std=STD,
        masks=masks,
        boxes=mask_boxes(masks),
    )


def _render_block(stream: int, start: int, count: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Images (count,3,H,W) uint8 and masks (count,H,W) bool of the scenes from `start` on."""
    index = torch.arange(start, start + count)
    draws = keyed_uniforms(stream, index, sum(COLUMNS.values()))
    images, share = render(index % len(CLASSES), draws, size)
    # The pixel that shows most of the object always counts: a small thin outline may fill no pixel by half.
    fullest = share.flatten(1).amax(1)[:, None, None].clamp(max=0.5)
    return (images * 255).round().to(torch.uint8), share >= fullest


def mask_boxes(masks: Tensor) -> Tensor:
    """Return the tight boxes (N,4), x0 y0 x1 y1 with exclusive ends, of masks.

    Args:
        masks: (N,H,W) bool, none of them empty.
    """
    spans = []
    for filled in (masks.any(1), masks.any(2)):  # columns, then rows
        length = filled.shape[1]
        first = filled.int().argmax(1)
        spans.append((first, length - filled.flip(1).int().argmax(1)))
    (x0, x1), (y0, y1) = spans
    return torch.stack([x0, y0, x1, y1], dim=1)
