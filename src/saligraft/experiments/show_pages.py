"""What `saligraft show` writes: a gallery of one method, or several methods on the same pairs, as PNG and as page."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from saligraft.data import ImageData
from saligraft.experiments.show import Lens, draw_gallery
from saligraft.experiments.show_methods import ALL, chosen_methods, compare, purposes
from saligraft.reports import figure, methods_figure, page
from saligraft.reports.comparison import ComparedPair
from saligraft.reports.gallery import GalleryRow, Mixer, most_telling
from saligraft.reports.methods_page import comparison_section
from saligraft.reports.run_report import method_title

ROWS, ROWS_OF_METHODS = 6, 4


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is looked at, through which network, and where the pictures go."""

    pool: ImageData
    lens: Lens
    out: Path
    rows: int | None  # None: as many as suit the page
    seed: int


Writer = Callable[[Scene], list[Path]]


def gallery_writer(method: str, mixer: Mixer) -> Writer:
    """Writes gallery.png and gallery.html of one method and gives back their paths."""

    def write(scene: Scene) -> list[Path]:
        rows = draw_gallery(mixer, scene.lens, scene.pool, count=scene.rows or ROWS, seed=scene.seed)
        html = _gallery_page(method, rows, scene)
        return [figure.save_gallery(rows, scene.out / "gallery.png"), page.write_page(scene.out / "gallery.html", html)]

    return write


def comparison_writer(methods: str, pictures: Path | None) -> Writer:
    """Writes methods.png and methods.html, and one PNG per method into `pictures`, and gives back their paths.

    `methods` is "all", or names with commas between them.
    """
    names, lenient = chosen_methods(methods), methods.strip() == ALL

    def write(scene: Scene) -> list[Path]:
        count = scene.rows or ROWS_OF_METHODS
        pairs = compare(names, scene.lens, scene.pool, count=count, seed=scene.seed, lenient=lenient)
        written = [
            methods_figure.save_comparison(pairs, scene.out / "methods.png"),
            page.write_page(scene.out / "methods.html", _comparison_page(pairs, scene)),
        ]
        if pictures is not None:
            shown = [method.name for method in pairs[0].methods if method.samples]
            written += [methods_figure.save_method(pairs, name, pictures / f"{name}.png") for name in shown]
        return written

    return write


def _gallery_page(method: str, rows: list[GalleryRow], scene: Scene) -> str:
    sections = [page.gallery_section(rows, page.gallery_legend(rows), title="The pairs"), _facts_section(scene)]
    if rows[0].salient is not None:
        sections.insert(0, page.steps_section(most_telling(rows)))
    lead = f"Pairs from <b>{escape(scene.pool.name)}</b>."
    if rows[0].source_saliency is not None:
        lead += f" The saliency is that of {escape(scene.lens.describe())}."
    return page.page_html(f"{method_title(method)}, pair by pair", lead, sections, kicker="saligraft show")


def _comparison_page(pairs: list[ComparedPair], scene: Scene) -> str:
    lead = (
        f"Pairs from <b>{escape(scene.pool.name)}</b>, each given to every method. "
        f"Where a network is asked, it is {escape(scene.lens.describe())}."
    )
    meaning = purposes([method.name for method in pairs[0].methods])
    words = page.Section(title="In words", body=page.facts_html(meaning))
    sections = [comparison_section(pairs), words, _facts_section(scene)]
    return page.page_html("What each method makes of a pair", lead, sections, kicker="saligraft show")


def _facts_section(scene: Scene) -> page.Section:
    pool, lens = scene.pool, scene.lens
    height, width = pool.images.shape[-2:]
    facts = {"Images": f"{len(pool)} of {pool.name}, {height}×{width} pixels", "Saliency": lens.describe()}
    if lens.classes != pool.classes:
        facts["Classes"] = "the network knows others: gradients are those of the class it takes an image for"
    return page.Section(title="How it was made", body=page.facts_html({**facts, **page.versions()}))
