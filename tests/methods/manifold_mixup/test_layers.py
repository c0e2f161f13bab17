"""Which layers Manifold Mixup takes when none are named: the first stages, whatever the network's build."""

import importlib.util
from itertools import pairwise

import pytest
import torch
from torch import nn

from saligraft.methods.manifold_mixup.layers import mixing_layers

HAS_LAB = importlib.util.find_spec("torchvision") is not None and importlib.util.find_spec("timm") is not None
TABLE: dict[str, tuple[int, tuple[str, ...]]] = {
    "wrn-16-2": (32, ("stages.0", "stages.1")),
    "torchvision:resnet18": (32, ("layer1", "layer2")),
    "torchvision:resnet50": (96, ("layer1", "layer2")),
    "torchvision:vgg11": (32, ("features.9", "features.14")),
    "torchvision:vgg16_bn": (32, ("features.5", "features.12")),
    "torchvision:convnext_tiny": (64, ("features.1", "features.3")),
    "torchvision:densenet121": (64, ("features.denseblock1", "features.denseblock2")),
    "torchvision:swin_t": (64, ("features.1", "features.3")),
    "timm:convnext_atto": (64, ("stages.0", "stages.1")),
    "timm:vit_tiny_patch16_224": (224, ("blocks.3", "blocks.7")),
    "timm:mixer_s32_224": (224, ("blocks.2", "blocks.5")),
}


@pytest.mark.skipif(not HAS_LAB, reason="the laboratory's networks are an extra")
@pytest.mark.parametrize("name", TABLE)
def test_named_networks(name: str) -> None:
    from saligraft.networks import build_network

    size, expected = TABLE[name]
    with torch.device("meta"):  # structure is all that counts
        network = build_network(name, num_classes=4)
    assert mixing_layers(network, torch.empty(2, 3, size, size, device="meta")) == ("input", *expected)


class Stages(nn.Module):
    """Strided blocks in two stages inside a container, batch norm, dropout, and a hook of the user's own."""

    def __init__(self, stages: int = 3) -> None:
        super().__init__()
        widths = [3, 4, 6, 8, 10][: stages + 1]
        self.trunk = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.Dropout(), nn.Conv2d(b, b, 3, 1, 1))
            for a, b in pairwise(widths)
        )
        self.head = nn.Linear(widths[stages], 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for stage in self.trunk:
            images = stage(images)
        return self.head(images.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("stages", "expected"),
    [(2, ("trunk.0",)), (3, ("trunk.0", "trunk.1")), (4, ("trunk.0", "trunk.1"))],
)
def test_the_first_two_stages_but_never_the_last(stages: int, expected: tuple[str, ...]) -> None:
    assert mixing_layers(Stages(stages), torch.rand(2, 3, 32, 48)) == ("input", *expected)


def test_leaves_no_trace_in_the_network() -> None:
    network, images = Stages(), torch.rand(2, 3, 32, 32)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random_state = torch.get_rng_state()
    mixing_layers(network, images)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())
    assert all(weight.grad is None and not weight.is_meta for weight in network.parameters())


def test_a_network_without_stages_is_an_error() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    with pytest.raises(ValueError, match="layers must be named for this model, in which no stages were found; it has"):
        mixing_layers(flat, torch.rand(2, 3, 4, 4))

    class Looks(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images if images.sum() > 0 else -images

    network = Looks()
    with pytest.raises(ValueError, match="it cannot run on meta tensors to find its stages"):
        mixing_layers(network, torch.rand(2, 3, 4, 4))
    assert not network._forward_hooks
