"""Step 4, the label mixing function ψ: weight each label by the saliency still visible of its image (§4.2, Eq. 5).

The public functions validate; `label_weight`, which training runs, trusts its caller.
"""

import torch
from torch import Tensor

from saligraft import checks
from saligraft.grafting import pixel_area


def importance(saliency: Tensor, visible: Tensor, norm: float = 2.0) -> Tensor:
    """I(S, M) = ‖S ⊙ M‖ / ‖S‖: how much of a map's saliency is visible (§4.2).

    Args:
        saliency: (B, h, w).
        visible: (B, h, w), bool or in [0, 1].
        norm: The order of the norm; the paper's is 2.

    Returns:
        (B,) in [0, 1]; 0 for an all-zero map.

    Example:
        >>> import torch, saligraft as sg
        >>> sg.importance(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[True, False]]]))
        tensor([0.6000])
    """
    _check_maps(saliency, visible, "visible")
    checks.norm(norm)
    return _importance(saliency, visible, norm)


def calibrated_weight(
    source_saliency: Tensor,
    destination_saliency: Tensor,
    mask: Tensor,
    *,
    norm: float = 2.0,
    image_size: tuple[int, int] | None = None,
) -> Tensor:
    """λ(S_i, S_j, M) = I(S_i, M) / (I(S_i, M) + I(S_j, 1 − M)), the weight of the source's label (Eq. 5).

    Where that is 0/0 (an all-zero map, or nothing of either left to see) the area decides: that of the pixels if
    `image_size` is given, else of the cells. A map that is not finite, or negative, gives weight 0.

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
    return label_weight(source_saliency, destination_saliency, mask, norm, image_size or (mask.shape[1], mask.shape[2]))


def label_weight(
    source_saliency: Tensor, destination_saliency: Tensor, mask: Tensor, norm: float, image_size: tuple[int, int]
) -> Tensor:
    """`calibrated_weight` without validation."""
    visible = mask.to(checks.at_least_float32(source_saliency).dtype)
    source = _importance(source_saliency, visible, norm)  # I(S_i, M_i)
    destination = _importance(destination_saliency, 1 - visible, norm)  # I(S_j, 1 − M_i)
    total = source + destination
    empty = _all_zero(source_saliency) | _all_zero(destination_saliency) | (total == 0)
    weight = torch.where(empty, pixel_area(mask, *image_size), source / torch.where(empty, 1.0, total))
    usable = checks.usable_maps(source_saliency) & checks.usable_maps(destination_saliency)
    return torch.where(usable, weight, 0.0)


def _importance(saliency: Tensor, visible: Tensor, norm: float) -> Tensor:
    saliency = checks.at_least_float32(saliency)
    peak = saliency.abs().amax(dim=(1, 2), keepdim=True)
    saliency = saliency / torch.where(peak == 0, 1.0, peak)  # so that no square over- or underflows
    total = _norm(saliency, norm)
    return _norm(saliency * visible, norm) / torch.where(total == 0, 1.0, total)


def _norm(values: Tensor, norm: float) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(values, ord=norm, dim=(1, 2))
    return length


def _all_zero(saliency: Tensor) -> Tensor:
    return (saliency == 0).flatten(1).all(dim=1)


def _check_maps(saliency: Tensor, mask: Tensor, name: str) -> None:
    checks.saliency(saliency)
    checks.tensor(name, mask)
    checks.same_device(name, mask, saliency, "saliency")
    if mask.shape != saliency.shape:
        expected = checks.shape_of(saliency)
        raise ValueError(f"{name} must have the saliency's shape {expected}, got {checks.shape_of(mask)}")
    checks.mask_values(mask, name)
