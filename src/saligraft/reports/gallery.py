"""The gallery: what a mixing method did to pairs of images, one row per pair.

A row holds source, its saliency S, the salient cells S'' (Eq. 3-4), the drawn cells M, destination, the mixed
image and the label in up to two ways: by area, and calibrated by saliency (Eq. 5). Methods without saliency
(Mixup, CutMix) leave those fields out. Shapes: B batch, C channels, H W pixels, h w cells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from saligraft.batch import MixedBatch
from saligraft.data.keyed_draws import key
from saligraft.grafting import pixel_area
from saligraft.labels import calibrated_weight
from saligraft.masks.salient import salient_regions
from saligraft.methods import SaliencyGrafting
from saligraft.reports import tiles
from saligraft.saliency.rescale import resize_saliency

Mixer = Callable[..., MixedBatch]


@dataclass(frozen=True, kw_only=True)
class Label:
    """One way of weighing the two labels; `used` marks the one that the method trains with."""

    name: str
    source_weight: float
    used: bool


@dataclass(frozen=True, kw_only=True)
class GalleryRow:
    """One mixed pair. Images (C,H,W) in [0,1]; maps and masks (h,w) on the CPU."""

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

    def shares(self, label: Label) -> list[tuple[str, int]]:
        """Class and per cent of the source, then of the destination; one entry where they are of one class."""
        if self.source_class == self.destination_class:
            return [(self.source_class, 100)]
        share = round(100 * label.source_weight)
        return [(self.source_class, share), (self.destination_class, 100 - share)]

    def in_words(self, label: Label) -> str:
        """The label as people read it: `star 62 % · ring 38 %`."""
        return " · ".join(f"{name} {share} %" for name, share in self.shares(label))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture of a row: its heading, what stands under it, and the pixels."""

    title: str
    detail: str
    picture: tiles.Picture
    kind: str = ""


def valid_text(text: str) -> str:
    """The text with what UTF-8 cannot hold escaped, as `\\udce9` for a byte of a file name that is not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def rows_of_batch(
    method: Mixer, images: Tensor, classes: Sequence[str], mixed: MixedBatch, saliency: Tensor | None = None
) -> list[GalleryRow]:
    """Every pair of one mixed batch as a row; `saliency` (B,h,w) at the size the network gave it."""
    count, _, height, width = images.shape
    if mixed.images.shape != images.shape:
        raise ValueError(f"mixed must come from images of shape {tuple(images.shape)}, got {tuple(mixed.images.shape)}")
    masks = mixed.mask.detach().float().cpu()
    areas = pixel_area(masks, height, width)
    maps = _maps_at_mask_grid(method, saliency, masks)
    salient = _salient_cells(method, maps)
    rows = []
    for i in range(count):
        j = int(mixed.partner[i])
        rows.append(
            GalleryRow(
                source=images[i].cpu(),
                destination=images[j].cpu(),
                mixed=mixed.images[i].detach().cpu(),
                mask=masks[i],
                source_class=classes[int(mixed.source_labels[i])],
                destination_class=classes[int(mixed.destination_labels[i])],
                labels=_labels(method, mixed, i, float(areas[i]), maps),
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
    count: int = 6,
    seed: int = 0,
) -> list[GalleryRow]:
    """Mix the batch once per row, so that each row has a grid and p_B of its own, and keep one pair of each.

    Preferred are pairs of two classes, of which both stay visible, with sources not shown before; where the
    batch has none, the next best pair stands in.
    """
    if len(images) < 1 or count < 1:
        raise ValueError(f"images and count must be at least 1, got {len(images)} images and count {count}")
    rows: list[GalleryRow] = []
    shown: set[int] = set()
    for draw in range(count):
        generator = torch.Generator().manual_seed(key(seed, draw))
        mixed = method(images, labels, saliency, generator=generator)
        candidates = rows_of_batch(method, images, classes, mixed, saliency)
        best = max(range(len(candidates)), key=lambda i: (_worth(candidates[i]), i not in shown, -i))
        shown.update({best, int(mixed.partner[best])})
        rows.append(candidates[best])
    return rows


def most_telling(rows: Sequence[GalleryRow]) -> GalleryRow:
    """The row in which both classes count most alike: the one to explain the method with."""
    return min(rows, key=lambda row: min(abs(label.source_weight - 0.5) for label in row.labels if label.used))


def panels(row: GalleryRow) -> list[Panel]:
    """The pictures of a row, left to right; those of saliency only where there is saliency."""
    out = [Panel(title="Source", detail=row.source_class, picture=tiles.to_picture(row.source), kind="source")]
    if row.source_saliency is not None:
        grid = "×".join(str(side) for side in row.source_saliency.shape)
        out.append(
            Panel(title="Saliency S", detail=f"{grid} cells", picture=tiles.heat(row.source, row.source_saliency))
        )
    if row.salient is not None:
        picture = tiles.chosen_cells(row.source, row.salient)
        detail = f"{int(row.salient.sum())} of {row.salient.numel()}"
        out.append(Panel(title="Salient S″", detail=detail, picture=picture))
    out.append(_mask_panel(row))
    out.append(
        Panel(
            title="Destination",
            detail=row.destination_class,
            picture=tiles.to_picture(row.destination),
            kind="destination",
        )
    )
    if row.destination_saliency is not None:
        covered = row.mask if row.mask.numel() > 1 else None  # a blend covers nothing wholly
        picture = tiles.heat(row.destination, row.destination_saliency, covered)
        detail = "" if covered is None else "striped: lost"
        out.append(Panel(title="Its saliency", detail=detail, picture=picture))
    title = "Mixed" if row.source_saliency is None else "Grafted"
    out.append(Panel(title=title, detail="network input", picture=tiles.grafted(row.mixed, row.mask)))
    return out


def gallery_html(rows: Sequence[GalleryRow]) -> str:
    """The rows as HTML: crisp small pictures, real text, bars drawn by CSS."""
    if not rows:
        return '<p class="muted">No pairs to show.</p>'
    first = panels(rows[0])
    head = "".join(f"<span>{escape(panel.title)}</span>" for panel in first)
    body = "".join(_row_html(row) for row in rows)
    return (
        f'<div class="gallery" style="--panels:{len(first)}"><div class="pair head" aria-hidden="true">'
        f"{head}<span>Label</span></div>{body}</div>"
    )


def picture_html(picture: tiles.Picture, alt: str) -> str:
    """One inlined picture; small ones keep their square pixels when the page enlarges them."""
    height, width = picture.shape[:2]
    crisp = ' class="crisp"' if max(height, width) <= 96 else ""
    return f'<img{crisp} src="{tiles.data_uri(picture)}" width="{width}" height="{height}" alt="{escape(alt)}">'


def label_html(row: GalleryRow, label: Label) -> str:
    """One label as words over a bar in the two classes' colours."""
    same = row.source_class == row.destination_class
    share = 100.0 if same else 100 * label.source_weight
    return (
        f'<div class="label{"" if label.used else " other"}"><div class="how">{escape(label.name)}</div>'
        f'<div class="words">{_words_html(row, label)}</div>'
        f'<div class="bar" role="img" aria-label="{escape(row.in_words(label))}">'
        f'<i style="width:{share:.1f}%"></i></div></div>'
    )


