"""Under autocast every map, mask, weight and mixed image has the same bits as without; only the network runs in half.

The reference is the same call with autocast off, on a network whose layers switch autocast on for themselves, so that
both see the same features.
"""

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.contracts.test_batch_mixers import MIXERS, needs_scipy
from tests.contracts.test_pure_functions import CALLS, leaves
from tests.pairwise import all_pairs
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import saligraft as sg
from saligraft.methods import mix_features
from saligraft.saliency import SALIENCY_SOURCES

K = 5
needs_torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="needs the extra lab")

DTYPES = [pytest.param(torch.float16, id="fp16"), pytest.param(torch.bfloat16, id="bf16")]
dtypes = pytest.mark.parametrize("dtype", DTYPES)
# A loop's own autocast is around the step; Accelerate's is inside the model, so that only hooks run under it.
PLACES = ["around the step", "inside the model"]


class Under(nn.Module):
    """A layer that runs under autocast wherever it is called."""

    def __init__(self, dtype: torch.dtype, *layers: nn.Module) -> None:
        super().__init__()
        self.dtype, self.layers = dtype, nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            return self.layers(inputs)


class Network(nn.Module):
    """Two stages and a functional ReLU before the pooling; with `everywhere`, autocast is on between the layers too."""

    def __init__(self, dtype: torch.dtype, everywhere: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dtype, self.everywhere = dtype, everywhere
        self.stem = Under(dtype, nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.body = Under(dtype, nn.Conv2d(8, 12, 3, stride=2, padding=1))
        self.head = Under(dtype, nn.Linear(12, K))

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype) if self.everywhere else nullcontext():
            return self.head(F.relu(self.body(self.stem(images))).mean(dim=(2, 3)))


def make_batch() -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.rand(6, 3, 16, 16, generator=stream), torch.randint(K, (6,), generator=stream)


def both_ways(dtype: torch.dtype, place: str, call: Callable[[Network], Any]) -> tuple[Any, Any]:
    """The result with autocast off outside of the layers, and with it on at the place."""
    expected = call(Network(dtype))
    if place == "inside the model":
        return expected, call(Network(dtype, everywhere=True))
    with torch.autocast("cpu", dtype):
        return expected, call(Network(dtype))


def assert_same_bits(result: Any, expected: Any) -> None:
    for actual, wanted in zip(leaves(result), leaves(expected), strict=True):
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted)


def own_function(images: Tensor) -> Tensor:
    """A user's function, whose network runs under the autocast around it."""
    return F.conv2d(images, torch.full((1, 3, 3, 3), 0.1), padding=1)[:, 0].abs()


@all_pairs(
    name=SALIENCY_SOURCES,
    rows=[pytest.param(False, id="class indices"), pytest.param(True, id="rows")],
    place=PLACES,
    dtype=DTYPES,
)
def test_every_source_gives_the_same_maps(name: str, rows: bool, place: str, dtype: torch.dtype) -> None:
    images, labels = make_batch()
    if rows:
        labels = torch.rand(6, K, generator=torch.Generator().manual_seed(1)).softmax(dim=1)

    def call(model: Network) -> list[Tensor]:
        source = sg.saliency_source(name, model)
        first, again = (source.with_logits(model, images, labels) for _ in range(2))
        assert first[0].dtype == again[0].dtype == dtype
        return [source(images, labels), *first, *again]

    expected, result = both_ways(dtype, place, call)
    assert_same_bits(result, expected)
    assert [result[place].dtype for place in (0, 2, 4)] == [torch.float32] * 3
    assert result[2].any()


def test_a_users_function_runs_under_autocast_and_its_map_is_widened() -> None:
    images, labels = make_batch()
    source = sg.saliency_source(own_function, nn.Identity())
    with torch.autocast("cpu", torch.bfloat16):
        saliency, half = source(images, labels), own_function(images)
    assert half.dtype == torch.bfloat16
    assert_same_bits(saliency, half.float())


