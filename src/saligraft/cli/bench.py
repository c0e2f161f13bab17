"""`saligraft bench`: what the library costs, side by side with its peers."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SECTION]...",
            help="operations, steps, peers, share, memory, solvers, methods or trainer.",
            show_default="all",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.json and report.html.")] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, only to check that everything runs.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads to compute with.")] = 1,
    data_root: Annotated[
        Path | None, typer.Option(help="Train on CIFAR-100 from this folder; by default on shapes of its size.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Also write the tables between the markers of this Markdown file.")
    ] = None,
) -> None:
    """Count operations and memory, and time the library against its peers, as ratios within one run.

    Takes under ten minutes on two cores. Libraries that are not installed (kornia, timm, OpenCV, gco) are left out.

    Examples:

    [bold]saligraft bench[/bold]   everything, into runs/bench

    [bold]saligraft bench operations memory[/bold]   two sections, exact and fast

    [bold]saligraft bench --write docs/performance.md[/bold]   everything, and update the tables in the docs
    """
    from saligraft.io.files import check_place, write_atomic
    from saligraft.names import BENCH_SECTIONS, one_of

    for section in sections or ():
        one_of("section", section, BENCH_SECTIONS)
    check_place("--out", out, folder=True)

    from saligraft.experiments.bench_page import REPORT, around_markers, markdown, run_bench
    from saligraft.reports.page import typed_command

    if write is not None:
        if sections or quick:
            raise ValueError("--write needs a complete run: leave out --quick and the sections")
        head, tail = around_markers(write)  # a document without markers is refused before the minutes of measuring
    results = run_bench(
        out, sections=sections or (), quick=quick, thread_count=threads, data_root=data_root, command=typed_command()
    )
    if write is not None:
        write_atomic(write, f"{head}\n\n{markdown(results)}\n\n{tail}")
    print(f"Page: {out / REPORT}")
