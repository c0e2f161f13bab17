"""Remembered maps: moved with crop and flip as the network would see them, blended into the samples that showed."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import saligraft as sg
from saligraft.data.loader import crop_and_flip
from saligraft.saliency.memory import SaliencyMemory, Views, resample, to_frame, to_view

HALF = torch.finfo(torch.float16)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def views_of(images: Tensor, index: list[int], geometry: Tensor | None = None) -> Views:
    return Views.of(images, torch.tensor(index), geometry)


def whole_views(index: list[int], size: int = 8) -> Views:
    return views_of(torch.zeros(len(index), 3, size, size), index)


class Equivariant(nn.Module):
    """Cells of 4 × 4 pixels that see nothing beyond themselves, with kernels that are the same mirrored."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(6, 3, 4, 4, generator=stream())
        self.weight = weight + weight.flip(-1)

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(images, self.weight, stride=4).relu()


def test_moved_maps_are_those_of_the_moved_images() -> None:
    """Crops by entire cells, into the padding too, and flips: cropping the image and looking again."""
    images, network = torch.randn(40, 3, 32, 32, generator=stream()), Equivariant()
    corner = torch.randint(-2, 3, (40, 2), generator=stream(1)) * 4
    geometry = torch.cat([corner, torch.arange(40)[:, None] % 2], dim=1)
    maps = sg.feature_saliency(network(images))
    seen = sg.feature_saliency(network(crop_and_flip(images, geometry)))
    boxes = views_of(images, list(range(40)), geometry).boxes
    torch.testing.assert_close(to_view(maps, boxes, (8, 8)), seen)
    shown = to_frame(torch.ones_like(maps), boxes, (8, 8))
    assert set(shown.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(to_frame(seen, boxes, (8, 8)), maps * shown)


def test_parts_of_cells_count_by_their_area() -> None:
    """Crops by any number of pixels, of images that are flat inside each cell, averaged over the cells of the view."""
    maps = torch.rand(60, 8, 8, generator=stream())
    pixels = maps.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    corner = torch.randint(-4, 5, (60, 2), generator=stream(1))
    geometry = torch.cat([corner, torch.arange(60)[:, None] % 2], dim=1)
    expected = F.avg_pool2d(crop_and_flip(pixels, geometry), 4)[:, 0]
    boxes = views_of(pixels, list(range(60)), geometry).boxes
    torch.testing.assert_close(to_view(maps, boxes, (8, 8)), expected)


@pytest.mark.parametrize("box", [(0, 0, 24, 36), (3, 5, 12, 6), (10, 0, 6, 24), (20, 30, 4, 6), (1, 2, 20, 33)])
@pytest.mark.parametrize("flipped", [0, 1])
def test_resized_parts_of_image_files(box: tuple[int, int, int, int], flipped: int) -> None:
    """Against every pixel of a 24 × 36 frame, finely divided, looked up in both maps."""
    frame, view, fine = torch.rand(6, 9, generator=stream()), torch.rand(4, 3, generator=stream(1)), 12
    top, left, height, width = (fine * side for side in box)
    y, x = torch.arange(24 * fine)[:, None].expand(-1, 36 * fine), torch.arange(36 * fine).expand(24 * fine, -1)
    inside = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    in_frame = y * 6 // (24 * fine) * 9 + x * 9 // (36 * fine)
    column = (x - left) * 3 // width
    in_view = (y - top) * 4 // height * 3 + torch.where(torch.tensor(bool(flipped)), 2 - column, column)
    ones = torch.ones(24 * fine, 36 * fine)

    def mean(values: Tensor, cell: Tensor, count: int, counted: Tensor) -> Tensor:
        total, number = torch.zeros(count), torch.zeros(count)
        total.index_add_(0, cell[inside], values[inside])
        number.index_add_(0, cell[counted], ones[counted])
        return total / number.clamp(min=1)

    expected_view = mean(frame.flatten()[in_frame], in_view, 12, inside)
    painted = torch.where(inside, view.flatten()[in_view.clamp(0, 11)], 0.0)
    expected_frame = mean(painted, in_frame, 54, ones.bool())
    boxes = torch.tensor([[*box, 24, 36, flipped]])
    torch.testing.assert_close(to_view(frame[None], boxes, (4, 3)), expected_view.view(1, 4, 3), rtol=0, atol=1e-4)
    torch.testing.assert_close(to_frame(view[None], boxes, (6, 9)), expected_frame.view(1, 6, 9), rtol=0, atol=1e-4)


def test_autocast_changes_no_bit() -> None:
    maps = torch.rand(5, 8, 8, generator=stream())
    boxes = torch.tensor([[1, -2, 32, 32, 32, 32, 1]]).expand(5, 7)
    plain = [move(maps, boxes, (8, 8)) for move in (to_view, to_frame)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = [move(maps, boxes, (8, 8)) for move in (to_view, to_frame)]
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


def filled(maps: Tensor, samples: int | None = None) -> SaliencyMemory:
    memory = SaliencyMemory(samples)
    views = whole_views(list(range(len(maps))))
    memory.refresh(maps, torch.zeros_like(maps), torch.arange(len(maps)), views)
    return memory


def test_the_first_look_is_stored_relative_to_the_mean_of_the_step() -> None:
    maps = torch.rand(3, 4, 4, generator=stream()) * 1e9  # far beyond half precision
    memory = filled(maps)
    assert memory.maps.dtype == torch.float16
    torch.testing.assert_close(memory.look_up(whole_views([0, 1, 2])), maps / maps.mean(), rtol=1e-3, atol=1e-3)


def test_later_looks_are_blended_half_and_half_where_the_sample_showed() -> None:
    maps = torch.rand(2, 4, 4, generator=stream())
    memory = filled(maps)
    before = memory.maps.float()
    seen, mask = torch.rand(2, 4, 4, generator=stream(1)), torch.zeros(2, 4, 4)
    mask[:, :2] = 1.0
    memory.refresh(seen, mask, torch.tensor([1, 0]), whole_views([0, 1]))
    relative = seen / seen.mean()
    for sample in (0, 1):  # the upper half of its own graft, the lower half of the other's
        expected = torch.cat([relative[sample, :2], relative[1 - sample, 2:]])
        torch.testing.assert_close(memory.maps[sample].float(), (before[sample] + expected) / 2, rtol=1e-3, atol=1e-3)


def test_what_the_first_view_does_not_show_has_the_mean_of_the_rest() -> None:
    images = torch.zeros(1, 3, 8, 8)
    memory = SaliencyMemory()
    maps = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    memory.refresh(maps, torch.zeros_like(maps), torch.tensor([0]), views_of(images, [0], torch.tensor([[4, 0, 0]])))
    relative = maps[0] / maps.mean()
    expected = torch.stack([relative[0].mean().expand(2), relative[0]])
    torch.testing.assert_close(memory.maps[0].float(), expected, rtol=1e-3, atol=0)


def test_source_and_destination_in_one_step_have_a_fixed_order() -> None:
    """Sample 0 is its own partner: half of each cell as source, half of the rest as destination."""
    memory = filled(torch.ones(1, 2, 2))
    memory.refresh(torch.full((1, 2, 2), 7.0), torch.full((1, 2, 2), 0.5), torch.tensor([0]), whole_views([0]))
    assert torch.equal(memory.maps, torch.ones(1, 2, 2).half())  # 7 is its own mean
    memory = filled(torch.ones(2, 1, 2))
    seen = torch.tensor([[[2.0, 2.0]], [[0.5, 0.5]]])  # shows 0 as source; then 0 as destination
    share = torch.tensor([[[1.0, 1.0]], [[0.0, 0.0]]])
    memory.refresh(seen, share, torch.tensor([1, 0]), whole_views([0, 1]))
    assert memory.maps[0].flatten().tolist() == pytest.approx([((1 + 1.6) / 2 + 0.4) / 2] * 2, rel=1e-3)
    assert memory.maps[1].flatten().tolist() == [1.0, 1.0]  # nothing of it showed


def test_of_several_views_of_one_sample_the_last_counts() -> None:
    memory = filled(torch.ones(3, 1, 2))
    seen = torch.tensor([[[8.0, 8.0]], [[2.0, 2.0]], [[2.0, 2.0]]])
    memory.refresh(seen, torch.zeros_like(seen), torch.arange(3), whole_views([1, 2, 1]))
    assert memory.maps[1].flatten().tolist() == pytest.approx([0.75, 0.75], rel=1e-3)
    assert memory.maps[0].flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -1.0])
