"""The drop-in and the task behave as timm's own in a loop of the shape of timm's train.py."""

import copy
import pickle
from contextlib import nullcontext
from inspect import signature

import pytest
import timm
import torch
from timm.data import Mixup
from timm.loss import (
    AsymmetricLossSingleLabel,
    BinaryCrossEntropy,
    JsdCrossEntropy,
    LabelSmoothingCrossEntropy,
    SoftTargetCrossEntropy,
)
from timm.task import ClassificationTask, TrainingTask
from timm.utils import ModelEmaV3
from torch import Tensor, nn

import saligraft as sg
from saligraft.integrations.timm import GraftingMixup, GraftingTask

K = 5


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=K, drop_rate=0.2)


def batches(count: int = 4, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(size, 3, 32, 32, generator=generator), torch.randint(K, (size,), generator=generator))
        for _ in range(count)
    ]


def test_targets_are_those_of_the_method_smoothed_as_by_timm() -> None:
    model, ((images, labels),) = make_model(), batches(1)
    torch.manual_seed(0)
    mix = GraftingMixup(model, label_smoothing=0.1, generator=torch.Generator().manual_seed(3))
    mixed_images, targets = mix(images, labels)
    torch.manual_seed(0)  # of the dropout in the pass for the maps
    saliency = sg.saliency_source("feature-map", model, mode="current")(images)
    mixed = sg.SaliencyGrafting()(images, labels, saliency, generator=torch.Generator().manual_seed(3))
    assert torch.equal(mixed_images, mixed.images)
    torch.testing.assert_close(targets, 0.9 * mixed.targets(K) + 0.1 / K)
    assert not torch.equal(mixed_images, images)


def test_switched_off_it_returns_what_timm_does() -> None:
    ((images, labels),) = batches(1)
    ours, theirs = GraftingMixup(make_model(), label_smoothing=0.1), Mixup(label_smoothing=0.1, num_classes=K)
    ours.mixup_enabled = theirs.mixup_enabled = False
    for got, expected in zip(ours(images, labels), theirs(images.clone(), labels), strict=True):
        torch.testing.assert_close(got, expected)


def test_the_pass_for_the_maps_has_no_side_effects() -> None:
    model, ((images, labels),) = make_model(), batches(1, size=5)  # any size, not only even ones
    mix = GraftingMixup(model, generator=torch.Generator().manual_seed(0))
    before, seen = copy.deepcopy(model.state_dict()), (images.clone(), labels.clone())
    state = torch.get_rng_state()
    _, targets = mix(images, labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(images, seen[0])
    assert torch.equal(labels, seen[1])
    assert not targets.requires_grad
    assert model.training


def test_a_map_that_is_not_finite_leaves_its_sample_unmixed_as_in_the_step() -> None:
    class Overflowing(sg.SaliencySource):
        """A network whose features overflow for the first sample."""

        def __call__(self, images: Tensor, labels: Tensor | None = None) -> Tensor:  # noqa: ARG002
            maps = torch.rand(len(images), 8, 8, generator=torch.Generator().manual_seed(0))
            return maps.index_fill(0, torch.tensor([0]), torch.nan)

    model, ((images, labels),) = make_model(), batches(1)
    options = {"saliency_source": Overflowing()}
    mix = GraftingMixup(model, label_smoothing=0, **options, generator=torch.Generator().manual_seed(1))
    step = sg.GraftingStep(model, mix.method, passes="mixed", **options, generator=torch.Generator().manual_seed(1))
    mixed, targets = mix(images, labels)
    expected = step(images, labels).mixed
    assert torch.equal(mixed, expected.images)
    torch.testing.assert_close(targets, expected.targets(K))
    assert mixed.isfinite().all()
    assert not torch.equal(mixed, images)


def test_methods_without_maps_make_no_pass() -> None:
    model, ((images, labels),) = make_model(), batches(1)
    mix = GraftingMixup(model, sg.CutMix())
    model.forward = None  # type: ignore[assignment]
    assert mix(images, labels)[1].shape == (6, K)


def test_wrapped_models_tell_their_classes_and_tasks_can_be_pickled() -> None:
    assert GraftingMixup(nn.DataParallel(make_model())).num_classes == make_model().num_classes
    task = GraftingTask(make_model(), LabelSmoothingCrossEntropy(0.1), verbose=False)
    copied = pickle.loads(pickle.dumps(task))
    images, labels = batches(1)[0]
    task.mixup_enabled = copied.mixup_enabled = False
    losses = []
    for each in (task, copied):
        torch.manual_seed(0)  # of dropout
        losses.append(each(images, labels)["loss"])
    torch.testing.assert_close(losses[1], losses[0])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="num_classes must be given for Linear"):
        GraftingMixup(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="label_smoothing must"):
        GraftingMixup(make_model(), label_smoothing=1.5)
    with pytest.raises(TypeError, match="JsdCrossEntropy"):
        GraftingTask(make_model(), JsdCrossEntropy(), verbose=False)
    with pytest.raises(TypeError, match="AsymmetricLossSingleLabel, which takes class indices"):
        GraftingTask(make_model(), AsymmetricLossSingleLabel(), verbose=False)
    with pytest.raises(TypeError, match="got NLLLoss, which takes class indices"):
        GraftingTask(make_model(), nn.NLLLoss(), verbose=False)


