"""What pages and figures show of mixed pairs: a gallery of one method, or several methods on the same pairs.

A row of the gallery holds source, its saliency S, the salient cells S'' (Eq. 3-4), the drawn cells M, destination,
the mixed image and the label in up to three ways: by area, calibrated by saliency (Eq. 5), and by how much of the two
objects is really visible, where their masks are known. Methods without saliency (Mixup, CutMix) leave those fields out.
Shapes: B batch, C channels, H W pixels, h w cells.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.batch import MixedBatch
from saligraft.data import Split
from saligraft.data.keyed_draws import key
from saligraft.grafting import pixel_area
from saligraft.labels import calibrated_weight
from saligraft.masks.salient import salient_regions
from saligraft.methods import SaliencyGrafting
from saligraft.reports import tiles
from saligraft.reports.visibility import visible_shares
from saligraft.saliency.rescale import resize_saliency

Mixer = Callable[..., MixedBatch]

ATTEMPTS = 16  # draws until one mixes two different images, which in a batch of two most do not

STRIP_TILE = 64  # longest side of an image in a class's strip: twelve fill the column of a high-density screen
VISIBLE = "object really visible"
LOSSLESS_TILE = 32  # larger ones use lossy compression, or 20 classes would take megabytes


class LabelShare(NamedTuple):
    """One class's share of a mixed label.

    Args:
        kind: "source" or "destination".
        name: The class.
        weight: Weight in [0,1]; a label's weights sum to 1.
        percent: The weight, rounded so that a label's percentages sum to 100.
    """

    kind: str
    name: str
    weight: float
    percent: int


def label_shares(source_class: str, destination_class: str, source_weight: float | None) -> list[LabelShare]:
    """Split a mixed label into its classes.

    Args:
        source_class: Class of the source.
        destination_class: Class of the destination.
        source_weight: Weight of the source's label; None for an image that is not mixed.

    Returns:
        Source and destination, or a single entry where there is only one class.

    Example:
        >>> [(share.name, share.percent) for share in label_shares("star", "ring", 0.624)]
        [('star', 62), ('ring', 38)]
    """
    if source_weight is None or source_class == destination_class:
        return [LabelShare("source", source_class, 1.0, 100)]
    percent = round(100 * source_weight)
    return [
        LabelShare("source", source_class, source_weight, percent),
        LabelShare("destination", destination_class, 1 - source_weight, 100 - percent),
    ]


class Panel(NamedTuple):
    """One picture of a row.

    Args:
        title: Heading of its column.
        detail: Caption under the picture.
        picture: Its pixels.
        kind: "source", "destination" or "".
    """

    title: str
    detail: str
    picture: tiles.Picture
    kind: str = ""


class Label(NamedTuple):
    """One way to weight the two labels of a pair.

    Args:
        name: What the weight follows, such as "by area".
        source_weight: Weight of the source's label.
        used: Whether the method trains with this label.
    """

    name: str
    source_weight: float
    used: bool


@dataclass(frozen=True, kw_only=True)
class GalleryRow:
    """One mixed pair, on the CPU.

    Args:
        source: (C,H,W) in [0,1].
        destination: (C,H,W) in [0,1].
        mixed: (C,H,W) in [0,1].
        mask: (h,w), 1 where the source shows.
        source_class: Class of the source.
        destination_class: Class of the destination.
        labels: The label, weighted in one to three ways.
        source_saliency: (h,w), or None for a method without saliency.
        destination_saliency: (h,w) or None.
        salient: S'' as bool (h,w), or None for a method that does not select stochastically.
    """

    source: Tensor
    destination: Tensor
    mixed: Tensor
    mask: Tensor
    source_class: str
    destination_class: str
    labels: tuple[Label, ...]
    source_saliency: Tensor | None = None
    destination_saliency: Tensor | None = None
    salient: Tensor | None = None

    def shares(self, label: Label) -> list[LabelShare]:
        """Split one of the row's labels into its classes."""
        return label_shares(self.source_class, self.destination_class, label.source_weight)

    def panels(self) -> list[Panel]:
        """Draw the row's pictures, left to right; those of saliency only where there is saliency."""
        out = [Panel("Source", self.source_class, tiles.to_picture(self.source), "source")]
        if self.source_saliency is not None:
            cells = "×".join(str(side) for side in self.source_saliency.shape)
            out.append(Panel("Saliency S", f"{cells} cells", tiles.heat(self.source, self.source_saliency)))
        if self.salient is not None:
            detail = f"{int(self.salient.sum())} of {self.salient.numel()}"
            out.append(Panel("Salient S″", detail, tiles.chosen_cells(self.source, self.salient)))
        out.append(self._mask_panel())
        out.append(Panel("Destination", self.destination_class, tiles.to_picture(self.destination), "destination"))
        if self.destination_saliency is not None:
            covered = self.mask if self.mask.numel() > 1 else None  # a blend covers no cell completely
            picture = tiles.heat(self.destination, self.destination_saliency, covered)
            out.append(Panel("Its saliency", "" if covered is None else "striped: lost", picture))
        title = "Mixed" if self.source_saliency is None else "Grafted"
        return [*out, Panel(title, "network input", tiles.grafted(self.mixed, self.mask))]

    def _mask_panel(self) -> Panel:
        picture = tiles.chosen_cells(self.source, self.mask, among=self.salient)
        if self.mask.numel() == 1:
            return Panel("Mask M", f"blend {float(self.mask):.2f}", picture)
        if self.salient is not None:
            return Panel("Drawn M", f"{int(self.mask.sum())} of {int(self.salient.sum())}", picture)
        area = float(pixel_area(self.mask[None], *self.source.shape[-2:]))
        return Panel("Mask M", f"{100 * area:.0f} % of area", picture)


