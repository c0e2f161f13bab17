"""`saligraft demo`: plain training, CutMix and Saliency Grafting side by side, with a page."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the runs and report.html.")] = Path("runs/demo"),
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="Seeds, from 0.", show_default="2")] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs at the same time.", show_default="one per core")
    ] = None,
    scale: Annotated[
        Literal["smoke", "laptop"], typer.Option(help="laptop (5 minutes on 2 cores) or smoke (seconds).")
    ] = "laptop",
) -> None:
    """Train plainly, with CutMix and with Saliency Grafting; print what differs and write a page with pictures.

    A small network on the built-in shapes, over paired seeds; plain training also gets as many passes as Saliency
    Grafting makes. Also reports the error with the most salient cells hidden, how accurate the labels are, and the
    cost. Finished runs are kept in OUT: the same command resumes after Ctrl-C, and a new --out starts over.

    Examples:

    [bold]saligraft demo[/bold]   2 seeds, about 5 minutes on 2 idle cores

    [bold]saligraft demo --seeds 5[/bold]   three more seeds, for narrower intervals

    [bold]saligraft demo --scale smoke --out runs/smoke[/bold]   only to check that it runs
    """
    from functools import partial

    from rich.console import Console

    from saligraft.experiments.demo import DEMO, SECONDS_PER_PASS, demo_jobs, demo_rows, work, write_demo
    from saligraft.experiments.experiment import passes_of
    from saligraft.experiments.runner import LocalLauncher, check_failures, run_jobs, worker_count
    from saligraft.io.files import check_place
    from saligraft.names import plural
    from saligraft.reports.page import typed_command
    from saligraft.reports.tables import print_table

    check_place("--out", out, folder=True)
    say = partial(print, flush=True)  # so that a file or pipe receives each line at once
    rows, count = demo_rows(scale), seeds or DEMO.seeds[scale]
    every = demo_jobs(rows, count, out)
    workers = min(jobs or worker_count(), len(every))
    seconds = SECONDS_PER_PASS * sum(passes_of(job.recipe).forward for job in every if not job.done) / workers
    if seconds:
        length = "Less than a minute" if seconds < 45 else f"About {plural(round(seconds / 60), 'minute')}"
        say(f"Training plainly, with CutMix and with Saliency Grafting, {plural(count, 'seed')} each.")
        say(f"{length} on {plural(workers, 'idle core')}; after Ctrl-C, the same command resumes.")
    else:
        say(f"Finished before: reporting the runs in {out}. Another --out starts over.")
    check_failures(run_jobs(every, LocalLauncher(processes=jobs, work=work), say), every)
    page, verdict, tables = write_demo(rows, count, out, typed_command(), scale)
    console = Console()
    for table in tables:
        print_table(console, table)
    console.print(verdict, style="bold", soft_wrap=not console.is_terminal, highlight=False)
    print(f"Page: {page}")
    if seeds is None:
        print(f"For narrower intervals, with these runs kept: {typed_command()} --seeds 5")
