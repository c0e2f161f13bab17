"""The augmentation methods by kind, by their names on the command line and in recipes."""

from typing import Any

from saligraft.methods.attentive_cutmix import AttentiveCutMix, attentive_cutmix
from saligraft.methods.augmix import AugMix, augmix, jensen_shannon_loss
from saligraft.methods.base import BatchMixer
from saligraft.methods.compose import Compose
from saligraft.methods.cutmix import CutMix, cutmix
from saligraft.methods.cutout import Cutout, cutout
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy
from saligraft.methods.manifold_mixup import ManifoldMixup, mix_features
from saligraft.methods.method_choice import MethodChoice
from saligraft.methods.mixup import Mixup, mixup
from saligraft.methods.puzzlemix import PuzzleMix, puzzlemix
from saligraft.methods.random_choice import RandomChoice
from saligraft.methods.saliency_grafting import SaliencyGrafting, graft_regions, graft_salient_regions
from saligraft.methods.saliencymix import SaliencyMix, saliencymix

METHODS: dict[str, type[BatchMixer[Any]]] = {
    "mixup": Mixup,
    "cutmix": CutMix,
    "puzzlemix": PuzzleMix,
    "attentive-cutmix": AttentiveCutMix,
    "saliencymix": SaliencyMix,
    "saliency-grafting": SaliencyGrafting,
}
IMAGE_TRANSFORMS: dict[str, type[ImageTransform[Any]]] = {"cutout": Cutout}
FEATURE_MIXERS: dict[str, type[FeatureMixer]] = {"manifold-mixup": ManifoldMixup}
STEP_STRATEGIES: dict[str, type[StepStrategy]] = {"augmix": AugMix}

__all__ = [
    "FEATURE_MIXERS",
    "IMAGE_TRANSFORMS",
    "METHODS",
    "STEP_STRATEGIES",
    "AttentiveCutMix",
    "AugMix",
    "BatchMixer",
    "Compose",
    "CutMix",
    "Cutout",
    "FeatureMixer",
    "ImageTransform",
    "ManifoldMixup",
    "MethodChoice",
    "Mixup",
    "PuzzleMix",
    "RandomChoice",
    "SaliencyGrafting",
    "SaliencyMix",
    "StepStrategy",
    "attentive_cutmix",
    "augmix",
    "cutmix",
    "cutout",
    "graft_regions",
    "graft_salient_regions",
    "jensen_shannon_loss",
    "mix_features",
    "mixup",
    "puzzlemix",
    "saliencymix",
]
