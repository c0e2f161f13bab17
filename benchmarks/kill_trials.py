"""Kill runs with SIGKILL at random moments, resume them, and compare their results bit for bit.

    python benchmarks/kill_trials.py                        # 20 trials; the table goes to runs/kill_trials/table.md
    python benchmarks/kill_trials.py --trials 3 --seed 1
    python benchmarks/kill_trials.py --everywhere           # at each file-system event of a small run, in minutes

Each kind of run is first trained once without a kill. A trial then trains it again, kills it and all its processes up
to three times at moments drawn uniformly over the run's time, resuming after each, and lets the last one finish. Files
that depend on the recipe alone must equal those of the run never killed. Checkpoints are written every third step, so
that many kills hit a half-written one. Finished trials are saved; a stopped script continues with the next.
Linux only: /proc lists a run's processes.

With --everywhere a small run in a forked process is killed just before it opens, renames, deletes, creates, truncates
or syncs a file or folder, at each of these events in turn; and once more at each sync with half of the unsynced bytes
lost, as in a power cut. This is done to a new run, to a finished one that is resumed, and to one that overwrites
another; the user's files in the same folder must survive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

COMPARED = ("recipe.toml", "metrics.jsonl", "result.json", "model.safetensors")
MOST_KILLS = 3
SETTINGS = {
    "network.name": "wrn-10-1",
    "network.options.dropout": "0.2",
    "training.epochs": "3",
    "training.warmup_epochs": "1",
    "training.batch_size": "16",
    "training.checkpoint_steps": "3",
    "training.ema_decay": "0.9",
}
IN_MEMORY = {"data.options.size": "32", "data.options.per_class": "32"}


@dataclass(frozen=True)
class Kind:
    """A kind of run."""

    name: str
    processes: int
    streamed: bool

    def command(self, images: Path, out: Path) -> list[str]:
        settings = dict(SETTINGS)
        if self.streamed:
            settings |= {"data.name": f"folder:{images}", "data.options.size": "32", "data.workers": "2"}
        else:
            settings |= IN_MEMORY
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
        start = [*(launcher if self.processes > 1 else []), "-m", "saligraft", "train"]
        recipe = "shapes-wrn-10-2-saliency-grafting"
        return [sys.executable, *start, recipe, *flags, "--out", str(out), "--resume"]


KINDS = (
    Kind("one process, data in memory", 1, streamed=False),
    Kind("one process, two loader workers", 1, streamed=True),
    Kind("two processes, data in memory", 2, streamed=False),
    Kind("two processes, two loader workers each", 2, streamed=True),
)


@dataclass(frozen=True)
class Trial:
    """Outcome of one trial."""

    number: int
    kind: str
    kills: list[str]  # the newest checkpoint at each
    identical: bool


def run_trial(number: int, kind: Kind, folder: Path, draws: random.Random, most_kills: int) -> Trial:
    """Kill, resume and compare; the first trial of a kind trains its reference."""
    images = folder / "images"
    reference, seconds = _reference(kind, folder, images)
    out = folder / f"trial-{number}"
    command = kind.command(images, out)
    kills: list[str] = []
    for _ in range(draws.randint(1, most_kills)):
        if not _killed(command, out, delay=draws.uniform(0, seconds)):
            break
        kills.append(_standing(out))
    if not kills:  # it was quicker than the reference
        shutil.rmtree(out)
        return run_trial(number, kind, folder, draws, most_kills)
    _run(command, out.with_suffix(".log"))
    same = all((out / name).read_bytes() == (reference / name).read_bytes() for name in COMPARED)
    return Trial(number, kind.name, kills, same)


def _reference(kind: Kind, folder: Path, images: Path) -> tuple[Path, float]:
    """The folder of the run never killed, and its seconds from its first file to its last, without imports."""
    out = folder / f"reference-{KINDS.index(kind)}"
    times = out.with_suffix(".json")
    if not times.exists():
        _run(kind.command(images, out), out.with_suffix(".log"))
        begun, ended = ((out / name).stat().st_mtime for name in ("recipe.toml", "report.html"))
        times.write_text(json.dumps(ended - begun))
    return out, json.loads(times.read_text())


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _run(command: list[str], log: Path) -> None:
    with log.open("a") as file:
        subprocess.run(command, env=_environment(), stdout=file, stderr=file, check=True)


def _killed(command: list[str], out: Path, delay: float) -> bool:
    """Start the run and kill it after the delay; False if its last file was already written."""
    before = _changed(out)
    with out.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(command, env=_environment(), stdout=log, stderr=log)
        while process.poll() is None and _changed(out) == before:
            time.sleep(0.01)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            _kill_all(process.pid)
            process.wait()
            return not (out / "report.html").exists()
    if process.returncode:  # it ended by itself
        raise RuntimeError(f"the run ended with code {process.returncode}: see {out.with_suffix('.log')}")
    return False


def _kill_all(pid: int) -> None:
    """Send SIGKILL to a process and all its descendants; launched ones have process groups of their own."""
    family = list(_family(pid))
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    while any(Path(f"/proc/{member}").exists() for member in family if member != pid):
        time.sleep(0.01)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        children = ""
        with contextlib.suppress(OSError):  # a thread that has just ended
            children = thread.read_text()
        for child in children.split():
            yield from _family(int(child))


def _changed(out: Path) -> float:
    """When the run wrote its first file after starting or resuming."""
    timing = out / "timing.jsonl"
    return timing.stat().st_mtime if timing.exists() else 0.0


def _standing(out: Path) -> str:
    """Name of the newest checkpoint, and whether one was being written."""
    checkpoints = out / "checkpoints"
    steps = sorted(path.name for path in checkpoints.glob("step-*"))
    writing = " (one half written)" if list(checkpoints.glob(".step-*")) else ""
    return (steps[-1] if steps else "no checkpoint") + writing


def make_images(folder: Path) -> Path:
    """Class folders of PNG files, for the kinds that stream."""
    from PIL import Image

    from saligraft.data import ImageData, load

    data = load("shapes", size=32, per_class=32)
    assert isinstance(data, ImageData)
    for number, (image, label) in enumerate(zip(data.images, data.labels.tolist(), strict=True)):
        place = folder / data.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number:03d}.png")
    return folder


def run_trials(folder: Path, trials: int, seed: int, most_kills: int = MOST_KILLS) -> Iterator[Trial]:
    """Run trials of all kinds in turn, except those already saved in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "images").exists():
        make_images(folder / "images")
    for number in range(trials):
        saved = folder / f"trial-{number}.json"
        if not saved.exists():
            draws = random.Random(f"{seed} {number}")
            trial = run_trial(number, KINDS[number % len(KINDS)], folder, draws, most_kills)
            saved.write_text(json.dumps(asdict(trial)))
        yield Trial(**json.loads(saved.read_text()))


