"""`saligraft compare`: finished runs in one table, and on one page."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs, or folders that hold some.", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="The page to write; without a suffix, .html is added.")] = Path(
        "runs/compare.html"
    ),
) -> None:
    """Compare finished runs: errors, cost, differences paired by seed, settings that differ, and curves.

    Runs that differ in their seed alone are one row. Differences are to the first run given.

    Examples:

    [bold]saligraft compare runs/plain runs/mine[/bold]   two runs

    [bold]saligraft compare runs/demo --out demo.html[/bold]   all runs below a folder
    """
    from rich.console import Console

    from saligraft.experiments.compare import write_compared
    from saligraft.reports.tables import markdown_table, terminal_table

    if out.is_dir():
        raise ValueError(f"--out must be the file to write, got the folder {out}")
    out = out if out.suffix else out.with_suffix(".html")
    tables = write_compared(runs, out, " ".join(["saligraft", *sys.argv[1:]]))
    console = Console()
    for table in tables.values():
        if console.is_terminal:
            console.print(terminal_table(table), "")
        else:  # a file or pipe has no width to fit
            print(markdown_table(table))
    print(f"Page: {out}")
