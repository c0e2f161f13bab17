"""The demo: one small network on `shapes`, trained plainly, with CutMix and with Saliency Grafting.

All methods take the same number of optimiser steps. Saliency Grafting makes two passes per step, so equal steps are
not equal compute: the table lists the cost of each, and if time is left, plain training also gets Saliency
Grafting's time. Trainings run side by side, one on each core, and their cost is measured in CPU time.
"""

import time
import tomllib
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.progress import TaskID

from saligraft.checks import positive, whole_number
from saligraft.experiments.runner import (
    UPDATE_SECONDS,
    progress_bars,
    single_threaded_workers,
    update_bars,
    worker_count,
)
from saligraft.reports.run_report import write_run_page
from saligraft.training import EpochTiming, Recipe, SilentReporter, load_recipe, train
from saligraft.training.accelerator import only_cpu
from saligraft.training.run_folder import RECIPE, REPORT, read_marker, remove_run

PLAIN, GRAFTING, EQUAL_TIME = "none", "saliency-grafting", "none-equal-time"
ARMS = {PLAIN: "Plain training", "cutmix": "CutMix", GRAFTING: "Saliency Grafting"}
TITLES = {**ARMS, EQUAL_TIME: "Plain, equal time"}
ORDER = (GRAFTING, PLAIN, "cutmix")  # the longest first, so that two workers finish together
BASE_RECIPE = "shapes-wrn-10-2"
# More steps than with the recipe's 50. Chosen by test error, in single trials of plain training on an earlier
# rendering of shapes: 25 % after 20 epochs, compared with 30 % for a batch size of 50. Not repeated over seeds.
BATCH_SIZE = 20
TITLE = "Demo: "  # prefix of the recipes' titles, which identifies the runs of a demo
SEED_IN_PLAIN_RUNS = 3.6  # time of all arms of a seed in plain runs: about 1 + 1 + 1.6 (one seed measured 3.5)
GRAFTING_IN_PLAIN_RUNS = 1.6
RESERVE = 0.04  # share of the budget kept for the gallery and the page


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """How large the demo is; the defaults fit five minutes on two cores.

    Args:
        seeds: Number of seeds, as far as the minutes allow.
        epochs: Epochs of every training.
        minutes: Time limit; the first seed is always completed, others start only if they will finish in time.
        per_class: Training images per class.
        network: Name of the network.
    """

    seeds: int = 3
    epochs: int = 18
    minutes: float = 4.7
    per_class: int = 100
    network: str = "wrn-10-1"

    def __post_init__(self) -> None:
        whole_number("seeds", self.seeds, least=1)
        whole_number("epochs", self.epochs, least=1)
        whole_number("per_class", self.per_class, least=1)
        positive("minutes", self.minutes)


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One training of the demo.

    Args:
        arm: What was trained: a key of `TITLES`.
        seed: Its seed.
        folder: Its run folder.
        error: Test error in percent: "final", "best" epoch, "last10_mean".
        curve: Test error after every epoch.
        wall_seconds: From start to end, with loading, tests and pages.
        seconds: All training without the tests: CPU time, or on a GPU elapsed time.
        mixing_seconds: Median time of an epoch after the warm-up, which ignores a short load peak.
        images_per_second: Throughput of that epoch.
    """

    arm: str
    seed: int
    folder: Path
    error: dict[str, float]
    curve: tuple[float, ...]
    wall_seconds: float
    seconds: float
    mixing_seconds: float
    images_per_second: float


@dataclass(kw_only=True)
class DemoRuns:
    """All trainings of one demo.

    Args:
        settings: The requested size.
        runs: Its trainings.
        seeds_run: Number of seeds that the time allowed.
        why: Reason for that number.
    """

    settings: DemoSettings
    runs: list[ArmRun] = field(default_factory=list)
    seeds_run: int = 0
    why: str = "as requested"

    def of(self, arm: str) -> list[ArmRun]:
        """The runs of one arm, in the order of their seeds."""
        return [run for run in self.runs if run.arm == arm]

    def cost(self, arm: str) -> float:
        """Time of a step after the warm-up, relative to plain training of the same seed."""
        pairs = zip(self.of(arm), self.of(PLAIN), strict=True)
        return fmean(run.mixing_seconds / plain.mixing_seconds for run, plain in pairs)


def print_now(line: str) -> None:
    """Print a line without buffering, so that a file or pipe receives it at once.

    Args:
        line: What to print.
    """
    print(line, flush=True)


def run_demo(
    out: Path,
    settings: DemoSettings | None = None,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = print_now,
    pool: Executor | None = None,
) -> DemoRuns:
    """Train every arm, seed by seed, into folders under `out`; a seed that starts is completed for all arms.

    Args:
        out: Folder of the demo.
        settings: How large the demo is; None for the defaults.
        overwrite: Whether to replace an earlier demo in `out`.
        say: Called with a line at the start and end of every training.
        pool: Where trainings run, one at a time; None for one single-threaded process per core.

    Returns:
        The runs and their numbers.
    """
    settings = settings or DemoSettings()
    for arm in ARMS:
        demo_recipe(settings, arm, 0, settings.epochs)  # fail before anything is removed
    prepare_folder(out, overwrite=overwrite)
    if pool is not None:
        return _Schedule(out, settings, pool, 1, say).run()
    workers = min(worker_count(), len(ARMS) * settings.seeds)
    with single_threaded_workers(workers) as processes:
        return _Schedule(out, settings, processes, workers, say).run()


class _Schedule:
    """Submits trainings to the workers, seed after seed, while time is left."""

    def __init__(
        self, out: Path, settings: DemoSettings, pool: Executor, workers: int, say: Callable[[str], None]
    ) -> None:
        self.out, self.settings, self.pool, self.workers, self.say = out, settings, pool, workers, say
        self.demo = DemoRuns(settings=settings)
        self.start, self.budget = time.monotonic(), 60 * settings.minutes * (1 - RESERVE)
        self.running: dict[Future[ArmRun], tuple[str, float]] = {}  # arm, and when it was started
        self.progress, self.bars = progress_bars(Console(stderr=True)), dict[Path, TaskID]()

    def run(self) -> DemoRuns:
        with self.progress:
            self._run_seeds()
            if self.demo.seeds_run < self.settings.seeds:
                self.demo.why = (
                    f"{self.settings.seeds} requested; a seed takes {self._seed_seconds():.0f} s, "
                    f"and another would not finish within {self.settings.minutes:g} minutes"
                )
            self._run_equal_time()
        order = list(TITLES)
        self.demo.runs.sort(key=lambda run: (order.index(run.arm), run.seed))
        return self.demo

    def _run_seeds(self) -> None:
        waiting: deque[tuple[str, int]] = deque()
        while True:
            while len(self.running) < self.workers:
                if not waiting and self._has_time_for_seed():
                    waiting.extend((arm, self.demo.seeds_run) for arm in ORDER)
                    self.demo.seeds_run += 1
                if not waiting:
                    break
                self._submit(*waiting.popleft(), self.settings.epochs)
            if not self.running:
                return
            self._collect()

    def _submit(self, arm: str, seed: int, epochs: int) -> None:
        title = f"seed {seed} · {TITLES[arm]}"
        self.say(f"{title}: started, {epochs} epochs")
        self.bars[run_folder(self.out, arm, seed)] = self.progress.add_task(title, total=epochs)
        task = self.pool.submit(train_arm, self.out, self.settings, arm, seed, epochs)
        self.running[task] = (arm, time.monotonic())

    def _collect(self) -> None:
        """Wait for the next training to end."""
        while not (done := wait(self.running, timeout=UPDATE_SECONDS, return_when=FIRST_COMPLETED).done):
            update_bars(self.progress, self.bars)
        for task in done:
            del self.running[task]
            run = task.result()
            self.progress.remove_task(self.bars.pop(run.folder))
            self.demo.runs.append(run)
            result = f"{run.error['final']:.1f} % error after {len(run.curve)} epochs"
            elapsed = f"{time.monotonic() - self.start:.0f} s so far"
            self.say(f"seed {run.seed} · {TITLES[run.arm]}: {result}, {elapsed}")
            if run.arm == PLAIN and len(self.demo.of(PLAIN)) == 1:
                self._warn_if_slow(run.wall_seconds)

    def _has_time_for_seed(self) -> bool:
        """Whether another seed is requested and would finish in time, judging by the trainings so far."""
        if not 0 < self.demo.seeds_run < self.settings.seeds:
            return self.demo.seeds_run == 0
        now = time.monotonic()
        left = sum(max(0.0, self._expected(arm) - (now - started)) for arm, started in self.running.values())
        return now - self.start + left / self.workers + self._seed_seconds() <= self.budget

    def _seed_seconds(self) -> float:
        return sum(map(self._expected, ARMS)) / self.workers

    def _expected(self, arm: str) -> float:
        """Time of a training: that of the arm's last one, else the longest of all; 0 while nothing is known.

        Not the arm's longest, which would count a single load peak for the rest of the demo.
        """
        if own := self.demo.of(arm):
            return own[-1].wall_seconds
        return max((run.wall_seconds for run in self.demo.runs), default=0.0)

    def _run_equal_time(self) -> None:
        """Give plain training the time that Saliency Grafting took, if the budget still covers all seeds."""
        plain, grafting = (sum(run.seconds for run in self.demo.of(arm)) for arm in (PLAIN, GRAFTING))
        epochs = round(self.settings.epochs * grafting / plain)
        rounds = -(-self.demo.seeds_run // self.workers)
        ends = time.monotonic() - self.start + rounds * self._expected(GRAFTING)
        if epochs <= self.settings.epochs or ends > self.budget:
            return
        for seed in range(self.demo.seeds_run):
            self._submit(EQUAL_TIME, seed, epochs)
        while self.running:
            self._collect()

    def _warn_if_slow(self, plain_run: float) -> None:
        """Say after the first plain run if the first seed, which is completed anyway, will not finish in time."""
        seconds = plain_run * max(SEED_IN_PLAIN_RUNS / self.workers, GRAFTING_IN_PLAIN_RUNS)
        if seconds > 60 * self.settings.minutes:
            self.say(
                f"slow or busy machine: one seed will take about {seconds / 60:.0f} minutes, more than the "
                f"{self.settings.minutes:g} requested; --epochs {max(1, self.settings.epochs // 2)} would halve it"
            )


def demo_recipe(settings: DemoSettings, method: str, seed: int, epochs: int) -> Recipe:
    """Load the bundled shapes recipe of one method at the demo's size; methods differ in nothing else.

    Args:
        settings: How large the demo is.
        method: A key of `ARMS`.
        seed: Seed of the run.
        epochs: Number of epochs.

    Returns:
        The recipe.
    """
    name = BASE_RECIPE if method == PLAIN else f"{BASE_RECIPE}-{method}"
    sizes = [
        f"title={TITLE}{ARMS[method]}, seed {seed}",
        f"network.name={settings.network}",
        f"data.options.per_class={settings.per_class}",
        f"training.epochs={epochs}",
        f"training.batch_size={BATCH_SIZE}",
        f"training.warmup_epochs={0 if method == PLAIN else warmup_epochs(epochs)}",
    ]
    if method == "cutmix":
        sizes.append("method.options.probability=0.5")  # the authors' value for small images (CIFAR)
    return load_recipe(name, sizes, seed=seed)


def warmup_epochs(epochs: int) -> int:
    """Return the paper's 5 epochs without mixing (appendix B), or a quarter of a shorter run.

    Args:
        epochs: Length of the run.

    Returns:
        Number of warm-up epochs, the same for every method.
    """
    return min(5, epochs // 4)


def prepare_folder(out: Path, *, overwrite: bool) -> None:
    """Remove the runs of an unfinished demo, or with `overwrite` of a finished one; refuse folders with other content.

    Args:
        out: Folder of the demo.
        overwrite: Whether a finished demo may be replaced.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}")
    if not out.exists() or not any(out.iterdir()):
        return
    runs = [folder for arm in TITLES for folder in (out / arm).glob("seed-*") if _is_demo_run(folder)]
    if not runs:
        raise ValueError(f"{out} is not empty and holds no demo: choose another --out")
    if (out / REPORT).exists() and not overwrite:
        raise ValueError(f"{out} already holds a demo; give --overwrite to replace it, or another --out")
    (out / REPORT).unlink(missing_ok=True)
    for folder in runs:
        remove_run(folder)


