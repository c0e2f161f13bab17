"""RandomChoice draws a mixer per batch or sample, and each mixes its own part; MethodChoice draws among all kinds."""

import pytest
import torch

import saligraft as sg
from saligraft.grafting import spread
from saligraft.methods import AttentiveCutMix, AugMix, Cutout, ManifoldMixup, MethodChoice, RandomChoice
from saligraft.methods.base import saliency_sources
from saligraft.methods.choice import join_parts
from saligraft.saliency.bottom_up import FineGrained

MEMBERS = (sg.Mixup(), sg.CutMix(), AttentiveCutMix(), sg.SaliencyGrafting(label_mixing="area"))


def batch(size: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randn(size, 3, 16, 20, generator=stream), torch.arange(size), torch.rand(size, 8, 8, generator=stream)


def test_per_batch_is_the_drawn_method_itself() -> None:
    images, labels, saliency = batch()
    seen = set()
    for seed in range(12):
        choice = RandomChoice(MEMBERS)
        (part,) = choice.draw(images, generator=torch.Generator().manual_seed(seed))
        mixed = choice(images, labels, saliency, generator=torch.Generator().manual_seed(seed))
        expected = part.method.apply(images, labels, saliency, part.drawn)
        assert all(torch.equal(a, b) for a, b in zip(mixed, expected, strict=True))
        seen.add(type(part.method))
    assert len(seen) >= 3


def test_per_sample_each_part_is_mixed_by_its_method() -> None:
    images, labels, saliency = batch()
    choice = RandomChoice(MEMBERS, per="sample")
    parts = choice.draw(images, generator=torch.Generator().manual_seed(1))
    assert len(parts) == len(MEMBERS)
    assert sorted(torch.cat([part.places for part in parts]).tolist()) == list(range(40))
    mixed = choice.apply(images, labels, saliency, parts)
    for part in parts:
        alone = part.method.apply(images[part.places], labels[part.places], saliency[part.places], part.drawn)
        assert torch.equal(mixed.images[part.places], alone.images)
        assert torch.equal(mixed.partner[part.places], part.places[alone.partner])  # places in the whole batch
        torch.testing.assert_close(mixed.source_weight[part.places], alone.source_weight)
    shown = spread(mixed.mask, 16, 20).float()
    torch.testing.assert_close(mixed.source_weight, shown.mean(dim=(1, 2)))
    rebuilt = torch.lerp(images[mixed.partner], images, shown[:, None])
    torch.testing.assert_close(mixed.images, rebuilt)
    assert torch.equal(mixed.destination_labels, labels[mixed.partner])


def test_masks_of_one_resolution_are_kept() -> None:
    images, labels, _ = batch()
    mixed = RandomChoice([sg.CutMix(), sg.CutMix(alpha=0.2)], per="sample")(images, labels)
    assert mixed.mask.dtype == torch.bool
    assert mixed.mask.shape == (40, 16, 20)
    assert RandomChoice([sg.Mixup(), sg.Mixup()], per="sample")(images, labels).mask.shape == (40, 1, 1)


def test_probabilities_are_those_of_the_draws(generator: torch.Generator) -> None:
    images = torch.rand(3000, 1, 2, 2)
    choice = RandomChoice([sg.Mixup(), sg.CutMix()], probabilities=[0.3, 0.7], per="sample", probability=0.5)
    parts = choice.draw(images, generator=generator)
    shares = {type(part.method).__name__: len(part.places) / 3000 for part in parts}
    assert shares == pytest.approx({"Mixup": 0.15, "CutMix": 0.35, "NoneType": 0.5}, abs=0.03)
    mixed = choice.apply(images, torch.arange(3000), None, parts)
    left = parts[-1].places
    assert torch.equal(mixed.images[left], images[left])
    assert torch.equal(mixed.partner[left], left)


def test_a_method_of_probability_0_is_never_drawn_and_choices_nest() -> None:
    images, labels, saliency = batch()
    inner = RandomChoice([sg.CutMix(), sg.SaliencyGrafting()], probabilities=(1, 0), per="sample")
    outer = RandomChoice([inner, sg.Mixup()], per="sample")
    assert outer.needs_saliency
    assert not RandomChoice([sg.CutMix(), sg.Mixup()]).needs_saliency
    parts = inner.draw(images)
    assert [type(part.method) for part in parts] == [sg.CutMix]
    assert outer(images, labels, saliency).images.shape == images.shape


def test_trains_through_both_steps() -> None:
    images, labels, _ = batch(8)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    )
    assert sg.MixingStep(model, RandomChoice([sg.Mixup(), sg.CutMix()], per="sample"))(images, labels).mixed
    assert sg.GraftingStep(model, RandomChoice(MEMBERS, per="sample"))(images, labels).mixed


def test_join_keeps_the_gradient_of_the_images() -> None:
    images = torch.rand(4, 1, 4, 4, requires_grad=True)
    halves = [torch.tensor([3, 0]), torch.tensor([1, 2])]
    parts = [sg.MixedBatch.unmixed(images[half], half) for half in halves]
    joined = join_parts(images, torch.arange(4), halves, parts)
    assert torch.equal(joined.images, images)
    joined.images.sum().backward()
    assert (images.grad == 1).all()


