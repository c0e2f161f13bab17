"""What a checkpoint holds is all that a run needs, and circumstances that do not fit are told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from saligraft.training import SilentReporter, make_recipe
from saligraft.training import checkpoint as checkpoints
from saligraft.training.accelerator import make_accelerator
from saligraft.training.epoch import Watch, train_epoch
from saligraft.training.run_state import Position, capture, differences, restore
from saligraft.training.session import Session, prepare

WATCH = Watch(reporter=SilentReporter(), after_step=lambda *_: None)


def session_of(table: dict[str, Any], **training: Any) -> Session:
    recipe = make_recipe({**table, "training": {**table["training"], **training}})
    return prepare(recipe, make_accelerator(recipe))


def saved(session: Session, position: Position, folder: Path) -> checkpoints.Checkpoint:
    checkpoints.save(folder, 1, *capture(session, position), session.accelerator)
    found = checkpoints.latest(folder, session.accelerator)
    assert found is not None
    return found


def test_a_restored_session_captures_the_same(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    table = {**tiny_table, "optimizer": {"name": "adamw", "lr": 0.01}}
    trained, fresh = (session_of(table, ema_decay=0.5, channels_last=True) for _ in range(2))
    position = Position()
    train_epoch(trained, position, WATCH)
    before = capture(trained, position)
    after = capture(fresh, restore(fresh, saved(trained, position, tmp_path)))
    assert after.state == before.state
    for one, other in ((after.shared, before.shared), (after.own, before.own)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert fresh.step.steps_taken == trained.step.steps_taken == 2
    assert momentum_strides(fresh) == momentum_strides(trained)


def momentum_strides(session: Session) -> dict[int, tuple[int, ...]]:
    state = session.optimizer.state_dict()["state"]
    return {index: entry["exp_avg"].stride() for index, entry in state.items()}


def test_other_circumstances_are_told_and_impossible_ones_refused(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    session = session_of(tiny_table)
    found = saved(session, Position(), tmp_path)
    assert differences(session, found) == []
    older = replace(found, state={**found.state, "threads": 99, "torch": "1.0"})
    assert differences(session, older) == [
        f"threads 99, now {torch.get_num_threads()}",
        f"torch 1.0, now {torch.__version__}",
    ]
    with pytest.raises(ValueError, match=r"resumed with as many processes as it was started with \(2\), got 1"):
        differences(session, replace(found, state={**found.state, "processes": 2}))
    with pytest.raises(ValueError, match="is of another recipe"):
        differences(session_of(tiny_table, epochs=3), found)


def test_tensors_of_another_network_are_refused(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    found = saved(session_of(tiny_table), Position(), tmp_path)
    other = session_of({**tiny_table, "network": {"name": "wrn-16-1"}})
    with pytest.raises(ValueError, match=r"the checkpoint must hold the network's \d+ tensors, got \d+"):
        restore(other, found)
