"""GraftingStep and MixingStep: the passes, the weights, the warm-up, and a loop of one's own."""

import copy
import importlib
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.processes import run_in_two
from torch import nn

import saligraft as sg
from saligraft.steps import training_step

K = 4


class Counting(nn.Module):
    """A small network with batch norm that counts its passes and keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, K)
        self.shown: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.shown.append(images)
        return self.head(self.features(images).mean(dim=(2, 3)))


def batch(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 16, 16, generator=stream), torch.randint(K, (size,), generator=stream)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_is_the_paper_written_out() -> None:
    """The step against the same step composed by hand from the public pieces."""
    torch.manual_seed(0)
    model = Counting()
    twin = copy.deepcopy(model)
    images, labels = batch()
    out = sg.GraftingStep(model, sg.SaliencyGrafting(), layer="features.2", generator=seeded())(images, labels)

    features = twin.features(images)
    logits = twin.head(features.mean(dim=(2, 3)))
    mixed = sg.SaliencyGrafting()(images, labels, sg.feature_saliency(features), generator=seeded())
    original_loss = nn.functional.cross_entropy(logits, labels)
    mixed_loss = nn.functional.cross_entropy(twin(mixed.images), mixed.targets(K))
    loss = (original_loss + mixed_loss) / 2

    torch.testing.assert_close(out.loss, loss)
    torch.testing.assert_close(out.logits, logits)
    assert torch.equal(out.mixed.images, mixed.images)
    out.loss.backward()
    loss.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(model.features[1].running_var, twin.features[1].running_var)


@pytest.mark.parametrize("copies", [1, 3])
def test_passes_are_one_for_the_originals_and_one_per_copy(copies: int) -> None:
    model = Counting()
    images, labels = batch()
    step = sg.GraftingStep(model, sg.SaliencyGrafting(threshold=0.5), copies=copies, generator=seeded())
    step(images, labels)
    assert len(model.shown) == 1 + 1 + copies  # the first call finds the layer
    model.shown.clear()
    step(images, labels)
    assert len(model.shown) == 1 + copies
    assert model.shown[0] is images
    grafted = model.shown[1:]
    assert len({tuple(one.flatten().tolist()) for one in grafted}) == copies  # each redrawn


def test_originals_and_each_of_k_copies_count_equally_in_the_loss() -> None:
    """The mean of k + 1 losses, each computed by hand from the public pieces."""
    model, copies = Counting().eval(), 3  # without batch statistics the losses do not depend on the order of passes
    images, labels = batch()
    method, stream = sg.SaliencyGrafting(threshold=0.5), seeded()
    step = sg.GraftingStep(model, method, layer="features", copies=copies, generator=seeded())
    saliency = sg.feature_saliency(model.features(images))
    losses = [nn.functional.cross_entropy(model(images), labels)]
    for _ in range(copies):
        mixed = method(images, labels, saliency, generator=stream)
        losses.append(nn.functional.cross_entropy(model(mixed.images), mixed.targets(K)))
    assert len({round(loss.item(), 4) for loss in losses}) == copies + 1  # other weights would give another mean
    torch.testing.assert_close(step(images, labels).loss, sum(losses) / (copies + 1))


def test_loss_weights() -> None:
    model = Counting().eval()  # without batch statistics the losses do not depend on the order of passes
    images, labels = batch()
    losses = {
        weights: sg.GraftingStep(
            model, sg.SaliencyGrafting(), loss_weights=weights, layer="features", generator=seeded()
        )(images, labels).loss.item()
        for weights in [(1.0, 0.0), (0.0, 1.0), (0.3, 0.7)]
    }
    assert losses[0.3, 0.7] == pytest.approx(0.3 * losses[1.0, 0.0] + 0.7 * losses[0.0, 1.0], rel=1e-5)
    default = sg.GraftingStep(model, sg.SaliencyGrafting(), layer="features", generator=seeded())(images, labels)
    assert default.loss.item() == pytest.approx((losses[1.0, 0.0] + losses[0.0, 1.0]) / 2, rel=1e-5)


@pytest.mark.parametrize("kind", [sg.GraftingStep, sg.MixingStep])
def test_warm_up_trains_plainly_and_is_part_of_the_state(kind: type) -> None:
    method = sg.SaliencyGrafting() if kind is sg.GraftingStep else sg.CutMix()
    images, labels = batch()
    model = Counting()
    step = kind(model, method, warmup_steps=2, generator=seeded())
    first, second, third = (step(images, labels) for _ in range(3))
    assert first.mixed is None
    assert second.mixed is None
    assert third.mixed is not None
    assert model.shown[0] is images
    assert model.shown[1] is images

    resumed = kind(Counting(), method, warmup_steps=2, generator=torch.Generator())
    resumed.load_state_dict(step.state_dict())
    assert resumed.steps_taken == 3
    after, expected = resumed(images, labels).mixed, step(images, labels).mixed
    assert torch.equal(after.partner, expected.partner)


def test_mixing_step_is_one_pass_of_mixed_images_or_plain() -> None:
    images, labels = batch()
    model = Counting()
    out = sg.MixingStep(model, sg.CutMix(), generator=seeded())(images, labels)
    assert len(model.shown) == 1
    assert model.shown[0] is out.mixed.images
    torch.testing.assert_close(out.loss, sg.mixed_cross_entropy(out.logits, out.mixed))
    plain = sg.MixingStep(model)(images, labels)
    torch.testing.assert_close(plain.loss, nn.functional.cross_entropy(plain.logits, labels))


SOURCES = ["feature-map", "cam", "grad-cam", "input-gradient", "fine-grained", "spectral-residual"]


@pytest.mark.parametrize("source", [*SOURCES, lambda images: images.abs().mean(dim=1)])
@pytest.mark.parametrize("kind", [sg.GraftingStep, sg.MixingStep])
def test_any_source_works_with_any_step(source: object, kind: type) -> None:
    model = Counting()
    images, labels = batch()
    step = kind(model, sg.SaliencyGrafting(), saliency_source=source, generator=seeded())
    out = step(images, labels)
    assert out.mixed is not None
    out.loss.backward()
    before = model.features[1].running_mean.clone()
    step.source(images, labels)
    assert torch.equal(model.features[1].running_mean, before)


@pytest.mark.parametrize("compiled_model", [False, True])
def test_compiled_passes_train_as_uncompiled_ones_do(compiled_model: bool) -> None:
    """Both passes of every step, the first among them, and their backward through batch norm."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, K))
    twin = copy.deepcopy(model)
    capture = torch.compile(sg.SaliencyCapture(model), backend="aot_eager")
    trained = torch.compile(model, backend="aot_eager") if compiled_model else model
    steps = [
        sg.GraftingStep(trained, sg.SaliencyGrafting(), saliency_source=capture, generator=seeded()),
        sg.GraftingStep(twin, sg.SaliencyGrafting(), generator=seeded()),
    ]
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in (model, twin)]
    for _ in range(3):
        losses = []
        for step, optimizer in zip(steps, optimizers, strict=True):
            loss = step(*batch()).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_repr_tells_which_layer_is_read() -> None:
    step = sg.GraftingStep(nn.DataParallel(Counting()), sg.SaliencyGrafting(), generator=seeded())
    before = repr(step)
    step(*batch())
    step.enabled = False
    after = repr(step)
    assert "saliency: feature-map, layer found in the first call\n" in before
    assert "saliency: feature-map, output of 'features'\n" in after
    assert after.startswith("GraftingStep(\n  model: Counting in DataParallel\n  method: SaliencyGrafting(")
    assert "passes: both\n" in after
    assert "compiled: False\n  enabled: False\n  steps_taken: 1\n" in after
    named = sg.GraftingStep(Counting(), sg.SaliencyGrafting(), layer="features", saliency_source="cam", compile="eager")
    assert "saliency: cam, layer 'features'\n" in repr(named)
    assert "compiled: True\n" in repr(named)
    assert "saliency" not in repr(sg.MixingStep(Counting(), sg.CutMix()))
    assert "saliency: spectral-residual\n" in repr(
        sg.MixingStep(Counting(), sg.SaliencyMix(), saliency_source="spectral-residual")
    )


