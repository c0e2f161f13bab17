"""Checkpoints on disk: folders of safetensors and JSON, complete or absent; nothing is ever unpickled.

`checkpoints/step-00000123/` holds `shared.safetensors` (equal in all processes), `rank-0.safetensors` and so on (each
process's own), and `state.json` (the position in the run, and the checksum of every file, its own included). It is
written under a hidden name, synced and renamed, so that a kill leaves the previous one intact.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from saligraft.io.files import rename_durably, sync
from saligraft.training.accelerator import OtherProcessError, from_main_process, shared_errors

CHECKPOINTS, STATE, SHARED = "checkpoints", "state.json", "shared.safetensors"
FORMAT = 2
SEAL = "checksum"  # of everything else in state.json
PARTIAL, OLD = ".partial", ".old"  # suffixes of a checkpoint's hidden name, before it is complete and while deleted
STEP = re.compile(r"step-[0-9]{8,}")
# The last is the name under which safetensors begins a file.
OWN_FILE = re.compile(r"state\.json|shared\.safetensors|rank-[0-9]+\.safetensors|\.tmp[0-9A-Za-z]{6}")
UNREADABLE = (OSError, KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError, UnicodeDecodeError)

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An intact checkpoint on disk.

    Args:
        path: Its folder.
        state: Content of state.json.
    """

    path: Path
    state: dict[str, Any]

    def shared(self) -> dict[str, Tensor]:
        """Load the tensors that are equal in all processes."""
        return load_file(self.path / SHARED)

    def own(self, rank: int) -> dict[str, Tensor]:
        """Load the tensors of one process."""
        return load_file(self.path / _rank_file(rank))


def save(
    folder: Path, step: int, state: Mapping[str, Any], shared: Tensors, own: Tensors, accelerator: Accelerator
) -> Path:
    """Write a checkpoint, called by all processes together; an OSError in one ends all and leaves nothing behind.

    Args:
        folder: The run folder.
        step: Batches of the run so far; names the checkpoint.
        state: JSON values; the main process's are written.
        shared: Tensors equal in all processes; written by the main process.
        own: Tensors of this process.
        accelerator: The run's accelerator.

    Returns:
        The checkpoint's folder.
    """
    final = folder / CHECKPOINTS / f"step-{step:08d}"
    partial = final.with_name(f".{final.name}{PARTIAL}")
    is_main = accelerator.is_main_process
    name, checksums = _rank_file(accelerator.process_index), {}
    try:
        with shared_errors(accelerator):
            if is_main:
                _remove_hidden(partial, final)  # left by a kill
                partial.mkdir(parents=True, exist_ok=True)
        with shared_errors(accelerator):
            checksums[name] = _write(partial / name, own)
            if is_main:
                checksums[SHARED] = _write(partial / SHARED, shared)
        if accelerator.num_processes > 1:
            checksums = {name: digest for part in gather_object([checksums]) for name, digest in part.items()}
        with shared_errors(accelerator):
            if is_main:
                (partial / STATE).write_text(_sealed({"format": FORMAT, "files": checksums, **state}), encoding="utf-8")
                sync(partial / STATE)
                sync(partial)
                _discard(final)  # a step that was trained again from an older checkpoint
                _move_foreign_files(final, partial)
                rename_durably(partial, final)
    except (OSError, OtherProcessError) as error:
        if is_main:
            _remove_hidden(partial, final)
        good = [path.name for path in paths(folder)]
        last = f"the last good one is {good[-1]}" if good else "there is none before it"
        reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None) or error
        kind = OSError if isinstance(error, OSError) else OtherProcessError
        raise kind(f"checkpoint {final} could not be written: {reason}; {last}") from error
    return final


def read(path: Path) -> Checkpoint:
    """Return a checkpoint after comparing all its files with their checksums.

    Args:
        path: Its folder; a damaged one raises a ValueError.
    """
    try:
        text = (path / STATE).read_text(encoding="utf-8")
        state = json.loads(text)
        if state["format"] != FORMAT:
            raise ValueError(f"{STATE} must have format {FORMAT}, got {state['format']!r}")
        if _sealed({name: value for name, value in state.items() if name != SEAL}) != text:
            raise ValueError(f"{STATE} does not match its own checksum")
        checksums: dict[str, str] = dict(state["files"])
    except UNREADABLE as error:
        raise ValueError(f"{STATE} cannot be read ({type(error).__name__})") from error
    for name, expected in checksums.items():
        try:
            checksum = _checksum(path / name)
        except OSError as error:
            raise ValueError(f"{name} cannot be read ({error.strerror})") from error
        if checksum != expected:
            raise ValueError(f"{name} does not match its checksum in {STATE}")
    return Checkpoint(path=path, state=dict(state))