def test_a_broken_map_is_not_remembered_and_spoils_no_other(broken: float) -> None:
    maps = torch.rand(3, 4, 4, generator=stream())
    spoilt = maps.clone()
    spoilt[1, 0, 0] = broken
    memory, expected = SaliencyMemory(samples=3), SaliencyMemory(samples=3)
    memory.refresh(spoilt, torch.zeros_like(maps), torch.arange(3), whole_views([0, 1, 2]))
    both = maps[[0, 2]]
    expected.refresh(both, torch.zeros_like(both), torch.arange(2), whole_views([0, 2]))
    assert memory.known.tolist() == [True, False, True]
    assert torch.equal(memory.maps, expected.maps)


def test_extreme_maps_stay_finite() -> None:
    for maps in (torch.zeros(2, 4, 4), torch.full((2, 4, 4), 3e38), torch.full((2, 4, 4), 1e-44)):
        maps[0, 0, 0] *= 2 if maps.max() < 1e38 else 1
        memory = filled(maps)
        assert memory.maps.isfinite().all()
        assert (memory.maps >= 0).all()
    peak = torch.zeros(2100, 8, 8)
    peak[0, 0, 0] = 1.0
    assert filled(peak).maps.max() == HALF.max


def test_samples_without_a_map_are_nan_and_the_table_grows() -> None:
    memory = SaliencyMemory()
    assert memory.look_up(whole_views([5, 2])).isnan().all()
    maps = torch.rand(2, 4, 4, generator=stream())
    memory.refresh(maps, torch.zeros_like(maps), torch.arange(2), whole_views([5, 2]))
    assert memory.maps.shape == (6, 4, 4)
    looked_up = memory.look_up(whole_views([2, 9, 4, 5]))
    assert looked_up.isnan().all(dim=(1, 2)).tolist() == [False, True, True, False]
    memory.refresh(maps, torch.zeros_like(maps), torch.arange(2), whole_views([7, 5]))
    assert memory.known.tolist() == [False, False, True, False, False, True, False, True]


