"""Step 2, saliency to masks (§4.1)."""

from saligraft.masks.matched_temperature import expected_cells, matched_temperature
from saligraft.masks.rectangle import rectangle_mask
from saligraft.masks.salient import salient_regions
from saligraft.masks.top_k import top_k_regions

__all__ = ["expected_cells", "matched_temperature", "rectangle_mask", "salient_regions", "top_k_regions"]
