"""MethodChoice draws one method of any kind per batch, or none."""

import pytest
import torch

import saligraft as sg
from saligraft.methods import AugMix, Cutout, ManifoldMixup, MethodChoice

MEMBERS = [None, ManifoldMixup(), [Cutout(), sg.Mixup()], AugMix(normalized=True)]


def test_members_are_the_methods_in_order() -> None:
    choice = MethodChoice(MEMBERS)
    assert choice.members == ((), (ManifoldMixup(),), (Cutout(), sg.Mixup()), (AugMix(normalized=True),))
    assert choice == MethodChoice(tuple(MEMBERS))


def test_traits_are_those_of_any_member() -> None:
    traits = ("needs_saliency", "uses_saliency", "with_originals")
    for member, expected in ((sg.SaliencyGrafting(), (True, False, True)), (sg.SaliencyMix(), (False, True, False))):
        outer = MethodChoice([None, MethodChoice([ManifoldMixup(), [Cutout(), member]])])
        assert tuple(getattr(outer, trait) for trait in traits) == expected
    assert not any(getattr(MethodChoice(MEMBERS), trait) for trait in traits)


def test_probabilities_are_those_of_the_draws(generator: torch.Generator) -> None:
    choice = MethodChoice(MEMBERS, probabilities=[0.1, 0.2, 0.3, 0.4], probability=0.5)
    drawn = [choice.draw(generator=generator) for _ in range(4000)]
    shares = [drawn.count(place) / 4000 for place in (0, 1, 2, 3, None)]
    assert shares == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.5], abs=0.03)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": []}, ValueError, "methods must name at least one method, got none"),
        ({"methods": sg.Mixup()}, TypeError, r"methods must be a sequence such as .*, got Mixup"),
        ({"methods": [sg.Mixup(), "cutmix"]}, TypeError, r"methods must be methods such as Mixup\(\), got str"),
        ({"methods": MEMBERS, "per": "sample"}, ValueError, "per must be 'batch' in a choice .* got 'sample'"),
        ({"methods": MEMBERS, "probabilities": [1.0]}, ValueError, "one entry per method: expected 4, got 1"),
        ({"methods": MEMBERS, "probability": 2}, ValueError, r"probability must be in \[0, 1\], got 2"),
    ],
)
def test_refuses_bad_parameters(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MethodChoice(**arguments)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        MethodChoice(MEMBERS).draw(generator=5)
