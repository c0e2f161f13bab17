"""Step 4, the label mixing function ψ: weigh each label by what stays visible of its image (§4.2, Eq. 5)."""

from __future__ import annotations

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import pixel_area
from saligraft.masks.salient import usable_maps


def importance(saliency: Tensor, visible: Tensor, norm: float = 2.0) -> Tensor:
    """I(S, M) = ‖S ⊙ M‖ / ‖S‖, in [0, 1]: how much of a map's saliency is visible, (B,) (§4.2).

    saliency, visible (B, h, w); `norm` is the order of the norm, the paper's is 2. An all-zero map gives 0.
    """
    _check_maps(saliency, visible, "visible")
    checks.mask_values(visible, "visible")
    checks.norm(norm)
    saliency = checks.at_least_float32(saliency)
    peak = saliency.abs().amax(dim=(1, 2), keepdim=True)
    saliency = saliency / torch.where(peak == 0, 1.0, peak)  # so that no square over- or underflows
    whole = _norm(saliency, norm)
    return _norm(saliency * visible, norm) / torch.where(whole == 0, 1.0, whole)


def calibrated_weight(
    source_saliency: Tensor,
    destination_saliency: Tensor,
    mask: Tensor,
    *,
    norm: float = 2.0,
    image_size: tuple[int, int] | None = None,
) -> Tensor:
    """λ(S_i, S_j, M) = I(S_i, M) / (I(S_i, M) + I(S_j, 1 − M)), the weight (B,) of the source's label (Eq. 5).

    Where that is 0/0 (an all-zero map, or nothing of either left to see) the area decides: that of the pixels if
    `image_size` is given, else of the cells. A map that is not finite, or negative, gives weight 0.
    """
    _check_maps(source_saliency, mask, "mask")
    _check_maps(destination_saliency, mask, "mask")
    checks.mask_values(mask)
    visible = mask.to(checks.at_least_float32(source_saliency).dtype)
    source = importance(source_saliency, visible, norm)  # I(S_i, M_i)
    destination = importance(destination_saliency, 1 - visible, norm)  # I(S_j, 1 − M_i)
    total = source + destination
    empty = _all_zero(source_saliency) | _all_zero(destination_saliency) | (total == 0)
    area = pixel_area(mask, *(image_size or mask.shape[1:]))
    weight = torch.where(empty, area, source / torch.where(empty, 1.0, total))
    usable = usable_maps(source_saliency) & usable_maps(destination_saliency)
    return torch.where(usable, weight, 0.0)


def _norm(values: Tensor, norm: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values, ord=norm, dim=(1, 2))
    return length


def _all_zero(saliency: Tensor) -> Tensor:
    return (saliency == 0).flatten(1).all(dim=1)


def _check_maps(saliency: Tensor, mask: Tensor, name: str) -> None:
    checks.saliency(saliency)
    if checks.validating():
        checks.saliency_values(saliency)
    checks.tensor(name, mask)
    checks.same_device(name, mask, saliency, "saliency")
    if mask.shape != saliency.shape:
        expected = checks.shape_of(saliency)
        raise ValueError(f"{name} must have the saliency's shape {expected}, got {checks.shape_of(mask)}")
