"""The parts of a run follow from its recipe."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from saligraft.compiling import compiled_model
from saligraft.config.method_section import METHOD_NAMES
from saligraft.data import InMemoryLoader, load
from saligraft.methods import FeatureMixer, StepStrategy
from saligraft.methods.registry import methods_of
from saligraft.saliency.bottom_up import FineGrained
from saligraft.step import GraftingStep, MixingStep
from saligraft.steps import FeatureMixingStep, ViewsStep
from saligraft.training import Recipe, SilentReporter, make_recipe, setup, train
from saligraft.training.accelerator import make_accelerator
from saligraft.training.setup import (
    Stage,
    Timeline,
    check_method,
    labelled_images,
    load_split,
    make_loader,
    make_network,
    make_step,
    make_timeline,
)


def test_initial_weights_follow_from_the_seed_alone(tiny_recipe: Recipe) -> None:
    data = load_split(tiny_recipe, "train")
    torch.manual_seed(1)
    first = make_network(tiny_recipe, data).state_dict()
    torch.manual_seed(2)
    expected_draw = torch.rand(1)
    torch.manual_seed(2)
    second = make_network(tiny_recipe, data).state_dict()
    assert torch.equal(torch.rand(1), expected_draw)  # the caller's stream was left alone
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = make_network(tiny_recipe.model_copy(update={"seed": 4}), data).state_dict()
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_channels_last_reaches_weights_and_images(tiny_recipe: Recipe) -> None:
    training = tiny_recipe.training.model_copy(update={"channels_last": True})
    recipe = tiny_recipe.model_copy(update={"training": training})
    data = load_split(recipe, "test")
    assert make_network(recipe, data).stem.weight.is_contiguous(memory_format=torch.channels_last)
    loader = make_loader(recipe, data, make_accelerator(recipe), train=False)
    images, labels = next(iter(labelled_images(recipe, loader)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len(images) == len(labels) == 16


def test_batch_norm_over_processes_keeps_names_and_weights(tiny_recipe: Recipe) -> None:
    training = tiny_recipe.training.model_copy(update={"sync_batch_norm": True})
    data = load_split(tiny_recipe, "test")
    plain = make_network(tiny_recipe, data)
    synced = make_network(tiny_recipe.model_copy(update={"training": training}), data)
    counts = [sum(type(m) is kind for m in synced.modules()) for kind in (nn.BatchNorm2d, nn.SyncBatchNorm)]
    assert counts == [0, sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules())]
    assert list(synced.state_dict()) == list(plain.state_dict())
    images = torch.randn(2, *data.image_shape)
    assert torch.equal(synced.eval()(images), plain.eval()(images))


def test_splits_differ_and_options_reach_the_data(tiny_recipe: Recipe) -> None:
    train, test = load_split(tiny_recipe, "train"), load_split(tiny_recipe, "test")
    assert train.images.shape == (40, 3, 16, 16)
    assert not torch.equal(train.images[:10], test.images[:10])


def test_a_part_of_each_class_is_trained_on_and_all_is_tested(tiny_table: dict[str, Any]) -> None:
    whole = make_recipe(tiny_table)
    some, other = (
        make_recipe({**tiny_table, "data": {**tiny_table["data"], "per_class_subset": 2, "subset_seed": seed}})
        for seed in (0, 1)
    )
    assert load_split(some, "train").labels.bincount().tolist() == [2] * 10
    assert len(load_split(some, "test")) == len(load_split(whole, "test"))
    assert not torch.equal(load_split(some, "train").images, load_split(other, "train").images)


def test_held_out_images_are_training_images_that_are_not_trained_on(tiny_table: dict[str, Any]) -> None:
    def splits(**changes: Any) -> list[set[bytes]]:
        recipe = make_recipe({**tiny_table, "data": {**tiny_table["data"], **changes}})
        return [{image.numpy().tobytes() for image in load_split(recipe, split).images} for split in ("train", "test")]

    every, _ = splits()
    trained, held_out = splits(per_class_subset=3, held_out=True)
    assert trained == splits(per_class_subset=3)[0]
    assert not trained & held_out
    assert trained | held_out == every
    assert len(splits(per_class_subset=1, held_out=True, test_subset=2)[1]) == 20
    with pytest.raises(ValueError, match="held_out needs per_class_subset"):
        splits(held_out=True)


def test_a_run_may_have_the_first_classes_alone(tiny_table: dict[str, Any]) -> None:
    recipe = make_recipe({**tiny_table, "data": {**tiny_table["data"], "classes": 4}})
    train, test = load_split(recipe, "train"), load_split(recipe, "test")
    assert train.classes == test.classes == load_split(make_recipe(tiny_table), "test").classes[:4]
    assert train.labels.bincount().tolist() == [4] * 4
    assert make_network(recipe, train).head.out_features == 4


@pytest.mark.parametrize("name", [*METHOD_NAMES, "cutout+mixup", "cutout+manifold-mixup", "cutout+saliency-grafting"])
def test_methods_get_the_step_they_need(name: str, tiny_table: dict[str, Any], generator: torch.Generator) -> None:
    recipe = make_recipe({**tiny_table, "method": {"name": name}})
    data = load_split(recipe, "train")
    model = make_network(recipe, data)
    step = make_step(recipe, model, data, generator, recipe.method.build(), warmup_steps=5)
    last = name.rpartition("+")[2]
    expected = GraftingStep if last == "saliency-grafting" else MixingStep
    for kind, own_step in ((FeatureMixer, FeatureMixingStep), (StepStrategy, ViewsStep)):
        expected = own_step if last in methods_of(kind) else expected
    assert type(step) is expected
    assert step.model is model
    assert step.warmup_steps == 5
    assert step.generator is generator


@pytest.mark.parametrize("passes", ["mixed", "joint"])
@pytest.mark.parametrize(
    ("name", "mode"), [("saliency-grafting", "current"), ("attentive-cutmix", "eval"), ("puzzlemix", "eval")]
)
def test_a_pass_for_maps_has_one_mode_in_recipes_and_in_the_library(
    name: str, mode: str, passes: Any, tiny_table: dict[str, Any], generator: torch.Generator
) -> None:
    training = {**tiny_table["training"], "passes": passes}
    recipe = make_recipe({**tiny_table, "method": {"name": name}, "training": training})
    data, [method] = load_split(recipe, "train"), recipe.method.build()
    model = make_network(recipe, data)
    by_recipe = make_step(recipe, model, data, generator, [method])
    by_library = GraftingStep(model, method, passes=passes)
    assert [step.source.mode for step in (by_recipe, by_library)] == [mode, mode]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_checking_a_method_changes_nothing(name: str, tiny_table: dict[str, Any]) -> None:
    recipe = make_recipe({**tiny_table, "method": {"name": name}})
    data = load_split(recipe, "train")
    network = make_network(recipe, data)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    check_method(recipe, network, data, recipe.method.build())
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@pytest.mark.parametrize(
    "method",
    [
        {"name": "puzzlemix", "options": {"grids": [2, 17]}},
        {"name": "cutout+saliency-grafting", "options": {"saliency-grafting": {"grids": [4, 8, 17]}}},
        {
            "name": "random-choice",
            "choices": {"mixup": 0.99, "saliency-grafting": 0.01},
            "options": {"saliency-grafting": {"grids": [4, 8, 17]}},
        },
    ],
)
def test_every_grid_of_every_method_is_checked(method: dict[str, Any], tiny_table: dict[str, Any]) -> None:
    recipe = make_recipe({**tiny_table, "method": method})
    data = load_split(recipe, "train")
    with pytest.raises(ValueError, match=r"must not exceed the image \(16, 16\), got 17"):
        check_method(recipe, make_network(recipe, data), data, recipe.method.build())


def test_saliencymix_looks_at_the_pixels_own_values(tiny_table: dict[str, Any], generator: torch.Generator) -> None:
    recipe = make_recipe({**tiny_table, "method": {"name": "saliencymix"}})
    data = load_split(recipe, "train")
    step = make_step(recipe, make_network(recipe, data), data, generator, recipe.method.build())
    assert isinstance(step, MixingStep)
    assert step.source == FineGrained(mean=data.mean, std=data.std)


@pytest.mark.parametrize("kind", ["folder", "imagenet"])
def test_an_empty_test_split_is_refused_before_anything_is_written(kind: str, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "data" / "train" / name / "1.png")
    (tmp_path / "data" / "val").mkdir()
    root = str(tmp_path / "data")
    named = {"name": f"folder:{root}"} if kind == "folder" else {"name": kind, "root": root}
    table = {"data": {**named, "options": {"size": 16}}, "network": {"name": "wrn-10-1"}, "training": {"batch_size": 2}}
    with pytest.raises(ValueError, match=f"{kind}.* must hold images to test on, got none"):
        train(make_recipe(table), tmp_path / "run", reporter=SilentReporter())
    assert not (tmp_path / "run").exists()


def test_batches_are_counted_over_stages_of_different_length() -> None:
    data = load("shapes", size=16, per_class=4)
    loaders = [InMemoryLoader(data, batch_size=size, train=True) for size in (20, 10)]
    stages = [Stage(first_epoch=first, loader=x, batches=len(x)) for first, x in zip((0, 3), loaders, strict=True)]
    timeline = Timeline(stages, epochs=5)
    assert [timeline.first_batch(epoch) for epoch in range(6)] == [0, 2, 4, 6, 10, 14]
    assert timeline.total_batches == 14
    assert timeline.stage(2).loader is loaders[0]
    assert timeline.stage(3).loader is loaders[1]


def test_more_parts_than_batches_are_refused(tiny_table: dict[str, Any]) -> None:
    training = {**tiny_table["training"], "batch_size": 32, "accumulate": 32}
    data = {**tiny_table["data"], "options": {"size": 16, "per_class": 2}}
    recipe = make_recipe({**tiny_table, "training": training, "data": data})
    with pytest.raises(ValueError, match=r"training.accumulate must be at most the batches of an epoch \(20\), got 32"):
        make_timeline(recipe, load_split(recipe, "train"), make_accelerator(recipe))


def test_phases_need_images_that_can_be_resized(tiny_table: dict[str, Any]) -> None:
    phases = [{"from_epoch": 0, "size": 16, "batch_size": 8}]
    recipe = make_recipe({**tiny_table, "training": {**tiny_table["training"], "phases": phases}})
    with pytest.raises(ValueError, match=r"training\.phases must be left out for shapes"):
        make_timeline(recipe, load_split(recipe, "train"), make_accelerator(recipe))


def gradients(recipe: Recipe, steps: int = 2) -> tuple[list[Tensor], nn.Module]:
    """Gradients of some steps together, each with its own batch, and the network that has them."""
    data = load_split(recipe, "train")
    network = make_network(recipe, data).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    step = make_step(recipe, network, data, torch.Generator().manual_seed(0), recipe.method.build())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    for number in range(steps):
        images = torch.randn(8, *data.image_shape, generator=torch.Generator().manual_seed(number))
        step(images, torch.arange(8)).loss.backward()
    return [parameter.grad for parameter in network.parameters()], network


@pytest.fixture
def _traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without code generation, which takes a C++ compiler and most of the time."""

    def quick(model: nn.Module, compile: bool) -> nn.Module:
        return compiled_model(model, compile and "aot_eager")

    monkeypatch.setattr(setup, "compiled_model", quick)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize(("name", "graphs"), [("none", 1), ("saliency-grafting", 2)])
def test_a_compiled_step_equals_the_uncompiled(name: str, graphs: int, tiny_table: dict[str, Any]) -> None:
    table = {**tiny_table, "method": {"name": name}}
    expected, plain = gradients(make_recipe(table))
    table["training"]["compile"] = True
    own, network = gradients(make_recipe(table))
    # One graph for each pass of a step, and none anew in the second step: the first step's were compiled already.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    for ours, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert list(network.state_dict()) == list(plain.state_dict())
    for name, buffer in network.named_buffers():
        torch.testing.assert_close(buffer, plain.get_buffer(name), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("_traced")
def test_a_compiled_run_in_bfloat16_is_saved_under_the_network_s_own_names(tiny_table: dict[str, Any]) -> None:
    tiny_table["training"].update(compile=True, precision="bf16", channels_last=True, epochs=1)
    recipe = make_recipe({**tiny_table, "method": {"name": "saliency-grafting"}})
    result = train(recipe, reporter=SilentReporter())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 2
    assert list(result.network.state_dict()) == list(make_network(recipe, load_split(recipe, "test")).state_dict())
