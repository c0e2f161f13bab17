"""State of a run for a checkpoint: captured, restored bit for bit, and compared with the conditions of a resume.

It contains no random state: every draw is keyed by its position in the run.
"""

import hashlib
import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import dump_recipe
from saligraft.data import Split
from saligraft.step import TrainingStep
from saligraft.training import checkpoint as checkpoints
from saligraft.training.accelerator import from_main_process
from saligraft.training.checkpoint import Checkpoint
from saligraft.training.optimizer import UPDATES, AveragedWeights
from saligraft.training.run_folder import History, read_finished, read_history

NETWORK, AVERAGE, OPTIMIZER, MEMORY, LOSSES = "network.", "average.", "optimizer.", "memory.", "losses"
GROUP = "group-"  # after OPTIMIZER, where parameters have their index


@dataclass(kw_only=True)
class Position:
    """How far a run has come.

    Args:
        epoch: Epochs that are finished, tested and written.
        batch: Batches of the current epoch that are done.
        losses: Loss of each of these batches, in this process.
        seconds: Time they took, before a resume too.
        cpu_seconds: CPU time they took.
    """

    epoch: int = 0
    batch: int = 0
    losses: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add_time(self, since: tuple[float, float]) -> tuple[float, float]:
        """Add the time since then, as returned by the last call: seconds of `perf_counter` and `process_time`."""
        now = time.perf_counter(), time.process_time()
        self.seconds += now[0] - since[0]
        self.cpu_seconds += now[1] - since[1]
        return now


class Learner(NamedTuple):
    """The parts of a run that change as it learns.

    Args:
        network: Network without the wrappers of DDP and torch.compile.
        average: Averaged weights; None if the recipe asks for none.
        optimizer: Optimiser as wrapped by Accelerate.
        accelerator: The run's accelerator, which holds the loss scaler.
        step: Training step, with the remembered maps if it has any.
    """

    network: nn.Module
    average: AveragedWeights | None
    optimizer: Any
    accelerator: Accelerator
    step: TrainingStep

    def capture(self, position: Position) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
        """Collect everything that decides how the run continues: JSON values, shared tensors, this process's own.

        Buffers are each process's own: within an epoch they are not averaged.
        """
        shared: dict[str, Tensor] = {NETWORK + name: value for name, value in self.network.named_parameters()}
        parameters = {name for name, _ in self.network.named_parameters(remove_duplicate=False)}
        own = {NETWORK + name: value for name, value in self.network.state_dict().items() if name not in parameters}
        if self.average is not None:
            for name, value in self.average.state_dict().items():
                (shared if NETWORK + name in shared else own)[AVERAGE + name] = value
        # Copies: a layer or weight in several places has several names, and safetensors takes each memory once.
        own = {name: value.clone() for name, value in own.items()}
        optimizer = self.optimizer.state_dict()
        groups = {f"{GROUP}{index}": group for index, group in enumerate(optimizer["param_groups"])}
        for index, entry in {**optimizer["state"], **groups}.items():
            shared |= {f"{OPTIMIZER}{index}.{name}": value for name, value in entry.items() if torch.is_tensor(value)}
        shared |= {MEMORY + name: value for name, value in self.step.state_dict().get("memory", {}).items()}
        own[LOSSES] = torch.stack(position.losses) if position.losses else torch.empty(0)
        scaler = self.accelerator.scaler
        state = {
            "epoch": position.epoch,
            "batch": position.batch,
            "seconds": position.seconds,
            "cpu_seconds": position.cpu_seconds,
            "loss_scaler": None if scaler is None else scaler.state_dict(),
            "optimizer": _optimizer_numbers(optimizer),
        }
        return state, shared, own

    def restore(self, checkpoint: Checkpoint) -> Position:
        """Load everything that `capture` collected; returns the position."""
        state, own = checkpoint.state, checkpoint.own(self.accelerator.process_index)
        tensors = {**checkpoint.shared(), **own}
        _load_network(self.network, _with_prefix(NETWORK, tensors))
        if self.average is not None:
            self.average.load_state_dict(_with_prefix(AVERAGE, tensors))
        _load_optimizer(self.optimizer, _with_prefix(OPTIMIZER, tensors), state["optimizer"])
        if self.accelerator.scaler is not None and state["loss_scaler"]:
            self.accelerator.scaler.load_state_dict(state["loss_scaler"])
        self.step.load_state_dict({**self.step.state_dict(), "memory": _with_prefix(MEMORY, tensors)})
        return Position(
            epoch=state["epoch"],
            batch=state["batch"],
            losses=list(own[LOSSES].to(self.accelerator.device)),
            seconds=state["seconds"],
            cpu_seconds=state["cpu_seconds"],
        )


