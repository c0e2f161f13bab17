"""Wide ResNet: parameter counts, shapes and structure against the authors' table."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.steps import losses_in_channels_last
from torch import nn

from saligraft.networks.wide_resnet import WideBlock, WideResNet


def counted_by_hand(depth: int, k: int, classes: int, channels: int) -> int:
    """Parameters by the authors' Table 1 alone: each layer's weights, 2 per normed channel, no conv bias."""
    total = channels * 16 * 9
    inputs = 16
    for outputs in (16 * k, 32 * k, 64 * k):
        for _ in range((depth - 4) // 6):
            total += 2 * inputs + 9 * inputs * outputs  # norm, 3x3
            total += 2 * outputs + 9 * outputs * outputs
            total += inputs * outputs if inputs != outputs else 0  # 1x1 shortcut
            inputs = outputs
    return total + 2 * inputs + inputs * classes + classes


@pytest.mark.parametrize(
    ("depth", "width", "classes", "channels"),
    [(10, 2, 10, 3), (16, 2, 12, 1), (10, 1, 10, 3), (28, 10, 100, 3), (22, 3, 7, 4)],
)
def test_parameter_count_is_exact(depth: int, width: int, classes: int, channels: int) -> None:
    with torch.device("meta"):
        network = WideResNet(depth, width, classes, channels)
    expected = counted_by_hand(depth, width, classes, channels)
    assert sum(p.numel() for p in network.parameters()) == expected


def test_wrn_28_10_has_the_size_the_paper_prints() -> None:
    with torch.device("meta"):
        network = WideResNet(28, 10, 100)
    assert round(sum(p.numel() for p in network.parameters()) / 1e6, 1) == 36.5
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 28  # the depth in the name counts convolutions: stem, 24 in blocks, 3 shortcuts


def authors_block(block: WideBlock, x: torch.Tensor, stride: int) -> torch.Tensor:
    """A block of Verma et al.'s wide_resnet.py in evaluation, by functions alone."""

    def normed(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias))

    out = F.conv2d(normed(block.activation1[0], x), block.convolution1.weight, block.convolution1.bias, padding=1)
    second = block.convolution2
    out = F.conv2d(normed(block.activation2[0], out), second.weight, second.bias, stride=stride, padding=1)
    projection = block.projection
    return out + (x if projection is None else F.conv2d(x, projection.weight, projection.bias, stride=stride))


def test_the_manifold_mixup_variant_has_the_size_of_its_authors_network() -> None:
    """36.547 M for 100 classes: one bias per channel more, of the stem, 24 convolutions in blocks and 3 projections."""
    with torch.device("meta"):
        network, original = WideResNet(28, 10, 100, variant="manifold-mixup"), WideResNet(28, 10, 100)
    count = sum(p.numel() for p in network.parameters())
    assert round(count / 1e6, 3) == 36.547
    biases = 16 + (4 * 2 + 1) * (160 + 320 + 640)
    assert count - sum(p.numel() for p in original.parameters()) == biases


