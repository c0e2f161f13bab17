"""`saligraft explore`: an interactive page of one pair of images, its steps, its labels and the other methods."""

from pathlib import Path
from typing import Annotated

import typer

from saligraft.cli.show import dataset_images, make_lens, own_images, refuse


def explore(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Your own image files, or folders of them.", exists=True)
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE...", help="The same, as an option: --images a.jpg b.png", exists=True),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set of `saligraft list data`, or folder:PATH.", show_default="shapes")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the files of --data, if not the default one.")] = None,
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
    """Write a page on which you choose two images, move T, σ, p, grid and scale, and see every step and label change.

    The page is one file that needs no server and no network. Its numbers are those of the library.

    Examples:

    [bold]saligraft explore[/bold]   the built-in shapes, whose true masks show which label is right

    [bold]saligraft explore --images cat.jpg dog.jpg --run runs/mine[/bold]   your images, seen by your network

    [bold]saligraft explore --data cifar100 --root DIR --out cifar.html[/bold]   images of a data set
    """
    from saligraft.config.recipe_file import recipe_of_run

    paths = [*(images or []), *(files or [])]
    if paths and data is not None:
        raise ValueError(f"give image files or --data, not both: got {paths[0]} and {data}")
    if network is not None and run is not None:
        raise ValueError(f"give --network or --run, not both: got {network} and {run}")
    if data is None:
        refuse({"--root": root}, "without --data")
    for flag, value, least in (("--count", count, 2), ("--size", size, 8)):
        if value is not None and value < least:
            raise ValueError(f"{flag} must be >= {least}, got {value}")
    if out.is_dir():
        raise ValueError(f"--out must be the file to write, got the folder {out}")
    out = out if out.suffix else out.with_suffix(".html")
    if run is not None:
        recipe_of_run(run)  # mistakes that need no torch to be seen do not wait for it

    from saligraft.experiments.show import Scene, write_explorer
    from saligraft.reports.explorer import SIDE

    if paths:
        pool = own_images(paths, size or SIDE, seed)
    else:
        pool = dataset_images(data or "shapes", root, size if data else size or 96, seed)
    lens = make_lens(network, run, pool, out.parent, seed)
    print(write_explorer(Scene(pool=pool, lens=lens, out=out, rows=count, seed=seed)))
