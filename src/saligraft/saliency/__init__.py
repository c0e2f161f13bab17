"""Step 1, images to saliency maps (§4.3)."""

from saligraft.saliency.base import Passes, SaliencySource
from saligraft.saliency.bottom_up import (
    FineGrained,
    SpectralResidual,
    fine_grained_saliency,
    spectral_residual_saliency,
)
from saligraft.saliency.capture import SaliencyCapture
from saligraft.saliency.class_activation import (
    ClassActivation,
    GradCam,
    class_activation_map,
    gradient_activation_map,
)
from saligraft.saliency.feature_map import feature_saliency
from saligraft.saliency.input_gradient import InputGradient, gradient_saliency
from saligraft.saliency.memory import SaliencyMemory
from saligraft.saliency.rescale import resize_saliency
from saligraft.saliency.sources import SALIENCY_SOURCES, FeatureMap, OwnFunction, saliency_source

__all__ = [
    "SALIENCY_SOURCES",
    "ClassActivation",
    "FeatureMap",
    "FineGrained",
    "GradCam",
    "InputGradient",
    "OwnFunction",
    "Passes",
    "SaliencyCapture",
    "SaliencyMemory",
    "SaliencySource",
    "SpectralResidual",
    "class_activation_map",
    "feature_saliency",
    "fine_grained_saliency",
    "gradient_activation_map",
    "gradient_saliency",
    "resize_saliency",
    "saliency_source",
    "spectral_residual_saliency",
]
