"""Steps of the other kinds: one pass each, the same call and state as the steps of batch mixers."""

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import AttentiveCutMix, AugMix, Compose, Cutout, ManifoldMixup
from saligraft.strategies import FeatureMixingStep, ViewsStep, training_step

K = 4
needs_torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="an extra of AugMix")


class Counting(nn.Module):
    """A small network with batch norm that keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, K)
        self.shown: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shown.append(images)
        return self.head(self.features(images).mean(dim=(2, 3)))


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(1)
    return torch.rand(size, 3, 16, 16, generator=stream), torch.randint(K, (size,), generator=stream)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


MIXER = ManifoldMixup(layers=("input", "features"))


def test_feature_mixing_is_one_pass_of_transformed_images() -> None:
    images, labels = batch()
    model = Counting()
    method = ManifoldMixup(layers=("features",))
    out = FeatureMixingStep(model, method, transforms=[Cutout(size=6)], generator=seeded())(images, labels)
    assert len(model.shown) == 1
    stream = seeded()
    cut = Cutout(size=6)(images, generator=stream)
    assert torch.equal(model.shown[0], cut)
    with method.mixing(model, cut, labels, generator=stream) as mixed:
        logits = model(mixed.images)
    torch.testing.assert_close(out.logits, logits)
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(logits, mixed.targets(K)))
    assert torch.equal(out.mixed.partner, mixed.partner)


@needs_torchvision
def test_views_are_one_pass_of_all_and_the_clean_logits_come_back() -> None:
    images, labels = batch()
    model = Counting()
    out = ViewsStep(model, AugMix(), generator=seeded())(images, labels)
    (shown,) = model.shown
    views = AugMix().views(images, generator=seeded())
    assert torch.equal(shown, torch.cat(views))
    logits = model(shown)
    torch.testing.assert_close(out.logits, logits[:8])
    expected = AugMix().loss(logits.chunk(3), sg.MixedBatch.unmixed(images, labels), sg.mixed_cross_entropy)
    torch.testing.assert_close(out.loss, expected)
    assert out.mixed is None


@pytest.mark.parametrize(
    ("kind", "method"), [(FeatureMixingStep, MIXER), pytest.param(ViewsStep, AugMix(), marks=needs_torchvision)]
)
def test_warm_up_trains_plainly_and_is_part_of_the_state(kind: type, method: object) -> None:
    images, labels = batch()
    model = Counting()
    step = kind(model, method, warmup_steps=2, generator=seeded())
    outs = [step(images, labels) for _ in range(3)]
    ready = method.prepare(images) if kind is ViewsStep else images
    for shown, out in zip(model.shown[:2], outs[:2], strict=True):
        assert torch.equal(shown, ready)
        assert out.mixed is None
        torch.testing.assert_close(out.loss, nn.functional.cross_entropy(out.logits, labels))
    assert not torch.equal(model.shown[2], ready) or outs[2].mixed is not None

    resumed_model = Counting()
    resumed = kind(resumed_model, method, warmup_steps=2, generator=torch.Generator())
    resumed.load_state_dict(step.state_dict())
    assert resumed.steps_taken == 3
    step(images, labels)
    resumed(images, labels)
    assert torch.equal(resumed_model.shown[-1], model.shown[-1])


def test_training_step_finds_the_step_of_every_kind() -> None:
    model = Counting()
    assert type(training_step(model, None)) is sg.MixingStep
    assert training_step(model, []).method is None
    assert type(training_step(model, sg.CutMix(), warmup_steps=3)) is sg.MixingStep
    assert type(training_step(model, AttentiveCutMix())) is sg.MixingStep
    assert type(training_step(model, sg.SaliencyGrafting())) is sg.GraftingStep
    assert training_step(model, Cutout()).method == Compose([Cutout()])
    assert training_step(model, [Cutout(), sg.Mixup()]).method == Compose([Cutout(), sg.Mixup()])
    assert type(training_step(model, [Cutout(), sg.SaliencyGrafting()], copies=2)) is sg.GraftingStep
    features = training_step(model, [Cutout(), MIXER], warmup_steps=7)
    assert (type(features), features.transforms, features.warmup_steps) == (FeatureMixingStep, (Cutout(),), 7)
    assert type(training_step(model, AugMix())) is ViewsStep


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ([sg.Mixup(), Cutout()], TypeError, r"transforms must be image transforms such as Cutout\(\), got Mixup"),
        ([Cutout(), AugMix()], ValueError, "AugMix must stand alone, got Cutout before it"),
        ("cutout", TypeError, "got str"),
        (3, TypeError, r"methods must be methods such as Cutout\(\) or Mixup\(\), got int"),
    ],
)
def test_training_step_refuses_what_does_not_go_together(methods: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        training_step(Counting(), methods)


def test_steps_refuse_other_kinds() -> None:
    with pytest.raises(TypeError, match=r"method must be a feature mixer such as ManifoldMixup\(\), got Mixup"):
        FeatureMixingStep(Counting(), sg.Mixup())
    with pytest.raises(TypeError, match=r"method must be a step strategy such as AugMix\(\), got Cutout"):
        ViewsStep(Counting(), Cutout())
    with pytest.raises(ValueError, match="labels must have one entry per image"):
        FeatureMixingStep(Counting(), MIXER)(batch()[0], torch.tensor([0]))
