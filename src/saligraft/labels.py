"""Step 4, the label mixing function ψ: weight each label by the saliency still visible of its image (§4.2, Eq. 5).

The public functions validate; `label_weight`, which training runs, trusts its caller.
"""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import pixel_area
from saligraft.maps import scale_maps


def importance(saliency: Tensor, visible: Tensor, norm: float = 2.0) -> Tensor:
    """I(S, M) = ‖S ⊙ M‖ / ‖S‖: how much of a map's saliency is visible (§4.2).

    Args:
        saliency: (B, h, w).
        visible: (B, h, w), bool or in [0, 1].
        norm: The order of the norm; the paper's is 2.

    Returns:
        (B,) in [0, 1]; 0 for a map that is all zero, not finite or negative.

    Example:
        >>> import torch, saligraft as sg
        >>> sg.importance(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.6000])
    """
    _check_maps(saliency, visible, "visible")
    checks.norm(norm)
    maps = scale_maps(saliency)
    has_saliency = (maps.usable & (maps.peak > 0)).flatten()
    return torch.where(has_saliency, _visible_norm(maps.unit(norm), visible, norm), 0.0)


def calibrated_weight(
    source_saliency: Tensor,
    destination_saliency: Tensor,
    mask: Tensor,
    *,
    norm: float = 2.0,
    image_size: tuple[int, int] | None = None,
) -> Tensor:
    """λ(S_i, S_j, M) = I(S_i, M) / (I(S_i, M) + I(S_j, 1 − M)), the weight of the source's label (Eq. 5).

    Where that is 0/0 (an all-zero map, or no visible saliency in either image) the weight falls back to the area: that
    of the pixels if `image_size` is given, else of the cells. A map that is not finite, or negative, gives weight 0.

    Args:
        source_saliency: S_i, (B, h, w).
        destination_saliency: S_j, (B, h, w).
        mask: M, (B, h, w), bool or in [0, 1].
        norm: The order of the norm in I; the paper's is 2.
        image_size: (H, W), for the area in pixels.

    Returns:
        (B,) in [0, 1].

    Example:
        >>> import torch, saligraft as sg
        >>> source, destination = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[1.0, 0.0]]])
        >>> sg.calibrated_weight(source, destination, torch.tensor([[[False, True]]]))
        tensor([0.4444])
    """
    _check_maps(source_saliency, mask, "mask")
    _check_maps(destination_saliency, mask, "mask")
    checks.norm(norm)
    source, destination = scale_maps(source_saliency), scale_maps(destination_saliency)
    mask = torch.where(source.usable & destination.usable, mask, mask.new_zeros(()))
    return label_weight(
        source.unit(norm), destination.unit(norm), mask, norm, pixel_area(mask, *(image_size or mask.shape[1:]))
    )


def label_weight(source: Tensor, destination: Tensor, mask: Tensor, norm: float, area: Tensor) -> Tensor:
    """λ of Eq. 5 without validation, for maps divided by their norm, and M = 0 where one of them is not usable.

    Args:
        source: S_i / ‖S_i‖, (B, h, w); NaN throughout where the map is all zero.
        destination: S_j / ‖S_j‖, likewise.
        mask: M, (B, h, w), bool or in [0, 1].
        norm: The order of the norm.
        area: (B,), the weight where the saliency cannot tell.

    Returns:
        (B,) in [0, 1].
    """
    shown = _visible_norm(source, mask, norm)  # I(S_i, M_i)
    kept = _visible_norm(destination, ~mask if mask.dtype == torch.bool else 1 - mask, norm)  # I(S_j, 1 − M_i)
    weight = shown / (shown + kept)
    # NaN: 0/0, an all-zero map, or one that is not usable, whose empty mask has no area.
    return torch.where(weight.isnan(), area, weight)


def _visible_norm(unit: Tensor, visible: Tensor, norm: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(unit * visible, ord=norm, dim=(1, 2))
    return length


def _check_maps(saliency: Tensor, mask: Tensor, name: str) -> None:
    checks.saliency(saliency)
    checks.tensor(name, mask)
    checks.same_device(name, mask, saliency, "saliency")
    if mask.shape != saliency.shape:
        expected = checks.shape_of(saliency)
        raise ValueError(f"{name} must have the saliency's shape {expected}, got {checks.shape_of(mask)}")
    checks.mask_values(mask, name)