def train(task: TrainingTask, mix: GraftingMixup | None = None, *, compiled: bool = False) -> list[float]:
    """Two epochs as timm's train.py runs them, the second without mixing: EMA, compile, AMP, accumulation."""
    optimizer = torch.optim.SGD(task.get_trainable_module().parameters(), lr=0.05)
    task.setup_ema(decay=0.9)
    if compiled:
        task.compile(backend="aot_eager")
    losses = []
    for epoch in range(2):
        if epoch == 1:  # --mixup-off-epoch
            (mix or task).mixup_enabled = False
        task.get_trainable_module().train()
        for number, (images, targets) in enumerate(batches(), start=1):
            need_update = number % 2 == 0
            if mix is not None:
                images, targets = mix(images, targets)
            images = images.contiguous(memory_format=torch.channels_last)
            with nullcontext() if need_update else task.no_sync():
                with torch.autocast("cpu", torch.bfloat16):
                    loss = task(images, targets)["loss"]
                loss /= 2
                loss.backward()
            losses.append(loss.item())
            if need_update:
                optimizer.step()
                optimizer.zero_grad()
                task.update_ema(step=number)
    return losses


@pytest.mark.parametrize("compiled", [False, True])
def test_drop_in_trains_in_a_loop_like_train_py(compiled: bool) -> None:
    model = make_model().to(memory_format=torch.channels_last)
    before = copy.deepcopy(model.state_dict())
    mix = GraftingMixup(model)
    task = ClassificationTask(model, SoftTargetCrossEntropy(), verbose=False)
    losses = train(task, mix, compiled=compiled)
    assert torch.tensor(losses).isfinite().all()
    assert not torch.equal(model.state_dict()["fc.weight"], before["fc.weight"])
    assert isinstance(task.get_trainable_module(ema=True), ModelEmaV3)
    assert task.get_eval_model(ema=True)(batches(1)[0][0]).shape == (6, K)


@pytest.mark.parametrize("compiled", [False, True])
def test_task_trains_in_a_loop_like_train_py(compiled: bool) -> None:
    model = make_model().to(memory_format=torch.channels_last)
    task = GraftingTask(model, LabelSmoothingCrossEntropy(0.1), verbose=False)
    mixed = []
    step_call = sg.GraftingStep.__call__

    def watch(step: sg.GraftingStep, *arguments: Tensor) -> sg.StepOutput:
        out = step_call(step, *arguments)
        mixed.append(out.mixed is not None)
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sg.GraftingStep, "__call__", watch)
        losses = train(task, compiled=compiled)
    assert torch.tensor(losses).isfinite().all()
    assert mixed == [True] * 4 + [False] * 4
    assert task.step.steps_taken == 8
    difference = model.state_dict()["fc.weight"] - task.get_eval_model(ema=True).state_dict()["module.fc.weight"]
    assert 0 < float(difference.detach().abs().max()) < 1