def test_the_manifold_mixup_variant_computes_what_its_authors_network_does() -> None:
    network = WideResNet(10, 2, 5, variant="manifold-mixup").eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics and weights that show
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.uniform_(module.bias)
    images = torch.randn(2, 3, 16, 16)
    x = F.conv2d(images, network.stem.weight, network.stem.bias, padding=1)
    for stage, stride in zip(network.stages, (1, 2, 2), strict=True):
        for place, block in enumerate(stage):
            x = authors_block(block, x, 1 if place else stride)
    norm = network.final_activation[0]
    x = F.relu(F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)).mean(dim=(2, 3))
    torch.testing.assert_close(network(images), F.linear(x, network.head.weight, network.head.bias))
    assert norm.momentum == 0.9
    assert {m.momentum for m in network.stages.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


def test_the_manifold_mixup_variant_keeps_torchs_default_initialisation() -> None:
    """Uniform in ±1/√fan_in, for weights, biases and head alike; the original is He's normal without head bias."""
    network = WideResNet(10, 2, 5, variant="manifold-mixup")
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = module.weight[0].numel() ** -0.5
            assert float(module.weight.detach().abs().max()) <= bound
            assert 0 < float(module.bias.detach().abs().max()) <= bound


def test_variants_are_named() -> None:
    with pytest.raises(ValueError, match="variant must be one of 'original', 'manifold-mixup'; got 'kim'"):
        WideResNet(10, 1, 5, variant="kim")


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (8, 64), (1, 1)])
def test_any_image_size_and_channel_count(size: tuple[int, int]) -> None:
    height, width = size
    network = WideResNet(10, 1, 5, in_channels=2).eval()
    features = network.forward_features(torch.randn(3, 2, height, width))
    assert features.shape == (3, 64, -(-height // 4), -(-width // 4))
    assert network.forward_head(features).shape == (3, 5)


def test_a_stem_with_stride_halves_the_last_map_with_the_same_weights() -> None:
    network, halved = WideResNet(10, 1, 5), WideResNet(10, 1, 5, stem_stride=2)
    halved.load_state_dict(network.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert halved.eval().forward_features(images).shape == (2, 64, 4, 4)
    torch.testing.assert_close(halved.stem(images), network.stem(images)[..., ::2, ::2])


def test_forward_is_features_then_head() -> None:
    network = WideResNet(10, 2, 4).eval()
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(network(images), network.forward_head(network.forward_features(images)))


def test_a_module_puts_out_the_last_spatial_map() -> None:
    network = WideResNet(10, 1, 4).eval()
    seen: list[torch.Tensor] = []
    network.final_activation.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(network.forward_features(images), seen[0])
    assert seen[0].min() >= 0


def test_block_equals_its_definition_written_out() -> None:
    torch.manual_seed(0)
    block = WideBlock(4, 6, stride=2, dropout=0.0).eval()
    x = torch.randn(2, 4, 9, 9)
    kept = x.clone()
    norm1, norm2 = block.activation1[0], block.activation2[0]
    activated = norm1(x).relu()
    inner = norm2(nn.functional.conv2d(activated, block.convolution1.weight, stride=2, padding=1)).relu()
    expected = nn.functional.conv2d(inner, block.convolution2.weight, padding=1)
    expected = expected + nn.functional.conv2d(activated, block.projection.weight, stride=2)
    torch.testing.assert_close(block(x), expected)
    assert torch.equal(x, kept)


def test_initial_weights_follow_he_over_fan_in() -> None:
    torch.manual_seed(0)
    network = WideResNet(10, 4, 10)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            fan_in = module.in_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)
    assert not network.head.bias.any()


def test_dropout_acts_in_training_alone() -> None:
    network = WideResNet(10, 1, 4, dropout=0.5)
    images = torch.randn(4, 3, 16, 16)
    network.eval()
    assert torch.equal(network(images), network(images))
    network.train()
    assert not torch.equal(network(images), network(images))


def test_steps_lower_the_loss_in_channels_last() -> None:
    torch.manual_seed(0)
    losses = losses_in_channels_last(WideResNet(10, 1, 4), size=16, steps=5, lr=0.05)
    assert losses == sorted(losses, reverse=True)


def test_compiled_network_gives_the_same_logits() -> None:
    network = WideResNet(10, 1, 4).eval()
    images = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), network(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 11, "width": 2}, r"depth must be 6n \+ 4 .* got 11"),
        ({"depth": 4, "width": 2}, r"depth must be 6n \+ 4 .* got 4"),
        ({"depth": 10, "width": 0}, "width must be >= 1, got 0"),
        ({"depth": 10, "width": 1, "dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"depth": 10, "width": 1, "dropout": "0.3"}, "dropout must be a number, got str"),
        ({"depth": 10, "width": 1, "stem_stride": 3}, r"stem_stride must be one of 1, 2; got 3"),
        ({"depth": 10, "width": 1.5}, "width must be an int, got float"),
        ({"depth": 10, "width": 1, "num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"depth": 10, "width": 1, "in_channels": 0}, "in_channels must be >= 1, got 0"),
    ],
)
def test_bad_shapes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        WideResNet(**{"num_classes": 10, **arguments})
