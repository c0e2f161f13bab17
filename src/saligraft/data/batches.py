"""What a loader yields, and what every loader can do."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from saligraft.checks import whole_number
from saligraft.data.order import Order


class Batch(NamedTuple):
    """Images (B,C,H,W) float32 normalised, labels (B,), index (B,) in the data set, and geometry (B,G).

    Geometry says how a sample was cut out, and ends with whether it was then mirrored. Of images in memory it is
    top, left, flipped: the crop's upper left corner in the stored image (negative in the padding); (0, 0, 0) is the
    stored image itself. Of image files it is top, left, height, width, flipped: the part of the stored image that was
    resized.
    """

    images: Tensor
    labels: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    geometry: Tensor


class Loader(ABC):
    """Batches of one rank as `order` deals them out, the same for the same (seed, epoch), wherever one starts."""

    def __init__(self, order: Order, device: torch.device | str) -> None:
        self.order, self.batch_size = order, order.batch_size
        self.device = torch.device(device)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration follows."""
        whole_number("epoch", epoch, least=0)
        self.epoch = epoch

    @abstractmethod
    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on; those before it cost nothing."""

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.order.batches

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @abstractmethod
    def close(self) -> None:
        """Let worker processes go, if there are any; a later iteration starts new ones."""


def normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Scale and shift (C,1,1) that take values in [0, 255] to mean 0 and deviation 1: one product and one sum."""
    centre, width = (torch.tensor(values, device=device)[:, None, None] for values in (mean, std))
    return 1 / (255 * width), -centre / width
