"""How true mixed labels are: their weights against the share of each object that the mixed image really shows.

Measured on images whose objects are known by masks (`shapes`) or boxes (CUB, Tiny-ImageNet), for every batch mixer that
leaves pixels in place. Of a pair, v_i = |m_i ∧ M| / |m_i| of the source object is visible and v_j = |m_j ∧ ¬M| / |m_j|
of the destination's; the true weight of the source's label is v_i / (v_i + v_j). Compared with it are the method's own
label, the pixels' area, and the saliency still visible (Eq. 5). Pairs of one class are left out: their label is the
same whatever its weight is.
Shapes: B batch, C channels, H W pixels, h w cells of a map or mask, n pairs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object
from torch import Tensor

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.config.saliency_section import Normalization
from saligraft.data import Batch, ImageData
from saligraft.data.keyed_draws import key
from saligraft.grafting import pixel_area, spread
from saligraft.labels import calibrated_weight
from saligraft.methods import BatchMixer
from saligraft.methods.registry import methods_of
from saligraft.reports.visibility import Visible, visible_shares
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.rescale import resize_saliency
from saligraft.saliency.sources import saliency_source
from saligraft.training import SavedRun, load_run
from saligraft.training.evaluate import AnyRun
from saligraft.training.localization import box_masks, boxes_in_view

LABELS = ("own", "area", "calibrated")
CANNOT_BE_SEEN = 0.05  # of an object: less than this counts as not visible
GRID = 8  # cells a side for which the diversity is measured
IMAGES, DRAWS = 512, 16


class LabelTruth(NamedTuple):
    """What was measured for one method; the tables by label are keyed by `LABELS`.

    Args:
        pairs: Mixed images of two classes in which some of either object is visible.
        error: Mean absolute difference to the true weight, by label.
        rank_correlation: Spearman's, with the true weight, by label; None where one of the two is constant.
        unseen: Percent of all mixed images of two classes in which the label's larger weight names an object of which
            less than 5 % is visible, by label.
        diversity: Mean entropy in bits of whether a cell of an 8 × 8 grid is grafted, over draws for the same pair: 0
            if always the same cells are, 1 if each is in half of the draws. None for blends, which choose no cells.
    """

    pairs: int
    error: dict[str, float]
    rank_correlation: dict[str, float | None]
    unseen: dict[str, float]
    diversity: float | None


def label_weights(mixed: MixedBatch, saliency: Tensor) -> dict[str, Tensor]:
    """Weight the source's label in each of the ways of `LABELS`: (B,) each.

    Args:
        mixed: Batch mixed by a method that leaves pixels in place.
        saliency: Maps of the unmixed images (B,h,w), which calibrate the label.
    """
    height, width = mixed.images.shape[2:]
    rows, columns = mixed.mask.shape[1:]
    if rows == columns and rows < min(height, width):  # a grid of cells, to which the method resizes its map as well
        saliency = resize_saliency(saliency, rows)
    # Per pixel, so that a mask may cut through the map's cells; for one that does not, Eq. 5 is the same.
    maps = spread(saliency, height, width).expand(-1, height, width)
    mask = spread(mixed.mask, height, width).expand(-1, height, width)
    return {
        "own": mixed.source_weight,
        "area": pixel_area(mixed.mask, height, width),
        "calibrated": calibrated_weight(maps, maps[mixed.partner], mask),
    }


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Spearman's rank correlation of two samples (n,), equal values sharing their mean rank.

    Args:
        first: Values (n,).
        second: Values (n,).

    Returns:
        None where one of them is constant.
    """

    def centred_ranks(values: Tensor) -> Tensor:
        _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
        ranks: Tensor = (counts.cumsum(0) - (counts.double() - 1) / 2)[place]
        return ranks - ranks.mean()

    one, other = centred_ranks(first), centred_ranks(second)
    scale = float((one.square().sum() * other.square().sum()).sqrt())
    return float((one * other).sum()) / scale if scale > 0 else None


def cell_entropy(masks: Tensor) -> Tensor:
    """Return the mean entropy in bits, over cells, of whether a cell is grafted: (B,), on the host.

    Args:
        masks: Masks of several draws for the same pairs, (D,B,H,W); a cell of an 8 × 8 grid counts as grafted where
            more than half of it shows the source.
    """
    draws, batch, height, width = masks.shape
    cells = F.adaptive_avg_pool2d(masks.float().view(draws * batch, 1, height, width), GRID).view(draws, batch, -1)
    grafted = (cells > 0.5).cpu().double().mean(dim=0)
    entropy = -(torch.xlogy(grafted, grafted) + torch.xlogy(1 - grafted, 1 - grafted)) / torch.log(torch.tensor(2.0))
    return entropy.mean(dim=1)


