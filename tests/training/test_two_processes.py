"""Two processes on the CPU: their mean gradient is that of one on both batches, and each test image counts once.

The processes are started once for all tests here; Accelerate joins them by gloo as it does under torchrun.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import run_in_two
from torch import Tensor, nn

import saligraft as sg
from saligraft.data import ImageData
from saligraft.methods.saliency_grafting import GraftDraws
from saligraft.training import checkpoint, evaluate, make_recipe
from saligraft.training.accelerator import make_accelerator, shared_errors
from saligraft.training.plan import mean_seconds_since
from saligraft.training.setup import labelled_images, make_loader
from saligraft.training.stopping import check_losses, check_weights

HALF, CLASSES, GRID = 4, 5, 2
TEST_IMAGES = 13  # odd: the processes get unequal shares, and in batches of 2 a last partial one


class GroupNormNetwork(nn.Module):
    """Its pass treats each image alone, so halves of a batch may go through separately."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.activation = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        self.head = nn.Linear(8, CLASSES)
        self.double()

    def forward(self, images: Tensor) -> Tensor:  # in a frame of its own, which torch.compile sees as a user's
        features = self.activation(self.second(self.norm(self.first(images))))
        return self.head(features.mean(dim=(2, 3)))


class Pinned(sg.SaliencyGrafting):
    """Grafts by given draws."""

    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> GraftDraws:
        del images, generator
        return PINNED[-1]


PINNED: list[GraftDraws] = []


def joined_batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, labels, partners that stay within each half, and chosen cells."""
    stream = torch.Generator().manual_seed(1)
    images = torch.randn(2 * HALF, 3, 8, 8, generator=stream, dtype=torch.float64)
    labels = torch.randint(CLASSES, (2 * HALF,), generator=stream)
    partner = torch.cat([torch.randperm(HALF, generator=stream), HALF + torch.randperm(HALF, generator=stream)])
    return images, labels, partner, torch.rand(2 * HALF, GRID, GRID, generator=stream) < 0.7


def gradients(
    model: nn.Module, accelerator: Any, part: slice = slice(None), *, compiled: bool = False
) -> tuple[list[Tensor], float]:
    """Gradients of the second of two like grafting steps on a part of the joined batch, and how much was grafted."""
    images, labels, partner, chosen = joined_batch()
    PINNED.append(GraftDraws(partner[part] - (part.start or 0), GRID, chosen[part]))
    compile_by = "aot_eager" if compiled else False
    step = sg.GraftingStep(model, Pinned(temperature=1.0, grids=(GRID,)), compile=compile_by)
    for _ in range(2):
        model.zero_grad()
        out = step(images[part], labels[part])
        accelerator.backward(out.loss)
    assert out.mixed is not None
    return [parameter.grad for parameter in model.parameters()], float(out.mixed.mask.double().mean())


class Noted(nn.Module):
    """Guesses a class from an image's brightness, and notes the images it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        numbers = (images[:, 0, 0, 0] * 255).round().long()
        self.seen += numbers.tolist()
        return torch.sin(numbers[:, None] * torch.arange(1.0, CLASSES + 1))


def shown_and_scored(accelerator: Any) -> tuple[list[int], tuple[float, ...]]:
    """Which test images this process saw, and the scores of all."""
    numbers = torch.arange(TEST_IMAGES)
    data = ImageData(
        name="numbers",
        images=numbers.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).contiguous(),
        labels=numbers % CLASSES,
        classes=tuple("abcde"),
        mean=(0.0,),
        std=(1.0,),
    )
    recipe = make_recipe({"training": {"batch_size": 4}})
    network = Noted()
    loader = make_loader(recipe, data, accelerator, train=False)
    scores = evaluate(network, labelled_images(recipe, loader), accelerator)
    return network.seen, tuple(scores)


def error_of(act: Callable[[], Any]) -> str:
    """Kind and words of the error that an act ends with in this process."""
    try:
        act()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def faults(accelerator: Any) -> dict[str, str]:
    """What this process makes of a mistake of both, of numbers broken in the second, and of clocks that differ."""
    rank, second = accelerator.process_index, accelerator.process_index == 1
    network = nn.BatchNorm1d(2)
    network.running_mean[1] = math.inf if second else 0.0
    losses = [torch.tensor(value) for value in (1.0, 2.0, -math.inf if second else 3.0)]
    clock = time.perf_counter() - 100 * rank
    return {
        "both": error_of(lambda: shared_errors(accelerator)(int)("a")),
        "loss": error_of(lambda: check_losses(losses, accelerator, 0, 9)),
        "weights": error_of(lambda: check_weights(network, accelerator, 0)),
        "impatience": str(round(mean_seconds_since(clock, accelerator))),
    }