def _is_demo_run(folder: Path) -> bool:
    try:
        recipe = tomllib.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return read_marker(folder) is not None and str(recipe.get("title", "")).startswith(TITLE)


def train_arm(out: Path, settings: DemoSettings, arm: str, seed: int, epochs: int) -> ArmRun:
    """Train one arm in the calling process and write the page of the run.

    Args:
        out: Folder of the demo.
        settings: How large the demo is.
        arm: A key of `TITLES`.
        seed: Seed of the run.
        epochs: Number of epochs.

    Returns:
        The numbers of the run.
    """
    started = time.monotonic()
    folder = run_folder(out, arm, seed)
    recipe = demo_recipe(settings, PLAIN if arm == EQUAL_TIME else arm, seed, epochs)
    result = train(recipe, out=folder, overwrite=True, reporter=SilentReporter())
    write_run_page(result)
    mixing = result.timing[warmup_epochs(epochs) :]
    return ArmRun(
        arm=arm,
        seed=seed,
        folder=folder,
        error=result.summary["top1_error"],
        curve=tuple(line.top1_error for line in result.metrics),
        wall_seconds=time.monotonic() - started,
        seconds=sum(map(_seconds, result.timing)),
        mixing_seconds=median(map(_seconds, mixing)),
        images_per_second=median(line.images_per_second * line.seconds / _seconds(line) for line in mixing),
    )


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / arm / f"seed-{seed}"


def _seconds(epoch: EpochTiming) -> float:
    """Time of an epoch that other programs, or the training on the next core, do not prolong."""
    return epoch.cpu_seconds if only_cpu() else epoch.seconds
