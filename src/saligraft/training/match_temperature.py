"""Match temperature and k on the maps of a trained run, for the ablation with equally many grafted cells (§5.4)."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from saligraft.config.saliency_section import Normalization, SaliencySection
from saligraft.masks import expected_cells, matched_temperature
from saligraft.saliency.rescale import resize_saliency
from saligraft.training.saved_run import load_run
from saligraft.training.setup import in_memory_format, load_split, make_loader


class Match(NamedTuple):
    """A temperature, and how many cells it grafts.

    Args:
        temperature: T.
        cells: E[ΣM], cells that are grafted per image on average.
        images: Number of images whose maps were used.
        map_size: Height and width of the network's own map, before it is resized to the grid.
    """

    temperature: float
    cells: float
    images: int
    map_size: tuple[int, int]


def match_temperature(
    folder: str | Path,
    *,
    temperature: float | None = None,
    k: int | None = None,
    grid: int = 8,
    images: int = 5000,
    overrides: Iterable[str] = (),
) -> Match:
    """Solve k = E[ΣM] for a temperature, or the temperature for k, with the network of a finished run (§5.4).

    Maps are those of training: augmented training images, with batch statistics, by the run's own saliency source, or
    the paper's where its method uses none. Threshold and normalisation are the run's too.

    Args:
        folder: Folder of a finished run.
        temperature: T to find k for.
        k: Cells to find T for; one of the two must be given.
        grid: Cells per side.
        images: Maximum number of images whose maps are used.
        overrides: Changes to the run's recipe, "section.key=value".
    """
    if (temperature is None) == (k is None):
        raise ValueError(f"one of temperature and k must be given, got temperature={temperature}, k={k}")
    run = load_run(folder, overrides)
    recipe, network, data = run.recipe, run.network.train(), load_split(run.recipe, "train")
    section = recipe.method.saliency
    if section.name is None:
        section = SaliencySection().complete("feature-map", in_training_pass=True)
    source = section.build(network, Normalization(data.mean, data.std), "current")
    loader = make_loader(recipe, data, run.accelerator, train=True)
    batches = islice(loader, -(-images // loader.batch_size))
    try:
        maps = [source(in_memory_format(recipe, batch.images), batch.labels).cpu() for batch in batches]
    finally:
        loader.close()
    saliency = resize_saliency(torch.cat(maps)[:images], grid)
    settings = recipe.method.options
    options: dict[str, Any] = {name: settings[name] for name in ("threshold", "normalize") if name in settings}
    if k is not None:
        temperature = matched_temperature(saliency, k, **options)
    assert temperature is not None
    cells = expected_cells(saliency, temperature, **options)
    return Match(temperature, cells, len(saliency), (maps[0].shape[1], maps[0].shape[2]))
