"""`saligraft show`: a gallery of mixed pairs, or several methods on the same pairs, as PNG and as page."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from saligraft.data import ImageData
    from saligraft.experiments.show import Lens
    from saligraft.reports.gallery import Mixer

SIZE_OF_FILES = 160  # pixels per side of a user's own images: keeps detail and a small page
METHOD = "saliency-grafting"
FEWEST_CLASSES = 10  # of a data set that is rendered on demand

FilesArgument = Annotated[
    list[Path] | None, typer.Argument(help="Your own image files, or folders of them.", exists=True)
]
ImagesOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE...", help="The same, as an option: --images a.jpg b.png", exists=True),
]
DataOption = Annotated[
    str | None, typer.Option(help="A data set of `saligraft list data`, or folder:PATH.", show_default="shapes")
]
RootOption = Annotated[Path | None, typer.Option(help="Folder of the files of --data, if not the default one.")]


def show(
    files: FilesArgument = None,
    images: ImagesOption = None,
    data: DataOption = None,
    root: RootOption = None,
    method: Annotated[str | None, typer.Option(help="A method that mixes batches.", show_default=METHOD)] = None,
    methods: Annotated[
        str | None, typer.Option(help="Several methods on the same pairs: all, or names separated by commas.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Saliency by timm:NAME or torchvision:NAME, pretrained, or by another network, untrained."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Saliency by the trained network of this run folder.")] = None,
    grid: Annotated[int | None, typer.Option(help="Cells per side; by default each row draws 4 or 8.")] = None,
    temperature: Annotated[float | None, typer.Option(help="T of Eq. 3: smaller selects fewer cells.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Pixels per side of the images: 32 for shapes, 160 for files.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Pairs to show.", show_default="6; 4 with --methods")] = None,
    seed: Annotated[int, typer.Option(help="Seed of images, pairs and cells.")] = 0,
    pictures: Annotated[Path | None, typer.Option(help="With --methods: folder for one PNG per method.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for gallery.* or methods.*, as PNG and page.")] = Path("runs/show"),
) -> None:
    """Show what a method does to pairs of images, as a picture and as a self-contained page.

    Saliency comes from the trained network of --run, or from --network: timm's and torchvision's have pretrained
    weights, downloaded on first use. With neither, a small network is trained on shapes once, for about half a minute,
    and kept in the cache; it has never seen a photo. The page says which.

    Examples:

    [bold]saligraft show[/bold]   six pairs of the built-in shapes

    [bold]saligraft show --images cat.jpg dog.png photos/[/bold]   your own files, classes from names or folders

    [bold]saligraft show --images photos/ --network timm:resnet18[/bold]   with a network that was trained on photos

    [bold]saligraft show --run runs/mine --rows 10[/bold]   with a trained network

    [bold]saligraft show --grid 4 --temperature 0.05[/bold]   coarse cells, few of them salient

    [bold]saligraft show --method cutmix --out runs/show-cutmix[/bold]   another method

    [bold]saligraft show --methods all[/bold]   every method on the same pairs, on one page

    [bold]saligraft show --methods cutmix,puzzlemix,saliency-grafting --images photos/[/bold]   some, on your files
    """
    from saligraft.io.files import check_place
    from saligraft.names import METHODS, TOP_K, one_of

    paths = checked_paths(images, files, data, root, network, run)
    check_place("--out", out, folder=True)
    for flag, value in (("--rows", rows), ("--size", size)):
        if value is not None and value < 1:
            raise ValueError(f"{flag} must be >= 1, got {value}")
    if method is not None:
        one_of("method", method, METHODS["batch mixers"])
    for name in (methods or "").strip(", ").split(",") if methods is not None else ():
        one_of("methods", name.strip(), ("all", *(name for kind in METHODS.values() for name in kind), TOP_K))

    from saligraft.experiments.show import Scene, write_gallery
    from saligraft.experiments.show_methods import chosen_methods, write_comparison

    if methods is None:
        refuse({"--pictures": pictures}, "without --methods")
        mixer = _build_method(method or METHOD, grid, temperature)
    else:
        options = {"--method": method, "--grid": grid, "--temperature": temperature}
        refuse(options, "with --methods, which shows each method with its defaults")
        chosen_methods(methods)  # fail on a wrong name before a network is trained
    pool = make_pool(paths, data, root, size, seed)
    scene = Scene(pool=pool, lens=make_lens(network, run, pool, out, seed), out=out, rows=rows, seed=seed)
    if methods is None:
        written = write_gallery(scene, method or METHOD, mixer)
    else:
        written = write_comparison(scene, methods, pictures)
    for path in written:
        print(path)


def checked_paths(
    images: list[Path] | None,
    files: list[Path] | None,
    data: str | None,
    root: Path | None,
    network: str | None,
    run: Path | None,
) -> list[Path]:
    """Join the image files of the option and of the arguments; refuse options that exclude each other.

    Called before the slow import of torch.

    Args:
        images: Value of --images.
        files: The arguments.
        data: Value of --data.
        root: Value of --root.
        network: Value of --network.
        run: Value of --run.
    """
    from saligraft.config.recipe_file import recipe_of_run
    from saligraft.import_path import is_import_path
    from saligraft.names import network_form

    paths = [*(images or []), *(files or [])]
    if paths and data is not None:
        raise ValueError(f"give image files or --data, not both: got {paths[0]} and {data}")
    if len({path.resolve() for path in paths}) == 1 and paths[0].is_file():
        raise ValueError(f"name at least 2 image files, or a folder of them, got {paths[0]}")
    if network is not None and run is not None:
        raise ValueError(f"give --network or --run, not both: got {network} and {run}")
    if data is None:
        refuse({"--root": root}, "without --data")
    if run is not None:
        recipe_of_run(run)
    if network is not None and not is_import_path(network):
        network_form(network)
    return paths


def refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse options that have no effect here.

    Args:
        options: Value of each flag; None if it was left out.
        why: When the flags must be left out.
    """
    for flag, value in options.items():
        if value is not None:
            raise ValueError(f"{flag} must be left out {why}, got {value}")