def rows_of_batch(
    method: Mixer,
    images: Tensor,
    classes: Sequence[str],
    mixed: MixedBatch,
    saliency: Tensor | None = None,
    objects: Tensor | None = None,
) -> list[GalleryRow]:
    """Turn every pair of a mixed batch into a row.

    Args:
        method: The method that mixed the batch.
        images: The original images (B,C,H,W) in [0,1].
        classes: Names of the classes that the labels index.
        mixed: What the method returned.
        saliency: The maps (B,h,w) that it was called with, or None.
        objects: True on the object of each image, (B,H,W) bool; None if unknown.

    Returns:
        B rows.
    """
    count, _, height, width = images.shape
    if mixed.images.shape != images.shape:
        raise ValueError(f"mixed must come from images of shape {tuple(images.shape)}, got {tuple(mixed.images.shape)}")
    masks = mixed.mask.detach().float().cpu()
    areas = pixel_area(masks, height, width)
    maps = None if saliency is None else saliency.detach().float().cpu()
    salient = None
    if maps is not None and isinstance(method, SaliencyGrafting):
        maps = resize_saliency(maps, masks.shape[-1])
        if method.selection == "stochastic":
            salient = salient_regions(
                maps, temperature=method.temperature, threshold=method.threshold, normalize=method.normalize
            )
    true_weights = None
    if objects is not None and not getattr(method, "moves_pixels", False):
        true_weights = visible_shares(objects.to(mixed.mask.device), mixed).weight
    rows = []
    for i in range(count):
        j = int(mixed.partner[i])
        labels = _labels(method, mixed, i, float(areas[i]), maps)
        if true_weights is not None and bool(true_weights[i].isfinite()):  # something of either object is visible
            labels = (*labels, Label(VISIBLE, float(true_weights[i]), used=False))
        rows.append(
            GalleryRow(
                source=images[i].cpu(),
                destination=images[j].cpu(),
                mixed=mixed.images[i].detach().cpu(),
                mask=masks[i],
                source_class=classes[int(mixed.source_labels[i])],
                destination_class=classes[int(mixed.destination_labels[i])],
                labels=labels,
                source_saliency=None if maps is None else maps[i],
                destination_saliency=None if maps is None else maps[j],
                salient=None if salient is None else salient[i],
            )
        )
    return rows


def draw_rows(
    method: Mixer,
    images: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    *,
    saliency: Tensor | None = None,
    objects: Tensor | None = None,
    count: int = 6,
    seed: int = 0,
) -> list[GalleryRow]:
    """Mix the batch once per row, so that each row has its own grid and p_B, and keep one pair of each.

    No image is paired with itself, unless the method pairs no others. Pairs of two classes that both stay visible are
    preferred, then pairs with a source that is not shown yet.

    Args:
        method: A batch mixer.
        images: (B,C,H,W) in [0,1].
        labels: Class indices (B,).
        classes: Names of the classes.
        saliency: Maps (B,h,w), or None for a method without saliency.
        objects: True on the object of each image, (B,H,W) bool; None if unknown.
        count: Number of rows.
        seed: Seed of the draws.

    Returns:
        `count` rows.
    """
    if len(images) < 1 or count < 1:
        raise ValueError(f"images and count must be at least 1, got {len(images)} images and count {count}")
    rows: list[GalleryRow] = []
    shown: set[int] = set()
    sources: Counter[int] = Counter()
    for draw in range(count):
        for attempt in range(ATTEMPTS):
            generator = torch.Generator().manual_seed(key(seed, draw + count * attempt))
            mixed = method(images, labels, saliency, generator=generator)
            pairs = [i for i, partner in enumerate(mixed.partner.tolist()) if i != partner]
            if any(0 < mixed.mask[i].float().mean() < 1 for i in pairs):
                break
        candidates = rows_of_batch(method, images, classes, mixed, saliency, objects)
        best = max(
            pairs or range(len(candidates)),
            key=lambda i: (_interest(candidates[i]), i not in shown, -sources[i], -i),
        )
        shown.update({best, int(mixed.partner[best])})
        sources[best] += 1
        rows.append(candidates[best])
    return rows


