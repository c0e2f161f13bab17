"""What the networks of this folder share: features, then pooling and a linear head; and He's initialisation."""

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn


class PooledNetwork(nn.Module):
    """Images (B, C, H, W) → the last spatial map → its mean over space → logits (B, K)."""

    num_features: int
    pool: nn.Module
    head: nn.Linear

    def add_head(self, num_features: int, num_classes: int) -> None:
        """Called last, so that modules stand in the order in which they run."""
        self.num_features = num_features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(num_features, num_classes)

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → the last spatial map, (B, num_features, h, w)."""

    def forward_head(self, features: Tensor) -> Tensor:
        """The last spatial map → logits (B, K)."""
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def initialize(network: nn.Module, fan: Literal["fan_in", "fan_out"], *, zero_head_bias: bool) -> None:
    """He's normal for convolutions over fan-in or fan-out, torch's defaults elsewhere; no bias in the head if asked."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
            if zero_head_bias:
                nn.init.zeros_(module.bias)