@dataclass(frozen=True)
class Case:
    """What is done to a run folder, and what it holds before."""

    name: str
    before: int | None  # the seed of a finished run in the folder
    options: dict[str, bool]


SEED = 3
CASES = (
    Case("a new run", None, {"resume": True}),
    Case("a finished run, resumed", SEED, {"resume": True}),
    Case("a run that overwrites another", SEED + 1, {"overwrite": True}),
)
# Beside checkpoints, and in the folder that trackers write to.
USERS_FILES = ("notes.txt", "checkpoints/mine.pt", "checkpoints/step-00000001/why.txt", "saligraft/mine.py")
REFUSED = 3  # exit code of a forked run that was refused


@dataclass(frozen=True)
class Kill:
    """One kill of a run, and its outcome."""

    event: str
    torn: bool  # whether half of a file's last bytes were lost too
    refused: bool  # whether the resume was refused, so that the run was overwritten
    fault: str  # empty if all is well


def kill_everywhere(case: Case, folder: Path, every: int = 1) -> Iterator[Kill]:
    """Kill the run of a case at every event of its own, or at each `every`-th."""
    reference, template = folder / "reference", folder / "template"
    _forked(reference, SEED, {"resume": True})
    template.mkdir()
    if case.before is not None:
        _forked(template, case.before, {"resume": True})
        for name in USERS_FILES:
            (template / name).parent.mkdir(exist_ok=True)
            (template / name).write_text("mine")
    out, events = folder / "run", folder / "events.txt"
    shutil.copytree(template, out)
    _forked(out, SEED, case.options, log=events)
    shutil.rmtree(out)
    moments = [(number, name, False) for number, name in enumerate(events.read_text().splitlines())]
    moments += [(number, name, True) for number, name, _ in moments if name.startswith("sync ")]
    for number, name, torn in moments[::every]:
        shutil.copytree(template, out)
        code = _forked(out, SEED, case.options, kill_at=number, torn=torn)
        fault = "" if code == -signal.SIGKILL else f"was not killed, but ended with code {code}"
        finished = case.before == SEED
        fault = fault or (_differing(out, reference) if finished else "")  # a finished run stays finished
        code = _forked(out, SEED, {"resume": True})
        if code == REFUSED:
            fault = fault or ("" if "overwrite" in case.options else "was not resumed")
            _forked(out, SEED, {"overwrite": True})
        fault = fault or _differing(out, reference) or _missing(out, template)
        yield Kill(name, torn, code == REFUSED, fault)
        shutil.rmtree(out)


def _differing(out: Path, reference: Path) -> str:
    for name in COMPARED:
        if not (out / name).exists() or (out / name).read_bytes() != (reference / name).read_bytes():
            return f"{name} differs"
    return "" if (out / "report.html").exists() else "report.html is missing"


def _missing(out: Path, template: Path) -> str:
    for name in USERS_FILES:
        if (template / name).exists() and not ((out / name).exists() and (out / name).read_text() == "mine"):
            return f"the user's {name} is gone"
    left = [path.name for path in out.rglob(".*")]
    return f"{', '.join(left)} stayed" if left else ""


