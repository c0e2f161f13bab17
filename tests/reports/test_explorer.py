"""The data of the interactive view; `tests/browser` compares what the page computes from it."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.reports.pages import assert_self_contained

from saligraft.reports.explorer import SIDE, explorer_data, varied
from saligraft.reports.page import write_page

CLASSES = ("disc", "</script><b>", "caf\udce9")


def small(count: int = 3, side: int = 16, **options: object) -> dict:
    images = torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))
    saliency = torch.rand(count, 4, 4, generator=torch.Generator().manual_seed(1))
    return explorer_data(images, torch.arange(count) % 3, CLASSES, saliency, **options)  # type: ignore[arg-type]


def test_maps_keep_their_float32_values_and_broken_ones_are_null() -> None:
    saliency = torch.rand(3, 4, 5)
    saliency[2, 0, 0], saliency[2, 1, 1] = float("nan"), float("inf")
    data = explorer_data(torch.rand(3, 1, 8, 9), torch.arange(3), CLASSES, saliency)
    read = json.loads(json.dumps(data, allow_nan=False))
    for i in range(2):
        assert torch.equal(torch.tensor(read["images"][i]["saliency"]), saliency[i])
    assert read["images"][2]["saliency"][0][0] is None
    assert read["images"][2]["saliency"][1][1] is None
    assert (read["height"], read["width"]) == (8, 9)


def test_objects_are_packed_row_by_row() -> None:
    objects = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(2)) < 0.5
    for image, mask in zip(small(objects=objects)["images"], objects, strict=True):
        bits = np.unpackbits(np.frombuffer(base64.b64decode(image["object"]), np.uint8))
        assert bits.reshape(16, 16).astype(bool).tolist() == mask.tolist()


def test_large_images_are_shrunk_with_their_objects() -> None:
    objects = torch.zeros(2, 300, 300, dtype=torch.bool)
    objects[:, :150] = True
    data = small(2, 300, objects=objects)
    assert data["height"] == data["width"] == SIDE
    with Image.open(io.BytesIO(base64.b64decode(data["images"][0]["picture"].partition(",")[2]))) as picture:
        assert picture.size == (SIDE, SIDE)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(data["images"][0]["object"]), np.uint8)).reshape(SIDE, SIDE)
    assert bits[: SIDE // 2].all()
    assert not bits[SIDE // 2 :].any()


def test_puzzlemix_is_solved_for_every_pair_as_the_library_shows_it() -> None:
    """Assembled from blocks, the pixels are those of `puzzlemix`."""
    from saligraft.methods.puzzlemix.method import puzzlemix

    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    gradients = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(3)) ** 4
    puzzle = small(gradients=gradients)["puzzle"]
    assert sorted(puzzle["pairs"]) == ["0-1", "0-2", "1-0", "1-2", "2-0", "2-1"]
    partner = torch.tensor([1, 2, 0])
    from saligraft.methods import PuzzleMix

    terms = PuzzleMix(pixel_std=1.0).terms
    mixed = puzzlemix(images, partner, gradients, partner=partner, ratio=torch.full((3,), 0.5), grid=8, terms=terms)
    for i in range(3):
        levels, *blocks = puzzle["pairs"][f"{i}-{int(partner[i])}"]
        for place in range(64):
            parts = []
            for image, numbers in zip((images[i], images[partner[i]]), blocks, strict=True):
                row, column = divmod(numbers[place], 8)
                parts.append(image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2])
            row, column = divmod(place, 8)
            expected = mixed.images[i, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            share = levels[place] / 2
            assert torch.allclose(share * parts[0] + (1 - share) * parts[1], expected, atol=1e-6)


def test_without_gradients_or_a_grid_that_divides_the_image_there_is_no_puzzle() -> None:
    assert small()["puzzle"] is None
    assert small(side=15, gradients=torch.rand(3, 15, 15))["puzzle"] is None


def test_images_of_all_classes_come_first() -> None:
    labels = torch.tensor([5, 5, 2, 5, 2, 9])
    assert varied(labels, 4).tolist() == [2, 0, 5, 4]
    assert varied(labels, 99).tolist() == [2, 0, 5, 4, 1, 3]
    with pytest.raises(ValueError, match="images must be at least 2 to make a pair, got 1"):
        small(1)


def test_the_page_is_self_contained_and_no_name_leaves_the_data(tmp_path: Path) -> None:
    path = write_page(tmp_path / "e.html", "explore.html", title="t", explorer=small(origin="a <b>"), facts={})
    html = path.read_text(encoding="utf-8")
    page = assert_self_contained(html)
    assert "</script><b>" not in html
    assert "The saliency is that of a <b>." in page.text
    for words in ("Redraw", "Swap", "temperature", "minmax"):
        assert words in page.text
    assert {one["id"] for one in page.named("input")} == {
        f"x-{n}" for n in ("temperature", "threshold", "probability", "grid")
    }


def test_one_pair_of_shapes_is_put_beside_the_average(tmp_path: Path) -> None:
    for objects, shown in ((None, False), (torch.ones(3, 16, 16, dtype=torch.bool), True)):
        data = small(objects=objects)
        page = write_page(tmp_path / "e.html", "explore.html", title="t", explorer=data, facts={})
        assert ("with networks trained for 60 epochs" in page.read_text(encoding="utf-8")) == shown
