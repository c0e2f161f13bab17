"""φ = M ⊙ x_i + (1 − M) ⊙ x_j: bit for bit, at any size."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from saligraft import graft, mixup
from saligraft.grafting import graft_onto_partners, pixel_area, spread

sizes = st.integers(1, 24)


@given(height=sizes, width=sizes, rows=st.integers(1, 8), columns=st.integers(1, 8), seed=st.integers(0, 999))
def test_pixels_are_copied_bit_for_bit(height: int, width: int, rows: int, columns: int, seed: int) -> None:
    rows, columns = min(rows, height), min(columns, width)
    stream = torch.Generator().manual_seed(seed)
    source, destination = torch.randn(2, 3, 2, height, width, generator=stream)
    mask = torch.rand(3, rows, columns, generator=stream) < 0.5
    mixed = graft(source, destination, mask)
    for y in range(height):
        for x in range(width):
            shown = mask[:, y * rows // height, x * columns // width]
            assert torch.equal(mixed[shown, :, y, x], source[shown, :, y, x])
            assert torch.equal(mixed[~shown, :, y, x], destination[~shown, :, y, x])


@given(height=sizes, width=sizes, rows=st.integers(1, 8), columns=st.integers(1, 8))
def test_spread_is_nearest_interpolation_and_area_its_mean(height: int, width: int, rows: int, columns: int) -> None:
    rows, columns = min(rows, height), min(columns, width)
    mask = torch.rand(4, rows, columns, generator=torch.Generator().manual_seed(0))
    whole = spread(mask, height, width).expand(4, height, width)
    expected = F.interpolate(mask[:, None].double(), size=(height, width), mode="nearest")[:, 0].float()
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(pixel_area(mask, height, width), whole.mean(dim=(1, 2)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_compiled_masks_and_areas_are_the_plain_ones(dtype: torch.dtype) -> None:
    def both(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return spread(mask, 33, 20), pixel_area(mask, 33, 20)

    torch._dynamo.reset()
    compiled = torch.compile(both, backend="eager", fullgraph=True)
    for rows, columns in ((4, 4), (8, 5), (7, 3)):
        mask = (torch.rand(3, rows, columns, generator=torch.Generator().manual_seed(0)) < 0.5).to(dtype)
        for expected, result in zip(both(mask), compiled(mask), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_corner_cell_of_33_pixels() -> None:
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[0, 0, 0] = True
    assert float(pixel_area(mask, 33, 33)) == pytest.approx(81 / 1089)  # 7.4 %, not 1/16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_blend_is_exact_at_both_ends(dtype: torch.dtype) -> None:
    source, destination = torch.randn(2, 2, 3, 5, 4).to(dtype)
    assert torch.equal(graft(source, destination, torch.ones(2, 1, 1)), source)
    assert torch.equal(graft(source, destination, torch.zeros(2, 1, 1)), destination)
    half = graft(source, destination, torch.full((2, 1, 1), 0.5))
    torch.testing.assert_close(half.double(), (source.double() + destination.double()) / 2, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mask": torch.full((2, 4, 4), 1.5)}, ValueError, r"mask must lie in \[0, 1\], got 1.5 to 1.5"),
        ({"mask": torch.full((2, 4, 4), float("nan"))}, ValueError, r"mask must lie in \[0, 1\]"),
        ({"mask": torch.ones(2, 4, 4, dtype=torch.int64)}, TypeError, "mask must be bool or floating point"),
        ({"mask": torch.ones(2, 9, 4)}, ValueError, r"mask must not be finer than the image \(8, 8\)"),
        ({"mask": torch.ones(3, 4, 4)}, ValueError, "mask must have one map per image: expected 2, got 3"),
        ({"mask": torch.ones(4, 4)}, ValueError, r"mask must have shape \(B, h, w\), got \(4, 4\)"),
        ({"destination": torch.rand(2, 3, 8, 9)}, ValueError, "source and destination must have the same shape"),
        (
            {"destination": torch.rand(2, 3, 8, 8).double()},
            TypeError,
            "source and destination must have the same dtype",
        ),
        (
            {"source": torch.ones(2, 3, 8, 8, dtype=torch.uint8)},
            TypeError,
            "source must be floating point, got torch.uint8",
        ),
        ({"source": torch.rand(0, 3, 8, 8)}, ValueError, "source must not be empty"),
        (
            {"mask": torch.ones(2, 4, 4, device="meta")},
            ValueError,
            r"mask must be on the device of source \(cpu\), got meta",
        ),
    ],
)
def test_refuses_bad_input(change: dict, error: type[Exception], message: str) -> None:
    good = {"source": torch.rand(2, 3, 8, 8), "destination": torch.rand(2, 3, 8, 8), "mask": torch.ones(2, 4, 4)}
    with pytest.raises(error, match=message):
        graft(**{**good, **change})


def test_inputs_stay_unchanged() -> None:
    source, destination = torch.ones(2, 3, 4, 4), torch.zeros(2, 3, 4, 4)
    graft(source, destination, torch.tensor([[[True, False]]]).expand(2, 1, 2))
    assert bool((source == 1).all())
    assert bool((destination == 0).all())


@pytest.mark.parametrize("soft", [False, True])
def test_gradients_reach_source_and_partner(soft: bool) -> None:
    """Grafts are written into the gathered partners, but not where that would lose the gradients of the images."""
    images = torch.rand(2, 1, 4, 4, requires_grad=True)
    shown = torch.zeros(2, 4, 4, dtype=torch.bool)
    shown[0, :, :1] = True
    mixed = graft_onto_partners(images, torch.tensor([1, 0]), shown.float() if soft else shown)
    mixed[0].sum().backward()  # one column of image 0 over three of image 1
    assert images.grad is not None
    assert images.grad.sum(dim=(1, 2, 3)).tolist() == [4.0, 12.0]


def test_gradients_reach_a_learned_weight() -> None:
    images, labels = torch.stack([torch.ones(1, 2, 2), torch.zeros(1, 2, 2)]), torch.tensor([0, 1])
    weight = torch.full((2,), 0.3, requires_grad=True)
    mixed = mixup(images, labels, partner=labels.flip(0), source_weight=weight)
    mixed.images.sum().backward()  # of four pixels: w · 1 + (1 − w) · 0, and w · 0 + (1 − w) · 1
    torch.testing.assert_close(weight.grad, torch.tensor([4.0, -4.0]))
