"""The pictures on a run's page: pairs mixed by the run's method with the maps of its network, or its data."""

import dataclasses

import torch
from torch import Tensor, nn

from saligraft.config.method_section import Normalization
from saligraft.config.recipe import Recipe
from saligraft.data import Split
from saligraft.methods import BatchMixer, Compose, ImageTransform
from saligraft.reports import page
from saligraft.reports.gallery import GalleryRow, Mixer, draw_rows
from saligraft.saliency.base import NetworkSource
from saligraft.saliency.sources import SALIENCY_SOURCES

BATCH = 32  # test images that pairs are drawn from: enough to choose among, quick for any network
ROWS = 4


def pictures(recipe: Recipe, network: nn.Module, data: Split, device: torch.device) -> page.Section:
    """A gallery where images are mixed with each other; the contact sheet of the data elsewhere."""
    mixer = None if recipe.never_mixes else _mixer(recipe, data)
    if mixer is None:
        return page.contact_sheet_section(data)
    rows = _rows(recipe, mixer, network, data, device)
    source = SALIENCY_SOURCES.get(recipe.method.saliency.name or "")
    maps = " with the maps of the network trained here" if source and issubclass(source, NetworkSource) else ""
    return page.gallery_section(rows, f"Test images mixed as in training{maps}. {page.gallery_legend(rows)}")


def _mixer(recipe: Recipe, data: Split) -> Mixer | None:
    """The method as one function from batch to mixed batch; None where no image meets another."""
    methods = recipe.method.build(Normalization(data.mean, data.std))
    if not methods or not isinstance(methods[-1], BatchMixer):
        return None
    parts = [part for part in methods if isinstance(part, ImageTransform | BatchMixer)]
    if len(parts) > 1:
        return Compose(parts)
    return methods[-1].without_noise()  # noise needs a step; the pictures show mask and transport


def _rows(recipe: Recipe, mixer: Mixer, network: nn.Module, data: Split, device: torch.device) -> list[GalleryRow]:
    """Mixed as the loader normalises them, where a method's fill colour and scales have their meaning; then shown."""
    chosen = data.take(torch.linspace(0, len(data) - 1, min(BATCH, len(data))).long())
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    images = ((chosen.images.float() / 255 - mean) / std).to(device)
    labels = chosen.labels.to(device)
    saliency = None
    if recipe.method.saliency.name is not None:
        saliency = recipe.method.saliency.build(network, Normalization(data.mean, data.std))(images, labels)
    rows = draw_rows(mixer, images, labels, data.classes, saliency=saliency, count=ROWS, seed=recipe.seed)

    def shown(image: Tensor) -> Tensor:
        return (image * std + mean).clamp(0, 1)

    return [
        dataclasses.replace(row, source=shown(row.source), destination=shown(row.destination), mixed=shown(row.mixed))
        for row in rows
    ]
