"""What every source must hold: its maps, its cost in passes, and that it has no side effects."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saligraft.masks import salient_regions
from saligraft.saliency import SALIENCY_SOURCES, FeatureMap, OwnFunction, SaliencyCapture, saliency_source
from saligraft.saliency.base import NetworkSource

K = 5
names = pytest.mark.parametrize("name", SALIENCY_SOURCES)
network_names = pytest.mark.parametrize(
    "name", [name for name, source in SALIENCY_SOURCES.items() if issubclass(source, NetworkSource)]
)


class Net(nn.Module):
    """Batch norm, dropout, Python's random stream and a count of passes: all that a pass can leave a trace in."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.frozen = nn.BatchNorm2d(8).eval()  # a part in another mode than the rest
        self.drop, self.pool, self.fc = nn.Dropout(0.3), nn.AdaptiveAvgPool2d(1), nn.Linear(8, K)
        self.register_buffer("passes", torch.zeros(()))
        self.failing = False

    def forward(self, images: Tensor) -> Tensor:
        self.passes = self.passes + 1  # a new tensor, not the old one changed
        random.random()
        features = self.frozen(self.block(images)).relu()
        logits = self.fc(self.drop(self.pool(features).flatten(1)))
        if self.failing:
            raise RuntimeError("out of luck")
        return logits


