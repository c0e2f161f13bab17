"""The folder of one run: what was asked, what came out, how long it took.

`recipe.toml metrics.jsonl result.json model.safetensors` depend on the recipe alone and can be compared bit for bit;
times and facts of the machine stand in `timing.jsonl`. `checkpoints/` holds what a killed run goes on from.
`run.json` marks the folder as this run's and lists its files: only these, and checkpoints, are ever deleted.
"""

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import dump_recipe, load_recipe
from saligraft.io.files import atomic_path, name_in_errors, write_atomic
from saligraft.io.locks import LOCK, RunLock
from saligraft.training import checkpoint
from saligraft.training.results import EpochMetrics, EpochTiming, summarize

MARKER, MARKER_FORMAT = "run.json", "saligraft run 1"
RECIPE, METRICS, RESULT = "recipe.toml", "metrics.jsonl", "result.json"
TIMING, MODEL, REPORT = "timing.jsonl", "model.safetensors", "report.html"
RUN_FILES = (RECIPE, METRICS, RESULT, TIMING, MODEL, REPORT)
SHOWN_NAMES = 5  # of what stands in a folder that is refused
DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what reading damaged JSON raises


class History(NamedTuple):
    """The epochs that a run has behind it."""

    metrics: list[EpochMetrics]
    timing: list[EpochTiming]


