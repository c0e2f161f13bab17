"""`saligraft compare`: finished runs in one table, and on one page."""

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs, or folders that contain them.", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="The page to write; without a suffix, .html is added.")] = Path(
        "runs/compare.html"
    ),
) -> None:
    """Compare finished runs: errors, cost, differences paired by seed, settings that differ, and curves.

    Runs that differ only in seed share a row. Differences are to plain training if it is among the runs, else to the
    first run given.

    Examples:

    [bold]saligraft compare runs/plain runs/mine[/bold]   two runs

    [bold]saligraft compare runs/demo --out demo.html[/bold]   all runs below a folder
    """
    from saligraft.config.recipe_file import RESULT
    from saligraft.io.files import check_place

    check_place("--out", out, folder=False)
    if len({run.resolve() for run in runs}) == 1 and (runs[0] / RESULT).is_file():
        raise ValueError(f"compare needs at least two runs, got only {runs[0]}")

    from rich.console import Console

    from saligraft.experiments.compare import write_compared
    from saligraft.reports.page import typed_command
    from saligraft.reports.tables import print_table

    out = out if out.suffix else out.with_suffix(".html")
    verdict, tables = write_compared(runs, out, typed_command())
    console = Console()
    for table in tables.values():
        print_table(console, table)
    console.print(verdict, style="bold", soft_wrap=not console.is_terminal, highlight=False)
    print(f"Page: {out}")