def trace(model: nn.Module) -> list[object]:
    """Everything that a source must leave as it was."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        {name: (value.clone(), id(value), value._version) for name, value in model.named_buffers()},
        {name: (value.clone(), value.grad, value.requires_grad) for name, value in model.named_parameters()},
        [(name, module.training) for name, module in model.named_modules()],
        [len(getattr(module, table)) for module in model.modules() for table in tables],
        torch.get_rng_state(),
        random.getstate(),
        torch.is_grad_enabled(),
    ]


def assert_same(before: object, after: object) -> None:
    if isinstance(before, Tensor):
        assert torch.equal(before, after)
    elif isinstance(before, dict):
        assert before.keys() == after.keys()
        for key in before:
            assert_same(before[key], after[key])
    elif isinstance(before, (list, tuple)):
        for each, other in zip(before, after, strict=True):
            assert_same(each, other)
    else:
        assert before == after


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    model = Net().train()
    model.frozen.eval()
    return model


def batch(count: int = 4, channels: int = 3, size: tuple[int, int] = (12, 16)) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, *size, generator=stream), torch.randint(K, (count,), generator=stream)


@names
@pytest.mark.parametrize(
    ("labels", "count", "channels", "dtype"),  # every pair of values once
    [
        ("index", 1, 1, torch.float32),
        ("probability", 3, 1, torch.bfloat16),
        ("index", 3, 3, torch.bfloat16),
        ("probability", 1, 3, torch.float32),
        ("index", 1, 4, torch.bfloat16),
        ("probability", 3, 4, torch.float32),
    ],
)
def test_maps(name: str, labels: str, count: int, channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Net(channels).to(dtype)
    images, truth = batch(count, channels)
    truth = truth if labels == "index" else torch.eye(K)[truth] * 0.8 + 0.2 / K
    images = images.to(dtype)
    kept = images.clone()
    source = saliency_source(name, model)
    logits, shared = source.with_logits(model, images, truth)
    for saliency in (source(images, truth), shared):
        assert saliency.shape in ((count, 12, 16), (count, 6, 8))
        assert saliency.dtype == torch.float32
        assert saliency.isfinite().all()
        assert (saliency >= 0).all()
        assert not saliency.requires_grad
    assert logits.shape == (count, K)
    assert logits.requires_grad
    assert torch.equal(images, kept)
    assert images.grad is None


@names
@pytest.mark.parametrize(("mode", "gradients"), [("eval", False), ("eval", True), ("current", True)])
def test_no_trace_by_itself(name: str, model: Net, mode: str, gradients: bool) -> None:
    images, labels = batch()
    if gradients:
        model(images).sum().backward()
    is_network = issubclass(SALIENCY_SOURCES[name], NetworkSource)
    source = saliency_source(name, model, **({"mode": mode} if is_network else {}))
    before = trace(model)
    for _ in range(2):  # the first call may look for the layer
        source(images, labels)
        assert_same(before, trace(model))
    with torch.no_grad():  # dropout drops the same units again where the random stream is as it was
        assert_same(source(images, labels), source(images, labels))
    assert_same(before, trace(model))


@network_names
@pytest.mark.parametrize("known", [False, True])
def test_no_trace_after_an_error(name: str, model: Net, known: bool) -> None:
    images, labels = batch()
    source = saliency_source(name, model)
    if known:
        source(images, labels)
    model.failing = True
    before = trace(model)
    with pytest.raises(RuntimeError, match="out of luck"):
        source(images, labels)
    with pytest.raises(RuntimeError, match="channels"):
        source(images[:, :2], labels)
    assert_same(before, trace(model))
    model.failing = False
    assert source(images, labels).isfinite().all()
    assert_same(before, trace(model))


@network_names
def test_by_itself_between_a_pass_and_its_backward(name: str, model: Net) -> None:
    images, labels = batch()
    loss = nn.functional.cross_entropy(model(images), labels)
    saliency_source(name, model, mode="current")(images, labels)
    loss.backward()  # would fail if batch norm's buffers had been written to
    assert model.fc.weight.grad is not None


@network_names
def test_a_training_pass_with_saliency_equals_one_without(name: str, model: Net) -> None:
    plain, (images, labels) = copy.deepcopy(model), batch()
    source = saliency_source(name, model)
    for step in range(3):
        states = []
        for network in (plain, model):
            torch.manual_seed(step)
            random.seed(step)
            logits = network(images) if network is plain else source.with_logits(network, images, labels)[0]
            assert network is plain or all(parameter.grad is None for parameter in network.parameters()) or step
            nn.functional.cross_entropy(logits, labels).backward()
            gradients = [parameter.grad.clone() for parameter in network.parameters()]
            buffers = [buffer.clone() for buffer in network.buffers()]
            states.append([logits.detach(), *gradients, *buffers, torch.get_rng_state(), random.getstate()])
        assert_same(*states)


@names
def test_the_cost_is_as_declared(name: str, model: Net) -> None:
    """Counted at the first convolution: its calls, and whether a gradient came back to it."""
    images, labels = batch()
    source = saliency_source(name, model)
    source.with_logits(model, images, labels)  # the first call may look for the layer
    forward, backward = [], []

    def count(_: nn.Module, __: object, output: Tensor) -> None:
        forward.append(1)
        if output.requires_grad:
            output.register_hook(lambda _: backward.append(1))

    handle = model.block[0].register_forward_hook(count)
    source(images, labels)
    assert (len(forward), len(backward)) == source.alone
    forward.clear()
    backward.clear()
    source.with_logits(model, images, labels)
    handle.remove()
    assert (len(forward) - 1, len(backward)) == source.shared


def test_the_default_is_the_papers(model: Net) -> None:
    images, labels = batch()
    model.eval()
    source = saliency_source(None, model)
    assert isinstance(source, FeatureMap)
    expected_logits, expected = SaliencyCapture(model)(images)
    torch.testing.assert_close(source(images), expected)
    logits, saliency = source.with_logits(model, images, labels)
    torch.testing.assert_close((logits, saliency), (expected_logits, expected))


@network_names
def test_evaluation_mode_by_itself_and_the_current_one_on_demand(name: str, model: Net) -> None:
    images, labels = batch()
    model.drop.p = 0.0
    by_mode = {mode: saliency_source(name, model, mode=mode)(images, labels) for mode in ("eval", "current")}
    assert not torch.allclose(by_mode["eval"], by_mode["current"])
    torch.testing.assert_close(saliency_source(name, copy.deepcopy(model).eval())(images, labels), by_mode["eval"])
    shared = saliency_source(name, model).with_logits(model, images, labels)[1]
    torch.testing.assert_close(shared, by_mode["current"])


@network_names
def test_another_network_than_the_one_in_training(name: str, model: Net) -> None:
    images, labels = batch()
    torch.manual_seed(5)
    teacher = Net().eval()
    source = saliency_source(name, teacher)
    before = trace(teacher)
    logits, saliency = source.with_logits(model, images, labels)
    assert_same(before[:4], trace(teacher)[:4])
    torch.testing.assert_close(saliency, source(images, labels))
    logits.sum().backward()
    assert model.fc.weight.grad is not None
    assert teacher.fc.weight.grad is None


@pytest.mark.parametrize("name", ["feature-map", "cam", "grad-cam"])
def test_a_layer_by_name(name: str, model: Net) -> None:
    images, labels = batch()
    named = saliency_source(name, model, layer="block.0")(images, labels)
    assert named.shape == (4, 6, 8)
    assert not torch.allclose(named, saliency_source(name, model)(images, labels))


def test_a_function_of_ones_own(model: Net) -> None:
    images, labels = batch()
    source = saliency_source(lambda x: x.abs().mean(dim=1).bfloat16().requires_grad_(), model)
    assert isinstance(source, OwnFunction)
    logits, saliency = source.with_logits(model, images, labels)
    assert (saliency.shape, saliency.dtype, saliency.requires_grad) == ((4, 12, 16), torch.float32, False)
    assert salient_regions(saliency).any()
    assert logits.requires_grad
    assert saliency_source(source, model) is source
    with pytest.raises(ValueError, match="must have one map per image: expected 4, got 3"):
        saliency_source(lambda x: x[1:, 0], model)(images)
    with pytest.raises(ValueError, match=r"saliency of the function must have shape \(B, h, w\)"):
        saliency_source(lambda x: x, model)(images)


def with_labels(images: Tensor, labels: Tensor) -> Tensor:
    return labels.float()[:, None, None] + images[:, 0].abs()


class Labelled:
    def __call__(self, pixels: Tensor, truth: Tensor, scale: float = 1.0) -> Tensor:
        return scale * with_labels(pixels, truth)


class LabelledModule(nn.Module):
    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return with_labels(images, labels)


@pytest.mark.parametrize(
    "function",
    [
        with_labels,
        Labelled(),
        LabelledModule(),
        partial(lambda scale, images, labels: scale * with_labels(images, labels), 1.0),
        lambda images, *, labels: with_labels(images, labels),
        lambda images, labels: with_labels(images, labels)[:, None],
    ],
)
def test_a_function_that_takes_labels(function: Callable[..., Tensor], model: Net) -> None:
    images, labels = batch()
    assert_same(saliency_source(function, model)(images, labels), with_labels(images, labels))
    with pytest.raises(ValueError, match="labels must be given to the saliency function, which takes them; got None"):
        saliency_source(function, model)(images)


@pytest.mark.parametrize(
    "function",
    [
        lambda images, power=2.0: images[:, 0].abs() ** power,
        lambda images, *_: images[:, 0].square(),
        lambda images, **_: images[:, :1].square(),
    ],
)
def test_a_function_with_options_gets_images_alone(function: Callable[..., Tensor], model: Net) -> None:
    images, labels = batch()
    torch.testing.assert_close(saliency_source(function, model)(images, labels), images[:, 0].square())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_function_of_ones_own_leaves_no_trace(model: Net, fails: bool, wrapped: bool) -> None:
    (images, labels), outer = batch(), nn.DataParallel(model) if wrapped else model
    outer(images).sum().backward()
    model.block[2].register_forward_hook(lambda *_: None)  # one that must stay

    def careless(pixels: Tensor, truth: Tensor) -> Tensor:
        outer.eval()
        outer.register_forward_hook(lambda *_: None)
        model.block[0].register_full_backward_hook(lambda *_: None)
        model.block[0].weight.requires_grad_(False)
        model.block[1].train()
        pixels.requires_grad_()
        model(pixels)[:, 0].sum().backward()
        saliency = pixels.grad.abs().sum(dim=1)
        with torch.no_grad():
            pixels.zero_()
            truth.zero_()
        torch.set_grad_enabled(False)
        random.random()
        np.random.random()
        torch.rand(3)
        if fails:
            raise RuntimeError("out of luck")
        return saliency

    source = saliency_source(careless, outer)
    before, kept, position = trace(outer), (images.clone(), labels.clone()), np.random.get_state()[2]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="out of luck") if fails else nullcontext():
        assert source(images, labels).any()
    assert_same(before, trace(outer))
    assert_same(gradients, [parameter.grad for parameter in model.parameters()])
    assert_same(kept, (images, labels))
    assert not images.requires_grad
    assert np.random.get_state()[2] == position


def test_a_function_that_is_a_network_leaves_no_trace_in_it(model: Net) -> None:
    class Maps(Net):
        def forward(self, images: Tensor) -> Tensor:
            super().forward(images)
            return images.abs().mean(dim=1, keepdim=True)

    maps, images = Maps(), batch()[0]
    before = trace(maps)
    assert saliency_source(maps, model)(images).shape == (4, 12, 16)
    assert_same(before, trace(maps))


def test_wrong_names_and_settings_are_named(model: Net) -> None:
    with pytest.raises(ValueError, match=r"saliency source must be one of 'feature-map', 'cam', .* got 'gradcam'"):
        saliency_source("gradcam", model)
    with pytest.raises(TypeError, match=r"saliency source must be one of 'feature-map', .* got int"):
        saliency_source(3, model)
    with pytest.raises(ValueError, match="layer must not be given for 'fine-grained'"):
        saliency_source("fine-grained", model, layer="block")
    with pytest.raises(ValueError, match="must be a name, such as 'cam', to go with layer, got OwnFunction"):
        saliency_source(OwnFunction(lambda x: x[:, 0]), model, layer="block")
    with pytest.raises(ValueError, match="mode must be one of 'eval', 'current'; got 'test'"):
        saliency_source("cam", model, mode="test")
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        saliency_source("input-gradient", lambda x: x)
    with pytest.raises(TypeError, match="function must be callable, got int"):
        OwnFunction(3)
    with pytest.raises(TypeError, match=r"must take images, or images and labels, got \(images, labels, scale\)"):
        OwnFunction(lambda images, labels, scale: images[labels, 0] * scale)


@pytest.fixture
def one_process_group(tmp_path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process_group")
@network_names
def test_distributed_data_parallel(name: str, model: Net) -> None:
    images, labels = batch()
    model.eval()
    inner = saliency_source(name, copy.deepcopy(model))
    wrapped = DistributedDataParallel(model)
    source = saliency_source(name, wrapped)
    before = trace(model)
    torch.testing.assert_close(source(images, labels), inner(images, labels))
    assert_same(before, trace(model))
    for _ in range(2):
        logits, saliency = source.with_logits(wrapped, images, labels)
        torch.testing.assert_close(saliency, inner(images, labels))
        logits.sum().backward()
    assert model.fc.weight.grad is not None
