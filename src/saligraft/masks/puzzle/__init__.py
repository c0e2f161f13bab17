"""Puzzle Mix's mask and transport: an energy over blocks, its exact minimum, and the move of salient blocks."""

from saligraft.masks.puzzle.energy import EnergyTerms, MaskEnergy, block_shares, mask_energy
from saligraft.masks.puzzle.graph_cut import optimal_levels
from saligraft.masks.puzzle.max_flow import SOLVERS, Solver
from saligraft.masks.puzzle.noise import PixelScale, adversarial, noisy_start
from saligraft.masks.puzzle.transport import move_blocks, transport_plan

__all__ = [
    "SOLVERS",
    "EnergyTerms",
    "MaskEnergy",
    "PixelScale",
    "Solver",
    "adversarial",
    "block_shares",
    "mask_energy",
    "move_blocks",
    "noisy_start",
    "optimal_levels",
    "transport_plan",
]
