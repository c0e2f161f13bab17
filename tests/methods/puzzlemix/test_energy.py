"""The energy against its definition, written with loops over blocks, seams and pixels."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from saligraft.methods.puzzlemix import EnergyTerms, block_shares, mask_energy

PARTNER = torch.tensor([1, 2, 0])
RATIO = torch.tensor([0.2, 0.5, 0.9])


def batch(grid: int, size: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    images = torch.randn(3, 2, size, size, generator=stream)
    return images, block_shares(torch.rand(3, size, size, generator=stream), grid)


def seam(above: np.ndarray, below: np.ndarray, cell: int) -> float:
    """Mean difference of the cells on both sides of a horizontal seam between two blocks (C, b, b)."""
    total, columns = 0.0, range(0, above.shape[2], cell)
    for start in columns:
        last = above[:, -cell:, start : start + cell].mean(axis=(1, 2))
        first = below[:, :cell, start : start + cell].mean(axis=(1, 2))
        total += float(np.abs(last - first).mean())
    return total / len(columns)


def defined_energy(
    z: np.ndarray, images: np.ndarray, shares: np.ndarray, sample: int, terms: EnergyTerms, ratio: float
) -> float:
    """Saliency lost + label and data smoothness + prior, for a mask z (g, g) of sample and partner."""
    grid, side = len(z), images.shape[2] // len(z)
    cell = min(terms.neighbourhood, side)
    pair = (int(PARTNER[sample]), sample)  # what shows at z = 0 and z = 1
    smoothness = terms.beta / grid / 16

    def block(image: int, row: int, column: int) -> np.ndarray:
        return images[image, :, row * side : (row + 1) * side, column * side : (column + 1) * side] * terms.pixel_std

    energy = float((z * shares[pair[0]] + (1 - z) * shares[pair[1]]).sum())
    for row, column in itertools.product(range(grid), repeat=2):
        top = terms.levels - 1
        level = round(z[row, column] * top)
        chance = math.comb(top, level) * ratio**level * (1 - ratio) ** (top - level)
        energy -= terms.eta / grid**2 * math.log(chance)
        for below, right in ((1, 0), (0, 1)):
            if row + below == grid or column + right == grid:
                continue
            a, b = z[row, column], z[row + below, column + right]
            energy += smoothness * (a - b) ** 2
            for first, second in itertools.product((0, 1), repeat=2):
                one, other = block(pair[first], row, column), block(pair[second], row + below, column + right)
                if right:
                    one, other = one.swapaxes(1, 2), other.swapaxes(1, 2)
                weight = (a if first else 1 - a) * (b if second else 1 - b)
                energy += smoothness * terms.gamma * weight * seam(one, other, cell)
    return energy


@pytest.mark.parametrize("terms", [EnergyTerms(levels=2, beta=5.0), EnergyTerms(1.2, 2.0, 0.7, 2, 0.5, 2)])
def test_two_levels_equal_the_definition_up_to_a_constant(terms: EnergyTerms) -> None:
    images, shares = batch(grid=2)
    unary, down, across = (part.double().numpy() for part in mask_energy(images, shares, PARTNER, RATIO, terms))
    for sample in range(3):
        gaps = []
        for levels in itertools.product((0, 1), repeat=4):
            z = np.array(levels, dtype=float).reshape(2, 2)
            ours = sum(unary[sample, int(z[s]), s[0], s[1]] for s in itertools.product((0, 1), repeat=2))
            ours += (down[sample] * (z[1:] - z[:-1]) ** 2).sum() + (across[sample] * (z[:, 1:] - z[:, :-1]) ** 2).sum()
            reference = defined_energy(z, images.numpy(), shares.numpy(), sample, terms, float(RATIO[sample]))
            gaps.append(ours - reference)
        np.testing.assert_allclose(gaps, gaps[0], atol=1e-6)


def test_prior_is_binomial_and_costs_are_convex() -> None:
    images, shares = batch(grid=4)
    terms = EnergyTerms(beta=0.0, eta=0.3, levels=4)
    extreme = torch.tensor([0.0, 0.3, 1.0])
    unary = mask_energy(images, shares, PARTNER, extreme, terms).unary
    assert unary.isfinite().all()
    assert (unary.diff(dim=1).diff(dim=1) > 0).all()
    prior = (unary - torch.lerp(unary[:, :1], unary[:, -1:], torch.linspace(0, 1, 4)[:, None, None]))[1]
    chance = torch.tensor([math.comb(3, k) * 0.3**k * 0.7 ** (3 - k) for k in range(4)])
    expected = -0.3 / 16 * chance.log()
    expected = expected - torch.lerp(expected[0], expected[-1], torch.linspace(0, 1, 4))
    torch.testing.assert_close(prior, expected[:, None, None].expand_as(prior), atol=1e-6, rtol=0)


def test_weights_are_never_negative() -> None:
    images, shares = batch(grid=4)
    _, down, across = mask_energy(images * 100, shares, PARTNER, RATIO, EnergyTerms(gamma=5.0))
    assert (down >= 0).all()
    assert (down == 0).any()
    assert (across >= 0).all()


@pytest.mark.parametrize("size", [(33, 20), (16, 16), (17, 40)])
def test_any_size_and_on_meta(size: tuple[int, int]) -> None:
    images = torch.randn(3, 4, *size, dtype=torch.bfloat16)
    shares = block_shares(torch.rand(3, 8, 8), 16)
    real = mask_energy(images, shares, PARTNER, RATIO, EnergyTerms(pixel_std=(0.2, 0.3, 0.2, 0.1)))
    assert [part.shape for part in real] == [(3, 3, 16, 16), (3, 15, 16), (3, 16, 15)]
    assert all(part.isfinite().all() for part in real)
    arguments = (images, shares, PARTNER, RATIO)
    on_meta = mask_energy(*(part.to("meta") for part in arguments), EnergyTerms())
    assert [(part.shape, part.dtype) for part in on_meta] == [(part.shape, part.dtype) for part in real]


def test_shares_sum_to_one_unless_the_map_is_empty_or_broken() -> None:
    saliency = torch.rand(4, 6, 5)
    saliency[1] = 0
    saliency[2, 0, 0] = torch.nan
    shares = block_shares(saliency, 4)
    torch.testing.assert_close(shares.sum(dim=(1, 2)), torch.tensor([1.0, 0.0, 0.0, 1.0]))


def test_bad_terms_are_named() -> None:
    with pytest.raises(ValueError, match="beta must be a finite number >= 0, got -1"):
        EnergyTerms(beta=-1.0).check()
    with pytest.raises(ValueError, match="levels must be >= 2, got 1"):
        EnergyTerms(levels=1).check()
    with pytest.raises(ValueError, match="pixel_std must be a finite number > 0, got 0"):
        EnergyTerms(pixel_std=(0.2, 0.0)).check()
    images, shares = batch(grid=4)
    with pytest.raises(ValueError, match="pixel_std must be one number or one per channel: expected 2, got 3"):
        mask_energy(images, shares, PARTNER, RATIO, EnergyTerms(pixel_std=(0.2, 0.2, 0.2)))
