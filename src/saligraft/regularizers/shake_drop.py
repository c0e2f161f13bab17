"""ShakeDrop: scale a residual branch by a random factor, and its gradient by another.

Yamada et al., "ShakeDrop Regularization for Deep Residual Learning", IEEE Access 2019. With the branch F of block l and
a Bernoulli gate b of probability p_l: x + (b + α − bα) F(x) forward, (b + β − bβ) in place of that factor backward, and
its expectation at test time. α ~ U[−1, 1], β ~ U[0, 1].
Shapes: B batch, C channels, H W cells of the feature map.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.regularizers.uniforms import uniforms

Level = Literal["batch", "image", "channel", "pixel"]
# How many of the axes (B, C, H, W) have their own factors.
LEVELS: dict[Level, int] = {"batch": 0, "image": 1, "channel": 2, "pixel": 4}


def shake_drop(features: Tensor, *, gate: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Scale the output of a residual branch for given draws, each with axes of size 1 or the features'. Pure.

    Args:
        features: (B, C, H, W).
        gate: bool; True leaves both passes unchanged.
        alpha: Factor of the features where the gate is False.
        beta: Factor of their gradient where the gate is False.

    Example:
        >>> import torch
        >>> from saligraft.regularizers import shake_drop
        >>> one = torch.ones(1, 1, 1, 1)
        >>> shake_drop(3 * one, gate=one < 0, alpha=0.5 * one, beta=one)
        tensor([[[[1.5000]]]])
    """
    checks.images(features, "features")
    for name, draw in (("gate", gate), ("alpha", alpha), ("beta", beta)):
        _check_draw(name, draw, features)
    if gate.dtype != torch.bool:
        raise TypeError(f"gate must be a bool tensor, got {gate.dtype}")
    forward_factor = torch.where(gate, 1.0, alpha).to(features.dtype)
    backward_factor = torch.where(gate, 1.0, beta).to(features.dtype)
    shaken: Tensor = _TwoFactors.apply(features, forward_factor, backward_factor)
    return shaken


class _TwoFactors(torch.autograd.Function):
    """Multiply by one factor forward and by another, independent of it, backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, forward_factor: Tensor, backward_factor: Tensor) -> Tensor:
        del backward_factor
        return features * forward_factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (backward_factor,) = ctx.saved_tensors
        return gradient * backward_factor, None, None


class ShakeDropDraws(NamedTuple):
    """The draws of one pass.

    Args:
        gate: b, bool (1, 1, 1, 1).
        alpha: Forward factors.
        beta: Backward factors.
    """

    gate: Tensor
    alpha: Tensor
    beta: Tensor


class ShakeDrop(nn.Module):
    """Draw gate, α and β, then scale; at test time scale by the expected factor. For the end of a residual branch.

    One gate per forward pass, as in the authors' code. Draws come from torch's global stream (`uniforms`).

    Args:
        keep_probability: p_l, of leaving the branch unchanged.
        alpha: Range of the forward factor.
        beta: Range of the backward factor.
        level: What gets its own factors: every "pixel" as in the authors' code, "channel", "image" (two numbers per
            image instead of two copies of the features) or "batch".

    Example:
        >>> import torch
        >>> from saligraft.regularizers import ShakeDrop
        >>> ShakeDrop(0.5, level="image").eval()(torch.ones(1, 1, 1, 1))
        tensor([[[[0.5000]]]])
    """

    def __init__(
        self,
        keep_probability: float,
        *,
        alpha: tuple[float, float] = (-1.0, 1.0),
        beta: tuple[float, float] = (0.0, 1.0),
        level: Level = "pixel",
    ) -> None:
        super().__init__()
        checks.probability("keep_probability", keep_probability)
        checks.one_of("level", level, LEVELS)
        for name, (low, high) in (("alpha", alpha), ("beta", beta)):
            if not low <= high:
                raise ValueError(f"{name} must be a range (low, high) with low <= high, got {(low, high)}")
        self.keep_probability = keep_probability  # p_l
        self.alpha, self.beta, self.level = alpha, beta, level

    @property
    def expected_factor(self) -> float:
        """E[b + α − bα] = p + (1 − p) E[α]."""
        return self.keep_probability + (1 - self.keep_probability) * sum(self.alpha) / 2

    def draw(self, features: Tensor, *, generator: torch.Generator | None = None) -> ShakeDropDraws:
        """Draw the gate (1, 1, 1, 1) and the factors.

        Args:
            features: (B, C, H, W).
            generator: None for torch's global stream of the features' device.
        """
        own = LEVELS[self.level]
        shape = [size if axis < own else 1 for axis, size in enumerate(features.shape)]
        gate = uniforms([1] * features.ndim, features, generator=generator) < self.keep_probability
        factors = []
        for low, high in (self.alpha, self.beta):
            unit = uniforms(shape, features, dtype=features.dtype, generator=generator)
            factors.append(low + (high - low) * unit)
        return ShakeDropDraws(gate, *factors)

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return features * self.expected_factor
        drawn = self.draw(features)
        return shake_drop(features, gate=drawn.gate, alpha=drawn.alpha, beta=drawn.beta)

    def extra_repr(self) -> str:
        ranges = f"alpha={self.alpha}, beta={self.beta}"
        return f"keep_probability={self.keep_probability:.4g}, {ranges}, level={self.level!r}"


def depth_keep_probability(block: int, blocks: int, last: float = 0.5) -> float:
    """p_l = 1 − l/L (1 − p_L): linear decay over blocks l = 1 … L.

    Args:
        block: l.
        blocks: L.
        last: p_L; 0.5 by the authors.
    """
    checks.whole_number("blocks", blocks, least=1)
    checks.whole_number("block", block, least=1)
    if block > blocks:
        raise ValueError(f"block must be <= blocks = {blocks}, got {block}")
    checks.probability("last", last)
    return 1 - block / blocks * (1 - last)


def _check_draw(name: str, draw: Tensor, features: Tensor) -> None:
    checks.rank(name, draw, "(B, C, H, W)", features, "features")
    if any(size not in (1, full) for size, full in zip(draw.shape, features.shape, strict=True)):
        raise ValueError(
            f"{name} must have each axis of size 1 or that of features {checks.shape_of(features)}, "
            f"got {checks.shape_of(draw)}"
        )
