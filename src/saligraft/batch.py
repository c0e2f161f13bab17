"""What every batch mixer returns: the mixed images, both label sets, and one weight with one meaning."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks


class MixedBatch(NamedTuple):
    """Mixed images with their two sets of labels. B batch, C channels, H W pixels, h w cells of the mask."""

    images: Tensor
    """(B, C, H, W) as the network sees them."""
    source_labels: Tensor
    """(B,) or (B, K): of the image that shows where the mask is True."""
    destination_labels: Tensor
    """(B,) or (B, K): of the image underneath."""
    source_weight: Tensor
    """(B,) float32 in [0, 1]: weighs `source_labels`, always; the destination has the rest."""
    mask: Tensor
    """(B, h, w): True (or up to 1.0, for blends) where the source shows."""
    partner: Tensor
    """(B,): the destination of sample i is images[partner[i]]."""

    @classmethod
    def unmixed(cls, images: Tensor, labels: Tensor) -> MixedBatch:
        """The originals as they are, so that one criterion serves both passes."""
        batch, device = len(images), images.device
        return cls(
            images=images,
            source_labels=labels,
            destination_labels=labels,
            source_weight=torch.zeros(batch, device=device),
            mask=torch.zeros(batch, 1, 1, dtype=torch.bool, device=device),
            partner=torch.arange(batch, device=device),
        )

    def targets(self, num_classes: int | None = None) -> Tensor:
        """Dense rows (B, K): the label sets weighed and added (ψ of Table 1); `num_classes` is needed for indices."""
        weight = self.source_weight[:, None]
        source = label_rows(self.source_labels, num_classes)
        destination = label_rows(self.destination_labels, num_classes)
        return torch.lerp(destination, source, weight.to(source.dtype))


def label_rows(labels: Tensor, num_classes: int | None = None) -> Tensor:
    """Labels as float rows (B, K): indices become one-hot, rows stay as they are."""
    checks.labels(labels, len(labels))
    if labels.ndim == 2:
        if num_classes is not None and labels.shape[1] != num_classes:
            raise ValueError(f"labels must have num_classes={num_classes} columns, got {labels.shape[1]}")
        return checks.at_least_float32(labels)
    if num_classes is None:
        raise ValueError("num_classes must be given for labels that are class indices, got None")
    checks.label_values(labels, num_classes)
    rows = torch.zeros(len(labels), num_classes, device=labels.device)
    return rows.scatter(1, labels[:, None].long(), 1.0)
