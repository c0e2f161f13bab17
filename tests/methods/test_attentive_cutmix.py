"""Attentive CutMix pastes exactly the k most attended cells, and weights the label by their share of the pixels."""

import pytest
import torch

import saligraft as sg
from saligraft.methods import AttentiveCutMix, attentive_cutmix


def batch(size: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    images = torch.randn(size, 3, 28, 28, generator=stream)
    return images, torch.arange(size), torch.rand(size, 7, 7, generator=stream)


def test_shows_the_source_in_the_best_cells_only() -> None:
    images, labels, saliency = batch()
    partner = torch.tensor([1, 2, 3, 4, 0])
    mixed = attentive_cutmix(images, labels, saliency, partner=partner, k=6)
    for place in range(5):
        best = saliency[place].flatten().argsort(descending=True)[:6].tolist()
        for cell in range(49):
            row, column = 4 * (cell // 7), 4 * (cell % 7)
            expected = images[place] if cell in best else images[partner[place]]
            window = (slice(None), slice(row, row + 4), slice(column, column + 4))
            assert torch.equal(mixed.images[place][window], expected[window])
    torch.testing.assert_close(mixed.source_weight, torch.full((5,), 6 / 49))


@pytest.mark.parametrize(("grid", "cells"), [(7, 49), (4, 16), (None, 64)])
def test_grid_of_the_map_or_its_own(grid: int | None, cells: int) -> None:
    images, labels, _ = batch()
    saliency = torch.rand(5, 8, 8)
    mixed = AttentiveCutMix(grid=grid, k=5)(images, labels, saliency)
    assert mixed.mask[0].numel() == cells
    assert (mixed.mask.sum(dim=(1, 2)) == 5).all()


def test_takes_any_networks_map_and_only_partners_are_drawn() -> None:
    images, labels, _ = batch()
    frozen = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    with torch.no_grad():
        _, saliency = sg.SaliencyCapture(frozen)(images)
    masks = [
        AttentiveCutMix()(images, labels, saliency, generator=torch.Generator().manual_seed(seed)).mask
        for seed in (0, 1)
    ]
    assert torch.equal(*masks)


def test_broken_maps_stay_ungrafted() -> None:
    images, labels, saliency = batch()
    saliency[1, 0, 0] = float("nan")
    partner = torch.tensor([1, 2, 3, 4, 0])
    mixed = attentive_cutmix(images, labels, saliency, partner=partner)
    assert torch.equal(mixed.source_weight[:2], torch.zeros(2))
    assert torch.equal(mixed.images[:2], images[partner][:2])


def test_refuses_what_cannot_be() -> None:
    images, labels, saliency = batch()
    with pytest.raises(ValueError, match="saliency must be given to AttentiveCutMix, got None"):
        AttentiveCutMix()(images, labels)
    with pytest.raises(ValueError, match="k must be at most 49, the cells of the grid, got 50"):
        AttentiveCutMix(k=50)
    with pytest.raises(ValueError, match="k must be <= 49, got 50"):
        AttentiveCutMix(k=50, grid=None)(images, labels, saliency)
    with pytest.raises(ValueError, match=r"grid must not exceed the image \(28, 28\), got 32"):
        AttentiveCutMix(grid=32).draw(images)
    for fine in (torch.rand(5, 29, 7), torch.rand(5, 7, 29)):
        with pytest.raises(ValueError, match=r"saliency must not be finer than the image \(28, 28\), got \(5, "):
            attentive_cutmix(images, labels, fine, partner=torch.arange(5))
        with pytest.raises(ValueError, match="saliency must not be finer than the image"):
            AttentiveCutMix(grid=None)(images, labels, fine)
