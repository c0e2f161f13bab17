"""`saligraft show`: a gallery of mixed pairs, or every method on the same pairs, as PNG and as page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from saligraft.data import ImageData
    from saligraft.experiments.show import Lens
    from saligraft.reports.comparison import ComparedPair
    from saligraft.reports.gallery import GalleryRow, Mixer
    from saligraft.reports.page import Section

SIZE_OF_FILES = 160  # pixels of a user's own pictures: their detail stays, and the page stays small
METHOD = "saliency-grafting"
ROWS, ROWS_OF_METHODS = 6, 4
FEWEST_CLASSES = 10  # of a data set that is rendered to order


def show(
    files: Annotated[list[Path] | None, typer.Argument(help="Your own image files, or folders of them.")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(metavar="FILE...", help="The same, as an option: --images a.jpg b.png")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A data set of `saligraft list data`; shapes unless said.")] = None,
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
    chosen = [*(images or []), *(files or [])]
    if chosen and data:
        raise ValueError(f"give image files or --data, not both: got {chosen[0]} and --data {data}")
    if network and run:
        raise ValueError(f"give --network or --run, not both: got --network {network} and --run {run}")
    if rows is not None and rows < 1:
        raise ValueError(f"--rows must be >= 1, got {rows}")
    if methods is None and pictures is not None:
        raise ValueError(f"--pictures must be left out without --methods, got {pictures}")
    if methods is not None:
        _refuse_beside_methods({"--method": method, "--grid": grid, "--temperature": temperature})
        names = _chosen(methods)
    else:
        mixer = build_method(method or METHOD, grid, temperature)
    pool = _pool(chosen, data or "shapes", size, seed)
    lens = _lens(network, run, pool, out, seed)
    if methods is not None:
        from saligraft.experiments.show_methods import ALL, compare

        count = rows or ROWS_OF_METHODS
        pairs = compare(names, lens, pool, count=count, seed=seed, lenient=methods.strip() == ALL)
        written = write_comparison(out, pairs, lens, pool, pictures)
    else:
        from saligraft.experiments.show import draw_gallery

        drawn = draw_gallery(mixer, lens, pool, count=rows or ROWS, seed=seed)
        written = write_gallery(out, method or METHOD, drawn, lens, pool)
    for path in written:
        print(path)


def _chosen(words: str) -> tuple[str, ...]:
    from saligraft.experiments.show_methods import chosen_methods

    return chosen_methods(words)


def _refuse_beside_methods(options: dict[str, object]) -> None:
    for flag, value in options.items():
        if value is not None:
            raise ValueError(f"{flag} must be left out with --methods, which shows each by its defaults, got {value}")


def build_method(name: str, grid: int | None, temperature: float | None) -> "Mixer":
    """The method by name, with the options that were given; one that it does not have is refused."""
    from dataclasses import fields

    from saligraft.checks import one_of
    from saligraft.methods import METHODS

    one_of("method", name, tuple(METHODS))
    given = {"grids": None if grid is None else (grid,), "temperature": temperature}
    options = {option: value for option, value in given.items() if value is not None}
    known = {field.name for field in fields(METHODS[name])}
    for option in options:
        if option not in known:
            flag = "--grid" if option == "grids" else f"--{option}"
            raise ValueError(f"{flag} must be left out for method {name}, which has no {option}")
    build: type = METHODS[name]
    mixer: Mixer = build(**options)
    return mixer


def _pool(files: list[Path], data: str, size: int | None, seed: int) -> "ImageData":
    """The images that pairs are drawn from: the user's files, or test images of a data set."""
    import inspect

    from saligraft.checks import one_of
    from saligraft.data import DATASETS, load
    from saligraft.experiments.show import POOL, choose, read_images

    if size is not None and size < 1:
        raise ValueError(f"--size must be >= 1, got {size}")
    if files:
        return choose(read_images(files, size or SIZE_OF_FILES), POOL, seed)
    one_of("data set", data, tuple(DATASETS))
    wanted = {"size": size, "per_class": -(-POOL // FEWEST_CLASSES)}  # render no more than the pairs are drawn from
    accepted = inspect.signature(DATASETS[data]).parameters
    if size is not None and "size" not in accepted:
        raise ValueError(f"--size must be left out for {data}, whose images have a size of their own, got {size}")
    options: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None and name in accepted}
    return choose(load(data, split="test", **options), POOL, seed)


def _lens(network: str | None, run: Path | None, pool: "ImageData", out: Path, seed: int) -> "Lens":
    from saligraft.experiments.show import network_of_run, quick_network, untrained_network

    if run:
        return network_of_run(run)
    if network:
        return untrained_network(network, pool, seed)
    return quick_network(out / "network")


def _facts_section(lens: "Lens", pool: "ImageData") -> "Section":
    from saligraft.reports import page

    height, width = pool.images.shape[-2:]
    facts = {"Images": f"{len(pool)} of {pool.name}, {height}×{width} pixels", "Saliency": lens.describe()}
    if lens.classes != pool.classes:
        facts["Classes"] = "the network knows others: gradients are those of the class it takes an image for"
    return page.Section(title="How it was made", body=page.facts_html({**facts, **page.versions()}))


def write_comparison(
    out: Path, pairs: "list[ComparedPair]", lens: "Lens", pool: "ImageData", pictures: Path | None = None
) -> list[Path]:
    """Write methods.png and methods.html, and one PNG per method into `pictures`; give back their paths."""
    from html import escape

    from saligraft.experiments.show_methods import purposes
    from saligraft.reports import methods_figure, page
    from saligraft.reports.methods_page import comparison_section

    lead = (
        f"Pairs from <b>{escape(pool.name)}</b>, each given to every method. "
        f"Where a network is asked, it is {escape(lens.describe())}."
    )
    meaning = purposes([method.name for method in pairs[0].methods])
    words = page.Section(title="In words", body=page.facts_html(meaning))
    sections = [comparison_section(pairs), words, _facts_section(lens, pool)]
    html = page.page_html("What each method makes of a pair", lead, sections, kicker="saligraft show")
    written = [methods_figure.save_comparison(pairs, out / "methods.png"), page.write_page(out / "methods.html", html)]
    if pictures is not None:
        shown = [method.name for method in pairs[0].methods if method.samples]
        written += [methods_figure.save_method(pairs, name, pictures / f"{name}.png") for name in shown]
    return written


def write_gallery(out: Path, method: str, rows: "list[GalleryRow]", lens: "Lens", pool: "ImageData") -> list[Path]:
    """Write gallery.png and gallery.html and give back their paths."""
    from html import escape

    from saligraft.reports import figure, page
    from saligraft.reports.gallery import most_telling
    from saligraft.reports.run_report import method_title

    sections = [page.gallery_section(rows, page.gallery_legend(rows), title="The pairs")]
    if rows[0].salient is not None:
        sections.insert(0, page.steps_section(most_telling(rows)))
    sections.append(_facts_section(lens, pool))
    lead = f"Pairs from <b>{escape(pool.name)}</b>."
    if rows[0].source_saliency is not None:
        lead += f" The saliency is that of {escape(lens.describe())}."
    html = page.page_html(f"{method_title(method)}, pair by pair", lead, sections, kicker="saligraft show")
    return [figure.save_gallery(rows, out / "gallery.png"), page.write_page(out / "gallery.html", html)]
