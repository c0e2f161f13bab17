"""`saligraft reproduce`: tables and figures of the paper, with its values beside ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saligraft.cli.show import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from saligraft.experiments.experiment import Experiment, Row, ScaleName

ALL = "all"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Experiments of --list, or all.", show_default=False)
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the experiments, their cost at each scale and what is done in --out.")
    ] = False,
    scale: Annotated[
        Literal["smoke", "laptop", "paper"],
        typer.Option(help="smoke (seconds), laptop (minutes to hours) or paper (GPUs)."),
    ] = "laptop",
    seeds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Seeds, from 0.", show_default="the experiment's own")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at the same time.", show_default="one per core")
    ] = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the data set's files, or of folders such as cifar100, tiny-imagenet and cub.",
            show_default="shapes, or data/NAME",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of runs and results.", show_default="runs/reproduce-SCALE"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Train only these methods; plain training is none.", show_default="all"),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting of every run.")
    ] = None,
    launcher: Annotated[
        Literal["local", "slurm"], typer.Option(help="local processes, or slurm: an array of jobs.")
    ] = "local",
    partition: Annotated[str | None, typer.Option(help="Slurm: partition of the jobs.")] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Slurm: GPUs of each job.", show_default="1")
    ] = None,
    minutes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Slurm: time limit of each job.", show_default="1440")
    ] = None,
) -> None:
    """Run experiments of the paper and write tables and figures with the paper's values beside ours.

    Runs are kept in OUT/runs: finished ones are not trained again, stopped ones resume, and experiments share equal
    runs. OUT/NAME holds table.md, table.csv, the figure, report.html, every result, and the commands of single runs.
    At the scale paper the protocols are followed to the letter; laptop is a smaller version, on shapes unless
    --data-root is given.

    Examples:

    [bold]saligraft reproduce --list[/bold]   all experiments, with their cost

    [bold]saligraft reproduce table-wrn --data-root data/cifar100[/bold]   a small Table 3, on real images

    [bold]saligraft reproduce table-wrn table-tiny --data-root data[/bold]   two data sets, in data/cifar100 and
    data/tiny-imagenet

    [bold]saligraft reproduce table-wrn --methods none,cutmix,saliency-grafting[/bold]   three of its rows

    [bold]saligraft reproduce all --scale smoke[/bold]   everything once, in minutes

    [bold]saligraft reproduce table-wrn --scale paper --launcher slurm --partition gpu[/bold]   on a cluster
    """
    from functools import partial

    from saligraft.experiments.experiment import jobs_of, rows_of
    from saligraft.experiments.paper import EXPERIMENTS, regime
    from saligraft.io.files import check_place
    from saligraft.names import one_of

    for name in names or ():
        one_of("experiment", name, (*EXPERIMENTS, ALL))
    selected = list(EXPERIMENTS) if not names or ALL in names else list(dict.fromkeys(names))
    kept = () if methods is None else tuple(name.strip() for name in methods.split(","))
    for name in selected:
        valid = dict.fromkeys(method for part in EXPERIMENTS[name].parts for method in part.methods)
        for method in kept:
            one_of(f"--methods of {name}", method, tuple(valid))
    out = out or Path("runs") / f"reproduce-{scale}"
    check_place("--out", out, folder=True)
    if scale == "smoke":
        refuse({"--data-root": data_root}, "at the scale smoke, which runs on shapes")
    if launcher == "local":
        refuse({"--partition": partition, "--gpus": gpus, "--minutes": minutes}, "without --launcher slurm")
    rows_at = partial(rows_of, regimes=regime, data_root=data_root, overrides=settings or (), methods=kept)
    if list_all:
        _print_list([EXPERIMENTS[name] for name in selected], rows_at, seeds, scale, out)
        return
    if not names:
        raise ValueError(f"name an experiment, or all; valid: {', '.join(EXPERIMENTS)}")
    rows = {name: rows_at(EXPERIMENTS[name], scale) for name in selected}
    counts = {name: seeds or EXPERIMENTS[name].seeds[scale] for name in selected}
    every = [job for name in selected for job in jobs_of(EXPERIMENTS[name], rows[name], counts[name], out)]

    from rich.console import Console

    from saligraft.experiments.results import write_results
    from saligraft.experiments.runner import (
        Launcher,
        LocalLauncher,
        SlurmLauncher,
        check_data,
        check_failures,
        run_jobs,
    )
    from saligraft.reports.page import typed_command
    from saligraft.reports.tables import print_table

    launch: Launcher = LocalLauncher(processes=jobs)
    if launcher == "slurm":
        options = {"partition": partition, "gpus": gpus, "minutes": minutes, "parallel": jobs}
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        launch = SlurmLauncher(folder=out / "slurm", **chosen)
    check_data(every)  # else every run would fail on its own
    failures = run_jobs(every, launch)
    console = Console()
    for name in selected:
        tables = write_results(
            EXPERIMENTS[name], rows[name], scale=scale, seeds=counts[name], out=out, command=typed_command()
        )
        for table in tables:
            print_table(console, table)
        print(f"{name}: {out / name / 'report.html'}\n")
    check_failures(failures, every)


def _print_list(
    experiments: "list[Experiment]",
    rows_at: "Callable[[Experiment, ScaleName], list[Row]]",
    seeds: int | None,
    scale: "ScaleName",
    out: Path,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from saligraft.experiments.experiment import SCALES, cost_of
    from saligraft.experiments.results import progress_of

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    table.add_column("name", style="cyan", no_wrap=True)
    for column in ("scale", "what it takes"):
        table.add_column(column)
    for experiment in experiments:
        table.add_section()
        table.add_row(experiment.name, "", f"[bold]{experiment.paper}: {experiment.title}[/]")
        for name in SCALES:
            rows, count = rows_at(experiment, name), seeds or experiment.seeds[name]
            cost = cost_of(rows, count)
            if name == "laptop":
                cost += f"; {experiment.time}"
            if name == scale:
                cost += "; [green]done in {}: {} of {}[/]".format(out, *progress_of(experiment, rows, count, out))
            table.add_row("", name, cost)
    table.caption = (
        "Of all runs together; passes are forward + backward passes over the training images, in epochs. Experiments "
        "share equal runs: all of them together take less. Times: real data with --set training.precision=bf16; "
        "half as long again without."
    )
    Console().print(table)
