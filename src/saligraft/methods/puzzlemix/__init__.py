"""PuzzleMix: the method, the energy of a block mask, its exact minimum, and the transport of salient blocks."""

from saligraft.methods.puzzlemix.energy import EnergyTerms, MaskEnergy, block_shares, mask_energy
from saligraft.methods.puzzlemix.graph_cut import SOLVERS, Solver, optimal_levels
from saligraft.methods.puzzlemix.method import PuzzleMix, puzzlemix
from saligraft.methods.puzzlemix.noise import PixelScale, adversarial, noisy_start
from saligraft.methods.puzzlemix.transport import move_blocks, transport_plan

__all__ = [
    "SOLVERS",
    "EnergyTerms",
    "MaskEnergy",
    "PixelScale",
    "PuzzleMix",
    "Solver",
    "adversarial",
    "block_shares",
    "mask_energy",
    "move_blocks",
    "noisy_start",
    "optimal_levels",
    "puzzlemix",
    "transport_plan",
]
