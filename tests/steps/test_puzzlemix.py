"""PuzzleMix with adversarial noise: one pass without a trace gives saliency and noise, within the radius."""

import copy
import random
from typing import Any

import pytest
import torch
from tests.steps.test_training_step import Counting, K, seeded
from torch import Tensor, nn

import saligraft as sg
from saligraft.config.saliency_section import Normalization
from saligraft.grafting import spread
from saligraft.methods import Compose, Cutout, MethodChoice, PuzzleMix, RandomChoice
from saligraft.methods.puzzlemix import puzzlemix
from saligraft.saliency.input_gradient import InputGradient, gradient_saliency
from saligraft.steps import PuzzleMixStep, training_step
from saligraft.training import SilentReporter, load_recipe, train
from saligraft.training.setup import load_split, make_network, make_step

pytest.importorskip("scipy", reason="the default solver needs the extra puzzle")

MEAN, STD, RADIUS = (0.5, 0.4, 0.6), (0.2, 0.3, 0.25), 8 / 255
SCALE = {"pixel_mean": MEAN, "pixel_std": STD}


def method(probability: float = 1.0, **options: Any) -> PuzzleMix:
    return PuzzleMix(adversarial_probability=probability, adversarial_radius=RADIUS, **{**SCALE, **options})


def pixels(images: Tensor) -> Tensor:
    return images * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(1)
    values = torch.rand(size, 3, 16, 16, generator=stream)
    return (values - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), torch.arange(size) % K


def network() -> Counting:
    torch.manual_seed(0)
    return Counting().train()


def stepped(model: Counting, mixer: PuzzleMix, **options: Any) -> sg.StepOutput:
    return training_step(model, mixer, generator=seeded(), **options)(*batch())


def test_without_noise_nothing_changes() -> None:
    step = training_step(network(), method(0.0), generator=seeded())
    assert type(step) is sg.MixingStep
    expected = sg.MixingStep(network(), PuzzleMix(pixel_std=STD), generator=seeded())
    for _ in range(3):
        one, other = step(*batch()), expected(*batch())
        assert torch.equal(one.loss, other.loss)
        assert all(torch.equal(a, b) for a, b in zip(one.mixed, other.mixed, strict=True))


def test_where_no_coin_falls_the_step_is_the_plain_one() -> None:
    one, other = stepped(network(), method(1e-9)), stepped(network(), method(0.0))
    assert torch.equal(one.loss, other.loss)
    assert torch.equal(one.mixed.images, other.mixed.images)


def test_shows_noise_within_the_radius_by_one_gradient_at_a_noisy_start() -> None:
    images, labels = batch()
    model = network()
    out = stepped(model, method())
    assert len(model.shown) == 2  # one pass for saliency and noise, one to train
    start = model.shown[0].detach()
    assert 0 < (pixels(start) - pixels(images)).abs().max() <= RADIUS + 1e-6

    drawn = method(0.0).draw(images, generator=seeded())
    saliency = gradient_saliency(InputGradient(network()).gradient(start, labels))
    plain = puzzlemix(
        images, labels, saliency, partner=drawn.partner, ratio=drawn.ratio, grid=drawn.grid, terms=method().terms
    )
    # Mask, weight and moved blocks are those of the originals' pixels; only the noise lies between the two.
    assert torch.equal(out.mixed.mask, plain.mask)
    assert torch.equal(out.mixed.source_weight, plain.source_weight)
    difference = (pixels(out.mixed.images) - pixels(plain.images)).abs()
    assert 0 < difference.max() <= RADIUS + 1e-6
    assert pixels(out.mixed.images).min() >= -1e-6
    assert pixels(out.mixed.images).max() <= 1 + 1e-6
    assert torch.equal(model.shown[1], out.mixed.images)


def test_noise_raises_the_loss() -> None:
    model = network().eval()
    out = stepped(model, method(transport_cost=None))
    shown = sg.graft(batch()[0], batch()[0][out.mixed.partner], out.mixed.mask)
    assert out.loss > sg.mixed_cross_entropy(model(shown), out.mixed)


def test_the_gradient_leaves_no_trace() -> None:
    model, images = network(), batch()[0]
    nn.init.normal_(model.features[1].running_mean)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    seen: list[bool] = []
    handle = model.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    torch_state, python_state, before = torch.get_rng_state(), random.getstate(), images.clone()
    source = InputGradient(model)
    source.gradient(images, batch()[1])
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    step = training_step(model, method(), generator=seeded())
    step(images, batch()[1])
    handle.remove()
    assert seen == [False, False, True]
    assert model.features[1].num_batches_tracked == 1  # by the training pass alone
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert torch.equal(images, before)
    assert not images.requires_grad


