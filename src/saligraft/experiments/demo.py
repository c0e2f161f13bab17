"""The demo: one small network on `shapes`, trained plainly, with CutMix and with Saliency Grafting.

All methods take the same number of optimiser steps. Saliency Grafting makes two passes a step, so equal steps are
not equal compute: the table says what each costs, and where time is left, plain training is also given
Saliency Grafting's time. Trainings run side by side, one on each core, and their cost is measured in CPU time.
"""

import time
import tomllib
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from saligraft.checks import positive, whole_number
from saligraft.experiments.demo_pool import single_threaded_workers, worker_count
from saligraft.experiments.demo_progress import TrainingBars
from saligraft.reports.run_report import write_run_page
from saligraft.training import EpochTiming, Recipe, SilentReporter, load_recipe, train
from saligraft.training.accelerator import only_cpu
from saligraft.training.run_folder import RECIPE, REPORT, read_marker, remove_run

PLAIN, GRAFTING = "none", "saliency-grafting"
EQUAL_TIME = "none-equal-time"
BASE_RECIPE = "shapes-wrn-10-2"
# More steps than with the recipe's 50. Chosen on test error, in single trials of plain training on an earlier
# rendering of shapes: 25 % after 20 epochs, where a trial with 50 had ended at 30 %. Not repeated over seeds.
BATCH_SIZE = 20
TITLE = "Demo: "  # what the titles of the recipes begin with, and a demo's runs are known by
ARMS = {PLAIN: "Plain training", "cutmix": "CutMix", GRAFTING: "Saliency Grafting"}
ORDER = (GRAFTING, PLAIN, "cutmix")  # the longest first, so that two workers end together
SEED_IN_PLAIN_RUNS = 3.6  # time of all arms of a seed in plain runs: about 1 + 1 + 1.6 (one seed gave 3.5)
GRAFTING_IN_PLAIN_RUNS = 1.6
GLANCE = 0.5  # seconds between two looks at how far the trainings are
RESERVE = 0.04  # share of the budget kept for the gallery and the page


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """How large the demo is; the defaults fit five minutes on two cores."""

    seeds: int = 3  # at most; fewer where the minutes do not suffice
    epochs: int = 18
    minutes: float = 4.7  # the first seed always ends, the others start only if they will fit
    per_class: int = 100
    network: str = "wrn-10-1"

    def __post_init__(self) -> None:
        whole_number("seeds", self.seeds, least=1)
        whole_number("epochs", self.epochs, least=1)
        whole_number("per_class", self.per_class, least=1)
        positive("minutes", self.minutes)


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One training of the demo: what was run, how it went, epoch by epoch, and how long its epochs took."""

    arm: str
    seed: int
    folder: Path
    epochs: int
    best: float
    last10_mean: float
    final: float
    curve: tuple[float, ...]
    wall_seconds: float  # from start to end, with loading, tests and pages
    seconds: float  # of all training, without the tests: CPU time, or on a GPU the clock's
    mixing_seconds: float  # of one epoch after the warm-up: the median, which a busy moment does not move
    images_per_second: float  # of that epoch


@dataclass(kw_only=True)
class DemoRuns:
    """All trainings of one demo and how many seeds the time allowed for."""

    settings: DemoSettings
    runs: list[ArmRun] = field(default_factory=list)
    seeds_run: int = 0
    why: str = ""

    def of(self, arm: str) -> list[ArmRun]:
        """The runs of one method, in the order of their seeds."""
        return [run for run in self.runs if run.arm == arm]

    def cost(self, arm: str) -> float:
        """Time of a step after the warm-up against plain training of the same seed."""
        pairs = zip(self.of(arm), self.of(PLAIN), strict=True)
        return fmean(run.mixing_seconds / plain.mixing_seconds for run, plain in pairs)


def say_at_once(line: str) -> None:
    """Print, also into a file or pipe, before the next minutes of silence."""
    print(line, flush=True)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where trainings run, and how many at once."""

    pool: Executor
    count: int


