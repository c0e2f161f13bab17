"""torchvision's ResNet for 224 px images, with `forward_features` and `forward_head`, and its variant for localisation.

He et al., CVPR 2016. Needs torchvision; `build_network` imports this module when a name asks for it.
Shapes: B batch, C image channels, H W pixels, K classes.
"""

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from saligraft import checks

# depth -> block and blocks per stage; 10 is ours, a small variant for trials on a CPU.
SHAPES: dict[int, tuple[type[nn.Module], list[int]]] = {
    10: (BasicBlock, [1, 1, 1, 1]),
    18: (BasicBlock, [2, 2, 2, 2]),
    34: (BasicBlock, [3, 4, 6, 3]),
    50: (Bottleneck, [3, 4, 6, 3]),
    101: (Bottleneck, [3, 4, 23, 3]),
    152: (Bottleneck, [3, 8, 36, 3]),
}


class ImageNetResNet(ResNet):  # type: ignore[misc]
    """ResNet-depth, (B, C, H, W) → logits (B, K), with the parameter names and initial weights of torchvision's.

    `layer4` returns the last spatial map, 7×7 at 224 px.

    Args:
        depth: 10, 18, 34, 50, 101 or 152.
        num_classes: K.
        in_channels: C.
        large_map: doubles the last map to 14×14 by changing only the last stage's stride, not the parameters (paper,
            appendix A: localisation on CUB).
        zero_gamma: start every residual branch at zero, by the weight of its last batch norm (Goyal et al. 2017).
        head_std: standard deviation of the head's initial weights, such as 0.01; None keeps torchvision's.

    Example:
        >>> import torch
        >>> ImageNetResNet(10, 5).forward_features(torch.rand(1, 3, 64, 64)).shape
        torch.Size([1, 512, 2, 2])
    """

    def __init__(
        self,
        depth: int,
        num_classes: int,
        in_channels: int = 3,
        *,
        large_map: bool = False,
        zero_gamma: bool = False,
        head_std: float | None = None,
    ) -> None:
        checks.one_of("depth", depth, SHAPES)
        for name, value in (("num_classes", num_classes), ("in_channels", in_channels)):
            checks.whole_number(name, value, least=1)
        if head_std is not None:
            checks.not_negative("head_std", head_std)
        super().__init__(*SHAPES[depth], num_classes=num_classes, zero_init_residual=zero_gamma)
        if head_std is not None:
            nn.init.normal_(self.fc.weight, std=head_std)
        if in_channels != 3:
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        if large_map:
            for module in self.layer4[0].modules():
                if isinstance(module, nn.Conv2d):
                    module.stride = (1, 1)
        self.num_features: int = self.fc.in_features

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, num_features, ⌈H/32⌉, ⌈W/32⌉), or /16 with `large_map`."""
        stem = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(stem))))
        return features

    def forward_head(self, features: Tensor) -> Tensor:
        """The last spatial map → logits (B, K)."""
        logits: Tensor = self.fc(self.avgpool(features).flatten(1))
        return logits
