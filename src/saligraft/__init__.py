"""Saliency Grafting for PyTorch (Park et al., AAAI 2022): the augmentation, its baselines and its saliency sources."""

from saligraft.batch import MixedBatch
from saligraft.checks import set_validation
from saligraft.grafting import graft
from saligraft.labels import calibrated_weight, importance
from saligraft.losses import mixed_binary_cross_entropy, mixed_cross_entropy
from saligraft.masks import matched_temperature, salient_regions, top_k_regions
from saligraft.methods import (
    CutMix,
    Mixup,
    SaliencyGrafting,
    cutmix,
    graft_regions,
    graft_salient_regions,
    mixup,
)
from saligraft.saliency import SaliencyCapture, feature_saliency, resize_saliency
from saligraft.step import GraftingStep, MixingStep, StepOutput

__version__ = "0.1.0"

__all__ = [
    "SaliencyGrafting",
    "GraftingStep",
    "SaliencyCapture",
    "feature_saliency",
    "resize_saliency",
    "salient_regions",
    "top_k_regions",
    "matched_temperature",
    "graft",
    "importance",
    "calibrated_weight",
    "graft_salient_regions",
    "graft_regions",
    "mixed_cross_entropy",
    "mixed_binary_cross_entropy",
    "MixedBatch",
    "Mixup",
    "mixup",
    "CutMix",
    "cutmix",
    "MixingStep",
    "StepOutput",
    "set_validation",
]
