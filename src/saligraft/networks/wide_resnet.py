"""Wide Residual Network: three stages of pre-activation blocks, widened by a factor.

Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016, Table 1 and Figure 1(c, d).
Shapes: B batch, C image channels, H W pixels, K classes, k widening factor.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor, nn

from saligraft import checks
from saligraft.networks.base import PooledNetwork, add_drop_blocks, convolution, initialize, residual_stages

STEM_CHANNELS = 16
STAGES = ((16, 1), (32, 2), (64, 2))  # channels, times the widening factor, and stride
CONVOLUTIONS_OUTSIDE_BLOCKS = 4  # the stem and three shortcut projections, as the authors count depth
CONVOLUTIONS_PER_DEEPER_BLOCK = 6  # one more block in each of three stages, two convolutions each
Variant = Literal["original", "manifold-mixup"]
LAST_NORM_MOMENTUM = 0.9  # of the variant: running statistics follow the newest batch nearly alone


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after batch norm and ReLU, with dropout between them (authors' Figure 1d).

    Where the channel count changes, the shortcut is a 1×1 convolution of the *activated* input, as in the
    authors' code; elsewhere it is the raw input. The variant "manifold-mixup" projects the raw input, has its stride in
    the second convolution, and biases.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, dropout: float, variant: Variant = "original"
    ) -> None:
        super().__init__()
        original = variant == "original"
        strides = (stride, 1) if original else (1, stride)
        self.activation1 = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.convolution1 = convolution(in_channels, out_channels, 3, strides[0], bias=not original)
        self.activation2 = nn.Sequential(nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.convolution2 = convolution(out_channels, out_channels, 3, strides[1], bias=not original)
        needs_projection = in_channels != out_channels or stride != 1
        self.projection = (
            convolution(in_channels, out_channels, 1, stride, bias=not original) if needs_projection else None
        )
        self.projects_activated = original
        self.drop_block: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation1(x)
        shortcut = x if self.projection is None else self.projection(activated if self.projects_activated else x)
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
        stem_stride: 2 halves all maps, for a quarter of the cost.
        dropout: probability, between the convolutions of a block.
        drop_block: arguments of a `DropBlock` at the end of every block of the last two stages; None adds none.
        variant: "manifold-mixup" is the network in the code of Verma et al. (Manifold Mixup), which Kim et al.
            (PuzzleMix) train too: biases, the stride in a block's second convolution, projections of the input before
            its activation, torch's default initialisation, and a momentum of 0.9 in the last batch norm.

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
        stem_stride: int = 1,
        dropout: float = 0.0,
        drop_block: Mapping[str, Any] | None = None,
        variant: Variant = "original",
    ) -> None:
        super().__init__()
        checks.one_of("variant", variant, get_args(Variant))
        checks.one_of("stem_stride", stem_stride, (1, 2))
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
        original = variant == "original"
        self.stem = convolution(in_channels, STEM_CHANNELS, 3, stem_stride, bias=not original)
        stages = [(blocks, channels * width, stride) for channels, stride in STAGES]
        self.stages = residual_stages(partial(WideBlock, dropout=dropout, variant=variant), STEM_CHANNELS, stages)
        last_norm = nn.BatchNorm2d(num_features, momentum=0.1 if original else LAST_NORM_MOMENTUM)
        self.final_activation = nn.Sequential(last_norm, nn.ReLU(inplace=True))
        self.add_head(num_features, num_classes)
        add_drop_blocks(self.stages, drop_block)
        if original:
            initialize(self, "fan_in", zero_head_bias=True)  # as in the authors' code

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, 64k, ⌈H/4⌉, ⌈W/4⌉), or half that with `stem_stride=2`."""
        features: Tensor = self.final_activation(self.stages(self.stem(images)))
        return features
