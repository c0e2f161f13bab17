"""The regularisers' one source of randomness: drawn inside the forward pass, so unlike `draws` not on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from saligraft import draws


def uniforms(
    shape: Sequence[int], like: Tensor, *, dtype: torch.dtype = torch.float32, generator: torch.Generator | None = None
) -> Tensor:
    """Uniforms in [0, 1) on the device of `like`, from torch's global stream of that device, as `nn.Dropout` draws.

    That stream compiles into the graph and is replayed by activation checkpointing; one number per feature drawn on
    the host, as the mixing methods draw, would cost more than the layer.

    Args:
        shape: Of the result.
        like: On whose device; if it has that shape, in its memory order.
        dtype: Of the result.
        generator: If given, numbers are drawn on its device (a CPU generator gives the same everywhere) and moved.
    """
    if generator is None and tuple(shape) == tuple(like.shape):
        return torch.rand_like(like, dtype=dtype)  # in the memory order of `like`, channels_last included
    if generator is None:
        return torch.rand(shape, device=like.device, dtype=dtype)
    drawn = torch.rand(shape, device=generator.device, dtype=dtype, generator=generator)
    return draws.to_device(drawn, like.device)