def test_finer_maps_refine_the_table_and_coarser_ones_are_spread() -> None:
    coarse = torch.rand(2, 2, 2, generator=stream())
    memory = filled(coarse)
    before = memory.maps.float()
    fine = torch.ones(1, 4, 4)
    memory.refresh(fine, torch.zeros_like(fine), torch.tensor([0]), whole_views([0]))
    assert memory.maps.shape == (2, 4, 4)
    assert torch.equal(resample(memory.maps.float(), (2, 2))[1], before[1])
    flat = torch.ones(1, 2, 2)
    memory.refresh(flat, torch.zeros_like(flat), torch.tensor([0]), whole_views([1]))
    expected = (before[1] + 1).repeat_interleave(2, 0).repeat_interleave(2, 1) / 2
    torch.testing.assert_close(memory.maps[1].float(), expected, rtol=1e-3, atol=0)


def test_a_state_is_loaded_as_it_was() -> None:
    memory = filled(torch.rand(3, 4, 4, generator=stream()), samples=4)
    state = {name: value.clone() for name, value in memory.state_dict().items()}
    other = SaliencyMemory(samples=4)
    other.load_state_dict(state)
    more = torch.rand(2, 4, 4, generator=stream(1))
    for one in (memory, other):
        one.refresh(more, torch.zeros_like(more), torch.arange(2), whole_views([3, 0]))
    assert torch.equal(memory.maps, other.maps)
    assert torch.equal(memory.known, other.known)
    assert not torch.equal(state["maps"], other.maps)  # a copy was loaded
    with pytest.raises(ValueError, match="the state must hold 5 samples, got 4"):
        SaliencyMemory(samples=5).load_state_dict(state)
    with pytest.raises(ValueError, match="the state must hold 'maps' and 'known', got 'steps_taken'"):
        SaliencyMemory().load_state_dict({"steps_taken": torch.tensor(3)})


def test_no_value_is_read_on_another_device() -> None:
    """On `meta`, where reading one is an error; the size must be given, since growing reads the index."""
    images, index = torch.zeros(3, 3, 8, 8, device="meta"), torch.arange(3, device="meta")
    views = Views.of(images, index, torch.zeros(3, 3, dtype=torch.int64, device="meta"))
    memory = SaliencyMemory(samples=10)
    maps = torch.zeros(3, 4, 4, device="meta")
    memory.refresh(maps, maps, index, views)
    assert memory.look_up(views).shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("index", "geometry", "error", "message"),
    [
        (None, None, ValueError, r"index must be given to a step that remembers maps: .* and geometry where"),
        (torch.zeros(2, dtype=torch.int64), None, ValueError, "index must have one entry per image: expected 3, got 2"),
        (torch.zeros(3), None, TypeError, r"index must hold integers, got torch\.float32"),
        (torch.tensor([0, -1, 2]), None, ValueError, "index must be >= 0, got -1"),
        (torch.arange(3), torch.zeros(3, 5).long(), ValueError, r"geometry must be top, left, flipped .* got \(3, 5\)"),
        (torch.arange(3), torch.zeros(3, 3), TypeError, r"geometry must hold integers, got torch\.float32"),
        (torch.arange(3), [[0, 0, 0]] * 3, TypeError, r"geometry must be a torch\.Tensor, got list"),
        (torch.arange(3), torch.zeros(3, 7).long(), ValueError, "geometry must have sizes > 0, got 0"),
    ],
)
def test_what_a_loop_says_of_its_batch_is_validated(
    index: Any, geometry: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Views.of(torch.zeros(3, 3, 8, 8), index, geometry)


def test_an_index_beyond_a_table_of_given_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"index must be < samples \(2\), got 2"):
        SaliencyMemory(samples=2).look_up(whole_views([0, 2]))
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        SaliencyMemory(samples=0)
