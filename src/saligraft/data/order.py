"""Which samples a rank meets in an epoch, and in which order; keyed by (seed, epoch), so nothing is carried."""

from dataclasses import dataclass

import torch
from torch import Tensor

from saligraft.checks import whole_number
from saligraft.data.keyed_draws import key

# Separate streams of one (seed, epoch).
ORDER, AUGMENTATION = 0, 1


@dataclass(frozen=True, kw_only=True)
class Order:
    """How `count` samples are dealt out in batches of `batch_size` to each of `world_size` ranks.

    Training: shuffled anew each epoch; a last partial batch is dropped unless it is the only one. Ranks share one
    order, and together see in each step the batch that a single rank of batch_size * world_size would see.
    Testing: in order, every sample once over all ranks.
    """

    count: int
    batch_size: int
    train: bool
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        whole_number("batch_size", self.batch_size, least=1)
        whole_number("world_size", self.world_size, least=1)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in [0, {self.world_size}), got {self.rank}")
        if self.train and self.count < self.world_size:
            raise ValueError(f"data must hold an image for each of {self.world_size} ranks, got {self.count} images")

    @property
    def batches(self) -> int:
        """The number of batches of this rank."""
        return -(-self._share() // self.batch_size)

    def epoch(self, epoch: int) -> Tensor:
        """Sample indices of this rank in the order of this epoch; rank r takes every world_size-th from r on."""
        if not self.train:
            return torch.arange(self.count)[self.rank :: self.world_size]
        generator = torch.Generator().manual_seed(key(self.seed, epoch, ORDER))
        return torch.randperm(self.count, generator=generator)[self.rank :: self.world_size][: self._share()]

    def augmentation(self, epoch: int) -> int:
        """The key of this epoch's crops, flips and other changes, to be joined with a sample's index."""
        return key(self.seed, epoch, AUGMENTATION)

    def _share(self) -> int:
        """How many samples this rank sees in an epoch."""
        if not self.train:
            return len(range(self.rank, self.count, self.world_size))
        whole = self.count // (self.batch_size * self.world_size)
        return whole * self.batch_size if whole else self.count // self.world_size
