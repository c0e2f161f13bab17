"""Compiled models: every way to compile one trains as the uncompiled model does."""

import copy
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel

import saligraft as sg
from saligraft.compiling import noticed, uncompiled, without_ddp
from saligraft.hooks import unwrapped

K = 4
WAYS = ["option", "torch.compile", "model.compile", "part", "part in place", "used before"]
DDP_WAYS = ["DDP(compiled)", "compiled(DDP)", "DDP(model.compile)", "DDP, option"]


class Network(nn.Module):
    """Batch norm, an in-place ReLU, and a forward pass in a frame of its own, which torch.compile sees as a user's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, K)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.block(self.stem(images)).mean(dim=(2, 3)))


@pytest.fixture
def counter() -> CompileCounterWithBackend:
    torch._dynamo.reset()
    return CompileCounterWithBackend("aot_eager")


@pytest.fixture
def _one_process_group(tmp_path: Any) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def batch(number: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(number)
    return torch.randn(6, 3, 16, 16, generator=stream), torch.randint(K, (6,), generator=stream)


def compiled(network: nn.Module, way: str, backend: Any) -> tuple[nn.Module, dict[str, Any]]:
    """The model as a user would hand it to the step, and the options of the step."""
    wrapped = DistributedDataParallel if "DDP" in way else lambda module: module
    match way:
        case "option" | "DDP, option":
            return wrapped(network), {"compile": {"backend": backend}}
        case "torch.compile" | "DDP(compiled)":
            return wrapped(torch.compile(network, backend=backend)), {}
        case "compiled(DDP)":
            return torch.compile(wrapped(network), backend=backend), {}
        case "model.compile" | "DDP(model.compile)":
            network.compile(backend=backend)
        case "part":
            network.block = torch.compile(network.block, backend=backend)
        case "part in place":
            network.block.compile(backend=backend)
        case "used before":  # so that code compiled without a hook exists
            model = torch.compile(network, backend=backend)
            before = copy.deepcopy(network.state_dict())
            model(batch()[0])
            network.load_state_dict(before)
            return model, {}
    return wrapped(network), {}


def check_equal_training(way: str, counter: CompileCounterWithBackend, **options: Any) -> sg.GraftingStep:
    """Three steps with and without compilation: losses, masks, gradients, statistics; nothing is compiled twice."""
    network, twin = Network(), Network()
    model, how = compiled(network, way, counter)
    stream = torch.Generator().manual_seed(5)
    step = sg.GraftingStep(model, sg.SaliencyGrafting(), generator=stream, **how, **options)
    eager = sg.GraftingStep(twin, sg.SaliencyGrafting(), generator=torch.Generator().manual_seed(5), **options)
    index = torch.arange(6)
    frames, grafted = [], 0.0
    for number in range(4):
        outs = [each(*batch(number % 2), index) for each in (step, eager)]
        for out, parameters in zip(outs, (network.parameters(), twin.parameters()), strict=True):
            out.loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.1 * parameter.grad
        torch.testing.assert_close(outs[0].loss, outs[1].loss)
        torch.testing.assert_close(outs[0].logits, outs[1].logits, rtol=1e-4, atol=1e-5)
        assert torch.equal(outs[0].mixed.mask, outs[1].mixed.mask)
        grafted += float(outs[0].mixed.mask.float().mean())
        frames.append(counter.frame_count)
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(network.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert frames[0] > 0
    assert frames[1:] == frames[:1] * 3, "a later step was compiled anew"
    assert grafted > 0.1
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert type(unwrapped(network.block)) is nn.Sequential
    return step


@pytest.mark.parametrize("way", WAYS)
def test_however_compiled_a_step_trains_as_the_uncompiled(way: str, counter: CompileCounterWithBackend) -> None:
    check_equal_training(way, counter)
    assert counter.frame_count == 2  # one graph with the map, one without


@pytest.mark.usefixtures("_one_process_group")
@pytest.mark.parametrize("way", DDP_WAYS)
def test_both_orders_of_ddp_and_compilation(way: str, counter: CompileCounterWithBackend) -> None:
    check_equal_training(way, counter)


@pytest.mark.parametrize(("way", "passes"), [("option", "mixed"), ("model.compile", "mixed"), ("option", "remembered")])
def test_cheaper_passes_compiled(way: str, passes: str, counter: CompileCounterWithBackend) -> None:
    check_equal_training(way, counter, passes=passes)
    assert counter.frame_count == (2 if passes == "mixed" else 1)


@pytest.mark.usefixtures("_one_process_group")
@pytest.mark.parametrize("way", ["DDP(compiled)", "compiled(DDP)"])
def test_the_separate_pass_is_compiled_without_ddp(way: str, counter: CompileCounterWithBackend) -> None:
    """The map of `passes="mixed"` needs no exchange between processes."""
    step = check_equal_training(way, counter, passes="mixed")
    assert not any(isinstance(part, DistributedDataParallel) for part in without_ddp(step.model).modules())
    assert counter.frame_count >= 2


@pytest.mark.parametrize(
    ("way", "source"), [("option", "cam"), ("model.compile", "grad-cam"), ("torch.compile", "input-gradient")]
)
def test_a_source_that_cannot_be_compiled_makes_its_pass_uncompiled(
    way: str, source: str, counter: CompileCounterWithBackend
) -> None:
    """The compiled second pass writes batch-norm statistics, which the backward of the first must survive."""
    check_equal_training(way, counter, saliency_source=source)
    assert counter.frame_count == 1


def test_two_steps_on_one_compiled_model_do_not_share_a_hook(counter: CompileCounterWithBackend) -> None:
    network = Network().eval()
    model = torch.compile(network, backend=counter)
    images, labels = batch()
    maps = {"stem": network.stem(images), "block": network.block(network.stem(images))}
    for layer in ("stem", "block", "stem", "block"):
        step = sg.GraftingStep(model, sg.SaliencyGrafting(), layer=layer)
        _, saliency = step.source.with_logits(model, images, labels)
        torch.testing.assert_close(saliency, maps[layer].abs().sum(dim=1))


def test_other_steps_compile_too(counter: CompileCounterWithBackend) -> None:
    images, labels = batch()
    images = images.sigmoid()
    for methods in (None, sg.CutMix(), sg.AugMix(), sg.MethodChoice([sg.Mixup(), sg.CutMix()])):
        torch._dynamo.reset()
        counter.frame_count = 0
        sg.training_step(Network(), methods, compile={"backend": counter})(images, labels).loss.backward()
        assert counter.frame_count == 1


def test_a_step_or_method_inside_a_compiled_function(counter: CompileCounterWithBackend) -> None:
    """As Lightning's `torch.compile(module)` has it; batches of several sizes, so that shapes become symbolic."""
    step = sg.GraftingStep(Network().eval(), sg.SaliencyGrafting(grids=(2, 4)), compile={"backend": counter})
    cutmix = sg.CutMix()
    functions = [lambda *batch: step(*batch).loss, lambda *batch: cutmix(*batch).images.mean()]
    for function in functions:
        compiled_function = torch.compile(function, backend="aot_eager")
        for size in (6, 5, 4):
            images, labels = (values[:size] for values in batch())
            torch.manual_seed(size)
            loss = compiled_function(images, labels)
            torch.manual_seed(size)
            torch.testing.assert_close(loss, function(images, labels))
    assert counter.frame_count >= 2  # the step's own passes stay compiled


