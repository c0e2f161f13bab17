"""Step 1, images to saliency maps (§4.3)."""

from saligraft.saliency.capture import SaliencyCapture
from saligraft.saliency.feature_map import feature_saliency
from saligraft.saliency.rescale import resize_saliency

__all__ = ["SaliencyCapture", "feature_saliency", "resize_saliency"]
