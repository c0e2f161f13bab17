"""What an experiment is: rows × seeds → metrics, at three scales.

A row is a method of the paper's protocol, in one of several cases (a temperature, a number of images). At the scale
`paper` it is trained by the protocol to the letter; at the others, what the row changes is laid over a smaller one.
Equal recipes share one run, whichever experiments ask for them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from saligraft.config.recipe import Recipe
from saligraft.config.recipe_file import (
    PLAIN,
    RESULT,
    TIMING,
    bundled_protocols,
    dump_recipe,
    load_recipe,
    toml_value,
)

if TYPE_CHECKING:
    from saligraft.saliency.base import Passes

ScaleName = Literal["smoke", "laptop", "paper"]
SCALES: tuple[ScaleName, ...] = ("smoke", "laptop", "paper")
GRAFTING = "saliency-grafting"
EQUAL_PASSES = "equal-passes"  # ends the name of such a row's method
MEASURES = "measures.json"
RUNS = "runs"
ROW_SECTIONS = ("method", "network", "training")  # learning rates and weight decay belong to the protocol
PaperValue = tuple[float, ...]  # mean, or mean and standard error


class Metric(NamedTuple):
    """One number of a run.

    Args:
        key: Where the number is stored: "key" or "section/key" of result.json, or of measures.json.
        title: Its heading.
        paper: Field of the protocols' `expected` that holds the paper's value; empty if the paper reports another.
        occlude: Percentage of hidden cells that the expected value must be for.
        higher_is_better: True for accuracies.
    """

    key: str
    title: str
    paper: str = ""
    occlude: float | None = None
    higher_is_better: bool = False


BEST = Metric("top1_error/best", "top-1 error, best epoch", "top1")
LAST = Metric("top1_error/last10_mean", "top-1 error, last 10 epochs")
BEST_TOP5 = Metric("top5_error/best", "top-5 error, best epoch", "top5")
LOSS = Metric("test_loss", "test loss, last epoch")
MEMORISED = Metric("training/top1_error", "top-1 error on the training images")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One condition that methods are trained under.

    Args:
        name: Part of the row's name; empty for the protocol itself.
        title: What differs, for people.
        x: Its place on the horizontal axis of a figure.
        settings: Overrides of the recipe at every scale, "section.key=value".
        paper: Additional overrides at the scale `paper`.
        laptop: Additional overrides at the scale `laptop`.
        smoke: Additional overrides at the scale `smoke`.
        at: Scales at which the case is run.
    """

    name: str = ""
    title: str = ""
    x: float | None = None
    settings: tuple[str, ...] = ()
    paper: tuple[str, ...] = ()
    laptop: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()
    at: tuple[ScaleName, ...] = SCALES

    def overrides(self, scale: ScaleName) -> tuple[str, ...]:
        """All overrides at one scale."""
        return (*self.settings, *{"paper": self.paper, "laptop": self.laptop, "smoke": self.smoke}[scale])


