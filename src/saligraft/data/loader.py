"""Batches of an in-memory data set, cropped and flipped as whole batches on the device.

No stream of randomness is carried: the order is keyed by (seed, epoch), each image's crop and flip by
(seed, epoch, sample index), so a resumed run meets the same batches.
Shapes: N images of the data set, B batch, C channels, H W pixels.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from saligraft.data.batches import Batch, Loader, normalisation
from saligraft.data.image_data import ImageData
from saligraft.data.keyed_draws import keyed_uniforms
from saligraft.data.order import Order


def crop_and_flip(images: Tensor, geometry: Tensor) -> Tensor:
    """Shift images (B,C,H,W) by top and left, zero where the crop leaves them, and mirror those with flipped = 1."""
    height, width = images.shape[-2:]
    top, left, flipped = geometry.unbind(1)
    rows = torch.arange(height, device=images.device) + top[:, None]
    columns = torch.arange(width, device=images.device).expand(len(left), width)
    columns = torch.where(flipped[:, None].bool(), width - 1 - columns, columns) + left[:, None]
    return _pick(images, rows, columns)


def undo_crop_and_flip(images: Tensor, geometry: Tensor) -> Tensor:
    """Put crops (B,C,H,W) back to where they were in the stored images, zero where nothing of the crop lies."""
    height, width = images.shape[-2:]
    top, left, flipped = geometry.unbind(1)
    rows = torch.arange(height, device=images.device) - top[:, None]
    columns = torch.arange(width, device=images.device) - left[:, None]
    columns = torch.where(flipped[:, None].bool(), width - 1 - columns, columns)
    return _pick(images, rows, columns)


def _pick(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """images[b, :, rows[b], columns[b]] for rows (B,H) and columns (B,W), zero outside: one gather."""
    height, width = images.shape[-2:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    place = place.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    picked = images.flatten(2).gather(2, place).reshape(images.shape)
    return picked.masked_fill(~inside[:, None], 0)


class InMemoryLoader(Loader):
    """Iterate over one split held on the device, dealt out as `Order` says; `batch_size` is per rank.

    Training images are cropped at random with `pad` pixels of zeros, which is the data mean, about the normalised
    image, and mirrored at random; test images stay as they are.
    """

    def __init__(
        self,
        data: ImageData,
        *,
        batch_size: int,
        train: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        pad: int = 4,
        flip: bool = True,
    ) -> None:
        count = len(data)
        order = Order(count=count, batch_size=batch_size, train=train, seed=seed, rank=rank, world_size=world_size)
        super().__init__(order, device)
        smallest = min(data.images.shape[-2:])
        if not 0 <= pad < smallest:
            raise ValueError(f"pad must lie in [0, {smallest}) for images of this size, got {pad}")
        self.pad, self.flip = pad, flip
        self._images = data.images.to(self.device)
        self._labels = data.labels.to(self.device)
        self._scale, self._shift = normalisation(data.mean, data.std, self.device)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on."""
        order = self.order.epoch(self.epoch).to(self.device, non_blocking=True)
        for first in range(start * self.batch_size, len(order), self.batch_size):
            index = order[first : first + self.batch_size]
            geometry = self._geometry(index)
            images = self._images[index].float() * self._scale + self._shift
            if self.order.train:
                images = crop_and_flip(images, geometry)
            yield Batch(images, self._labels[index], index, geometry)

    def close(self) -> None:
        """Nothing to let go: no process works for this loader."""

    def _geometry(self, index: Tensor) -> Tensor:
        """Top, left, flipped (B,3) of these samples in this epoch."""
        if not self.order.train:
            return index.new_zeros(len(index), 3)
        draws = keyed_uniforms(self.order.augmentation(self.epoch), index, 3)
        corner = (draws[:, :2] * (2 * self.pad + 1)).long() - self.pad
        flipped = (draws[:, 2:] < 0.5).long() if self.flip else index.new_zeros(len(index), 1)
        return torch.cat([corner, flipped], dim=1)
