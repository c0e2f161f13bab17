"""One thread for a while, then as many as before; and one thread per network, whatever uses it."""

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.saliency import SALIENCY_SOURCES, saliency_source
from saligraft.saliency.base import NetworkSource
from saligraft.threads import exclusive_use, one_thread

K = 5
REFUSED = "model must be used by one thread at a time, got a Net that another thread is using"
NETWORK_SOURCES = [name for name, kind in SALIENCY_SOURCES.items() if issubclass(kind, NetworkSource)]


def test_the_number_of_threads_is_put_back_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="within"), one_thread():
        raise ValueError("within")
    assert torch.get_num_threads() == before


class Net(nn.Module):
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


def network() -> Net:
    torch.manual_seed(0)
    return Net().train()


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(4, 3, 16, 16, generator=stream), torch.randint(K, (4,), generator=stream)


Use = Callable[[Tensor, Tensor], Any]


def source(name: str, shared: bool) -> Callable[[nn.Module], Use]:
    def prepare(model: nn.Module) -> Use:
        made = saliency_source(name, model)
        return (lambda *pair: made.with_logits(model, *pair)[1]) if shared else made

    return prepare


def step(method: Any, **options: Any) -> Callable[[nn.Module], Use]:
    def prepare(model: nn.Module) -> Use:
        made = sg.training_step(model, method, generator=torch.Generator().manual_seed(0), **options)
        return lambda *pair: made(*pair).loss

    return prepare


def capture(model: nn.Module) -> Use:
    made = sg.SaliencyCapture(model)
    return lambda images, _: made(images)[1]


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
in_first_call = pytest.mark.parametrize("known", [False, True], ids=["first call", "layer known"])


def left_behind(model: nn.Module) -> list[object]:
    """What a use of the model, be it a training pass, must leave as it was."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        *((module.training, *(len(getattr(module, table)) for table in tables)) for module in model.modules()),
        *((id(value), value.grad, value.requires_grad, value._version) for value in model.parameters()),
        *(id(value) for value in model.buffers()),
    ]


@uses
@in_first_call
def test_a_second_thread_is_refused_and_changes_nothing(use: str, known: bool) -> None:
    model = network()
    run = USES[use](model)
    if known:
        run(*batch())
    buffers = [value.clone() for value in model.buffers()]
    before = left_behind(model)
    with exclusive_use(model), pytest.raises(RuntimeError, match=REFUSED):
        in_another_thread(lambda: run(*batch()))
    assert left_behind(model) == before
    assert all(torch.equal(value, buffer) for value, buffer in zip(model.buffers(), buffers, strict=True))
    in_another_thread(lambda: run(*batch()))


@uses
@in_first_call
def test_the_first_thread_is_not_disturbed(use: str, known: bool) -> None:
    results, refused = [], []
    for intruded in (False, True):
        model = network()
        run, intruder = USES[use](model), saliency_source("cam", model)
        if known:
            run(*batch())
        before = left_behind(model)

        def intrude(intruder: NetworkSource = intruder) -> None:
            with pytest.raises(RuntimeError, match=REFUSED):
                intruder(*batch(1))
            refused.append(True)

        model.meanwhile = intrude if intruded else None
        torch.manual_seed(1)
        results.append(run(*batch()))
        assert left_behind(model) == before
        intruder(*batch(1))  # free again
    assert refused
    assert torch.equal(*results)


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