def errors_of_second(accelerator: Any, folder: Path) -> list[str]:
    """What this process makes of a mistake, and of a full disk, that the second one finds."""
    second = accelerator.process_index == 1
    errors = []
    try:
        with shared_errors(accelerator):
            if second:
                raise ValueError("a mistake")
    except ValueError as error:
        errors.append(f"{type(error).__name__}: {error}")
    checkpoint.save(folder, 1, {}, {}, {}, accelerator)
    with pytest.MonkeyPatch.context() as patched:
        if second:
            patched.setattr(checkpoint, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        try:
            checkpoint.save(folder, 2, {}, {}, {}, accelerator)
        except (OSError, ValueError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    newest = checkpoint.latest(folder, accelerator)
    assert newest is not None
    return [*errors, newest.path.name]


def one_of_two(rank: int, folder: Path) -> None:
    accelerator = make_accelerator(make_recipe({}))
    assert accelerator.num_processes == 2
    model = accelerator.prepare(GroupNormNetwork())
    half = slice(HALF * rank, HALF * (rank + 1))
    for compiled in (False, True):
        own, _ = gradients(model, accelerator, half, compiled=compiled)
        torch.save(own, folder / f"{rank}-{compiled}.pt")
    (folder / f"{rank}.json").write_text(json.dumps(shown_and_scored(accelerator)))
    (folder / f"faults-{rank}.json").write_text(json.dumps(faults(accelerator)))
    (folder / f"{rank}-errors.json").write_text(json.dumps(errors_of_second(accelerator, folder)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    path = tmp_path_factory.mktemp("two-processes")
    run_in_two(one_of_two, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_the_mean_gradient_is_that_of_one_process_on_the_joined_batch(folder: Path, compiled: bool) -> None:
    expected, grafted = gradients(GroupNormNetwork(), make_accelerator(make_recipe({})))
    assert 0.1 < grafted < 0.9
    for rank in (0, 1):
        own = torch.load(folder / f"{rank}-{compiled}.pt", weights_only=True)
        for ours, theirs in zip(own, expected, strict=True):
            assert theirs.abs().max() > 0
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.slow
def test_each_test_image_counts_once(folder: Path) -> None:
    seen, scores = shown_and_scored(make_accelerator(make_recipe({})))
    assert seen == list(range(TEST_IMAGES))
    parts = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert sorted(parts[0][0] + parts[1][0]) == seen
    assert parts[0][1] == parts[1][1]
    assert parts[0][1] == pytest.approx(scores)
    assert 0 < scores[1] < 100


@pytest.mark.slow
def test_what_both_find_is_told_once_and_what_breaks_in_one_ends_both(folder: Path) -> None:
    first, second = (json.loads((folder / f"faults-{rank}.json").read_text()) for rank in range(2))
    words = "invalid literal for int() with base 10: 'a'"
    assert (first["both"], second["both"]) == (f"ValueError: {words}", f"OtherProcessError: {words}")
    for name, expected in (("loss", "at batch 3 of 9 (loss -inf)"), ("weights", "(weights inf)")):
        assert expected in first[name]
        assert expected in second[name]


@pytest.mark.slow
def test_processes_lose_patience_together(folder: Path) -> None:
    """One that took a step more than the other would wait for it forever."""
    waits = [json.loads((folder / f"faults-{rank}.json").read_text())["impatience"] for rank in range(2)]
    assert waits == ["50", "50"]


@pytest.mark.slow
def test_what_one_process_finds_ends_both_and_is_told_once(folder: Path) -> None:
    first, second = (json.loads((folder / f"{rank}-errors.json").read_text()) for rank in (0, 1))
    assert first[0] == "OtherProcessError: a mistake"
    assert second[0] == "ValueError: a mistake"
    assert first[1].startswith("OtherProcessError: checkpoint ")
    assert second[1].startswith("OSError: checkpoint ")
    assert second[1].endswith("could not be written: No space left; the last good one is step-00000001")
    for errors in (first, second):
        assert errors[1].endswith("No space left; the last good one is step-00000001")
        assert errors[2] == "step-00000001"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000001"]