class RunFolder:
    """Writes a run as it goes, and keeps others out of its folder until it is closed."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file")
        self.path = path
        self.lock = RunLock(path)
        self.marker = read_marker(path)
        self.digest = hashlib.sha256()  # of metrics.jsonl

    @classmethod
    def plan(cls, path: Path, *, overwrite: bool = False, resume: bool = False) -> "RunFolder":
        """Say where to write; a folder that holds anything is refused unless it is a run to `overwrite` or `resume`.

        Nothing in it is changed yet.
        """
        if overwrite and resume:
            raise ValueError("a run is either overwritten or resumed, got both")
        folder = cls(path)
        # What a run leaves that is killed in its first moments counts as nothing.
        nothing = {LOCK, f".{MARKER}.partial"} | ({MARKER} if folder.marker else set())
        names = sorted(entry.name for entry in path.iterdir() if entry.name not in nothing)
        refusal = None
        if names and not folder.marker:
            refusal = f"is not empty and has no valid {MARKER} of a run, but {_listed(names)}: choose another"
        elif names and not (overwrite or resume):
            refusal = (
                "is not empty: choose another, overwrite it (--overwrite, in Python overwrite=True) "
                "or go on with its run (--resume)"
            )
        if refusal:
            folder.lock.release(restore=not folder.marker)
            raise ValueError(f"the run folder {path} {refusal}")
        return folder

    def start(
        self, recipe: Recipe, device: torch.device, processes: int, data: Mapping[str, Any] | None = None
    ) -> None:
        """Delete an earlier run; mark the folder, write the complete recipe, then what machine this is.

        Names are this run's once its recipe stands there. Before that, a file of such a name is somebody else's.
        `data` is kept in the marker: a finished run is compared with it once its checkpoints are gone.
        """
        self.remove()
        text = dump_recipe(recipe)
        foreign = [name for name in RUN_FILES if (self.path / name).exists()]
        if foreign and not (foreign == [RECIPE] and (self.path / RECIPE).read_bytes() == text.encode()):
            raise ValueError(f"the run folder {self.path} holds {_listed(foreign)}, of no run: choose another")
        self._mark(run=secrets.token_hex(16), files=[], data=data)
        write_atomic(self.path / RECIPE, text)
        self._mark(files=[*RUN_FILES])
        write_atomic(self.path / TIMING, _lines([{"machine": machine_facts(device, processes)}]))

    def remove(self) -> None:
        """Delete the checkpoints and files of the run that the marker is of; what else stands there is the user's.

        Checkpoints go first: a kill on the way leaves none without the recipe they are of.
        """
        if not (self.marker and self.marker["files"]):
            return
        checkpoint.remove_all(self.path)
        root = self.path.resolve()
        for file in (self.path / name for name in self.marker["files"]):
            if file.is_dir() or not file.parent.resolve().is_relative_to(root):  # not as the run left it
                continue
            shutil.rmtree(file.with_name(f".{file.name}.partial"), ignore_errors=True)
            file.unlink(missing_ok=True)
            with suppress(OSError):  # until one is not empty
                for parent in file.relative_to(self.path).parents[:-1]:
                    (self.path / parent).rmdir()

    def go_on(self, history: History, device: torch.device, processes: int) -> None:
        """Delete what a kill left half done; put the lines back to where the checkpoint was taken.

        A finished run's other files stay until they are replaced.
        """
        checkpoint.clean(self.path)
        facts = {"machine": machine_facts(device, processes)}
        write_atomic(self.path / TIMING, _lines([facts, *(line._asdict() for line in history.timing)]))
        text = _lines([line._asdict() for line in history.metrics])
        write_atomic(self.path / METRICS, text)
        self.digest.update(text.encode())

    def add_epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        self.digest.update(self._append(METRICS, metrics._asdict()))
        self._append(TIMING, timing._asdict())

    @contextmanager
    def owning_new_files(self) -> Iterator[None]:
        """Note the files that the block makes, which trackers name as they like, as the run's own."""
        before = set(self.path.rglob("*"))
        yield
        made = sorted(str(path.relative_to(self.path)) for path in self.path.rglob("*") if path not in before)
        files = [name for name in made if (self.path / name).is_file()]
        if files and self.marker is not None:
            self._mark(files=[*self.marker["files"], *files])

    def finish(self, summary: Mapping[str, Any], network: nn.Module) -> None:
        """Write the network, then the result: where result.json stands, the run is whole."""
        with atomic_path(self.path / MODEL) as aside:
            try:
                save_model(network, str(aside))
            except SafetensorError as error:  # how it words a full disk
                raise OSError(f"{error}; resume once there is room") from error
            aside.chmod(0o666 & ~_umask())  # safetensors writes for the owner alone
        write_atomic(self.path / RESULT, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        self.lock.release()

    def _mark(self, **changes: Any) -> None:
        self.marker = {"format": MARKER_FORMAT, **(self.marker or {}), **changes}
        write_atomic(self.path / MARKER, json.dumps(self.marker, indent=2) + "\n")

    def _append(self, name: str, entry: Mapping[str, Any]) -> bytes:
        """Add a line, or none of it where the disk is full; returns it."""
        path, line = self.path / name, _lines([entry]).encode()
        size = path.stat().st_size if path.exists() else None
        with name_in_errors(path):
            try:
                with path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    path.unlink() if size is None else os.truncate(path, size)
                raise
        return line


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of the run that wrote to this folder; None where nothing proves that one did."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        proves = marker["format"] == MARKER_FORMAT and re.fullmatch("[0-9a-f]{32}", marker["run"])
        return dict(marker) if proves and all(isinstance(name, str) for name in marker["files"]) else None
    except DAMAGED:
        return None


def remove_run(folder: Path) -> None:
    """Delete a run and its folder; where a user's files are among its own, they and the marker stay."""
    run = RunFolder(folder)
    run.remove()
    if {entry.name for entry in folder.iterdir()} <= {MARKER, LOCK}:
        (folder / MARKER).unlink(missing_ok=True)
    run.close()
    with suppress(OSError):
        folder.rmdir()


def holds_run(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of this recipe was begun here; one of another recipe is refused."""
    if not (folder / RECIPE).is_file():
        return False
    if load_recipe(folder / RECIPE) != recipe:
        raise ValueError(
            f"the run folder {folder} holds a run of another recipe: resume that one with "
            f"saligraft train {folder} --resume"
        )
    return True


def read_history(folder: Path, epochs: int, digest: str) -> History:
    """The first epochs of a run; a ValueError where metrics.jsonl does not begin with lines of this SHA-256."""
    lines = _read_lines(folder / METRICS)[:epochs]
    if len(lines) < epochs or hashlib.sha256(b"".join(lines)).hexdigest() != digest:
        raise ValueError(f"{METRICS} does not begin with the {epochs} lines that were written before it")
    return History([EpochMetrics(**json.loads(line)) for line in lines], _read_timing(folder, epochs))


def read_finished(folder: Path, recipe: Recipe) -> History | None:
    """The epochs of a finished run; None for one that is not, or whose files do not agree."""
    if not holds_run(folder, recipe) or not (folder / RESULT).is_file():
        return None
    with suppress(*DAMAGED):
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        metrics = [EpochMetrics(**json.loads(line)) for line in _read_lines(folder / METRICS)]
        if (folder / MODEL).is_file() and result == summarize(recipe, metrics, result["parameters"]):
            return History(metrics, _read_timing(folder, len(metrics)))
    if not checkpoint.names(folder):  # it would be trained anew
        raise ValueError(
            f"the run in {folder} is finished, but {METRICS}, {RESULT} and {MODEL} do not agree and there is no "
            "checkpoint: nothing to resume"
        )
    return None


def _read_timing(folder: Path, epochs: int) -> list[EpochTiming]:
    """The times of the first epochs; nothing depends on them, so lines that cannot be read are left out."""
    timing = []
    for line in _read_lines(folder / TIMING):
        with suppress(*DAMAGED):
            times = EpochTiming(**json.loads(line))
            timing += [times] if times.epoch <= epochs else []
    return timing


def _read_lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []


def _lines(entries: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


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
