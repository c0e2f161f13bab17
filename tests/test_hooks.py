"""Hooks: found by name in any wrapper, removed also after an error, refused where they would be wrong."""

import copy
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import saligraft as sg
from saligraft.hooks import (
    changed_output,
    exclusive_use,
    find_ddp,
    is_linear,
    layer_name,
    refuse_compiled,
    unwrapped,
    without_trace,
)
from saligraft.saliency import SALIENCY_SOURCES, SaliencyCapture, saliency_source
from saligraft.saliency.base import NetworkSource

K = 5
REFUSED = "model must be used by one thread at a time, got a Interrupted that another thread is using"
NETWORK_SOURCES = [name for name, kind in SALIENCY_SOURCES.items() if issubclass(kind, NetworkSource)]


class Net(nn.Module):
    """Two parts and a head; `reentrant` checkpoints both parts together, None not at all."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6))
        self.second = nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.reentrant = reentrant

    def trunk(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.head(self.trunk(x))
        return self.head(checkpoint(self.trunk, x, use_reentrant=self.reentrant))


def hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())


def test_unwraps_at_any_nesting() -> None:
    network = Net()
    assert unwrapped(network) is network
    model = torch.compile(nn.DataParallel(torch.compile(nn.DataParallel(network))))
    assert unwrapped(model) is network


def test_finds_ddp_at_any_nesting(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        ddp = nn.parallel.DistributedDataParallel(Net())
        around = nn.parallel.DistributedDataParallel(torch.compile(Net()))
        for model, expected in ((ddp, ddp), (torch.compile(ddp), ddp), (torch.compile(around), around)):
            assert find_ddp(model) is expected
    finally:
        dist.destroy_process_group()
    for model in (Net(), torch.compile(Net()), nn.DataParallel(Net())):
        assert find_ddp(model) is None


def test_layers_by_name_and_module() -> None:
    network = Net()
    network.alias = network.second
    for layer in ("first.1", "module.first.1", "_orig_mod.module.first.1", network.first[1]):
        assert layer_name(layer, network) == "first.1"
    assert layer_name("alias", network) == "second"
    with pytest.raises(ValueError, match=r"layer must name a module of model, such as 'input', 'first'.*; got 'furst'"):
        layer_name("furst", network, also=("input",))


@pytest.mark.parametrize("name", ["block", "module.block"])
def test_steps_take_a_layer_inside_data_parallel(name: str) -> None:
    """The grafting step's layer and Manifold Mixup's are named alike, with the wrapper's prefix or without."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("block", nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    model.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, K)))
    images, labels = batch()
    for method, options in ((sg.SaliencyGrafting(), {"layer": name}), (sg.ManifoldMixup(layers=(name,)), {})):
        losses = [
            sg.training_step(wrapped, method, generator=torch.Generator().manual_seed(0), **options)(
                images, labels
            ).loss
            for wrapped in (model, nn.DataParallel(model))
        ]
        assert torch.equal(*losses)
    assert hooks(model) == 0


