"""The page of a finished run: result, learning curve, pictures and recipe."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saligraft.config.saliency_section import Normalization
from saligraft.methods import REGISTRY, BatchMixer, Compose, ImageTransform
from saligraft.names import one_line
from saligraft.pixels import denormalized, normalized
from saligraft.reports.explorer import explorer_data, varied
from saligraft.reports.figures import Curve
from saligraft.reports.gallery import GalleryRow, Mixer, class_strips, draw_rows, most_balanced
from saligraft.reports.page import versions, write_page
from saligraft.reports.tables import ResultTable
from saligraft.saliency.base import NetworkSource
from saligraft.saliency.sources import SALIENCY_SOURCES, saliency_source
from saligraft.training.accelerator import is_main_process
from saligraft.training.results import LAST_EPOCHS, Result, has_top5
from saligraft.training.run_folder import RECIPE, REPORT

BATCH = 32  # test images that pairs are drawn from: enough to choose from, fast for any network
ROWS = 4
NEVER_MIXED = "No image was mixed: all epochs were warm-up."


def write_run_page(result: Result) -> None:
    """Write `report.html` into the folder of a finished run; any error becomes a warning.

    Does nothing for a run without a folder, and in all processes but the first.

    Args:
        result: What `train` returned.
    """
    if result.folder is None or not is_main_process():
        return
    pictures: dict[str, Any] = {}
    with _only_warning(f"the pictures of {REPORT}"):
        pictures = run_pictures(result)
    with _only_warning(f"the interactive view of {REPORT}"):
        pictures |= _interactive_view(result)
    with _only_warning(REPORT):
        recipe, summary = result.recipe, result.summary
        method = method_title(recipe.method.name)
        errors = {"top1_error": "Top-1 error"}
        if has_top5(len(result.test_data.classes)):
            errors["top5_error"] = "Top-5 error"
        write_page(
            result.folder / REPORT,
            "run.html",
            title=recipe.heading,
            method=method,
            result=summary,
            note=NEVER_MIXED if recipe.never_mixes else "",
            table=_result_table(summary, errors),
            curves=[
                Curve(name=title, runs=(tuple(getattr(line, name) for line in result.metrics),))
                for name, title in errors.items()
            ],
            **pictures,
            facts=_facts(result, result.folder),
            recipe=(result.folder / RECIPE).read_text(encoding="utf-8"),
        )


def run_pictures(result: Result) -> dict[str, Any]:
    """Mix test images as in training, with the maps of the run's network; without mixing, show the data.

    Args:
        result: A finished run.

    Returns:
        What `run.html` shows: `rows` of mixed pairs, the `best_row` to explain the method with, and whether
        they have `network_maps`, or `data` and `strips`.
    """
    recipe, data = result.recipe, result.test_data
    mixer = None if recipe.never_mixes else _mixer(result)
    if mixer is None:
        return {"data": data, "strips": class_strips(data)}
    source = SALIENCY_SOURCES.get(recipe.method.saliency.name or "")
    network_maps = source is not None and issubclass(source, NetworkSource)
    rows = _mixed_rows(result, mixer)
    return {"rows": rows, "best_row": most_balanced(rows), "network_maps": network_maps}


def method_title(name: str) -> str:
    """Return a method's name in prose.

    Args:
        name: Its name on the command line.

    Returns:
        Its title.

    Example:
        >>> method_title("saliency-grafting")
        'Saliency Grafting'
    """
    if name in REGISTRY:
        return REGISTRY[name].title
    if ":" in name:  # the user's own
        return name.rpartition(":")[2]
    return "Plain training" if name == "none" else name.replace("-", " ").title()


@contextlib.contextmanager
def _only_warning(what: str) -> Iterator[None]:
    """Turn any error into a warning: the run is finished, and its page must not make it fail."""
    try:
        yield
    except Exception as error:
        warnings.warn(f"the run is finished, but {what} could not be created: {one_line(error)}", stacklevel=1)


def _mixer(result: Result) -> Mixer | None:
    """The run's method as a function from batch to mixed batch; None if images are not mixed with each other."""
    methods = result.recipe.method.build(Normalization(result.test_data.mean, result.test_data.std))
    if not methods or not isinstance(methods[-1], BatchMixer):
        return None
    parts = [part for part in methods if isinstance(part, ImageTransform | BatchMixer)]
    # Adversarial noise needs a training step, so the pictures show mask and transport without it.
    return Compose(parts) if len(parts) > 1 else methods[-1].without_noise()


