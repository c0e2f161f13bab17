"""Energies to solve, and what a labelling of one costs, in NumPy."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from saligraft.methods.puzzlemix import EnergyTerms, MaskEnergy, block_shares, mask_energy


def random_energy(batch: int, rows: int, columns: int, levels: int = 3, seed: int = 0) -> MaskEnergy:
    """Convex costs and weights of like size, so that neither decides alone."""
    stream = torch.Generator().manual_seed(seed)
    rises = torch.randn(batch, levels - 1, rows, columns, generator=stream).sort(dim=1).values
    unary = torch.cat((torch.zeros(batch, 1, rows, columns), rises.cumsum(dim=1)), dim=1)
    down = torch.rand(batch, rows - 1, columns, generator=stream)
    across = torch.rand(batch, rows, columns - 1, generator=stream)
    return MaskEnergy(unary, 2 * down, 2 * across)


def pictures(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images and saliency with the statistics of real ones: smooth with some noise; peaked, and grainy as gradients."""
    stream = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batch, 3, 8, 8, generator=stream)
    images = interpolate(coarse, size=32, mode="bilinear") + 0.3 * torch.randn(batch, 3, 32, 32, generator=stream)
    peaks = interpolate(torch.rand(batch, 1, 5, 5, generator=stream) ** 3, size=32, mode="bilinear")[:, 0]
    return images, peaks * torch.randn(batch, 32, 32, generator=stream).abs()


def picture_energy(batch: int, grid: int, seed: int = 0, terms: EnergyTerms | None = None) -> MaskEnergy:
    images, saliency = pictures(batch, seed)
    stream = torch.Generator().manual_seed(seed)
    partner, ratio = torch.randperm(batch, generator=stream), torch.rand(batch, generator=stream)
    return mask_energy(images, block_shares(saliency, grid), partner, ratio, terms or EnergyTerms())


def energy_of(energy: MaskEnergy, levels: np.ndarray) -> np.ndarray:
    """(B,) for levels (B, rows, columns), in double precision."""
    unary, down, across = (np.asarray(part, dtype=np.float64) for part in energy)
    z = levels / (unary.shape[1] - 1)
    total = np.take_along_axis(unary, levels[:, None], axis=1).sum(axis=(1, 2, 3))
    total += (down * np.diff(z, axis=1) ** 2).sum(axis=(1, 2))
    return total + (across * np.diff(z, axis=2) ** 2).sum(axis=(1, 2))
