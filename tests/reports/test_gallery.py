"""The gallery: rows from real methods, their labels and their HTML; compared pairs; strips of classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.reports.pages import Page, compared_pair, part

from saligraft.data import load
from saligraft.grafting import pixel_area
from saligraft.methods import CutMix, Mixup, SaliencyGrafting
from saligraft.reports.gallery import (
    GalleryRow,
    Label,
    class_strips,
    draw_rows,
    label_shares,
    most_balanced,
    rows_of_batch,
)

CLASSES = ("star", "ring", "cross <b>")


@pytest.fixture
def batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images = torch.rand(12, 3, 32, 32, generator=generator)
    labels = torch.arange(12) % 3
    saliency = torch.rand(12, 8, 8, generator=generator) ** 4
    return images, labels, saliency


@pytest.mark.parametrize("label_mixing", ["saliency", "area"])
def test_the_used_label_is_the_methods_own_weight(batch, generator, label_mixing) -> None:
    images, labels, saliency = batch
    method = SaliencyGrafting(label_mixing=label_mixing)
    mixed = method(images, labels, saliency, generator=generator)
    areas = pixel_area(mixed.mask, 32, 32)
    rows = rows_of_batch(method, images, CLASSES, mixed, saliency)
    assert len(rows) == 12
    for i, row in enumerate(rows):
        by_area, by_saliency = row.labels
        used = by_area if label_mixing == "area" else by_saliency
        assert used.used
        assert used.source_weight == pytest.approx(float(mixed.source_weight[i]))
        assert by_area.source_weight == pytest.approx(float(areas[i]))
        assert torch.equal(row.mixed, mixed.images[i])
        assert torch.equal(row.destination, images[mixed.partner[i]])


def test_both_labels_agree_with_the_method_run_either_way(batch) -> None:
    images, labels, saliency = batch
    mixed = {
        way: SaliencyGrafting(label_mixing=way)(images, labels, saliency, generator=torch.Generator().manual_seed(5))
        for way in ("area", "saliency")
    }
    assert torch.equal(mixed["area"].mask, mixed["saliency"].mask)
    rows = rows_of_batch(SaliencyGrafting(label_mixing="area"), images, CLASSES, mixed["area"], saliency)
    for i, row in enumerate(rows):
        for label, way in zip(row.labels, ("area", "saliency"), strict=True):
            assert label.source_weight == pytest.approx(float(mixed[way].source_weight[i]), abs=1e-6)


def test_drawn_cells_lie_within_the_salient_ones(batch, generator) -> None:
    images, labels, saliency = batch
    method = SaliencyGrafting(grids=(4,), temperature=0.1)
    mixed = method(images, labels, saliency, generator=generator)
    for row in rows_of_batch(method, images, CLASSES, mixed, saliency):
        assert row.salient is not None
        assert row.salient.shape == row.mask.shape == (4, 4)
        assert not (row.mask.bool() & ~row.salient).any()


@pytest.mark.parametrize(
    ("weight", "percent"), [(0.624, [62, 38]), (0.125, [12, 88]), (1.0, [100, 0]), (0.0, [0, 100]), (None, [100])]
)
def test_shares_are_rounded_to_a_sum_of_100(weight: float | None, percent: list[int]) -> None:
    shares = label_shares("star", "ring", weight)
    assert [share.percent for share in shares] == percent
    assert sum(share.weight for share in shares) == 1
    assert [(share.kind, share.name) for share in shares] == [("source", "star"), ("destination", "ring")][
        : len(shares)
    ]


def test_one_class_on_both_sides_has_the_full_share() -> None:
    assert label_shares("star", "star", 0.3) == [("source", "star", 1.0, 100)]


def test_bars_and_spoken_labels_show_the_weight() -> None:
    black = torch.zeros(3, 8, 8)
    row = GalleryRow(
        source=black, destination=black, mixed=black, mask=torch.ones(1, 1),
        source_class="star", destination_class="ring", labels=(Label("by area", 0.624, used=True),),
    )  # fmt: skip
    html = part("gallery", [row])
    assert "width:62.4%" in html
    assert 'aria-label="star 62 % · ring 38 %"' in html


@pytest.mark.parametrize("name", ["a · b", "62 %", "<i>&", "new\nline"])
def test_any_class_name_is_shown_completely(name: str) -> None:
    rows = draw_rows(CutMix(), torch.rand(4, 3, 16, 16), torch.arange(4) % 2, (name, "ring"), count=2)
    texts = Page(part("gallery", rows)).words
    for row in rows:
        share = round(100 * row.labels[0].source_weight)
        for words in (f"{row.source_class}\u00a0{share}\u00a0%", f"{row.destination_class}\u00a0{100 - share}\u00a0%"):
            assert words in texts


@pytest.mark.parametrize(
    ("method", "titles"),
    [
        (
            SaliencyGrafting(),
            ["Source", "Saliency S", "Salient S″", "Drawn M", "Destination", "Its saliency", "Grafted"],
        ),
        (CutMix(), ["Source", "Mask M", "Destination", "Mixed"]),
        (Mixup(), ["Source", "Mask M", "Destination", "Mixed"]),
    ],
)
def test_every_method_draws_its_panels(batch, method, titles) -> None:
    images, labels, saliency = batch
    maps = saliency if method.needs_saliency else None
    rows = draw_rows(method, images, labels, CLASSES, saliency=maps, count=3)
    assert [panel.title for panel in rows[0].panels()] == titles
    page = Page(part("gallery", rows))
    assert len(page.named("article")) == 3
    assert len(page.named("img")) == 3 * len(titles)
    for row in rows:
        for label in row.labels:
            assert row.shares(label)[0].percent == pytest.approx(100 * label.source_weight, abs=0.5001)
            assert all(f"{share.name} {share.percent} %" in page.text for share in row.shares(label))


def test_the_most_balanced_row_has_weights_nearest_to_one_half(batch) -> None:
    images, labels, saliency = batch
    rows = draw_rows(SaliencyGrafting(), images, labels, CLASSES, saliency=saliency, count=5)
    distances = [abs(row.labels[1].source_weight - 0.5) for row in rows]
    assert most_balanced(rows) is rows[distances.index(min(distances))]


def test_top_k_selection_has_no_salient_panel(batch, generator) -> None:
    images, labels, saliency = batch
    method = SaliencyGrafting(selection="top-k", k=3, grids=(4,))
    mixed = method(images, labels, saliency, generator=generator)
    rows = rows_of_batch(method, images, CLASSES, mixed, saliency)
    assert rows[0].salient is None
    assert "Salient S″" not in [panel.title for panel in rows[0].panels()]


def test_rows_mix_two_classes_and_repeat_with_the_seed(batch) -> None:
    images, labels, saliency = batch
    first, again, other = (
        draw_rows(SaliencyGrafting(), images, labels, CLASSES, saliency=saliency, count=4, seed=seed)
        for seed in (3, 3, 4)
    )
    assert all(row.source_class != row.destination_class for row in first)
    assert all(torch.equal(a.mixed, b.mixed) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a.mixed, b.mixed) for a, b in zip(first, other, strict=True))


def test_a_single_image_still_gives_rows() -> None:
    rows = draw_rows(CutMix(), torch.rand(1, 3, 16, 16), torch.tensor([0]), ("star",), count=2)
    assert [row.shares(row.labels[0])[0].percent for row in rows] == [100] * 2


def test_wrong_counts_and_foreign_batches_are_refused(batch, generator) -> None:
    images, labels, _ = batch
    with pytest.raises(ValueError, match="count must be at least 1"):
        draw_rows(CutMix(), images, labels, CLASSES, count=0)
    mixed = CutMix()(images[:4], labels[:4], generator=generator)
    with pytest.raises(ValueError, match="mixed must come from images of shape"):
        rows_of_batch(CutMix(), images, CLASSES, mixed)


def test_a_compared_pair_shows_the_maps_of_the_first_method_that_has_any() -> None:
    pair = compared_pair()
    assert [panel.kind for panel in pair.originals(pair.maps)] == ["source", "destination", "", ""]
    assert all(np.array_equal(one, other) for one, other in zip(pair.maps, pair.methods[0].maps, strict=True))
    assert replace(pair, methods=pair.methods[1:]).maps == ()


@pytest.mark.parametrize(("size", "tile"), [((96, 192), (32, 64)), ((40, 64), (40, 64)), ((32, 32), (32, 32))])
def test_large_images_are_small_in_the_strips_of_classes(size: tuple[int, int], tile: tuple[int, int]) -> None:
    data = load("shapes", size=size, per_class=3)
    strips = class_strips(data, per_class=2)
    assert [strip.name for strip in strips] == list(data.classes)
    for strip in strips:
        assert strip.picture.shape == (tile[0], 2 * tile[1], 3)
        assert strip.file_type == ("PNG" if size == (32, 32) else "JPEG")


def test_where_objects_are_known_a_third_label_says_what_is_really_visible(batch, generator) -> None:
    images, labels, saliency = batch
    objects = torch.zeros(12, 32, 32, dtype=torch.bool)
    objects[:, 8:24, 8:24] = True
    method = SaliencyGrafting(grids=(4,))
    mixed = method(images, labels, saliency, generator=generator)
    rows = rows_of_batch(method, images, CLASSES, mixed, saliency, objects)
    shown = 0
    for row in rows:
        inside = row.mask[1:3, 1:3].mean()  # the four cells of the object
        assert row.labels[2].name == "object really visible"
        assert not row.labels[2].used
        assert row.labels[2].source_weight == pytest.approx(float(inside))
        shown += 0 < inside < 1
    assert shown > 3
    page = Page(part("gallery_legend", rows))
    assert "the label that would be right" in page.text
    assert len(rows_of_batch(method, images, CLASSES, mixed, saliency)[0].labels) == 2
    hidden = rows_of_batch(method, images, CLASSES, mixed, saliency, torch.zeros_like(objects))
    assert all(len(row.labels) == 2 for row in hidden)  # no object, no truth
