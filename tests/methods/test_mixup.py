"""Mixup is λ x_i + (1−λ) x_j, images and labels alike."""

import pytest
import torch

import saligraft as sg


def test_equals_the_formula(generator: torch.Generator) -> None:
    images, labels = torch.randn(5, 3, 6, 7, generator=generator), torch.arange(5)
    partner, weight = torch.randperm(5, generator=generator), torch.rand(5, generator=generator)
    mixed = sg.mixup(images, labels, partner=partner, source_weight=weight)
    share = weight[:, None, None, None]
    torch.testing.assert_close(mixed.images, share * images + (1 - share) * images[partner])
    assert mixed.mask.shape == (5, 1, 1)


def test_one_ratio_per_batch_or_per_sample() -> None:
    images, labels = torch.rand(50, 1, 4, 4), torch.arange(50)
    assert len(sg.Mixup(per="batch")(images, labels).source_weight.unique()) == 1
    assert len(sg.Mixup(per="sample")(images, labels).source_weight.unique()) > 40


@pytest.mark.parametrize(
    ("source_weight", "error", "message"),
    [
        (None, TypeError, "source_weight must be a torch.Tensor, got NoneType"),
        (torch.tensor([0.3]), ValueError, "source_weight must have one entry per image: expected 4, got 1"),
        (torch.full((4,), 2.0), ValueError, r"source_weight must lie in \[0, 1\], got 2 to 2"),
        (torch.ones(4, dtype=torch.int64), TypeError, "source_weight must be floating point, got torch.int64"),
        (torch.ones(4, dtype=torch.bool), TypeError, "source_weight must be floating point, got torch.bool"),
    ],
)
def test_refuses_weights(source_weight: torch.Tensor | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sg.mixup(torch.rand(4, 1, 8, 8), torch.arange(4), partner=torch.arange(4), source_weight=source_weight)