@pytest.mark.parametrize("compile", [False, "eager"])
def test_the_step_is_built_once_for_each_wrapping(compile: bool | str) -> None:
    task = GraftingTask(make_model(), nn.CrossEntropyLoss(), step_options={"compile": compile}, verbose=False)
    step, names = task.step, [name for name, _ in task.named_parameters()]
    for images, labels in batches(2):
        task(images, labels)
        assert task.step is step
    task.compile(backend="eager")
    for images, labels in batches(2):
        task(images, labels)
    assert task.step is not step
    assert task.step.steps_taken == 4
    assert len([name for name, _ in task.named_parameters()]) == len(names)


@pytest.mark.parametrize(
    ("criterion", "reference"),
    [
        (LabelSmoothingCrossEntropy(0.1), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss()),
        (BinaryCrossEntropy(smoothing=0.1), BinaryCrossEntropy(smoothing=0.1)),
    ],
    ids=["smoothing", "plain", "binary"],
)
def test_losses_of_originals_are_those_of_timm(criterion: nn.Module, reference: nn.Module) -> None:
    task, ((images, labels),) = GraftingTask(make_model(), criterion, verbose=False), batches(1)
    task.mixup_enabled = False
    result = task(images, labels)
    torch.testing.assert_close(result["loss"], reference(result["output"], labels))


class PolyCrossEntropy(nn.Module):
    """As timm's from 1.0.31 on: smooths class indices alone."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        if targets.ndim == 1:
            targets = nn.functional.one_hot(targets, K) * (1 - self.smoothing) + self.smoothing / K
        entropy = nn.functional.cross_entropy(logits, targets)
        return entropy + 2 * (1 - (targets * logits.softmax(dim=1)).sum(dim=1)).mean()


class DenselySmoothed(nn.Module):
    """As timm's BinaryCrossEntropy from 1.0.31 on with smooth_dense: moves dense targets towards 1/2."""

    smoothing, smooth_dense = 0.2, True

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, 0.8 * targets + 0.1)


DenselySmoothed.__name__ = "BinaryCrossEntropy"


def test_labels_are_smoothed_once_and_by_the_rule_of_the_loss() -> None:
    ((images, labels),) = batches(1)
    rows = nn.functional.one_hot(labels, K).float()
    for criterion, given in ((PolyCrossEntropy(0.1), labels), (DenselySmoothed(), rows)):
        task = GraftingTask(make_model(), criterion, verbose=False)
        task.mixup_enabled = False
        result = task(images, given)
        torch.testing.assert_close(result["loss"], criterion(result["output"], given))


def test_the_loss_may_be_left_to_a_timm_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(
        task: ClassificationTask,
        model: nn.Module,
        criterion: nn.Module | None = None,
        criterion_kwargs: dict[str, float] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
    ) -> None:
        TrainingTask.__init__(task, device=device, dtype=dtype, verbose=verbose)
        task.trainable_module = model
        task.criterion = criterion or LabelSmoothingCrossEntropy(**criterion_kwargs)

    monkeypatch.setattr(ClassificationTask, "__init__", newer)
    ((images, labels),) = batches(1)
    task = GraftingTask(model=make_model(), criterion_kwargs={"smoothing": 0.1}, device=torch.device("cpu"))
    task.mixup_enabled = False
    result = task(images, labels)
    torch.testing.assert_close(result["loss"], LabelSmoothingCrossEntropy(0.1)(result["output"], labels))


@pytest.mark.skipif("criterion_kwargs" in signature(ClassificationTask.__init__).parameters, reason="timm makes a loss")
def test_older_timm_needs_a_loss() -> None:
    with pytest.raises(TypeError, match="criterion must be a loss of dense targets for timm before"):
        GraftingTask(make_model(), verbose=False)


def test_checkpoint_resumes_the_task() -> None:
    first, ((images, labels),) = GraftingTask(make_model(), nn.CrossEntropyLoss(), verbose=False), batches(1)
    first(images, labels)
    first.mixup_enabled = False
    state = first.get_checkpoint_state()
    second = GraftingTask(make_model(), nn.CrossEntropyLoss(), verbose=False)
    second.load_checkpoint_state(state["state_dict"], state["task_state"])
    assert second.step.steps_taken == 1
    assert not second.mixup_enabled
    second.load_checkpoint_state(state["state_dict"])  # of another task
    assert second.step.steps_taken == 1
