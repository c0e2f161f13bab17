"""`saligraft explore`: an interactive page of one pair of images, its steps, its labels and the other methods."""

from pathlib import Path
from typing import Annotated

import typer

from saligraft.cli.show import (
    DataOption,
    FilesArgument,
    ImagesOption,
    RootOption,
    checked_paths,
    make_lens,
    make_pool,
)


def explore(
    files: FilesArgument = None,
    images: ImagesOption = None,
    data: DataOption = None,
    root: RootOption = None,
    network: Annotated[str | None, typer.Option(help="Use this network for saliency, as in `saligraft show`.")] = None,
    run: Annotated[Path | None, typer.Option(help="Use the trained network of this run folder for saliency.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Pixels per side of the images: 96 for shapes, 128 for files.")
    ] = None,
    count: Annotated[int, typer.Option(help="Images to choose from.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the images.")] = 0,
    out: Annotated[Path, typer.Option(help="The page to write; without a suffix, .html is added.")] = Path(
        "runs/explore.html"
    ),
) -> None:
    """Write a page on which you choose two images, adjust T, σ, p, grid and scale, and see every step and label change.

    The page is one file that needs no server and no network. Its numbers are those of the library.

    Examples:

    [bold]saligraft explore[/bold]   the built-in shapes, with their true masks beside both labels

    [bold]saligraft explore --images cat.jpg dog.jpg --run runs/mine[/bold]   your images, seen by your network

    [bold]saligraft explore --data cifar100 --root DIR --out cifar.html[/bold]   images of a data set
    """
    from saligraft.io.files import check_place

    paths = checked_paths(images, files, data, root, network, run)
    for flag, value, least in (("--count", count, 2), ("--size", size, 8)):
        if value is not None and value < least:
            raise ValueError(f"{flag} must be >= {least}, got {value}")
    check_place("--out", out, folder=False)
    out = out if out.suffix else out.with_suffix(".html")

    from saligraft.experiments.show import Scene, write_explorer
    from saligraft.reports.explorer import SIDE

    default = SIDE if paths else None if data else 96
    pool = make_pool(paths, data, root, size or default, seed)
    lens = make_lens(network, run, pool, out.parent, seed)
    print(write_explorer(Scene(pool=pool, lens=lens, out=out, rows=count, seed=seed)))
