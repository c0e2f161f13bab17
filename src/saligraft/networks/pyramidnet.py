"""PyramidNet: every residual block widens the feature map a little, instead of a few blocks a lot.

Han, Kim & Kim, "Deep Pyramidal Residual Networks", CVPR 2017: additive widening (Eq. 2), zero-padded shortcuts, and
blocks without a ReLU at either end (Figure 6d). For 32 px images: three stages after a 3×3 stem.
Shapes: B batch, C image channels, H W pixels, K classes, N blocks, α̃ channels gained over all blocks.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from saligraft import checks
from saligraft.networks.base import PooledNetwork, add_drop_blocks, convolution, initialize
from saligraft.regularizers.shake_drop import Level, ShakeDrop, depth_keep_probability

STEM_CHANNELS = 16
STAGES = 3
EXPANSION = 4  # a bottleneck's last convolution has four times the channels of its others
CONVOLUTIONS_PER_BLOCK = {False: 2, True: 3}  # without and with bottleneck
LAYERS_OUTSIDE_BLOCKS = 2  # the stem and the head, as the authors count depth
# The authors' networks of 110 layers have basic blocks, those of 164, 200, 236 and 272 have bottlenecks.
SHALLOWEST_BOTTLENECK = 164


def _basic_branch(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        convolution(in_channels, channels, 3, stride),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        convolution(channels, channels, 3),
        nn.BatchNorm2d(channels),
    )


def _bottleneck_branch(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(in_channels),
        convolution(in_channels, channels, 1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        convolution(channels, channels, 3, stride),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        convolution(channels, EXPANSION * channels, 1),
        nn.BatchNorm2d(EXPANSION * channels),
    )


class PyramidBlock(nn.Module):
    """A branch that starts and ends with batch norm, added to a shortcut without parameters.

    The shortcut is average-pooled where the branch has a stride, and padded with channels of zeros.
    """

    def __init__(self, branch: nn.Sequential, new_channels: int, stride: int, shake: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shake = shake
        self.new_channels = new_channels
        # Rounding up gives the size of a padded convolution, also for odd sizes.
        self.pool = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.drop_block: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(self.pool(x), (0, 0, 0, 0, 0, self.new_channels))
        out: Tensor = self.drop_block(self.shake(self.branch(x)) + shortcut)
        return out


class PyramidNet(PooledNetwork):
    """PyramidNet-depth (α̃ = alpha) for small images of any size, (B, C, H, W) → logits (B, K).

    `final_activation` returns the last spatial map, the one that saliency is read from (paper §4.3).

    Args:
        depth: 6n + 2 with basic blocks, 9n + 2 with bottlenecks.
        alpha: α̃.
        num_classes: K.
        in_channels: C.
        stem_stride: 2 halves all maps, for a quarter of the cost.
        bottleneck: by default as the authors' networks, basic blocks below depth 164, bottlenecks from there on.
        shake_drop: whether every branch ends with ShakeDrop, whose keep probability falls linearly with depth to 0.5;
            it adds no parameter.
        shake_level: what ShakeDrop draws one factor for.
        drop_block: arguments of a `DropBlock` at the end of every block of the last two stages; None adds none.

    Example:
        >>> import torch
        >>> PyramidNet(8, 6, num_classes=5).forward_features(torch.rand(2, 3, 16, 16)).shape
        torch.Size([2, 22, 4, 4])
    """

    def __init__(
        self,
        depth: int,
        alpha: int,
        num_classes: int,
        in_channels: int = 3,
        *,
        stem_stride: int = 1,
        bottleneck: bool | None = None,
        shake_drop: bool = False,
        shake_level: Level = "pixel",
        drop_block: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        checks.whole_number("depth", depth, least=1, most=2000)
        for name, value in (("alpha", alpha), ("num_classes", num_classes), ("in_channels", in_channels)):
            checks.whole_number(name, value, least=1, most=10**6)
        checks.one_of("stem_stride", stem_stride, (1, 2))
        checks.one_of("bottleneck", bottleneck, (None, True, False))
        checks.one_of("shake_drop", shake_drop, (False, True))
        bottleneck = depth >= SHALLOWEST_BOTTLENECK if bottleneck is None else bottleneck
        channels = _block_channels(alpha, STAGES * _blocks_per_stage(depth, bottleneck))
        shakes: list[nn.Module] = [
            ShakeDrop(depth_keep_probability(block, len(channels)), level=shake_level) if shake_drop else nn.Identity()
            for block in range(1, len(channels) + 1)
        ]
        stem = convolution(in_channels, STEM_CHANNELS, 3, stem_stride)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(STEM_CHANNELS))
        self.stages = _stages(channels, bottleneck, shakes)
        num_features = (STEM_CHANNELS + alpha) * (EXPANSION if bottleneck else 1)
        self.final_activation = nn.Sequential(nn.BatchNorm2d(num_features), nn.ReLU(inplace=True))
        self.add_head(num_features, num_classes)
        add_drop_blocks(self.stages, drop_block)
        initialize(self, "fan_out", zero_head_bias=True)  # as in the authors' first (Lua) code

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, num_features, ⌈H/4⌉, ⌈W/4⌉), or half that with `stem_stride=2`."""
        features: Tensor = self.final_activation(self.stages(self.stem(images)))
        return features


def _blocks_per_stage(depth: int, bottleneck: bool) -> int:
    step = STAGES * CONVOLUTIONS_PER_BLOCK[bottleneck]
    if depth < step + LAYERS_OUTSIDE_BLOCKS or (depth - LAYERS_OUTSIDE_BLOCKS) % step:
        kind = "bottleneck" if bottleneck else "basic"
        first = ", ".join(str(step * n + LAYERS_OUTSIDE_BLOCKS) for n in range(1, 5))
        raise ValueError(f"depth must be {step}n + 2 with n >= 1 for {kind} blocks ({first}, ...), got {depth}")
    return (depth - LAYERS_OUTSIDE_BLOCKS) // step


def _block_channels(alpha: int, blocks: int) -> list[int]:
    """D_k = 16 + kα̃/N, rounded; exact fractions, since sums of floats round halves inconsistently."""
    return [STEM_CHANNELS + round(Fraction(block * alpha, blocks)) for block in range(1, blocks + 1)]


def _stages(block_channels: Sequence[int], bottleneck: bool, shakes: Sequence[nn.Module]) -> nn.Sequential:
    branch_of, expansion = (_bottleneck_branch, EXPANSION) if bottleneck else (_basic_branch, 1)
    blocks: list[PyramidBlock] = []
    per_stage = len(block_channels) // STAGES
    in_channels = STEM_CHANNELS
    for position, (channels, shake) in enumerate(zip(block_channels, shakes, strict=True)):
        stride = 2 if position in (per_stage, 2 * per_stage) else 1
        out_channels = expansion * channels
        branch = branch_of(in_channels, channels, stride)
        blocks.append(PyramidBlock(branch, out_channels - in_channels, stride, shake))
        in_channels = out_channels
    return nn.Sequential(
        *(nn.Sequential(*blocks[first : first + per_stage]) for first in range(0, len(blocks), per_stage))
    )
