"""Figures by matplotlib: pairs and sweeps as files for a README or a slide, and learning curves as SVG for a page."""

import io
import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image, PngImagePlugin

from saligraft.reports import tiles
from saligraft.reports.gallery import ComparedPair, GalleryRow, Label, LabelShare, MethodSamples, Panel
from saligraft.reports.statistics import Estimate

SOFTWARE = "saligraft"  # in the metadata of every PNG, so that it is not taken for a photo
PAPER, INK, MUTED = "#ffffff", "#1d1f24", "#666b76"
KIND_COLOURS = {"source": "#d9590b", "destination": "#1f6fd0", "": MUTED}

# Inches: a picture, the space between pictures, the margin, a heading, a line of text, a bar.
TILE, GAP, MARGIN, HEADER, LINE, BAR = 1.12, 0.12, 0.12, 0.30, 0.145, 0.05
COLUMNS = 8  # pictures side by side in a comparison
LABEL_COLUMN = 2.6  # inches
PALETTE = 256  # colours of a comparison's file: small, without visible loss

# Colours of the page's style sheet, by their values in its light scheme.
NAME_LENGTH = 20  # letters of a line beside a curve
CURVE_COLOURS = ("#6e737f", "#1f6fd0", "#d9590b", "#16906a", "#9a4fd0", "#b08400")
GRID_LINE = "#e4e1db"
VARIABLES = {
    **{colour: f"--curve-{place}" for place, colour in enumerate(CURVE_COLOURS, start=1)},
    MUTED: "--muted",
    GRID_LINE: "--line",
    PAPER: "--card",
}
# Lines to compare with: the first is broad and pale, so that another at the same height shows on it.
LEVEL_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": CURVE_COLOURS[0], "linestyle": "-", "linewidth": 4.0, "alpha": 0.4},
    {"color": CURVE_COLOURS[3], "linestyle": "--", "linewidth": 1.8},
    {"color": CURVE_COLOURS[4], "linestyle": ":", "linewidth": 2.2},
)


def valid_text(text: str) -> str:
    """Escape what UTF-8 cannot encode: a byte of a file name that is not UTF-8 becomes, for example, `\\udce9`.

    Args:
        text: Any text.

    Returns:
        Text that can be encoded.
    """
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, length: int) -> str:
    """Shorten a text that is too long, since a PNG cannot wrap lines.

    Args:
        text: Any text.
        length: Letters that fit.

    Returns:
        The text, or its beginning and its end with an ellipsis between: names of similar classes differ in either.

    Example:
        >>> shortened("slaty backed gull", 11)
        'slaty…gull'
    """
    text = valid_text(text)
    if len(text) <= length:
        return text
    return f"{text[: length // 2].rstrip()}…{text[len(text) - (length - 1) // 2 :].lstrip()}"


def save_gallery(rows: Sequence[GalleryRow], path: Path, *, dpi: int = 200) -> Path:
    """Draw the rows of a gallery, with their labels to the right, as a PNG file.

    Args:
        rows: At least one row.
        path: File to write; missing folders are created.
        dpi: Pixels per inch.

    Returns:
        `path`.
    """
    if not rows:
        raise ValueError("rows must hold at least one row, got none")
    pictures = [[_panel_tile(panel, heading=row is rows[0]) for panel in row.panels()] for row in rows]
    left = MARGIN + len(pictures[0]) * (TILE + GAP)
    sheet = _Sheet([pictures], extra_width=LABEL_COLUMN)
    sheet.text(left, sheet.tops[0] - 0.05, "Label", size=9.5, colour=INK, bold=True, va="bottom")
    for row, top in zip(rows, sheet.tops, strict=True):
        first, apart = {1: (0.30, 0.0), 2: (0.0, 0.58)}.get(len(row.labels), (0.0, 0.46))
        for number, label in enumerate(row.labels):
            sheet.draw_label(row, label, left, top + first + number * apart)
    return sheet.save(path, dpi)


def save_comparison(pairs: Sequence[ComparedPair], path: Path, *, dpi: int = 150) -> Path:
    """Draw every method on every pair as a PNG file: pairs below each other, methods side by side.

    Args:
        pairs: Pairs with at least one picture.
        path: File to write; missing folders are created.
        dpi: Pixels per inch.

    Returns:
        `path`.
    """
    blocks = []
    for pair in pairs:
        groups = [_sample_tiles(pair, method) for method in pair.methods if method.samples]
        blocks.append(_wrapped([_original_tiles(pair, pair.maps), *groups]))
    return _Sheet(blocks).save(path, dpi, colours=PALETTE)