@dataclass(frozen=True, kw_only=True)
class Part:
    """Methods of one protocol, each in every case.

    Args:
        protocol: The paper's protocol, by its bundled name.
        methods: Rows of the protocol.
        cases: Conditions.
        group: Rows of one group are compared with each other; by default those of one case.
        title: Title of the group.
    """

    protocol: str
    methods: tuple[str, ...]
    cases: tuple[Case, ...] = (Case(),)
    group: str | None = None
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How a protocol is run at one scale.

    Args:
        recipe: Bundled protocol with data, network and training.
        settings: Overrides for all rows.
        warmup_epochs: Warm-up epochs that replace the paper's, for rows that have any; None keeps them.
        variants: Settings of which every row is trained with each; the best over seeds counts, as in the paper.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    warmup_epochs: int | None = None
    variants: tuple[str, ...] = ("",)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper.

    Args:
        name: Name on the command line.
        title: What it shows.
        paper: Table or figure of the paper.
        parts: What is trained.
        table: Number of the paper's table, whose values stand beside ours; None for figures.
        metrics: What is reported; the first one decides between variants and is drawn.
        measures: Further measurements of each finished run, by name.
        subject: Row that is compared with all others of its group.
        seeds: Number of seeds at each scale.
        time: What the scale `laptop` takes.
        x_title: Horizontal axis; empty for tables.
        draw: Draws further files from the finished runs: called with the rows' folders of seed 0 and the output folder.
        equal_passes: Methods that are also trained for as many passes as the subject, except at the scale `paper`.
        contrasts: Names of further rows to compare, the first minus the second.
    """

    name: str
    title: str
    paper: str
    parts: tuple[Part, ...]
    table: int | None = None
    metrics: tuple[Metric, ...] = (BEST, LAST, BEST_TOP5)
    measures: tuple[str, ...] = ()
    subject: str = GRAFTING
    seeds: Mapping[ScaleName, int] = field(default_factory=lambda: {"smoke": 2, "laptop": 3, "paper": 3})
    time: str = ""
    x_title: str = ""
    draw: Callable[[Mapping[str, Path], Path], list[Path]] | None = None
    equal_passes: tuple[str, ...] = (PLAIN,)
    contrasts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table or point of a figure, at one scale.

    Args:
        name: Unique within the experiment.
        title: Title shown to readers.
        method: Row of the paper's protocol.
        recipe: Bundled recipe to start from.
        row: Row of that recipe, or None for the recipe itself.
        settings: Overrides.
        group: Rows of one group are compared with each other.
        group_title: Title of the group shown to readers.
        x: Place in a figure; None for a level to compare with.
        variants: Settings of which each is trained.
        expected: The paper's values by metric.
        quoted: Source that the paper quotes for them, if any.
    """

    name: str
    title: str
    method: str
    recipe: str
    row: str | None
    settings: tuple[str, ...]
    group: str
    group_title: str
    x: float | None
    variants: tuple[str, ...]
    expected: Mapping[str, PaperValue]
    quoted: str

    def load(self, seed: int, variant: str = "") -> Recipe:
        """Load the recipe of one run, untitled, so that experiments share it."""
        try:
            recipe = _load(self.recipe, self.row, (*self.settings, *filter(None, [variant])))
        except ValueError as error:
            raise ValueError(f"{self.title}: {error}") from error
        return recipe.model_copy(update={"seed": seed})

    def command(self, seed: int, variant: str, folder: Path) -> list[str]:
        """The words of the command that trains one run."""
        settings = [word for text in (*self.settings, variant) if text for word in ("--set", text)]
        method = [] if self.row is None else ["--method", self.row]
        return ["saligraft", "train", self.recipe, *method, *settings, "--seed", str(seed), "--out", str(folder)]


@cache
def _load(name: str, row: str | None, settings: tuple[str, ...]) -> Recipe:
    recipe = load_recipe(name, settings, method=row)
    return recipe.model_copy(update={"title": "", "paper": ""})


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: what to train, where, and what to measure then.

    Args:
        recipe: What to train.
        folder: Its run folder.
        measures: Measurements of the trained network, by name.
        label: Label in progress lines.
    """

    recipe: Recipe
    folder: Path
    measures: tuple[str, ...]
    label: str

    @property
    def trained(self) -> bool:
        """Whether training is finished; a run with a damaged result is not, and is resumed."""
        return bool(read_result(self.folder))

    @property
    def missing(self) -> tuple[str, ...]:
        """Measurements to be done."""
        return tuple(name for name in self.measures if name not in read_measures(self.folder))

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.trained and not self.missing


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file; empty if there is none or it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_result(folder: Path) -> dict[str, Any]:
    """Read the result of a run; empty if there is none or it is damaged."""
    result = read_json(folder / RESULT)
    errors = result.get("top1_error")
    return result if isinstance(errors, dict) and isinstance(errors.get("best"), float | int) else {}


def read_measures(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the measurements of a run, by name, except damaged ones."""
    return {name: values for name, values in read_json(folder / MEASURES).items() if isinstance(values, dict)}