def test_image_transforms_may_be_among_the_members() -> None:
    images, labels = torch.ones(8, 3, 32, 32), torch.arange(8)
    mixed = RandomChoice([Cutout()])(images, labels, generator=torch.Generator().manual_seed(0))
    assert (mixed.images == 0).flatten(1).any(dim=1).all()
    assert torch.equal(mixed.targets(8), torch.eye(8))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": []}, ValueError, "methods must name at least one method"),
        ({"methods": sg.Mixup()}, TypeError, r"methods must be a sequence such as .*, got Mixup"),
        ({"methods": "mixup"}, TypeError, r"methods must be a sequence such as .*, got str"),
        ({"methods": [sg.ManifoldMixup()]}, TypeError, "got ManifoldMixup: MethodChoice takes it"),
        ({"methods": [sg.Mixup()], "probabilities": [0.5, 0.5]}, ValueError, "one entry per method: expected 1, got 2"),
        ({"methods": MEMBERS[:2], "probabilities": [0.5, 0.6]}, ValueError, "probabilities must sum to 1, got 1.1"),
        ({"methods": MEMBERS[:2], "probabilities": [-1, 2]}, ValueError, r"each of probabilities must be in \[0, 1\]"),
        ({"methods": MEMBERS, "per": "pixel"}, ValueError, "per must be one of 'sample', 'batch'; got 'pixel'"),
    ],
)
def test_refuses_bad_parameters(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RandomChoice(**arguments)


def test_none_leaves_samples_as_they_are(generator: torch.Generator) -> None:
    images, labels, _ = batch()
    choice = RandomChoice([None, sg.CutMix()], probabilities=[0.5, 0.5], per="sample")
    parts = choice.draw(images, generator=generator)
    assert [part.method for part in parts] == [None, sg.CutMix()]
    mixed = choice.apply(images, labels, None, parts)
    left = parts[0].places
    assert torch.equal(mixed.images[left], images[left])
    assert torch.equal(mixed.targets(40)[left], torch.eye(40)[left])
    assert not RandomChoice([None]).needs_saliency


def test_only_members_with_a_use_for_it_are_given_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels, saliency = batch(4)
    calls: list[bool] = []
    monkeypatch.setattr(FineGrained, "__call__", lambda _, images: calls.append(False) or images[:, 0].abs())
    RandomChoice([sg.SaliencyMix()])(images, labels, saliency)  # its own source: it takes the map
    assert calls == []
    choice = RandomChoice([sg.SaliencyMix(), sg.SaliencyGrafting()], probabilities=[1, 0])
    choice(images, labels, saliency)  # another's
    assert calls == [False]


ALL_KINDS = [None, ManifoldMixup(), [Cutout(), sg.Mixup()], AugMix(normalized=True)]


def test_members_are_the_methods_in_order() -> None:
    choice = MethodChoice(ALL_KINDS)
    assert choice.methods == ((), (ManifoldMixup(),), (Cutout(), sg.Mixup()), (AugMix(normalized=True),))
    assert choice == MethodChoice(tuple(ALL_KINDS))


def test_traits_are_those_of_any_member() -> None:
    for member, expected in ((sg.SaliencyGrafting(), (True, True)), (sg.SaliencyMix(), (False, False))):
        outer = MethodChoice([None, MethodChoice([ManifoldMixup(), [Cutout(), member]])])
        assert (outer.needs_saliency, outer.with_originals) == expected
        assert saliency_sources([outer]) == (member.saliency_source,)
    assert not MethodChoice(ALL_KINDS).needs_saliency
    assert saliency_sources(ALL_KINDS[1:2]) == ()


def test_all_kinds_are_drawn_by_their_probabilities(generator: torch.Generator) -> None:
    choice = MethodChoice(ALL_KINDS, probabilities=[0.1, 0.2, 0.3, 0.4], probability=0.5)
    drawn = [choice.draw(generator=generator) for _ in range(4000)]
    shares = [drawn.count(place) / 4000 for place in (0, 1, 2, 3, None)]
    assert shares == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.5], abs=0.03)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": []}, ValueError, "methods must name at least one method, got none"),
        ({"methods": sg.Mixup()}, TypeError, r"methods must be a sequence such as .*, got Mixup"),
        ({"methods": [sg.Mixup(), "cutmix"]}, TypeError, r"methods must be methods such as Mixup\(\), got str"),
        ({"methods": ALL_KINDS, "per": "sample"}, ValueError, "per must be 'batch' in a choice .* got 'sample'"),
        ({"methods": ALL_KINDS, "probabilities": [1.0]}, ValueError, "one entry per method: expected 4, got 1"),
        ({"methods": ALL_KINDS, "probability": 2}, ValueError, r"probability must be in \[0, 1\], got 2"),
    ],
)
def test_a_choice_among_all_kinds_refuses_bad_parameters(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MethodChoice(**arguments)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        MethodChoice(ALL_KINDS).draw(generator=5)