def _mixed_rows(result: Result, mixer: Mixer) -> list[GalleryRow]:
    """Mix images as the loader normalises them, since fill colours and scales refer to that; then undo it."""
    recipe, data = result.recipe, result.test_data
    device = next(result.network.parameters()).device
    chosen = data.take(torch.linspace(0, len(data) - 1, min(BATCH, len(data))).long())
    images = normalized(chosen.images.float() / 255, data.mean, data.std).to(device)
    labels = chosen.labels.to(device)
    saliency = None
    if recipe.method.saliency.name is not None:
        source = recipe.method.saliency.build(result.network, Normalization(data.mean, data.std))
        saliency = source(images, labels)
    maps_and_objects = {"saliency": saliency, "objects": chosen.masks}
    rows = draw_rows(mixer, images, labels, data.classes, **maps_and_objects, count=ROWS, seed=recipe.seed)

    def shown(image: Tensor) -> Tensor:
        return denormalized(image, data.mean, data.std).clamp(0, 1)

    return [
        dataclasses.replace(row, source=shown(row.source), destination=shown(row.destination), mixed=shown(row.mixed))
        for row in rows
    ]


def _interactive_view(result: Result) -> dict[str, Any]:
    """The view of some test images, with the maps that the run's method uses, by default the feature map."""
    recipe, data = result.recipe, result.test_data
    if len(data) < 2:
        return {}
    chosen = data.take(varied(data.labels))
    clean, device = chosen.images.float() / 255, next(result.network.parameters()).device
    images, labels = normalized(clean, data.mean, data.std).to(device), chosen.labels.to(device)
    section = recipe.method.saliency
    own = None if section.name is None else section.build(result.network, Normalization(data.mean, data.std))
    view = explorer_data(
        clean,
        chosen.labels,
        data.classes,
        (own or saliency_source("feature-map", result.network))(images, labels),
        gradients=saliency_source("input-gradient", result.network)(images, labels),
        objects=chosen.masks,
        origin="the network trained here",
    )
    return {"explorer": view}


def _result_table(result: dict[str, Any], errors: Mapping[str, str]) -> ResultTable:
    rows = tuple(
        (title, *(f"{result[name][kind]:.2f} %" for kind in ("best", "last10_mean", "final")))
        for name, title in errors.items()
    )
    return ResultTable(
        columns=("", "best epoch", f"mean of last {min(LAST_EPOCHS, result['epochs'])}", "final"), rows=rows
    )


def _facts(result: Result, folder: Path) -> dict[str, str]:
    facts = {"Run again": f"saligraft train {folder / RECIPE} --out ANOTHER_FOLDER"}
    if result.timing:  # a resumed run may have lost its times
        seconds, cpu_seconds = (sum(getattr(line, key) for line in result.timing) for key in ("seconds", "cpu_seconds"))
        rate = sum(line.seconds * line.images_per_second for line in result.timing) / seconds
        facts["Time of training"] = (
            f"{seconds:.0f} s wall-clock ({rate:,.0f} images/s), {cpu_seconds:.0f} s of CPU time; without evaluation"
        )
    passes = result.recipe.passes_per_step
    if passes is not None:
        facts["Passes per step"] = f"{passes.forward} forward, {passes.backward} backward"
    facts["Network"] = f"{result.summary['network']}, {result.summary['parameters']:,} parameters"
    return {**facts, **versions()}
