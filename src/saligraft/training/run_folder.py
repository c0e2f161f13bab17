"""The folder of one run: what was asked, what came out, how long it took.

`recipe.toml metrics.jsonl result.json model.safetensors` depend on the recipe alone and can be compared bit for bit;
times and facts of the machine stand in `timing.jsonl`. `checkpoints/` holds what a killed run goes on from.
"""

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from saligraft.data.whole_files import rename_whole, sync, write_whole
from saligraft.training import checkpoint
from saligraft.training.accelerator import PROJECT
from saligraft.training.recipe import Recipe
from saligraft.training.recipe_file import dump_recipe, load_recipe
from saligraft.training.results import EpochMetrics, EpochTiming
from saligraft.training.run_lock import LOCK, RunLock

RECIPE, METRICS, RESULT = "recipe.toml", "metrics.jsonl", "result.json"
TIMING, MODEL, REPORT = "timing.jsonl", "model.safetensors", "report.html"
RUN_FILES = (RECIPE, METRICS, RESULT, TIMING, MODEL, REPORT)


class RunFolder:
    """Writes a run as it goes, and keeps others out of its folder until it is closed."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file")
        self.path = path
        self.lock = RunLock(path)

    @classmethod
    def plan(cls, path: Path, *, overwrite: bool = False, resume: bool = False) -> "RunFolder":
        """Say where to write; a folder that holds anything is refused unless `overwrite` or `resume`.

        Nothing in it is changed yet.
        """
        if overwrite and resume:
            raise ValueError("a run is either overwritten or resumed, got both")
        folder = cls(path)
        has_run = (path / RECIPE).is_file()
        # A run killed as it began may have left some of its files, but not yet its recipe.
        begun = has_run or all(_is_run_file(entry.name) for entry in path.iterdir())
        is_empty = all(entry.name == LOCK for entry in path.iterdir())
        if not (overwrite or (resume and begun) or is_empty):
            folder.close()
            raise ValueError(
                f"the run folder {path} is not empty: choose another, overwrite it (--overwrite, in Python "
                f"overwrite=True)" + (" or go on with its run (--resume)" if has_run else "")
            )
        return folder

    def holds_run(self, recipe: Recipe) -> bool:
        """Whether a run of this recipe was begun here; one of another recipe is refused."""
        if not (self.path / RECIPE).is_file():
            return False
        if load_recipe(self.path / RECIPE) != recipe:
            raise ValueError(
                f"the run folder {self.path} holds a run of another recipe: resume that one with "
                f"saligraft train {self.path} --resume"
            )
        return True

    def check_resumable(self) -> None:
        """Refuse a run that is finished and has nothing left to go on from: it would be trained anew."""
        if (self.path / RESULT).is_file() and not checkpoint.names(self.path):
            raise ValueError(f"the run in {self.path} is finished, and its checkpoints are gone: nothing to resume")

    def start(self, recipe: Recipe, device: torch.device, processes: int) -> None:
        """Take out an earlier run's files; write what machine this is, then the complete recipe.

        Checkpoints go first: a kill on the way leaves none without the recipe they are of.
        """
        for name in (checkpoint.CHECKPOINTS, PROJECT):
            if (self.path / name).exists():
                shutil.rmtree(self.path / name)
        for name in RUN_FILES:
            (self.path / name).unlink(missing_ok=True)
        self._append(TIMING, {"machine": machine_facts(device, processes)})
        write_whole(self.path / RECIPE, dump_recipe(recipe))

    def go_on(
        self,
        metrics: Sequence[EpochMetrics],
        timing: Sequence[EpochTiming],
        device: torch.device,
        processes: int,
    ) -> None:
        """Put the files back to where the checkpoint was taken: lines written after it will be written again."""
        for name in (RESULT, MODEL, REPORT):
            (self.path / name).unlink(missing_ok=True)
        facts = {"machine": machine_facts(device, processes)}
        write_whole(self.path / TIMING, _lines([facts, *(line._asdict() for line in timing)]))
        write_whole(self.path / METRICS, _lines([line._asdict() for line in metrics]))

    def add_epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        self._append(METRICS, metrics._asdict())
        self._append(TIMING, timing._asdict())

    def finish(self, summary: Mapping[str, Any], network: nn.Module) -> None:
        """Write the network, then the result: where result.json stands, the run is whole."""
        aside = self.path / f".{MODEL}.partial"
        try:
            save_model(network, str(aside))
        except SafetensorError as error:  # how it words a full disk
            aside.unlink(missing_ok=True)
            raise OSError(f"{self.path / MODEL} could not be written: {error}; resume once there is room") from error
        aside.chmod(0o666 & ~_umask())  # safetensors writes for the owner alone
        sync(aside)
        rename_whole(aside, self.path / MODEL)
        write_whole(self.path / RESULT, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        self.lock.release()

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        try:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.write(_lines([line]))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(f"{self.path / name} could not be written: {error.strerror}") from error


def _is_run_file(name: str) -> bool:
    """Whether a run writes a file of this name before or with its recipe; also one half written."""
    return name == LOCK or name.removeprefix(".").removesuffix(".partial") in RUN_FILES


def _lines(entries: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load a run's network; a shape that does not fit is told in one line."""
    path = folder / MODEL
    if not path.is_file():
        raise ValueError(f"{folder} holds no {MODEL}: not the folder of a finished run")
    try:
        load_model(network, str(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the recipe's network: {_first_of(str(error))}") from error


def _first_of(complaints: str) -> str:
    """The first of torch's indented complaints about weights, and how many more there are."""
    _, *each = [line.strip() for line in complaints.splitlines()]
    if not each:
        return complaints
    return each[0].rstrip(".") + (f" (and {len(each) - 1} more)" if len(each) > 1 else "")


def _umask() -> int:
    """The permissions that new files do not get; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def machine_facts(device: torch.device, processes: int) -> dict[str, Any]:
    """What a time depends on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "system": platform.platform(),
        "device": device.type,
        "device_name": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
