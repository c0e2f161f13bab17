"""Compose: image transforms, then a mixer, drawn together and applied one after the other."""

import dataclasses

import pytest
import torch

import saligraft as sg
from saligraft.methods import AttentiveCutMix, Compose, Cutout


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 3, 24, 24, generator=torch.Generator().manual_seed(0)), torch.arange(6)


def test_is_the_mixer_on_transformed_images() -> None:
    images, labels = batch()
    both = Compose([Cutout(size=8), sg.Mixup()])
    drawn = both.draw(images, generator=torch.Generator().manual_seed(3))
    mixed = both(images, labels, generator=torch.Generator().manual_seed(3))
    cut = Cutout(size=8).apply(images, drawn.transforms[0])
    assert not torch.equal(cut, images)
    expected = sg.Mixup().apply(cut, labels, None, drawn.mixer)
    assert all(torch.equal(a, b) for a, b in zip(mixed, expected, strict=True))


def test_without_a_mixer_the_labels_stay() -> None:
    images, labels = batch()
    mixed = Compose([Cutout(size=8), Cutout(size=4)])(images, labels)
    assert ((mixed.images == 0).sum(dim=(1, 2, 3)) > 0).all()
    assert torch.equal(mixed.targets(6), torch.eye(6))


def test_needs_saliency_as_its_mixer_does() -> None:
    images, labels = batch()
    guided = Compose([Cutout(size=8), AttentiveCutMix()])
    assert guided.needs_saliency
    assert not Compose([Cutout()]).needs_saliency
    with pytest.raises(ValueError, match="saliency must be given to Compose, got None"):
        guided(images, labels)
    assert guided(images, labels, torch.rand(6, 8, 8)).mask.shape == (6, 7, 7)


def test_is_hashable_and_replaceable() -> None:
    one = Compose([Cutout(), sg.Mixup()])
    assert hash(one) == hash(Compose((Cutout(), sg.Mixup())))
    assert dataclasses.replace(one, parts=[Cutout()]).mixer is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"parts": []}, ValueError, r"parts must begin with an image transform such as Cutout\(\), got none"),
        ({"parts": Cutout()}, TypeError, r"parts must be a sequence such as .*, got Cutout"),
        ({"parts": [sg.Mixup()]}, ValueError, "parts must begin with an image transform"),
        ({"parts": [sg.Mixup(), Cutout()]}, TypeError, "then at most one mixer; got Mixup"),
        ({"parts": [Cutout()], "probability": 0.5}, ValueError, "probability and per must be set on each of parts"),
    ],
)
def test_refuses_bad_parameters(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Compose(**arguments)