def load_tested_network(network: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights that were tested at a checkpoint: the averaged ones where the run has them.

    Args:
        network: Network built from the run's recipe.
        checkpoint: Checkpoint at the end of an epoch, where all processes have the same network.
    """
    tensors = {**checkpoint.shared(), **checkpoint.own(0)}
    averaged = {name: value for name, value in _with_prefix(AVERAGE, tensors).items() if name != UPDATES}
    _load_network(network, averaged or _with_prefix(NETWORK, tensors))


def find_progress(path: Path, recipe: Recipe, accelerator: Accelerator) -> tuple[Checkpoint | None, History | None]:
    """Find where to resume a run.

    Args:
        path: The run folder.
        recipe: Recipe, which must be that of the run.
        accelerator: The run's accelerator; the main process reads.

    Returns:
        The newest intact checkpoint and the epochs before it; of a finished run, all epochs. None where there is none.
    """

    def history_before(state: Mapping[str, Any]) -> History:
        return read_history(path, state["epoch"], state["metrics"])

    finished = from_main_process(accelerator, lambda: read_finished(path, recipe))
    try:
        saved = checkpoints.latest(path, accelerator, history_before)
    except ValueError:  # all are damaged
        if finished is None:
            raise
        return None, finished
    if saved is None or finished is not None:
        return saved, finished
    return saved, from_main_process(accelerator, lambda: history_before(saved.state))


def run_conditions(recipe: Recipe, accelerator: Accelerator, train_data: Split, test_data: Split) -> dict[str, Any]:
    """Return what a resumed run must or should have in common with the one before it, for state.json.

    Args:
        recipe: Enters as a digest, without the folder of its data.
        accelerator: The run's accelerator: device and processes.
        train_data: Enters with its classes, number of samples and digest.
        test_data: Enters with its number of samples and digest.
    """
    return {
        "recipe": hashlib.sha256(dump_recipe(recipe.without_root).encode()).hexdigest(),
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": accelerator.device.type,
        "data": {
            "classes": list(train_data.classes),
            "train": {"count": len(train_data), "digest": train_data.digest()},
            "test": {"count": len(test_data), "digest": test_data.digest()},
        },
    }


def check_conditions(now: Mapping[str, Any], checkpoint: Checkpoint) -> list[str]:
    """Refuse to resume with another recipe or number of processes.

    Args:
        now: `run_conditions` of the resumed run.
        checkpoint: Checkpoint to resume from.

    Returns:
        A description of every other difference that may change the last digits of the results.
    """
    then = checkpoint.state
    if now["recipe"] != then["recipe"]:
        raise ValueError(f"checkpoint {checkpoint.path} belongs to another recipe than the one to resume")
    if now["processes"] != then["processes"]:
        raise ValueError(
            f"a run must be resumed with as many processes as it was started with ({then['processes']}), "
            f"got {now['processes']}"
        )
    differing = [name for name in ("threads", "torch", "device") if now[name] != then[name]]
    return [f"{name} {then[name]}, now {now[name]}" for name in differing]


def check_data(now: Mapping[str, Any], then: Mapping[str, Any], *, is_main_process: bool = True) -> None:
    """Refuse to resume with other classes, and warn of other samples.

    Args:
        now: "data" of `run_conditions` of the resumed run.
        then: The same, of the run as it was started.
        is_main_process: Only the main process warns.
    """
    classes, expected = now["classes"], then["classes"]
    if classes != expected:  # labels would mean other classes than the network has learned
        removed, added = Counter(expected) - Counter(classes), Counter(classes) - Counter(expected)
        changes = [
            f"{part.total()} {word}, such as {next(iter(part))!r}"
            for part, word in ((removed, "removed"), (added, "new"))
            if part
        ]
        raise ValueError(
            f"a run must be resumed with the {len(expected)} classes that it was started with, "
            f"got {len(classes)} ({'; '.join(changes) or 'in another order'})"
        )
    changes = []
    for split in ("train", "test"):
        before, after = then[split], now[split]
        if before["count"] != after["count"]:
            changes.append(f"{split} had {before['count']:,} samples, now {after['count']:,}")
        elif before != after:
            changes.append(f"{split} has other files or contents")
    if changes and is_main_process:
        message = f"the data changed since the run began, so its result cannot be repeated: {'; '.join(changes)}"
        warnings.warn(message, stacklevel=2)


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def _load_network(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy into the existing tensors, which keeps their memory format."""
    targets = {**dict(network.named_parameters()), **{n: v for n, v in network.state_dict().items() if n in tensors}}
    if targets.keys() != tensors.keys():
        raise ValueError(f"the checkpoint must hold the network's {len(targets)} tensors, got {len(tensors)}")
    for name, value in tensors.items():
        targets[name].copy_(value)


def _optimizer_numbers(state: Mapping[str, Any]) -> dict[str, Any]:
    """What some optimisers keep as numbers, such as their steps: of each group, and of parameters by their index."""
    groups = [{name: value for name, value in group.items() if _is_number(value)} for group in state["param_groups"]]
    entries = {
        str(index): {name: value for name, value in entry.items() if _is_number(value)}
        for index, entry in state["state"].items()
    }
    return {"groups": groups, "state": {index: entry for index, entry in entries.items() if entry}}


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _load_optimizer(optimizer: Any, tensors: dict[str, Tensor], numbers: Mapping[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {int(index): dict(entry) for index, entry in numbers["state"].items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, numbers["groups"], strict=True):
        group.update(saved)
    for name, value in tensors.items():
        number, entry = name.split(".", 1)
        if number.startswith(GROUP):
            groups[int(number.removeprefix(GROUP))][entry] = value
            continue
        parameter = parameters[int(number)]
        if value.shape == parameter.shape:  # in the memory format of its parameter, as torch creates it
            value = torch.empty_like(parameter, requires_grad=False).copy_(value)
        state.setdefault(int(number), {})[entry] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
