"""Saliency Grafting for PyTorch (Park et al., AAAI 2022): the augmentation, its baselines and its saliency sources."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saligraft.batch import MixedBatch
    from saligraft.checks import set_validation
    from saligraft.grafting import graft
    from saligraft.labels import calibrated_weight, importance
    from saligraft.losses import mixed_binary_cross_entropy, mixed_cross_entropy, mixed_softmax_binary_cross_entropy
    from saligraft.masks import salient_regions, top_k_regions
    from saligraft.masks.matched_temperature import matched_temperature
    from saligraft.methods import (
        AugMix,
        Compose,
        ManifoldMixup,
        MethodChoice,
        RandomChoice,
        SaliencyGrafting,
        graft_salient_regions,
    )
    from saligraft.methods.attentive_cutmix import AttentiveCutMix, attentive_cutmix
    from saligraft.methods.cutmix import CutMix, cutmix
    from saligraft.methods.cutout import Cutout, cutout
    from saligraft.methods.mixup import Mixup, mixup
    from saligraft.methods.puzzlemix import PuzzleMix, puzzlemix
    from saligraft.methods.saliencymix import SaliencyMix, saliencymix
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
    from saligraft.steps import ChoiceStep, FeatureMixingStep, PuzzleMixStep, ViewsStep
    from saligraft.steps.training_step import training_step

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

_HOMES = ("batch", "checks", "grafting", "labels", "losses", "masks", "methods", "saliency", "step", "steps")

if not TYPE_CHECKING:  # type checkers read the imports above, and would accept any name with this function

    def __getattr__(name):
        """Import a public name or module when it is first used, so that `saligraft --help` need not wait for torch."""
        if name in __all__:
            modules = (importlib.import_module(f"{__name__}.{home}") for home in _HOMES)
            globals()[name] = next(getattr(module, name) for module in modules if hasattr(module, name))
            return globals()[name]
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{__name__}.{name}":  # a package of the laboratory, whose extra is missing
                    raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