def _build_method(name: str, grid: int | None, temperature: float | None) -> "Mixer":
    """Build a batch mixer; options that it does not have are refused."""
    from dataclasses import fields

    from saligraft.methods.registry import REGISTRY

    mixer_class = REGISTRY[name].method
    options: dict[str, Any] = {} if grid is None else {"grids": (grid,)}
    if temperature is not None:
        options["temperature"] = temperature
    for option in options.keys() - {field.name for field in fields(mixer_class)}:
        flag = "--grid" if option == "grids" else "--temperature"
        raise ValueError(f"{flag} must be left out for method {name}, which has no {option}")
    mixer: Mixer = mixer_class(**options)
    return mixer


def make_pool(paths: list[Path], data: str | None, root: Path | None, size: int | None, seed: int) -> "ImageData":
    """Load the images that pairs are drawn from: the user's files, or test images of a data set.

    Args:
        paths: Image files, or folders of them; empty for a data set.
        data: Name of the data set; None for `shapes`.
        root: Folder of its files; None for the default.
        size: Pixels per side; None for the default of files, or the data set's own.
        seed: Seed of the choice, if there are many.
    """
    import inspect

    from saligraft.data import DATASETS, load, resolve
    from saligraft.experiments.show import POOL, choose, read_images

    if paths:
        return choose(read_images(paths, size or SIZE_OF_FILES), POOL, seed)
    data = data or "shapes"
    accepted = inspect.signature(DATASETS[resolve(data, root)[0]]).parameters
    if size is not None and "size" not in accepted:
        raise ValueError(f"--size must be left out for {data}, whose images have a fixed size, got {size}")
    wanted = {"size": size, "per_class": -(-POOL // FEWEST_CLASSES)}  # render only as many images as are used
    options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None and name in accepted}
    return choose(load(data, split="test", root=root, **options), POOL, seed)


def make_lens(network: str | None, run: Path | None, pool: "ImageData", out: Path, seed: int) -> "Lens":
    """Build the network that gives the saliency.

    Args:
        network: Name of a network, or None.
        run: Folder of a trained run, or None.
        pool: Images that are shown.
        out: Folder for the small network that is trained if there is neither.
        seed: Seed of an untrained network.
    """
    import sys

    from saligraft.experiments.show import network_of_run, pretrained_network, quick_network, untrained_network

    if run:
        return network_of_run(run)
    if network and network.startswith(("timm:", "torchvision:")):
        return pretrained_network(network)
    if network:
        lens = untrained_network(network, pool, seed)
        print(f"Saliency comes from {lens.origin}.", file=sys.stderr)
        return lens
    if pool.name != "shapes":
        print("Saliency comes from a small network trained on shapes.", file=sys.stderr)
        print("For one trained on photos: --network timm:resnet18, or --run RUN.", file=sys.stderr)
    return quick_network(out / "network")