def _row_html(row: GalleryRow) -> str:
    figures = "".join(
        f'<figure class="{panel.kind}">{picture_html(panel.picture, f"{panel.title}: {panel.detail}")}'
        f"<figcaption><b>{escape(panel.title)}</b> {escape(panel.detail)}</figcaption></figure>"
        for panel in panels(row)
    )
    labels = "".join(label_html(row, label) for label in row.labels)
    return f'<article class="pair">{figures}<div class="labels">{labels}</div></article>'


def _words_html(row: GalleryRow, label: Label) -> str:
    """The shares in the classes' colours; a line breaks within a name of several words, not before its number."""
    kinds = ("source", "destination")
    return " · ".join(
        f'<span class="{kind}">{escape(name)}\u00a0{share}\u00a0%</span>'
        for kind, (name, share) in zip(kinds, row.shares(label), strict=False)
    )


def _mask_panel(row: GalleryRow) -> Panel:
    picture = tiles.chosen_cells(row.source, row.mask, among=row.salient)
    if row.mask.numel() == 1:
        return Panel(title="Mask M", detail=f"blend {float(row.mask):.2f}", picture=picture)
    if row.salient is not None:
        return Panel(title="Drawn M", detail=f"{int(row.mask.sum())} of {int(row.salient.sum())}", picture=picture)
    area = float(pixel_area(row.mask[None], *row.source.shape[-2:]))
    return Panel(title="Mask M", detail=f"{100 * area:.0f} % of area", picture=picture)


def _maps_at_mask_grid(method: Mixer, saliency: Tensor | None, masks: Tensor) -> Tensor | None:
    """The maps at the grid the method worked on, or as they came where the mask is no grid of cells."""
    if saliency is None:
        return None
    maps = saliency.detach().float().cpu()
    if isinstance(method, SaliencyGrafting):
        return resize_saliency(maps, masks.shape[-1])
    return maps


def _salient_cells(method: Mixer, maps: Tensor | None) -> Tensor | None:
    if maps is None or not isinstance(method, SaliencyGrafting) or method.selection != "stochastic":
        return None
    return salient_regions(maps, temperature=method.temperature, threshold=method.threshold, normalize=method.normalize)


def _labels(method: Mixer, mixed: MixedBatch, i: int, area: float, maps: Tensor | None) -> tuple[Label, ...]:
    """By area and by saliency where the method knows both; its own weight alone otherwise."""
    own = float(mixed.source_weight[i])
    if maps is None or not isinstance(method, SaliencyGrafting):
        return (
            Label(name="by mixing ratio" if mixed.mask[i].numel() == 1 else "by area", source_weight=own, used=True),
        )
    if method.label_mixing == "saliency":
        by_saliency = own
    else:
        j = int(mixed.partner[i])
        mask = mixed.mask[i : i + 1].cpu()
        size = (mixed.images.shape[-2], mixed.images.shape[-1])
        by_saliency = float(
            calibrated_weight(maps[i : i + 1], maps[j : j + 1], mask, norm=method.norm, image_size=size)
        )
    return (
        Label(name="by area", source_weight=area, used=method.label_mixing == "area"),
        Label(name="calibrated by saliency", source_weight=by_saliency, used=method.label_mixing == "saliency"),
    )


def _worth(row: GalleryRow) -> int:
    """How much a pair has to show: two classes count most, then a mask that is neither empty nor full."""
    mixes = 0.0 < float(row.mask.mean()) < 1.0
    return 2 * (row.source_class != row.destination_class) + mixes
