"""Mixup is λ x_i + (1−λ) x_j, images and labels alike."""

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
