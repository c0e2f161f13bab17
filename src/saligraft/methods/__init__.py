"""The augmentation methods by their names on the command line and in recipes."""

from saligraft.methods.base import BatchMixer
from saligraft.methods.cutmix import CutMix, cutmix
from saligraft.methods.mixup import Mixup, mixup
from saligraft.methods.puzzlemix import PuzzleMix, puzzlemix
from saligraft.methods.saliency_grafting import SaliencyGrafting, graft_regions, graft_salient_regions

METHODS: dict[str, type[Mixup] | type[CutMix] | type[PuzzleMix] | type[SaliencyGrafting]] = {
    "mixup": Mixup,
    "cutmix": CutMix,
    "puzzlemix": PuzzleMix,
    "saliency-grafting": SaliencyGrafting,
}

__all__ = [
    "METHODS",
    "BatchMixer",
    "CutMix",
    "Mixup",
    "PuzzleMix",
    "SaliencyGrafting",
    "cutmix",
    "graft_regions",
    "graft_salient_regions",
    "mixup",
    "puzzlemix",
]
