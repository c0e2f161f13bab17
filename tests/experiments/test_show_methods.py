"""Every method on the same pairs."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reports.pages import assert_self_contained
from torch import Tensor

from saligraft.data import ImageData, load
from saligraft.experiments.paper.figures import FIGURE_1
from saligraft.experiments.show import Lens, Scene, choose, is_own_picture, untrained_network
from saligraft.experiments.show_methods import (
    PAIRS,
    SHOWINGS,
    TOP_K,
    choose_pairs,
    chosen_methods,
    compare,
    method_names,
    purposes,
    write_comparison,
)
from saligraft.methods import REGISTRY
from saligraft.reports import tiles
from saligraft.reports.figures import COLUMNS
from saligraft.reports.gallery import ComparedPair, MethodSamples


@pytest.fixture(scope="module")
def pool() -> ImageData:
    return choose(load("shapes", split="test", per_class=2), 20, seed=0)


@pytest.fixture(scope="module")
def lens(pool: ImageData) -> Lens:
    return untrained_network("wrn-10-1", pool, seed=0)


@pytest.fixture(scope="module")
def pairs(pool: ImageData, lens: Lens) -> list[ComparedPair]:
    return compare(method_names(), lens, pool, count=2, seed=0)


def by_name(pair: ComparedPair) -> dict[str, MethodSamples]:
    return {method.name: method for method in pair.methods}


def test_all_methods_of_all_kinds_are_shown(pairs: list[ComparedPair]) -> None:
    for pair in pairs:
        assert set(by_name(pair)) == {*REGISTRY, TOP_K}
        for method in pair.methods:
            assert method.samples, method.name
            assert method.note or method.name not in SHOWINGS
            assert not method.missing


def test_the_pictures_of_figure_1_fill_their_rows() -> None:
    pair_and_maps = 4
    assert (pair_and_maps + sum(SHOWINGS[name].results for name in FIGURE_1)) % COLUMNS == 0


def test_saliency_grafting_and_cutmix_differ_from_draw_to_draw(pairs: list[ComparedPair]) -> None:
    for pair in pairs:
        for name in ("saliency-grafting", "cutmix"):
            pictures = {sample.picture.tobytes() for sample in by_name(pair)[name].samples}
            assert len(pictures) >= 3
            assert all(0 < (sample.source_weight or 0) < 1 for sample in by_name(pair)[name].samples)
        for name in (TOP_K, "attentive-cutmix", "saliencymix", "puzzlemix"):
            assert len(by_name(pair)[name].samples) == 1


def test_methods_that_draw_nothing_but_partners_give_the_same_whatever_the_seed(pool: ImageData, lens: Lens) -> None:
    names = (TOP_K, "attentive-cutmix")
    first, second = (compare(names, lens, pool, count=1, seed=seed)[0] for seed in (0, 1))
    for one, other in zip(first.methods, second.methods, strict=True):
        assert np.array_equal(one.samples[0].picture, other.samples[0].picture)


def test_a_method_shows_the_same_whichever_others_are_shown(pairs: list[ComparedPair], pool, lens) -> None:
    alone = compare(("cutmix",), lens, pool, count=2, seed=0)
    for pair, complete in zip(alone, pairs, strict=True):
        assert np.array_equal(pair.source, complete.source)
        for one, other in zip(pair.methods[0].samples, by_name(complete)["cutmix"].samples, strict=True):
            assert np.array_equal(one.picture, other.picture)


def test_mixup_is_the_blend_of_this_very_pair(pairs: list[ComparedPair]) -> None:
    for pair in pairs:
        sample = by_name(pair)["mixup"].samples[0]
        source, destination = (tiles.enlarge(picture).astype(float) for picture in (pair.source, pair.destination))
        weight = sample.source_weight or 0.0
        assert np.abs(weight * source + (1 - weight) * destination - sample.picture).max() <= 1


def test_pasting_methods_show_only_pixels_of_the_pair(pairs: list[ComparedPair]) -> None:
    for pair in pairs:
        source, destination = tiles.enlarge(pair.source), tiles.enlarge(pair.destination)
        for name in ("saliency-grafting", TOP_K, "attentive-cutmix", "saliencymix", "cutmix"):
            for sample in by_name(pair)[name].samples:
                line = (sample.picture == tiles.SOURCE_COLOUR).all(-1)
                from_source = np.abs(sample.picture.astype(int) - source).max(-1) <= 1
                from_destination = np.abs(sample.picture.astype(int) - destination).max(-1) <= 1
                assert (line | from_source | from_destination).all(), name


def test_labels_follow_the_weights(pairs: list[ComparedPair]) -> None:
    for pair in pairs:
        for method in pair.methods:
            for sample in method.samples:
                shares = pair.shares(sample)
                assert sum(share.percent for share in shares) == 100
                assert shares[0].name == pair.source_class
        alone = (*by_name(pair)["cutout"].samples, *by_name(pair)["augmix"].samples)
        assert all(pair.shares(sample) == [("source", pair.source_class, 1.0, 100)] for sample in alone)


def test_manifold_mixup_says_at_which_layer(pairs: list[ComparedPair]) -> None:
    first, *others = by_name(pairs[0])["manifold-mixup"].samples
    assert first.detail == "input, as Mixup"
    assert {sample.detail for sample in others} == {"at stages.0", "at stages.1"}


def test_each_method_sees_the_saliency_of_its_authors(pairs: list[ComparedPair]) -> None:
    methods = by_name(pairs[0])
    assert methods["puzzlemix"].note.endswith("input gradient")
    assert methods["saliencymix"].note.endswith("fine-grained")
    assert methods["saliency-grafting"].note.endswith("feature map")
    assert len({methods[name].maps[0].tobytes() for name in ("puzzlemix", "saliencymix", "saliency-grafting")}) == 3
    assert not methods["cutmix"].maps


def test_without_a_solver_only_puzzlemix_is_missing_and_says_so(pool: ImageData, lens: Lens, monkeypatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, module)
    for solver in ("scipy", "maxflow"):
        monkeypatch.setitem(sys.modules, solver, None)
    (pair,) = compare(("puzzlemix", "cutmix"), lens, pool, count=1, seed=0, lenient=True)
    assert "scipy" in by_name(pair)["puzzlemix"].missing
    assert not by_name(pair)["puzzlemix"].samples
    assert by_name(pair)["cutmix"].samples
    with pytest.raises(ImportError, match="scipy"):
        compare(("puzzlemix", "cutmix"), lens, pool, count=1, seed=0)


def test_images_of_classes_unknown_to_the_network_are_shown_too(pool: ImageData, lens: Lens) -> None:
    other = ImageData(
        name="others", images=pool.images[:3], labels=torch.tensor([0, 20, 31]), mean=pool.mean, std=pool.std,
        classes=tuple(f"class {i}" for i in range(32)),
    )  # fmt: skip
    (pair,) = compare(("puzzlemix",), lens, other, count=1, seed=0)
    assert pair.methods[0].samples
    guessed = lens.labels_of(other.images.float() / 255, other.labels, other.classes)
    assert int(guessed.max()) < len(pool.classes)
    assert torch.equal(lens.labels_of(pool.images.float() / 255, pool.labels, pool.classes), pool.labels)


@pytest.mark.parametrize(
    ("labels", "count", "expected"),
    [
        (torch.tensor([0, 1]), 4, [(0, 1), (1, 0)]),
        (torch.tensor([0, 0, 1, 2]), 2, [(0, 2), (1, 3)]),
        (torch.tensor([3, 3]), 1, [(0, 1)]),
    ],
)
def test_pairs_prefer_two_classes_and_images_not_shown(labels: Tensor, count: int, expected: list) -> None:
    assert choose_pairs(labels, count) == expected


def test_one_image_makes_no_pair() -> None:
    with pytest.raises(ValueError, match="at least 2 to make a pair, got 1"):
        choose_pairs(torch.tensor([0]), 1)


def test_names_come_in_the_order_of_the_page_and_unknown_ones_list_the_valid() -> None:
    assert chosen_methods("all") == method_names()
    assert chosen_methods(" mixup, saliency-grafting,mixup") == ("saliency-grafting", "mixup")
    for words in ("mixup,mixdown", "", ",", "all,mixup-"):
        with pytest.raises(ValueError, match="'saliency-grafting'"):
            chosen_methods(words)


def test_every_method_is_described_in_words() -> None:
    words = purposes(method_names())
    assert len(words) == len(method_names())
    assert all(len(text) > 20 and text[0].isupper() for text in words.values())


def test_a_comparison_has_four_pairs_by_default_and_optionally_a_picture_per_method(
    pool: ImageData, lens: Lens, tmp_path: Path
) -> None:
    scene = Scene(pool=pool, lens=lens, out=tmp_path, rows=None, seed=0)
    written = write_comparison(scene, "mixup, cutmix", tmp_path / "cards")
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert names[:2] == ["methods.png", "methods.html"]
    assert all(is_own_picture(path) for path in written if path.suffix == ".png")
    assert set(names[2:]) == {"cards/mixup.png", "cards/cutmix.png"}
    page = assert_self_contained(written[1].read_text(encoding="utf-8"))
    assert "Methods on the same pairs" in page.text
    assert len(page.with_class("compared")) == PAIRS
    assert len(page.with_class("explorer")) == 1
    assert "unknown to the network" not in page.text
    other_classes = replace(scene, lens=replace(lens, classes=("cat", "dog")), rows=1)
    assert "unknown to the network" in write_comparison(other_classes, "mixup")[1].read_text(encoding="utf-8")
