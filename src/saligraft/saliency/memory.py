"""Remembered saliency: one small map per sample, in the frame of its stored image, so that a graft needs no extra pass.

A view shows a part of the frame, cropped and flipped; maps move between the two by the area that their cells share.
Memory: 2 bytes per cell, so 6.4 MB for CIFAR-100 (50,000 × 8 × 8) and 126 MB for ImageNet (1,281,167 × 7 × 7).
Shapes: N samples, B batch, H W pixels, h w cells of a view's map, m n cells of a remembered map.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft import checks
from saligraft.maps import usable_maps

BLEND = 0.5  # weight of a new look at a sample against all earlier ones
GEOMETRY = "top, left, flipped (B, 3), or top, left, height, width, frame height, frame width, flipped (B, 7)"


class Views(NamedTuple):
    """Which samples a batch shows, and which part of each.

    Args:
        index: (B,), places in the table.
        boxes: (B, 7) int64: top, left, height and width of the part, height and width of the frame, flipped.
    """

    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    boxes: Tensor

    @classmethod
    def of(cls, images: Tensor, index: Tensor | None, geometry: Tensor | None = None) -> Views:
        """Validate what a training loop passes for its batch.

        Args:
            images: (B, C, H, W).
            index: (B,), the place of each sample in the data set.
            geometry: Top, left, flipped (B, 3) of crops as large as the stored image; or top, left, height, width,
                height and width of the stored image, flipped (B, 7); None for images that are neither cropped nor
                flipped.
        """
        if index is None:
            raise ValueError(
                "index must be given to a step that remembers maps: the place (B,) of each sample in the data set, "
                "and geometry where images are cropped or flipped; got None"
            )
        checks.rank("index", index, "(B)")
        if len(index) != len(images):
            raise ValueError(f"index must have one entry per image: expected {len(images)}, got {len(index)}")
        if geometry is not None:
            checks.tensor("geometry", geometry)
        for name, value in (("index", index), ("geometry", geometry)):
            if value is not None and (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool):
                raise TypeError(f"{name} must hold integers, got {value.dtype}")
        if checks.may_look(index) and int(index.min()) < 0:
            raise ValueError(f"index must be >= 0, got {int(index.min())}")
        return cls(index.to(images.device, torch.int64), _boxes(images, geometry))


def _boxes(images: Tensor, geometry: Tensor | None) -> Tensor:
    """Geometry in its longer form, (B, 7)."""
    if geometry is None:
        return _whole(len(images), images.device)
    if geometry.ndim != 2 or len(geometry) != len(images) or geometry.shape[1] not in (3, 7):
        raise ValueError(f"geometry must be {GEOMETRY}, got {checks.shape_of(geometry)}")
    geometry = geometry.to(images.device, torch.int64)
    if geometry.shape[1] == 3:
        # Filled in on the device: a copy of numbers from the host would wait for it.
        height, width = (torch.full_like(geometry[:, :1], side) for side in images.shape[2:])
        return torch.cat([geometry[:, :2], height, width, height, width, geometry[:, 2:]], dim=1)
    if checks.may_look(geometry) and not bool((geometry[:, 2:6] > 0).all()):
        raise ValueError(f"geometry must have sizes > 0, got {int(geometry[:, 2:6].min())}")
    return geometry


def _whole(count: int, device: torch.device) -> Tensor:
    """Boxes (count, 7) of views that show the unchanged frame; sizes matter only relative to each other."""
    return F.pad(torch.ones(count, 4, dtype=torch.int64, device=device), (2, 1))


@checks.without_autocast
def to_view(maps: Tensor, boxes: Tensor, cells: tuple[int, int]) -> Tensor:
    """Move maps from the frame into views of it: each cell is the mean over its area, in which padding counts as 0.

    Exact for flips and for shifts by entire cells.

    Args:
        maps: (B, m, n).
        boxes: (B, 7), as in `Views`.
        cells: h, w of the result.

    Returns:
        (B, h, w).

    Example:
        >>> frame = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
        >>> to_view(frame, torch.tensor([[4, 0, 8, 8, 8, 8, 1]]), (2, 2))  # one cell down, then flipped
        tensor([[[4., 3.],
                 [0., 0.]]])
    """
    rows, columns, area = _overlaps(boxes, cells, (maps.shape[1], maps.shape[2]), maps)
    return rows @ maps @ columns.mT / area


@checks.without_autocast
def to_frame(maps: Tensor, boxes: Tensor, cells: tuple[int, int]) -> Tensor:
    """Move maps from views into their frames: each cell is the mean over its area, 0 where the view does not show it.

    Args:
        maps: (B, h, w).
        boxes: (B, 7), as in `Views`.
        cells: m, n of the result.

    Returns:
        (B, m, n); of maps of ones, the share of each cell that the view shows.

    Example:
        >>> view = torch.tensor([[[4.0, 3.0], [0.0, 0.0]]])
        >>> to_frame(view, torch.tensor([[4, 0, 8, 8, 8, 8, 1]]), (2, 2))
        tensor([[[0., 0.],
                 [3., 4.]]])
    """
    rows, columns, _ = _overlaps(boxes, (maps.shape[1], maps.shape[2]), cells, maps)
    return rows.mT @ maps @ columns


def resample(maps: Tensor, cells: tuple[int, int]) -> Tensor:
    """Bring maps to another resolution: each cell is the mean over its area.

    Args:
        maps: (B, m, n).
        cells: h, w of the result.
    """
    return to_view(maps, _whole(1, maps.device), cells)


def _overlaps(
    boxes: Tensor, view: tuple[int, int], frame: tuple[int, int], like: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Overlap of each view's rows (B, h, m) and columns (B, w, n) with the frame's, in frame cells; area of a cell."""
    top, left, height, width, frame_height, frame_width, flipped = boxes.unbind(1)
    rows, row = _overlap(top, height, frame_height, view[0], frame[0], like)
    columns, column = _overlap(left, width, frame_width, view[1], frame[1], like)
    columns = torch.where(flipped.bool()[:, None, None], columns.flip(1), columns)
    return rows, columns, (row * column)[:, None, None]