def test_a_seed_repeats_and_a_state_resumes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, K))
    step = training_step(model, method(0.5), warmup_steps=1, generator=seeded())
    outs = [step(*batch()) for _ in range(4)]
    assert outs[0].mixed is None
    again = training_step(copy.deepcopy(model), method(0.5), warmup_steps=1, generator=seeded())
    assert all(torch.equal(out.loss, again(*batch()).loss) for out in outs)
    resumed = training_step(copy.deepcopy(model), method(0.5), warmup_steps=1, generator=torch.Generator())
    resumed.load_state_dict(step.state_dict())
    state = step.generator.get_state()
    one = step(*batch()).mixed.images
    assert not torch.equal(step.generator.get_state(), state)
    assert torch.equal(resumed(*batch()).mixed.images, one)


def test_coins_fall_for_source_and_destination_apart() -> None:
    images, labels = batch()
    step = training_step(network(), method(0.5, per="sample", transport_cost=None), generator=seeded())
    kinds = set()
    for _ in range(40):
        mixed = step(images, labels).mixed
        mask = spread(mixed.mask, 16, 16)[:, None]
        others = (mixed.partner != torch.arange(len(images)))[:, None, None, None]
        on_source = (mixed.images - images).abs() * (mask == 1) * others
        on_destination = (mixed.images - images[mixed.partner]).abs() * (mask == 0) * others
        kinds.add((bool(on_source.max() > 1e-4), bool(on_destination.max() > 1e-4)))
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_the_passed_over_stay_as_they_were() -> None:
    out = stepped(network(), method(per="sample"))
    alone = out.mixed.partner == torch.arange(8)
    assert torch.equal(out.mixed.images[alone], batch()[0][alone])
    passed_over = PuzzleMix(adversarial_probability=1.0, probability=0.0, **SCALE)
    assert torch.equal(stepped(network(), passed_over).mixed.images, batch()[0])


def test_a_broken_gradient_spoils_no_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    step = training_step(network(), method(), generator=seeded())
    monkeypatch.setattr(InputGradient, "gradient", lambda _, images, __: torch.full_like(images, torch.nan))
    mixed = step(*batch()).mixed
    assert mixed.images.isfinite().all()
    assert (mixed.source_weight == 0).all()


def test_only_the_step_of_its_own_makes_the_noise() -> None:
    for kind in (sg.MixingStep, sg.GraftingStep):
        with pytest.raises(ValueError, match=r"adversarial_probability must be 0 .* training_step\(model, method\)"):
            kind(network(), method())(*batch())
    for parts in ([Cutout(), method()], Compose([Cutout(), method()]), RandomChoice([sg.Mixup(), method()])):
        with pytest.raises(ValueError, match="above 0 must be used alone or in a MethodChoice"):
            training_step(network(), parts)
    assert type(training_step(network(), MethodChoice([None, method()])).steps[1]) is PuzzleMixStep
    for source in ("cam", InputGradient(network(), of="score")):
        with pytest.raises(ValueError, match="saliency_source must be an InputGradient of 'loss'"):
            training_step(network(), method(), saliency_source=source, layer="features" if source == "cam" else None)
    with pytest.raises(TypeError, match=r"method must be PuzzleMix\(\), got Mixup"):
        PuzzleMixStep(network(), sg.Mixup())


def test_a_recipe_trains_with_it() -> None:
    settings = ("method.options.adversarial_probability=0.9", "data.options.per_class=4", "data.options.size=16")
    tiny = ("network.name=wrn-10-1", "training.batch_size=16", "training.epochs=1", "training.warmup_epochs=0")
    recipe = load_recipe("shapes-wrn-10-2-puzzlemix", (*settings, *tiny))
    data = load_split(recipe, "train")
    methods = recipe.method.build(Normalization(data.mean, data.std))
    step = make_step(recipe, make_network(recipe, data), data, torch.Generator(), methods)
    assert type(step) is PuzzleMixStep
    assert step.scale == (data.mean, data.std)
    noisy, plain = (
        train(load_recipe("shapes-wrn-10-2-puzzlemix", (*chosen, *tiny)), reporter=SilentReporter()).metrics
        for chosen in (settings, settings[1:])
    )
    assert noisy[0].train_loss > 0
    assert noisy[0].train_loss != plain[0].train_loss


def test_gradients_that_are_all_zero_are_warned_of() -> None:
    model = Counting()
    nn.init.zeros_(model.head.weight)
    with pytest.warns(UserWarning, match="source 'input-gradient' returned only zero maps for a batch$"):
        PuzzleMixStep(model, method(), generator=seeded())(*batch())
