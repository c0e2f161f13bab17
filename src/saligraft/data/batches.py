"""What a loader yields, and what every loader can do."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


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


class Loader(Protocol):
    """Batches of one rank, the same for the same (seed, epoch), wherever in the epoch one starts."""

    batch_size: int

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order and augmentation the next iteration follows."""

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on; those before it cost nothing."""
        ...

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        ...

    def __iter__(self) -> Iterator[Batch]: ...

    def close(self) -> None:
        """Let worker processes go, if there are any; a later iteration starts new ones."""


def normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Scale and shift (C,1,1) that take values in [0, 255] to mean 0 and deviation 1: one product and one sum."""
    centre, width = (torch.tensor(values, device=device)[:, None, None] for values in (mean, std))
    return 1 / (255 * width), -centre / width
