"""Normalisation of images by the mean and standard deviation of each channel, and back.

Shapes: B batch, C channels, H W pixels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalized(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract the mean and divide by the standard deviation.

    Args:
        images: (B, C, H, W) or (C, H, W).
        mean: One value per channel, or one for all.
        std: Likewise.

    Example:
        >>> normalized(torch.ones(1, 1, 2), mean=[0.5], std=[0.25])
        tensor([[[2., 2.]]])
    """
    return (images - _of_channels(mean, images)) / _of_channels(std, images)


def denormalized(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Undo `normalized`.

    Args:
        images: (B, C, H, W) or (C, H, W).
        mean: One value per channel, or one for all.
        std: Likewise.

    Example:
        >>> denormalized(torch.full((1, 1, 2), 2.0), mean=[0.5], std=[0.25])
        tensor([[[1., 1.]]])
    """
    return images * _of_channels(std, images) + _of_channels(mean, images)


def _of_channels(values: Sequence[float], like: Tensor) -> Tensor:
    """The values as (C, 1, 1), with dtype and device of another tensor."""
    # Filled in on the device: a tensor made of a list is copied from the host, for which a GPU's queue must run empty.
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])
