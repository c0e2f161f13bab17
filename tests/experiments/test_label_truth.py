"""Label truth: shares counted by hand, SciPy's rank correlation, and the labels of real methods on `shapes`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.runs import train_tiny

import saligraft as sg
from saligraft.data.keyed_draws import key
from saligraft.experiments.label_truth import (
    LabelTruth,
    cell_entropy,
    evaluate_label_truth,
    label_weights,
    rank_correlation,
)
from saligraft.training import SavedRun, load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("label-truth")
    method = {"name": "saliency-grafting", "options": {"temperature": 0.1, "grids": [4]}}
    train_tiny(folder / "run", method=method, training={"epochs": 1, "batch_size": 16})
    return load_run(folder / "run")


def test_calibrated_weight_is_the_label_of_saliency_grafting(generator: torch.Generator) -> None:
    images, labels = torch.rand(8, 3, 16, 16, generator=generator), torch.arange(8)
    saliency = torch.rand(8, 8, 8, generator=generator)
    for grid in (4, 8):
        mixed = sg.SaliencyGrafting(grids=(grid,))(images, labels, saliency, generator=generator)
        weights = label_weights(mixed, saliency)
        torch.testing.assert_close(weights["calibrated"], mixed.source_weight)
        area = sg.SaliencyGrafting(grids=(grid,), label_mixing="area")
        drawn = area.draw(images, generator=generator)
        mixed = area.apply(images, labels, saliency, drawn)
        torch.testing.assert_close(label_weights(mixed, saliency)["area"], mixed.source_weight)


def test_rank_correlation_equals_scipy(generator: torch.Generator) -> None:
    first = torch.randint(0, 9, (200,), generator=generator).double()  # many ties
    second = first + 4 * torch.rand(200, generator=generator)
    assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert rank_correlation(first, -first) == pytest.approx(-1)
    assert rank_correlation(first, torch.ones(200)) is None


def test_entropy_of_cells() -> None:
    always = torch.zeros(8, 1, 16, 16)
    always[..., :8] = 1
    assert cell_entropy(always).tolist() == [0]
    half = torch.zeros(8, 1, 16, 16)
    half[::2] = 1
    assert cell_entropy(half).tolist() == pytest.approx([1])
    quarter = torch.zeros(8, 1, 16, 16)
    quarter[:2, :, :8] = 1  # half of the cells in a quarter of the draws
    assert cell_entropy(quarter).tolist() == pytest.approx([stats.entropy([0.25, 0.75], base=2) / 2])


def test_methods_on_shapes(run: SavedRun) -> None:
    found = evaluate_label_truth(run, draws=4)
    assert list(found) == ["mixup", "cutmix", "attentive-cutmix", "saliencymix", "saliency-grafting"]
    mixup, grafting = found["mixup"], found["saliency-grafting"]
    assert mixup.error["own"] == pytest.approx(0, abs=1e-6)  # a blend shows of both objects what its label says
    assert mixup.diversity is None
    assert grafting.error["own"] == pytest.approx(grafting.error["calibrated"], abs=1e-6)
    assert found["cutmix"].error["own"] == found["cutmix"].error["area"]
    assert found["attentive-cutmix"].diversity == 0  # the same cells in every draw
    assert 0 < grafting.diversity <= 1  # type: ignore[operator]
    for truth in found.values():
        assert 0 < truth.pairs <= 40 * 4
        assert all(0 <= error <= 1 for error in truth.error.values())
        assert all(0 <= share <= 100 for share in truth.unseen.values())
    assert evaluate_label_truth(run.folder, draws=4) == found


class Fixed(sg.CutMix):
    """Grafts the upper half, always."""

    def draw(self, images, *, generator=None):  # type: ignore[no-untyped-def]
        drawn = super().draw(images, generator=generator)
        height, width = images.shape[2:]
        return drawn._replace(box=torch.tensor([[0, 0, height // 2, width]]).expand(len(images), 4))


def test_a_fixed_mask_by_hand(run: SavedRun) -> None:
    truth = evaluate_label_truth(run, methods={"half": Fixed()}, draws=2, seed=5)["half"]
    masks, labels = run.data.masks.numpy(), run.data.labels.numpy()  # type: ignore[attr-defined]
    # 40 shuffled images in batches of 16, each on the one before it in its batch.
    order = torch.randperm(40, generator=torch.Generator().manual_seed(key(5))).numpy()
    true = []
    for start in range(0, 40, 16):
        batch = order[start : start + 16]
        for i, j in zip(batch, np.roll(batch, 1), strict=True):
            if labels[i] != labels[j]:
                source = masks[i][:8].sum() / masks[i].sum()
                destination = masks[j][8:].sum() / masks[j].sum()
                if source + destination:
                    true.append(source / (source + destination))
    assert truth.pairs == 2 * len(true)
    assert truth.error["own"] == pytest.approx(np.abs(0.5 - np.array(true)).mean())
    assert truth.rank_correlation["own"] is None
    assert truth.unseen["own"] == 0  # no label exceeds 0.5
    assert truth.diversity == 0


def test_labels_that_name_the_unseen(run: SavedRun) -> None:
    """The source's label always has weight 1, but only its upper half shows: wrong where the object lies below."""

    class Wrong(Fixed):
        def apply(self, images, labels, saliency, drawn):  # type: ignore[no-untyped-def]
            return super().apply(images, labels, saliency, drawn)._replace(source_weight=torch.ones(len(images)))

    masks = torch.zeros_like(run.data.masks)  # type: ignore[attr-defined]
    masks[::2, 12:, 4:8] = True  # unseen as a source, in the lower half
    masks[1::2, 2:6, 4:8] = True
    blind = replace(run, test_data=replace(run.data, masks=masks))
    truth: LabelTruth = evaluate_label_truth(blind, methods={"wrong": Wrong()}, draws=2)["wrong"]
    assert 20 < truth.unseen["own"] < 80
    assert truth.unseen["area"] == 0


def test_boxes_serve_where_there_are_no_masks(run: SavedRun) -> None:
    boxed = replace(run, test_data=replace(run.data, masks=None))
    truth = evaluate_label_truth(boxed, draws=2, methods={"cutmix": sg.CutMix()})["cutmix"]
    masked = evaluate_label_truth(run, draws=2, methods={"cutmix": sg.CutMix()})["cutmix"]
    assert truth.error["own"] == pytest.approx(masked.error["own"], abs=0.1)
    assert truth != masked


def test_what_cannot_be_measured_is_refused(run: SavedRun) -> None:
    with pytest.raises(ValueError, match=r"label truth needs data with masks or boxes, .* got shapes"):
        evaluate_label_truth(replace(run, test_data=replace(run.data, masks=None, boxes=None)))
    with pytest.raises(ValueError, match="leave pixels in place, got puzzlemix, which moves them"):
        evaluate_label_truth(run, methods={"puzzlemix": sg.PuzzleMix()})
    with pytest.raises(ValueError, match="needs single methods, got both, which is made of several"):
        evaluate_label_truth(run, methods={"both": sg.RandomChoice([sg.Mixup(), sg.CutMix()])})
    with pytest.raises(ValueError, match="draws must be >= 2, got 1"):
        evaluate_label_truth(run, draws=1)


def test_puzzlemix_without_transport(run: SavedRun) -> None:
    method = sg.PuzzleMix(transport_cost=None, pixel_mean=run.data.mean, pixel_std=run.data.std)
    truth = evaluate_label_truth(run, methods={"puzzlemix": method}, draws=2, images=16)["puzzlemix"]
    assert 0 <= truth.error["own"] < 0.5
