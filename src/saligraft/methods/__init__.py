"""The augmentation methods by their names on the command line and in recipes."""

from saligraft.methods.base import BatchMixer
from saligraft.methods.cutmix import CutMix, cutmix
from saligraft.methods.mixup import Mixup, mixup
from saligraft.methods.saliency_grafting import SaliencyGrafting, graft_regions, graft_salient_regions

METHODS: dict[str, type[Mixup] | type[CutMix] | type[SaliencyGrafting]] = {
    "mixup": Mixup,
    "cutmix": CutMix,
    "saliency-grafting": SaliencyGrafting,
}

__all__ = [
    "METHODS",
    "BatchMixer",
    "CutMix",
    "Mixup",
    "SaliencyGrafting",
    "cutmix",
    "graft_regions",
    "graft_salient_regions",
    "mixup",
]