def test_a_negative_map_leaves_its_sample_ungrafted() -> None:
    images, labels = batch()
    step = sg.GraftingStep(Counting(), sg.SaliencyGrafting(), saliency_source=lambda x: -x[:, 0].abs())
    with pytest.warns(UserWarning, match="nothing is mixed"):
        mixed = step(images, labels).mixed
    assert torch.equal(mixed.images, images[mixed.partner])
    assert (mixed.source_weight == 0).all()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_map_leaves_its_sample_ungrafted(broken: float) -> None:
    """A NaN in one sample's features would otherwise reach every label it meets."""

    class Broken(Counting):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            maps = self.features(images)
            return self.head(maps.mean(dim=(2, 3)).nan_to_num(0, 0, 0))

    model = Broken().eval()
    model.features.add_module("spoil", Spoil(broken))
    images, labels = batch()
    out = sg.GraftingStep(model, sg.SaliencyGrafting(), layer="features.spoil", generator=seeded())(images, labels)
    touched = (out.mixed.partner == 0) | (torch.arange(8) == 0)
    assert torch.equal(out.mixed.images[touched], images[out.mixed.partner][touched])
    assert (out.mixed.source_weight[touched] == 0).all()
    assert out.mixed.source_weight.isfinite().all()
    assert out.loss.isfinite()


