"""DropBlock: blocks' shapes, keep ratios, the schedule, and torchvision's op beside it."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from saligraft.regularizers import DropBlock, block_seed_rate, drop_block, set_drop_block_progress


def seeds_at(shape: tuple[int, ...], *places: tuple[int, ...]) -> Tensor:
    seeds = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        seeds[place] = True
    return seeds


def dropped_by_loops(seeds: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The cells of every seed's block, by loops over seeds."""
    batch, channels, height, width = shape
    block_height, block_width = height - seeds.shape[2] + 1, width - seeds.shape[3] + 1
    dropped = torch.zeros(shape, dtype=torch.bool)
    for image, channel, top, left in seeds.expand(batch, channels, -1, -1).nonzero().tolist():
        dropped[image, channel, top : top + block_height, left : left + block_width] = True
    return dropped


@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    block=st.integers(1, 9),
    rate=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    shared=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_blocks_are_dropped_and_the_rest_scaled(
    sizes: tuple[int, int, int, int], block: int, rate: float, shared: bool, seed: int
) -> None:
    batch, channels, height, width = sizes
    side = min(block, height, width)
    source = torch.Generator().manual_seed(seed)
    seeds = torch.rand(batch, 1 if shared else channels, height - side + 1, width - side + 1, generator=source) < rate
    features = torch.randn(sizes, generator=source)
    kept = ~dropped_by_loops(seeds, sizes)
    expected = features * kept * (kept.numel() / max(int(kept.sum()), 1))
    before = features.clone()
    torch.testing.assert_close(drop_block(features, seeds=seeds), expected)
    assert torch.equal(features, before)


def test_a_seed_is_the_top_left_cell_of_a_complete_block() -> None:
    kept = drop_block(torch.ones(1, 1, 6, 7), seeds=seeds_at((1, 1, 4, 5), (0, 0, 3, 4))) > 0
    expected = torch.ones(6, 7, dtype=torch.bool)
    expected[3:, 4:] = False
    assert torch.equal(kept[0, 0], expected)


def test_the_mean_of_constant_features_stays_and_gradients_pass_where_kept(generator: torch.Generator) -> None:
    features = torch.ones(8, 4, 14, 14, requires_grad=True)
    out = drop_block(features, seeds=torch.rand(8, 4, 8, 8, generator=generator) < 0.01)
    assert out.mean().item() == pytest.approx(1, rel=1e-5)
    out.sum().backward()
    assert torch.equal(features.grad, out)  # linear: the gradient is the mask times the scale


def test_dropping_everything_gives_zeros_not_nan() -> None:
    out = drop_block(torch.randn(2, 3, 4, 4), seeds=torch.ones(2, 3, 1, 1, dtype=torch.bool))
    assert torch.equal(out, torch.zeros(2, 3, 4, 4))


def test_the_scale_of_half_precision_is_counted_exactly() -> None:
    ones = torch.ones(8, 64, 16, 16)  # 131072 cells, more than float16 can count
    seeds = torch.rand(8, 64, 10, 10, generator=torch.Generator().manual_seed(0)) < 0.003
    exact = drop_block(ones, seeds=seeds)
    for dtype in (torch.float16, torch.bfloat16):
        half = drop_block(ones.to(dtype), seeds=seeds)
        assert half.dtype == dtype
        torch.testing.assert_close(half, exact.to(dtype))


