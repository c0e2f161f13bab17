"""ShakeDrop: the two passes' rules, the draws' distribution, and the expectation at test time."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from saligraft.regularizers import ShakeDrop, depth_keep_probability, shake_drop

SHAPE = (4, 3, 5, 6)


def draws(gate: bool, shape: tuple[int, ...] = SHAPE) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(1)
    alpha = 2 * torch.rand(shape, generator=source) - 1
    return {"gate": torch.full((1, 1, 1, 1), gate), "alpha": alpha, "beta": torch.rand(shape, generator=source)}


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (4, 1, 1, 1), (4, 3, 1, 1), SHAPE])
def test_alpha_scales_forward_and_beta_alone_scales_the_gradient(shape: tuple[int, ...]) -> None:
    features = torch.randn(SHAPE, requires_grad=True)
    drawn = draws(gate=False, shape=shape)
    shaken = shake_drop(features, **drawn)
    arriving = torch.randn(SHAPE)
    (gradient,) = torch.autograd.grad(shaken, features, arriving)
    assert torch.equal(shaken, features * drawn["alpha"])
    assert torch.equal(gradient, arriving * drawn["beta"])


def test_an_open_gate_leaves_both_passes_unchanged() -> None:
    features = torch.randn(SHAPE, requires_grad=True)
    shaken = shake_drop(features, **draws(gate=True))
    arriving = torch.randn(SHAPE)
    assert torch.equal(shaken, features)
    assert torch.equal(torch.autograd.grad(shaken, features, arriving)[0], arriving)


def test_a_gate_per_image_opens_image_by_image() -> None:
    features = torch.randn(SHAPE)
    drawn = draws(gate=False) | {"gate": torch.tensor([True, False, True, False])[:, None, None, None]}
    shaken = shake_drop(features, **drawn)
    assert torch.equal(shaken[::2], features[::2])
    assert torch.equal(shaken[1::2], (features * drawn["alpha"])[1::2])


def test_gradients_before_the_layer_carry_beta_and_after_it_alpha() -> None:
    """In w2 · S(w1 · x) the weight after the layer sees the shaken features, the one before a gradient times β."""
    x, before, after = torch.randn(SHAPE), torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    drawn = draws(gate=False)
    (after * shake_drop(before * x, **drawn)).sum().backward()
    torch.testing.assert_close(after.grad, (2 * x * drawn["alpha"]).sum())
    torch.testing.assert_close(before.grad, (3 * x * drawn["beta"]).sum())


def test_the_draws_get_no_gradient_and_nothing_is_changed() -> None:
    features, drawn = torch.randn(SHAPE, requires_grad=True), draws(gate=False)
    drawn["alpha"].requires_grad_()
    copies = {name: draw.detach().clone() for name, draw in drawn.items()} | {"features": features.detach().clone()}
    shake_drop(features, **drawn).sum().backward()
    assert drawn["alpha"].grad is None
    assert all(torch.equal(copies[name], draw) for name, draw in (drawn | {"features": features}).items())


def test_per_sample_gradients_follow_the_same_rule() -> None:
    features, drawn = torch.randn(SHAPE), draws(gate=False, shape=(1, 3, 5, 6))

    def total(sample: Tensor) -> Tensor:
        return shake_drop(sample[None], **drawn).sum()

    gradients = torch.func.vmap(torch.func.grad(total))(features)
    torch.testing.assert_close(gradients, drawn["beta"].expand(SHAPE))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("level", ["batch", "image", "channel", "pixel"])
def test_the_features_type_and_memory_order_are_kept(dtype: torch.dtype, level: Any) -> None:
    features = torch.randn(SHAPE, dtype=dtype).to(memory_format=torch.channels_last)
    for mode in (True, False):
        shaken = ShakeDrop(0.3, level=level).train(mode)(features)
        assert (shaken.dtype, shaken.shape) == (dtype, features.shape)
        assert shaken.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("level", "shape"),
    [("batch", (1, 1, 1, 1)), ("image", (4, 1, 1, 1)), ("channel", (4, 3, 1, 1)), ("pixel", SHAPE)],
)
def test_each_level_draws_its_own_factors(level: Any, shape: tuple[int, ...], generator: torch.Generator) -> None:
    drawn = ShakeDrop(0.5, level=level).draw(torch.randn(SHAPE), generator=generator)
    assert drawn.gate.shape == (1, 1, 1, 1)
    assert drawn.alpha.shape == drawn.beta.shape == shape
    assert drawn.alpha.unique().numel() == drawn.alpha.numel()


def test_draws_have_the_authors_distribution(generator: torch.Generator) -> None:
    layer, features = ShakeDrop(0.7, level="image"), torch.zeros(64, 1, 1, 1)
    drawn = [layer.draw(features, generator=generator) for _ in range(2000)]
    gates = torch.cat([draw.gate for draw in drawn]).float()
    alpha, beta = torch.cat([draw.alpha for draw in drawn]), torch.cat([draw.beta for draw in drawn])
    assert gates.mean().item() == pytest.approx(0.7, abs=4 * (0.21 / 2000) ** 0.5)
    assert alpha.mean().item() == pytest.approx(0, abs=4 * (1 / 3 / alpha.numel()) ** 0.5)
    assert alpha.var().item() == pytest.approx(1 / 3, rel=0.02)
    assert (-1 <= alpha.min() < -0.999, 0.999 < alpha.max() <= 1) == (True, True)
    assert beta.mean().item() == pytest.approx(0.5, abs=4 * (1 / 12 / beta.numel()) ** 0.5)
    assert (0 <= beta.min() < 0.001, 0.999 < beta.max() <= 1) == (True, True)
    correlation = torch.corrcoef(torch.stack((alpha.flatten(), beta.flatten())))[0, 1]
    assert abs(correlation.item()) < 4 / alpha.numel() ** 0.5


@pytest.mark.parametrize(
    ("keep", "alpha"), [(0.5, (-1.0, 1.0)), (0.8, (0.0, 1.0)), (0.2, (0.5, 1.5)), (1.0, (0.0, 0.0))]
)
def test_at_test_time_the_factor_is_the_mean_of_training(keep: float, alpha: tuple[float, float]) -> None:
    torch.manual_seed(0)
    layer, ones = ShakeDrop(keep, alpha=alpha, level="image"), torch.ones(16, 1, 1, 1)
    in_training = torch.cat([layer(ones) for _ in range(3000)])
    at_test = layer.eval()(ones)
    assert torch.equal(at_test, layer(ones))
    # One gate serves 16 images, so that 3000 draws count.
    assert at_test.mean().item() == pytest.approx(
        in_training.mean().item(), abs=4 * in_training.std().item() / 3000**0.5
    )


def test_the_global_seed_repeats_a_pass() -> None:
    layer, features = ShakeDrop(0.5), torch.randn(SHAPE)
    torch.manual_seed(5)
    first = [layer(features) for _ in range(4)]
    torch.manual_seed(5)
    assert all(torch.equal(layer(features), shaken) for shaken in first)


@given(blocks=st.integers(1, 200), last=st.floats(0, 1))
def test_keep_probability_falls_linearly_to_the_last_block(blocks: int, last: float) -> None:
    kept = torch.tensor([depth_keep_probability(block, blocks, last) for block in range(1, blocks + 1)])
    torch.testing.assert_close(kept, torch.linspace(1, last, blocks + 1)[1:])


def test_the_layer_compiles_to_one_graph_with_its_backward_rule() -> None:
    layer = ShakeDrop(0.0)  # the gate never opens: the factors must differ between the passes
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    features = torch.ones(SHAPE, requires_grad=True)
    shaken = compiled(features)
    (gradient,) = torch.autograd.grad(shaken.sum(), features)
    assert shaken.min() < 0 <= gradient.min()
    assert not torch.equal(shaken, gradient)
    assert not torch.equal(compiled(features), shaken)


def test_the_pure_function_runs_on_meta_tensors() -> None:
    shaken = shake_drop(torch.randn(SHAPE, device="meta"), **{n: d.to("meta") for n, d in draws(False).items()})
    assert (shaken.shape, shaken.is_meta) == (SHAPE, True)


def test_checkpointing_replays_the_draws() -> None:
    features = torch.randn(SHAPE)
    gradients = []
    for segments in (False, True):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Tanh(), ShakeDrop(0.0), nn.Conv2d(3, 3, 1))
        torch.manual_seed(2)
        out = (
            torch.utils.checkpoint.checkpoint(network, features, use_reentrant=False) if segments else network(features)
        )
        out.square().sum().backward()
        gradients.append([weight.grad for weight in network.parameters()])
    # β is drawn in the forward pass, so that a replayed one meets the same.
    for plain, replayed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, replayed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"gate": torch.zeros(1, 1, 1, 1)}, TypeError, "gate must be a bool tensor, got torch.float32"),
        ({"alpha": torch.zeros(4)}, ValueError, r"alpha must have shape \(B, C, H, W\), got \(4\)"),
        (
            {"beta": torch.zeros(4, 2, 1, 1)},
            ValueError,
            r"beta must have each axis .* \(4, 3, 5, 6\), got \(4, 2, 1, 1\)",
        ),
        ({"features": torch.zeros(4, 3)}, ValueError, r"features must have shape \(B, C, H, W\), got \(4, 3\)"),
    ],
)
def test_bad_draws_are_named(arguments: dict[str, Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        shake_drop(**({"features": torch.zeros(SHAPE)} | draws(False) | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_probability": 1.5}, r"keep_probability must be in \[0, 1\], got 1.5"),
        ({"level": "row"}, "level must be one of 'batch', 'image', 'channel', 'pixel'; got 'row'"),
        ({"alpha": (1.0, -1.0)}, r"alpha must be a range \(low, high\) with low <= high, got \(1.0, -1.0\)"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShakeDrop(**{"keep_probability": 0.5, **arguments})


@pytest.mark.parametrize(("block", "blocks"), [(0, 3), (4, 3), (1, 0)])
def test_bad_depths_are_named(block: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="block"):
        depth_keep_probability(block, blocks)