class Spoil(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        maps = maps.clone()
        maps[0, 0, 0, 0] = self.value
        return maps


class ClassToken(nn.Module):
    """A vision transformer whose logits come from its class token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, K)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(images), 1, 8), patches], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens[:, 0])


@pytest.mark.parametrize("kind", [sg.GraftingStep, sg.MixingStep])
def test_maps_that_are_all_zero_are_warned_of_once_with_source_and_layer(kind: type) -> None:
    torch.manual_seed(0)
    named = {"saliency_source": "grad-cam", "layer": "blocks.1"}
    step = kind(ClassToken(), sg.SaliencyGrafting(), **named)
    with pytest.warns(UserWarning, match=r"'grad-cam' .* only zero maps .* at the output of 'blocks\.1'") as caught:
        mixed = [step(*batch()).mixed for _ in range(2)][-1]
    assert len(caught) == 1
    assert not mixed.mask.any()
    dead = Counting()
    nn.init.zeros_(dead.features[1].weight)
    with pytest.warns(UserWarning, match="source 'feature-map' .* only zero maps .* at the output of 'features'"):
        kind(dead, sg.SaliencyGrafting())(*batch())
    with pytest.warns(UserWarning, match="source '<lambda>' returned only zero maps for a batch$"):
        kind(Counting(), sg.SaliencyGrafting(), saliency_source=lambda images: images[:, 0] * 0)(*batch())
    one_map = (torch.arange(8) == 3)[:, None, None]
    step = kind(Counting(), sg.SaliencyGrafting(), saliency_source=lambda images: images[:, 0].abs() * one_map)
    assert step(*batch()).mixed is not None


@pytest.mark.parametrize("kind", [sg.GraftingStep, sg.MixingStep])
def test_no_value_of_a_map_is_read_on_another_device(kind: type) -> None:
    """On `meta`, where reading one is an error."""
    images, labels = (tensor.to("meta") for tensor in batch())
    step = kind(Counting().to("meta"), sg.SaliencyGrafting(), saliency_source="feature-map")
    assert step(images, labels).loss.is_meta


def test_methods_without_need_of_saliency_ask_no_network_for_it() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, K))
    for method in (sg.CutMix(), sg.SaliencyMix(), sg.RandomChoice([sg.SaliencyMix(), sg.Mixup(), sg.Cutout()])):
        step = sg.GraftingStep(flat, method)
        assert step.source is None
        step(*batch()).loss.backward()


def test_members_of_a_choice_that_differ_in_their_source_need_one_named() -> None:
    choice = sg.RandomChoice([sg.PuzzleMix(), sg.SaliencyGrafting()])
    with pytest.raises(ValueError, match="saliency_source must be given for methods whose own sources differ"):
        sg.GraftingStep(Counting(), choice)
    assert sg.GraftingStep(Counting(), choice, saliency_source="feature-map").source is not None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16])
def test_class_indices_of_any_integer_dtype(dtype: torch.dtype) -> None:
    images, labels = batch()
    torch.manual_seed(0)
    step = sg.GraftingStep(Counting(), sg.SaliencyGrafting(), generator=seeded())
    twin = sg.GraftingStep(copy.deepcopy(step.model), sg.SaliencyGrafting(), generator=seeded())
    assert torch.equal(step(images, labels.to(dtype)).loss, twin(images, labels).loss)


def test_multi_hot_labels_through_the_binary_criterion() -> None:
    """Against torch's own: the mean of the originals' loss and that of the grafts by their mixed labels."""
    torch.manual_seed(0)
    model, (images, _) = Counting().eval(), batch()  # without batch statistics the passes can be repeated
    labels = torch.randint(2, (8, K)).float()
    options = {"criterion": sg.mixed_binary_cross_entropy, "generator": seeded()}
    out = sg.GraftingStep(model, sg.SaliencyGrafting(), **options)(images, labels)
    weight, partner = out.mixed.source_weight[:, None], out.mixed.partner
    assert ((weight > 0) & (weight < 1)).any()
    targets = weight * labels + (1 - weight) * labels[partner]
    originals, grafts = (
        nn.functional.binary_cross_entropy_with_logits(model(shown), rows)
        for shown, rows in ((images, labels), (out.mixed.images, targets))
    )
    torch.testing.assert_close(out.loss, (originals + grafts) / 2)


@pytest.mark.parametrize("warmup_steps", [0, 1])
def test_models_that_return_more_than_logits(warmup_steps: int) -> None:
    class WithExtras(Counting):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": super().forward(images), "hidden": images}

    images, labels = batch()
    steps = (
        sg.GraftingStep(WithExtras(), sg.SaliencyGrafting(), warmup_steps=warmup_steps),
        sg.MixingStep(WithExtras(), sg.CutMix(), warmup_steps=warmup_steps),
    )
    for step in steps:
        assert step(images, labels).logits.shape == (8, K)


@pytest.mark.parametrize("method", [None, sg.CutMix(), sg.SaliencyGrafting(), sg.ManifoldMixup(layers=["features"])])
@pytest.mark.parametrize("source", [None, "cam"])
def test_a_second_head_is_named_once_in_training(method: object, source: str | None) -> None:
    class TwoHeads(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(8, K)

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            pooled = self.features(images).mean(dim=(2, 3))
            return self.head(pooled), self.second(pooled)

    options = {"saliency_source": source} if source and isinstance(method, sg.SaliencyGrafting) else {}
    model, (images, labels) = TwoHeads(), batch()
    step = sg.training_step(model, method, **options)
    with torch.no_grad():
        step(images, labels)  # trains nothing, and does not warn
    with pytest.warns(UserWarning, match=r"only the logits of TwoHeads .* get no gradient: output\[1\]$") as caught:
        losses = [step(images, labels).loss for _ in range(2)]
    sum(losses).backward()
    assert len(caught) == 1
    assert model.second.weight.grad is None


def test_batch_of_one_and_autocast_and_non_square() -> None:
    model = Counting()
    step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4, 5)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = step(torch.randn(1, 3, 11, 23), torch.tensor([2]))
    assert out.loss.dtype == torch.float32
    assert out.mixed.source_weight.dtype == torch.float32
    out.loss.backward()


def test_leaves_model_and_inputs_unchanged() -> None:
    model = Counting().eval()
    images, labels = batch()
    copies = images.clone(), labels.clone()
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    sg.GraftingStep(model, sg.SaliencyGrafting())(images, labels)
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hooks == sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    assert torch.equal(images, copies[0])
    assert torch.equal(labels, copies[1])


def test_refuses_bad_arguments() -> None:
    model = Counting()
    with pytest.raises(ValueError, match="copies must be >= 1, got 0"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), copies=0)
    with pytest.raises(ValueError, match="warmup_steps must be >= 0, got -1"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), warmup_steps=-1)
    with pytest.raises(ValueError, match=r"loss_weights must have 2 entries .*, got 3"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), loss_weights=(1, 1, 1))
    with pytest.raises(ValueError, match="each of loss_weights must be a finite number >= 0, got -1"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), loss_weights=(1, -1))
    with pytest.raises(ValueError, match="loss_weights must not all be 0"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), loss_weights=(0, 0))
    with pytest.raises(TypeError, match="loss_weights must be a sequence of numbers, got int"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), loss_weights=3)
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got int"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), generator=7)
    with pytest.raises(TypeError, match="criterion must be a function of logits and targets, got int"):
        sg.MixingStep(model, criterion=5)
    with pytest.raises(TypeError, match=r"got a class: pass an instance, CrossEntropyLoss\(\)"):
        sg.MixingStep(model, criterion=torch.nn.CrossEntropyLoss)
    with pytest.raises(TypeError, match=r"dense rows \(B, K\), got NLLLoss, which takes class indices"):
        sg.MixingStep(model, criterion=torch.nn.NLLLoss())
    with pytest.raises(ValueError, match="criterion must have no ignore_index, got 0"):
        sg.MixingStep(model, criterion=torch.nn.CrossEntropyLoss(ignore_index=0))
    with pytest.raises(TypeError, match="enabled must be True or False, got 'no'"):
        sg.MixingStep(model).enabled = "no"
    with pytest.raises(TypeError, match="images must be floating point"):
        sg.MixingStep(model)(torch.ones(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        sg.MixingStep(lambda images: images)
    with pytest.raises(TypeError, match="method must be a batch mixer"):
        sg.GraftingStep(model, "saliency-grafting")
    for refuse in (partial(sg.GraftingStep, model), partial(sg.MixingStep, model), partial(training_step, model)):
        with pytest.raises(TypeError, match="got the class CutMix, not an instance"):
            refuse(sg.CutMix)
    for kind in (sg.RandomChoice, sg.Compose, sg.MethodChoice):
        with pytest.raises(TypeError, match="got the class CutMix, not an instance"):
            kind([sg.CutMix, sg.CutMix()])
    with pytest.raises(TypeError, match="method must be a batch mixer"):
        sg.MixingStep(model, "cutmix")
    with pytest.raises(ValueError, match="layer must be given only where saliency is needed, got 'features'"):
        sg.MixingStep(model, sg.CutMix(), layer="features")
    with pytest.raises(ValueError, match=r"saliency source must be one of 'feature-map', .*; got 'magic'"):
        sg.GraftingStep(model, sg.SaliencyGrafting(), saliency_source="magic")
    with pytest.raises(ValueError, match="labels must have one entry per image"):
        sg.GraftingStep(model, sg.SaliencyGrafting())(*batch()[:1], torch.tensor([0]))


def two_processes(rank: int, folder: Path) -> None:
    """Train two steps under DDP and FSDP2 with gloo; each rank writes the gradient it ended with."""
    torch.manual_seed(0)
    model = Counting()
    if torch.__version__ < "2.13":
        with pytest.raises(ValueError, match="broadcast_buffers=False"):
            sg.GraftingStep(nn.parallel.DistributedDataParallel(model), sg.SaliencyGrafting())
        wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    else:
        wrapped = nn.parallel.DistributedDataParallel(model)
    images, labels = batch(8)
    half = slice(4 * rank, 4 * rank + 4)
    step = sg.GraftingStep(wrapped, sg.SaliencyGrafting(), generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        step(images[half], labels[half]).loss.backward()
    torch.save([parameter.grad for parameter in wrapped.parameters()], folder / f"{rank}.pt")
    if torch.__version__ >= "2.6":  # FSDP2 as documented
        fsdp = importlib.import_module("torch.distributed.fsdp")
        torch.manual_seed(0)
        sharded = fsdp.fully_shard(Counting(), mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        step = sg.GraftingStep(sharded, sg.SaliencyGrafting(), generator=torch.Generator().manual_seed(rank))
        for _ in range(2):
            step(images[half], labels[half]).loss.backward()
        for parameter, other in zip(sharded.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), other.grad)
    torch.manual_seed(1)  # alike on both, as Lightning and Transformers do
    plain = sg.MixingStep(wrapped, sg.CutMix())
    partners = [plain(images[half].repeat(8, 1, 1, 1), labels[half].repeat(8)).mixed.partner for _ in range(2)]
    torch.save([*partners, torch.rand(3)], folder / f"draws-{rank}.pt")


@pytest.mark.slow
def test_two_processes_share_their_gradients_and_no_draws(tmp_path: Path) -> None:
    run_in_two(two_processes, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert any(gradient.abs().sum() > 0 for gradient in first)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    *one, end = torch.load(tmp_path / "draws-0.pt", weights_only=True)
    *other, other_end = torch.load(tmp_path / "draws-1.pt", weights_only=True)
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(end, other_end)  # the global streams stay alike, as the caller seeded them
