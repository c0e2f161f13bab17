"""`passes="remembered"` of `GraftingStep`: graft by the maps of earlier training passes, so that a step is one pass.

Not in the paper. Each pass over mixed images refreshes the maps of the samples that it shows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.hooks import find_ddp, unwrapped
from saligraft.methods.base import BatchMixer, saliency_sources
from saligraft.methods.kinds import ImageTransform
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.memory import SaliencyMemory, Views, resample
from saligraft.saliency.sources import FeatureMap


class Recalled(NamedTuple):
    """What is remembered of the samples of a batch.

    Args:
        saliency: (B, m, n); NaN for a sample without a map, which is neither grafted nor grafted onto.
        views: Samples of the batch, and the part of each that it shows.
    """

    saliency: Tensor
    views: Views


class RememberedMaps:
    """Look maps up before a training pass and refresh them from it.

    Args:
        model: The network in training.
        method: A batch mixer that uses maps.
        source: The feature map of the model.
        memory: Table of the maps.
    """

    def __init__(
        self, model: nn.Module, method: BatchMixer[Any], source: SaliencySource | None, memory: SaliencyMemory
    ) -> None:
        if not isinstance(source, FeatureMap) or source.network is not unwrapped(model):
            raise ValueError(
                "saliency_source must be the feature map of the model itself for passes='remembered', "
                f"got {type(source).__name__}"
            )
        self.model, self.method, self.source, self.memory = model, method, source, memory

    def look_up(self, images: Tensor, index: Tensor | None, geometry: Tensor | None) -> Recalled:
        """Return the remembered maps of a batch, as its images show them.

        Args:
            images: (B, C, H, W).
            index: (B,), the place of each sample in the data set.
            geometry: How images were cropped and flipped, as in `Views.of`.
        """
        checks.images(images)
        views = Views.of(images, index, geometry)
        return Recalled(self.memory.look_up(views), views)

    def mix(self, images: Tensor, labels: Tensor, recalled: Recalled, generator: torch.Generator | None) -> MixedBatch:
        """Mix a batch by its remembered maps.

        Args:
            images: (B, C, H, W).
            labels: (B,) or (B, K).
            recalled: Result of `look_up`.
            generator: CPU generator for all random draws; None uses torch's global generator.
        """
        drawn = self.method.draw(images, generator=generator)
        with checks.set_validation(False):  # NaN marks a sample without a map; it is not an error
            return self.method.apply(images, labels, recalled.saliency, drawn)

    def training_pass(self, shown: MixedBatch, labels: Tensor, views: Views) -> tuple[Tensor, Tensor]:
        """Make a training pass and refresh the maps of the samples it shows, of all processes.

        Args:
            shown: Mixed batch, or the originals as one.
            labels: (B,) or (B, K).
            views: Samples of the batch, from `look_up`.

        Returns:
            Logits (B, K), with gradient, and the saliency (B, h, w) of this process's mixed images.
        """
        logits, seen = self.source.with_logits(self.model, shown.images, labels)
        share = resample(shown.mask.float(), (seen.shape[1], seen.shape[2]))  # of a cell that shows the source
        self.memory.refresh(*_of_all_processes(self.model, seen, share, shown.partner, views))
        return logits, seen


def check_remembered(method: BatchMixer[Any], copies: int = 1) -> None:
    """Reject methods and options incompatible with `passes="remembered"`.

    Args:
        method: A batch mixer.
        copies: Grafted batches per step.
    """
    name = type(method).__name__
    if copies > 1:
        raise ValueError(f"copies must be 1 for passes='remembered', whose point is a single pass, got {copies}")
    if method.moves_pixels:
        raise ValueError(f"passes must not be 'remembered' for {name}, which moves pixels to other places")
    if any(isinstance(single, ImageTransform) for single in method.singles()):
        raise ValueError(f"passes must not be 'remembered' for {name}, whose transforms the maps would remember")
    if not saliency_sources([method]):
        raise ValueError(f"passes must not be 'remembered' for {name}, which uses no maps")


def _of_all_processes(
    model: nn.Module, saliency: Tensor, share: Tensor, partner: Tensor, views: Views
) -> tuple[Tensor, Tensor, Tensor, Views]:
    """What `SaliencyMemory.refresh` takes, joined over all processes in their order; all batches have one size."""
    ddp = find_ddp(model)
    size = 1 if ddp is None else distributed.get_world_size(ddp.process_group)
    if ddp is None or size == 1:
        return saliency, share, partner, views
    maps = torch.stack([saliency.float(), share], dim=1)
    places = torch.cat([partner[:, None], views.index[:, None], views.boxes], dim=1)
    gathered = []
    for part in (maps, places):
        parts = [torch.empty_like(part) for _ in range(size)]
        distributed.all_gather(parts, part.contiguous(), group=ddp.process_group)
        gathered.append(parts)
    maps, places = torch.cat(gathered[0]), torch.cat(gathered[1])
    first = torch.arange(size, device=places.device).repeat_interleave(len(saliency)) * len(saliency)
    return maps[:, 0], maps[:, 1], places[:, 0] + first, Views(places[:, 1], places[:, 2:])
