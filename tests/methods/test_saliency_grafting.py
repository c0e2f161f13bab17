"""Saliency Grafting: M = P ⊙ S'', what the draws do, and what happens to maps that say nothing."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import saligraft as sg


def batch(size: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 16, 16, generator=stream), torch.arange(size), torch.rand(size, 8, 8, generator=stream)


@given(seed=st.integers(0, 9999), temperature=st.floats(0.01, 3), threshold=st.floats(0, 2))
def test_mask_is_a_part_of_the_salient_regions(seed: int, temperature: float, threshold: float) -> None:
    images, labels, saliency = batch(seed=seed)
    method = sg.SaliencyGrafting(temperature=temperature, threshold=threshold)
    mixed = method(images, labels, saliency, generator=torch.Generator().manual_seed(seed))
    grid = mixed.mask.shape[1]
    assert grid in method.grids
    regions = sg.salient_regions(sg.resize_saliency(saliency, grid), temperature, threshold)
    assert not (mixed.mask & ~regions).any()


def test_class_and_pure_function_agree() -> None:
    images, labels, saliency = batch()
    method = sg.SaliencyGrafting()
    drawn = method.draw(images, generator=torch.Generator().manual_seed(2))
    mixed = method(images, labels, saliency, generator=torch.Generator().manual_seed(2))
    pure = sg.graft_salient_regions(
        images, labels, sg.resize_saliency(saliency, drawn.grid), partner=drawn.partner, chosen=drawn.chosen
    )
    assert all(torch.equal(a, b) for a, b in zip(mixed, pure, strict=True))
    expected = sg.calibrated_weight(
        *(sg.resize_saliency(s, drawn.grid) for s in (saliency, saliency[drawn.partner])), mixed.mask
    )
    torch.testing.assert_close(mixed.source_weight, expected)


def test_sampling_probability_is_drawn_from_beta_per_batch_or_sample() -> None:
    images, labels, saliency = batch(size=400)
    shares = {}
    for per in ("batch", "sample"):
        method = sg.SaliencyGrafting(threshold=0, grids=(16,), per=per)  # every cell is salient, so M shows P itself
        mixed = method(images, labels, saliency, generator=torch.Generator().manual_seed(0))
        shares[per] = mixed.mask.float().mean(dim=(1, 2))
    assert shares["batch"].std() < 0.05  # one p_B, binomial noise of 256 cells
    beta_std = (1 / (4 * 5)) ** 0.5  # of Beta(2, 2)
    assert float(shares["sample"].std()) == pytest.approx(beta_std, abs=0.03)


def test_top_k_takes_k_cells_and_is_deterministic() -> None:
    images, labels, saliency = batch()
    method = sg.SaliencyGrafting(selection="top-k", k=5, grids=(8,))
    masks = [method(images, labels, saliency, generator=torch.Generator().manual_seed(s)).mask for s in (0, 1)]
    assert torch.equal(*masks)
    assert (masks[0].sum(dim=(1, 2)) == 5).all()


@pytest.mark.parametrize("value", [0.0, 3.3])
def test_flat_maps_leave_the_destination_unchanged(value: float) -> None:
    images, labels, _ = batch()
    mixed = sg.SaliencyGrafting()(images, labels, torch.full((6, 7, 7), value))
    assert torch.equal(mixed.images, images[mixed.partner])
    assert torch.equal(mixed.source_weight, torch.zeros(6))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_maps_stay_ungrafted_and_spread_nowhere(broken: float) -> None:
    images, labels, saliency = batch(size=4)
    saliency[1, 0, 0] = broken
    partner = torch.tensor([1, 2, 3, 0])  # sample 1 gives to 2, and receives from 0
    chosen = torch.ones(4, 8, 8, dtype=torch.bool)
    for threshold in (0.0, 1.0):
        mixed = sg.graft_salient_regions(images, labels, saliency, partner=partner, chosen=chosen, threshold=threshold)
        assert mixed.source_weight.isfinite().all()
        assert torch.equal(mixed.images[:2], images[partner][:2])
        assert torch.equal(mixed.source_weight[:2], torch.zeros(2))
        assert mixed.mask[2:].flatten(1).any(dim=1).all()


def test_the_graft_carries_no_gradient_into_the_saliency() -> None:
    images, labels, saliency = batch()
    mixed = sg.SaliencyGrafting()(images, labels, saliency.requires_grad_())
    assert not mixed.source_weight.requires_grad


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"temperature": 0.0}, ValueError, "temperature must be a finite number > 0, got 0.0"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number, got str"),
        ({"alpha": -1}, ValueError, "alpha must be a finite number > 0, got -1"),
        ({"threshold": -0.1}, ValueError, "threshold must be a finite number >= 0, got -0.1"),
        ({"grids": ()}, ValueError, "grids must name at least one grid size"),
        ({"grids": (4, 0)}, ValueError, "each of grids must be >= 1, got 0"),
        ({"grids": (4, 2.5)}, TypeError, "each of grids must be an int, got float"),
        ({"grids": None}, TypeError, "grids must be a sequence of ints"),
        ({"grids": 8}, TypeError, r"grids must be a sequence of ints such as \(4, 8\), got 8"),
        ({"normalize": "l1"}, ValueError, "normalize must be one of"),
        ({"selection": "best"}, ValueError, "selection must be one of 'stochastic', 'top-k'; got 'best'"),
        ({"label_mixing": "volume"}, ValueError, "label_mixing must be one of 'saliency', 'area'; got 'volume'"),
        ({"selection": "top-k", "k": 17}, ValueError, "k must be at most 16, the cells of the smallest grid, got 17"),
        ({"norm": -2}, ValueError, "norm must be > 0, got -2"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sg.SaliencyGrafting(**change)


def test_refuses_missing_saliency_a_grid_finer_than_the_image_and_wrong_draws() -> None:
    images, labels, saliency = batch()
    with pytest.raises(ValueError, match="saliency must be given to SaliencyGrafting, got None"):
        sg.SaliencyGrafting()(images, labels)
    with pytest.raises(ValueError, match=r"grids must not exceed the image \(16, 16\), got 32"):
        sg.SaliencyGrafting(grids=(4, 32), probability=0.0)(images, labels, saliency)  # whichever grid is drawn
    with pytest.raises(ValueError, match=r"chosen must be bool of shape \(6, 8, 8\), got torch.float32"):
        sg.graft_salient_regions(images, labels, saliency, partner=torch.arange(6), chosen=saliency)
    for chosen in (None, saliency.to("meta") > 0):
        with pytest.raises((TypeError, ValueError), match="chosen must be"):
            sg.graft_salient_regions(images, labels, saliency, partner=torch.arange(6), chosen=chosen)
    chosen = saliency > 0.5
    with pytest.raises(TypeError, match=r"partner must hold indices as torch\.int64, got torch\.float32"):
        sg.graft_salient_regions(images, labels, saliency, partner=torch.zeros(6), chosen=chosen)
    with pytest.raises(ValueError, match=r"partner must lie in \[0, 6\), got -1 to 4"):
        sg.graft_salient_regions(images, labels, saliency, partner=torch.arange(6) - 1, chosen=chosen)
    with pytest.raises(ValueError, match=r"chosen must be bool of shape \(6, 8, 8\), got torch\.bool \(6, 4, 4\)"):
        sg.graft_salient_regions(images, labels, saliency, partner=torch.arange(6), chosen=chosen[:, :4, :4])
    with pytest.raises(ValueError, match="partner must have one entry per image: expected 6, got 5"):
        sg.graft_salient_regions(images, labels, saliency, partner=torch.arange(5), chosen=chosen)
    for rows, columns in ((17, 8), (8, 17)):
        fine = torch.rand(6, rows, columns)
        shape = rf"\(16, 16\), got \(6, {rows}, {columns}\)"
        with pytest.raises(ValueError, match=f"saliency must not be finer than the image {shape}"):
            sg.graft_salient_regions(images, labels, fine, partner=torch.arange(6), chosen=fine > 0.5)


def test_a_custom_selection_replaces_the_paper_s_and_is_checked() -> None:
    images, labels, saliency = batch()
    draws = {"partner": torch.arange(6).roll(1), "chosen": torch.ones(6, 8, 8, dtype=torch.bool)}
    own = saliency > 0.5
    assert torch.equal(sg.graft_salient_regions(images, labels, saliency, **draws, select=lambda _: own).mask, own)
    for wrong in (saliency, own[0]):  # the second would be broadcast to all samples
        with pytest.raises(ValueError, match=r"result of select must be bool of shape \(6, 8, 8\), got torch\."):
            sg.graft_salient_regions(images, labels, saliency, **draws, select=lambda _, wrong=wrong: wrong)


def test_the_pure_function_refuses_bad_options() -> None:
    images, labels, saliency = batch()
    draws = {"partner": torch.arange(6), "chosen": saliency > 0.5}
    for option, message in (("temperature", "> 0"), ("threshold", ">= 0"), ("norm", "> 0")):
        with pytest.raises(ValueError, match=f"{option} must be .*{message}, got -1"):
            sg.graft_salient_regions(images, labels, saliency, **draws, **{option: -1})
    for option in ("normalize", "label_mixing"):
        with pytest.raises(ValueError, match=f"{option} must be one of"):
            sg.graft_salient_regions(images, labels, saliency, **draws, **{option: "l7"})


def test_is_frozen_and_hashable() -> None:
    method = sg.SaliencyGrafting(grids=[4, 8])
    assert hash(method) == hash(sg.SaliencyGrafting())
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.temperature = 1.0
