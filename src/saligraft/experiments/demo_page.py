"""The demo's table and page, made from its runs alone."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from saligraft.data import load
from saligraft.experiments.demo import ARMS, EQUAL_TIME, GRAFTING, PLAIN, DemoRuns, warmup_epochs
from saligraft.experiments.show import POOL, choose, draw_gallery, network_of_run
from saligraft.methods import SaliencyGrafting
from saligraft.reports import page
from saligraft.reports.gallery import most_telling
from saligraft.reports.plots import Curve, learning_curves
from saligraft.reports.tables import ResultTable, html_table, lowest

COLUMNS = ("Method", "Error", "Best epoch", "Last 10", "Epochs", "Images/s", "Cost")


def arm_titles(demo: DemoRuns) -> dict[str, str]:
    """The arms that were run, with the names people read."""
    titles = dict(ARMS)
    if demo.of(EQUAL_TIME):
        titles[EQUAL_TIME] = "Plain, equal time"
    return titles


def result_table(demo: DemoRuns) -> ResultTable:
    """One row per arm: errors as mean ± standard error over seeds, speed, and cost against plain training."""
    titles = arm_titles(demo)
    rows = [_row(demo, arm, title) for arm, title in titles.items()]
    best: set[tuple[int, int]] = set()
    for column, name in ((1, "final"), (2, "best"), (3, "last10_mean")):
        means = [fmean(getattr(run, name) for run in demo.of(arm)) for arm in titles]
        best |= {(place, column) for place in lowest(means)}
    seeds = f"{demo.seeds_run} seed{'s' if demo.seeds_run > 1 else ''}"
    spread = "mean ± standard error over" if demo.seeds_run > 1 else "from"
    warmup = warmup_epochs(demo.settings.epochs)
    notes = [
        f"Error: percent of the test images, {spread} {seeds} ({demo.why}): after the last epoch, at the best one, "
        "and as the mean of the last 10.",
        "Images/s: of one training, on one core or the GPU. Cost: time of a step against plain training, on a CPU in "
        "CPU time. A step of Saliency Grafting is two passes, originals and grafts.",
        f"A short run: {demo.settings.epochs} epochs, the first {warmup} without mixing; the paper takes 300 and more.",
    ]
    return ResultTable(columns=COLUMNS, rows=tuple(rows), best=frozenset(best), notes=tuple(notes))


def write_demo_page(out: Path, demo: DemoRuns, command: str) -> Path:
    """Write `report.html` under `out`; the gallery comes from the first seed's Saliency Grafting network."""
    run = demo.of(GRAFTING)[0]
    pool = choose(load("shapes", split="test", per_class=POOL // 10 + 1), POOL, seed=0)
    rows = draw_gallery(SaliencyGrafting(), network_of_run(run.folder), pool, count=6, seed=0)
    recipe = (run.folder / "recipe.toml").read_text(encoding="utf-8")
    seeds = f"{demo.seeds_run} seed{'s' if demo.seeds_run > 1 else ''}"
    sections = [
        page.Section(title="Result", body=html_table(result_table(demo))),
        page.Section(title="Learning curves", body=learning_curves(_curves(demo)), intro=_curve_intro(demo)),
        page.steps_section(most_telling(rows)),
        page.gallery_section(
            rows,
            "Test images mixed with the maps of the Saliency Grafting network trained here (seed 0). Each row draws "
            f"its own grid and p<sub>B</sub>. {page.gallery_legend(rows)}",
        ),
        page.contact_sheet_section(load("shapes", per_class=min(12, demo.settings.per_class))),
        page.Section(
            title="How it was run",
            body=page.facts_html(_facts(demo, command), {"Recipe of Saliency Grafting, seed 0": recipe}),
        ),
    ]
    lead = (
        f"One {demo.settings.network} on <b>shapes</b>, {demo.settings.per_class} images a class, "
        f"{demo.settings.epochs} epochs, {seeds}: the methods differ only in how training images are mixed"
        + ("; plain training is also given Saliency Grafting's time." if demo.of(EQUAL_TIME) else ".")
    )
    html = page.page_html(
        "Saliency Grafting against plain training and CutMix", lead, sections, kicker="saligraft demo"
    )
    return page.write_page(out / "report.html", html)


def _row(demo: DemoRuns, arm: str, title: str) -> tuple[str, ...]:
    runs = demo.of(arm)
    return (
        title,
        _mean_and_error([run.final for run in runs]),
        _mean_and_error([run.best for run in runs]),
        _mean_and_error([run.last10_mean for run in runs]),
        str(runs[0].epochs),
        f"{fmean(run.images_per_second for run in runs):,.0f}",
        f"{demo.cost(arm):.2f}×",
    )


def _mean_and_error(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{fmean(values):.1f} ± {stdev(values) / math.sqrt(len(values)):.1f}"


def _curves(demo: DemoRuns) -> list[Curve]:
    """The arms of equal length; plain training at equal time runs on its own clock and stays in the table."""
    return [Curve(name=title, runs=tuple(run.curve for run in demo.of(arm))) for arm, title in ARMS.items()]


def _curve_intro(demo: DemoRuns) -> str:
    if demo.seeds_run == 1:
        return "Error on the test images after every epoch, one seed."
    return (
        f"Error on the test images after every epoch: mean over {demo.seeds_run} seeds, band of ± one standard error."
    )


def _facts(demo: DemoRuns, command: str) -> dict[str, str]:
    total = sum(run.seconds for run in demo.runs)
    plain = fmean(run.seconds for run in demo.of(PLAIN))
    return {
        "Command": command,
        "Seeds": f"{demo.seeds_run} ({demo.why})",
        "Training time": f"{total:.0f} s in all if one came after the other, {plain:.0f} s for one plain training",
        **page.versions(),
    }
