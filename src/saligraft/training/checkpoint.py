"""Checkpoints: folders of safetensors and JSON, whole or not there at all; nothing is ever unpickled.

`checkpoints/step-00000123/` holds `shared.safetensors` (what is equal in all processes), `rank-0.safetensors` and so on
(what is each process's own), and `state.json` (where the run stands, and the checksum of each file, its own included).
It is written aside, synced and renamed, so that a kill leaves the one before it.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from saligraft.io.files import rename_durably, sync
from saligraft.io.streams import unbreakable
from saligraft.training.accelerator import ToldElsewhereError, decided_by_first

CHECKPOINTS, STATE, SHARED = "checkpoints", "state.json", "shared.safetensors"
FORMAT = 2
SEAL = "checksum"  # of all else in state.json
PARTIAL, OLD = ".partial", ".old"  # endings of a checkpoint's hidden name, before it has its own and after
STEP = re.compile(r"step-[0-9]{8,}")
# The last is the name under which safetensors begins a file.
OWN_FILE = re.compile(r"state\.json|shared\.safetensors|rank-[0-9]+\.safetensors|\.tmp[0-9A-Za-z]{6}")

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    path: Path
    state: dict[str, Any]

    def shared(self) -> dict[str, Tensor]:
        return load_file(self.path / SHARED)

    def own(self, rank: int) -> dict[str, Tensor]:
        return load_file(self.path / _rank_file(rank))


def save(
    folder: Path, step: int, state: Mapping[str, Any], shared: Tensors, own: Tensors, accelerator: Accelerator
) -> Path:
    """Write a checkpoint from all processes together, `shared` by the first; an OSError in one is one in all."""
    final = folder / CHECKPOINTS / f"step-{step:08d}"
    aside = final.with_name(f".{final.name}{PARTIAL}")
    first = accelerator.is_main_process
    with _told_to_all(accelerator, final):
        if first:
            _remove(aside, final)  # left by a kill
            aside.mkdir(parents=True, exist_ok=True)
    sums: dict[str, str] = {}
    with _told_to_all(accelerator, final, cleaning=aside):
        name = _rank_file(accelerator.process_index)
        sums[name] = _write(aside / name, own)
        if first:
            sums[SHARED] = _write(aside / SHARED, shared)
    if accelerator.num_processes > 1:
        sums = {name: total for part in gather_object([sums]) for name, total in part.items()}
    with _told_to_all(accelerator, final, cleaning=aside):
        if first:
            (aside / STATE).write_text(_sealed({"format": FORMAT, "files": sums, **state}), encoding="utf-8")
            sync(aside / STATE)
            sync(aside)
            _discard(final)  # a step that was taken again from an older checkpoint
            _move(final, aside)
            rename_durably(aside, final)
    return final


def latest(
    folder: Path,
    accelerator: Accelerator,
    warn: Callable[[str], None] | None = None,
    check: Callable[[Mapping[str, Any]], object] = lambda _: None,
) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning. None where there never was any.

    A state that `check` raises a ValueError for counts as damaged. The first process decides for all.
    """
    return decided_by_first(accelerator, lambda: _newest_whole(folder, warn or _warn, check))


def prune(folder: Path, keep: int, newest: Path) -> None:
    """Keep `newest`, just written, and those before it, `keep` in all; delete the others and what a kill left.

    A later step than the newest is one that was passed over as damaged: it must not count among those to keep.
    """
    found = names(folder)
    kept = found[: found.index(newest) + 1][-keep:]
    for path in found:
        if path not in kept:
            _discard(path)
    clean(folder)


def remove_all(folder: Path) -> None:
    """Delete every checkpoint of a run, and what a kill left of one."""
    for path in names(folder):
        _discard(path)
    clean(folder)
    with suppress(OSError):  # not there, or not empty: what else is in it is the user's
        (folder / CHECKPOINTS).rmdir()


def _newest_whole(
    folder: Path, warn: Callable[[str], None], check: Callable[[Mapping[str, Any]], object]
) -> Checkpoint | None:
    _name_whole_partials(folder)
    found = names(folder)
    for path in reversed(found):
        try:
            state = _verified(path)
            check(state)
            return Checkpoint(path=path, state=state)
        except ValueError as error:
            warn(f"checkpoint {path} is damaged and passed over: {error}")
    if found:
        raise ValueError(f"all {len(found)} checkpoints of {folder} are damaged: start the run anew with --overwrite")
    return None


def _name_whole_partials(folder: Path) -> None:
    """Finish the renaming of a checkpoint after a kill that fell between it and the removal of what it replaces."""
    for aside, final in _hidden(folder, PARTIAL):
        with suppress(ValueError):
            _verified(aside)
            if not _own_files(final):
                _move(final, aside)
                rename_durably(aside, final)


