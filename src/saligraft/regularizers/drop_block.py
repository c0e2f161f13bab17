"""DropBlock: drop square blocks of a feature map and scale up the rest.

Ghiasi et al., "DropBlock: A regularization method for convolutional networks", NeurIPS 2018, Algorithm 1 and Eq. 1.
torchvision's `drop_block2d` computes the same; here only torch is needed, draws are arguments, blocks may have an even
side, and the rate may change from step to step without recompilation.
Shapes: B batch, C channels, H W cells of the feature map, b side of a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.regularizers.uniforms import uniforms


def drop_block(features: Tensor, *, seeds: Tensor) -> Tensor:
    """Drop a block at every seed and scale the rest to keep the mean. Pure.

    The scale is the number of cells over that of kept cells, in the entire batch, as in the authors' Algorithm 1. If
    nothing is kept, the result is zero.

    Args:
        features: (B, C, H, W).
        seeds: bool (B, C, H − b + 1, W − b + 1), or with one channel for all: a True is the top left cell of a b × b
            block, so b follows from the shapes and no block crosses the border.

    Example:
        >>> import torch
        >>> from saligraft.regularizers import drop_block
        >>> drop_block(torch.ones(1, 1, 2, 3), seeds=torch.tensor([[[[True, False]]]]))
        tensor([[[[0., 0., 3.],
                  [0., 0., 3.]]]])
    """
    checks.images(features, "features")
    block_height, block_width = _block_of(seeds, features)
    padding = (block_width - 1, block_width - 1, block_height - 1, block_height - 1)
    dropped = F.max_pool2d(F.pad(seeds.to(features.dtype), padding), (block_height, block_width), stride=1)
    kept = 1 - dropped
    # Counted in float32: float16 ends at 65504, and bfloat16 counts no further than 256.
    scale = kept.numel() / kept.sum(dtype=torch.float32).clamp(min=1)
    return features * (kept * scale.to(features.dtype))


def block_seed_rate(keep_probability: float, block_size: int, height: int, width: int) -> float:
    """γ of Eq. 1: the rate of seeds at which about 1 − keep_probability of an H × W map is dropped.

    Like the authors, it ignores overlaps of blocks, so slightly more than `keep_probability` is kept. On a map smaller
    than the block, the block shrinks to the map's shorter side, as in the authors' code.

    Args:
        keep_probability: Share of the features to keep.
        block_size: Side of a block.
        height: H of the feature map.
        width: W of the feature map.
    """
    block = min(block_size, height, width)
    return (1 - keep_probability) / block**2 * height * width / ((height - block + 1) * (width - block + 1))


class DropBlock(nn.Module):
    """Draw seeds at rate γ, then drop their blocks; nothing is dropped at test time.

    It drops at the full rate by default; `set_drop_block_progress` lowers `keep_probability` linearly from 1 over the
    training, as the authors do. Draws come from torch's global stream (`uniforms`).

    Args:
        keep_probability: Share of the features to keep.
        block_size: Side of a block.
        per_channel: Whether each channel has its own blocks, which the authors found to work better than shared ones.

    Example:
        >>> import torch
        >>> from saligraft.regularizers import DropBlock
        >>> DropBlock(keep_probability=0.9, block_size=3)(torch.rand(2, 8, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    drop_rate: Tensor

    def __init__(self, keep_probability: float = 0.9, block_size: int = 7, *, per_channel: bool = True) -> None:
        super().__init__()
        checks.probability("keep_probability", keep_probability)
        checks.whole_number("block_size", block_size, least=1)
        self.keep_probability, self.block_size, self.per_channel = keep_probability, block_size, per_channel
        # A tensor, since a number that changes at every step would be recompiled at every step. Not in the state dict,
        # so that weights fit networks with and without DropBlock.
        self.register_buffer("drop_rate", torch.tensor(1 - keep_probability), persistent=False)

    def set_progress(self, progress: float) -> None:
        """Drop at a share of the full rate.

        Args:
            progress: 0 at the first step of the training, 1 at the last.
        """
        checks.probability("progress", progress)
        self.drop_rate.fill_(progress * (1 - self.keep_probability))

    def draw(self, features: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw the seeds, bool (B, C or 1, H − b + 1, W − b + 1).

        Args:
            features: (B, C, H, W).
            generator: None for torch's global stream of the features' device.
        """
        batch, channels, height, width = features.shape
        block = min(self.block_size, height, width)
        shape = (batch, channels if self.per_channel else 1, height - block + 1, width - block + 1)
        rate = self.drop_rate * block_seed_rate(0.0, block, height, width)  # γ is linear in 1 − keep_probability
        return uniforms(shape, features, generator=generator) < rate

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or self.keep_probability == 1:
            return features
        return drop_block(features, seeds=self.draw(features))

    def extra_repr(self) -> str:
        sizes = f"keep_probability={self.keep_probability}, block_size={self.block_size}"
        return f"{sizes}, per_channel={self.per_channel}"


def set_drop_block_progress(network: nn.Module, progress: float) -> None:
    """Apply the authors' schedule to every `DropBlock` of a network; not saved, so call it again after resuming.

    Args:
        network: The network.
        progress: The completed share of the training, in [0, 1]; update it at every step.
    """
    for module in network.modules():
        if isinstance(module, DropBlock):
            module.set_progress(progress)


def _block_of(seeds: Tensor, features: Tensor) -> tuple[int, int]:
    """The block's height and width, from the shapes of seeds and features."""
    checks.rank("seeds", seeds, "(B, C, h, w)", features, "features")
    if seeds.dtype != torch.bool:
        raise TypeError(f"seeds must be a bool tensor, got {seeds.dtype}")
    batch, channels, height, width = features.shape
    block_height, block_width = height - seeds.shape[2] + 1, width - seeds.shape[3] + 1
    fits = 1 <= block_height <= height and 1 <= block_width <= width
    if not fits or seeds.shape[0] != batch or seeds.shape[1] not in (1, channels):
        raise ValueError(
            f"seeds must have shape (B, C or 1, H - b + 1, W - b + 1) for features {checks.shape_of(features)} "
            f"and blocks of side b, got {checks.shape_of(seeds)}"
        )
    return block_height, block_width