def save_method(pairs: Sequence[ComparedPair], name: str, path: Path, *, dpi: int = 150) -> Path:
    """Draw one method on every pair as a PNG file, one row per pair: the pair, the maps, the results.

    Args:
        pairs: Pairs with at least one picture.
        name: The method's name.
        path: File to write; missing folders are created.
        dpi: Pixels per inch.

    Returns:
        `path`.
    """
    rows: list[list[_Tile]] = []
    for pair in pairs:
        method = next(method for method in pair.methods if method.name == name)
        row = [*_original_tiles(pair, method.maps), *_sample_tiles(pair, method)][:COLUMNS]
        rows.append([tile._replace(heading="") for tile in row] if rows else row)
    return _Sheet([rows]).save(path, dpi, colours=PALETTE)


class _Tile(NamedTuple):
    """One picture with its heading, which may extend over `room` pictures, and the label under it."""

    picture: tiles.Picture
    lines: tuple[tuple[str, str], ...]  # (kind, words)
    share: float | None = None
    heading: str = ""
    room: int = 1


def _panel_tile(panel: Panel, *, heading: bool) -> _Tile:
    return _Tile(panel.picture, ((panel.kind, shortened(panel.detail, 18)),), heading=panel.title if heading else "")


def _original_tiles(pair: ComparedPair, maps: Sequence[tiles.Picture]) -> list[_Tile]:
    return [_panel_tile(panel, heading=place < 3) for place, panel in enumerate(pair.originals(maps))]


def _sample_tiles(pair: ComparedPair, method: MethodSamples) -> list[_Tile]:
    out = []
    for place, sample in enumerate(method.samples):
        shares = pair.shares(sample)
        lines = [(share.kind, _words(share, 11)) for share in shares]
        if sample.detail:
            lines.append(("", shortened(sample.detail, 18)))
        heading = "" if place else method.title
        out.append(_Tile(sample.picture, tuple(lines), shares[0].weight, heading, len(method.samples)))
    return out


def _words(share: LabelShare, letters: int) -> str:
    return f"{shortened(share.name, letters)} {share.percent} %"


def _wrapped(groups: Sequence[list[_Tile]]) -> list[list[_Tile]]:
    """Arrange groups in rows of at most `COLUMNS` pictures, without breaking a group."""
    rows: list[list[_Tile]] = [[]]
    for group in groups:
        if rows[-1] and len(rows[-1]) + len(group) > COLUMNS:
            rows.append([])
        rows[-1] = rows[-1] + group
    return rows


