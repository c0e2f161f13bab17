"""One epoch: what decides a step's numbers, and what must not."""

from typing import Any

import pytest
import torch

from saligraft.regularizers import DropBlock
from saligraft.training import Recipe, SilentReporter, make_recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.epoch import Watch, seed_step, train_epoch
from saligraft.training.loop import run_epoch
from saligraft.training.run_state import Position
from saligraft.training.session import prepare


def watch(reporter: SilentReporter | None = None) -> Watch:
    return Watch(reporter=reporter or SilentReporter(), after_step=lambda *_: None)


def test_a_step_does_not_depend_on_the_epochs_before_it(tiny_table: dict[str, Any]) -> None:
    network = {"name": "wrn-10-1", "options": {"dropout": 0.5}}
    recipe = make_recipe({**tiny_table, "network": network, "method": {"name": "cutmix"}})
    direct = prepare(recipe, make_accelerator(recipe))
    direct.step.steps_taken = direct.timeline.first_batch(1)
    after_another = prepare(recipe, make_accelerator(recipe))
    weights = {name: value.clone() for name, value in after_another.network.state_dict().items()}
    train_epoch(after_another, Position(), watch())
    after_another.network.load_state_dict(weights)
    after_another.optimizer.optimizer.state.clear()
    losses = [train_epoch(session, Position(epoch=1), watch())[0] for session in (direct, after_another)]
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


def test_the_schedule_sets_the_learning_rate_of_every_step(tiny_table: dict[str, Any]) -> None:
    schedule = {"name": "step", "milestones": [0.5, 1], "decay": 0.5}
    recipe = make_recipe({**tiny_table, "schedule": schedule})
    session = prepare(recipe, make_accelerator(recipe))
    seen: list[float] = []

    class Watching(SilentReporter):
        def step(self) -> None:
            seen.append(session.optimizer.param_groups[0]["lr"])

    metrics = [run_epoch(session, Position(epoch=epoch), watch(Watching()))[0] for epoch in range(2)]
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
        train_epoch(session, Position(epoch=epoch), watch(Watching()))
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15])


def test_accumulated_parts_make_up_one_step_of_the_whole_batch(tiny_table: dict[str, Any]) -> None:
    """Plain training without batch norm sees the same gradient, in one part or in four."""
    losses = {}
    for parts in (1, 4):
        training = {**tiny_table["training"], "accumulate": parts}
        network = {"name": "torchvision:squeezenet1_1", "options": {"dropout": 0.0}}
        table = {**tiny_table, "data": {**tiny_table["data"], "options": {"size": 32, "per_class": 4}}}
        recipe = make_recipe({**table, "network": network, "training": training, "optimizer": {"lr": 0.001}})
        session = prepare(recipe, make_accelerator(recipe))
        losses[parts] = [train_epoch(session, Position(epoch=epoch), watch())[0] for epoch in range(2)]
    assert losses[4] == pytest.approx(losses[1], rel=1e-4)


def test_an_epoch_goes_on_from_any_batch(tiny_recipe: Recipe) -> None:
    sessions = [prepare(tiny_recipe, make_accelerator(tiny_recipe)) for _ in range(2)]
    whole = Position()
    train_epoch(sessions[0], whole, watch())

    class EnoughError(Exception):
        pass

    def stop(position: Position, steps: int) -> None:
        assert steps == position.batch == 1
        raise EnoughError

    cut = Position()
    with pytest.raises(EnoughError):
        train_epoch(sessions[1], cut, Watch(reporter=SilentReporter(), after_step=stop))
    train_epoch(sessions[1], cut, watch())
    assert [float(loss) for loss in cut.losses] == [float(loss) for loss in whole.losses]
    for one, other in zip(*(session.network.state_dict().values() for session in sessions), strict=True):
        assert torch.equal(one, other)
