"""The folder of one run: what was asked, what came out, how long it took.

`recipe.toml metrics.jsonl result.json model.safetensors` depend on the recipe alone and can be compared bit for bit;
times and facts of the machine stand in `timing.jsonl`.
"""

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from saligraft.training.recipe import Recipe
from saligraft.training.recipe_file import dump_recipe
from saligraft.training.results import EpochMetrics, EpochTiming

RECIPE, METRICS, RESULT = "recipe.toml", "metrics.jsonl", "result.json"
TIMING, MODEL, REPORT = "timing.jsonl", "model.safetensors", "report.html"
RUN_FILES = (RECIPE, METRICS, RESULT, TIMING, MODEL, REPORT)


class RunFolder:
    """Writes a run as it goes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def plan(cls, path: Path, *, overwrite: bool = False) -> "RunFolder":
        """Say where to write; a folder that holds anything is refused unless `overwrite`. Nothing is changed yet."""
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file")
        if path.exists() and any(path.iterdir()) and not overwrite:
            raise ValueError(
                f"the run folder {path} is not empty: choose another, or overwrite it "
                "(--overwrite, in Python overwrite=True)"
            )
        return cls(path)

    def start(self, recipe: Recipe, device: torch.device, processes: int) -> None:
        """Make the folder without an earlier run's files; write the complete recipe, and what machine this is."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in RUN_FILES:
            (self.path / name).unlink(missing_ok=True)
        (self.path / RECIPE).write_text(dump_recipe(recipe), encoding="utf-8")
        self._append(TIMING, {"machine": machine_facts(device, processes)})

    def add_epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        self._append(METRICS, metrics._asdict())
        self._append(TIMING, timing._asdict())

    def finish(self, summary: Mapping[str, Any], network: nn.Module) -> None:
        """Write the network, then the result: where result.json stands, the run is whole."""
        save_model(network, str(self.path / MODEL))
        (self.path / MODEL).chmod(0o666 & ~_umask())  # safetensors writes for the owner alone
        text = json.dumps(summary, indent=2, allow_nan=False)
        (self.path / RESULT).write_text(text + "\n", encoding="utf-8")

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


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
