"""The loop: same recipe, same bits; every method learns; nothing of the caller's changes."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from saligraft.losses import mixed_cross_entropy
from saligraft.regularizers import DropBlock
from saligraft.step import GraftingStep
from saligraft.training import Recipe, SilentReporter, load_recipe, make_recipe, train
from saligraft.training.accelerator import make_accelerator
from saligraft.training.loop import prepare, run_epoch, seed_step, train_epoch
from saligraft.training.method_section import METHOD_NAMES
from saligraft.training.run_folder import RUN_FILES

COMPARED = ("recipe.toml", "metrics.jsonl", "result.json", "model.safetensors")
quiet_train = functools.partial(train, reporter=SilentReporter())


def with_method(table: dict[str, Any], name: str, **training: Any) -> Recipe:
    return make_recipe({**table, "method": {"name": name}, "training": {**table["training"], **training}})


def test_one_recipe_gives_one_run_to_the_bit(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    table = {**tiny_table, "network": {"name": "wrn-10-1", "options": {"dropout": 0.3}}}
    recipe = with_method(table, "saliency-grafting", copies=2, warmup_epochs=1, label_smoothing=0.1)
    quiet_train(recipe, tmp_path / "a")
    torch.rand(5)
    quiet_train(load_recipe(tmp_path / "a" / "recipe.toml"), tmp_path / "b")
    for name in COMPARED:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert {file.name for file in (tmp_path / "a").iterdir()} == set(RUN_FILES)
    quiet_train(recipe.model_copy(update={"seed": 8}), tmp_path / "c")
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() != (tmp_path / "c" / "metrics.jsonl").read_bytes()


def test_the_result_tells_what_the_folder_holds(tiny_recipe: Recipe, tmp_path: Path) -> None:
    result = quiet_train(tiny_recipe, tmp_path / "a")
    assert json.loads((tmp_path / "a" / "result.json").read_text()) == result.summary
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [line._asdict() for line in result.metrics]
    assert result.summary["parameters"] == sum(p.numel() for p in result.network.parameters())
    assert all(line.images_per_second > 0 and line.cpu_seconds > 0 for line in result.timing)
    assert not result.network.training


def test_without_a_folder_nothing_is_written(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert quiet_train(tiny_recipe).folder is None
    assert list(tmp_path.iterdir()) == []


def test_the_caller_s_random_state_is_left_alone(tiny_recipe: Recipe) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quiet_train(tiny_recipe)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_lowers_the_loss_on_its_images(method: str, tiny_table: dict[str, Any]) -> None:
    result = quiet_train(with_method({**tiny_table, "optimizer": {"lr": 0.02}}, method, epochs=5))
    assert result.metrics[-1].train_loss < result.metrics[0].train_loss


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_repeats_to_the_bit(method: str, tiny_table: dict[str, Any]) -> None:
    first, second = (quiet_train(with_method(tiny_table, method, epochs=1)).metrics for _ in range(2))
    assert first == second


def test_a_step_does_not_depend_on_the_epochs_before_it(tiny_table: dict[str, Any]) -> None:
    recipe = with_method({**tiny_table, "network": {"name": "wrn-10-1", "options": {"dropout": 0.5}}}, "cutmix")
    direct = prepare(recipe, make_accelerator(recipe))
    direct.step.steps_taken = len(direct.train_loader)
    after_another = prepare(recipe, make_accelerator(recipe))
    weights = {name: value.clone() for name, value in after_another.network.state_dict().items()}
    train_epoch(after_another, 0, SilentReporter())
    after_another.network.load_state_dict(weights)
    after_another.optimizer.optimizer.state.clear()
    losses = [train_epoch(session, 1, SilentReporter())[0] for session in (direct, after_another)]
    assert losses[0] == losses[1]


def test_processes_and_steps_draw_differently(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    session = prepare(tiny_recipe, make_accelerator(tiny_recipe))
    draws = set()
    with torch.random.fork_rng():
        for rank in (0, 1):
            monkeypatch.setattr(type(session.accelerator), "process_index", property(lambda _, rank=rank: rank))
            for number in (0, 1):
                seed_step(session, number)
                draws |= {float(torch.rand((), generator=session.generator)), float(torch.rand(()))}
    assert len(draws) == 8


def test_label_smoothing_copies_and_warm_up_reach_the_step(tiny_table: dict[str, Any]) -> None:
    recipe = with_method(tiny_table, "saliency-grafting", copies=3, label_smoothing=0.2, warmup_epochs=1)
    session = prepare(recipe, make_accelerator(recipe))
    assert isinstance(session.step, GraftingStep)
    assert session.step.copies == 3
    assert session.step.warmup_steps == len(session.train_loader) == 2
    assert session.step.criterion.func is mixed_cross_entropy
    assert session.step.criterion.keywords == {"label_smoothing": 0.2}


def test_warm_up_means_plain_training_at_first(tiny_table: dict[str, Any]) -> None:
    plain = quiet_train(with_method(tiny_table, "none")).metrics
    warmed = quiet_train(with_method(tiny_table, "cutmix", warmup_epochs=1)).metrics
    assert warmed[0] == plain[0]
    assert warmed[1] != plain[1]


def test_the_schedule_sets_the_learning_rate_of_every_step(tiny_table: dict[str, Any]) -> None:
    schedule = {"name": "step", "milestones": [0.5, 1], "decay": 0.5}
    recipe = make_recipe({**tiny_table, "schedule": schedule})
    session = prepare(recipe, make_accelerator(recipe))
    seen: list[float] = []

    class Watching(SilentReporter):
        def step(self) -> None:
            seen.append(session.optimizer.param_groups[0]["lr"])

    metrics = [run_epoch(session, epoch, Watching())[0] for epoch in range(2)]
    assert seen == pytest.approx([0.05, 0.025, 0.0125, 0.0125])
    assert [line.lr for line in metrics] == pytest.approx([0.025, 0.0125])


def test_drop_block_grows_with_the_steps_to_its_full_rate(tiny_table: dict[str, Any]) -> None:
    options = {"drop_block": {"block_size": 3, "keep_probability": 0.8}}
    recipe = make_recipe({**tiny_table, "network": {"name": "wrn-10-1", "options": options}})
    session = prepare(recipe, make_accelerator(recipe))
    blocks = [module for module in session.network.modules() if isinstance(module, DropBlock)]
    rates: list[float] = []

    class Watching(SilentReporter):
        def step(self) -> None:
            rates.append(float(blocks[-1].drop_rate))

    for epoch in range(2):
        train_epoch(session, epoch, Watching())
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15])


@pytest.mark.parametrize("method", ["none", "saliency-grafting"])
@pytest.mark.parametrize("batch_size", [16, 40])  # in two steps the loss shows it, in one only the test does
def test_a_run_that_diverges_stops(method: str, batch_size: int, tiny_table: dict[str, Any], tmp_path: Path) -> None:
    recipe = with_method({**tiny_table, "optimizer": {"lr": 1e30}}, method, batch_size=batch_size)
    with pytest.raises(ValueError, match=r"training diverged in epoch 1 \((train|test) loss (nan|inf)\): lower optim"):
        quiet_train(recipe, tmp_path / "a")
    assert load_recipe(tmp_path / "a" / "recipe.toml") == recipe
    assert not (tmp_path / "a" / "result.json").exists()


def test_weights_that_are_not_finite_stop_the_run_whatever_the_losses(tiny_recipe: Recipe) -> None:
    session = prepare(tiny_recipe, make_accelerator(tiny_recipe))
    session.network.register_buffer("unused", torch.tensor([1.0, float("inf")]))
    with pytest.raises(ValueError, match=r"training diverged in epoch 3 \(weights inf\)"):
        run_epoch(session, 2, SilentReporter())


def test_a_method_that_does_not_fit_the_images_leaves_an_earlier_run_alone(
    tiny_table: dict[str, Any], tmp_path: Path
) -> None:
    quiet_train(with_method(tiny_table, "none", epochs=1), tmp_path / "a")
    before = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    table = {"name": "saliency-grafting", "options": {"grids": [4, 17]}}
    recipe = make_recipe({**tiny_table, "method": table})
    for folder in ("a", "b"):
        with pytest.raises(ValueError, match=r"grids must not exceed the image \(16, 16\), got 17"):
            quiet_train(recipe, tmp_path / folder, overwrite=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()} == before
    assert not (tmp_path / "b").exists()


def test_an_earlier_run_is_kept_unless_asked(tiny_recipe: Recipe, tmp_path: Path) -> None:
    quiet_train(tiny_recipe, tmp_path)
    before = (tmp_path / "timing.jsonl").read_bytes()
    with pytest.raises(ValueError, match="is not empty"):
        quiet_train(tiny_recipe, tmp_path)
    assert (tmp_path / "timing.jsonl").read_bytes() == before
    quiet_train(tiny_recipe, tmp_path, overwrite=True)
    assert (tmp_path / "timing.jsonl").read_bytes() != before
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
