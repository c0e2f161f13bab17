"""SaliencyCapture: what it returns, what it leaves alone, and the surroundings it must work in."""

import copy
import os
import pickle
import re
import shutil
import threading
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from saligraft.saliency.capture import SaliencyCapture, logits_of


class Net(nn.Module):
    """A small residual network with batch norm, dropout, in-place ReLUs and, if asked, checkpointed blocks."""

    def __init__(self, checkpointed=None):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.drop, self.pool, self.fc = nn.Dropout(0.2), nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)
        self.checkpointed = checkpointed  # None, or use_reentrant

    def forward(self, images):
        features = self.stem(images)
        if self.checkpointed is None:
            features = self.block(features)
        else:
            features = checkpoint(self.block, features, use_reentrant=self.checkpointed)
        return self.fc(self.drop(self.pool(features).flatten(1)))


def hook_count(model):
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, table)) for module in model.modules() for table in tables)


def reference(model, images, name="block"):
    kept = []
    handle = model.get_submodule(name).register_forward_hook(lambda *call: kept.append(call[2].float().abs().sum(1)))
    logits = model(images)
    handle.remove()
    return logits, kept[-1].detach()


@pytest.fixture
def images(generator):
    return torch.randn(4, 3, 12, 16, generator=generator)


@pytest.mark.parametrize("layer", [None, "block"])
def test_a_training_step_with_capture_equals_one_without(images, layer):
    torch.manual_seed(3)
    plain = Net().train()
    captured = copy.deepcopy(plain)
    capture = SaliencyCapture(captured, layer)
    for step in range(3):  # the first finds the layer: it must not differ either
        states = []
        for model in (plain, captured):
            torch.manual_seed(step)
            logits = model(images) if model is plain else capture(images)[0]
            logits.square().sum().backward()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            buffers = [buffer.clone() for buffer in model.buffers()]
            states.append([logits, *gradients, *buffers, torch.get_rng_state()])
        for expected, got in zip(*states, strict=True):
            assert torch.equal(expected, got)
    assert captured.training
    assert all(parameter.requires_grad for parameter in captured.parameters())


def test_the_map_is_detached_float32_and_each_call_has_its_own(images):
    model = Net().eval()
    capture = SaliencyCapture(model)
    batches = [images, images.flip(0) * 2, torch.randn(1, 3, 20, 8), images]
    results = [capture(batch) for batch in batches]
    for batch, (logits, saliency) in zip(batches, results, strict=True):
        expected_logits, expected = reference(model, batch)
        torch.testing.assert_close(saliency, expected)
        torch.testing.assert_close(logits, expected_logits)
        assert saliency.dtype == torch.float32
        assert not saliency.requires_grad
        assert logits.requires_grad


@pytest.mark.parametrize("named", ["stem", "stem.1", "module"])
def test_any_layer_by_name_or_module(images, named):
    model = Net().eval()
    name = "stem.0" if named == "module" else named
    capture = SaliencyCapture(model, model.stem[0] if named == "module" else named)
    assert capture.layer_name == name
    for _ in range(2):
        torch.testing.assert_close(capture(images)[1], reference(model, images, name)[1])


def test_wrong_layers_are_named_with_what_would_be_right(images):
    model = Net()
    with pytest.raises(ValueError, match="such as 'block'"):
        SaliencyCapture(model, "blok")
    with pytest.raises(ValueError, match="Conv2d that is not in it"):
        SaliencyCapture(model, nn.Conv2d(3, 3, 1))
    with pytest.raises(TypeError, match="layer must be a dotted name or a module, got int"):
        SaliencyCapture(model, 4)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module"):
        SaliencyCapture(lambda x: x)
    with pytest.raises(ValueError, match=r"'fc' with shape \(4, 5\).*block \(4, 8, 6, 8\)"):
        SaliencyCapture(model, "fc")(images)
    model.unused = nn.ReLU()
    with pytest.raises(RuntimeError, match="'unused' did not run"):
        SaliencyCapture(model, "unused")(images)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match=r"images must have shape \(B, C, H, W\)"):
        SaliencyCapture(Net())(torch.randn(12, 16))
    with pytest.raises(TypeError, match="images must be floating point"):
        SaliencyCapture(Net())(torch.zeros(1, 3, 12, 16, dtype=torch.uint8))


def test_an_image_too_small_for_the_layer_is_an_error_not_a_flat_map(images):
    capture = SaliencyCapture(Net().eval())
    capture(images)
    with pytest.raises(ValueError, match="more than one cell; for images of 2x2"):
        capture(images[:, :, :2, :2])
    assert hook_count(capture) == 0


