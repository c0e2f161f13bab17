"""Boxes from maps: drawn maps with known boxes, OpenCV's components, and boxes moved into test views."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.small_sets import write_small_sets

from saligraft.data import load, make_data_loader
from saligraft.data.shapes import mask_boxes
from saligraft.training.localization import box_iou, box_masks, boxes_in_view, largest_components, map_boxes


def drawn(*parts: tuple[int, int, int, int, float], size: tuple[int, int] = (20, 30)) -> torch.Tensor:
    """A map with boxes x0 y0 x1 y1 filled with a value."""
    values = torch.zeros(1, *size)
    for x0, y0, x1, y1, value in parts:
        values[0, y0:y1, x0:x1] = value
    return values


def test_a_drawn_box_is_found() -> None:
    assert map_boxes(drawn((5, 3, 17, 11, 1.0)), (20, 30)).tolist() == [[5, 3, 17, 11]]


def test_the_threshold_is_a_share_of_the_maximum() -> None:
    peak, above, below = (10, 10, 12, 12, 100.0), (8, 8, 16, 16, 15.1), (4, 4, 18, 18, 14.9)
    assert map_boxes(drawn(below, above, peak), (20, 30)).tolist() == [[8, 8, 16, 16]]
    assert map_boxes(drawn(below, above, peak), (20, 30), threshold=0.14).tolist() == [[4, 4, 18, 18]]


def test_the_threshold_counts_from_the_lowest_value() -> None:
    values = drawn((8, 8, 16, 16, 16.0), (10, 10, 12, 12, 100.0))
    assert torch.equal(map_boxes(values - 70, (20, 30)), map_boxes(values, (20, 30)))


def test_the_largest_component_counts_not_the_highest() -> None:
    high, large = (0, 0, 3, 3, 9.0), (10, 5, 20, 15, 4.0)
    assert map_boxes(drawn(high, large), (20, 30)).tolist() == [[10, 5, 20, 15]]


def test_corners_connect() -> None:
    assert map_boxes(drawn((2, 2, 5, 5, 1.0), (5, 5, 8, 8, 1.0)), (20, 30)).tolist() == [[2, 2, 8, 8]]


def test_maps_are_enlarged_to_the_image() -> None:
    values = torch.zeros(1, 7, 7)
    values[0, 3, 4] = 1
    (x0, y0, x1, y1) = map_boxes(values, (224, 224))[0].tolist()
    reference = cv2.resize(values[0].numpy(), (224, 224), interpolation=cv2.INTER_LINEAR)
    rows, columns = np.nonzero(reference > 0.15 * reference.max())
    assert (x0, y0, x1, y1) == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    assert x0 < 4 * 32 < x1


def test_a_constant_map_has_no_box() -> None:
    assert map_boxes(torch.full((2, 4, 4), 3.0), (8, 8)).tolist() == [[0, 0, 0, 0]] * 2


def test_components_equal_opencv(generator: torch.Generator) -> None:
    noise = torch.rand(40, 1, 12, 15, generator=generator)
    masks = torch.cat(
        [
            torch.nn.functional.interpolate(noise, (60, 75), mode="bicubic")[:, 0] > 0.55,
            torch.rand(40, 60, 75, generator=generator) > 0.6,
        ]
    )
    spiral = torch.zeros(60, 75, dtype=torch.bool)  # one long path, the hardest to follow
    for ring in range(0, 28, 4):
        spiral[ring, ring : 75 - ring] = spiral[ring : 60 - ring, 74 - ring] = True
        spiral[59 - ring, ring : 75 - ring] = spiral[ring + 2 : 60 - ring, ring] = True
        spiral[ring + 2, ring : ring + 5] = spiral[ring + 2 : ring + 5, ring + 4] = True
    masks = torch.cat([masks, spiral[None], torch.zeros(1, 60, 75, dtype=torch.bool)])
    for mask, largest in zip(masks, largest_components(masks), strict=True):
        _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.numpy().astype(np.uint8), connectivity=8)
        sizes = stats[1:, cv2.CC_STAT_AREA]
        assert int(largest.sum()) == (sizes.max() if len(sizes) else 0)
        assert len(np.unique(labels[largest.numpy()])) <= 1
        assert not (largest & ~mask).any()


def test_iou_equals_a_count_of_pixels(generator: torch.Generator) -> None:
    corners = torch.randint(0, 12, (200, 2, 2, 2), generator=generator).sort(dim=2).values
    first, second = (corners[:, place].flatten(1) for place in (0, 1))
    masks = [box_masks(boxes.float(), (12, 12)) for boxes in (first, second)]
    shared, union = (masks[0] & masks[1]).sum(dim=(1, 2)), (masks[0] | masks[1]).sum(dim=(1, 2))
    expected = torch.where(union > 0, shared / union.clamp(min=1), 0.0).double()
    torch.testing.assert_close(box_iou(first, second), expected, rtol=1e-6, atol=1e-6)


def test_box_masks_are_the_boxes(generator: torch.Generator) -> None:
    masks = torch.rand(20, 9, 14, generator=generator) > 0.9
    masks[:, 4, 5] = True
    boxes = mask_boxes(masks)
    assert torch.equal(mask_boxes(box_masks(boxes.float(), (9, 14))), boxes)


def test_boxes_of_images_in_memory_stay_and_mirrored_ones_flip() -> None:
    boxes = torch.tensor([[2, 3, 10, 12], [2, 3, 10, 12], [2, 3, 10, 12]])
    geometry = torch.tensor([[0, 0, 0], [0, 0, 1], [4, -3, 0]])
    assert boxes_in_view(boxes, geometry, (16, 20)).tolist() == [[2, 3, 10, 12], [10, 3, 18, 12], [5, 0, 13, 8]]


@pytest.mark.parametrize(("height", "width"), [(300, 200), (120, 400), (97, 64), (224, 224)])
def test_boxes_of_files_move_with_the_test_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, height: int, width: int
) -> None:
    """The object is painted white: the box of what is white in the view must be the moved box."""
    root = write_small_sets(tmp_path, monkeypatch)["cub"]
    x0, y0, x1, y1 = width // 3, height // 8, width - 10, height - height // 3
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[y0:y1, x0:x1] = 255
    for file in (root / "images").rglob("*.jpg"):
        Image.fromarray(pixels).save(file, quality=100, subsampling=0)
    lines = (root / "bounding_boxes.txt").read_text().splitlines()
    box = f"{x0}.0 {y0}.0 {x1 - x0}.0 {y1 - y0}.0"
    (root / "bounding_boxes.txt").write_text("".join(f"{line.split()[0]} {box}\n" for line in lines))
    data = load("cub", split="test", root=root, size=56)
    batch = next(iter(make_data_loader(data, batch_size=2, train=False)))
    assert data.boxes is not None
    moved = boxes_in_view(data.boxes[batch.index], batch.geometry, (56, 56))
    seen = mask_boxes(batch.images.mean(dim=1) > 0.2)  # more than half white
    assert (moved - seen).abs().max() <= 1.01
    assert box_iou(moved, seen).min() > 0.9
