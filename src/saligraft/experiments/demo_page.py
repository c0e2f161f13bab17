"""The demo's table and page, created only from its runs."""

from pathlib import Path
from statistics import fmean

from saligraft.data import load
from saligraft.experiments.demo import ARMS, EQUAL_TIME, GRAFTING, PLAIN, TITLES, DemoRuns, warmup_epochs
from saligraft.experiments.show import POOL, choose, draw_gallery, network_of_run
from saligraft.methods import SaliencyGrafting
from saligraft.reports.figures import Curve
from saligraft.reports.gallery import class_strips, most_balanced
from saligraft.reports.page import versions, write_page
from saligraft.reports.tables import ResultTable, lowest
from saligraft.training.run_folder import RECIPE, REPORT

COLUMNS = ("Method", "Error", "Best epoch", "Last 10", "Epochs", "Images/s", "Cost")
ERRORS = ("final", "best", "last10_mean")  # of columns 1 to 3


def result_table(demo: DemoRuns) -> ResultTable:
    """Tabulate the arms: errors as mean ± standard error over seeds, speed, and cost relative to plain training.

    Args:
        demo: The runs.

    Returns:
        One row per arm; the lowest errors are marked.
    """
    arms = [arm for arm in TITLES if demo.of(arm)]
    # One "epoch" per column: a curve's mean and standard error over seeds work for single numbers too.
    errors = [
        Curve(name=arm, runs=tuple(tuple(run.error[name] for name in ERRORS) for run in demo.of(arm))) for arm in arms
    ]
    rows = []
    for arm, error in zip(arms, errors, strict=True):
        spread = [f" ± {value:.1f}" if demo.seeds_run > 1 else "" for value in error.standard_error]
        means = [f"{mean:.1f}{plus_minus}" for mean, plus_minus in zip(error.mean, spread, strict=True)]
        rate = fmean(run.images_per_second for run in demo.of(arm))
        rows.append((TITLES[arm], *means, str(len(demo.of(arm)[0].curve)), f"{rate:,.0f}", f"{demo.cost(arm):.2f}×"))
    best = {(row, column + 1) for column in range(3) for row in lowest([error.mean[column] for error in errors])}
    seeds = f"mean ± standard error over {demo.seeds_run} seeds" if demo.seeds_run > 1 else "from 1 seed"
    notes = (
        f"Error: percent of the test images, {seeds} ({demo.why}): after the last epoch, at the best one, "
        "and as the mean of the last 10.",
        "Images/s: of one training, on one core or the GPU. Cost: time of a step relative to plain training, on a CPU "
        "in CPU time. A step of Saliency Grafting is two passes, originals and grafts.",
        f"A short run: {demo.settings.epochs} epochs, the first {warmup_epochs(demo.settings.epochs)} without mixing; "
        "the paper trains for 300 and more.",
    )
    return ResultTable(columns=COLUMNS, rows=tuple(rows), best=frozenset(best), notes=notes)


def write_demo_page(out: Path, demo: DemoRuns, command: str) -> Path:
    """Write `report.html`, with a gallery through the first seed's Saliency Grafting network.

    Args:
        out: Folder of the demo.
        demo: The runs.
        command: The command that started the demo.

    Returns:
        The page's path.
    """
    folder = demo.of(GRAFTING)[0].folder
    pool = choose(load("shapes", split="test", per_class=POOL // 10 + 1), POOL, seed=0)
    rows = draw_gallery(SaliencyGrafting(), network_of_run(folder), pool, count=6, seed=0)
    data = load("shapes", per_class=min(12, demo.settings.per_class))
    total, plain = sum(run.seconds for run in demo.runs), fmean(run.seconds for run in demo.of(PLAIN))
    facts = {
        "Command": command,
        "Seeds": f"{demo.seeds_run} ({demo.why})",
        "Training time": f"{total:.0f} s in total if run one after the other, {plain:.0f} s for one plain training",
    }
    return write_page(
        out / REPORT,
        "demo.html",
        title="Saliency Grafting against plain training and CutMix",
        settings=demo.settings,
        seeds=demo.seeds_run,
        equal_time=bool(demo.of(EQUAL_TIME)),
        table=result_table(demo),
        # Plain training at equal time has another number of epochs: it is in the table only.
        curves=[Curve(name=title, runs=tuple(run.curve for run in demo.of(arm))) for arm, title in ARMS.items()],
        rows=rows,
        best_row=most_balanced(rows),
        data=data,
        strips=class_strips(data),
        facts={**facts, **versions()},
        recipe=(folder / RECIPE).read_text(encoding="utf-8"),
    )