def rows_of(
    experiment: Experiment,
    scale: ScaleName,
    regimes: Callable[[str, ScaleName, bool], Regime],
    data_root: Path | None,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Row]:
    """List the rows of an experiment at one scale.

    Args:
        experiment: The declaration.
        scale: Its size.
        regimes: Maps protocol, scale and whether real data are at hand to a regime.
        data_root: Folder of the data set's files, or of such folders by the data sets' names; None for `shapes` at the
            scale `laptop`, as always at `smoke`.
        overrides: Settings for all rows, "section.key=value".
        methods: Methods whose rows are kept, those of equal passes too; all, if empty.
    """
    rows = []
    set_by_user = {text.partition("=")[0].strip() for text in overrides}
    for part in experiment.parts:
        regime = regimes(part.protocol, scale, data_root is not None)
        if any(variant.partition("=")[0] in set_by_user for variant in regime.variants):
            regime = replace(regime, variants=("",))  # the user has chosen
        last = (*_root_settings(regime, data_root), *overrides)
        for case in (case for case in part.cases if scale in case.at):
            _check_overrides(overrides, case.overrides(scale), experiment.name)
            rows += [_row(experiment, part, case, method, scale, regime, last) for method in part.methods]
    for group in dict.fromkeys(row.group for row in rows) if scale != "paper" else ():
        members = {row.method: row for row in reversed(rows) if row.group == group}  # the first of each method
        for method in experiment.equal_passes:
            if {method, experiment.subject} <= members.keys():
                epochs = passes_of(members[experiment.subject].load(0)).forward
                rows.insert(rows.index(members[method]) + 1, _equal_passes(members[method], epochs))
    return [row for row in rows if not methods or row.method.removesuffix(f"-{EQUAL_PASSES}") in methods]


def _check_overrides(overrides: Sequence[str], own: Sequence[str], name: str) -> None:
    """Refuse overrides that would make rows equal whose titles say that they differ."""
    for key in (text.partition("=")[0].strip() for text in overrides):
        if key == "seed":
            raise ValueError("--set seed must be left out: --seeds N trains the seeds 0 to N - 1")
        if key in {text.partition("=")[0] for text in own}:
            raise ValueError(f"--set {key} must be left out: {name} sets it in its rows")


def _root_settings(regime: Regime, data_root: Path | None) -> tuple[str, ...]:
    name = _load(regime.recipe, None, regime.settings).data.name
    if data_root is None or name == "shapes":
        return ()
    own = data_root / name
    return (f"data.root={own if own.is_dir() else data_root}",)


def _row(
    experiment: Experiment,
    part: Part,
    case: Case,
    method: str,
    scale: ScaleName,
    regime: Regime,
    last: tuple[str, ...],
) -> Row:
    protocol = bundled_protocols()[part.protocol]
    title = protocol[method]["title"].removeprefix(f"{protocol[PLAIN]['title'].rpartition(', ')[0]}, ")
    title = title[:1].upper() + title[1:]
    exact = scale == "paper"
    own = () if exact else row_settings(part.protocol, method, regime.warmup_epochs)
    compared = bool(experiment.x_title) or part.group is not None  # cases with each other, not only methods in a case
    expected = _expected(experiment, case, protocol[method].get("expected", []))
    data = _load(regime.recipe, None, regime.settings).data.name
    stand_in = f" (here {data})" if part.title and data != _load(part.protocol, None, ()).data.name else ""
    return Row(
        name="-".join(filter(None, (part.group, method, case.name))),
        title=f"{title}, {case.title}" if compared and case.title else title,
        method=method,
        recipe=regime.recipe,
        row=method if exact and method != PLAIN else None,
        settings=(*own, *regime.settings, *case.overrides(scale), *last),
        group=part.group or ("" if compared else case.name),
        group_title=f"{part.title}{stand_in}" or ("" if compared else case.title),
        x=case.x,
        variants=regime.variants,
        expected={key: value for key, (value, _) in expected.items()},
        quoted=next((quoted for _, quoted in expected.values() if quoted), ""),
    )


def _equal_passes(row: Row, epochs: int) -> Row:
    return replace(
        row,
        name=f"{row.name}-{EQUAL_PASSES}",
        title=f"{row.title}, equal passes",
        method=f"{row.method}-{EQUAL_PASSES}",
        settings=(*row.settings, f"training.epochs={epochs}"),
        expected={},
    )


def row_settings(protocol: str, method: str, warmup_epochs: int | None) -> tuple[str, ...]:
    """List what a row changes in its protocol, as overrides that another protocol takes.

    Args:
        protocol: Bundled protocol.
        method: Its row.
        warmup_epochs: Warm-up epochs that replace the row's own, if it has any.

    Example:
        >>> row_settings("cifar100-wrn-28-10", "saliency-grafting-cam", 2)[0]
        'method.name="saliency-grafting"'
    """
    rows = bundled_protocols()[protocol]
    settings: list[str] = []
    for section in ROW_SECTIONS:
        settings += _changes(section, rows[method].get(section, {}), rows[PLAIN].get(section, {}))
    warmup = "training.warmup_epochs="
    if warmup_epochs is not None and any(text.startswith(warmup) for text in settings):
        settings = [text for text in settings if not text.startswith(warmup)] + [f"{warmup}{warmup_epochs}"]
    return tuple(settings)


