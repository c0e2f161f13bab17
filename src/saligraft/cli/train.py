"""`saligraft train`: one run from a recipe."""

import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from saligraft.training import Recipe

Outcome = TypeVar("Outcome")

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file, a name of [cyan]saligraft list recipes[/], or a run folder to --resume.",
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="ROW",
        help="A row of the recipe, see [cyan]saligraft list recipes[/], or any method with its default options.",
        show_default="the recipe's own",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one setting; may be repeated. See [cyan]saligraft list settings[/].",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Run folder to write.", show_default="runs/RECIPE-METHOD-seedN"),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Seed.", show_default="the recipe's")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the existing run in the folder.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume the run in the folder; start one if there is none.")
]
BestOfOption = Annotated[
    str | None,
    typer.Option(
        "--best-of", metavar="SECTION.KEY=VALUE,VALUE", help="Train with each value; report the best by test error."
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option("--seeds", metavar="N,N", help="Seeds of --best-of; the best value has the lowest mean error."),
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Measure a few steps and estimate the cost of the run; write nothing.")
]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="First download the data set from its official source, if it is missing.")
]


def train(
    recipe: RecipeArgument,
    method: MethodOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    seed: SeedOption = None,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    best_of: BestOfOption = None,
    seeds: SeedsOption = None,
    plan: PlanOption = False,
    download: DownloadOption = False,
) -> None:
    """Train a recipe and write a run folder.

    The folder holds recipe.toml (complete, can be trained again), metrics.jsonl, result.json, timing.jsonl,
    model.safetensors, report.html and checkpoints/. The same recipe and seed give the same numbers, bit for bit, on the
    same machine and thread count, however often the run was killed and resumed. Ctrl-C, SIGTERM and SIGHUP save a
    checkpoint.

    Examples:

    [bold]saligraft train shapes-wrn-10-2 --method saliency-grafting[/bold]   a row of a bundled recipe

    [bold]saligraft train shapes-wrn-10-2-saliency-grafting[/bold]   the same as a single name

    [bold]saligraft train shapes-wrn-10-2 --seed 1 --set training.epochs=5 --out runs/short[/bold]   a shorter run

    [bold]saligraft train shapes-wrn-10-2 --set method.name=cutmix --set method.options.probability=0.5[/bold]
    another method, with one of its options

    [bold]saligraft train shapes-wrn-10-2 --set method.name=cutout+mixup[/bold]   two methods, one after the other

    [bold]saligraft train runs/short/recipe.toml --out runs/again[/bold]   repeat a run from its own recipe

    [bold]saligraft train runs/short --resume[/bold]   resume a run that was stopped or killed

    [bold]saligraft train cifar100-wrn-28-10 --best-of optimizer.weight_decay=0.0005,0.0001 --seeds 0,1,2[/bold]
    the better of two values over three runs each, as the paper does

    [bold]saligraft train cifar100-wrn-28-10 --plan[/bold]   estimate speed, memory and total time

    [bold]torchrun --nproc-per-node 2 -m saligraft train shapes-wrn-10-2[/bold]   two processes
    """
    from saligraft.config.recipe_file import (
        MARKER,
        OCCUPIED,
        RECIPE,
        find_recipe,
        load_choices,
        load_recipe,
        parse_override,
    )

    source, folder = _run_folder(recipe, method, settings, seed, out) if resume else (Path(recipe), out)
    find_recipe(source)  # fail before the slow torch import
    for setting in settings or ():
        parse_override(setting)
    replaces = overwrite or resume or plan or best_of is not None
    if out is not None and not replaces and all((out / name).is_file() for name in (RECIPE, MARKER)):
        raise ValueError(f"the run folder {out} {OCCUPIED}")
    # Validate before importing the trainer.
    listed = _parse_seeds(seeds, best_of, seed)
    if best_of is None:
        choices = {"": [load_recipe(source, settings or (), seed=seed, method=method)]}
    else:
        _, choices = load_choices(source, best_of, settings or (), listed, method=method)
    chosen, *_ = firsts = [runs[0] for runs in choices.values()]

    from saligraft import training
    from saligraft.names import plural
    from saligraft.reports.run_report import write_run_page
    from saligraft.training.run_folder import read_marker

    if download:
        for name, root in dict.fromkeys((first.data.name, first.data.root) for first in firsts):
            _download(name, root)
    if plan:
        _print_plan(firsts, max(1, len(listed)))
        return
    each = listed or [chosen.seed]
    numbers = f"seed{'s' * (len(each) > 1)}{'-'.join(map(str, each))}"
    folder = folder or Path("runs") / f"{_run_name(source, method, settings or [], chosen)}-{numbers}"
    options: dict[str, Any] = {"overwrite": overwrite, "resume": resume}
    if best_of is not None:
        options |= {"settings": settings or (), "seeds": each, "method": method, "after_run": write_run_page}
        again = [word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")]
        outcome = _until_stopped(partial(training.train_best_of, source, best_of, folder, **options), again)
        if outcome is not None:
            runs = [(value, summary) for value, summaries in outcome.summaries.items() for summary in summaries]
            _print_results({f"{value}, seed {summary['seed']}": summary for value, summary in runs})
            count = plural(len(each), "seed")
            best = f"{outcome.best} ({outcome.errors[outcome.best]:.2f} % top-1 error, mean of {count})"
            print(f"best {outcome.setting}: {best}, selected by test error, so the number is optimistic")
            print("\n".join(f"run folder: {path}" for path in outcome.folders[outcome.best]))
            print(f"all runs:   saligraft compare {shlex.quote(str(folder))}")
        return
    result = _until_stopped(partial(training.train, chosen, folder, **options), ["train", str(folder)])
    if result is not None:
        write_run_page(result)
        _print_results({"": result.summary})
        if data := (read_marker(folder) or {}).get("data"):
            print(f"images:     {data['train']['count']:,} trained on, {data['test']['count']:,} tested on")
        print(f"run folder: {folder}\nreport:     {folder / 'report.html'}")


def _run_name(source: Path, method: str | None, settings: list[str], recipe: "Recipe") -> str:
    """Name a run after its recipe and method, or after data, network and method where overrides change these."""
    from saligraft.config.recipe_file import RECIPE

    name = source.stem
    if source.name == RECIPE:  # of a run
        name = re.sub(r"-seed\d+$", "", source.resolve().parent.name) + "-again"
    overridden = {setting.partition("=")[0].strip() for setting in settings}
    if overridden & {"data.name", "network.name"}:
        name = f"{Path(recipe.data.name.rpartition(':')[2]).resolve().name}-{recipe.network.name}"
        method = recipe.method.name if recipe.method.parts else None
    elif "method.name" in overridden:
        method = recipe.method.name
    return re.sub(r"[^\w.+-]+", "-", "-".join(filter(None, (name, method))))


def _parse_seeds(text: str | None, best_of: str | None, seed: int | None) -> list[int]:
    """The numbers of --seeds, or that of --seed; none without either."""
    if text is None:
        return [] if seed is None else [seed]
    if best_of is None or seed is not None:
        raise ValueError(f"--seeds needs --best-of, and replaces --seed; got {text!r}")
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(f"--seeds must be numbers such as 0,1,2, got {text!r}")
    return [int(number) for number in numbers]


def _until_stopped(call: Callable[[], Outcome], arguments: list[str]) -> Outcome | None:
    """Return the outcome of the call, only in the main process; after a signal print how to resume and exit."""
    from saligraft.training import RunStopped, leave_group

    try:
        outcome = call()
    except RunStopped as stopped:
        if leave_group():
            print(f"saligraft: {stopped}; resume with: {_command(arguments)}", file=sys.stderr)
        raise SystemExit(stopped.exit_code) from None
    finally:
        is_main = leave_group()
    return outcome if is_main else None


def _run_folder(
    recipe: str, method: str | None, settings: list[str] | None, seed: int | None, out: Path | None
) -> tuple[Path, Path | None]:
    """Recipe file and folder of a run to resume: RECIPE may be the folder itself."""
    from saligraft.config.recipe_file import recipe_of_run

    if not Path(recipe).is_dir():
        if not Path(recipe).is_file() and len(Path(recipe).parts) > 1:  # no bundled name has a folder
            start = f"saligraft train RECIPE --out {recipe} --resume"
            raise ValueError(f"no run folder {recipe}; to start one: {start}")
        return Path(recipe), out
    for flag, value in (("--method", method), ("--set", settings), ("--seed", seed), ("--out", out)):
        if value:
            raise ValueError(f"{flag} must be left out when a run folder is resumed, got {value}")
    return recipe_of_run(recipe), Path(recipe)


def _command(arguments: list[str]) -> str:
    """The command that resumes, launched as this run was."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    launcher = "saligraft" if processes == 1 else f"torchrun --nproc-per-node {processes} -m saligraft"
    return f"{launcher} {shlex.join([*arguments, '--resume'])}"


def _print_results(summaries: dict[str, dict[str, Any]]) -> None:
    """Print the errors of one run, or of several by name."""
    from rich.console import Console
    from rich.table import Table

    from saligraft.training.results import LAST_EPOCHS

    kinds = ("best", "last10_mean", "final")
    errors = {"top1_error": "top-1"}
    if any(summary["top5_error"][kind] for summary in summaries.values() for kind in kinds):  # 0 for up to 5 classes
        errors["top5_error"] = "top-5"
    table = Table("error (%)", box=None, pad_edge=False, header_style="bold")
    last = min(LAST_EPOCHS, *(summary["epochs"] for summary in summaries.values()))
    for column in ("best", f"mean of last {last}", "final"):
        table.add_column(column, justify="right")
    for run, summary in summaries.items():
        for name, title in errors.items():
            table.add_row(f"{run}  {title}".strip(), *(f"{summary[name][kind]:.2f}" for kind in kinds))
    Console().print(table)


def _print_plan(recipes: list["Recipe"], seeds: int) -> None:
    """Print the plan of each recipe, and the time of all if there is more than one run."""
    from saligraft.training import SilentReporter, leave_group, make_reporter
    from saligraft.training.accelerator import is_main_process
    from saligraft.training.plan import duration, plan, print_plan

    reporter = make_reporter() if is_main_process() else SilentReporter()
    measured = [plan(recipe, note=reporter.note) for recipe in recipes]
    if not leave_group():
        return
    for recipe, one in zip(recipes, measured, strict=True):
        if len(recipes) > 1:
            print(f"\n{recipe.heading}")
        print_plan(one)
    if len(recipes) > 1:
        total = duration(seeds * sum(one.seconds for one in measured))
        count = f"{len(recipes)} values" + f", {seeds} seeds each" * (seeds > 1)
        print(f"\n{len(recipes) * seeds} runs ({count}): {total}")


def _download(name: str, root: str | None) -> None:
    from saligraft.data.download import download

    download(name, root)