def test_manifold_mixup_says_that_it_cannot() -> None:
    with pytest.raises(RuntimeError, match="model is compiled, where hooks are not reliable: pass the uncompiled"):
        sg.training_step(Network(), sg.ManifoldMixup(), compile="eager")(*batch())


def test_data_parallel_with_a_layer_name() -> None:
    network = Network()
    for layer in ("block", "module.block", network.block, None):
        step = sg.GraftingStep(nn.DataParallel(network), sg.SaliencyGrafting(), layer=layer)
        step(*batch()).loss.backward()
        assert step.source.site.name == "block"


def test_uncompiled_runs_no_compiled_code_and_restores_it(counter: CompileCounterWithBackend) -> None:
    network, images = Network(), batch()[0]
    network.stem.compile(backend=counter)
    model = torch.compile(network, backend=counter)
    with uncompiled(model):
        model(images)
    assert counter.frame_count == 0
    with pytest.raises(ZeroDivisionError), uncompiled(model), noticed(network.block):
        raise ZeroDivisionError
    assert type(network.block) is nn.Sequential
    model(images)
    assert counter.frame_count > 0


@pytest.mark.parametrize("value", [None, 1, ["eager"]])
def test_what_cannot_compile_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=r"compile must be True, False, the name of a backend or keyword arguments"):
        sg.GraftingStep(Network(), sg.SaliencyGrafting(), compile=value)


if shutil.which(os.environ.get("CXX", "g++")):  # Inductor needs a C++ compiler

    @pytest.mark.slow
    def test_a_resnet_18_compiled_by_inductor_trains_as_the_uncompiled() -> None:
        torch._dynamo.reset()
        network = pytest.importorskip("torchvision").models.resnet18(num_classes=K)
        twin = copy.deepcopy(network)
        stream = torch.Generator()
        losses = []
        for model, choice in ((network, True), (twin, False)):
            step = sg.GraftingStep(model, sg.SaliencyGrafting(), generator=stream.manual_seed(0), compile=choice)
            images, labels = batch()
            for _ in range(2):
                model.zero_grad()
                loss = step(nn.functional.interpolate(images, 64), labels).loss
                loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
        for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
            assert (ours.grad - theirs.grad).norm() < 0.02 * theirs.grad.norm() + 1e-6
        for ours, theirs in zip(network.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
