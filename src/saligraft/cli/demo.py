"""`saligraft demo`: plain training, CutMix and Saliency Grafting side by side, with a page."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and report.html.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(help="Seeds, as far as the minutes allow.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of every training.")] = 18,
    minutes: Annotated[float, typer.Option(help="Time limit; no other seed starts that would exceed it.")] = 4.7,
    per_class: Annotated[int, typer.Option(help="Training images per class, of ten classes.")] = 100,
    network: Annotated[str, typer.Option(help="A network of `saligraft list networks`.")] = "wrn-10-1",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier demo in OUT.")] = False,
) -> None:
    """Train plainly, with CutMix and with Saliency Grafting; print a table and write a page with pictures.

    All take the same number of optimiser steps on the built-in shapes. Trainings run side by side, one on each core.
    A seed that starts is completed for all methods. If time is left, plain training is also given Saliency
    Grafting's time.

    Examples:

    [bold]saligraft demo[/bold]   up to 3 seeds, within 5 minutes on 2 cores

    [bold]saligraft demo --minutes 30 --epochs 60 --out runs/long[/bold]   longer training

    [bold]saligraft demo --seeds 1 --epochs 5 --overwrite[/bold]   a quick look that replaces the last one
    """
    import sys

    from rich.console import Console

    from saligraft.experiments.demo import DemoSettings, run_demo
    from saligraft.experiments.demo_page import result_table, write_demo_page
    from saligraft.reports.tables import terminal_table

    settings = DemoSettings(seeds=seeds, epochs=epochs, minutes=minutes, per_class=per_class, network=network)
    runs = run_demo(out, settings, overwrite=overwrite)
    path = write_demo_page(out, runs, command=" ".join(["saligraft", *sys.argv[1:]]))
    Console().print(terminal_table(result_table(runs)))
    print(f"Page: {path}")