class _Sheet:
    """Rows of tiles on white, in inches from the upper left corner, with a gap between blocks of rows."""

    def __init__(self, blocks: Sequence[Sequence[Sequence[_Tile]]], extra_width: float = 0.0) -> None:
        rows = [row for block in blocks for row in block]
        if not any(rows):
            raise ValueError("pairs must hold at least one picture, got none")
        width = 2 * MARGIN + max(map(len, rows)) * (TILE + GAP) - GAP + extra_width
        self.tops: list[float] = []
        bottom = MARGIN
        for block in blocks:
            for row in block:
                self.tops.append(bottom + HEADER * any(tile.heading for tile in row))
                caption = max(len(tile.lines) + (tile.share is not None) / 2 for tile in row)
                bottom = self.tops[-1] + TILE + 0.06 + LINE * caption + GAP
            bottom += GAP
        height = bottom - GAP
        self.figure = Figure(figsize=(width, height), facecolor=PAPER)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()
        self.renderer: Any = FigureCanvasAgg(self.figure).get_renderer()  # type: ignore[no-untyped-call]
        for row, top in zip(rows, self.tops, strict=True):
            for column, tile in enumerate(row):
                self._draw_tile(tile, MARGIN + column * (TILE + GAP), top)

    def _draw_tile(self, tile: _Tile, left: float, top: float) -> None:
        """Draw one picture with its heading above, its bar and words below."""
        picture = tiles.enlarge(tile.picture)
        height, width = (TILE * side / max(picture.shape[:2]) for side in picture.shape[:2])
        x, y = left + (TILE - width) / 2, top + (TILE - height) / 2
        self.axes.imshow(picture, extent=(x, x + width, y + height, y), interpolation="nearest", aspect="auto")
        if tile.heading:
            room = tile.room * (TILE + GAP) - GAP
            self.text(left, top - 0.05, tile.heading, size=9.5, colour=INK, bold=True, va="bottom", room=room)
        below = top + TILE + 0.06
        if tile.share is not None:
            self._draw_bar(tile.share, left, below, TILE, BAR)
            below += LINE / 2
        for number, (kind, words) in enumerate(tile.lines):
            place = left, below + number * LINE
            self.text(*place, words, size=8, colour=KIND_COLOURS[kind], bold=bool(kind), room=TILE)

    def draw_label(self, row: GalleryRow, label: Label, left: float, top: float) -> None:
        """Draw one label of a gallery's row: what it follows, its shares in words, and a bar."""
        shares = row.shares(label)
        words = " · ".join(_words(share, 14) for share in shares)
        width = LABEL_COLUMN - GAP
        self.text(left, top, label.name, size=8, colour=MUTED, bold=False, room=width)
        self.text(left, top + 0.13, words, size=9.5, colour=INK, bold=label.used, room=width)
        self._draw_bar(shares[0].weight, left, top + 0.31, width, 1.6 * BAR, alpha=1.0 if label.used else 0.45)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float,
        colour: str,
        bold: bool,
        va: str = "top",
        room: float = math.inf,
    ) -> None:
        """Write a text, made smaller if it is wider than its room in inches: bold letters differ too much to count."""
        weight = "bold" if bold else "normal"
        text = self.axes.text(x, y, words, fontsize=size, color=colour, fontweight=weight, va=va, parse_math=False)
        width = text.get_window_extent(self.renderer).width / self.figure.dpi
        if width > room:
            text.set_fontsize(0.95 * size * room / width)  # letters are rounded to whole pixels

    def _draw_bar(self, share: float, left: float, top: float, width: float, height: float, alpha: float = 1.0) -> None:
        parts = (("source", left, share * width), ("destination", left + share * width, (1 - share) * width))
        for kind, start, length in parts:
            self.axes.add_patch(Rectangle((start, top), length, height, color=KIND_COLOURS[kind], alpha=alpha, lw=0))

    def save(self, path: Path, dpi: int, colours: int | None = None) -> Path:
        """Write the sheet as PNG, reduced to a palette if `colours` says how large it may be."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, dpi=dpi)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = PngImagePlugin.PngInfo()
        metadata.add_text("Software", SOFTWARE)
        with Image.open(buffer) as picture:
            shown = picture.convert("RGB")
            if colours is not None:
                shown = shown.quantize(colours, dither=Image.Dither.NONE)
            shown.save(path, optimize=True, pnginfo=metadata)
        return path


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One learning curve.

    Args:
        name: Its name in the drawing.
        runs: One sequence of values per seed, one value per epoch.
    """

    name: str
    runs: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.runs or not self.runs[0]:
            raise ValueError(f"runs of {self.name!r} must hold at least one value, got {self.runs}")
        if len({len(run) for run in self.runs}) > 1:
            raise ValueError(f"runs of {self.name!r} must be equally long, got {[len(run) for run in self.runs]}")

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Mean over seeds, epoch by epoch."""
        return np.asarray(np.mean(self.runs, axis=0))

    @property
    def standard_error(self) -> npt.NDArray[np.float64]:
        """Standard error over seeds, epoch by epoch; zero for a single seed."""
        count = len(self.runs)
        return np.asarray(np.std(self.runs, axis=0, ddof=min(1, count - 1)) / math.sqrt(count))


def curves_svg(curves: Sequence[Curve], unit: str, *, width: int, height: int) -> Markup:
    """Draw learning curves, the mean over seeds with a band of one standard error, as SVG to embed in a page.

    Text stays text, and colours are the style sheet's variables, so one drawing works in light and dark mode.

    Args:
        curves: At least one curve.
        unit: What the vertical axis shows.
        width: Width in CSS pixels; from 600 on, names are written beside the ends of the curves.
        height: Height in CSS pixels.

    Returns:
        The `<svg>` element; the same curves give the same text.
    """
    if not curves:
        raise ValueError("curves must hold at least one curve, got none")
    names_beside = width >= 600
    left, right, top, bottom = 44, 170 if names_beside else 14, 36, 40
    # Each drawing has its own salt, so that the ids of several drawings on a page differ; those of groups are removed.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": f"{width}", "font.size": 13.0}
    with matplotlib.rc_context({**style, "axes.autolimit_mode": "round_numbers", "axes.ymargin": 0.0}):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)  # 72 per inch: one unit is one CSS pixel
        place = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
        axes: Axes = figure.add_axes(place, frameon=False)
        _draw_curves(axes, curves)
        figure.text(4 / width, 1 - 14 / height, unit, color=MUTED)
        figure.text(1 - right / width, 4 / height, "epoch", color=MUTED, ha="right")
        if names_beside:
            _name_ends(axes, curves)
        buffer = io.StringIO()
        hidden: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=hidden)
    svg = buffer.getvalue()
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return Markup(svg)


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, colour in zip(curves, itertools.cycle(CURVE_COLOURS)):
        mean, error = curve.mean, curve.standard_error
        epochs = np.arange(1, len(mean) + 1)
        axes.plot(epochs, mean, color=colour, linewidth=2.5, solid_capstyle="round", clip_on=False)
        axes.plot(epochs[-1:], mean[-1:], "o", color=colour, markersize=8, mec=PAPER, mew=2, clip_on=False)
        if len(curve.runs) > 1:
            axes.fill_between(epochs, mean - error, mean + error, color=colour, alpha=0.16, linewidth=0)
    last = max(len(curve.runs[0]) for curve in curves)
    axes.set_xlim(1, max(last, 2))
    ticks = MaxNLocator(nbins=6, integer=True).tick_values(1, last)
    axes.set_xticks([1, *(tick for tick in ticks if 1 < tick <= last)])
    axes.locator_params(axis="y", nbins=6)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    axes.tick_params(length=0, pad=8, labelcolor=MUTED)
    axes.grid(axis="y", color=GRID_LINE, linewidth=1)
    axes.set_axisbelow(True)


def _name_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write names beside the last points, wrapped, and pushed apart where curves end close together."""
    heights = [float(axes.transData.transform((0, curve.mean[-1]))[1]) for curve in curves]
    names = [textwrap.wrap(curve.name, NAME_LENGTH) or [""] for curve in curves]
    box, line, highest = axes.get_window_extent(), 15.0, math.inf
    order = sorted(range(len(curves)), key=lambda place: -heights[place])
    room = [line * (len(lines) + 1) + 4 for lines in names]
    for rank, place in enumerate(order):
        lowest = box.y0 + 1 + line * len(names[place]) + sum(room[below] for below in order[rank + 1 :])
        above = min(max(heights[place], lowest), highest)
        highest = above - room[place]
        colour = CURVE_COLOURS[place % len(CURVE_COLOURS)]
        look: dict[str, Any] = {"color": colour, "fontweight": "bold", "parse_math": False}
        for number, text in enumerate(names[place]):
            axes.text(box.x1 + 14, above - line * number, text, transform=None, **look)
        value = f"{curves[place].mean[-1]:.1f}"
        axes.text(box.x1 + 14, above - line * len(names[place]), value, transform=None, color=MUTED)


