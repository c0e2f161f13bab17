"""Evaluation: counts against a hand count, mode put back, a run's numbers found again, also under occlusion."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special
from torch import Tensor, nn

from saligraft.config.recipe_file import load_recipe
from saligraft.data.corruptions import corrupt
from saligraft.data.occlude import occlude
from saligraft.saliency import FeatureMap, SaliencyCapture
from saligraft.saliency.rescale import resize_saliency
from saligraft.training import (
    ClassErrors,
    Recipe,
    SilentReporter,
    calibration,
    evaluate,
    evaluate_calibration,
    evaluate_classes,
    evaluate_corruptions,
    evaluate_localization,
    evaluate_run,
    load_run,
    make_recipe,
    record_evaluation,
    train,
)
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


def test_the_mode_of_each_module_is_put_back() -> None:
    for training in (True, False):
        network = nn.Sequential(Echo(), nn.BatchNorm1d(3)).train(training)
        network[1].train(not training)
        evaluate(network, [(torch.eye(3), torch.arange(3))], make_accelerator(Recipe()))
        assert [module.training for module in network.modules()] == [training, training, not training]


def test_the_network_s_mode_is_put_back_after_an_error() -> None:
    network = Echo().train()
    with pytest.raises(IndexError):
        evaluate(network, [(torch.eye(3), torch.tensor([0, 1, 9]))], make_accelerator(Recipe()))
    assert network.training


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


def answers(folder: Path) -> tuple[Tensor, Tensor, Tensor, nn.Module]:
    """Images, labels and logits of a run's test set as one batch, and its network, without the code under test."""
    recipe = load_recipe(folder / "recipe.toml")
    data = load_split(recipe, "test")
    network = make_network(recipe, data).eval()
    load_weights(folder, network)
    batches = list(labelled_images(recipe, make_loader(recipe, data, make_accelerator(recipe), train=False)))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        return images, labels, network(images), network


def test_predictions_are_the_network_s_in_the_order_of_the_data(two_runs: tuple[Path, Path]) -> None:
    _, labels, logits, _ = answers(two_runs[0])
    predictions = load_run(two_runs[0]).predictions
    assert torch.equal(predictions.labels, labels)
    torch.testing.assert_close(predictions.logits, logits, rtol=1e-4, atol=1e-5)
    assert predictions.scores == evaluate_run(two_runs[0])
    np.testing.assert_allclose(predictions.confidence, special.softmax(logits.numpy(), axis=1).max(1), rtol=1e-4)


