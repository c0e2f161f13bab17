"""What every batch mixer returns: the mixed images, both label sets, and one weight with one meaning."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import graft_onto_partners, spread


class MixedBatch(NamedTuple):
    """Mixed images with their two sets of labels. B batch, C channels, H W pixels, h w cells of the mask.

    Args:
        images: (B, C, H, W) as the network sees them; of some methods also (B, C, T, H, W) or (B, C, L).
        source_labels: (B,) or (B, K), of the image that shows where the mask is True.
        destination_labels: (B,) or (B, K), of the image underneath.
        source_weight: (B,) float32 in [0, 1], the weight of `source_labels`; the destination has the rest.
        mask: (B, h, w), True (or up to 1.0, for blends) where the source shows.
        partner: (B,), the destination of sample i is images[partner[i]].

    Example:
        >>> import torch, saligraft as sg
        >>> images, labels = torch.zeros(2, 3, 8, 8), torch.tensor([0, 2])
        >>> weight, partner = torch.tensor([0.25, 1.0]), torch.tensor([1, 0])
        >>> mixed = sg.MixedBatch(images, labels, labels[partner], weight, weight[:, None, None], partner)
        >>> mixed.targets(num_classes=3)
        tensor([[0.2500, 0.0000, 0.7500],
                [0.0000, 0.0000, 1.0000]])
    """

    images: Tensor
    source_labels: Tensor
    destination_labels: Tensor
    source_weight: Tensor
    mask: Tensor
    partner: Tensor

    @classmethod
    def unmixed(cls, images: Tensor, labels: Tensor) -> MixedBatch:
        """The originals unchanged, so that one criterion serves both passes.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).

        Returns:
            A batch whose mask and weights are 0 and in which every sample is its own partner.
        """
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
        """The mixed label as dense rows, λ y_i + (1 − λ) y_j (ψ of Table 1).

        Args:
            num_classes: K; required for labels that are class indices.

        Returns:
            Rows (B, K), float32 or wider; (B, 1) for labels that are numbers (B,), as in regression.
        """
        weight = self.source_weight[:, None]
        source = label_rows(self.source_labels, num_classes)
        destination = label_rows(self.destination_labels, num_classes)
        return torch.lerp(destination, source, weight.to(source.dtype))

    def carry(self, values: Tensor) -> Tensor:
        """Graft any tensor with one value per pixel as the images were: segmentation masks, depth, boxes drawn as maps.

        Values at another resolution than the images follow the pixel at their centre. Where images were pasted, values
        are copied bit for bit, integers too. Where they were blended, floats are blended and integers are refused: a
        blend of two classes is not a class. An error is raised where pixels moved (PuzzleMix's transport), images were
        transformed (Cutout) or features were mixed (Manifold Mixup).

        Args:
            values: (B, H, W) or (B, C, H, W), of the images before mixing, at any resolution; (B, L) or (B, C, L) for
                signals.

        Returns:
            The mixed values, in the shape and dtype of `values`.

        Example:
            >>> import torch, saligraft as sg
            >>> images, labels = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
            >>> box = torch.tensor([[0, 0, 8, 4], [0, 0, 8, 8]])
            >>> mixed = sg.cutmix(images, labels, partner=torch.tensor([1, 0]), box=box)
            >>> mixed.carry(torch.tensor([5, 7])[:, None, None].expand(2, 2, 4))
            tensor([[[5, 5, 7, 7],
                     [5, 5, 7, 7]],
            <BLANKLINE>
                    [[7, 7, 7, 7],
                     [7, 7, 7, 7]]])
        """
        checks.tensor("values", values)
        is_signal = self.images.ndim == 3
        if len(values) != len(self.images) or values.ndim < (2 if is_signal else 3) or 0 in values.shape:
            expected = "(B, L) or (B, C, L)" if is_signal else "(B, H, W) or (B, C, H, W)"
            raise ValueError(
                f"values must have shape {expected} with B = {len(self.images)}, got {checks.shape_of(values)}"
            )
        checks.same_device("values", values, self.images)
        if self.mask.is_floating_point() and not values.is_floating_point():
            raise TypeError(
                f"values must be floating point where images are blended, got {values.dtype}: to blend classes, carry "
                "their one-hot rows (B, K, H, W) as floats"
            )
        shown = spread(self.mask, *checks.frame_size(self.images))
        size = (1 if is_signal else values.shape[-2], values.shape[-1])
        for axis, (pixels, wanted) in enumerate(zip(shown.shape[1:], size, strict=True), start=1):
            if pixels not in (1, wanted):
                centre = (2 * torch.arange(wanted, device=shown.device) + 1) * pixels // (2 * wanted)
                shown = shown.index_select(axis, centre)
        return graft_onto_partners(values, self.partner, shown[:, 0] if values.ndim == 2 else shown)


class AlteredBatch(MixedBatch):
    """A mixed batch whose images cannot be reconstructed from source, destination and mask, so `carry` raises."""

    def carry(self, values: Tensor) -> Tensor:
        """Refuse: the mixing cannot be repeated on other values.

        Args:
            values: Unused.
        """
        del values
        raise ValueError(
            "carry cannot repeat this mixing, in which pixels moved (PuzzleMix's transport: set transport_cost=None), "
            "images were transformed (Cutout) or features were mixed (Manifold Mixup)"
        )


def label_rows(labels: Tensor, num_classes: int | None = None) -> Tensor:
    """Labels as float rows (B, K): indices become one-hot, numbers (B,) a column; both and rows converted to float.

    Args:
        labels: (B,) or (B, K).
        num_classes: K; required for class indices.
    """
    checks.labels(labels, len(labels))
    if labels.ndim == 1 and labels.is_floating_point():
        labels = labels[:, None]
    if labels.ndim == 2:
        if num_classes is not None and labels.shape[1] != num_classes:
            raise ValueError(f"labels must have num_classes={num_classes} columns, got {labels.shape[1]}")
        return checks.at_least_float32(labels)
    if num_classes is None:
        raise ValueError("num_classes must be given for labels that are class indices, got None")
    checks.label_values(labels, num_classes)
    rows = torch.zeros(len(labels), num_classes, device=labels.device)
    return rows.scatter(1, labels[:, None].long(), 1.0)