def most_balanced(rows: Sequence[GalleryRow]) -> GalleryRow:
    """Return the row whose label weights are nearest to one half, to explain the method with.

    Args:
        rows: At least one row.

    Returns:
        One of the rows.
    """
    return min(rows, key=lambda row: min(abs(label.source_weight - 0.5) for label in row.labels if label.used))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One result of a method.

    Args:
        picture: The mixed image.
        source_weight: Weight of the source's label; None for a method that keeps the image's own label.
        detail: One more line under the label.
    """

    picture: tiles.Picture
    source_weight: float | None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class MethodSamples:
    """The results of one method on one pair.

    Args:
        name: The method's name on the command line.
        title: The method's name on the page.
        note: One line on what changes from sample to sample.
        samples: Its results.
        maps: Saliency of source and destination as this method sees them; empty for a method without saliency.
        missing: Why there are no samples, if there are none.
    """

    name: str
    title: str
    note: str
    samples: tuple[Sample, ...] = ()
    maps: tuple[tiles.Picture, ...] = ()
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """One pair and the results of every method on it, as in the paper's Figure 1.

    Args:
        source: The source image.
        destination: The destination image.
        source_class: Class of the source.
        destination_class: Class of the destination.
        methods: The results of each method.
    """

    source: tiles.Picture
    destination: tiles.Picture
    source_class: str
    destination_class: str
    methods: tuple[MethodSamples, ...]

    @property
    def maps(self) -> tuple[tiles.Picture, ...]:
        """The maps of the first method that has any: those shown beside the pair."""
        return next((method.maps for method in self.methods if method.maps), ())

    def shares(self, sample: Sample) -> list[LabelShare]:
        """Split a sample's label into its classes."""
        return label_shares(self.source_class, self.destination_class, sample.source_weight)

    def originals(self, maps: Sequence[tiles.Picture]) -> list[Panel]:
        """Source, destination and the given maps of both as panels."""
        out = [
            Panel("Source", self.source_class, self.source, "source"),
            Panel("Destination", self.destination_class, self.destination, "destination"),
        ]
        details = ("of the source", "of the destination")
        return out + [Panel("Saliency", detail, picture) for detail, picture in zip(details, maps, strict=False)]


class ClassStrip(NamedTuple):
    """The first images of one class, side by side.

    Args:
        name: The class.
        picture: The images.
        file_type: "PNG", or "JPEG" for images too large to store without loss.
    """

    name: str
    picture: tiles.Picture
    file_type: str


def class_strips(data: Split, per_class: int = 12) -> list[ClassStrip]:
    """Make one strip of images for every class, of up to 20 classes; large images are shrunk.

    Args:
        data: Any split of a data set.
        per_class: Number of images in a strip.

    Returns:
        The strips of the classes that have images.
    """
    longer = max(data.image_shape[1:])
    size = [max(1, round(side * STRIP_TILE / longer)) for side in data.image_shape[1:]]
    strips = []
    for label, name in list(enumerate(data.classes))[:20]:
        images = data.take((data.labels == label).nonzero()[:per_class, 0]).images.float() / 255
        if len(images):
            if longer > STRIP_TILE:
                images = F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
            strip = np.concatenate([tiles.to_picture(image) for image in images], axis=1)
            strips.append(ClassStrip(name, strip, "PNG" if longer <= LOSSLESS_TILE else "JPEG"))
    return strips


def _labels(method: Mixer, mixed: MixedBatch, i: int, area: float, maps: Tensor | None) -> tuple[Label, ...]:
    """By area and by saliency where the method knows both; otherwise its own weight alone."""
    own = float(mixed.source_weight[i])
    if maps is None or not isinstance(method, SaliencyGrafting):
        return (Label("by mixing ratio" if mixed.mask[i].numel() == 1 else "by area", own, used=True),)
    by_saliency = own
    if method.label_mixing == "area":
        j = int(mixed.partner[i])
        size = (mixed.images.shape[-2], mixed.images.shape[-1])
        mask = mixed.mask[i : i + 1].cpu()
        by_saliency = float(
            calibrated_weight(maps[i : i + 1], maps[j : j + 1], mask, norm=method.norm, image_size=size)
        )
    return (
        Label("by area", area, used=method.label_mixing == "area"),
        Label("calibrated by saliency", by_saliency, used=method.label_mixing == "saliency"),
    )


def _interest(row: GalleryRow) -> int:
    """How instructive a pair is: two classes count most, then a mask that is neither empty nor full."""
    mixes = 0.0 < float(row.mask.mean()) < 1.0
    return 2 * (row.source_class != row.destination_class) + mixes
