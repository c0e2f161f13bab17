"""The folder of one run: recipe, metrics, result, network and timing.

`recipe.toml metrics.jsonl result.json model.safetensors` depend on the recipe alone and can be compared bit for bit;
times and facts about the machine are in `timing.jsonl`. A killed run resumes from `checkpoints/`. The marker `run.json`
says that the folder belongs to this run and lists its files: only these, and checkpoints, are ever deleted.
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import MARKER as MARKER
from saligraft.config.recipe_file import OCCUPIED, dump_recipe, load_recipe
from saligraft.config.recipe_file import RECIPE as RECIPE
from saligraft.config.recipe_file import RESULT as RESULT
from saligraft.config.recipe_file import TIMING as TIMING
from saligraft.data import Inputs
from saligraft.hooks import unwrapped
from saligraft.io.files import atomic_path, name_in_errors, write_atomic
from saligraft.io.locks import LOCK, RunLock
from saligraft.names import listed
from saligraft.training import checkpoint
from saligraft.training.results import EpochMetrics, EpochTiming, summarize

MARKER_FORMAT = "saligraft run 1"
METRICS, MODEL, REPORT = "metrics.jsonl", "model.safetensors", "report.html"
RUN_FILES = (RECIPE, METRICS, RESULT, TIMING, MODEL, REPORT)
EVALUATION, RELIABILITY = "evaluation.json", "reliability.png"
CONFUSION_TABLE, CONFUSION = "confusion.csv", "confusion.png"
ONNX, PROGRAM = "model.onnx", "model.pt2"
# Of `saligraft evaluate` and `saligraft export`; deleted with the run.
LATER_FILES = (EVALUATION, RELIABILITY, CONFUSION_TABLE, CONFUSION, ONNX, PROGRAM)
METADATA = "saligraft"  # the key of JSON in the metadata of model.safetensors
DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what reading damaged JSON raises


class History(NamedTuple):
    """The finished epochs of a run.

    Args:
        metrics: Metrics of each epoch.
        timing: Timing of each epoch whose times can be read.
    """

    metrics: list[EpochMetrics]
    timing: list[EpochTiming]


class RunFolder:
    """Writes the files of a run, and locks its folder until it is closed.

    Args:
        path: The folder, which is created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file")
        self.path = path
        self.lock = RunLock(path)
        self.marker = read_marker(path)
        self.digest = hashlib.sha256()  # of metrics.jsonl

    @classmethod
    def open(cls, path: Path, *, overwrite: bool = False, resume: bool = False) -> "RunFolder":
        """Lock the folder of a run, without changing its content yet.

        Args:
            path: Refused if it is not empty, unless one of the next two is set and a run's marker is in it.
            overwrite: Whether the existing run is to be deleted.
            resume: Whether the existing run is to be continued.
        """
        if overwrite and resume:
            raise ValueError("overwrite and resume cannot be combined")
        folder = cls(path)
        # Leftovers of a run that was killed right at the start are ignored.
        ignored = {LOCK, f".{MARKER}.partial"} | ({MARKER} if folder.marker else set())
        names = sorted(entry.name for entry in path.iterdir() if entry.name not in ignored)
        refusal = None
        if names and not folder.marker:
            refusal = f"is not empty and has no valid {MARKER} of a run, but {listed(names)}: choose another"
        elif names and not (overwrite or resume):
            refusal = OCCUPIED
        if refusal:
            folder.lock.release(restore=not folder.marker)
            raise ValueError(f"the run folder {path} {refusal}")
        return folder

    def start(
        self, recipe: Recipe, device: torch.device, processes: int, data: Mapping[str, Any] | None = None
    ) -> None:
        """Delete an earlier run; write the marker, the complete recipe, and facts about the machine.

        The names of run files belong to this run once its recipe is written. Before that, such files are the user's.

        Args:
            recipe: Recipe of the run.
            device: Device it is trained on.
            processes: Number of processes that train it.
            data: Digests of the data, kept in the marker to compare a finished run with once its checkpoints are gone.
        """
        self.remove()
        text = dump_recipe(recipe)
        foreign = [name for name in (*RUN_FILES, *LATER_FILES) if (self.path / name).exists()]
        if foreign and not (foreign == [RECIPE] and (self.path / RECIPE).read_bytes() == text.encode()):
            raise ValueError(f"the run folder {self.path} holds {listed(foreign)} of no run: choose another")
        self._mark(run=secrets.token_hex(16), files=[], data=data)
        write_atomic(self.path / RECIPE, text)
        self._mark(files=[*RUN_FILES, *LATER_FILES])
        write_atomic(self.path / TIMING, _lines([{"machine": machine_facts(device, processes)}]))

    def remove(self) -> None:
        """Delete the checkpoints and files of the run that the marker lists; everything else is the user's.

        Checkpoints go first, so that a kill in between leaves none without its recipe.
        """
        if not (self.marker and self.marker["files"]):
            return
        checkpoint.remove_all(self.path)
        root = self.path.resolve()
        for file in (self.path / name for name in self.marker["files"]):
            if file.is_dir() or not file.parent.resolve().is_relative_to(root):  # the user replaced it
                continue
            shutil.rmtree(file.with_name(f".{file.name}.partial"), ignore_errors=True)
            file.unlink(missing_ok=True)
            with suppress(OSError):  # stops at the first that is not empty
                for parent in file.relative_to(self.path).parents[:-1]:
                    (self.path / parent).rmdir()

    def resume(self, recipe: Recipe, history: History, device: torch.device, processes: int) -> None:
        """Delete leftovers of a kill, and metrics and times written after the checkpoint.

        A finished run's other files stay until they are replaced.

        Args:
            recipe: Recipe of the run, with the folder that its data are in now.
            history: The epochs before the checkpoint.
            device: Device that trains the rest.
            processes: Number of processes that train the rest.
        """
        checkpoint.remove_leftovers(self.path)
        write_atomic(self.path / RECIPE, dump_recipe(recipe))
        facts = {"machine": machine_facts(device, processes)}
        write_atomic(self.path / TIMING, _lines([facts, *(line._asdict() for line in history.timing)]))
        text = _lines([line._asdict() for line in history.metrics])
        write_atomic(self.path / METRICS, text)
        self.digest.update(text.encode())

    def add_epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """Append a line to metrics.jsonl and timing.jsonl."""
        self.digest.update(self._append(METRICS, metrics._asdict()))
        self._append(TIMING, timing._asdict())

    @contextmanager
    def record_new_files(self) -> Iterator[None]:
        """Add files created in the block to the marker, as the run's own: trackers choose their names."""
        before = set(self.path.rglob("*"))
        yield
        new = sorted(path for path in self.path.rglob("*") if path not in before and path.is_file())
        files = [str(path.relative_to(self.path)) for path in new]
        if files and self.marker is not None:
            self._mark(files=[*self.marker["files"], *files])

    def finish(self, summary: Mapping[str, Any], network: nn.Module, facts: Mapping[str, Any] | None = None) -> None:
        """Write the network, then the result: a run with a result.json is complete.

        Args:
            summary: Content of result.json.
            network: Saved to model.safetensors, without wrappers such as that of torch.compile.
            facts: Facts about the network, JSON values, for the metadata of model.safetensors.
        """
        # One key: safetensors writes several in random order, and equal runs must have equal files. Its `save_model`
        # would add one for each further name of a tensor that is used in several places.
        metadata = {} if facts is None else {METADATA: json.dumps(facts, allow_nan=False)}
        # Copies: different tensors may be views of one memory, which safetensors refuses.
        tensors = {
            names[0]: value.detach().clone(memory_format=torch.contiguous_format) for names, value in _tensors(network)
        }
        with atomic_path(self.path / MODEL) as temporary:
            try:
                save_file(tensors, str(temporary), metadata)
            except SafetensorError as error:  # how it reports a full disk
                raise OSError(f"{error}; resume once there is room") from error
            umask = os.umask(0o077)  # it can only be read by setting it
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)  # safetensors writes for the owner alone
        write_atomic(self.path / RESULT, json.dumps(summary, indent=2, allow_nan=False) + "\n")

    def close(self) -> None:
        """Unlock the folder."""
        self.lock.release()

    def _mark(self, **changes: Any) -> None:
        self.marker = {"format": MARKER_FORMAT, **(self.marker or {}), **changes}
        write_atomic(self.path / MARKER, json.dumps(self.marker, indent=2) + "\n")

    def _append(self, name: str, entry: Mapping[str, Any]) -> bytes:
        """Append a line, or nothing of it if the disk is full; returns it."""
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
    """Read the marker of a run folder; None if there is no valid one."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        valid = marker["format"] == MARKER_FORMAT and re.fullmatch("[0-9a-f]{32}", marker["run"])
        return dict(marker) if valid and all(isinstance(name, str) for name in marker["files"]) else None
    except DAMAGED:
        return None


def read_history(folder: Path, epochs: int, digest: str) -> History:
    """Read the first epochs of a run.

    Args:
        folder: Run folder.
        epochs: Number of epochs to read.
        digest: SHA-256 that these lines of metrics.jsonl must have.
    """
    lines = _read_lines(folder / METRICS)[:epochs]
    if len(lines) < epochs or hashlib.sha256(b"".join(lines)).hexdigest() != digest:
        raise ValueError(f"{METRICS} does not begin with the {epochs} lines written before the checkpoint")
    return History([EpochMetrics(**json.loads(line)) for line in lines], _read_timing(folder, epochs))


def read_finished(folder: Path, recipe: Recipe) -> History | None:
    """Read the epochs of a finished run.

    Args:
        folder: Run folder; one of another recipe is refused.
        recipe: Recipe to resume; the folder of its data may be another.

    Returns:
        None if the run is not finished, or if its files are inconsistent.
    """
    if not (folder / RECIPE).is_file():
        return None
    if load_recipe(folder / RECIPE).without_root != recipe.without_root:
        raise ValueError(
            f"the run folder {folder} holds a run of another recipe: resume that one with "
            f"saligraft train {folder} --resume"
        )
    if not (folder / RESULT).is_file():
        return None
    with suppress(*DAMAGED):
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        metrics = [EpochMetrics(**json.loads(line)) for line in _read_lines(folder / METRICS)]
        if (folder / MODEL).is_file() and result == summarize(recipe, metrics, result["parameters"]):
            return History(metrics, _read_timing(folder, len(metrics)))
    if not checkpoint.paths(folder):  # it would be trained again from the start
        raise ValueError(
            f"the run in {folder} is finished, but {METRICS}, {RESULT} and {MODEL} do not agree and there is no "
            "checkpoint to resume: delete the folder to train again"
        )
    return None


def _read_timing(folder: Path, epochs: int) -> list[EpochTiming]:
    """Read the times of the first epochs; nothing depends on them, so unreadable lines are skipped."""
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


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load the weights of a finished run; errors are one line.

    Args:
        folder: Run folder.
        network: Network built from the run's recipe.
    """
    path = _model_file(folder)
    try:
        tensors = load_file(path)
        for names, _ in _tensors(network):
            if saved := next((name for name in names if name in tensors), None):
                tensors |= dict.fromkeys(names, tensors[saved])
        unwrapped(network).load_state_dict(tensors)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    except RuntimeError as error:
        _, *complaints = [line.strip() for line in str(error).splitlines()]  # torch indents them below a heading
        first = complaints[0].rstrip(".") if complaints else str(error)
        more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
        raise ValueError(f"{path} does not fit the recipe's network: {first}{more}") from error


