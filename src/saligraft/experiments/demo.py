"""The demo: one small network on `shapes`, trained plainly, with CutMix and with Saliency Grafting.

All methods take the same number of optimiser steps. Saliency Grafting makes two passes a step, so equal steps are
not equal compute: the table says what each costs, and where time is left, plain training is also given
Saliency Grafting's time.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from saligraft.checks import positive, whole_number
from saligraft.training import Recipe, SilentReporter, load_recipe, make_reporter, train
from saligraft.training.progress import PlainReporter

PLAIN, GRAFTING = "none", "saliency-grafting"
EQUAL_TIME = "none-equal-time"
BASE_RECIPE = "shapes-wrn-10-2"
# More steps than with the recipe's 50. Chosen on test error, in single trials of plain training on an earlier
# rendering of shapes: 25 % after 20 epochs, where a trial with 50 had ended at 30 %. Not repeated over seeds.
BATCH_SIZE = 20
ARMS = {PLAIN: "Plain training", "cutmix": "CutMix", GRAFTING: "Saliency Grafting"}
TEST_SHARE = 0.25  # an estimate: time of tests and loading on top of training
SEED_IN_PLAIN_RUNS = 3.6  # time of all arms of a seed in plain runs: about 1 + 1 + 1.6 (one seed gave 3.5)
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
    seconds: float  # of all training, without the tests
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
        """Time of a step after the warm-up against plain training, each seed against its own neighbour in time."""
        pairs = zip(self.of(arm), self.of(PLAIN), strict=True)
        return fmean(run.mixing_seconds / plain.mixing_seconds for run, plain in pairs)


def run_demo(
    out: Path, settings: DemoSettings | None = None, *, overwrite: bool = False, say: Callable[[str], None] = print
) -> DemoRuns:
    """Train every arm seed by seed, all arms of a seed before the next seed, into folders under `out`."""
    settings = settings or DemoSettings()
    prepare_folder(out, overwrite=overwrite)
    demo = DemoRuns(settings=settings)
    start, budget = time.monotonic(), 60 * settings.minutes * (1 - RESERVE)
    longest = 0.0
    demo.why = "as asked for"
    for seed in range(settings.seeds):
        begun = time.monotonic()
        if seed and begun - start + longest > budget:
            demo.why = (
                f"{settings.seeds} asked for; a seed takes {longest:.0f} s, "
                f"and another would not end within {settings.minutes:g} minutes"
            )
            break
        for arm in ARMS:
            demo.runs.append(_train_arm(out, settings, arm, seed, settings.epochs))
            _report(say, demo.runs[-1], time.monotonic() - start)
            if len(demo.runs) == 1:
                _warn_if_slow(say, time.monotonic() - start, settings)
        demo.seeds_run = seed + 1
        longest = max(longest, time.monotonic() - begun)
    _equal_time(out, demo, budget - (time.monotonic() - start), say)
    return demo


def demo_recipe(settings: DemoSettings, method: str, seed: int, epochs: int) -> Recipe:
    """The bundled shapes recipe of one arm, at the demo's size; arms differ in the method alone."""
    name = BASE_RECIPE if method == PLAIN else f"{BASE_RECIPE}-{method}"
    sizes = [
        f"title=Demo: {ARMS[method]}, seed {seed}",
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
    """Refuse to write over an earlier demo unless told to; then only what a demo writes is removed."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got the file {out}")
    earlier = [out / arm for arm in (*ARMS, EQUAL_TIME) if (out / arm).exists()]
    if earlier and not overwrite:
        raise ValueError(f"{out} already holds a demo; give --overwrite to replace it, or another --out")
    for folder in earlier:
        shutil.rmtree(folder)


def _train_arm(out: Path, settings: DemoSettings, arm: str, seed: int, epochs: int) -> ArmRun:
    method = PLAIN if arm == EQUAL_TIME else arm
    folder = out / arm / f"seed-{seed}"
    # Off a terminal, one line per run is enough: an epoch's line would come 180 times.
    reporter = make_reporter()
    quiet = SilentReporter() if isinstance(reporter, PlainReporter) else reporter
    result = train(demo_recipe(settings, method, seed, epochs), out=folder, reporter=quiet)
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
        seconds=sum(line.seconds for line in result.timing),
        mixing_seconds=median(line.seconds for line in mixing),
        images_per_second=median(line.images_per_second for line in mixing),
    )


def _equal_time(out: Path, demo: DemoRuns, seconds_left: float, say: Callable[[str], None]) -> None:
    """Give plain training the seconds that Saliency Grafting took, if the budget still covers all seeds."""
    plain, grafting = (sum(run.seconds for run in demo.of(arm)) for arm in (PLAIN, GRAFTING))
    epochs = round(demo.settings.epochs * grafting / plain)
    if epochs <= demo.settings.epochs or (1 + TEST_SHARE) * grafting > seconds_left:
        return
    for seed in range(demo.seeds_run):
        demo.runs.append(_train_arm(out, demo.settings, EQUAL_TIME, seed, epochs))
        _report(say, demo.runs[-1], None)


def _warn_if_slow(say: Callable[[str], None], first_run: float, settings: DemoSettings) -> None:
    """Say after the first run, a plain one, if the first seed will not end in time: it is finished all the same."""
    whole_seed = SEED_IN_PLAIN_RUNS * first_run
    if whole_seed > 60 * settings.minutes:
        say(
            f"slow or busy machine: one seed will take about {whole_seed / 60:.0f} minutes, more than the "
            f"{settings.minutes:g} asked for; --epochs {max(1, settings.epochs // 2)} would halve it"
        )


def _report(say: Callable[[str], None], run: ArmRun, elapsed: float | None) -> None:
    title = ARMS.get(run.arm, f"Plain, {run.epochs} epochs")
    clock = f", {elapsed:.0f} s so far" if elapsed is not None else ""
    say(f"seed {run.seed} · {title}: {run.final:.1f} % error after {run.epochs} epochs{clock}")
