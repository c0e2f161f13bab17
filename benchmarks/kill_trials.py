"""Kill runs with SIGKILL at random moments, resume them, and compare what they leave, bit for bit.

    python benchmarks/kill_trials.py                        # 20 trials; the table goes to runs/kill_trials/table.md
    python benchmarks/kill_trials.py --trials 3 --seed 1

Each kind of run is first trained once without a kill. A trial then trains it anew, kills it and all its processes up to
three times at moments drawn uniformly over the run's time, resuming after each, and lets the last one end. The files
that depend on the recipe alone must be those of the run never killed. Checkpoints are written every third step, so
that many kills fall on one that is half written. Finished trials are saved; the script goes on where it was stopped.
For Linux, whose /proc tells a run's processes.
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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

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
    """How a run is made."""

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
    """What came of one."""

    number: int
    kind: str
    kills: list[str]  # where the run stood at each
    identical: bool


def run_trial(number: int, kind: Kind, folder: Path, draws: random.Random, most_kills: int) -> Trial:
    """Kill, resume and compare; the reference is made on the first trial of its kind."""
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
    """Start the run, and kill it that long after it began or went on; False if by then its last file was written."""
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
    """SIGKILL for a process and all that descend from it; launched ones have process groups of their own."""
    family = list(_family(pid))
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    while any(Path(f"/proc/{member}").exists() for member in family if member != pid):
        time.sleep(0.01)


def _family(pid: int) -> Iterator[int]:
    yield pid
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in thread.read_text().split():
            yield from _family(int(child))


def _changed(out: Path) -> float:
    """When the run wrote its first file after starting or going on."""
    timing = out / "timing.jsonl"
    return timing.stat().st_mtime if timing.exists() else 0.0


def _standing(out: Path) -> str:
    """Where the newest checkpoint stands, and whether one was being written."""
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
    """Trials of all kinds in turn; those that stand in the folder are not run again."""
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
    options = parser.parse_args()
    trials = []
    for trial in run_trials(options.out, options.trials, options.seed):
        trials.append(trial)
        print(f"trial {trial.number + 1}: {'identical' if trial.identical else 'DIFFERENT'}", flush=True)
    (options.out / "table.md").write_text(table(trials) + "\n")
    print(table(trials))
    return 0 if all(trial.identical for trial in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