def _tensors(network: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Names and value of each tensor of a network; of a layer or weight in several places, all names."""
    state = unwrapped(network).state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    return [(each, state[each[0]]) for each in names.values()]


def read_inputs(folder: Path) -> Inputs:
    """Read class names, normalisation and image size from model.safetensors; errors are one line.

    Args:
        folder: Run folder.
    """
    path = _model_file(folder)
    try:
        with safe_open(str(path), "pt") as file:
            facts = json.loads((file.metadata() or {})[METADATA])
        names = ("classes", "mean", "std", "image_shape")
        lists = {name: tuple(facts[name]) for name in names}
        return Inputs(
            **lists,
            test_crop=float(facts["test_crop"]),
            keep_ratio=bool(facts["keep_ratio"]),
            normalisation_known=bool(facts.get("normalisation_known", True)),  # runs of older versions lack it
        )
    except (SafetensorError, *DAMAGED) as error:
        raise ValueError(f"{path} is damaged: its metadata cannot be read ({error})") from error


def _model_file(folder: Path) -> Path:
    if not (folder / MODEL).is_file():
        raise ValueError(f"{folder} holds no {MODEL}: not the folder of a finished run")
    return folder / MODEL


def machine_facts(device: torch.device, processes: int) -> dict[str, Any]:
    """Return facts about the machine that times depend on.

    Args:
        device: Device of the run.
        processes: Number of processes of the run.
    """
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
