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
    return (images - channel_values(mean, images)) / channel_values(std, images)


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
    return images * channel_values(std, images) + channel_values(mean, images)


def channel_values(values: Sequence[float], like: Tensor) -> Tensor:
    """Return values as (C, 1, 1), with dtype and device of another tensor.

    Args:
        values: One value per channel.
        like: The other tensor.
    """
    # Filled in on the device: a tensor made of a list is copied from the host, for which a GPU's queue must run empty.
    return torch.cat([like.new_full((1, 1, 1), value) for value in values])
