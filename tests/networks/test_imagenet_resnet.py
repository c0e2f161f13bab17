"""ResNet for 224 px images: torchvision's weights and logits, the two halves, and the larger map."""

import pytest
import torch
import torchvision
from tests.networks.steps import losses_in_channels_last
from torch import nn

from saligraft import SaliencyCapture, feature_saliency
from saligraft.networks.imagenet_resnet import SHAPES, ImageNetResNet


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def counted_by_hand(classes: int, channels: int) -> int:
    """ResNet-50 by the authors' Table 1: weights of each layer, 2 per normed channel, no conv bias."""
    total = 49 * channels * 64 + 2 * 64
    inputs = 64
    for blocks, width in zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True):
        for block in range(blocks):
            total += inputs * width + 9 * width * width + 4 * width * width + 2 * (width + width + 4 * width)
            total += inputs * 4 * width + 2 * 4 * width if block == 0 else 0  # 1x1 shortcut and its norm
            inputs = 4 * width
    return total + inputs * classes + classes


@pytest.mark.parametrize(("classes", "channels"), [(1000, 3), (200, 3), (10, 1)])
@pytest.mark.parametrize("large_map", [False, True])
def test_parameter_count_is_exact(classes: int, channels: int, large_map: bool) -> None:
    with torch.device("meta"):
        network = ImageNetResNet(50, classes, channels, large_map=large_map)
    assert parameters(network) == counted_by_hand(classes, channels)


def test_resnet_50_has_the_size_the_papers_print() -> None:
    with torch.device("meta"):
        assert round(parameters(ImageNetResNet(50, 1000)) / 1e6, 1) == 25.6


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_names_and_shapes_of_the_weights_are_torchvisions(depth: int) -> None:
    with torch.device("meta"):
        ours = ImageNetResNet(depth, 9).state_dict()
        theirs = torchvision.models.get_model(f"resnet{depth}", num_classes=9).state_dict()
    assert {name: weight.shape for name, weight in ours.items()} == {n: w.shape for n, w in theirs.items()}


@pytest.mark.parametrize("depth", [18, 50])
def test_residual_branches_start_at_zero_and_the_head_near_it_where_asked(depth: int) -> None:
    """Goyal et al. 2017, §5.1; imagenet_fast of PuzzleMix."""
    network = ImageNetResNet(depth, 50, zero_gamma=True, head_std=0.01).eval()
    for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
        for block in stage:
            last = block.bn3 if depth == 50 else block.bn2
            assert not bool(last.weight.any())
            assert bool(block.bn1.weight.eq(1).all())
    assert float(network.fc.weight.detach().std()) == pytest.approx(0.01, rel=0.05)
    assert float(network.fc.weight.detach().mean()) == pytest.approx(0, abs=0.001)
    x = torch.rand(1, network.layer1[1].conv1.in_channels, 4, 4)
    assert torch.equal(network.layer1[1](x), x)  # the branch adds nothing
    with pytest.raises(ValueError, match=r"head_std must be a finite number >= 0, got -1\.0"):
        ImageNetResNet(depth, 5, head_std=-1.0)


@pytest.mark.parametrize("depth", [18, 50])
def test_one_seed_gives_torchvisions_weights_and_logits(depth: int) -> None:
    networks = []
    for build in (ImageNetResNet, lambda depth, k: torchvision.models.get_model(f"resnet{depth}", num_classes=k)):
        torch.manual_seed(0)
        networks.append(build(depth, 3).eval())
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(networks[0](images), networks[1](images))


@pytest.mark.parametrize(("large_map", "cells"), [(False, 7), (True, 14)])
def test_the_last_map_of_resnet_50_at_224_pixels(large_map: bool, cells: int) -> None:
    with torch.device("meta"):
        network = ImageNetResNet(50, 200, large_map=large_map)
        features = network.forward_features(torch.randn(2, 3, 224, 224))
        assert features.shape == (2, 2048, cells, cells)
        assert network.forward_head(features).shape == (2, 200)
    assert network.num_features == 2048


@pytest.mark.parametrize("depth", [10, 50])
def test_the_larger_map_is_the_smaller_one_computed_at_every_place(depth: int) -> None:
    """Up to the last stage nothing differs; its first block, without stride, gives the strided one's cells too."""
    torch.manual_seed(0)
    usual, larger = ImageNetResNet(depth, 3).eval(), ImageNetResNet(depth, 3, large_map=True).eval()
    larger.load_state_dict(usual.state_dict())
    x = torch.randn(1, usual.layer4[0].conv1.in_channels, 4, 4)
    block, unstrided = usual.layer4[0], larger.layer4[0]
    torch.testing.assert_close(
        unstrided.conv1(x)[:, :, :: block.conv1.stride[0], :: block.conv1.stride[0]], block.conv1(x)
    )
    torch.testing.assert_close(unstrided.downsample(x)[:, :, ::2, ::2], block.downsample(x))
    assert unstrided(x).shape[2:] == (4, 4)
    assert block(x).shape[2:] == (2, 2)


@pytest.mark.parametrize(("large_map", "cells"), [(False, 3), (True, 6)])
def test_saliency_is_read_from_the_last_stage(large_map: bool, cells: int) -> None:
    network = ImageNetResNet(10, 4, large_map=large_map).eval()
    capture = SaliencyCapture(network)
    images = torch.randn(2, 3, 96, 96)
    for _ in range(2):  # the pass that finds the layer, and one that uses it
        logits, saliency = capture(images)
        features = network.forward_features(images)
        assert (capture.layer_name, saliency.shape) == ("layer4", (2, cells, cells))
        torch.testing.assert_close(saliency, feature_saliency(features))
        torch.testing.assert_close(logits, network.forward_head(features))


@pytest.mark.parametrize("large_map", [False, True])
def test_steps_lower_the_loss_in_channels_last(large_map: bool) -> None:
    torch.manual_seed(0)
    losses = losses_in_channels_last(ImageNetResNet(10, 4, large_map=large_map), size=64, steps=4)
    assert losses == sorted(losses, reverse=True)


def test_compiled_network_gives_the_same_logits() -> None:
    network = ImageNetResNet(10, 4, in_channels=1, large_map=True).eval()
    images = torch.randn(2, 1, 64, 64)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images))


def test_a_stem_for_other_channels_is_initialised_like_the_rest() -> None:
    torch.manual_seed(0)
    weight = ImageNetResNet(10, 4, in_channels=5).conv1.weight
    assert weight.shape == (64, 5, 7, 7)
    assert weight.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 51}, f"depth must be one of {', '.join(map(str, SHAPES))}; got 51"),
        ({"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"in_channels": 0}, "in_channels must be >= 1, got 0"),
    ],
)
def test_bad_shapes_are_named(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageNetResNet(**{"depth": 18, "num_classes": 10, **arguments})