Make = Callable[[Network, torch.Generator], Callable[..., sg.StepOutput]]


def by(method: Any) -> Make:
    return lambda model, generator: sg.training_step(model, method, generator=generator)


def with_source(kind: Any, method: Any, source: Any) -> Make:
    return lambda model, generator: kind(model, method, saliency_source=source, generator=generator)


STEPS: dict[str, Make] = {
    **{f"step of {name}": by(method) for name, method in MIXERS.items()},
    **{
        f"{kind.__name__}, {source}": with_source(kind, sg.SaliencyGrafting(), source)
        for kind, source in product((sg.GraftingStep, sg.MixingStep), SALIENCY_SOURCES)
    },
    "copies": lambda model, generator: sg.GraftingStep(model, sg.SaliencyGrafting(), copies=2, generator=generator),
    "mixed alone": lambda model, generator: sg.GraftingStep(
        model, sg.SaliencyGrafting(), passes="mixed", generator=generator
    ),
    "remembered": lambda model, generator: sg.GraftingStep(
        model, sg.SaliencyGrafting(), passes="remembered", generator=generator
    ),
    "plain": by(None),
    "cutout": by(sg.Cutout(size=6)),
    "cutout and mixup": by([sg.Cutout(size=6), sg.Mixup()]),
    "manifold mixup": by(sg.ManifoldMixup(layers=("stem", "body"))),
    "manifold mixup at the input": by([sg.Cutout(size=6), sg.ManifoldMixup(layers=("input",))]),
    "augmix": by(sg.AugMix(severity=8)),
    "puzzlemix with noise": by(sg.PuzzleMix(adversarial_probability=1.0)),
    "choice of all kinds": by(sg.MethodChoice([sg.SaliencyGrafting(), sg.ManifoldMixup(layers=("stem",))])),
}


@all_pairs(
    make=[
        pytest.param(make, id=name, marks=[needs_scipy] * ("puzzle" in name) + [needs_torchvision] * ("augmix" in name))
        for name, make in STEPS.items()
    ],
    place=PLACES,
    dtype=DTYPES,
)
def test_every_step_gives_the_same_batch_and_loss(make: Make, place: str, dtype: torch.dtype) -> None:
    images, labels = make_batch()

    def call(model: Network) -> list[Tensor]:
        step = make(model, torch.Generator().manual_seed(0))
        for _ in range(2):  # sources look for the layer in the first
            model.zero_grad()
            output = step(images, labels, index=torch.arange(len(images)))
            output.loss.backward()
            assert output.logits.dtype == dtype  # the network's own passes stay under autocast
            assert all(parameter.grad is not None for parameter in model.parameters())
        return [output.loss.detach(), output.logits.detach(), *(output.mixed or ())]

    expected, result = both_ways(dtype, place, call)
    assert_same_bits(result, expected)
    assert result[0].dtype == torch.float32


def test_maps_beyond_half_precision_are_grafted() -> None:
    """Summed over channels, or resized, they exceed 65,504, the largest number of float16."""
    images, labels = torch.rand(64, 3, 16, 16), torch.zeros(64, dtype=torch.long)
    features: list[Tensor] = []
    model = Network(torch.float16)
    with torch.no_grad():
        model.body.layers[0].weight.mul_(2e4)
    model.body.register_forward_hook(lambda _, __, output: features.append(F.relu(output.detach())))
    with torch.autocast("cpu", torch.float16):
        saliency = sg.SaliencyCapture(model)(images)[1]
        mixed = sg.GraftingStep(model, sg.SaliencyGrafting())(images, labels).mixed
    assert features[0].dtype == torch.float16
    assert features[0].isfinite().all()
    assert saliency.amax() > torch.finfo(torch.float16).max
    torch.testing.assert_close(saliency, features[0].double().sum(dim=1).float())
    assert mixed.mask.flatten(1).any(dim=1).sum() > 32


