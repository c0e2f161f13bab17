"""The augmentation methods, one file or package each; `METHODS` in `names.py` lists them."""

from saligraft.methods.attentive_cutmix import AttentiveCutMix, attentive_cutmix
from saligraft.methods.augmix import AugMix, augmix, jensen_shannon_loss
from saligraft.methods.base import BatchMixer
from saligraft.methods.choice import MethodChoice, RandomChoice
from saligraft.methods.compose import Compose
from saligraft.methods.cutmix import CutMix, cutmix
from saligraft.methods.cutout import Cutout, cutout
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy
from saligraft.methods.manifold_mixup import ManifoldMixup, mix_features
from saligraft.methods.mixup import Mixup, mixup
from saligraft.methods.puzzlemix import PuzzleMix, puzzlemix
from saligraft.methods.registry import REGISTRY
from saligraft.methods.saliency_grafting import SaliencyGrafting, graft_salient_regions
from saligraft.methods.saliencymix import SaliencyMix, saliencymix

__all__ = [
    "REGISTRY",
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
    "graft_salient_regions",
    "jensen_shannon_loss",
    "mix_features",
    "mixup",
    "puzzlemix",
    "saliencymix",
]