def save_sweep(
    series: Mapping[str, Sequence[tuple[float, Estimate]]],
    levels: Mapping[str, Estimate],
    path: Path,
    *,
    x_title: str,
    y_title: str,
) -> list[Path]:
    """Draw means with bars of one standard error against a parameter, and horizontal lines to compare with.

    Args:
        series: Points by name.
        levels: Values that do not depend on the parameter, by name.
        path: File to write, without suffix; its folder must exist.
        x_title: Horizontal axis.
        y_title: Vertical axis.

    Returns:
        The PNG and the SVG file; the same numbers give the same bytes.
    """
    places = sorted({x for points in series.values() for x, _ in points})
    counts = {value.seeds for points in series.values() for _, value in points} | {v.seeds for v in levels.values()}
    seeds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot(xlabel=x_title, ylabel=y_title)
        title = "one seed" if seeds == "1" else f"mean ± standard error of {seeds} seeds"
        axes.set_title(title, loc="right", fontsize=9, color=MUTED)
        for (name, level), look in zip(levels.items(), itertools.cycle(LEVEL_LOOKS)):
            axes.axhline(level.mean, label=f"{name} {level}", **look)
        colours = itertools.cycle(reversed(CURVE_COLOURS[:3]))
        for place, (name, points) in enumerate(series.items()):
            x, values = zip(*sorted(points), strict=True)
            # Beside each other, so that bars at the same place do not hide each other.
            shift = 0.012 * (places[-1] - places[0]) * (place - (len(series) - 1) / 2)
            errors = [0.0 if value.seeds == 1 else value.standard_error for value in values]
            means = [value.mean for value in values]
            bars: dict[str, Any] = {"yerr": errors, "marker": "o", "capsize": 3}
            axes.errorbar([at + shift for at in x], means, label=name, color=next(colours), **bars)
        if all(float(at).is_integer() for at in places):
            axes.set_xticks(places)
        axes.grid(color=GRID_LINE)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)  # inside, it would hide bars
        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        figure.savefig(files[0], dpi=150, metadata={"Software": SOFTWARE})
        figure.savefig(files[1], metadata={"Date": None})
    return files
