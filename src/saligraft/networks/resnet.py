"""ResNet for small images: a 3×3 stem without max-pooling, then the four stages of the ImageNet network.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, in the form that CIFAR-100 and Tiny-ImageNet
studies use. The networks for 224 px images are in `imagenet_resnet`.
Shapes: B batch, C image channels, H W pixels, K classes.
"""

from torch import Tensor, nn

from saligraft import checks
from saligraft.networks.base import PooledNetwork, convolution, initialize, residual_stages

BLOCKS_PER_STAGE: dict[int, tuple[int, int, int, int]] = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
STAGE_WIDTHS = (1, 2, 4, 8)  # times `width`
STAGE_STRIDES = (1, 2, 2, 2)


def _convolution_and_norm(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(convolution(in_channels, out_channels, size, stride), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to the input before the last ReLU (authors' Figure 5, left).

    Where the shape changes, the shortcut is a 1×1 convolution with batch norm (the authors' option B).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            _convolution_and_norm(in_channels, out_channels, 3, stride),
            nn.ReLU(inplace=True),
            _convolution_and_norm(out_channels, out_channels, 3),
        )
        same_shape = in_channels == out_channels and stride == 1
        self.shortcut = nn.Identity() if same_shape else _convolution_and_norm(in_channels, out_channels, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.branch(x) + self.shortcut(x))
        return out


class SmallImageResNet(PooledNetwork):
    """ResNet-depth for images of 32 to 64 px, (B, C, H, W) → logits (B, K).

    The last spatial map, which `stages` returns, is 4×4 at 32 px and 8×8 at 64 px.

    Args:
        depth: 10, 18 or 34.
        num_classes: K.
        in_channels: C.
        width: channels of the first stage; the authors use 64, smaller networks train on a CPU.
        stem_stride: 2 halves the last map, as PuzzleMix does for Tiny-ImageNet.

    Example:
        >>> import torch
        >>> SmallImageResNet(10, 5, width=4).forward_features(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 32, 4, 4])
    """

    def __init__(
        self, depth: int, num_classes: int, in_channels: int = 3, *, width: int = 64, stem_stride: int = 1
    ) -> None:
        super().__init__()
        checks.one_of("depth", depth, BLOCKS_PER_STAGE)
        checks.one_of("stem_stride", stem_stride, (1, 2))
        for name, value in (("num_classes", num_classes), ("in_channels", in_channels), ("width", width)):
            checks.whole_number(name, value, least=1)
        num_features = STAGE_WIDTHS[-1] * width
        self.stem = _convolution_and_norm(in_channels, width, 3, stem_stride).append(nn.ReLU(inplace=True))
        widths = [multiple * width for multiple in STAGE_WIDTHS]
        stages = zip(BLOCKS_PER_STAGE[depth], widths, STAGE_STRIDES, strict=True)
        self.stages = residual_stages(BasicBlock, width, stages)
        self.add_head(num_features, num_classes)
        initialize(self, "fan_out", zero_head_bias=False)  # as in torchvision's ResNet

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, 8 · width, ⌈H/8⌉, ⌈W/8⌉), or half that with `stem_stride=2`."""
        features: Tensor = self.stages(self.stem(images))
        return features