class Replicas(nn.DataParallel[nn.Module]):
    """DataParallel as on two devices: each half of a batch takes a pass of its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.device_ids = [0, 1]

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.module(part) for part in images.chunk(2)])


def test_data_parallel_on_several_devices_is_refused_where_layers_are_read() -> None:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, K)
    model = Replicas(nn.Sequential(*layers))
    grafting = [sg.GraftingStep(model, sg.SaliencyGrafting(), saliency_source=name) for name in (None, "cam")]
    for step in (*grafting, *(sg.training_step(model, sg.ManifoldMixup(layers=layers)) for layers in (None, ["0"]))):
        with pytest.raises(
            ValueError, match=r"by DistributedDataParallel \(torchrun\) .*, got DataParallel on .*\[0, 1\]"
        ):
            step(*batch())
    unaffected = (
        (sg.CutMix(), {}),
        (sg.ManifoldMixup(layers=["input"]), {}),
        (sg.SaliencyGrafting(), {"passes": "mixed"}),
    )
    for method, options in unaffected:
        sg.training_step(model, method, **options)(*batch()).loss.backward()


def test_changes_the_output_inside_only() -> None:
    network, x = Net().eval(), torch.randn(4, 5)
    plain = network(x)
    with changed_output(network, "first", lambda features: features.flip(0)):
        torch.testing.assert_close(network(x), plain.flip(0))
    assert hooks(network) == 0
    torch.testing.assert_close(network(x), plain)


def test_no_hook_stays_after_an_error() -> None:
    network = Net()
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        changed_output(network, "first", lambda f: f),
    ):
        network(torch.randn(4, 7))
    with pytest.raises(ZeroDivisionError), changed_output(network, "first", lambda f: f):
        _ = len(network(torch.randn(4, 5))) / 0
    assert hooks(network) == 0


def test_says_so_when_the_layer_ran_twice_or_not_at_all() -> None:
    network, x = Net(), torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="layer 'first' ran twice"), changed_output(network, "first", lambda f: f):
        _ = network(x), network(x)
    with (
        pytest.raises(RuntimeError, match=r"layer 'second\.0' did not run"),
        changed_output(network, "second.0", lambda f: f),
    ):
        network.first(x)
    assert hooks(network) == 0


def test_a_search_for_a_layer_is_not_the_forward_pass() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 3, 8, 8)
    expected = network[1](network[0](images).flip(0)).sum(dim=1).detach()
    capture = SaliencyCapture(network)
    for _ in range(2):  # the first call runs the network once more
        with changed_output(network, "0", lambda features: features.flip(0)):
            torch.testing.assert_close(capture(images)[1], expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_around_the_layer_is_refused(reentrant: bool) -> None:
    network, x = Net(reentrant), torch.randn(4, 5, requires_grad=True)
    with (
        pytest.raises(RuntimeError, match="gradient checkpointing around a mixed layer is not supported: 'first'"),
        changed_output(network, "first", lambda f: f),
    ):
        network(x)
    assert hooks(network) == 0
    with changed_output(network, "head", lambda f: f.flip(0)):  # checkpointing elsewhere is no hindrance
        logits = network(x)
    logits.sum().backward()
    with torch.no_grad(), changed_output(network, "first", lambda f: f):  # nothing will be recomputed
        network(x)


def test_recomputation_inside_the_context_is_refused() -> None:
    network = Net()
    x = network.first(torch.randn(4, 5)).requires_grad_()

    def recompute(_: Tensor) -> None:
        with torch.enable_grad():
            network.first(torch.randn(4, 5))

    x.register_hook(recompute)
    with (
        pytest.raises(RuntimeError, match="gradient checkpointing around a mixed layer is not supported"),
        changed_output(network, "first", lambda f: f),
    ):
        x.sum().backward()


@pytest.mark.parametrize("where", ["outside", "in place", "layer", "in a wrapper"])
def test_compiled_code_is_refused(where: str) -> None:
    network: nn.Module = Net()
    if where == "in place":
        network.compile(backend="eager")
    elif where == "layer":
        network.first.compile(backend="eager")
    model = torch.compile(network, backend="eager") if where in ("outside", "in a wrapper") else network
    model = nn.DataParallel(model) if where == "in a wrapper" else model
    with pytest.raises(
        RuntimeError, match=r"layer 'first' is inside a compiled part of model.*pass the uncompiled model"
    ):
        refuse_compiled(model, "first")
    if where != "layer":
        with pytest.raises(RuntimeError, match="model is compiled, where hooks are not reliable"):
            refuse_compiled(model)
    below = Net()
    below.first[0].compile(backend="eager")
    with changed_output(below, "first", lambda f: f):
        below(torch.randn(4, 5))


@pytest.mark.filterwarnings("ignore:`torch.jit.:FutureWarning")
def test_torchscript_is_refused_where_maps_are_computed_and_trains_without() -> None:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    scripted = torch.jit.script(nn.Sequential(*layers))
    batch = torch.rand(2, 3, 8, 8), torch.arange(2)
    with pytest.raises(TypeError, match="model must be Python code where maps are computed, got TorchScript"):
        sg.GraftingStep(scripted, sg.SaliencyGrafting())(*batch)
    sg.MixingStep(scripted, sg.CutMix())(*batch).loss.backward()


def test_what_counts_as_linear() -> None:
    assert is_linear(nn.Linear(2, 3))
    assert is_linear(nn.Conv2d(2, 3, 1))
    assert not is_linear(nn.Conv2d(2, 3, 3))


class Interrupted(nn.Module):
    """Two stages with batch norm, dropout, and a middle of the pass in which another thread may act."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1))
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1))
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(8, K)
        self.meanwhile: Callable[[], None] | None = None

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(self.stem(images)).relu()
        if self.meanwhile is not None and not images.is_meta:
            act, self.meanwhile = self.meanwhile, None
            in_another_thread(act)
        return self.fc(self.drop(features.mean(dim=(2, 3))))


