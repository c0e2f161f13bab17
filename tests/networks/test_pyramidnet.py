"""PyramidNet: parameter counts, shapes and structure against the authors' table."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.networks.steps import losses_in_channels_last
from torch import Tensor, nn

from saligraft import SaliencyCapture, feature_saliency
from saligraft.networks.pyramidnet import PyramidNet
from saligraft.regularizers import ShakeDrop


def counted_by_hand(depth: int, alpha: int, classes: int, channels: int, bottleneck: bool) -> int:
    """Parameters by the authors' description alone: weights of each layer, 2 per normed channel, no conv bias."""
    blocks = (depth - 2) // (3 if bottleneck else 2)
    total = channels * 16 * 9 + 2 * 16
    inputs, width = 16, 16.0
    for _ in range(blocks):
        width += alpha / blocks
        planes = round(width)
        if bottleneck:
            total += 2 * inputs + inputs * planes  # norm, 1x1
            total += 2 * planes + 9 * planes * planes  # norm, 3x3
            total += 2 * planes + planes * 4 * planes + 2 * 4 * planes  # norm, 1x1, norm
            inputs = 4 * planes
        else:
            total += 2 * inputs + 9 * inputs * planes
            total += 2 * planes + 9 * planes * planes + 2 * planes
            inputs = planes
    return total + 2 * inputs + inputs * classes + classes


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("depth", "alpha", "classes", "channels", "bottleneck"),
    [(200, 240, 100, 3, True), (164, 48, 10, 3, True), (110, 270, 100, 3, False), (20, 24, 10, 1, False)],
)
@pytest.mark.parametrize("shake_drop", [False, True])
def test_parameter_count_is_exact(
    depth: int, alpha: int, classes: int, channels: int, bottleneck: bool, shake_drop: bool
) -> None:
    with torch.device("meta"):
        network = PyramidNet(depth, alpha, classes, channels, shake_drop=shake_drop)
    assert parameters(network) == counted_by_hand(depth, alpha, classes, channels, bottleneck)


def test_pyramidnet_200_240_has_the_size_and_depth_the_papers_print() -> None:
    with torch.device("meta"):
        network = PyramidNet(200, 240, 100)
    assert round(parameters(network) / 1e6, 1) == 26.8
    assert network.num_features == 1024  # the authors' output feature dimension
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 200  # the depth in the name: stem, 198 in blocks, head


@pytest.mark.parametrize(("alpha", "features"), [(48, 64), (84, 100), (270, 286)])
def test_pyramidnet_110_has_the_authors_output_dimension(alpha: int, features: int) -> None:
    with torch.device("meta"):
        assert PyramidNet(110, alpha, 10).num_features == features


