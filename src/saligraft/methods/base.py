"""What all methods share, and the kind "batch mixer": draw on the host, then apply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

import torch
from torch import Tensor

from saligraft import checks, draws
from saligraft.batch import MixedBatch

Draws = TypeVar("Draws")


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What every method has, and what the registry, the steps and recipes ask of its class.

    Args:
        probability: Probability that the method is applied; other samples are left unchanged.
        per: Whether draws, that coin included, are made for each "sample" or once per "batch".
    """

    saliency_source: ClassVar[str | None] = None
    """The saliency source its authors use; None for methods that use no maps."""
    needs_saliency: ClassVar[bool] = False
    """Whether it cannot mix without a map; a method that has a source and does not need it makes its own."""
    with_originals: ClassVar[bool] = False
    """Whether the originals are trained on too, or the mixed images alone."""
    dims: ClassVar[tuple[int, ...]] = (4,)
    """How many dimensions its images may have: keys of `checks.SHAPES`."""
    moves_pixels: ClassVar[bool] = False
    """Whether a mixed image may show pixels in another place than they have in source or destination."""
    blends: ClassVar[bool] = False
    """Whether a mixed pixel may be a blend of two, which images of whole numbers cannot hold."""
    data_decides: ClassVar[bool] = False
    """Whether the data alone sets the `data_options`; else they are defaults that a recipe may change."""

    probability: float = 1.0
    per: draws.Per = "sample"

    def __post_init__(self) -> None:
        checks.probability("probability", self.probability)
        checks.one_of("per", self.per, get_args(draws.Per))

    @classmethod
    def data_options(cls, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
        """The options that follow from how the loader normalises the images, by `mean` and `std` of each channel."""
        del mean, std
        return {}

    def singles(self) -> Iterator[Applied]:
        """The methods that a composition or a choice is made of, at any depth; else the method itself."""
        yield self

    def without_noise(self) -> Self:
        """The same method without noise that only a step of its own can make; itself where there is none."""
        return self

    @property
    def makes_noise(self) -> bool:
        """Whether only a step of its own, which has the gradient, can apply all of it."""
        return any(method.without_noise() is not method for method in self.singles())

    def _inherit_traits(self) -> None:
        """Make a composition or choice need and do what any of its methods does."""
        for trait in ("needs_saliency", "with_originals", "moves_pixels", "blends"):
            value = any(getattr(method, trait) for method in self.singles())
            object.__setattr__(self, trait, value)
        dims = tuple(each for each in checks.ANY_SHAPE if all(each in method.dims for method in self.singles()))
        object.__setattr__(self, "dims", dims)

    def _count(self, images: Tensor) -> int:
        """How many draws a batch needs."""
        return len(images) if self.per == "sample" else 1

    def _coins(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """True where the method is applied, (B,) on the host."""
        coins = torch.rand(self._count(images), generator=generator, device="cpu") < self.probability
        return coins.expand(len(images))

    def _check_draw(self, images: Tensor, generator: torch.Generator | None) -> None:
        checks.images(images, dims=self.dims)
        checks.generator(generator)

    def draw_partners(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """Validate what a draw begins with, and draw the partners (B,), on the images' device."""
        self._check_draw(images, generator)
        partner = draws.partners(len(images), probability=self.probability, per=self.per, generator=generator)
        return draws.to_device(partner, images.device)

    def draw_ratio(self, images: Tensor, alpha: float, generator: torch.Generator | None) -> Tensor:
        """Draw a ratio ~ Beta(alpha, alpha), (B,) on the host: one per sample, or one for all.

        It is λ in the baselines, and the probability p_B of a cell in Saliency Grafting.
        """
        return draws.beta(alpha, self._count(images), generator=generator).expand(len(images))


def saliency_sources(methods: Iterable[Applied]) -> tuple[str, ...]:
    """The sources that the authors of those methods use which need maps, or else of those that can use them.

    Args:
        methods: Methods of any kind, compositions and choices included.
    """
    singles = [single for method in methods for single in method.singles()]
    candidates = [single for single in singles if single.needs_saliency] or singles
    return tuple(dict.fromkeys(single.saliency_source for single in candidates if single.saliency_source))


@dataclass(frozen=True, kw_only=True)
class BatchMixer(Applied, ABC, Generic[Draws]):
    """Mixes each image of a batch with another one of it: ``method(images, labels, saliency) -> MixedBatch``.

    Args:
        probability: Probability that a sample is mixed; the others are left unchanged.
        per: Whether draws, that coin included, are made for each "sample" or once per "batch".
    """

    def as_transform(self, num_classes: int | None = None) -> MixingTransform:
        """Make a function ``(images, labels) -> (images, targets)`` of the method, for collate functions.

        Only methods that need no network: Mixup, CutMix, and SaliencyMix with its own map. To choose among several,
        use torchvision's `v2.RandomChoice`.

        Args:
            num_classes: K of the targets (B, K); required for labels that are class indices.

        Example:
            >>> import torch, saligraft as sg
            >>> mix = sg.CutMix().as_transform(num_classes=10)
            >>> images, targets = mix(torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4))
            >>> images.dtype, targets.shape
            (torch.uint8, torch.Size([4, 10]))
        """
        return MixingTransform(self, num_classes)

    @abstractmethod
    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Draws:
        """Make every random choice for this batch, on the host; moved to the device of `images`.

        Args:
            images: (B, C, H, W).
            generator: CPU generator for all random draws; None uses torch's global generator.
        """

    @abstractmethod
    def apply(self, images: Tensor, labels: Tensor, saliency: Tensor | None, drawn: Draws) -> MixedBatch:
        """Mix for given draws. Nothing random, no input changed; a sample with a broken map stays ungrafted.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            saliency: (B, h, w), for methods that use maps.
            drawn: What `draw` returned.
        """

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        saliency: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> MixedBatch:
        """Draw, then apply.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            saliency: (B, h, w), finite and >= 0; required where `needs_saliency`.
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        check_batch(images, labels, self.dims)
        checks.label_values(labels)
        if saliency is not None:
            checks.saliency(saliency, batch=len(images), like=images)
            checks.saliency_values(saliency)
        elif self.needs_saliency:
            self._check_saliency(saliency)
        draw = self.draw
        if torch.compiler.is_compiling():  # in a user's compiled function: a generator cannot be traced
            disable: Callable[..., Any] = torch.compiler.disable
            draw = disable(draw)
        return self.apply(images, labels, saliency, draw(images, generator=generator))

    def _check_saliency(self, saliency: Tensor | None) -> Tensor:
        if saliency is None:
            raise ValueError(f"saliency must be given to {type(self).__name__}, got None: see SaliencyCapture")
        return saliency.detach()


@dataclass(frozen=True)
class MixingTransform:
    """A method without a network as a function of a batch, for a DataLoader's `collate_fn` or torchvision's `v2`.

    It can be pickled, so it works in worker processes, and draws from torch's global generator, which a DataLoader
    seeds in each worker. Images may also be uint8 where the method pastes.

    Args:
        method: A batch mixer that needs no saliency of a network.
        num_classes: K of the targets; None for labels given as rows.
    """

    method: BatchMixer[Any]
    num_classes: int | None = None

    def __post_init__(self) -> None:
        name = type(self.method).__name__
        if self.method.needs_saliency:
            raise ValueError(
                f"{name} needs saliency maps of a network, which a transform does not have: train by "
                "GraftingStep(model, method), or call method(images, labels, saliency) with maps of SaliencyCapture"
            )
        if self.num_classes is not None:
            checks.whole_number("num_classes", self.num_classes, least=1)

    def __call__(self, images: Any, labels: Any = None) -> tuple[Tensor, Tensor]:
        """Mix a batch.

        Args:
            images: (B, C, H, W), or images and labels as a pair.
            labels: (B,) or (B, K).

        Returns:
            The mixed images, in the dtype of the images, and targets (B, K), float32 or wider.
        """
        if labels is None and isinstance(images, tuple | list) and len(images) == 2:
            images, labels = images
        checks.tensor("images", images)
        checks.labels(labels, len(images))
        whole = images.dtype == torch.uint8
        if whole and self.method.blends:
            name = type(self.method).__name__
            raise TypeError(f"images must be floating point for {name}, which blends them, got {images.dtype}")
        for fill in (getattr(single, "fill", 0) for single in self.method.singles()):
            if whole and fill not in range(256):
                raise ValueError(f"fill must be a whole number in [0, 255] for images in {images.dtype}, got {fill!r}")
        mixed = self.method(images.float() if whole else images, labels)
        return mixed.images.to(images.dtype), mixed.targets(self.num_classes)


def check_batch(images: Tensor, labels: Tensor, dims: Collection[int] = (4,)) -> None:
    """Validate the shapes, types and devices of a batch.

    Args:
        images: (B, C, H, W), or another of `checks.SHAPES`.
        labels: (B,) or (B, K).
        dims: How many dimensions images may have.
    """
    checks.images(images, dims=dims)
    checks.labels(labels, len(images), images)


def check_pairs(images: Tensor, labels: Tensor, partner: Tensor, dims: Collection[int] = (4,)) -> None:
    """Validate a batch and its partners, the arguments that all mixing functions have.

    Args:
        images: (B, C, H, W), or another of `checks.SHAPES`.
        labels: (B,) or (B, K).
        partner: (B,) indices into the batch.
        dims: How many dimensions images may have.
    """
    check_batch(images, labels, dims)
    checks.per_sample("partner", partner, images)
    if partner.dtype != torch.int64:
        raise TypeError(f"partner must hold indices as torch.int64, got {partner.dtype}")
    if checks.may_look(partner):
        low, high = map(int, partner.aminmax())
        if low < 0 or high >= len(images):
            raise ValueError(f"partner must lie in [0, {len(images)}), got {low} to {high}")
