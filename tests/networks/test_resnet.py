"""ResNet for small images: parameter counts, maps, and torchvision's blocks as a reference."""

from typing import Any

import pytest
import torch
import torchvision
from tests.networks.steps import losses_in_channels_last
from torch import nn

from saligraft import SaliencyCapture, feature_saliency
from saligraft.networks.resnet import SmallImageResNet

STAGES = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def counted_by_hand(depth: int, classes: int, channels: int, width: int) -> int:
    """Parameters by the authors' Table 1 with a 3×3 stem: weights, 2 per normed channel, no conv bias."""
    total = 9 * channels * width + 2 * width
    inputs = width
    for blocks, outputs in zip(STAGES[depth], (width, 2 * width, 4 * width, 8 * width), strict=True):
        for _ in range(blocks):
            total += 9 * inputs * outputs + 9 * outputs * outputs + 2 * 2 * outputs
            total += inputs * outputs + 2 * outputs if inputs != outputs else 0  # 1x1 shortcut and its norm
            inputs = outputs
    return total + inputs * classes + classes


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("depth", "classes", "channels", "width"), [(18, 200, 3, 64), (18, 100, 3, 64), (34, 10, 1, 32), (10, 12, 3, 16)]
)
def test_parameter_count_is_exact(depth: int, classes: int, channels: int, width: int) -> None:
    with torch.device("meta"):
        network = SmallImageResNet(depth, classes, channels, width=width)
    assert parameters(network) == counted_by_hand(depth, classes, channels, width)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth + 3  # the depth in the name does not count the three shortcuts


def test_resnet_18_has_the_size_the_papers_print() -> None:
    with torch.device("meta"):
        assert round(parameters(SmallImageResNet(18, 200)) / 1e6, 1) == 11.3


@pytest.mark.parametrize(
    ("size", "stem_stride", "cells"),
    [((32, 32), 1, (4, 4)), ((64, 64), 1, (8, 8)), ((64, 64), 2, (4, 4)), ((33, 70), 1, (5, 9)), ((1, 1), 1, (1, 1))],
)
def test_the_last_map_for_any_image_size(size: tuple[int, int], stem_stride: int, cells: tuple[int, int]) -> None:
    network = SmallImageResNet(10, 5, in_channels=2, width=4, stem_stride=stem_stride).eval()
    features = network.forward_features(torch.randn(3, 2, *size))
    assert features.shape == (3, 32, *cells)
    assert network.forward_head(features).shape == (3, 5)


def test_logits_are_those_of_torchvisions_network_with_the_stem_exchanged() -> None:
    torch.manual_seed(0)
    network = SmallImageResNet(18, 7).eval()
    reference = torchvision.models.resnet18(num_classes=7).eval()
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight)
        nn.init.normal_(norm.bias, std=0.1)
    names = list(reference.state_dict())
    reference.load_state_dict(dict(zip(names, network.state_dict().values(), strict=True)))  # layers in one order
    images = torch.randn(2, 3, 16, 16)
    kept = images.clone()
    torch.testing.assert_close(network(images), reference(images))
    assert torch.equal(images, kept)


def test_initial_weights_follow_he_over_fan_out() -> None:
    torch.manual_seed(0)
    for module in SmallImageResNet(10, 10, width=32).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


def test_saliency_is_read_from_the_last_stage() -> None:
    network = SmallImageResNet(10, 4, width=8).eval()
    capture = SaliencyCapture(network)
    images = torch.randn(2, 3, 64, 64)
    for _ in range(2):  # the pass that finds the layer, and one that uses it
        logits, saliency = capture(images)
        features = network.forward_features(images)
        assert (capture.layer_name, saliency.shape) == ("stages", (2, 8, 8))
        assert features.min() >= 0
        torch.testing.assert_close(saliency, feature_saliency(features))
        torch.testing.assert_close(logits, network.forward_head(features))


def test_steps_lower_the_loss_in_channels_last() -> None:
    torch.manual_seed(0)
    losses = losses_in_channels_last(SmallImageResNet(10, 4, width=16), size=16, steps=5)
    assert losses == sorted(losses, reverse=True)


def test_compiled_network_gives_the_same_logits() -> None:
    network = SmallImageResNet(10, 4, width=8).eval()
    images = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 19}, "depth must be one of 10, 18, 34; got 19"),
        ({"stem_stride": 3}, "stem_stride must be one of 1, 2; got 3"),
        ({"width": 0}, "width must be >= 1, got 0"),
        ({"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"in_channels": 0}, "in_channels must be >= 1, got 0"),
    ],
)
def test_bad_shapes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SmallImageResNet(**{"depth": 18, "num_classes": 10, **arguments})
