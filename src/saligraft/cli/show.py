"""`saligraft show`: a gallery of mixed pairs, or every method on the same pairs, as PNG and as page."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from saligraft.data import ImageData
    from saligraft.experiments.show import Lens
    from saligraft.reports.gallery import Mixer

SIZE_OF_FILES = 160  # pixels of a user's own pictures: their detail stays, and the page stays small
METHOD = "saliency-grafting"
FEWEST_CLASSES = 10  # of a data set that is rendered to order


def show(
    files: Annotated[list[Path] | None, typer.Argument(help="Your own image files, or folders of them.")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(metavar="FILE...", help="The same, as an option: --images a.jpg b.png")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set of `saligraft list data`, or folder:PATH.", show_default="shapes")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where the files of --data are, if not where it looks.")] = None,
    method: Annotated[str | None, typer.Option(help="A method that mixes batches.", show_default=METHOD)] = None,
    methods: Annotated[
        str | None, typer.Option(help="Several on the same pairs: all, or names with commas between them.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Look through this network, untrained.")] = None,
    run: Annotated[Path | None, typer.Option(help="Look through the trained network of this run folder.")] = None,
    grid: Annotated[int | None, typer.Option(help="Cells a side; otherwise each row draws one of 4 and 8.")] = None,
    temperature: Annotated[float | None, typer.Option(help="T of Eq. 3: smaller selects fewer cells.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels a side of the pictures: 32 of shapes, 160 of files.")] = None,
    rows: Annotated[int | None, typer.Option(help="Pairs to show.", show_default="6; 4 with --methods")] = None,
    seed: Annotated[int, typer.Option(help="Seed of images, pairs and cells.")] = 0,
    pictures: Annotated[Path | None, typer.Option(help="With --methods: a folder for one PNG per method.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for gallery.* or methods.*, PNG and page.")] = Path("runs/show"),
) -> None:
    """Show what a method does to pairs of images, as a picture and as one self-contained page.

    The saliency comes from the network of --run, or from an untrained --network. With neither, a small network is
    first trained on shapes for about half a minute and kept in OUT/network. The page says which.

    Examples:

    [bold]saligraft show[/bold]   six pairs of the built-in shapes

    [bold]saligraft show --images cat.jpg dog.png photos/[/bold]   your own files, classes from folders or names

    [bold]saligraft show --run runs/demo/saliency-grafting/seed-0 --rows 10[/bold]   through a trained network

    [bold]saligraft show --grid 4 --temperature 0.05[/bold]   coarse cells, few of them salient

    [bold]saligraft show --method cutmix --out runs/show-cutmix[/bold]   another method

    [bold]saligraft show --methods all[/bold]   every method on the same pairs, on one page

    [bold]saligraft show --methods cutmix,puzzlemix,saliency-grafting --images photos/[/bold]   some of them, on yours
    """
    from saligraft.experiments.show_pages import Scene, comparison_writer, gallery_writer

    own = [*(images or []), *(files or [])]
    _not_both({"image files": own[0] if own else None, "--data": data})
    if data is None:
        _left_out({"--root": root}, "without --data")
    _not_both({"--network": network, "--run": run})
    _at_least_one({"--rows": rows, "--size": size})
    if methods is None:
        _left_out({"--pictures": pictures}, "without --methods")
        write = gallery_writer(method or METHOD, build_method(method or METHOD, grid, temperature))
    else:
        given = {"--method": method, "--grid": grid, "--temperature": temperature}
        _left_out(given, "with --methods, which shows each by its defaults")
        write = comparison_writer(methods, pictures)
    pool = _own_images(own, size, seed) if own else _test_images(data or "shapes", root, size, seed)
    lens = _lens(network, run, pool, out, seed)
    for path in write(Scene(pool=pool, lens=lens, out=out, rows=rows, seed=seed)):
        print(path)


def _not_both(options: Mapping[str, object]) -> None:
    if all(value is not None for value in options.values()):
        raise ValueError(f"give {' or '.join(options)}, not both: got {' and '.join(map(str, options.values()))}")


def _at_least_one(options: Mapping[str, int | None]) -> None:
    for flag, value in options.items():
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be >= 1, got {value}")


def _left_out(options: Mapping[str, object], why: str) -> None:
    for flag, value in options.items():
        if value is not None:
            raise ValueError(f"{flag} must be left out {why}, got {value}")


def build_method(name: str, grid: int | None, temperature: float | None) -> "Mixer":
    """The method by name, with the options that were given; one that it does not have is refused."""
    from dataclasses import fields

    from saligraft.checks import one_of
    from saligraft.methods import BatchMixer
    from saligraft.methods.registry import methods_of

    mixers = methods_of(BatchMixer)
    one_of("method", name, tuple(mixers))
    given = {"grids": None if grid is None else (grid,), "temperature": temperature}
    options = {option: value for option, value in given.items() if value is not None}
    known = {field.name for field in fields(mixers[name])}
    for option in options:
        if option not in known:
            flag = "--grid" if option == "grids" else f"--{option}"
            raise ValueError(f"{flag} must be left out for method {name}, which has no {option}")
    mixer: Mixer = mixers[name](**options)
    return mixer


def _own_images(files: list[Path], size: int | None, seed: int) -> "ImageData":
    """The user's files, as pairs are drawn from them."""
    from saligraft.experiments.show import POOL, choose, read_images

    return choose(read_images(files, size or SIZE_OF_FILES), POOL, seed)


def _test_images(data: str, root: Path | None, size: int | None, seed: int) -> "ImageData":
    """Test images of a data set, as pairs are drawn from them."""
    import inspect

    from saligraft.data import DATASETS, load, resolve
    from saligraft.experiments.show import POOL, choose

    accepted = inspect.signature(DATASETS[resolve(data, root)[0]]).parameters
    if size is not None and "size" not in accepted:
        raise ValueError(f"--size must be left out for {data}, whose images have a size of their own, got {size}")
    wanted = {"size": size, "per_class": -(-POOL // FEWEST_CLASSES)}  # render no more than the pairs are drawn from
    options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None and name in accepted}
    return choose(load(data, split="test", root=root, **options), POOL, seed)


def _lens(network: str | None, run: Path | None, pool: "ImageData", out: Path, seed: int) -> "Lens":
    from saligraft.experiments.show import network_of_run, quick_network, untrained_network

    if run:
        return network_of_run(run)
    if network:
        return untrained_network(network, pool, seed)
    return quick_network(out / "network")
