"""Random numbers of the regularisers: unlike `draws`, made inside the forward pass and so not on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from saligraft import draws


def uniforms(
    shape: Sequence[int], like: Tensor, *, dtype: torch.dtype = torch.float32, generator: torch.Generator | None = None
) -> Tensor:
    """Uniforms in [0, 1) on the device of `like`, from torch's global stream of that device, as `nn.Dropout` draws.

    That stream compiles into the graph and is replayed by activation checkpointing; drawing one number
    per feature on the host, as the mixing methods do, would cost more than the layer.

    Args:
        shape: Shape of the result.
        like: Determines the device and, if it has that shape, the memory order.
        dtype: Type of the result.
        generator: If set, numbers are drawn on its device and moved; a CPU generator gives the same ones everywhere.
    """
    if generator is None and tuple(shape) == tuple(like.shape):
        return torch.rand_like(like, dtype=dtype)  # keeps the memory order of `like`, such as channels_last
    if generator is None:
        return torch.rand(shape, device=like.device, dtype=dtype)
    drawn = torch.rand(shape, device=generator.device, dtype=dtype, generator=generator)
    return draws.to_device(drawn, like.device)
