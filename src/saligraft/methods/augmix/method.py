"""AugMix: blend each image with chains of simple operations, and train for similar predictions on all its views.

Hendrycks et al., ICLR 2020. RGB images in [0, 1]; normalisation comes after the augmentation.
Shapes: B batch, W chains of an image, D operations of the longest chain, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch
from saligraft.methods.augmix.operations import OPERATIONS
from saligraft.methods.kinds import StepStrategy
from saligraft.pixels import denormalized, normalized

LEAST_LEVEL = 0.1  # the authors draw an operation's level from U(0.1, severity)
LEAST_PROBABILITY = 1e-7  # of the mixture, before the logarithm (authors)
ROUNDING = 1e-2  # tolerance outside [0, 1] after undoing a normalisation in half precision


def jensen_shannon_loss(logits_clean: Tensor, logits_1: Tensor, logits_2: Tensor) -> Tensor:
    """Jensen-Shannon divergence of the three views' class probabilities, the mean over the batch. Pure.

    It is the mean of each view's KL divergence to their mixture, from log probabilities: the authors' p log p has no
    gradient where a probability is 0.

    Args:
        logits_clean: (B, K), of the unchanged images.
        logits_1: (B, K), of the first augmented view.
        logits_2: (B, K), of the second.

    Returns:
        A scalar, float32 or wider.
    """
    views = [checks.at_least_float32(logits).log_softmax(dim=1) for logits in (logits_clean, logits_1, logits_2)]
    shares = [view.exp() for view in views]
    log_mixture = ((shares[0] + shares[1] + shares[2]) / 3).clamp(LEAST_PROBABILITY, 1).log()
    divergences = [(share * (view - log_mixture)).sum(dim=1) for share, view in zip(shares, views, strict=True)]
    return (divergences[0] + divergences[1] + divergences[2]).mean() / 3


class Group(NamedTuple):
    """One operation and the chains in which it comes next, so that one call serves all of them.

    Args:
        operation: Its name.
        places: (n,), indices into the B·W chains, sample by sample.
        level: (n,), up to 10, the strongest.
        sign: (n,), −1 or 1, for operations that have two directions.
    """

    operation: str
    places: Tensor
    level: Tensor
    sign: Tensor


class AugMixDraws(NamedTuple):
    """The draws of one view of a batch.

    Args:
        rounds: D rounds: the first operation of every chain, then the second, and so on.
        chain_weight: (B, W), rows sum to one.
        blend: (B,), the weight of the chains; 0 leaves the image unchanged.
    """

    rounds: tuple[tuple[Group, ...], ...]
    chain_weight: Tensor
    blend: Tensor


@checks.without_autocast
def augmix(images: Tensor, drawn: AugMixDraws) -> Tensor:
    """Compute one augmented view for given draws. No input is changed.

    Args:
        images: RGB, (B, 3, H, W) in [0, 1].
        drawn: Draws from `AugMix.draw`.
    """
    _check_rgb(images)
    clean = checks.at_least_float32(images)
    width = drawn.chain_weight.shape[1]
    chains = clean.repeat_interleave(width, dim=0)
    for groups in drawn.rounds:
        for group in groups:
            changed = OPERATIONS[group.operation](chains[group.places], group.level, group.sign)
            chains = chains.index_copy(0, group.places, changed)
    weight = drawn.chain_weight.to(clean.dtype)
    mixture = torch.einsum("bn,bnchw->bchw", weight, chains.view(-1, width, *clean.shape[1:]))
    return torch.lerp(clean, mixture, drawn.blend.to(clean.dtype)[:, None, None, None]).to(images.dtype)


@dataclass(frozen=True, kw_only=True)
class AugMix(StepStrategy):
    """Show the network each image and two augmented views of it; make the three predictions agree.

    Images are in [0, 1], and the views are normalised by `mean` and `std` afterwards; with ``normalized=True`` the
    input is already normalised by them, as from many loaders, and this is undone first.

    Args:
        width: Chains of operations whose results are blended.
        depth: Operations of a chain: 1 to this many, drawn for each.
        severity: Up to 10; the authors use 3 for CIFAR, 1 in their ImageNet script.
        alpha: Chain weights ~ Dirichlet(alpha), their share in the blend with the clean image ~ Beta(alpha, alpha).
        consistency: Weight of the Jensen-Shannon term in the loss.
        mean: Mean of each channel; the authors use 0.5 for CIFAR.
        std: Standard deviation of each channel.
        normalized: Whether the input is already normalised, instead of in [0, 1].
        probability: Probability that a sample is augmented; the views of others are the image itself.
        per: Whether draws, that coin included, are made for each "sample" or once per "batch".

    Example:
        >>> import torch, saligraft as sg
        >>> [tuple(view.shape) for view in sg.AugMix(severity=1).views(torch.rand(2, 3, 8, 8))]
        [(2, 3, 8, 8), (2, 3, 8, 8), (2, 3, 8, 8)]
    """

    data_decides: ClassVar[bool] = True

    width: int = 3
    depth: int = 3
    severity: float = 3.0
    alpha: float = 1.0
    consistency: float = 12.0
    mean: Sequence[float] = (0.5, 0.5, 0.5)
    std: Sequence[float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole_number("width", self.width, least=1, most=100)
        checks.whole_number("depth", self.depth, least=1, most=100)
        checks.positive("alpha", self.alpha)
        checks.not_negative("consistency", self.consistency)
        checks.not_negative("severity", self.severity)
        if not LEAST_LEVEL <= self.severity <= 10:
            raise ValueError(f"severity must be in [{LEAST_LEVEL}, 10], got {self.severity}")
        for name in ("mean", "std"):
            values = checks.numbers(name, getattr(self, name))
            if len(values) != 3:
                raise ValueError(f"{name} must have 3 entries (red, green, blue), got {len(values)}")
            object.__setattr__(self, name, values)
        for value in self.std:
            checks.positive("each of std", value)

    @classmethod
    def data_options(cls, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
        return {"mean": mean, "std": std, "normalized": True}

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> AugMixDraws:
        """Draw one view of this batch on the host; the draws are moved to the device of `images`.

        Args:
            images: (B, 3, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        self._check_draw(images, generator)
        batch, count, device = len(images), self._count(images), images.device
        shape = (count, self.width, self.depth)
        length = torch.randint(1, self.depth + 1, (count, self.width, 1), generator=generator, device="cpu")
        operation = torch.randint(len(OPERATIONS), shape, generator=generator, device="cpu")
        operation[torch.arange(self.depth, device="cpu") >= length] = -1  # the chain has ended
        level = LEAST_LEVEL + torch.rand(shape, generator=generator, device="cpu") * (self.severity - LEAST_LEVEL)
        sign = torch.randint(2, shape, generator=generator, device="cpu") * 2.0 - 1
        weight = draws.dirichlet(self.alpha, self.width, count, generator=generator).expand(batch, self.width)
        blend = self.draw_ratio(images, self.alpha, generator) * self._coins(images, generator)
        rounds = _grouped([part.expand(batch, -1, -1) for part in (operation, level, sign)], device)
        return AugMixDraws(rounds, draws.to_device(weight, device), draws.to_device(blend, device))

    def prepare(self, images: Tensor) -> Tensor:
        """Return the images, validated and normalised."""
        self._clean(images)
        return self._prepared(images)

    def views(self, images: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return the images and two augmented views of them, all normalised."""
        clean = self._clean(images)
        augmented = [augmix(clean, self.draw(images, generator=generator)) for _ in range(2)]
        return self._prepared(images), *(normalized(view, self.mean, self.std) for view in augmented)

    def _clean(self, images: Tensor) -> Tensor:
        """The images in [0, 1]."""
        _check_rgb(images)
        clean = denormalized(images, self.mean, self.std) if self.normalized else images
        _check_range(clean, self.normalized)
        return clean.clamp(0, 1)

    def _prepared(self, images: Tensor) -> Tensor:
        return images if self.normalized else normalized(images, self.mean, self.std)

    def loss(
        self, logits: Sequence[Tensor], originals: MixedBatch, criterion: Callable[[Tensor, MixedBatch], Tensor]
    ) -> Tensor:
        """Return the loss of the clean view plus the weighted divergence of the three predictions."""
        clean, first, second = logits
        return criterion(clean, originals) + self.consistency * jensen_shannon_loss(clean, first, second)


def _grouped(drawn: Sequence[Tensor], device: torch.device) -> tuple[tuple[Group, ...], ...]:
    """Operation, level and sign, each (B, W, D), as D rounds."""
    rounds = []
    for kind, strength, direction in zip(*(part.flatten(0, 1).unbind(dim=1) for part in drawn), strict=True):
        groups = []
        for number, name in enumerate(OPERATIONS):
            places = (kind == number).nonzero()[:, 0]
            if len(places):
                parts = (places, strength[places], direction[places])
                groups.append(Group(name, *(draws.to_device(part, device) for part in parts)))
        rounds.append(tuple(groups))
    return tuple(rounds)


def _check_rgb(images: Tensor) -> None:
    checks.images(images)
    if images.shape[1] != 3:
        raise ValueError(f"images must have 3 channels (RGB) for AugMix, got {images.shape[1]}")


def _check_range(images: Tensor, normalized: bool) -> None:
    if not checks.may_look(images):
        return
    low, high = float(images.min()), float(images.max())
    slack = ROUNDING if normalized else 0.0
    if not (low >= -slack and high <= 1 + slack):
        when = "after undoing mean and std " if normalized else ""
        hint = "" if normalized else "; for images that are already normalised use normalized=True"
        raise ValueError(f"images must lie in [0, 1] for AugMix, {when}got {low:.4g} to {high:.4g}{hint}")