def latest(
    folder: Path, accelerator: Accelerator, check: Callable[[Mapping[str, Any]], object] = lambda _: None
) -> Checkpoint | None:
    """Return the newest intact checkpoint, as the main process finds it; damaged ones are skipped with a warning.

    Args:
        folder: The run folder.
        accelerator: The run's accelerator.
        check: Called with a checkpoint's state; if it raises a ValueError, the checkpoint counts as damaged.

    Returns:
        None if there is no checkpoint at all; if all are damaged, a ValueError is raised.
    """

    def newest() -> Checkpoint | None:
        _finish_renaming(folder)
        candidates = paths(folder)
        for path in reversed(candidates):
            try:
                checkpoint = read(path)
                check(checkpoint.state)
                return checkpoint
            except ValueError as error:
                warnings.warn(f"checkpoint {path} is damaged and skipped: {error}", stacklevel=2)
        if candidates:
            raise ValueError(
                f"all {len(candidates)} checkpoints of {folder} are damaged: start the run again with --overwrite"
            )
        return None

    return from_main_process(accelerator, newest)


def prune(folder: Path, keep: int, newest: Path) -> None:
    """Keep the newest checkpoint and those before it; delete all others and leftovers of kills.

    Args:
        folder: The run folder.
        keep: Number of checkpoints to keep in all.
        newest: The one just written. Later steps were skipped as damaged: they must not count.
    """
    existing = paths(folder)
    kept = existing[: existing.index(newest) + 1][-keep:]
    for path in existing:
        if path not in kept:
            _discard(path)
    remove_leftovers(folder)


def remove_all(folder: Path) -> None:
    """Delete every checkpoint of a run folder, and leftovers of kills."""
    for path in paths(folder):
        _discard(path)
    remove_leftovers(folder)
    with suppress(OSError):  # absent, or it holds files of the user
        (folder / CHECKPOINTS).rmdir()


def remove_leftovers(folder: Path) -> None:
    """Delete incomplete checkpoints that kills left in a run folder."""
    for hidden, final in [*_hidden(folder, OLD), *_hidden(folder, PARTIAL)]:
        _remove_hidden(hidden, final)


def paths(folder: Path) -> list[Path]:
    """Return the checkpoints of a run folder, intact or damaged, oldest first."""
    own = (path for path in (folder / CHECKPOINTS).glob("step-*") if STEP.fullmatch(path.name) and _own_files(path))
    return sorted(own, key=lambda path: int(path.name.removeprefix("step-")))


def _finish_renaming(folder: Path) -> None:
    """Name a complete checkpoint after a kill between the removal of the one it replaces and its renaming."""
    for partial, final in _hidden(folder, PARTIAL):
        with suppress(ValueError):
            read(partial)
            if not _own_files(final):
                _move_foreign_files(final, partial)
                rename_durably(partial, final)


def _write(path: Path, tensors: Tensors) -> str:
    """Save and sync tensors; return the checksum of the file."""
    try:
        save_file({name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(str(error)) from error
    sync(path)
    return _checksum(path)


def _sealed(content: Mapping[str, Any]) -> str:
    """Dump JSON that contains its own checksum."""
    text = json.dumps(content, allow_nan=False)
    return json.dumps({**content, SEAL: hashlib.sha256(text.encode()).hexdigest()}, allow_nan=False)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def _own_files(path: Path) -> list[Path]:
    """Files that belong to a checkpoint in this folder; all others are the user's."""
    return [file for file in path.glob("*") if OWN_FILE.fullmatch(file.name)]


def _discard(path: Path) -> None:
    """Delete a checkpoint; it is hidden first, so that a kill leaves no half of it under its name."""
    if _own_files(path) and not path.is_symlink():
        hidden = path.with_name(f".{path.name}{OLD}")
        _remove_hidden(hidden, path)  # left by a kill
        _remove_hidden(path.rename(hidden), path)


def _remove_hidden(hidden: Path, final: Path) -> None:
    """Delete a checkpoint under its hidden name; files that the user put into it return to its final name."""
    for file in _own_files(hidden):
        file.unlink()
    _move_foreign_files(hidden, final)


def _move_foreign_files(source: Path, target: Path) -> None:
    """Move a user's files, all that is left in a checkpoint's folder, to the folder that replaces it."""
    if source.is_dir() and not source.is_symlink():
        for file in source.iterdir():
            target.mkdir(exist_ok=True)
            file.rename(target / file.name)
        source.rmdir()


def _hidden(folder: Path, suffix: str) -> list[tuple[Path, Path]]:
    """Checkpoints under a hidden name, each with its final name."""
    hidden = (folder / CHECKPOINTS).glob(f".step-*{suffix}")
    pairs = [(path, path.with_name(path.name.removeprefix(".").removesuffix(suffix))) for path in hidden]
    return [(path, final) for path, final in pairs if STEP.fullmatch(final.name)]