def _overlap(
    start: Tensor, length: Tensor, frame_length: Tensor, view: int, frame: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Along one axis: the length, in frame cells, that view cell v and frame cell f share, and that of a view cell."""
    place = torch.arange(view + 1, device=like.device)
    # Integers up to the division, so that edges that meet do so exactly.
    total = (frame_length * view)[:, None]
    edge = ((start[:, None] * view + place * length[:, None]) * frame).to(like.dtype) / total.to(like.dtype)
    cell = torch.arange(frame, device=like.device, dtype=like.dtype)
    low, high = edge[:, :-1, None], edge[:, 1:, None]
    shared = (torch.minimum(high, cell + 1) - torch.maximum(low, cell)).clamp(min=0)
    return shared, (length * frame).to(like.dtype) / total[:, 0].to(like.dtype)


def _or_one(divisor: Tensor) -> Tensor:
    return torch.where(divisor == 0, 1.0, divisor)


class SaliencyMemory:
    """The remembered maps of all samples, in half precision: ``GraftingStep(..., passes="remembered", memory=...)``.

    Maps are stored relative to the mean of all maps of their step: raw ones may exceed the range of half precision, and
    their scale drifts as the network learns, while masks and label weights do not depend on a map's scale. Each new
    observation of a cell is averaged with the stored value, weight 0.5 times the share of the cell that the view shows
    of the sample. What a sample's first view does not show is filled with the mean of what it does.

    Args:
        samples: N, if known. By default the table grows with the largest index, which is read on the host at each step.

    Example:
        >>> import torch, saligraft as sg
        >>> memory = sg.SaliencyMemory(samples=50_000)
        >>> memory.state_dict()["known"].shape
        torch.Size([50000])
    """

    def __init__(self, samples: int | None = None) -> None:
        if samples is not None:
            checks.whole_number("samples", samples, least=1)
        self.samples = samples
        self.maps = torch.zeros(samples or 0, 0, 0, dtype=torch.float16, device="cpu")
        self.known = torch.zeros(samples or 0, dtype=torch.bool, device="cpu")

    def look_up(self, views: Views) -> Tensor:
        """The remembered maps as the views show them.

        Args:
            views: Views of the batch.

        Returns:
            (B, m, n) float32; NaN for a sample without a map, so that it is neither grafted nor grafted onto.
        """
        index = views.index
        self._check(index)
        self._move(index.device)
        count, *cells = self.maps.shape
        if not count or not cells[0]:
            return torch.full((len(index), 1, 1), torch.nan, device=index.device)
        row = index if self.samples is not None else index.clamp(max=count - 1)
        known = self.known[row] & (index < count)
        maps = to_view(self.maps[row].float(), views.boxes, (cells[0], cells[1]))
        return torch.where(known[:, None, None], maps, torch.nan)

    @checks.without_autocast
    @torch.no_grad()
    def refresh(self, saliency: Tensor, source_share: Tensor, partner: Tensor, views: Views) -> None:
        """Blend what a pass over mixed images saw into the maps of the samples that showed.

        Sources come first, then destinations, so that a sample that was both is refreshed in that order. Of several
        views of one sample as source, or as destination, the last in the batch counts. A map that is not finite is
        dropped.

        Args:
            saliency: (B, h, w), of the mixed images.
            source_share: (B, h, w) in [0, 1], the share of each cell that shows the source; the rest shows the
                destination.
            partner: (B,), the destination of sample i is sample partner[i] of the batch.
            views: Views of the batch.
        """
        self._check(views.index)
        self._move(saliency.device)
        self._grow(views.index, saliency.shape[1], saliency.shape[2])
        usable = usable_maps(saliency)[:, None, None]
        relative = torch.where(usable, saliency.float(), 0.0)
        relative = relative / _or_one(relative.amax())  # first, so that no sum overflows
        relative = relative / _or_one(relative.sum() / (usable.sum() * saliency[0].numel()).clamp(min=1))
        everyone = torch.arange(len(saliency), device=saliency.device)
        for share, owner in ((source_share, everyone), (1 - source_share, partner)):
            shown = torch.where(usable, share, 0.0)
            boxes, cells = views.boxes[owner], (self.maps.shape[1], self.maps.shape[2])
            self._blend(views.index[owner], to_frame(relative * shown, boxes, cells), to_frame(shown, boxes, cells))

    def _blend(self, row: Tensor, seen: Tensor, share: Tensor) -> None:
        """Blend `seen` (B, m, n), weighted by the `share` of each cell that was seen, into the maps of `row` (B,)."""
        ordered, place = row.sort(stable=True)
        last = place[torch.searchsorted(ordered, row, right=True) - 1]  # copies then write the same values
        seen, share, known = seen[last], share[last], self.known[row]
        total = share.sum(dim=(1, 2))
        mean = seen.sum(dim=(1, 2)) / _or_one(total)
        known_here = known[:, None, None]
        old = torch.where(known_here, self.maps[row].float(), mean[:, None, None])
        new = old + torch.where(known_here, BLEND, 1.0) * (seen - share * old)
        self.maps[row] = new.clamp(0, torch.finfo(torch.float16).max).half()
        self.known[row] = known | (total > 0)

    def _check(self, index: Tensor) -> None:
        if self.samples is not None and checks.may_look(index) and int(index.max()) >= self.samples:
            raise ValueError(f"index must be < samples ({self.samples}), got {int(index.max())}")

    def _move(self, device: torch.device) -> None:
        if self.maps.device != device:
            self.maps, self.known = self.maps.to(device), self.known.to(device)

    def _grow(self, index: Tensor, rows: int, columns: int) -> None:
        """Make room for these samples, and for maps of this resolution if it is finer than before."""
        count, *cells = self.maps.shape
        finer = max(cells[0], rows), max(cells[1], columns)
        if not cells[0]:
            self.maps = self.maps.new_zeros(count, *finer)
        elif finer != (cells[0], cells[1]):  # a later phase of progressive resizing
            self.maps = resample(self.maps.float(), finer).half()
        if self.samples is None and int(index.max()) >= count:
            more = int(index.max()) + 1 - count
            self.maps = torch.cat([self.maps, self.maps.new_zeros(more, *finer)])
            self.known = torch.cat([self.known, self.known.new_zeros(more)])

    def state_dict(self) -> dict[str, Tensor]:
        """The table itself, not a copy: maps (N, m, n) float16 and which of them are known (N,) bool."""
        return {"maps": self.maps, "known": self.known}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from a state.

        Args:
            state: State returned by `state_dict`.
        """
        if not {"maps", "known"} <= state.keys():
            raise ValueError(f"the state must hold 'maps' and 'known', got {', '.join(map(repr, state)) or 'nothing'}")
        if self.samples is not None and len(state["known"]) != self.samples:
            raise ValueError(f"the state must hold {self.samples} samples, got {len(state['known'])}")
        self.maps, self.known = state["maps"].clone(), state["known"].clone()