def _forked(
    out: Path, seed: int, options: dict[str, bool], *, log: Path | None = None, kill_at: int = -1, torn: bool = False
) -> int:
    """The exit code of a small run in a process of its own, which dies at event `kill_at`."""
    from saligraft.reports.run_report import write_run_page
    from saligraft.training import SilentReporter, make_recipe, train

    recipe = make_recipe(
        {
            "seed": seed,
            "data": {"name": "shapes", "options": {"size": 16, "per_class": 4}, "pad": 2},
            "network": {"name": "wrn-10-1"},
            "training": {"epochs": 2, "batch_size": 16, "checkpoint_steps": 1, "trackers": ["tensorboard"]},
        }
    )
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        events = Events(out, kill_at, torn)
        write_run_page(train(recipe, out, reporter=SilentReporter(), **options))
        events.over = True
        if log is not None:
            log.write_text("".join(f"{name}\n" for name in events.names))
        code = 0
    except ValueError as error:
        print(f"refused: {error}", file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Events:
    """Observe each change that this process makes to a folder, just before it happens, and kill it at one of them."""

    OF_PYTHON: ClassVar = {
        "open": "open",
        "os.rename": "rename",
        "os.remove": "delete",
        "os.rmdir": "delete",
        "os.mkdir": "make",
        "os.truncate": "truncate",
        "os.chmod": "chmod",
    }

    def __init__(self, folder: Path, kill_at: int, torn: bool) -> None:
        self.folder, self.kill_at, self.torn = folder.resolve(), kill_at, torn
        self.names: list[str] = []
        self.over = False
        self.synced = {path: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}
        self.thread = threading.get_ident()
        self.fsync = os.fsync
        os.fsync = self._sync
        sys.addaudithook(self._hear)  # for good

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in self.OF_PYTHON or self.over or threading.get_ident() != self.thread:
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        place = arguments[0]
        if isinstance(place, int):  # an open file
            place = f"/proc/self/fd/{place}"
        path = Path(os.fsdecode(place))
        # shutil names what it deletes by an open folder's handle.
        if self.folder in path.resolve().parents or (not path.is_absolute() and event != "open"):
            self._happen(f"{self.OF_PYTHON[event]} {path.name}")

    def _sync(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        if self.folder in (path, *path.parents):
            if self.torn and path.is_file() and len(self.names) == self.kill_at:
                size = path.stat().st_size
                os.truncate(path, (min(self.synced.get(path, 0), size) + size) // 2)
            self._happen(f"sync {path.name}")
            if path.is_file():
                self.synced[path] = path.stat().st_size
        self.fsync(handle)

    def _happen(self, name: str) -> None:
        if len(self.names) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)


def everywhere(folder: Path, every: int) -> int:
    """All cases; prints a table and returns how many kills ended otherwise than they should."""
    import torch
    from torch.utils import tensorboard  # noqa: F401  (once, and not in each process)

    from saligraft.data import load

    torch.set_num_threads(1)  # others would not live on in forked processes
    load("shapes", size=16, per_class=1)  # makes its tables
    lines = [
        "| run | kills | resumed, files identical | refused, then overwritten | otherwise |",
        "|---|---|---|---|---|",
    ]
    faults = 0
    for case in CASES:
        kills = []
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for kill in kill_everywhere(case, Path(place), every):
                kills.append(kill)
                if kill.fault:
                    print(
                        f"{case.name}, killed at {kill.event}{' (torn)' if kill.torn else ''}: {kill.fault}", flush=True
                    )
        wrong = sum(bool(kill.fault) for kill in kills)
        refused = sum(kill.refused and not kill.fault for kill in kills)
        lines.append(f"| {case.name} | {len(kills)} | {len(kills) - wrong - refused} | {refused} | {wrong} |")
        print(lines[-1], flush=True)
        faults += wrong
    (folder / "everywhere.md").write_text("\n".join(lines) + "\n")
    return faults


def table(trials: list[Trial]) -> str:
    """The trials as Markdown."""
    lines = ["| trial | run | newest checkpoint at each kill | files identical |", "|---|---|---|---|"]
    lines += [
        f"| {trial.number + 1} | {trial.kind} | {', '.join(trial.kills)} | {'yes' if trial.identical else '**no**'} |"
        for trial in trials
    ]
    same, kills = sum(trial.identical for trial in trials), sum(len(trial.kills) for trial in trials)
    return "\n".join([*lines, "", f"{same} of {len(trials)} trials identical after {kills} kills."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/kill_trials"))
    parser.add_argument("--everywhere", action="store_true", help="kill a small run at each file-system event")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the events of --everywhere take each Nth")
    options = parser.parse_args()
    if options.everywhere:
        options.out.mkdir(parents=True, exist_ok=True)
        return 1 if everywhere(options.out, options.every) else 0
    trials = []
    for trial in run_trials(options.out, options.trials, options.seed):
        trials.append(trial)
        print(f"trial {trial.number + 1}: {'identical' if trial.identical else 'DIFFERENT'}", flush=True)
    (options.out / "table.md").write_text(table(trials) + "\n")
    print(table(trials))
    return 0 if all(trial.identical for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