def run_demo(
    out: Path,
    settings: DemoSettings | None = None,
    *,
    overwrite: bool = False,
    say: Callable[[str], None] = say_at_once,
    workers: Workers | None = None,
) -> DemoRuns:
    """Train every arm of one seed after another into folders under `out`; all arms of a seed that starts are finished.

    Without `workers` there is one single-threaded process per core.
    """
    settings = settings or DemoSettings()
    for arm in ARMS:
        demo_recipe(settings, arm, 0, settings.epochs)  # a mistake shows before anything is removed
    prepare_folder(out, overwrite=overwrite)
    if workers is not None:
        return _Schedule(out, settings, workers, say).run()
    count = min(worker_count(), len(ARMS) * settings.seeds)
    with single_threaded_workers(count) as pool:
        return _Schedule(out, settings, Workers(pool=pool, count=count), say).run()


class _Schedule:
    """Hands trainings to the workers, seed after seed, as long as the time suffices."""

    def __init__(self, out: Path, settings: DemoSettings, workers: Workers, say: Callable[[str], None]) -> None:
        self.out, self.settings, self.workers, self.say = out, settings, workers, say
        self.demo = DemoRuns(settings=settings, why="as asked for")
        self.start, self.budget = time.monotonic(), 60 * settings.minutes * (1 - RESERVE)
        self.running: dict[Future[ArmRun], tuple[str, float]] = {}  # arm, and when it was started
        self.bars = TrainingBars()

    def run(self) -> DemoRuns:
        with self.bars:
            self._seeds()
            if self.demo.seeds_run < self.settings.seeds:
                self.demo.why = (
                    f"{self.settings.seeds} asked for; a seed takes {self._whole_seed():.0f} s, "
                    f"and another would not end within {self.settings.minutes:g} minutes"
                )
            self._equal_time()
        places = [*ARMS, EQUAL_TIME]
        self.demo.runs.sort(key=lambda run: (places.index(run.arm), run.seed))
        return self.demo

    def _seeds(self) -> None:
        waiting: deque[tuple[str, int]] = deque()
        while True:
            while len(self.running) < self.workers.count:
                if not waiting and self._another_seed():
                    waiting.extend((arm, self.demo.seeds_run) for arm in ORDER)
                    self.demo.seeds_run += 1
                if not waiting:
                    break
                self._submit(*waiting.popleft(), self.settings.epochs)
            if not self.running:
                return
            self._collect()

    def _submit(self, arm: str, seed: int, epochs: int) -> None:
        title = f"seed {seed} · {_title(arm)}"
        self.say(f"{title}: started, {epochs} epochs")
        self.bars.add(run_folder(self.out, arm, seed), title, epochs)
        task = self.workers.pool.submit(train_arm, self.out, self.settings, arm, seed, epochs)
        self.running[task] = (arm, time.monotonic())

    def _collect(self) -> None:
        """Wait for the next training to end."""
        while not (done := wait(self.running, timeout=GLANCE, return_when=FIRST_COMPLETED).done):
            self.bars.update()
        for task in done:
            del self.running[task]
            run = task.result()
            self.bars.remove(run.folder)
            self.demo.runs.append(run)
            elapsed = time.monotonic() - self.start
            title = _title(run.arm)
            self.say(
                f"seed {run.seed} · {title}: {run.final:.1f} % error after {run.epochs} epochs, {elapsed:.0f} s so far"
            )
            if run.arm == PLAIN and len(self.demo.of(PLAIN)) == 1:
                self._warn_if_slow(run.wall_seconds)

    def _another_seed(self) -> bool:
        """Whether one more is asked for and would end in time, by what the trainings so far took."""
        if not 0 < self.demo.seeds_run < self.settings.seeds:
            return self.demo.seeds_run == 0
        now = time.monotonic()
        left = sum(max(0.0, self._expected(arm) - (now - begun)) for arm, begun in self.running.values())
        return now - self.start + left / self.workers.count + self._whole_seed() <= self.budget

    def _whole_seed(self) -> float:
        return sum(map(self._expected, ARMS)) / self.workers.count

    def _expected(self, arm: str) -> float:
        """Time of a training: as the arm's last one, or the longest of all; 0 while nothing is known.

        Not the arm's longest, which one busy minute of the machine would decide for good.
        """
        if own := self.demo.of(arm):
            return own[-1].wall_seconds
        return max((run.wall_seconds for run in self.demo.runs), default=0.0)

    def _equal_time(self) -> None:
        """Give plain training the time that Saliency Grafting took, if the budget still covers all seeds."""
        plain, grafting = (sum(run.seconds for run in self.demo.of(arm)) for arm in (PLAIN, GRAFTING))
        epochs = round(self.settings.epochs * grafting / plain)
        rounds = -(-self.demo.seeds_run // self.workers.count)
        ends = time.monotonic() - self.start + rounds * self._expected(GRAFTING)
        if epochs <= self.settings.epochs or ends > self.budget:
            return
        for seed in range(self.demo.seeds_run):
            self._submit(EQUAL_TIME, seed, epochs)
        while self.running:
            self._collect()

    def _warn_if_slow(self, plain_run: float) -> None:
        """Say after the first plain run if the first seed will not end in time: it is finished all the same."""
        whole_seed = plain_run * max(SEED_IN_PLAIN_RUNS / self.workers.count, GRAFTING_IN_PLAIN_RUNS)
        if whole_seed > 60 * self.settings.minutes:
            self.say(
                f"slow or busy machine: one seed will take about {whole_seed / 60:.0f} minutes, more than the "
                f"{self.settings.minutes:g} asked for; --epochs {max(1, self.settings.epochs // 2)} would halve it"
            )


def demo_recipe(settings: DemoSettings, method: str, seed: int, epochs: int) -> Recipe:
    """The bundled shapes recipe of one arm, at the demo's size; arms differ in the method alone."""
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
        sizes.append("method.options.probability=0.5")  # as its authors mix small images (CIFAR)
    return load_recipe(name, sizes, seed=seed)


def warmup_epochs(epochs: int) -> int:
    """The paper's 5 first epochs without mixing (appendix B), for every method alike; a quarter of a shorter run."""
    return min(5, epochs // 4)


def prepare_folder(out: Path, *, overwrite: bool) -> None:
    """Take an empty folder, an unfinished demo, or with `overwrite` a finished one; remove what it holds of a demo.

    Any other folder with something in it is refused. Only files of the demo's own runs are removed.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}")
    if not out.exists() or not any(out.iterdir()):
        return
    runs = [folder for arm in (*ARMS, EQUAL_TIME) for folder in (out / arm).glob("seed-*") if _is_of_a_demo(folder)]
    if not runs:
        raise ValueError(f"{out} is not empty and holds no demo: choose another --out")
    if (out / REPORT).exists() and not overwrite:
        raise ValueError(f"{out} already holds a demo; give --overwrite to replace it, or another --out")
    (out / REPORT).unlink(missing_ok=True)
    for folder in runs:
        remove_run(folder)


def _is_of_a_demo(folder: Path) -> bool:
    try:
        recipe = tomllib.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return read_marker(folder) is not None and str(recipe.get("title", "")).startswith(TITLE)


def train_arm(out: Path, settings: DemoSettings, arm: str, seed: int, epochs: int) -> ArmRun:
    """One training, in whatever process this is called."""
    began = time.monotonic()
    method = PLAIN if arm == EQUAL_TIME else arm
    folder = run_folder(out, arm, seed)
    recipe = demo_recipe(settings, method, seed, epochs)
    result = train(recipe, out=folder, overwrite=True, reporter=SilentReporter())
    write_run_page(result)
    mixing = result.timing[warmup_epochs(epochs) :]
    error = result.summary["top1_error"]
    return ArmRun(
        arm=arm,
        seed=seed,
        folder=folder,
        epochs=len(result.metrics),
        best=error["best"],
        last10_mean=error["last10_mean"],
        final=error["final"],
        curve=tuple(line.top1_error for line in result.metrics),
        wall_seconds=time.monotonic() - began,
        seconds=sum(map(_seconds, result.timing)),
        mixing_seconds=median(map(_seconds, mixing)),
        images_per_second=median(line.images_per_second * line.seconds / _seconds(line) for line in mixing),
    )


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / arm / f"seed-{seed}"


def _seconds(epoch: EpochTiming) -> float:
    """Time of an epoch that other programs, and the training on the next core, do not prolong."""
    return epoch.cpu_seconds if only_cpu() else epoch.seconds


def _title(arm: str) -> str:
    return ARMS.get(arm, "Plain, equal time")
