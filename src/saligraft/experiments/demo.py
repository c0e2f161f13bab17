"""The demo: an experiment on `shapes` that needs no files and takes minutes, with a page of its own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from saligraft.config.recipe_file import PLAIN
from saligraft.experiments.experiment import (
    EQUAL_PASSES,
    GRAFTING,
    Experiment,
    Job,
    Metric,
    Part,
    Regime,
    Row,
    ScaleName,
    jobs_of,
    passes_of,
    rows_of,
)
from saligraft.experiments.paper.regimes import SMOKE
from saligraft.experiments.results import RowResult, collect, compared_pairs, write_files
from saligraft.experiments.runner import run_job
from saligraft.experiments.show import draw_gallery, scene_of_run
from saligraft.methods import SaliencyGrafting
from saligraft.names import plural
from saligraft.reports.gallery import class_strips, most_balanced
from saligraft.reports.page import versions, write_page
from saligraft.reports.run_report import write_run_page
from saligraft.reports.statistics import Difference
from saligraft.reports.tables import ResultTable
from saligraft.training import SilentReporter, train
from saligraft.training.run_folder import REPORT
from saligraft.training.setup import load_split

PROTOCOL = "shapes-wrn-10-2"
NETWORK = ("network.name=wrn-10-1", "network.options.stem_stride=2")  # 77,850 parameters, last map 4×4
# Tried with plain training on held-out images: seed 0 of `saligraft train shapes-wrn-10-2 --set KEY=VALUE ...` with
# NETWORK, REGIME without test_subset, and data.held_out=true; losses, and held-out error in %:
# images, epochs  training  held-out  error      images, epochs  training  held-out  error
#    100, 60        0.29      0.55     22.3         50, 100        0.14      1.71     44.9
#    100, 80        0.14      0.51     17.7         50, 140        0.04      1.80     41.5
#    100, 100       0.10      0.44     14.9         50, 160        0.03      1.65     37.4
# 50 images and 140 epochs have the widest gap and were run first: plain training 35.7 ± 3.9, equal passes 32.4 ± 3.0,
# CutMix 48.2 ± 4.7, Saliency Grafting 48.6 ± 7.0 % (3 seeds). Plain training was still improving there, and both mixing
# methods were far from done. So the demo has the 100 images and 100 epochs of earlier trials with other networks.
REGIME = (
    "data.options.per_class=200",
    "data.per_class_subset=100",
    "data.test_subset=100",
    "training.epochs=100",
    "training.checkpoint_epochs=20",
    "training.batch_size=50",
    "schedule.peak=0.15",
    "optimizer.name=sgd",
    "optimizer.lr=0.1",
    "optimizer.nesterov=true",
    "optimizer.weight_decay=0.0005",
)
SECONDS_PER_PASS = 0.55  # over all training images, with its share of tests and measurements, on an idle core
DEMO = Experiment(
    name="demo",
    title="Saliency Grafting against plain training and CutMix",
    paper="§5",
    parts=(Part(protocol=PROTOCOL, methods=(PLAIN, "cutmix", GRAFTING)),),
    metrics=(
        Metric("occlusion/0", "Error"),
        Metric("occlusion/12.5", "12.5 % hidden"),
        Metric("occlusion/25", "25 % hidden"),
    ),
    measures=("occlusion",),
    seeds={"smoke": 2, "laptop": 2},
)
NOTES = (
    "Error in %, mean ± standard error over seeds; hidden: the most salient cells of an 8 × 8 grid, by the tested "
    "network's own map. CPU s: training of one run. Passes: over the training images, forward and backward alike. "
    "Equal passes: plain training for as many epochs as Saliency Grafting makes passes. CutMix mixes half of the "
    "batches, its authors' setting for small images. Saliency maps have {} cells.",
    "Saliency Grafting minus the other on the same seeds, with Student's t interval; resolved if it excludes zero.",
    "Mean absolute error, in points, between a label's weight and the visible share of the object.",
)
RELATIONS = {
    "better": "is lower than with",
    "worse": "is higher than with",
    "not resolved": "cannot be distinguished from that with",
}
LABELS = {
    "Saliency Grafting, calibrated by saliency (used)": f"{GRAFTING}, error of calibrated",
    "Saliency Grafting, by area": f"{GRAFTING}, error of area",
    "CutMix, by area (used)": "cutmix, error of area",
}


def demo_rows(scale: ScaleName) -> list[Row]:
    """List what is trained: plainly, the same at equal passes, with CutMix, with Saliency Grafting.

    Args:
        scale: "laptop", or "smoke" to see that everything runs.
    """
    small = Regime(recipe=PROTOCOL, settings=(*NETWORK, *SMOKE), warmup_epochs=1)
    full = Regime(recipe=PROTOCOL, settings=(*NETWORK, *REGIME), warmup_epochs=5)
    rows = rows_of(DEMO, scale, lambda *_: small if scale == "smoke" else full, None)
    return [replace(row, title=row.title.replace(" training, ", " at ")) for row in rows]


def demo_jobs(rows: Sequence[Row], seeds: int, out: Path) -> list[Job]:
    """List the runs: in each seed the longest first, so that two workers finish together.

    Args:
        rows: What is trained.
        seeds: Number of seeds, from 0.
        out: Folder of the demo.
    """
    jobs = sorted(jobs_of(DEMO, rows, seeds, out), key=lambda job: (job.recipe.seed, -passes_of(job.recipe).forward))
    more = {GRAFTING: ("label_truth",)}
    return [replace(job, measures=(*job.measures, *more.get(job.recipe.method.name, ()))) for job in jobs]


def work(job: Job) -> None:
    """Train one run, write its page, then measure it.

    Args:
        job: The run.
    """
    if not job.trained:
        write_run_page(train(job.recipe, job.folder, resume=True, reporter=SilentReporter()))
    run_job(job)


def differences(results: Sequence[RowResult]) -> list[tuple[Metric, str, Difference]]:
    """Compare Saliency Grafting with each baseline, by name, in each metric.

    Args:
        results: One per row.
    """
    pairs = [(metric, *pair) for metric in DEMO.metrics for pair in compared_pairs(DEMO, results)]
    return [(metric, other.row.title, d) for metric, own, other in pairs if (d := own.difference(other, metric))]


def verdict(results: Sequence[RowResult]) -> str:
    """State in one sentence what the paired differences show, wins and losses alike.

    Args:
        results: One per row.
    """
    clauses = {metric: dict[str, list[str]]() for metric in DEMO.metrics}
    for metric, name, difference in differences(results):
        baseline = f"{name.replace('Plain', 'plain')} ({difference.mean:+.1f})"
        clauses[metric].setdefault(RELATIONS[difference.verdict], []).append(baseline)

    def sentence(metric: Metric) -> str:
        parts = [f"{relation} {_joined(names, ' or ')}" for relation, names in clauses[metric].items()]
        return _joined(parts, ", and ")

    whole, _, hidden = map(sentence, DEMO.metrics)
    seeds = plural(len(results[0].records), "paired seed")
    return (
        f"Over {seeds}, the error with Saliency Grafting "
        f"{whole.replace(')', ' points)', 1)}; with the most salient 25 % hidden, it {hidden}."
    )


def _joined(words: Sequence[str], last: str) -> str:
    return last.join(filter(None, (", ".join(words[:-1]), words[-1])))


def demo_tables(results: Sequence[RowResult]) -> list[ResultTable]:
    """Tabulate errors and cost, paired differences, and how true labels are; each fits 80 columns.

    Args:
        results: One per row.
    """
    truth = [(title, results[-1].estimate(Metric(f"label_truth/{key} labels", ""))) for title, key in LABELS.items()]
    content: dict[tuple[str, ...], list[tuple[object, ...]]] = {
        ("Method", *(metric.title for metric in DEMO.metrics), "CPU s", "Passes"): [
            (row.row.title, *map(row.estimate, DEMO.metrics), row.cost("seconds"), row.cost("forward"))
            for row in results
        ],
        ("Compared with", "Measure", "Difference", "95 % interval", "Verdict"): [
            (name, metric.title, f"{d.mean:+.2f}", d.interval, d.verdict) for metric, name, d in differences(results)
        ],
        ("Labels of mixed images", "Error"): list(truth),
    }
    return [
        ResultTable(
            columns=columns,
            rows=tuple(tuple(map(str, row)) for row in rows),
            notes=(note.format(results[-1].cost("map")),),
        )
        for (columns, rows), note in zip(content.items(), NOTES, strict=True)
    ]


def write_demo(
    rows: Sequence[Row], seeds: int, out: Path, command: str, scale: ScaleName
) -> tuple[Path, str, list[ResultTable]]:
    """Write `report.html`, and the files of every experiment, from the finished runs.

    Args:
        rows: The demo's rows.
        seeds: Number of seeds.
        out: Folder of the demo.
        command: What the user typed.
        scale: Scale at which it was run.

    Returns:
        The page, the verdict and the tables.
    """
    results = collect(DEMO, rows, seeds, out)
    sentence, tables = verdict(results), demo_tables(results)
    write_files(DEMO, results, tables, scale=scale, seeds=seeds, folder=out, out=out, command=command)
    scene, recipe = scene_of_run(results[-1].folders[0], out), rows[-1].load(0)
    pairs = draw_gallery(scene, SaliencyGrafting())
    data = load_split(recipe, "train")
    drawn = [result for result in results if not result.row.method.endswith(EQUAL_PASSES)]  # it has more epochs
    page = write_page(
        out / REPORT,
        "demo.html",
        title=DEMO.title,
        verdict=sentence,
        recipe=recipe,
        seeds=seeds,
        tables=tables,
        rows=pairs,
        best_row=most_balanced(pairs),
        data=data,
        strips=class_strips(data),
        curves=[result.curve(result.row.title) for result in drawn],
        runs={
            result.row.title: [path.relative_to(out).as_posix() for path in result.folders.values()]
            for result in results
        },
        explorer=replace(scene, lens=replace(scene.lens, origin="the same network")).explorer(),
        facts={"Command": command, **versions()},
    )
    return page, sentence, tables