@pytest.mark.parametrize(("depth", "alpha", "bottleneck"), [(20, 24, False), (20, 25, True), (32, 7, False)])
def test_every_block_adds_about_as_many_channels(depth: int, alpha: int, bottleneck: bool) -> None:
    with torch.device("meta"):
        network = PyramidNet(depth, alpha, 10, bottleneck=bottleneck)
    norms = [block.branch[-1].num_features for stage in network.stages for block in stage]
    expansion = 4 if bottleneck else 1
    steps = [b // expansion - a for a, b in zip([16, *(n // expansion for n in norms)], norms, strict=False)]
    assert all(abs(step - alpha / len(norms)) <= 1 for step in steps)
    assert norms[-1] == expansion * (16 + alpha) == network.num_features


def test_authors_choice_of_blocks_by_depth_can_be_overruled() -> None:
    with torch.device("meta"):
        kinds = {depth: len(PyramidNet(depth, 12, 2).stages[0][0].branch) for depth in (20, 110, 164, 200)}
        assert kinds == {20: 6, 110: 6, 164: 9, 200: 9}  # layers of a basic branch and of a bottleneck
        assert len(PyramidNet(20, 12, 2, bottleneck=True).stages[0]) == 2
        assert len(PyramidNet(164, 12, 2, bottleneck=False).stages[0]) == 27


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (8, 64), (1, 1)])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_any_image_size_and_channel_count(size: tuple[int, int], bottleneck: bool) -> None:
    height, width = size
    network = PyramidNet(20, 9, 5, in_channels=2, bottleneck=bottleneck).eval()
    features = network.forward_features(torch.randn(3, 2, height, width))
    assert features.shape == (3, 25 * (4 if bottleneck else 1), -(-height // 4), -(-width // 4))
    assert network.forward_head(features).shape == (3, 5)


def test_a_stem_with_stride_halves_the_last_map() -> None:
    network = PyramidNet(8, 6, 5, stem_stride=2).eval()
    assert network.forward_features(torch.randn(2, 3, 32, 32)).shape == (2, 22, 4, 4)


@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_equal_their_definition_written_out(stride: int) -> None:
    torch.manual_seed(0)
    network = PyramidNet(20, 18, 4, bottleneck=True).eval()
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
    block = network.stages[stride - 1][0]
    norm1, reduce, norm2, _, middle, norm3, _, expand, norm4 = block.branch
    x = torch.randn(2, norm1.num_features, 9, 9)
    kept = x.clone()
    out = F.conv2d(norm1(x), reduce.weight)  # no ReLU before the first convolution
    out = F.conv2d(norm2(out).relu(), middle.weight, stride=stride, padding=1)
    out = norm4(F.conv2d(norm3(out).relu(), expand.weight))  # nor after the last norm
    shortcut = x if stride == 1 else F.avg_pool2d(x, 2, ceil_mode=True)
    out[:, : x.shape[1]] += shortcut
    torch.testing.assert_close(block(x), out)
    assert torch.equal(x, kept)


def test_initial_weights_follow_he_over_fan_out() -> None:
    torch.manual_seed(0)
    network = PyramidNet(20, 90, 10)
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5000:
            assert module.weight.std().item() == pytest.approx((2 / (module.out_channels * 9)) ** 0.5, rel=0.05)
    assert not network.head.bias.any()


def test_shake_drop_ends_every_branch_and_strengthens_with_depth() -> None:
    with torch.device("meta"):
        network = PyramidNet(200, 240, 100, shake_drop=True, shake_level="image")
    shakes = [m for m in network.modules() if isinstance(m, ShakeDrop)]
    kept = torch.tensor([shake.keep_probability for shake in shakes])
    torch.testing.assert_close(kept, torch.linspace(1, 0.5, 67)[1:])
    assert {shake.level for shake in shakes} == {"image"}
    assert not any(isinstance(m, ShakeDrop) for m in PyramidNet(20, 9, 4).modules())


def test_weights_fit_with_and_without_shake_drop() -> None:
    torch.manual_seed(0)
    plain, shaken = PyramidNet(20, 9, 4), PyramidNet(20, 9, 4, shake_drop=True)
    shaken.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 16, 16)
    shaken.eval()
    assert torch.equal(shaken(images), shaken(images))
    shaken.train()
    assert not torch.equal(shaken(images), shaken(images))


def test_with_every_gate_open_a_shaken_network_is_the_plain_one() -> None:
    plain, shaken = PyramidNet(20, 9, 4), PyramidNet(20, 9, 4, shake_drop=True)
    shaken.load_state_dict(plain.state_dict())
    for shake in (m for m in shaken.modules() if isinstance(m, ShakeDrop)):
        shake.keep_probability = 1.0
    images = torch.randn(2, 3, 16, 16)
    for mode in (True, False):
        assert torch.equal(shaken.train(mode)(images), plain.train(mode)(images))


def test_saliency_is_read_from_the_last_activation() -> None:
    network = PyramidNet(20, 9, 4).eval()
    capture = SaliencyCapture(network)
    images = torch.randn(2, 3, 32, 32)
    for _ in range(2):  # the pass that finds the layer, and one that uses it
        logits, saliency = capture(images)
        features = network.forward_features(images)
        assert (capture.layer_name, saliency.shape) == ("final_activation", (2, 8, 8))
        assert features.min() >= 0
        torch.testing.assert_close(saliency, feature_saliency(features))
        torch.testing.assert_close(logits, network.forward_head(features))


@pytest.mark.parametrize("options", [{}, {"bottleneck": True}, {"shake_drop": True}])
def test_steps_lower_the_loss_in_channels_last(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    losses = losses_in_channels_last(PyramidNet(20, 24, 4, **options), size=16, steps=8)
    # ShakeDrop shakes the loss from step to step: there the later half must be below the earlier.
    assert sum(losses[4:]) < sum(losses[:4])
    if not options.get("shake_drop"):
        assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_compiled_network_gives_the_same_logits_and_gradients(bottleneck: bool) -> None:
    network = PyramidNet(11, 6, 4, bottleneck=True) if bottleneck else PyramidNet(8, 6, 4)
    network.eval()
    images = torch.randn(2, 3, 16, 16, requires_grad=True)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    results: list[tuple[Tensor, Tensor]] = []
    for call in (compiled, network):
        logits = call(images)
        results.append((logits, torch.autograd.grad(logits.square().sum(), images)[0]))
    torch.testing.assert_close(results[0], results[1])


def test_a_network_with_shake_drop_compiles_to_one_graph_and_draws_at_each_call() -> None:
    torch.manual_seed(0)
    network = PyramidNet(8, 6, 4, shake_drop=True)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    images = torch.randn(2, 3, 16, 16)
    outputs = [compiled(images) for _ in range(4)]
    assert any(not torch.equal(outputs[0], output) for output in outputs[1:])
    outputs[0].sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 21}, r"depth must be 6n \+ 2 with n >= 1 for basic blocks \(8, 14, 20, 26, ...\), got 21"),
        ({"depth": 2}, r"depth must be 6n \+ 2 .* got 2"),
        ({"depth": 26, "bottleneck": True}, r"depth must be 9n \+ 2 .* bottleneck .* \(11, 20, 29, 38, ...\), got 26"),
        ({"depth": 170}, r"depth must be 9n \+ 2 .* bottleneck .* got 170"),
        ({"alpha": 0}, "alpha must be >= 1, got 0"),
        ({"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ({"in_channels": 0}, "in_channels must be >= 1, got 0"),
        ({"shake_drop": "no"}, "shake_drop must be one of False, True; got 'no'"),
        ({"shake_drop": True, "shake_level": "row"}, "level must be one of .* got 'row'"),
    ],
)
def test_bad_shapes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PyramidNet(**{"depth": 20, "alpha": 9, "num_classes": 10, **arguments})
