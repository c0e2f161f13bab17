"""CutMix: one box of the source, and the weight is the pixels that show."""

import pytest
import torch

import saligraft as sg


def test_the_box_shows_the_source() -> None:
    images, labels = torch.zeros(2, 1, 8, 10), torch.tensor([0, 1])
    images[0] = 1
    box = torch.tensor([[2, 3, 6, 9], [0, 0, 0, 0]])
    mixed = sg.cutmix(images, labels, partner=torch.tensor([1, 0]), box=box)
    assert mixed.images[0].sum() == mixed.images[0, 0, 2:6, 3:9].sum() == 4 * 6
    assert torch.equal(mixed.mask[:1].float(), mixed.images[0])
    assert torch.equal(mixed.source_weight, torch.tensor([24 / 80, 0]))
    assert (mixed.images[1] == 1).all()  # nothing pasted: the destination as it is


def test_refuses_draws_of_another_length_or_kind() -> None:
    images, labels, partner = torch.rand(4, 1, 8, 8), torch.arange(4), torch.arange(4)
    with pytest.raises(ValueError, match="box must have one entry per image: expected 4, got 1"):
        sg.cutmix(images, labels, partner=partner, box=torch.tensor([[0, 0, 2, 2]]))
    with pytest.raises(TypeError, match=r"box must hold whole pixels, got torch\.float32"):
        sg.cutmix(images, labels, partner=partner, box=torch.rand(4, 4))


def test_boxes_per_batch_or_per_sample() -> None:
    images, labels = torch.rand(50, 1, 16, 16), torch.arange(50)
    assert len(sg.CutMix(per="batch")(images, labels).mask.unique(dim=0)) == 1
    assert len(sg.CutMix(per="sample")(images, labels).mask.unique(dim=0)) > 30


def test_mean_area_is_that_of_clipped_boxes(generator: torch.Generator) -> None:
    """E[area] by brute force over λ ~ U(0,1) and centres, independent of the box code."""
    side, expected = 32, []
    for step in range(400):
        length = int(side * ((step + 0.5) / 400) ** 0.5)
        shown = [min(c + length // 2, side) - max(c - length // 2, 0) for c in range(side)]
        expected.append((sum(shown) / side / side) ** 2)
    images = torch.rand(4000, 1, side, side, generator=generator)
    mixed = sg.CutMix()(images, torch.zeros(4000, dtype=torch.long), generator=generator)
    assert float(mixed.source_weight.mean()) == pytest.approx(sum(expected) / len(expected), abs=0.01)
