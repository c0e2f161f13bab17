"""Where a run stands, as tensors and JSON for a checkpoint, and back: what is restored continues bit for bit.

No random state is among it: every draw is keyed by where it stands.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import dump_recipe
from saligraft.data import Split
from saligraft.training.checkpoint import Checkpoint
from saligraft.training.results import EpochMetrics, EpochTiming
from saligraft.training.session import Session

NETWORK, AVERAGE, OPTIMIZER, LOSSES = "network.", "average.", "optimizer.", "losses"


@dataclass(kw_only=True)
class Position:
    """How far a run has come."""

    epoch: int = 0  # epochs that are done, tested and written
    batch: int = 0  # batches of the current epoch that are done
    losses: list[Tensor] = field(default_factory=list)  # of these batches, in this process
    seconds: float = 0.0  # that they took, also before an interruption
    cpu_seconds: float = 0.0
    metrics: list[EpochMetrics] = field(default_factory=list)
    timing: list[EpochTiming] = field(default_factory=list)


class Captured(NamedTuple):
    """What a checkpoint is made of."""

    state: dict[str, Any]
    shared: dict[str, Tensor]
    own: dict[str, Tensor]


def capture(session: Session, position: Position, known: Mapping[str, Any]) -> Captured:
    """All that decides what comes next, and `known`, the run's facts.

    Buffers are each process's own: between epochs they are not averaged.
    """
    network, average = session.network, session.average
    shared: dict[str, Tensor] = {NETWORK + name: value for name, value in network.named_parameters()}
    own = _buffers(network, NETWORK)
    if average is not None:
        for name, value in average.state_dict().items():
            (shared if NETWORK + name in shared else own)[AVERAGE + name] = value
    optimizer = session.optimizer.state_dict()["state"]
    for index, entry in optimizer.items():
        shared.update({f"{OPTIMIZER}{index}.{name}": value for name, value in entry.items() if torch.is_tensor(value)})
    own[LOSSES] = torch.stack(position.losses) if position.losses else torch.empty(0)
    scaler = session.accelerator.scaler
    state = {
        **known,
        "epoch": position.epoch,
        "batch": position.batch,
        "seconds": position.seconds,
        "cpu_seconds": position.cpu_seconds,
        "loss_scaler": None if scaler is None else scaler.state_dict(),
    }
    return Captured(state, shared, own)


def restore(session: Session, checkpoint: Checkpoint) -> Position:
    """Bring the session to where the checkpoint was taken; the epochs behind it stand in the run folder."""
    state = checkpoint.state
    shared, own = checkpoint.shared(), checkpoint.own(session.accelerator.process_index)
    _load_network(session.network, {**_under(NETWORK, shared), **_under(NETWORK, own)})
    if session.average is not None:
        session.average.load_state_dict({**_under(AVERAGE, shared), **_under(AVERAGE, own)})
    _load_optimizer(session, _under(OPTIMIZER, shared))
    if session.accelerator.scaler is not None and state["loss_scaler"]:
        session.accelerator.scaler.load_state_dict(state["loss_scaler"])
    position = Position(
        epoch=state["epoch"],
        batch=state["batch"],
        losses=list(own[LOSSES].to(session.accelerator.device)),
        seconds=state["seconds"],
        cpu_seconds=state["cpu_seconds"],
    )
    session.step.steps_taken = session.timeline.first_batch(position.epoch) + position.batch
    return position


def facts(session: Session) -> dict[str, Any]:
    """What a resumed run must or should share with the one before it."""
    return {
        "recipe": fingerprint(session.recipe),
        "processes": session.accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": session.accelerator.device.type,
        "data": {
            "classes": list(session.train_data.classes),
            "train": _samples(session.train_data),
            "test": _samples(session.test_data),
        },
    }


def _samples(data: Split) -> dict[str, Any]:
    return {"count": len(data), "digest": data.digest()}


def fingerprint(recipe: Recipe) -> str:
    """Equal for equal recipes."""
    return hashlib.sha256(dump_recipe(recipe).encode()).hexdigest()


def differences(now: Mapping[str, Any], checkpoint: Checkpoint) -> list[str]:
    """Circumstances that let a resumed run's numbers differ in the last digits; what cannot work is refused."""
    then = checkpoint.state
    if now["recipe"] != then["recipe"]:
        raise ValueError(f"checkpoint {checkpoint.path} is of another recipe than the one to resume")
    if now["processes"] != then["processes"]:
        raise ValueError(
            f"a run must be resumed with as many processes as it was started with ({then['processes']}), "
            f"got {now['processes']}"
        )
    changed = [name for name in ("threads", "torch", "device") if now[name] != then[name]]
    return [f"{name} {then[name]}, now {now[name]}" for name in changed]


def check_classes(then: Sequence[str], now: Sequence[str]) -> None:
    """Refuse other classes: labels would mean others than those that the network has learned."""
    if then == now:
        return
    gone, new = Counter(then) - Counter(now), Counter(now) - Counter(then)
    changes = [
        f"{part.total()} {word}, such as {next(iter(part))!r}" for part, word in ((gone, "gone"), (new, "new")) if part
    ]
    raise ValueError(
        f"a run must be resumed with the {len(then)} classes that it was started with, "
        f"got {len(now)} ({'; '.join(changes) or 'in another order'})"
    )


def changed_data(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which splits no longer hold the samples that the run was started with, in a few words; else nothing."""
    changes = []
    for split in ("train", "test"):
        before, after = then[split], now[split]
        if before["count"] != after["count"]:
            changes.append(f"{split} had {before['count']:,} samples, now {after['count']:,}")
        elif before != after:
            changes.append(f"{split} has other files or contents")
    return "; ".join(changes)


def _buffers(network: nn.Module, prefix: str) -> dict[str, Tensor]:
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return {prefix + name: value for name, value in network.state_dict().items() if name not in parameters}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def _load_network(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy into the tensors that stand there, which keeps their memory order."""
    places = {**dict(network.named_parameters()), **{n: v for n, v in network.state_dict().items() if n in tensors}}
    if places.keys() != tensors.keys():
        raise ValueError(f"the checkpoint must hold the network's {len(places)} tensors, got {len(tensors)}")
    for name, value in tensors.items():
        places[name].copy_(value)


def _load_optimizer(session: Session, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [p for group in session.optimizer.param_groups for p in group["params"]]
    for name, value in tensors.items():
        number, entry = name.split(".", 1)
        parameter = parameters[int(number)]
        if value.shape == parameter.shape:  # in the memory order of its parameter, as torch makes it
            value = torch.empty_like(parameter, requires_grad=False).copy_(value)
        state.setdefault(int(number), {})[entry] = value
    groups = session.optimizer.state_dict()["param_groups"]
    session.optimizer.load_state_dict({"state": state, "param_groups": groups})
