"""Measurements of a finished run beside its error: cost, training error, occlusion, localisation, maps, label truth."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from saligraft.experiments.experiment import passes_of, training_seconds
from saligraft.experiments.label_truth import evaluate_label_truth, methods_of_run
from saligraft.masks import salient_regions
from saligraft.saliency import resize_saliency, saliency_source
from saligraft.training import SavedRun, evaluate_localization, evaluate_occluded
from saligraft.training.setup import load_split

HIDDEN = (12.5, 25.0)  # % of the cells, as in Table 7
GRIDS = (4, 8)
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
MAPS = 512  # test images whose maps are averaged over
MEAN_P = 0.5  # E[p_B] for Beta(a, a): the expected share of salient cells that are grafted


def run(tested: SavedRun) -> dict[str, Any]:
    """Measure what a run cost, and the size of its last map.

    Args:
        tested: The run.
    """
    forward, backward = passes_of(tested.recipe)
    images = torch.zeros(1, *tested.inputs.image_shape, device=tested.accelerator.device)
    height, width = tested.saliency()(images, None).shape[1:]
    cost = {"seconds": training_seconds(tested.folder), "forward": forward, "backward": backward}
    return {**cost, "map": f"{height}×{width}"}


def training(tested: SavedRun) -> dict[str, float]:
    """Measure the top-1 error on the training images themselves, not augmented: 0 where they are memorised.

    Args:
        tested: The run.
    """
    return {"top1_error": replace(tested, test_data=load_split(tested.recipe, "train")).predictions.scores.top1_error}


def occlusion(tested: SavedRun) -> dict[str, float]:
    """Measure the top-1 error with the most salient cells hidden (§5.3, Table 7).

    Args:
        tested: The run.
    """
    shares = (0.0, *HIDDEN)
    scores = evaluate_occluded(tested, [share / 100 for share in shares])
    return {f"{share:g}": score.top1_error for share, score in zip(shares, scores, strict=True)}


def localization(tested: SavedRun) -> dict[str, float]:
    """Measure how often CAM's box overlaps the true one by more than half and the class is right (Table 10).

    Args:
        tested: The run.
    """
    return {"accuracy": evaluate_localization(tested).accuracy}


def maps(tested: SavedRun) -> dict[str, float]:
    """Measure, over test images, the share of salient cells against T and σ, and the expected number of grafted cells.

    Args:
        tested: The run; its method determines layer and normalisation.
    """
    options, section = tested.recipe.method.options, tested.recipe.method.saliency
    normalize, temperature = options.get("normalize", "l2"), options.get("temperature", 0.2)
    data = tested.data
    chosen = data.subset(torch.linspace(0, len(data) - 1, min(MAPS, len(data))).long())
    own = section.options if section.name == "feature-map" else {}
    source = saliency_source("feature-map", tested.network, layer=section.feature_layer, **own)
    maps = torch.cat([source(batch.images, None) for batch in tested.batches(chosen)])
    values = {}
    for grid in GRIDS:
        saliency = resize_saliency(maps, grid)

        def share(temperature: float, threshold: float, saliency: torch.Tensor = saliency) -> float:
            return float(salient_regions(saliency, temperature, threshold, normalize=normalize).float().mean())

        values[f"grafted cells, {grid}×{grid}"] = MEAN_P * grid**2 * share(temperature, options.get("threshold", 1.0))
        values |= {f"salient at T={T:g}, {grid}×{grid}": 100 * share(T, 1.0) for T in TEMPERATURES}
        values |= {f"salient at σ={s:g}, {grid}×{grid}": 100 * share(temperature, s) for s in THRESHOLDS}
    return values


def label_truth(tested: SavedRun) -> dict[str, float | None]:
    """Measure how far labels are from what mixed images really show; see `experiments.label_truth`.

    Args:
        tested: A run on data with masks or boxes, whose network provides the maps.

    Returns:
        All but the rank correlations in percent, by method.
    """
    values: dict[str, float | None] = {}
    for method, truth in evaluate_label_truth(tested).items():
        values |= {f"{method}, error of {label} labels": 100 * error for label, error in truth.error.items()}
        values[f"{method}, calibrated minus area"] = 100 * (truth.error["calibrated"] - truth.error["area"])
        values |= {f"{method}, rank correlation of {label} labels": r for label, r in truth.rank_correlation.items()}
        values |= {f"{method}, unseen by {label} labels": share for label, share in truth.unseen.items()}
        values[f"{method}, diversity"] = None if truth.diversity is None else 100 * truth.diversity
    return values


def label_course(tested: SavedRun) -> dict[str, float]:
    """Measure the error of the labels of the run's own method at each checkpoint that the run kept.

    Args:
        tested: A run on data with masks or boxes.

    Returns:
        Mean absolute errors in percent, by label and share of the epochs, to the nearest quarter.
    """
    own = tested.recipe.method.name
    methods = {own: methods_of_run(tested)[own]}
    values: dict[str, float] = {}
    for epoch, run in tested.through_training():
        truth = evaluate_label_truth(run, methods=methods)[own]
        share = 25 * round(4 * epoch / tested.recipe.training.epochs)
        values |= {f"{label} labels, {share} %": 100 * error for label, error in truth.error.items()}
    return values


MEASURE_FUNCTIONS: dict[str, Callable[[SavedRun], dict[str, Any]]] = {
    "run": run,
    "training": training,
    "occlusion": occlusion,
    "localization": localization,
    "maps": maps,
    "label_truth": label_truth,
    "label_course": label_course,
}
