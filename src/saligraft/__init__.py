"""Saliency Grafting for PyTorch (Park et al., AAAI 2022): the augmentation, its baselines and its saliency sources."""

from saligraft.batch import MixedBatch
from saligraft.checks import set_validation
from saligraft.grafting import graft
from saligraft.labels import calibrated_weight, importance
from saligraft.losses import mixed_binary_cross_entropy, mixed_cross_entropy, mixed_softmax_binary_cross_entropy
from saligraft.masks import matched_temperature, salient_regions, top_k_regions
from saligraft.methods import (
    AttentiveCutMix,
    AugMix,
    Compose,
    CutMix,
    Cutout,
    ManifoldMixup,
    MethodChoice,
    Mixup,
    PuzzleMix,
    RandomChoice,
    SaliencyGrafting,
    SaliencyMix,
    attentive_cutmix,
    cutmix,
    cutout,
    graft_salient_regions,
    mixup,
    puzzlemix,
    saliencymix,
)
from saligraft.saliency import (
    SALIENCY_SOURCES,
    SaliencyCapture,
    SaliencyMemory,
    SaliencySource,
    feature_saliency,
    resize_saliency,
    saliency_source,
)
from saligraft.step import GraftingStep, MixingStep, StepOutput
from saligraft.steps import ChoiceStep, FeatureMixingStep, PuzzleMixStep, ViewsStep, training_step

__version__ = "0.1.0"

__all__ = [
    "SaliencyGrafting",
    "GraftingStep",
    "SaliencyCapture",
    "SaliencyMemory",
    "feature_saliency",
    "resize_saliency",
    "salient_regions",
    "top_k_regions",
    "matched_temperature",
    "graft",
    "importance",
    "calibrated_weight",
    "graft_salient_regions",
    "mixed_cross_entropy",
    "mixed_binary_cross_entropy",
    "mixed_softmax_binary_cross_entropy",
    "MixedBatch",
    "Mixup",
    "mixup",
    "CutMix",
    "cutmix",
    "AttentiveCutMix",
    "attentive_cutmix",
    "SaliencyMix",
    "saliencymix",
    "PuzzleMix",
    "puzzlemix",
    "Cutout",
    "cutout",
    "ManifoldMixup",
    "AugMix",
    "Compose",
    "RandomChoice",
    "MethodChoice",
    "MixingStep",
    "FeatureMixingStep",
    "ViewsStep",
    "PuzzleMixStep",
    "ChoiceStep",
    "training_step",
    "StepOutput",
    "SaliencySource",
    "SALIENCY_SOURCES",
    "saliency_source",
    "set_validation",
]
