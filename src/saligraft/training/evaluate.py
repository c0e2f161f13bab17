"""Test a network: top-1 and top-5 error and mean loss, each test image counted once over all processes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import load_recipe
from saligraft.data import Split
from saligraft.data.occlude import GRID, hidden_cells, occlude
from saligraft.saliency.base import SaliencySource
from saligraft.saliency.rescale import resize_saliency
from saligraft.saliency.sources import FeatureMap
from saligraft.training.accelerator import make_accelerator, sum_over_processes
from saligraft.training.results import Scores
from saligraft.training.run_folder import RECIPE, load_weights
from saligraft.training.setup import labelled_images, load_split, make_loader, make_network

TOP_K = 5


@torch.no_grad()
def evaluate(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], accelerator: Accelerator) -> Scores:
    """Scores over (images, labels) of all processes together; the network's mode is put back afterwards."""
    was_training = network.training
    network.eval()
    sums = [_batch_sums(network(images).float(), labels) for images, labels in batches]
    network.train(was_training)
    own = torch.stack(sums).double().sum(dim=0).tolist() if sums else [0.0] * len(Sums._fields)
    total = Sums(*sum_over_processes(accelerator, own))
    if total.images == 0:
        raise ValueError("the test set must hold at least one image, got none")
    return Scores(
        test_loss=total.loss / total.images,
        top1_error=100 * total.wrong1 / total.images,
        top5_error=100 * total.wrong5 / total.images,
    )


class Sums(NamedTuple):
    """Sums over test images."""

    loss: float
    wrong1: float
    wrong5: float
    images: float


def _batch_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """`Sums` of one batch as a tensor, on the host once the device gets there."""
    order = logits.argsort(dim=1, descending=True, stable=True)  # ties go to the lower class index
    place = (order == labels[:, None]).int().argmax(dim=1)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    wrong1, wrong5 = (place >= 1).sum(), (place >= TOP_K).sum()
    return torch.stack([loss, wrong1, wrong5, torch.full_like(loss, len(labels))]).to("cpu")


def evaluate_run(folder: str | Path, overrides: Iterable[str] = ()) -> Scores:
    """Rebuild the network and the test data of a run folder, and test again; equals the run's final numbers."""
    return _rebuild(folder, overrides).scores()


def evaluate_occluded(
    folder: str | Path,
    shares: Sequence[float],
    overrides: Iterable[str] = (),
    reference: str | Path | None = None,
) -> list[Scores]:
    """Test a run again for each share of the most salient cells hidden under the data mean (§5.3, Table 7).

    Cells are those of an 8 × 8 grid, salient in the feature map of the tested network itself, or of the network of
    the run folder `reference`, so that several runs are tested on the same pictures.
    """
    counts = [hidden_cells(share) for share in shares]
    run = _rebuild(folder, overrides)
    source = run.saliency() if reference is None else _rebuild(reference, on=run).saliency()
    return [run.scores(hide=(source, share) if count else None) for share, count in zip(shares, counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run folder's network on its test data."""

    recipe: Recipe
    accelerator: Accelerator
    data: Split
    network: nn.Module

    def saliency(self) -> SaliencySource:
        """The paper's forward saliency, of the layer that the run itself looked at if it named one."""
        section = self.recipe.method.saliency
        return FeatureMap(self.network, section.layer if section.name == "feature-map" else None)

    def scores(self, hide: tuple[SaliencySource, float] | None = None) -> Scores:
        loader = make_loader(self.recipe, self.data, self.accelerator, train=False)
        batches = labelled_images(self.recipe, loader)
        return evaluate(self.network, batches if hide is None else _occluded(batches, *hide), self.accelerator)


def _rebuild(folder: str | Path, overrides: Iterable[str] = (), on: _Run | None = None) -> _Run:
    """The run of a folder, on its own test data or on another run's, which must then be of the same set."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} is not a run folder: it holds no {RECIPE}")
    recipe = load_recipe(folder / RECIPE, overrides)
    if on is not None and recipe.data.name != on.recipe.data.name:
        raise ValueError(f"reference must be a run on {on.recipe.data.name}, got one on {recipe.data.name}")
    accelerator = make_accelerator(recipe, to_train=False)
    data = load_split(recipe, "test") if on is None else on.data
    network = make_network(recipe, data)
    load_weights(folder, network)
    network = accelerator.unwrap_model(accelerator.prepare_model(network, evaluation_mode=True))
    return _Run(recipe=recipe, accelerator=accelerator, data=data, network=network)


def _occluded(
    batches: Iterable[tuple[Tensor, Tensor]], source: SaliencySource, share: float
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in batches:
        yield occlude(images, resize_saliency(source(images, labels), GRID), share), labels