def _changes(path: str, table: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = base.get(key)
            yield from _changes(f"{path}.{key}", value, inner if isinstance(inner, Mapping) else {})
        elif base.get(key) != value:
            yield f"{path}.{key}={toml_value(value)}"


def _expected(
    experiment: Experiment, case: Case, entries: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[PaperValue, str]]:
    """The paper's value of each metric, and whom it quotes."""
    expected = {}
    for entry in entries:
        condition = entry.get("set")
        if experiment.table is None or entry.get("table") != experiment.table:
            continue
        if condition is not None and condition not in (*case.settings, *case.paper):
            continue
        for metric in experiment.metrics:
            if metric.paper in entry and entry.get("occlude") == metric.occlude:
                expected[metric.key] = (tuple(entry[metric.paper]), str(entry.get("quoted", "")))
    return expected


def passes_of(recipe: Recipe) -> "Passes":
    """Count a run's forward and backward passes over the training images, in epochs of plain training.

    Args:
        recipe: The run.

    Example:
        >>> passes_of(load_recipe("shapes-wrn-10-2-saliency-grafting", ["training.epochs=10"]))  # 3 epochs of warm-up
        Passes(forward=17, backward=17)
    """
    from saligraft.saliency.base import Passes

    training = recipe.training
    forward, backward = recipe.passes_per_step or Passes(1, 1)  # unknown where each batch draws its method
    mixing = training.epochs - training.warmup_epochs
    return Passes(training.warmup_epochs + mixing * forward, training.warmup_epochs + mixing * backward)


def jobs_of(experiment: Experiment, rows: Sequence[Row], seeds: int, out: Path) -> list[Job]:
    """List the runs of an experiment, seed by seed, so that what is finished can be compared.

    Args:
        experiment: What is measured in each.
        rows: What is trained.
        seeds: Number of seeds, from 0.
        out: Folder that holds the folder of runs.
    """
    return [
        Job(
            recipe=row.load(seed, variant),
            folder=run_folder(row.load(seed, variant), out),
            measures=("run", *experiment.measures),
            label=f"{experiment.name} · {' · '.join(filter(None, (row.title, variant)))} · seed {seed}",
        )
        for seed in range(seeds)
        for row in rows
        for variant in row.variants
    ]


def cost_of(rows: Sequence[Row], seeds: int) -> str:
    """Say what all runs of an experiment take: their number, epochs and passes.

    Args:
        rows: Its rows at one scale.
        seeds: Number of seeds.
    """
    runs = epochs = forward = backward = 0
    for row in rows:
        recipe, count = row.load(0, row.variants[0]), seeds * len(row.variants)
        passes = passes_of(recipe)
        runs, epochs = runs + count, epochs + count * recipe.training.epochs
        forward, backward = forward + count * passes.forward, backward + count * passes.backward
    return f"{runs:,} run{'s' * (runs > 1)}, {epochs:,} epoch{'s' * (epochs != 1)}, {forward:,} + {backward:,} passes"


def run_folder(recipe: Recipe, out: Path) -> Path:
    """Return the folder of a run, which its recipe alone decides, wherever the data are.

    Args:
        recipe: The run.
        out: Folder that holds the folder of runs.
    """
    text = dump_recipe(recipe.without_root.model_copy(update={"seed": 0}))
    name = f"{recipe.data.name}-{recipe.network.name}-{recipe.method.name}".replace("+", "-").replace(":", "-")
    return out / RUNS / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" / f"seed-{recipe.seed}"


def training_seconds(folder: Path) -> float:
    """Sum the CPU seconds of a run's training, without its tests."""
    seconds = 0.0
    for number, line in enumerate((folder / TIMING).read_bytes().splitlines(), start=1):
        try:
            seconds += float(json.loads(line).get("cpu_seconds", 0.0))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder / TIMING} is damaged in line {number}: correct or delete that line") from error
    return seconds
