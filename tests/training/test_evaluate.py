"""Evaluation: counts against a hand count, mode put back, a run's numbers found again, also under occlusion."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft.config.recipe_file import load_recipe
from saligraft.data.occlude import occlude
from saligraft.saliency import SaliencyCapture
from saligraft.saliency.rescale import resize_saliency
from saligraft.training import Recipe, SilentReporter, evaluate, evaluate_run, make_recipe, train
from saligraft.training.accelerator import make_accelerator
from saligraft.training.evaluate import evaluate_occluded
from saligraft.training.run_folder import load_weights
from saligraft.training.setup import labelled_images, load_split, make_loader, make_network


class Echo(nn.Module):
    """Takes logits for images."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        return images


def test_scores_equal_a_count_by_hand(generator: torch.Generator) -> None:
    logits = torch.randn(37, 9, generator=generator)
    labels = torch.randint(9, (37,), generator=generator)
    scores = evaluate(Echo(), zip(logits.split(10), labels.split(10), strict=True), make_accelerator(Recipe()))
    ranked = [sorted(range(9), key=lambda k, row=row: -row[k]) for row in logits.tolist()]
    wrong1 = sum(label != rank[0] for rank, label in zip(ranked, labels.tolist(), strict=True))
    wrong5 = sum(label not in rank[:5] for rank, label in zip(ranked, labels.tolist(), strict=True))
    assert scores.top1_error == pytest.approx(100 * wrong1 / 37)
    assert scores.top5_error == pytest.approx(100 * wrong5 / 37)
    assert scores.test_loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)


def test_fewer_than_five_classes_never_miss_the_top_five() -> None:
    logits, labels = torch.eye(3), torch.tensor([1, 1, 1])
    scores = evaluate(Echo(), [(logits, labels)], make_accelerator(Recipe()))
    assert scores.top1_error == pytest.approx(200 / 3)
    assert scores.top5_error == 0


def test_the_network_s_mode_is_put_back() -> None:
    for training in (True, False):
        network = Echo().train(training)
        evaluate(network, [(torch.eye(3), torch.arange(3))], make_accelerator(Recipe()))
        assert network.training is training


def test_no_test_image_is_an_error() -> None:
    with pytest.raises(ValueError, match="test set must hold at least one image"):
        evaluate(Echo(), [], make_accelerator(Recipe()))


@pytest.mark.parametrize(("precision", "method"), [("fp32", "none"), ("bf16", "none"), ("bf16", "saliency-grafting")])
def test_a_run_s_final_numbers_are_found_again(
    tiny_table: dict[str, Any], tmp_path: Path, precision: str, method: str
) -> None:
    tiny_table["training"].update(precision=precision, channels_last=True)
    recipe = make_recipe({**tiny_table, "method": {"name": method}})
    train(recipe, tmp_path / "run", reporter=SilentReporter())
    scores = evaluate_run(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert scores.top1_error == result["top1_error"]["final"]
    assert scores.top5_error == result["top5_error"]["final"]
    assert scores.test_loss == result["test_loss"]


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it holds no recipe.toml"):
        evaluate_run(tmp_path)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two networks of the same data; the second a run of another seed and width."""
    folder = tmp_path_factory.mktemp("runs")
    table: dict[str, Any] = {
        "data": {"options": {"size": 16, "per_class": 4}, "pad": 2},
        "training": {"epochs": 1, "batch_size": 16},
    }
    for name, network, seed in (("own", "wrn-10-1", 0), ("other", "wrn-10-2", 1)):
        recipe = make_recipe({**table, "network": {"name": network}, "seed": seed})
        train(recipe, folder / name, reporter=SilentReporter())
    return folder / "own", folder / "other"


def by_hand(tested: Path, asked: Path, share: float) -> tuple[float, float]:
    """Error and loss over the test images as one batch, hidden by the map of the network of `asked`."""
    networks = []
    for folder in (tested, asked):
        recipe = load_recipe(folder / "recipe.toml")
        data = load_split(recipe, "test")
        networks.append(make_network(recipe, data).eval())
        load_weights(folder, networks[-1])
    batches = list(labelled_images(recipe, make_loader(recipe, data, make_accelerator(recipe), train=False)))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        saliency = SaliencyCapture(networks[1])(images)[1]
        logits = networks[0](occlude(images, resize_saliency(saliency, 8), share))
    return 100 * (logits.argmax(1) != labels).double().mean().item(), F.cross_entropy(logits, labels).item()


def test_occlusion_hides_what_the_tested_network_finds_salient(two_runs: tuple[Path, Path]) -> None:
    own, _ = two_runs
    scores = evaluate_occluded(own, [0.125, 0.25])
    for share, score in zip([0.125, 0.25], scores, strict=True):
        error, loss = by_hand(own, own, share)
        assert score.top1_error == pytest.approx(error)
        assert score.test_loss == pytest.approx(loss, rel=1e-5)


def test_occlusion_of_nothing_is_the_plain_evaluation(two_runs: tuple[Path, Path]) -> None:
    own, other = two_runs
    plain = evaluate_run(own)
    assert evaluate_occluded(own, [0.0, 0.125])[0] == plain
    assert evaluate_occluded(own, [0.0], reference=other) == [plain]


def test_occlusion_by_another_run_s_network(two_runs: tuple[Path, Path]) -> None:
    own, other = two_runs
    [score] = evaluate_occluded(own, [0.25], reference=other)
    error, loss = by_hand(own, other, 0.25)
    assert score.top1_error == pytest.approx(error)
    assert score.test_loss == pytest.approx(loss, rel=1e-5)
    assert score != evaluate_occluded(own, [0.25])[0]


def test_a_reference_of_other_data_is_refused(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    own, other = two_runs
    text = (other / "recipe.toml").read_text()
    (tmp_path / "recipe.toml").write_text(text[: text.index("[data]")] + '[data]\nname = "cifar10"\n')
    with pytest.raises(ValueError, match="reference must be a run on shapes, got one on cifar10"):
        evaluate_occluded(own, [0.25], reference=tmp_path)
