"""SaliencyMix: the box lies around the source's own peak, and bottom-up saliency is what it takes by default."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import saligraft as sg
from saligraft.methods.saliencymix import SaliencyMix, peak_box, saliencymix
from saligraft.saliency.bottom_up import fine_grained_saliency


def peaked(count: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps with one peak each, and where it is."""
    stream = torch.Generator().manual_seed(0)
    maps = torch.rand(count, size, size, generator=stream)
    place = torch.randint(size, (count, 2), generator=stream)
    maps[torch.arange(count), place[:, 0], place[:, 1]] = 2.0
    return maps, place


def test_the_peak_is_always_inside_the_box() -> None:
    maps, place = peaked(50)
    images = torch.randn(50, 3, 16, 16)
    mixed = saliencymix(images, torch.arange(50), maps, partner=torch.randperm(50), ratio=torch.full((50,), 0.1))
    assert mixed.mask[torch.arange(50), place[:, 0], place[:, 1]].all()
    assert (mixed.source_weight < 0.11).all()


@given(
    seed=st.integers(0, 2**31),
    grid=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    ratio=st.floats(0, 1, width=32),
)
def test_boxes_equal_a_plain_loop(seed: int, grid: tuple[int, int], size: tuple[int, int], ratio: float) -> None:
    maps = torch.rand(3, *grid, generator=torch.Generator().manual_seed(seed))
    boxes = peak_box(maps, torch.full((3,), ratio), *size)
    for each, box in zip(maps.numpy(), boxes.tolist(), strict=True):
        peak = np.unravel_index(each.argmax(), each.shape)
        for axis in (0, 1):
            side = int(np.sqrt(np.float32(ratio)) * np.float32(size[axis]))
            centre = math.floor((int(peak[axis]) + 0.5) * size[axis] / grid[axis] + 1e-9)
            assert box[axis] == max(centre - side // 2, 0)
            assert box[axis + 2] == min(centre + side // 2, size[axis])


def test_a_map_of_the_images_size_is_centred_at_the_very_pixel() -> None:
    maps = torch.zeros(1, 20, 30)
    maps[0, 12, 25] = 1
    assert peak_box(maps, torch.tensor([0.16]), 20, 30).tolist() == [[8, 19, 16, 30]]


def test_of_equal_peaks_the_first_counts() -> None:
    maps = torch.zeros(1, 4, 4)
    maps[0, 1, 2] = maps[0, 3, 0] = 1
    assert peak_box(maps, torch.tensor([1 / 4]), 4, 4).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_map_that_is_not_finite_has_an_empty_box(broken: float) -> None:
    maps = torch.rand(2, 4, 4)
    maps[1, 2, 2] = broken
    first, second = peak_box(maps, torch.tensor([0.5, 0.5]), 8, 8).tolist()
    assert second == [0, 0, 0, 0]
    assert first[2] > first[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    maps = torch.eye(4)[None].cumsum(dim=1)
    expected = peak_box(maps, torch.tensor([0.25]), 16, 16)
    assert torch.equal(peak_box(maps.to(dtype), torch.tensor([0.25], dtype=dtype), 16, 16), expected)


def test_one_box_for_all_is_the_first_ones() -> None:
    maps, _ = peaked(10)
    images, labels = torch.randn(10, 3, 16, 16), torch.arange(10)
    draws = {"partner": torch.randperm(10), "ratio": torch.full((10,), 0.3)}
    own = saliencymix(images, labels, maps, **draws)
    shared = saliencymix(images, labels, maps, **draws, one_box=True)
    assert torch.equal(shared.mask, own.mask[:1].expand(10, 16, 16))
    assert len(own.mask.unique(dim=0)) > 1


def test_takes_fine_grained_saliency_where_no_map_is_given() -> None:
    images, labels = torch.rand(6, 3, 16, 16), torch.arange(6)
    generators = (torch.Generator().manual_seed(1) for _ in range(2))
    explicit, default = (
        SaliencyMix()(images, labels, maps, generator=g)
        for maps, g in zip((fine_grained_saliency(images), None), generators, strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(explicit, default, strict=True))


def test_keeps_its_own_map_beside_a_method_with_another() -> None:
    images, labels = torch.rand(6, 3, 16, 16), torch.arange(6)
    choice = sg.RandomChoice([SaliencyMix(), sg.SaliencyGrafting()], probabilities=[1.0, 0.0])
    drawn = choice.draw(images, generator=torch.Generator().manual_seed(0))
    network_maps = peaked(6)[0]
    own = saliencymix(
        images, labels, fine_grained_saliency(images), partner=drawn[0].drawn.partner, ratio=drawn[0].drawn.ratio
    )
    assert torch.equal(choice.apply(images, labels, network_maps, drawn).mask, own.mask)


def test_broken_map_pastes_nothing() -> None:
    maps, _ = peaked(3)
    maps[1, 0, 0] = float("nan")
    images = torch.randn(3, 3, 16, 16)
    partner = torch.tensor([1, 2, 0])
    mixed = saliencymix(images, torch.arange(3), maps, partner=partner, ratio=torch.full((3,), 0.5))
    assert torch.equal(mixed.images[1], images[2])
    assert mixed.source_weight[1] == 0


def test_goes_with_the_training_networks_own_map_too() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )
    images, labels = torch.randn(5, 3, 16, 16), torch.tensor([0, 1, 0, 1, 1])
    first, second = (torch.Generator().manual_seed(1) for _ in range(2))
    out = sg.GraftingStep(model, SaliencyMix(), saliency_source="feature-map", generator=first)(images, labels)
    out.loss.backward()
    drawn = SaliencyMix().draw(images, generator=second)
    by_network, by_pixels = (
        SaliencyMix().apply(images, labels, saliency, drawn).mask
        for saliency in (sg.feature_saliency(model[:2](images)), None)
    )
    assert torch.equal(out.mixed.mask, by_network)
    assert not torch.equal(by_network, by_pixels)


def test_undoes_the_normalisation_before_it_looks() -> None:
    """Channels of unequal scale: the map of the normalised image is another than that of the pixels."""
    pixels, labels = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    mean, std = (0.1, 0.5, 0.9), (0.02, 0.5, 2.0)
    normalised = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    maps, own = fine_grained_saliency(pixels), fine_grained_saliency(normalised)
    assert (maps.flatten(1).argmax(dim=1) != own.flatten(1).argmax(dim=1)).any()
    informed, blind = SaliencyMix(pixel_mean=mean, pixel_std=std), SaliencyMix()
    drawn = informed.draw(normalised, generator=torch.Generator().manual_seed(1))
    expected = blind.apply(normalised, labels, maps, drawn)
    assert torch.equal(informed.apply(normalised, labels, None, drawn).mask, expected.mask)
    assert not torch.equal(blind.apply(normalised, labels, None, drawn).mask, expected.mask)


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        ({"pixel_mean": (0.5,)}, ValueError, r"must be given together, got \(0.5,\) and None"),
        (
            {"pixel_mean": (0.5,), "pixel_std": (0.0,)},
            ValueError,
            "each of pixel_std must be a finite number > 0, got 0",
        ),
        ({"pixel_mean": 0.5, "pixel_std": (1.0,)}, TypeError, "pixel_mean must be a sequence of numbers, got 0.5"),
        ({"pixel_mean": ("a",), "pixel_std": (1.0,)}, TypeError, "each of pixel_mean must be a number, got str"),
    ],
)
def test_a_bad_scale_is_named(scale: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SaliencyMix(**scale)


@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (torch.full((3,), 0.5), "ratio must have one entry per image: expected 2, got 3"),
        (torch.full((2, 1), 0.5), r"ratio must have shape \(B\), got \(2, 1\)"),
        (torch.full((2,), 1.5), r"ratio must lie in \[0, 1\], got 1.5 to 1.5"),
    ],
)
def test_a_bad_ratio_is_named(ratio: torch.Tensor, message: str) -> None:
    labels = torch.arange(2)
    with pytest.raises(ValueError, match=message):
        saliencymix(torch.rand(2, 3, 8, 8), labels, torch.rand(2, 4, 4), partner=labels, ratio=ratio)
