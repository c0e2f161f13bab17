"""Colours and textures."""

import pytest
import torch
from torch import Tensor

from saligraft.data.shapes.appearance import (
    KINDS,
    PALETTE_COLUMNS,
    TEXTURE_COLUMNS,
    draw_palette,
    oklch_to_rgb,
    texture,
)


@pytest.mark.parametrize(
    ("oklch", "rgb"),  # the published OKLCh coordinates of the sRGB primaries, hue in degrees
    [
        ((1.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ((0.62796, 0.25768, 29.234), (1.0, 0.0, 0.0)),
        ((0.86644, 0.29483, 142.495), (0.0, 1.0, 0.0)),
        ((0.45201, 0.31321, 264.052), (0.0, 0.0, 1.0)),
    ],
)
def test_known_colours(oklch: tuple[float, float, float], rgb: tuple[float, float, float]) -> None:
    lightness, chroma, degrees = map(torch.tensor, oklch)
    torch.testing.assert_close(oklch_to_rgb(lightness, chroma, degrees / 360), torch.tensor(rgb), atol=5e-3, rtol=0)


def test_object_and_clutter_stand_out_from_the_ground() -> None:
    generator = torch.Generator().manual_seed(0)
    scene, clutter = torch.rand(2000, PALETTE_COLUMNS, generator=generator), torch.rand(2000, 4, 3, generator=generator)
    palette = draw_palette(scene, clutter)
    for colour in palette:
        assert ((colour >= 0) & (colour <= 1)).all()
    for ground in (palette.ground, palette.ground_accent):
        assert (palette.fill - ground).norm(dim=-1).min() > 0.15
        assert (palette.fill_accent - ground).norm(dim=-1).min() > 0.15
        assert (palette.clutter - ground[:, None]).norm(dim=-1).min() > 0.15


def test_object_and_clutter_share_one_distribution() -> None:
    generator = torch.Generator().manual_seed(1)
    palette = draw_palette(
        torch.rand(4000, PALETTE_COLUMNS, generator=generator), torch.rand(4000, 1, 3, generator=generator)
    )
    torch.testing.assert_close(palette.fill.mean(0), palette.clutter.mean((0, 1)), atol=0.02, rtol=0)
    torch.testing.assert_close(palette.fill.std(0), palette.clutter.flatten(0, 1).std(0), atol=0.02, rtol=0)


def axis(count: int) -> Tensor:
    return (torch.arange(count) - (count - 1) / 2) * 2 / count


def draws(kind: str, count: int = 50) -> Tensor:
    uniforms = torch.rand(count, TEXTURE_COLUMNS, generator=torch.Generator().manual_seed(0))
    uniforms[:, 0] = (KINDS.index(kind) + 0.5) / len(KINDS)
    return uniforms


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_fills_its_range_and_differs_between_draws(kind: str) -> None:
    field = texture(draws(kind), axis(48), axis(32))
    assert tuple(field.shape) == (50, 32, 48)
    assert field.min() >= 0
    assert field.max() <= 1
    assert field.flatten(1).std(1).min() > 0.04
    assert field.std(0).mean() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_finer_rendering_shows_the_same_texture(kind: str) -> None:
    coarse = texture(draws(kind), axis(64), axis(64))
    fine = texture(draws(kind), axis(256), axis(256))
    fine = torch.nn.functional.avg_pool2d(fine, 4)
    assert (coarse - fine).abs().mean() < 0.03
