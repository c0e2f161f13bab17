"""Test a network: top-1 and top-5 error and mean loss, each test image counted once over all processes."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft.training.accelerator import make_accelerator, sum_over_processes
from saligraft.training.recipe_file import load_recipe
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
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        raise ValueError(f"{folder} is not a run folder: it holds no {RECIPE}")
    recipe = load_recipe(folder / RECIPE, overrides)
    accelerator = make_accelerator(recipe, to_train=False)
    data = load_split(recipe, "test")
    network = make_network(recipe, data)
    load_weights(folder, network)
    network = accelerator.unwrap_model(accelerator.prepare_model(network, evaluation_mode=True))
    loader = make_loader(recipe, data, accelerator, train=False)
    return evaluate(network, labelled_images(recipe, loader), accelerator)
