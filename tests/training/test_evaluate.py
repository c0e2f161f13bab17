"""Evaluation: counts against a hand count, mode put back, a run's numbers found again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft.training import Recipe, SilentReporter, evaluate, evaluate_run, make_recipe, train
from saligraft.training.accelerator import make_accelerator


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