@pytest.mark.parametrize(("keep", "block", "size"), [(0.9, 7, (14, 14)), (0.75, 3, (8, 12)), (0.9, 4, (9, 9))])
def test_about_keep_probability_is_kept(keep: float, block: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    kept = (DropBlock(keep, block)(torch.ones(64, 64, *size)) > 0).float()
    height, width = size
    rate = block_seed_rate(keep, block, height, width)
    # A cell is kept if none of the seeds whose blocks reach it came up: exact, overlaps included.
    reach = [
        [_reaching(row, height, block) * _reaching(column, width, block) for column in range(width)]
        for row in range(height)
    ]
    expected = (1 - rate) ** torch.tensor(reach, dtype=torch.float64)
    # 64 × 64 independent maps: five standard errors of a cell's own mean.
    assert ((kept.mean(dim=(0, 1)) - expected).abs() < 5 * (0.25 / 64**2) ** 0.5).all()
    assert kept.mean().item() == pytest.approx(expected.mean().item(), abs=0.01)
    assert keep - 0.01 < kept.mean().item() < keep + 0.05  # the authors' γ ignores overlaps, which keep a little more


def _reaching(cell: int, size: int, block: int) -> int:
    """How many top-left places give a block that covers the cell along one axis."""
    return min(cell, size - block) - max(0, cell - block + 1) + 1


@pytest.mark.parametrize(("keep", "block", "size"), [(0.9, 7, 14), (0.8, 3, 8), (0.7, 5, 5), (0.9, 9, 4)])
def test_torchvision_drops_as_much_and_scales_alike(keep: float, block: int, size: int) -> None:
    peer = pytest.importorskip("torchvision.ops").drop_block2d  # the core's tests may run without it
    torch.manual_seed(0)
    features = torch.ones(128, 32, size, size)
    if min(block, size) % 2 == 0:
        with pytest.raises(ValueError, match="odd"):  # ours has a meaning there too
            peer(features, 1 - keep, block)
        block = size - 1
    ours, theirs = DropBlock(keep, block)(features), peer(features, 1 - keep, block)
    share = [(out > 0).float().mean(dim=(1, 2, 3)) for out in (ours, theirs)]
    error = (share[0].var() / 128 + share[1].var() / 128).sqrt().item()
    assert share[0].mean().item() == pytest.approx(share[1].mean().item(), abs=5 * error)
    assert share[0].var().item() == pytest.approx(share[1].var().item(), rel=0.6)
    cells = [(out > 0).float().mean(dim=(0, 1)) for out in (ours, theirs)]
    assert (cells[0] - cells[1]).abs().max() < 6 * (0.5 / (128 * 32)) ** 0.5
    # Given the same mask, the same result: torchvision's own output tells which cells it kept.
    torch.testing.assert_close(theirs.max().item(), theirs.numel() / (theirs > 0).sum().item(), rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.max().item(), ours.numel() / (ours > 0).sum().item(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("block", "height", "width"), [(7, 14, 14), (1, 5, 5), (4, 9, 6), (9, 4, 6)])
def test_seed_rate_balances_the_expected_number_of_dropped_cells(block: int, height: int, width: int) -> None:
    """Eq. 1: seeds × cells of a block = the cells to be dropped, if no two blocks overlapped."""
    side = min(block, height, width)
    places = (height - side + 1) * (width - side + 1)
    dropped = block_seed_rate(0.9, block, height, width) * places * side**2
    assert dropped == pytest.approx(0.1 * height * width)


def test_the_authors_own_setting_gives_their_rate() -> None:
    # keep_prob 0.9, block 7 on the 14 × 14 maps of ResNet-50's third group: (0.1 / 49) · (196 / 64)
    assert block_seed_rate(0.9, 7, 14, 14) == pytest.approx(0.00625)


def test_channels_have_blocks_of_their_own_or_common_ones() -> None:
    torch.manual_seed(0)
    features = torch.ones(16, 8, 10, 10)
    own, common = DropBlock(0.5, 3)(features) > 0, DropBlock(0.5, 3, per_channel=False)(features) > 0
    assert (common == common[:, :1]).all()
    assert not (own == own[:, :1]).all()


def test_nothing_is_dropped_at_test_time_nor_with_keep_probability_one() -> None:
    features = torch.randn(2, 3, 8, 8)
    assert DropBlock(0.5, 3).eval()(features) is features
    assert DropBlock(1.0, 3)(features) is features


def test_the_ramp_is_linear_and_reaches_every_layer() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(DropBlock(0.8, 3), nn.Sequential(nn.ReLU(), DropBlock(0.6, 3)))
    features = torch.ones(32, 32, 12, 12)
    shares = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        set_drop_block_progress(network, progress)
        assert network[0].drop_rate.item() == pytest.approx(0.2 * progress)
        assert network[1][1].drop_rate.item() == pytest.approx(0.4 * progress)
        shares.append((network[0](features) == 0).float().mean().item())
    assert shares[0] == 0
    assert shares[1] == pytest.approx(0.05, abs=0.01)
    assert shares[2] == pytest.approx(0.10, abs=0.015)
    assert shares[3] == pytest.approx(0.19, abs=0.02)
    assert not network.state_dict()


def test_the_ramp_needs_one_compilation() -> None:
    graphs: list[Any] = []

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    layer = DropBlock(0.5, 3)
    compiled = torch.compile(layer, backend=counting, fullgraph=True)
    shares = []
    for progress in (0.0, 0.3, 0.6, 1.0):
        layer.set_progress(progress)
        shares.append((compiled(torch.ones(32, 8, 8, 8)) == 0).float().mean().item())
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert len(graphs) == 1


def test_the_layer_compiles_with_its_gradient() -> None:
    layer = torch.compile(DropBlock(0.5, 3), backend="aot_eager", fullgraph=True)
    features = torch.ones(4, 3, 8, 8, requires_grad=True)
    out = layer(features)
    assert torch.equal(torch.autograd.grad(out.sum(), features)[0], out)


def test_the_pure_function_runs_on_meta_tensors() -> None:
    out = drop_block(torch.randn(2, 3, 8, 9, device="meta"), seeds=torch.ones(2, 1, 6, 7, device="meta").bool())
    assert (out.shape, out.is_meta) == ((2, 3, 8, 9), True)


def test_a_generator_pins_the_seeds(generator: torch.Generator) -> None:
    layer, features = DropBlock(0.5, 3), torch.zeros(2, 3, 8, 8)
    first = layer.draw(features, generator=generator)
    assert torch.equal(layer.draw(features, generator=generator.manual_seed(0)), first)
    assert first.any()


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (torch.zeros(2, 3, 6, 6), TypeError, "seeds must be a bool tensor, got torch.float32"),
        (seeds_at((2, 2, 6, 6)), ValueError, r"seeds must have shape .* features \(2, 3, 8, 8\) .* got \(2, 2, 6, 6\)"),
        (seeds_at((2, 3, 9, 8)), ValueError, r"seeds must have shape .* got \(2, 3, 9, 8\)"),
        (seeds_at((2, 3, 0, 8)), ValueError, r"seeds must have shape .* got \(2, 3, 0, 8\)"),
        (seeds_at((2, 3)), ValueError, r"seeds must have shape \(B, C, h, w\), got \(2, 3\)"),
    ],
)
def test_bad_seeds_are_named(seeds: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        drop_block(torch.zeros(2, 3, 8, 8), seeds=seeds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_probability": -0.1}, r"keep_probability must be in \[0, 1\], got -0.1"),
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DropBlock(**arguments)


def test_progress_outside_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"progress must be in \[0, 1\], got 1.5"):
        set_drop_block_progress(DropBlock(), 1.5)