def evaluate_label_truth(
    run: AnyRun,
    *,
    methods: Mapping[str, BatchMixer[Any]] | None = None,
    images: int = IMAGES,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, LabelTruth]:
    """Measure label truth, diversity and unseen objects of methods on a run's test images, with its network's maps.

    Args:
        run: Folder of a finished run on data with masks or boxes, or the loaded run.
        methods: Names of the methods to measure; by default every batch mixer that leaves pixels in place, the run's
            own with the options of its recipe. The maps of each come from the source that its authors use. Each is
            measured as if it mixed every image, whatever its probability.
        images: Most test images to use, drawn by the seed.
        draws: Mixed images of each.
        seed: Seed of images and draws.
    """
    for name, value in (("images", images), ("draws", draws)):
        checks.whole_number(name, value, least=2)
    run = run if isinstance(run, SavedRun) else load_run(run)
    data = run.data
    if data.boxes is None and getattr(data, "masks", None) is None:
        raise ValueError(f"label truth needs data with masks or boxes, such as shapes or cub, got {data.name}")
    methods = methods_of_run(run) if methods is None else methods
    for name, method in methods.items():
        if method.moves_pixels:
            raise ValueError(f"label truth needs methods that leave pixels in place, got {name}, which moves them")
        if [*method.singles()] != [method]:
            raise ValueError(f"label truth needs single methods, got {name}, which is made of several")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(key(seed)))[:images]
    subset = data.subset(order)  # shuffled, since many sets are in the order of their classes
    batches = [(batch, _objects(subset, batch)) for batch in run.batches(subset)]
    return {name: _measure(run, name, method, batches, draws, seed) for name, method in methods.items()}


def methods_of_run(run: SavedRun) -> dict[str, BatchMixer[Any]]:
    """Return every batch mixer that leaves pixels in place, the run's own with the options of its recipe.

    Args:
        run: The run.
    """
    normalization = Normalization(run.data.mean, run.data.std)
    own: dict[type[Any], Any] = {
        type(single): single for method in run.recipe.method.build(normalization) for single in method.singles()
    }
    methods = {
        name: own.get(kind) or kind(**kind.data_options(*normalization))
        for name, kind in methods_of(BatchMixer).items()
    }
    return {name: method for name, method in methods.items() if not method.moves_pixels}


def _objects(data: Any, batch: Batch) -> Tensor:
    """The objects' pixels (B,H,W) bool, from masks or else from boxes."""
    index = batch.index.cpu()
    if isinstance(data, ImageData) and data.masks is not None:
        return data.masks[index].to(batch.images.device)
    size = batch.images.shape[2], batch.images.shape[3]
    return box_masks(boxes_in_view(data.boxes[index], batch.geometry, size), size)


@torch.no_grad()
def _measure(
    run: SavedRun,
    name: str,
    method: BatchMixer[Any],
    batches: Iterable[tuple[Batch, Tensor]],
    draws: int,
    seed: int,
) -> LabelTruth:
    maps_of_labels = run.saliency()
    own_source = _source(run, name, method)
    generator = torch.Generator()
    weights: dict[str, list[Tensor]] = {label: [] for label in LABELS}
    shares: list[Tensor] = []
    entropies: list[Tensor] = []
    for number, (batch, objects) in enumerate(batches):
        if len(batch.images) < 2:
            continue
        saliency = maps_of_labels(batch.images, batch.labels)
        own = None if own_source is None else own_source(batch.images, batch.labels)
        known = objects.any(dim=2).any(dim=1)
        partner = torch.arange(len(batch.images), device=objects.device).roll(1)  # fixed: entropy is that of the cells
        used = (batch.labels != batch.labels[partner]) & known & known[partner]
        masks = []
        for draw in range(draws):
            generator.manual_seed(key(seed, run.accelerator.process_index, number, draw))
            drawn = method.draw(batch.images, generator=generator)._replace(partner=partner)
            mixed = method.apply(batch.images, batch.labels, own, drawn)
            visible = visible_shares(objects, mixed)
            shares.append(torch.stack([visible.source, visible.destination], dim=1)[used].cpu())
            for label, weight in label_weights(mixed, saliency).items():
                weights[label].append(weight[used].cpu().double())
            masks.append(mixed.mask)
        if all(mask.shape[1:] != (1, 1) for mask in masks):
            height, width = batch.images.shape[2:]
            pixels = torch.stack([spread(mask, height, width).float() for mask in masks])
            entropies.append(cell_entropy(pixels))
    if run.accelerator.num_processes > 1:
        shares, entropies = gather_object(shares), gather_object(entropies)
        weights = {label: gather_object(parts) for label, parts in weights.items()}
    seen = torch.cat(shares).double() if shares else torch.empty(0, 2)
    return _summary(seen, {label: torch.cat(parts) for label, parts in weights.items() if parts}, entropies)


def _source(run: SavedRun, name: str, method: BatchMixer[Any]) -> SaliencySource | None:
    """Where a method's own maps come from: the recipe's source for the run's own, else its authors'."""
    section = run.recipe.method.saliency
    if not method.needs_saliency:
        return None
    if name in run.recipe.method.parts and section.name is not None:
        return section.build(run.network, Normalization(run.data.mean, run.data.std))
    return (
        run.saliency()
        if method.saliency_source == "feature-map"
        else saliency_source(method.saliency_source, run.network)
    )


def _summary(seen: Tensor, weights: Mapping[str, Tensor], entropies: list[Tensor]) -> LabelTruth:
    if not len(seen):
        raise ValueError("label truth needs pairs of two classes whose objects are known, got none")
    true = Visible(seen[:, 0], seen[:, 1]).weight
    known = true.isfinite()
    source_unseen, destination_unseen = (seen < CANNOT_BE_SEEN).unbind(1)
    unseen = {
        label: 100 * float((((weight > 0.5) & source_unseen) | ((weight < 0.5) & destination_unseen)).double().mean())
        for label, weight in weights.items()
    }
    return LabelTruth(
        pairs=int(known.sum()),
        error={label: float((weight - true)[known].abs().mean()) for label, weight in weights.items()},
        rank_correlation={label: rank_correlation(weight[known], true[known]) for label, weight in weights.items()},
        unseen=unseen,
        diversity=float(torch.cat(entropies).mean()) if entropies else None,
    )