def test_one_pass_serves_all_evaluations_of_predictions(
    two_runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = load_run(two_runs[0]), []
    monkeypatch.setattr(
        run.network, "forward", lambda images: calls.append(len(images)) or torch.zeros(len(images), 10)
    )
    for evaluation in (evaluate_run, evaluate_calibration, evaluate_classes):
        evaluation(run)
    assert sum(calls) == len(run.data)


def numpy_ece(confidence: Any, right: Any, bins: int) -> tuple[float, float]:
    """ECE and MCE in percent by Eq. 3 of Guo et al., bin by bin."""
    gaps, total = [], 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            gaps.append(abs(right[inside].mean() - confidence[inside].mean()))
            total += gaps[-1] * inside.mean()
    return 100 * total, 100 * max(gaps)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_calibration_equals_numpy(generator: torch.Generator, bins: int) -> None:
    confidence = torch.rand(500, generator=generator, dtype=torch.float64).clamp(min=0.01)
    confidence[:8] = torch.tensor([0.25, 0.5, 0.75, 1.0, 1 / 15, 2 / 15, 0.2, 0.4])  # edges
    right = torch.rand(500, generator=generator) < 0.6
    found = calibration(confidence, right, bins)
    ece, mce = numpy_ece(confidence.numpy(), right.numpy(), bins)
    assert found.ece == pytest.approx(ece)
    assert found.mce == pytest.approx(mce)
    assert sum(found.counts) == 500
    assert found.accuracy == pytest.approx(100 * right.double().mean().item())


def test_perfect_confidence_has_no_calibration_error() -> None:
    found = calibration(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([True, False, True]))
    assert (found.ece, found.mce) == (0, 0)
    assert calibration(torch.ones(3), torch.zeros(3, dtype=torch.bool)).ece == 100


def test_calibration_of_a_run(two_runs: tuple[Path, Path]) -> None:
    _, labels, logits, _ = answers(two_runs[0])
    probabilities = special.softmax(logits.double().numpy(), axis=1)
    ece, _ = numpy_ece(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels.numpy(), 15)
    assert evaluate_calibration(two_runs[0]).ece == pytest.approx(ece, abs=0.01)
    with pytest.raises(ValueError, match="bins must be >= 1, got 0"):
        evaluate_calibration(two_runs[0], bins=0)


def test_confusion_counts_every_image_once(two_runs: tuple[Path, Path]) -> None:
    _, labels, logits, _ = answers(two_runs[0])
    expected = np.zeros((10, 10), dtype=int)
    np.add.at(expected, (labels.numpy(), logits.argmax(1).numpy()), 1)
    found = evaluate_classes(two_runs[0])
    assert found.confusion.tolist() == expected.tolist()
    assert found.counts == [4] * 10
    assert found.errors == [pytest.approx(100 * (1 - expected[k, k] / 4)) for k in range(10)]
    assert ClassErrors(("a", "b"), torch.tensor([[3, 1], [0, 0]])).errors == [25.0, None]


def test_corruptions_are_made_before_normalisation(two_runs: tuple[Path, Path]) -> None:
    images, labels, logits, network = answers(two_runs[0])
    data = load_split(load_recipe(two_runs[0] / "recipe.toml"), "test")
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    found = evaluate_corruptions(two_runs[0], names=["contrast", "fog"])
    assert list(found.errors) == ["contrast", "fog"]
    assert found.clean == pytest.approx(100 * (logits.argmax(1) != labels).double().mean().item())
    for name, errors in found.errors.items():
        for severity, error in enumerate(errors, start=1):
            pixels = corrupt((images * std + mean).clamp(0, 1), torch.arange(len(images)), name, severity)
            with torch.no_grad():
                guesses = network((pixels - mean) / std).argmax(1)
            assert error == pytest.approx(100 * (guesses != labels).double().mean().item(), abs=2.6)  # one image of 40
    assert found.mean == pytest.approx(np.mean([*found.errors.values()]))
    with pytest.raises(ValueError, match=r"corruption must be one of .*; got 'snow'"):
        evaluate_corruptions(two_runs[0], names=["snow"])


class SeesTheObject(nn.Module):
    """A network whose last map is the object itself, and whose answer is right for even samples alone."""

    def __init__(self, masks: Tensor, labels: Tensor, pixels: Tensor) -> None:
        super().__init__()
        self.masks, self.labels, self.pixels = masks, labels, pixels
        self.trunk = nn.Conv2d(10, 10, 1, bias=False)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(10, 10, bias=False)
        nn.init.eye_(self.head.weight)
        nn.init.dirac_(self.trunk.weight)

    def forward(self, images: Tensor) -> Tensor:
        places = [int((self.pixels - image).abs().flatten(1).sum(1).argmin()) for image in images]
        features = torch.zeros(len(images), 10, *images.shape[2:])
        for row, place in enumerate(places):
            features[row, self.labels[place]] = self.masks[place].float()
            if place % 2:
                features[row, (self.labels[place] + 1) % 10] = 1
        logits: Tensor = self.head(self.pool(self.trunk(features)).flatten(1))
        return logits


def test_localization_finds_the_true_boxes_of_shapes(two_runs: tuple[Path, Path]) -> None:
    run = load_run(two_runs[0])
    images = answers(two_runs[0])[0]
    network = SeesTheObject(run.data.masks, run.data.labels, images).eval()  # type: ignore[attr-defined]
    seeing = replace(run, network=network)
    found = evaluate_localization(seeing)
    assert found.class_accuracy == 50
    # A visible object may be cut in two by what hides it: its largest part must then be most of it.
    ious = []
    for mask in run.data.masks.numpy():  # type: ignore[attr-defined]
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
        largest = labels == 1 + stats[1:, cv2.CC_STAT_AREA].argmax() if count > 1 else mask
        rows, columns = np.nonzero(largest)
        all_rows, all_columns = np.nonzero(mask)
        area = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        ious.append(area / ((np.ptp(all_rows) + 1) * (np.ptp(all_columns) + 1)))
    right = np.arange(len(ious)) % 2 == 0
    assert found.gt_known == pytest.approx(100 * np.mean(np.array(ious) > 0.5))
    assert found.accuracy == pytest.approx(100 * np.mean((np.array(ious) > 0.5) & right))
    assert found.mean_iou == pytest.approx(100 * np.mean(ious))
    assert found.gt_known > 90
    assert found.map_size == (16, 16)


def test_localization_of_a_trained_network_by_hand(two_runs: tuple[Path, Path]) -> None:
    """CAM from features and head, OpenCV for the rest."""
    images, labels, logits, network = answers(two_runs[0])
    data = load_split(load_recipe(two_runs[0] / "recipe.toml"), "test")
    with torch.no_grad():
        maps = torch.einsum("bchw,bc->bhw", network.forward_features(images), network.head.weight[labels])  # type: ignore[operator,index,union-attr]
    hits = []
    for values, (x0, y0, x1, y1) in zip(maps.numpy(), data.boxes.tolist(), strict=True):  # type: ignore[union-attr]
        large = cv2.resize(values, (16, 16), interpolation=cv2.INTER_LINEAR)
        large = large - large.min()
        _, _, stats, _ = cv2.connectedComponentsWithStats((large > 0.15 * large.max()).astype(np.uint8), connectivity=8)
        left, top, width, height, _ = stats[1 + stats[1:, cv2.CC_STAT_AREA].argmax()]
        own, true = np.zeros((16, 16), bool), np.zeros((16, 16), bool)
        own[top : top + height, left : left + width] = True
        true[y0:y1, x0:x1] = True
        hits.append((own & true).sum() / (own | true).sum() > 0.5)
    found = evaluate_localization(two_runs[0])
    right = (logits.argmax(1) == labels).numpy()
    assert found.gt_known == pytest.approx(100 * np.mean(hits), abs=2.6)  # one image of 40 may round otherwise
    assert found.accuracy == pytest.approx(100 * np.mean(hits & right), abs=2.6)


FROZEN = {"name": "resnet-10-small"}


@pytest.mark.parametrize(
    ("saliency", "layer"),
    [
        ({"layer": "stages.1"}, "stages.1"),
        ({"name": "cam", "layer": "final_activation"}, None),
        ({"layer": "stages.3", "network": FROZEN}, None),
    ],
    ids=["feature-map", "another source", "a frozen network"],
)
def test_maps_of_a_run_are_of_its_own_network_whatever_its_method_used(
    saliency: dict[str, Any], layer: str | None, two_runs: tuple[Path, Path]
) -> None:
    run = load_run(two_runs[0])
    recipe = make_recipe({**run.recipe.model_dump(), "method": {"name": "saliency-grafting", "saliency": saliency}})
    changed = replace(run, recipe=recipe)
    assert evaluate_localization(changed) == evaluate_localization(run)
    batch = next(run.batches())
    expected = FeatureMap(run.network, layer)(batch.images, batch.labels)
    assert torch.equal(changed.saliency()(batch.images, batch.labels), expected)


def test_localization_needs_boxes(two_runs: tuple[Path, Path]) -> None:
    run = load_run(two_runs[0])
    with pytest.raises(ValueError, match=r"localization needs data with boxes, such as shapes, .* got shapes"):
        evaluate_localization(replace(run, test_data=replace(run.data, boxes=None)))


def test_networks_of_kept_checkpoints(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    tiny_table["training"].update(epochs=3, keep_checkpoints=3, ema_decay=0.5)
    result = train(make_recipe(tiny_table), tmp_path / "run", reporter=SilentReporter())
    epochs = {epoch: evaluate_run(run) for epoch, run in load_run(tmp_path / "run").through_training()}
    assert list(epochs) == [1, 2, 3]
    for line in result.metrics:
        assert epochs[line.epoch] == (line.test_loss, line.top1_error, line.top5_error)


def test_records_are_merged_by_name(tmp_path: Path) -> None:
    record_evaluation(tmp_path, {"a": {"x": 1}, "b": {"y": 2}})
    record_evaluation(tmp_path, {"a": {"z": 3}})
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"a": {"z": 3}, "b": {"y": 2}}
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(ValueError, match=r"evaluation.json is damaged: delete it to evaluate again"):
        record_evaluation(tmp_path, {"a": {}})
    with pytest.raises(OSError, match=r"evaluation.json could not be written: No such file or directory"):
        record_evaluation(tmp_path / "missing", {"a": {}})
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_records_made_side_by_side_are_all_kept(tmp_path: Path) -> None:
    names = [f"test-{number}" for number in range(12)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: record_evaluation(tmp_path, {name: {"error": 1.5}}), names))
    assert json.loads((tmp_path / "evaluation.json").read_text()).keys() == set(names)
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_an_overwritten_run_loses_its_evaluation(tiny_recipe: Recipe, tmp_path: Path) -> None:
    train(tiny_recipe, tmp_path / "run", reporter=SilentReporter())
    record_evaluation(tmp_path / "run", {"a": {"x": 1}})
    train(tiny_recipe, tmp_path / "run", overwrite=True, reporter=SilentReporter())
    assert not (tmp_path / "run" / "evaluation.json").exists()
