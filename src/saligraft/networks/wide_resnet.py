"""Wide Residual Network: three stages of pre-activation blocks, widened by a factor.

Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016, Table 1 and Figure 1(c, d).
Shapes: B batch, C image channels, H W pixels, K classes, k widening factor.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from saligraft import checks
from saligraft.networks.base import PooledNetwork, add_drop_blocks, convolution, initialize, residual_stages

STEM_CHANNELS = 16
STAGES = ((16, 1), (32, 2), (64, 2))  # channels, times the widening factor, and stride
CONVOLUTIONS_OUTSIDE_BLOCKS = 4  # the stem and three shortcut projections, as the authors count depth
CONVOLUTIONS_PER_DEEPER_BLOCK = 6  # one more block in each of three stages, two convolutions each


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after batch norm and ReLU, with dropout between them (authors' Figure 1d).

    Where the channel count changes, the shortcut is a 1×1 convolution of the *activated* input, as in the
    authors' code; elsewhere it is the raw input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activation1 = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.convolution1 = convolution(in_channels, out_channels, 3, stride)
        self.activation2 = nn.Sequential(nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.convolution2 = convolution(out_channels, out_channels, 3)
        needs_projection = in_channels != out_channels or stride != 1
        self.projection = convolution(in_channels, out_channels, 1, stride) if needs_projection else None
        self.drop_block: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation1(x)
        shortcut = x if self.projection is None else self.projection(activated)
        residual = self.dropout(self.activation2(self.convolution1(activated)))
        out: Tensor = self.drop_block(self.convolution2(residual) + shortcut)
        return out


class WideResNet(PooledNetwork):
    """WRN-depth-width for images of any size, (B, C, H, W) → logits (B, K).

    `final_activation` returns the last spatial map, the one that saliency is read from (paper §4.3).

    Args:
        depth: 6n + 4, the number of convolutions.
        width: k, the widening factor.
        num_classes: K.
        in_channels: C.
        dropout: probability, between the convolutions of a block.
        drop_block: arguments of a `DropBlock` at the end of every block of the last two stages; None adds none.

    Example:
        >>> import torch
        >>> WideResNet(10, 1, num_classes=5).forward_features(torch.rand(2, 3, 16, 16)).shape
        torch.Size([2, 64, 4, 4])
    """

    def __init__(
        self,
        depth: int,
        width: int,
        num_classes: int,
        in_channels: int = 3,
        *,
        dropout: float = 0.0,
        drop_block: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        checks.whole_number("depth", depth, least=1, most=2000)
        beyond_smallest = depth - CONVOLUTIONS_OUTSIDE_BLOCKS - CONVOLUTIONS_PER_DEEPER_BLOCK
        if beyond_smallest < 0 or beyond_smallest % CONVOLUTIONS_PER_DEEPER_BLOCK:
            raise ValueError(f"depth must be 6n + 4 with n >= 1 (10, 16, 22, 28, ...), got {depth}")
        checks.whole_number("width", width, least=1, most=1000)
        checks.not_negative("dropout", dropout)
        if dropout >= 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        for name, value in (("num_classes", num_classes), ("in_channels", in_channels)):
            checks.whole_number(name, value, least=1)
        blocks = (depth - CONVOLUTIONS_OUTSIDE_BLOCKS) // CONVOLUTIONS_PER_DEEPER_BLOCK
        num_features = STAGES[-1][0] * width
        self.stem = convolution(in_channels, STEM_CHANNELS, 3)
        stages = [(blocks, channels * width, stride) for channels, stride in STAGES]
        self.stages = residual_stages(partial(WideBlock, dropout=dropout), STEM_CHANNELS, stages)
        self.final_activation = nn.Sequential(nn.BatchNorm2d(num_features), nn.ReLU(inplace=True))
        self.add_head(num_features, num_classes)
        add_drop_blocks(self.stages, drop_block)
        initialize(self, "fan_in", zero_head_bias=True)  # as in the authors' code

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, 64k, ⌈H/4⌉, ⌈W/4⌉)."""
        features: Tensor = self.final_activation(self.stages(self.stem(images)))
        return features
