"""ResNet for small images: a 3×3 stem without max-pooling, then the four stages of the ImageNet network.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, in the form that CIFAR-100 and Tiny-ImageNet
studies use. The networks for 224 px images are in `imagenet_resnet`.
Shapes: B batch, C image channels, H W pixels, K classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from saligraft import checks
from saligraft.networks.base import PooledNetwork, initialize

BLOCKS_PER_STAGE: dict[int, tuple[int, int, int, int]] = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
STAGE_WIDTHS = (1, 2, 4, 8)  # times `width`
STAGE_STRIDES = (1, 2, 2, 2)


def _convolution_and_norm(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels))


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

    The last spatial map, given by `stages`, is 4×4 at 32 px and 8×8 at 64 px. `stem_stride=2` halves it, as PuzzleMix
    does for Tiny-ImageNet; `width` is 64 by the authors, and less for a network that trains on a CPU.
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
        self.stages = _stages(BLOCKS_PER_STAGE[depth], width)
        self.add_head(num_features, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as torchvision's ResNet does: He's normal over fan-out, and torch's default in the head."""
        initialize(self, "fan_out", zero_head_bias=False)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, 8 · width, ⌈H/8⌉, ⌈W/8⌉), or half that with `stem_stride=2`."""
        features: Tensor = self.stages(self.stem(images))
        return features


def _stages(blocks_per_stage: Sequence[int], width: int) -> nn.Sequential:
    stages = nn.Sequential()
    channels = width
    for blocks, multiple, stage_stride in zip(blocks_per_stage, STAGE_WIDTHS, STAGE_STRIDES, strict=True):
        stage = nn.Sequential()
        for block in range(blocks):
            stage.append(BasicBlock(channels, multiple * width, stage_stride if block == 0 else 1))
            channels = multiple * width
        stages.append(stage)
    return stages