def in_another_thread(act: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def enter(model: nn.Module) -> None:
    with exclusive_use(model):
        pass


def network() -> Interrupted:
    torch.manual_seed(0)
    return Interrupted().train()


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(4, 3, 16, 16, generator=stream), torch.randint(K, (4,), generator=stream)


Use = Callable[[Tensor, Tensor], Any]


def source(name: str, shared: bool) -> Callable[[nn.Module], Use]:
    def prepare(model: nn.Module) -> Use:
        network_source = saliency_source(name, model)
        return (lambda *pair: network_source.with_logits(model, *pair)[1]) if shared else network_source

    return prepare


def step(method: Any, **options: Any) -> Callable[[nn.Module], Use]:
    def prepare(model: nn.Module) -> Use:
        training_step = sg.training_step(model, method, generator=torch.Generator().manual_seed(0), **options)
        return lambda *pair: training_step(*pair).loss

    return prepare


def capture(model: nn.Module) -> Use:
    capture_logits = sg.SaliencyCapture(model)
    return lambda images, _: capture_logits(images)[1]


def manifold_mixup(model: nn.Module) -> Use:
    def run(images: Tensor, labels: Tensor) -> Tensor:
        with sg.ManifoldMixup().mixing(model, images, labels, generator=torch.Generator().manual_seed(0)) as mixed:
            return model(mixed.images)

    return run


USES: dict[str, Callable[[nn.Module], Use]] = {
    **{name: source(name, shared=False) for name in NETWORK_SOURCES},
    **{f"{name} with logits": source(name, shared=True) for name in NETWORK_SOURCES},
    "capture": capture,
    "manifold mixup": manifold_mixup,
    "plain step": step(None),
    "grafting step": step(sg.SaliencyGrafting()),
    "mixing step": step(sg.SaliencyGrafting(), saliency_source="input-gradient"),
    "feature mixing step": step(sg.ManifoldMixup()),
}
uses = pytest.mark.parametrize("use", USES)


def left_behind(model: nn.Module) -> list[object]:
    """What a use of the model, be it a training pass, must leave as it was."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        *((module.training, *(len(getattr(module, table)) for table in tables)) for module in model.modules()),
        *((id(value), value.grad, value.requires_grad, value._version) for value in model.parameters()),
        *(id(value) for value in model.buffers()),
    ]


@uses
def test_a_second_thread_is_refused_and_changes_nothing(use: str) -> None:
    model = network()
    run = USES[use](model)
    for _ in range(2):  # the first call, and one that knows the layer
        buffers = [value.clone() for value in model.buffers()]
        before = left_behind(model)
        with exclusive_use(model), pytest.raises(RuntimeError, match=REFUSED):
            in_another_thread(lambda: run(*batch()))
        assert left_behind(model) == before
        assert all(torch.equal(value, buffer) for value, buffer in zip(model.buffers(), buffers, strict=True))
        in_another_thread(lambda: run(*batch()))


@uses
def test_the_first_thread_is_not_disturbed(use: str) -> None:
    refused = []

    def results(intruded: bool) -> list[Tensor]:
        model = network()
        run, intruder = USES[use](model), saliency_source("cam", model)
        before = left_behind(model)

        def intrude() -> None:
            with pytest.raises(RuntimeError, match=REFUSED):
                intruder(*batch(1))
            refused.append(True)

        values = []
        for seed in range(2):  # the first call, and one that knows the layer
            model.meanwhile = intrude if intruded else None
            torch.manual_seed(seed)
            values.append(run(*batch()))
            assert left_behind(model) == before
            intruder(*batch(1))  # free again
        return values

    assert all(torch.equal(*pair) for pair in zip(results(intruded=False), results(intruded=True), strict=True))
    assert len(refused) == 2


def test_looking_for_stages_is_a_use() -> None:
    model = network()
    with exclusive_use(model), pytest.raises(RuntimeError, match=REFUSED):
        in_another_thread(lambda: sg.ManifoldMixup().layers_of(model, batch()[0]))


def test_the_same_thread_may_nest_and_an_error_ends_the_use() -> None:
    model = network()

    def fail() -> None:
        with exclusive_use(model), exclusive_use(model.body), exclusive_use(model):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    with exclusive_use(model.body):
        with exclusive_use(model):  # claims what is around the part
            pass
        with pytest.raises(RuntimeError, match="one thread at a time"):
            in_another_thread(lambda: enter(model))
        in_another_thread(lambda: enter(model.stem))
    in_another_thread(lambda: enter(model))


def test_wrappers_and_shared_parts_count_as_the_model_and_copies_do_not() -> None:
    model = network()
    images, labels = batch()
    relative = nn.Sequential(model.stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, K))
    with exclusive_use(torch.compile(model, backend="eager")):
        for other in (model, relative, nn.Sequential(model)):
            with pytest.raises(RuntimeError, match="one thread at a time"):
                in_another_thread(lambda other=other: saliency_source("input-gradient", other)(images, labels))
        in_another_thread(lambda: saliency_source("cam", copy.deepcopy(model))(images, labels))


@pytest.mark.parametrize("name", NETWORK_SOURCES)
def test_sources_can_be_copied_also_while_in_use(name: str) -> None:
    model = network()
    images, labels = batch()
    original = saliency_source(name, model)
    expected = original(images, labels)
    with exclusive_use(model):
        twins = [copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
        for twin in twins:
            assert torch.equal(in_another_thread(lambda twin=twin: twin(images, labels)), expected)


def test_four_threads_get_right_maps_or_an_error_and_leave_the_model_as_it_was() -> None:
    model = network()
    shared = saliency_source("input-gradient", model)
    expected = [shared(*batch(seed)) for seed in range(4)]
    before, barrier = left_behind(model), threading.Barrier(4)

    def work(seed: int) -> list[bool]:
        right = []
        barrier.wait()
        for _ in range(25):
            try:
                right.append(torch.equal(shared(*batch(seed)), expected[seed]))
            except RuntimeError as error:
                assert REFUSED in str(error)  # noqa: PT017
        return right

    with ThreadPoolExecutor(4) as pool:
        right = [each for results in pool.map(work, range(4)) for each in results]
    assert right
    assert all(right)
    assert left_behind(model) == before


def test_buffers_inside_are_copies_and_outside_the_very_same() -> None:
    network = nn.BatchNorm2d(2)
    mean = network.running_mean
    with without_trace(network, torch.rand(1), "current"):
        network(torch.rand(3, 2, 4, 4))
        assert network.running_mean is not mean
        assert (network.running_mean != 0).all()
    assert network.running_mean is mean
    assert (mean == 0).all()
    assert network.num_batches_tracked == 0


def test_a_buffer_born_inside_is_gone_and_an_absent_one_stays_absent() -> None:
    network = nn.BatchNorm2d(2, track_running_stats=False)
    with without_trace(network, torch.rand(1), "eval"):
        assert network.running_mean is None
        network.register_buffer("count", torch.ones(1))
    assert set(network._buffers) == {"running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize("mode", ["eval", "current"])
def test_modes_and_random_streams_come_back_also_after_an_error(mode: str) -> None:
    network = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()

    def interrupted() -> None:
        with without_trace(network, torch.zeros(1), mode):
            assert [part.training for part in network] == [mode == "current", False]
            assert torch.rand(1) + random.random() > 0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [part.training for part in network] == [True, False]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
