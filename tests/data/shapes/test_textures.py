"""Textures: in range, each kind alive, and functions of the place rather than the pixel."""

import pytest
import torch
from torch import Tensor

from saligraft.data.shapes.textures import COLUMNS, KINDS, texture


def axis(count: int) -> Tensor:
    return (torch.arange(count) - (count - 1) / 2) * 2 / count


def draws(kind: str, count: int = 50) -> Tensor:
    uniforms = torch.rand(count, COLUMNS, generator=torch.Generator().manual_seed(0))
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