def _verified(path: Path) -> dict[str, Any]:
    """The state of a checkpoint whose files are what their checksums say."""
    try:
        text = (path / STATE).read_text(encoding="utf-8")
        state = json.loads(text)
        if state["format"] != FORMAT:
            raise ValueError(f"{STATE} must have format {FORMAT}, got {state['format']!r}")
        if _sealed({name: value for name, value in state.items() if name != SEAL}) != text:
            raise ValueError(f"{STATE} does not have its own checksum")
        sums: dict[str, str] = dict(state["files"])
    except (
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"{STATE} cannot be read ({type(error).__name__})") from error
    for name, expected in sums.items():
        try:
            found = _checksum(path / name)
        except OSError as error:
            raise ValueError(f"{name} cannot be read ({error.strerror})") from error
        if found != expected:
            raise ValueError(f"{name} does not have the checksum of {STATE}")
    return dict(state)


def _write(path: Path, tensors: Tensors) -> str:
    """Save and sync tensors, and give back the checksum of the file."""
    try:
        save_file({name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # how it words a full disk
        raise OSError(str(error)) from error
    sync(path)
    return _checksum(path)


def _sealed(content: Mapping[str, Any]) -> str:
    """Content as JSON that holds its own checksum."""
    text = json.dumps(content, allow_nan=False)
    return json.dumps({**content, SEAL: hashlib.sha256(text.encode()).hexdigest()}, allow_nan=False)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _told_to_all(accelerator: Accelerator, final: Path, cleaning: Path | None = None) -> Iterator[None]:
    """Make an OSError of one process one of all, so that none waits for another; `cleaning` is then removed."""
    failure = None
    try:
        yield
    except OSError as error:
        failure = error.strerror or getattr(error.__cause__, "strerror", None) or str(error)
    failures = gather_object([failure]) if accelerator.num_processes > 1 else [failure]
    reason = next((each for each in failures if each), None)
    if reason is not None:
        if cleaning is not None and accelerator.is_main_process:
            _remove(cleaning, final)
        good = [path.name for path in names(final.parent.parent)]
        last = f"the last good one is {good[-1]}" if good else "there is none before it"
        message = f"checkpoint {final} could not be written: {reason}; {last}"
        raise OSError(message) if accelerator.is_main_process else ToldElsewhereError(message)


def names(folder: Path) -> list[Path]:
    """The checkpoints of a run folder, whole or damaged, oldest first."""
    paths = (path for path in (folder / CHECKPOINTS).glob("step-*") if STEP.fullmatch(path.name) and _own_files(path))
    return sorted(paths, key=lambda path: int(path.name.removeprefix("step-")))


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def _own_files(path: Path) -> list[Path]:
    """What this module wrote into a checkpoint's folder; anything else there is the user's."""
    return [file for file in path.glob("*") if OWN_FILE.fullmatch(file.name)]


def _discard(path: Path) -> None:
    """Delete a checkpoint; it loses its name first, lest a kill leave half of it under that name."""
    if _own_files(path) and not path.is_symlink():
        hidden = path.with_name(f".{path.name}{OLD}")
        _remove(hidden, path)  # left by a kill
        _remove(path.rename(hidden), path)


def _remove(hidden: Path, path: Path) -> None:
    """Delete a checkpoint that has no name yet or no longer one; what a user put into it goes back to that name."""
    for file in _own_files(hidden):
        file.unlink()
    _move(hidden, path)


def _move(source: Path, target: Path) -> None:
    """Move what a user put into a checkpoint's folder, all that is left of it, to the one that takes its place."""
    if source.is_dir() and not source.is_symlink():
        for file in source.iterdir():
            target.mkdir(exist_ok=True)
            file.rename(target / file.name)
        source.rmdir()


def clean(folder: Path) -> None:
    """Delete what kills left of checkpoints."""
    for hidden, path in [*_hidden(folder, OLD), *_hidden(folder, PARTIAL)]:
        _remove(hidden, path)


def _hidden(folder: Path, ending: str) -> list[tuple[Path, Path]]:
    """Checkpoints that have no name yet, or no longer one, and that name."""
    paths = (folder / CHECKPOINTS).glob(f".step-*{ending}")
    pairs = [(path, path.with_name(path.name.removeprefix(".").removesuffix(ending))) for path in paths]
    return [(path, final) for path, final in pairs if STEP.fullmatch(final.name)]


def _warn(message: str) -> None:
    print(f"saligraft: warning: {message}", file=unbreakable(sys.stderr), flush=True)
