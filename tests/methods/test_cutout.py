"""Cutout blanks one square per image, clipped at the border, and nothing else."""

import pytest
import torch

from saligraft.methods import Cutout, cutout


def test_the_box_is_blank_and_the_rest_stays() -> None:
    images = torch.rand(2, 3, 8, 10) + 1
    blank = cutout(images, box=torch.tensor([[2, 3, 6, 9], [0, 0, 0, 0]]), fill=-1.0)
    assert (blank[0, :, 2:6, 3:9] == -1).all()
    assert int((blank == -1).sum()) == 3 * 4 * 6
    assert torch.equal(blank[1], images[1])
    assert torch.equal(blank[0, :, :2], images[0, :, :2])


@pytest.mark.parametrize("size", [16, 5])
def test_sides_and_mean_area_are_those_of_clipped_squares(size: int, generator: torch.Generator) -> None:
    """By brute force over all centres, independent of the box code."""
    height, width = 20, 32
    holes = Cutout(size=size)(torch.ones(4000, 1, height, width), generator=generator)[:, 0] == 0
    tall, wide = holes.any(dim=2).sum(dim=1), holes.any(dim=1).sum(dim=1)
    assert torch.equal(tall * wide, holes.sum(dim=(1, 2)))  # each hole is one full rectangle
    assert int(tall.max()) == int(wide.max()) == size
    for seen, side in ((tall, height), (wide, width)):
        shown = [len([y for y in range(c - size // 2, c - size // 2 + size) if 0 <= y < side]) for c in range(side)]
        assert float(seen.float().mean()) == pytest.approx(sum(shown) / side, abs=0.2)


def test_one_square_per_batch_or_per_sample_and_how_often() -> None:
    images = torch.ones(200, 1, 32, 32)
    assert len(Cutout(per="batch")(images).unique(dim=0)) == 1
    assert len(Cutout()(images).unique(dim=0)) > 150
    cut = (Cutout(probability=0.3)(images) == 0).flatten(1).any(dim=1)
    assert 0.15 < float(cut.float().mean()) < 0.45
    whole = [bool((Cutout(probability=0.5, per="batch")(images) == 0).any()) for _ in range(30)]
    assert len(set(whole)) == 2


def test_a_square_larger_than_the_image_blanks_what_it_covers() -> None:
    assert (Cutout(size=64)(torch.ones(3, 3, 16, 16)) == 0).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be >= 1, got 0"),
        ({"size": 2.5}, TypeError, "size must be an int, got float"),
        ({"fill": "black"}, TypeError, "fill must be a number, got str"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cutout(**change)


def test_refuses_boxes_that_do_not_fit_the_batch() -> None:
    with pytest.raises(ValueError, match="box must have one entry per image: expected 2, got 1"):
        cutout(torch.rand(2, 3, 8, 8), box=torch.zeros(1, 4, dtype=torch.long))