def test_float64_stays() -> None:
    images, labels = make_batch()
    model = Network(torch.bfloat16).double()
    with torch.autocast("cpu", torch.bfloat16):
        for name in SALIENCY_SOURCES:
            saliency = sg.saliency_source(name, model)(images.double(), labels)
            assert sg.resize_saliency(saliency, 4).dtype == torch.float64


# DropBlock and ShakeDrop are layers: parts of the network.
PURE = {name: call for name, call in CALLS.items() if name not in ("drop_block", "shake_drop")}
pure_functions = pytest.mark.parametrize(("function", "arguments"), PURE.values(), ids=PURE.keys())
Function, Arguments = Callable[..., Any], Callable[[int], tuple[Any, ...]]


def arguments_in(dtype: torch.dtype, arguments: Arguments) -> list[Any]:
    inputs = arguments(4)
    return [part.to(dtype) if isinstance(part, Tensor) and part.is_floating_point() else part for part in inputs]


@dtypes
@pure_functions
def test_every_pure_function_gives_the_same_bits(function: Function, arguments: Arguments, dtype: torch.dtype) -> None:
    for inputs in (arguments_in(torch.float32, arguments), arguments_in(dtype, arguments)):
        expected = function(*inputs)
        with torch.autocast("cpu", dtype):
            assert_same_bits(function(*inputs), expected)


@dtypes
@pure_functions
def test_no_operation_that_autocast_knows_on_any_device_sees_half_precision(
    function: Function, arguments: Arguments, dtype: torch.dtype
) -> None:
    """CPU autocast leaves norms alone; CUDA's would first copy the features to float32, and may sum otherwise."""
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("AutocastCPU", "AutocastCUDA", "AutocastXPU")  # torch 2.4 has none for MPS
    autocasts = [True]

    class Calls(TorchFunctionMode):
        """Records whether autocast is on, which no operation can see from inside."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            autocasts[0] = torch.is_autocast_enabled("cpu")
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            half = any(isinstance(part, Tensor) and part.dtype == dtype for part in args)
            assert not (autocasts[0] and half and any(known(func.name(), key) for key in keys)), func.name()
            return func(*args, **(kwargs or {}))

    inputs = arguments_in(dtype, arguments)
    with torch.autocast("cpu", dtype), Operations(), Calls():
        function(*inputs)


@pytest.mark.parametrize("name", [name for name in CALLS if name.endswith(("_map", "_saliency"))])
def test_saliency_functions_compile_with_autocast_around_and_inside(name: str) -> None:
    function, arguments = CALLS[name]

    def inside(*inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*inputs)

    inputs = arguments(4)
    torch._dynamo.reset()
    compiled, compiled_inside = (torch.compile(each, backend="eager", fullgraph=True) for each in (function, inside))
    expected = compiled(*inputs)
    torch.testing.assert_close(expected, function(*inputs))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(compiled(*inputs), expected)  # not by the graph of the call before
    assert_same_bits(compiled_inside(*inputs), expected)


@dtypes
def test_a_compiled_capture_gives_the_same_map(dtype: torch.dtype) -> None:
    images = make_batch()[0]
    torch._dynamo.reset()

    def call(model: Network) -> list[Tensor]:
        capture = torch.compile(sg.SaliencyCapture(model.eval()), backend="eager")
        return [*capture(images), *capture(images)]

    expected, result = both_ways(dtype, "around the step", call)
    assert [part.dtype for part in result] == [dtype, torch.float32] * 2
    assert_same_bits(result, expected)


@dtypes
def test_features_and_pixels_in_half_precision_are_blended_by_the_labels_own_weight(dtype: torch.dtype) -> None:
    features, weight, partner = torch.randn(8, 4, 6, 6).to(dtype), torch.rand(8), torch.arange(8).roll(1)
    expected = torch.lerp(features[partner].float(), features.float(), weight[:, None, None, None]).to(dtype)
    assert_same_bits(mix_features(features, partner=partner, source_weight=weight), expected)
    assert_same_bits(sg.graft(features, features[partner], weight[:, None, None]), expected)
