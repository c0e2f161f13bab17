"""Pictures of images, maps and masks."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from saligraft.grafting import graft
from saligraft.reports import tiles


def image(height: int = 32, width: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.rand(channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_to_picture_is_rgb_for_any_channel_count(channels: int) -> None:
    picture = tiles.to_picture(image(5, 7, channels))
    assert picture.shape == (5, 7, 3)
    assert picture.dtype == np.uint8


def test_to_picture_keeps_the_values_of_rgb() -> None:
    original = torch.randint(0, 256, (3, 6, 5), dtype=torch.uint8)
    assert np.array_equal(tiles.to_picture(original.float() / 255), original.permute(1, 2, 0).numpy())


def test_to_picture_refuses_a_batch() -> None:
    with pytest.raises(ValueError, match=r"image must have shape \(C,H,W\), got \(1, 3, 4, 4\)"):
        tiles.to_picture(torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize(("size", "cells"), [(32, 8), (33, 4), (10, 7), (9, 1)])
def test_spread_shows_what_the_graft_shows(size: int, cells: int) -> None:
    mask = torch.rand(cells, cells) < 0.5
    ones = torch.ones(1, 1, size, size)
    expected = graft(ones, torch.zeros_like(ones), mask[None])[0, 0].numpy()
    assert np.array_equal(tiles.spread_cells(mask, size, size), expected)


def test_chosen_cells_keep_the_source_inside_and_dim_the_rest() -> None:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1, 2] = True
    bright = torch.ones(3, 32, 32)
    picture = tiles.chosen_cells(bright, mask)
    scale = picture.shape[0] // 32
    inside = picture[12 * scale, 20 * scale]  # the middle of cell (1, 2), whose pixels are rows 8-16, columns 16-24
    outside = picture[28 * scale, 4 * scale]
    assert np.array_equal(inside, [255, 255, 255])
    assert outside.max() < 100


def test_grafted_outlines_a_region_but_leaves_a_blend_alone() -> None:
    plain = image()
    mask = torch.zeros(4, 4)
    mask[0, 0] = 1
    enlarged = tiles.enlarge(tiles.to_picture(plain))
    assert not np.array_equal(tiles.grafted(plain, mask), enlarged)
    assert np.array_equal(tiles.grafted(plain, torch.full((1, 1), 0.3)), enlarged)


def test_heat_is_brightest_at_the_peak_and_survives_an_empty_map() -> None:
    saliency = torch.zeros(8, 8)
    saliency[2, 5] = 1
    picture = tiles.heat(torch.zeros(3, 32, 32), saliency).astype(int)
    scale = picture.shape[0] // 32
    brightness = picture.sum(2)
    assert brightness[10 * scale, 22 * scale] > 3 * brightness[26 * scale, 6 * scale]
    assert tiles.heat(image(), torch.zeros(8, 8)).shape == (192, 192, 3)


def test_data_uri_opens_as_the_same_picture() -> None:
    picture = tiles.to_picture(image(6, 9))
    uri = tiles.data_uri(picture)
    assert uri.startswith("data:image/png;base64,")
    opened = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert np.array_equal(np.asarray(opened), picture)


def test_photographs_are_stored_as_jpeg_and_enlarged_pixels_without_loss() -> None:
    noise = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert tiles.data_uri(tiles.enlarge(tiles.to_picture(noise))).startswith("data:image/png")
    photograph = torch.nn.functional.interpolate(noise[None], size=160, mode="bicubic")[0].clamp(0, 1)
    assert tiles.data_uri(tiles.to_picture(photograph)).startswith("data:image/jpeg")


def test_plain_heat_is_brightest_at_the_peak_and_dark_where_flat() -> None:
    values = torch.zeros(4, 4)
    values[1, 2] = 3.0
    picture = tiles.plain_heat(values)
    factor = picture.shape[0] // 4
    assert picture.shape == (4 * factor, 4 * factor, 3)
    brightness = picture.astype(int).sum(-1)
    assert (brightness[factor : 2 * factor, 2 * factor : 3 * factor] == brightness.max()).all()
    assert (tiles.plain_heat(torch.zeros(4, 4)).astype(int).sum(-1) == brightness.min()).all()