@pytest.mark.parametrize("known", [False, True])
def test_no_hook_stays_behind_also_after_an_error(images, known):
    model = Net()
    capture = SaliencyCapture(model)
    if known:
        capture(images)
    assert hook_count(model) == 0
    with pytest.raises(RuntimeError, match="channels"):
        capture(images[:, :2])

    class Failing(nn.Linear):
        def forward(self, _):
            raise KeyboardInterrupt

    head, model.fc = model.fc, Failing(8, 5)
    with pytest.raises(KeyboardInterrupt):
        capture(images)
    assert hook_count(model) == 0
    model.fc = head
    torch.testing.assert_close(capture(images)[1].shape, torch.Size([4, 6, 8]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(images, reentrant):
    torch.manual_seed(0)
    model, plain = Net(checkpointed=reentrant).eval(), Net().eval()
    plain.load_state_dict(model.state_dict())
    capture = SaliencyCapture(model)
    for _ in range(2):
        logits, saliency = capture(images)
        before = saliency.clone()
        logits.square().sum().backward()  # runs the block again
        assert torch.equal(saliency, before)
        torch.testing.assert_close(saliency, reference(plain, images)[1])
        assert hook_count(model) == 0
    plain(images).square().sum().backward()
    torch.testing.assert_close(model.block[0].weight.grad, 2 * plain.block[0].weight.grad)


def test_autocast_gives_a_float32_map(images):
    model = Net().eval()
    capture = SaliencyCapture(model)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            logits, saliency = capture(images)
            expected = reference(model, images)[1]
        assert (logits.dtype, saliency.dtype) == (torch.bfloat16, torch.float32)
        torch.testing.assert_close(saliency, expected)


def test_a_bfloat16_network_gives_a_float32_map(images):
    capture = SaliencyCapture(Net().to(torch.bfloat16))
    for _ in range(2):
        assert capture(images.to(torch.bfloat16))[1].dtype == torch.float32


def test_copies_and_pickles_hold_their_own_model(images):
    model = Net().eval()
    capture = SaliencyCapture(model)
    expected = capture(images)[1]
    twins = [copy.deepcopy(capture), pickle.loads(pickle.dumps(capture)), SaliencyCapture(copy.deepcopy(model))]
    with torch.no_grad():
        model.stem[0].weight.zero_()
    for twin in twins:
        assert torch.equal(twin(images)[1], expected)
    assert not torch.equal(capture(images)[1], expected)
    assert set(capture.state_dict()) == {f"model.{name}" for name in model.state_dict()}


def test_threads_that_take_turns_get_their_own_maps():
    model = Net().eval()
    capture = SaliencyCapture(model)
    barrier, turn, wrong = threading.Barrier(3), threading.Lock(), []

    def work(seed):
        images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
        barrier.wait()
        results = []
        for _ in range(20):
            with turn:
                results.append(capture(images)[1])
        own = SaliencyCapture(copy.deepcopy(model))(images)[1]
        wrong.extend(result for result in results if not torch.allclose(result, own))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert hook_count(model) == 0


class Named(NamedTuple):
    logits: torch.Tensor
    auxiliary: torch.Tensor


class Scores(NamedTuple):
    main: torch.Tensor
    auxiliary: torch.Tensor | None


@dataclass
class Result:
    loss: None
    logits: torch.Tensor
    auxiliary: torch.Tensor


RETURNS = [  # what a model makes of its logits, and what of that is dropped
    (lambda x: x, ""),
    (lambda x: {"logits": x}, ""),
    (lambda x: {"aux": x + 1, "logits": x}, "output['aux']"),
    (lambda x: (x, x + 1), "output[1]"),
    (lambda x: [x, None, [x + 1], x.detach()], "output[2]"),
    (lambda x: Named(x, x + 1), "output['auxiliary']"),
    (lambda x: Scores(x, x + 1), "output['auxiliary']"),
    (lambda x: Scores(x, None), ""),
    (lambda x: Result(None, x, x + 1), "output['auxiliary']"),
    (lambda x: ((x, x + 1), x + 2), "output[1], output[0][1]"),
]


@pytest.mark.parametrize(("wrap", "dropped"), RETURNS)
def test_logits_are_found_in_what_the_model_returns_and_a_dropped_head_is_named_once(wrap, dropped):
    logits, model = torch.randn(2, 3, requires_grad=True), Net()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert logits_of(wrap(logits)) is logits  # no model in training
        logits_of(wrap(logits.detach()), model)  # nothing to train
        assert not caught
        for trained in (model, torch.compile(model), model):
            assert logits_of(wrap(logits), trained) is logits
    expected = f"only the logits of Net are trained on; its other outputs .* get no gradient: {re.escape(dropped)}$"
    assert len(caught) == bool(dropped)
    assert all(re.match(expected, str(warning.message)) for warning in caught)


@pytest.mark.parametrize("output", [None, {}, (), {"scores": torch.zeros(1)}])
def test_an_output_without_logits_is_refused(output):
    with pytest.raises(TypeError, match="model must return logits"):
        logits_of(output)


@pytest.fixture
def one_process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process_group")
@pytest.mark.parametrize("layer", [None, "block", "module.block"])
def test_distributed_data_parallel(images, layer):
    model = Net().eval()
    capture = SaliencyCapture(DistributedDataParallel(model), layer)
    for _ in range(2):
        logits, saliency = capture(images)
        logits.sum().backward()
        torch.testing.assert_close(saliency, reference(model, images)[1])
    assert capture.layer_name == "block"
    assert hook_count(model) == 0


def test_a_compiled_capture_gives_the_eager_map_from_one_graph(images):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = Net()
    model.drop.p = 0.0
    eager, capture = SaliencyCapture(copy.deepcopy(model)), SaliencyCapture(model)
    compiled = torch.compile(capture, backend=counter)
    for batch in (images, images + 1, images * 2, images.flip(0)):
        logits, saliency = compiled(batch)
        expected_logits, expected = eager(batch)
        torch.testing.assert_close(saliency, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
        logits.sum().backward()
        expected_logits.sum().backward()
    torch.testing.assert_close(model.stem[0].weight.grad, eager.model.stem[0].weight.grad, rtol=1e-3, atol=1e-3)
    assert counter.frame_count == 1
    assert hook_count(model) == 0


if shutil.which(os.environ.get("CXX", "g++")):  # Inductor needs a C++ compiler

    @pytest.mark.slow
    def test_a_capture_compiled_by_inductor(images):
        torch._dynamo.reset()
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        compiled = torch.compile(SaliencyCapture(model))
        with torch.no_grad():
            for batch in (images, images + 1, images * 2):
                logits, saliency = compiled(batch)
                torch.testing.assert_close(saliency, model[0](batch).relu().sum(1), rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(logits, model(batch), rtol=1e-4, atol=1e-4)
        assert hook_count(model) == 0


def test_a_compiled_step_around_the_capture(images):
    torch._dynamo.reset()
    model = Net().eval()
    capture = SaliencyCapture(model)

    @torch.compile(backend="aot_eager")
    def step(batch):
        logits, saliency = capture(batch * 2)
        return logits + model(batch), saliency + 1  # a second, plain pass of the same model

    for batch in (images, images + 1, images - 1):
        total, saliency = step(batch)
        logits, expected = reference(model, batch * 2)
        torch.testing.assert_close(saliency, expected + 1)
        torch.testing.assert_close(total, logits + model(batch))
    assert hook_count(model) == 0


@pytest.mark.parametrize("layer", [None, "block"])
@pytest.mark.parametrize("how", ["torch.compile", "model.compile", "part", "afterwards"])
def test_a_compiled_model_gives_the_eager_map(images, how, layer):
    torch._dynamo.reset()
    model = Net().eval()
    expected = reference(model, images)[1]
    capture = SaliencyCapture(torch.compile(model, backend="eager") if how == "torch.compile" else model, layer)
    if how == "part":
        model.block.compile(backend="eager")
    elif how != "torch.compile":
        if how == "afterwards":
            capture(images)
        model.compile(backend="eager")
    for _ in range(2):
        torch.testing.assert_close(capture(images)[1], expected)
    assert capture.layer_name == "block"
    assert hook_count(model) == 0


def test_a_compiled_part_elsewhere_in_the_model_is_no_hindrance(images):
    torch._dynamo.reset()
    model = Net().eval()
    expected = reference(model, images)[1]
    model.stem.compile(backend="eager")
    capture = SaliencyCapture(model)
    for _ in range(3):
        torch.testing.assert_close(capture(images)[1], expected)
    assert capture.layer_name == "block"


def test_a_layer_that_does_not_run_raises_instead_of_an_old_map(images):
    model = Net().eval()
    capture = SaliencyCapture(model)
    capture(images)
    model.forward = lambda batch: batch.new_zeros(len(batch), 5)
    with pytest.raises(RuntimeError, match="no saliency map"):
        capture(images)
    assert hook_count(model) == 0
