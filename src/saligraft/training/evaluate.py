"""Evaluation: top-1 and top-5 error and mean loss, each test image counted once over all processes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Score a network on the batches of all processes together; its mode is restored afterwards.

    Args:
        network: Maps images (B,C,H,W) to logits (B,K).
        batches: Images (B,C,H,W) and labels (B,), this process's share.
        accelerator: Knows the processes.
    """
    was_training = network.training
    network.eval()
    sums = [_batch_sums(network(images).float(), labels) for images, labels in batches]
    network.train(was_training)
    own = torch.stack(sums).double().sum(dim=0).tolist() if sums else [0.0] * 4
    loss, wrong1, wrong5, images = sum_over_processes(accelerator, own)
    if images == 0:
        raise ValueError("the test set must hold at least one image, got none")
    return Scores(test_loss=loss / images, top1_error=100 * wrong1 / images, top5_error=100 * wrong5 / images)


def _batch_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum loss, top-1 errors, top-5 errors and images of one batch, on the host once the device is done."""
    order = logits.argsort(dim=1, descending=True, stable=True)  # ties go to the lower class index
    rank = (order == labels[:, None]).int().argmax(dim=1)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    wrong1, wrong5 = (rank >= 1).sum(), (rank >= TOP_K).sum()
    return torch.stack([loss, wrong1, wrong5, torch.full_like(loss, len(labels))]).to("cpu")


def evaluate_run(folder: str | Path, overrides: Iterable[str] = ()) -> Scores:
    """Rebuild network and test data of a run folder and test again; equals the run's final numbers.

    Args:
        folder: Of a finished run.
        overrides: Changes to its recipe, "section.key=value", such as other test data.
    """
    return _SavedRun.load(folder, overrides).scores()


def evaluate_occluded(
    folder: str | Path,
    shares: Sequence[float],
    overrides: Iterable[str] = (),
    reference: str | Path | None = None,
) -> list[Scores]:
    """Test a run again for each share of the most salient cells hidden under the data mean (§5.3, Table 7).

    Args:
        folder: Of a finished run.
        shares: Of the cells of an 8 × 8 grid, each in [0, 1].
        overrides: Changes to its recipe, "section.key=value".
        reference: A run folder whose network's feature map decides which cells are salient, so that several runs are
            tested on the same images; by default the tested network's own.
    """
    counts = [hidden_cells(share) for share in shares]
    run = _SavedRun.load(folder, overrides)
    source = (run if reference is None else _SavedRun.load(reference, tested=run)).saliency()
    return [run.scores(hide=(source, share) if count else None) for share, count in zip(shares, counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _SavedRun:
    """The network of a run folder, with its test data."""

    recipe: Recipe
    accelerator: Accelerator
    data: Split
    network: nn.Module

    @classmethod
    def load(cls, folder: str | Path, overrides: Iterable[str] = (), tested: "_SavedRun | None" = None) -> "_SavedRun":
        """Load a run with its own test data, or with those of the `tested` run, which must be on the same data set."""
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            raise ValueError(f"{folder} is not a run folder: it holds no {RECIPE}")
        recipe = load_recipe(folder / RECIPE, overrides)
        if tested is not None and recipe.data.name != tested.recipe.data.name:
            raise ValueError(f"reference must be a run on {tested.recipe.data.name}, got one on {recipe.data.name}")
        accelerator = make_accelerator(recipe, to_train=False)
        data = load_split(recipe, "test") if tested is None else tested.data
        network = make_network(recipe, data)
        load_weights(folder, network)
        network = accelerator.unwrap_model(accelerator.prepare_model(network, evaluation_mode=True))
        return cls(recipe=recipe, accelerator=accelerator, data=data, network=network)

    def saliency(self) -> SaliencySource:
        """The paper's forward saliency, of the layer that the run itself used if it named one."""
        section = self.recipe.method.saliency
        return FeatureMap(self.network, section.layer if section.name == "feature-map" else None)

    def scores(self, hide: tuple[SaliencySource, float] | None = None) -> Scores:
        """Test, with this share of the cells hidden that the source finds most salient."""
        batches = labelled_images(self.recipe, make_loader(self.recipe, self.data, self.accelerator, train=False))
        return evaluate(self.network, batches if hide is None else _occluded(batches, *hide), self.accelerator)


def _occluded(
    batches: Iterable[tuple[Tensor, Tensor]], source: SaliencySource, share: float
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in batches:
        yield occlude(images, resize_saliency(source(images, labels), GRID), share), labels
