"""Visible shares, counted by hand."""

import pytest
import torch

import saligraft as sg
from saligraft.reports.visibility import visible_shares


def test_visible_shares_equal_a_count_of_pixels(generator: torch.Generator) -> None:
    images, labels = torch.rand(12, 3, 16, 16, generator=generator), torch.arange(12)
    objects = torch.rand(12, 16, 16, generator=generator) < 0.3
    for method in (sg.CutMix(), sg.SaliencyGrafting(), sg.AttentiveCutMix()):
        mixed = method(images, labels, torch.rand(12, 8, 8, generator=generator), generator=generator)
        visible = visible_shares(objects, mixed)
        for i, j in enumerate(mixed.partner.tolist()):
            # A pixel of either image is visible where the mixed image shows it, whatever the mask says.
            from_source = (mixed.images[i] == images[i]).all(dim=0)
            from_destination = (mixed.images[i] == images[j]).all(dim=0)
            if i != j:
                assert visible.source[i] == pytest.approx(float(from_source[objects[i]].float().mean()))
                assert visible.destination[i] == pytest.approx(float(from_destination[objects[j]].float().mean()))


def test_true_weights_of_a_drawn_pair() -> None:
    """All of the source and a quarter of the destination are visible: 1 / 1.25."""
    objects = torch.zeros(2, 4, 4, dtype=torch.bool)
    objects[0, :2] = True
    objects[1] = True
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[0, :3] = True
    labels, partner = torch.tensor([0, 1]), torch.tensor([1, 0])
    mixed = sg.MixedBatch(torch.zeros(2, 3, 4, 4), labels, labels[partner], torch.ones(2), mask, partner)
    visible = visible_shares(objects, mixed)
    assert visible.weight.tolist() == pytest.approx([0.8, 0.0])
    hidden = visible_shares(torch.zeros_like(objects), mixed)
    assert hidden.weight.isnan().all()
