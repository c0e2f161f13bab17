"""Batches: what a loader yields, which samples a rank sees in an epoch, and the loader of images in memory.

No random state is carried: the order is keyed by (seed, epoch), each image's crop and flip by
(seed, epoch, sample index), so a resumed run sees the same batches.
Shapes: N samples of the data set, B batch, C channels, H W pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft.checks import whole_number
from saligraft.data.dataset import ImageData, Split, normalisation
from saligraft.data.keyed_draws import key, keyed_uniforms

# Separate streams of one (seed, epoch).
ORDER, AUGMENTATION = 0, 1


class Batch(NamedTuple):
    """One batch of a training or test loader.

    Geometry describes how a sample was cropped, and whether it was then flipped. For images in memory it is top, left,
    flipped: the crop's upper left corner in the stored image (negative in the padding); (0, 0, 0) is the stored image
    itself. For image files it is top, left, height, width, stored height, stored width, flipped: the part of the stored
    image that was resized, and that image's size.

    Args:
        images: (B,C,H,W) float32, normalised.
        labels: Class indices (B,).
        index: Index of each sample in the data set, (B,).
        geometry: (B,G) int64.
    """

    images: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which is not needed
    geometry: Tensor


class Loader(ABC):
    """Batches of one rank, the same for the same (seed, epoch), wherever iteration starts.

    Training: shuffled each epoch; a last partial batch is dropped unless it is the only one or `keep_last` is set.
    Ranks share one order, and together see in each step the batch that a single rank of batch_size * world_size would
    see; in a last partial batch all have equally many, so up to world_size - 1 samples are left out.
    Testing: in order, every sample once over all ranks.

    Args:
        data: The split.
        batch_size: Samples per batch and rank.
        train: Whether to shuffle and augment, with equally many batches per rank.
        seed: Decides order and augmentation, with the epoch.
        device: Device of the batches.
        rank: Rank of this process.
        world_size: Number of processes.
        keep_last: Whether training keeps the last partial batch.
    """

    def __init__(
        self,
        data: Split,
        *,
        batch_size: int,
        train: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        keep_last: bool = False,
    ) -> None:
        whole_number("batch_size", batch_size, least=1)
        whole_number("world_size", world_size, least=1)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, {world_size}), got {rank}")
        if train and len(data) < world_size:
            raise ValueError(f"data must contain an image for each of {world_size} ranks, got {len(data)} images")
        self.batch_size, self.train, self.seed = batch_size, train, seed
        self.device, self.epoch = torch.device(device), 0
        self._count, self._own = len(data), slice(rank, None, world_size)
        share = len(range(len(data))[self._own])  # samples that this rank sees in an epoch
        if train:
            full = len(data) // (batch_size * world_size)
            share = full * batch_size if full and not keep_last else len(data) // world_size
        self._share = share
        self._scale, self._shift = normalisation(data.mean, data.std, self.device)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration follows.

        Args:
            epoch: Number of the epoch, from 0.
        """
        whole_number("epoch", epoch, least=0)
        self.epoch = epoch

    @property
    def order(self) -> Tensor:
        """Indices of this rank's samples in the order of the epoch; rank r gets every world_size-th from r on."""
        if not self.train:
            return torch.arange(self._count)[self._own]
        generator = torch.Generator().manual_seed(key(self.seed, self.epoch, ORDER))
        return torch.randperm(self._count, generator=generator)[self._own][: self._share]

    @property
    def augmentation(self) -> int:
        """The key of the epoch's augmentation, to be combined with a sample's index."""
        return key(self.seed, self.epoch, AUGMENTATION)

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Iterate over the epoch's batches.

        Args:
            start: Number of batches to skip, at no cost.
        """

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return -(-self._share // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def close(self) -> None:  # noqa: B027  (only some loaders have workers)
        """End worker processes, if there are any; a later iteration starts new ones."""


class InMemoryLoader(Loader):
    """Batches of a split held on the device, cropped and flipped a batch at a time.

    Training images are cropped at random, with `pad` pixels of zeros (the data mean) around the normalised image, and
    flipped at random; test images are not changed.

    Args:
        data: The split.
        pad: Pixels of padding for random crops.
        flip: Whether to flip half of the training images.
        options: See `Loader`.

    Example:
        >>> from saligraft.data import InMemoryLoader, load
        >>> loader = InMemoryLoader(load("shapes", per_class=2), batch_size=8, train=True)
        >>> loader.set_epoch(3)
        >>> [len(batch.labels) for batch in loader]
        [8, 8]
    """

    def __init__(self, data: ImageData, *, pad: int = 4, flip: bool = True, **options: Any) -> None:
        super().__init__(data, **options)
        smallest = min(data.image_shape[1:])
        if not 0 <= pad < smallest:
            raise ValueError(f"pad must lie in [0, {smallest}) for images of this size, got {pad}")
        self.pad, self.flip = pad, flip
        self._images, self._labels = data.images.to(self.device), data.labels.to(self.device)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        order = self.order.to(self.device, non_blocking=True)
        for first in range(start * self.batch_size, len(order), self.batch_size):
            index = order[first : first + self.batch_size]
            geometry = self._geometry(index)
            images = self._images[index].float() * self._scale + self._shift
            if self.train:
                images = crop_and_flip(images, geometry)
            yield Batch(images, self._labels[index], index, geometry)

    def _geometry(self, index: Tensor) -> Tensor:
        """Top, left, flipped (B,3) of these samples in this epoch."""
        if not self.train:
            return index.new_zeros(len(index), 3)
        draws = keyed_uniforms(self.augmentation, index, 3)
        corner = (draws[:, :2] * (2 * self.pad + 1)).long() - self.pad
        flipped = (draws[:, 2:] < 0.5).long() if self.flip else index.new_zeros(len(index), 1)
        return torch.cat([corner, flipped], dim=1)


def crop_and_flip(images: Tensor, geometry: Tensor) -> Tensor:
    """Shift images by top and left, zero outside them, and flip those with flipped = 1.

    Args:
        images: (B,C,H,W).
        geometry: Top, left, flipped of each, (B,3).

    Returns:
        The crops (B,C,H,W).

    Example:
        >>> import torch
        >>> from saligraft.data import crop_and_flip
        >>> images = torch.tensor([[[[1, 2], [3, 4]]]])
        >>> crop_and_flip(images, torch.tensor([[1, 0, 1]]))  # one row down, then flipped
        tensor([[[[4, 3],
                  [0, 0]]]])
    """
    height, width = images.shape[-2:]
    top, left, flipped = geometry.unbind(1)
    rows = torch.arange(height, device=images.device) + top[:, None]
    columns = torch.arange(width, device=images.device).expand(len(left), width)
    columns = torch.where(flipped[:, None].bool(), width - 1 - columns, columns) + left[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    place = place.flatten(1)[:, None].expand(-1, images.shape[1], -1)  # pixels of all rows and columns in one gather
    picked = images.flatten(2).gather(2, place).reshape(images.shape)
    return picked.masked_fill(~inside[:, None], 0)
