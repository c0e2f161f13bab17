"""Steps of the other kinds: one pass each, the same call and state as the steps of batch mixers."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.processes import run_in_two
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import AttentiveCutMix, AugMix, Compose, Cutout, ManifoldMixup, MethodChoice
from saligraft.methods.registry import REGISTRY
from saligraft.steps import ChoiceStep, FeatureMixingStep, ViewsStep, training_step

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
        if torch.is_grad_enabled():  # not the pass that finds the layer
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


@pytest.mark.parametrize(
    "method",
    [
        sg.SaliencyGrafting(),
        sg.CutMix(),
        MIXER,
        pytest.param(AugMix(), marks=needs_torchvision),
        sg.PuzzleMix(adversarial_probability=0.5),
        MethodChoice([MIXER, sg.Mixup()]),
    ],
    ids=lambda method: type(method).__name__,
)
def test_disabled_steps_are_one_plain_pass_and_draw_nothing(method: object) -> None:
    images, labels = batch()
    model, generator = Counting(), seeded()
    step = training_step(model, method, generator=generator)
    before = generator.get_state()
    step.enabled = False
    out = step(images, labels)
    assert len(model.shown) == 1
    assert torch.equal(model.shown[0], method.prepare(images) if isinstance(method, AugMix) else images)
    assert out.mixed is None
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(out.logits, labels))
    assert torch.equal(generator.get_state(), before)

    resumed = training_step(Counting(), method, generator=torch.Generator())
    resumed.load_state_dict(step.state_dict())
    assert not resumed.enabled


@needs_torchvision
def test_every_kind_takes_a_plain_criterion() -> None:
    criterion = nn.CrossEntropyLoss(label_smoothing=0.3)
    smoothed = partial(sg.mixed_cross_entropy, label_smoothing=0.3)
    for method in (sg.SaliencyGrafting(), sg.CutMix(), MIXER, AugMix(), MethodChoice([sg.Mixup()])):
        torch.manual_seed(0)
        model = Counting()
        losses = [
            training_step(model, method, criterion=each, generator=seeded())(*batch()).loss
            for each in (criterion, smoothed)
        ]
        torch.testing.assert_close(*losses)


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
        ([Cutout(), AugMix()], ValueError, "AugMix must be used alone, got Cutout before it"),
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


KINDS = [None, MIXER, [Cutout(size=6), MIXER], AugMix(normalized=True), [Cutout(size=6)], sg.SaliencyGrafting()]


def kinds_batch() -> tuple[Tensor, Tensor]:
    """Images as AugMix takes them for normalised."""
    images, labels = batch()
    return images * 2 - 1, labels


@needs_torchvision
def test_a_choice_trains_each_batch_by_the_step_of_the_drawn_method() -> None:
    step = training_step(Counting(), MethodChoice(KINDS), generator=seeded())
    kinds = [sg.MixingStep, FeatureMixingStep, FeatureMixingStep, ViewsStep, sg.MixingStep, sg.GraftingStep]
    assert [type(one) for one in step.steps] == kinds
    stream, drawn = seeded(), set()
    for _ in range(30):
        torch.manual_seed(0)
        step.model.shown.clear()
        out = step(*kinds_batch())
        shown = list(step.model.shown)
        place = MethodChoice(KINDS).draw(generator=stream)
        torch.manual_seed(0)
        alone = training_step(step.model, KINDS[place], generator=stream)
        step.model.shown.clear()
        expected = alone(*kinds_batch())
        assert all(torch.equal(a, b) for a, b in zip(shown, step.model.shown, strict=True))
        torch.testing.assert_close(out.loss, expected.loss)
        drawn.add(place)
    assert drawn == set(range(len(KINDS)))


@needs_torchvision
def test_a_choice_warms_up_resumes_and_can_pass_over() -> None:
    model = Counting()
    step = ChoiceStep(model, MethodChoice(KINDS, probability=0.5), warmup_steps=1, generator=seeded())
    images, labels = kinds_batch()
    assert step(images, labels).mixed is None
    assert torch.equal(model.shown[-1], images)
    resumed = ChoiceStep(model, step.method, warmup_steps=1, generator=torch.Generator())
    resumed.load_state_dict(step.state_dict())
    for _ in range(12):
        model.shown.clear()
        step(images, labels)
        first = list(model.shown)
        model.shown.clear()
        resumed(images, labels)
        assert all(torch.equal(a, b) for a, b in zip(first, model.shown, strict=True))
    none = ChoiceStep(model, MethodChoice([MIXER], probability=0.0))
    assert none(images, labels).mixed is None


def test_options_reach_the_members_that_have_a_use_for_them() -> None:
    members = [None, MIXER, sg.Mixup(), sg.SaliencyMix(), AttentiveCutMix(), sg.SaliencyGrafting(), sg.PuzzleMix()]
    own = training_step(Counting(), MethodChoice(members)).steps
    sources = ["FeatureMap", "FeatureMap", "InputGradient"]
    assert [type(step.source).__name__ for step in own[4:]] == sources  # each its authors'
    named = training_step(Counting(), MethodChoice(members), saliency_source="cam", copies=2, layer="features").steps
    assert [getattr(step, "source", None) for step in named[:4]] == [None] * 4
    assert {type(step.source).__name__ for step in named[4:]} == {"ClassActivation"}
    assert named[5].copies == 2
    spectral = training_step(Counting(), MethodChoice(members[:4]), saliency_source="spectral-residual").steps
    assert [type(getattr(step, "source", None)).__name__ for step in spectral[2:]] == ["NoneType", "SpectralResidual"]
    assert training_step(Counting(), [Cutout(), MethodChoice([MIXER])]).steps[0].transforms == (Cutout(),)


def test_a_choice_refuses_what_has_no_meaning() -> None:
    model = Counting()
    with pytest.raises(TypeError, match="copies must be left out of a choice in which no method uses it"):
        training_step(model, MethodChoice([MIXER, sg.Mixup()]), copies=2)
    with pytest.raises(ValueError, match="normalized must be True for AugMix in a choice"):
        training_step(model, MethodChoice([AugMix(), None]))
    with pytest.raises(ValueError, match="AugMix must be used alone"):
        training_step(model, [Cutout(), MethodChoice([AugMix(normalized=True)])])
    with pytest.raises(TypeError, match=r"method must be MethodChoice\(\[...\]\), got Mixup"):
        ChoiceStep(model, sg.Mixup())


@needs_torchvision
@pytest.mark.parametrize("generator", [True, False])
@pytest.mark.parametrize("name", [*REGISTRY, "top-k", "choice", "adversarial noise"])
def test_torch_s_default_device_changes_nothing(name: str, generator: bool) -> None:
    """Draws are made on the host, and all else where the images are; "meta" stands for a GPU that is the default."""
    if name == "puzzlemix" or name == "adversarial noise":
        pytest.importorskip("scipy", reason="the default solver needs the extra puzzle")
    others = {
        "manifold-mixup": MIXER,
        "augmix": AugMix(normalized=True),
        "top-k": sg.SaliencyGrafting(selection="top-k", per="sample", probability=0.7),
        "choice": MethodChoice([sg.CutMix(), sg.RandomChoice([sg.Mixup(), sg.SaliencyMix()], per="sample")]),
        "adversarial noise": sg.PuzzleMix(adversarial_probability=1.0),
    }
    method = others[name] if name in others else REGISTRY[name].method()
    images, labels = kinds_batch()
    losses = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        step = training_step(Counting(), method, generator=seeded() if generator else None)
        with torch.device(device):
            losses += [step(images, labels).loss, step(images, labels).loss]
    assert [loss.device.type for loss in losses] == ["cpu"] * 4
    assert torch.equal(torch.stack(losses[:2]), torch.stack(losses[2:]))


DISTRIBUTED = {
    "augmix": AugMix(normalized=True),
    "puzzlemix": sg.PuzzleMix(adversarial_probability=1.0),
    # Two passes, one pass of three views, one pass: processes that drew for themselves would wait for each other.
    "choice": MethodChoice([sg.SaliencyGrafting(), AugMix(normalized=True), None]),
}


def two_processes(rank: int, folder: Path) -> None:
    """Train under DDP with gloo by each method in turn; each rank writes the gradients it ended with."""
    images, labels = (part[4 * rank : 4 * rank + 4] for part in kinds_batch())
    gradients: dict[str, list[Tensor]] = {}
    for name, method in DISTRIBUTED.items():
        torch.manual_seed(0)
        options = {} if torch.__version__ >= "2.13" else {"broadcast_buffers": False}
        model = nn.parallel.DistributedDataParallel(Counting(), **options)
        step = training_step(model, method, generator=torch.Generator().manual_seed(rank))
        for _ in range(8 if name == "choice" else 2):
            step(images, labels).loss.backward()
        gradients[name] = [parameter.grad for parameter in model.parameters()]
    torch.save(gradients, folder / f"{rank}.pt")


@pytest.mark.slow
@needs_torchvision
def test_two_processes_share_their_gradients(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the default solver needs the extra puzzle")
    run_in_two(two_processes, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name in DISTRIBUTED:
        assert any(gradient.abs().sum() > 0 for gradient in first[name])
        assert all(torch.equal(a, b) for a, b in zip(first[name], second[name], strict=True))
