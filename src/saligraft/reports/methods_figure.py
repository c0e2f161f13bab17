"""The comparison of methods as PNG files: all on one picture, and one picture per method for its card."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from saligraft.reports import tiles
from saligraft.reports.comparison import ComparedPair, MethodSamples, one_method
from saligraft.reports.figure import DESTINATION, INK, MUTED, PAPER, SOURCE, shortened

COLUMNS = 8
TILE, GAP, MARGIN = 1.12, 0.12, 0.12  # inches: a picture, the space between, the rim
HEADER, CAPTION, BETWEEN = 0.30, 0.62, 0.08
LETTERS_OF_A_TILE = 13.5  # bold ones of a heading over one picture
COLOURS_OF_FILE = 256  # a palette of its own keeps the file small; the eye does not see it


class _Tile(NamedTuple):
    """One picture with its label; a heading stands over the first of a group."""

    picture: tiles.Picture
    lines: tuple[tuple[str, str], ...]  # (colour, words)
    share: float | None
    heading: str = ""
    room: int = 1  # pictures that the heading may stretch over


def save_comparison(pairs: Sequence[ComparedPair], path: Path, *, dpi: int = 150) -> Path:
    """Every method on every pair, pair below pair, groups side by side as long as they fit."""
    blocks = [_wrapped([_originals(pair, pair.maps), *_groups(pair)]) for pair in pairs]
    return _save(blocks, path, dpi)


def save_method(pairs: Sequence[ComparedPair], name: str, path: Path, *, dpi: int = 150) -> Path:
    """One method on every pair: source, destination, the maps it saw, and its results; one row per pair."""
    rows: list[list[_Tile]] = []
    for pair, method in zip(pairs, one_method(pairs, name), strict=True):
        row = [*_originals(pair, method.maps), *_results(pair, method)][:COLUMNS]
        rows.append([tile._replace(heading="") for tile in row] if rows else row)
    return _save([rows], path, dpi)


def _groups(pair: ComparedPair) -> list[list[_Tile]]:
    return [_results(pair, method) for method in pair.methods if method.samples]


def _originals(pair: ComparedPair, maps: Sequence[tiles.Picture]) -> list[_Tile]:
    out = [
        _Tile(pair.source, ((SOURCE, pair.source_class),), None, "Source"),
        _Tile(pair.destination, ((DESTINATION, pair.destination_class),), None, "Destination"),
    ]
    words = ("of the source", "of the destination")
    headings = ("Saliency", "")
    for picture, word, heading in zip(maps, words, headings, strict=False):
        out.append(_Tile(picture, ((MUTED, word),), None, heading))
    return out


def _results(pair: ComparedPair, method: MethodSamples) -> list[_Tile]:
    colours = {"source": SOURCE, "destination": DESTINATION}
    out = []
    for place, sample in enumerate(method.samples):
        lines = [(colours[kind], words) for kind, words in pair.in_words(sample)]
        if sample.detail:
            lines.append((MUTED, sample.detail))
        heading = "" if place else method.title
        out.append(_Tile(sample.picture, tuple(lines), pair.shares(sample)[0][2], heading, len(method.samples)))
    return out


def _wrapped(groups: Sequence[list[_Tile]]) -> list[list[_Tile]]:
    """Groups in rows of at most `COLUMNS` pictures, none of them torn apart."""
    rows: list[list[_Tile]] = [[]]
    for group in groups:
        if len(rows[-1]) + len(group) > COLUMNS and rows[-1]:
            rows.append([])
        rows[-1] = rows[-1] + group
    return rows


def _save(blocks: Sequence[Sequence[Sequence[_Tile]]], path: Path, dpi: int) -> Path:
    """Blocks of rows, one below the other, a little apart; a row without any heading needs no room for it."""
    rows = [row for block in blocks for row in block]
    if not any(rows):
        raise ValueError("pairs must hold at least one picture, got none")
    width = 2 * MARGIN + max(map(len, rows)) * (TILE + GAP) - GAP
    tops, top = [], MARGIN
    for block in blocks:
        for row in block:
            top += HEADER if any(tile.heading for tile in row) else 0.0
            tops.append(top)
            top += TILE + CAPTION
        top += BETWEEN
    figure = Figure(figsize=(width, top - BETWEEN + MARGIN), facecolor=PAPER)
    FigureCanvasAgg(figure)
    for row, place in zip(rows, tops, strict=True):
        for column, tile in enumerate(row):
            _draw(figure, tile, MARGIN + column * (TILE + GAP), place)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, facecolor=PAPER)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(buffer) as picture:
        picture.convert("RGB").quantize(COLOURS_OF_FILE, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def _draw(figure: Figure, tile: _Tile, left: float, top: float) -> None:
    """One picture at a place in inches from the upper left corner, heading above, bar and words below."""
    total_width, total_height = figure.get_size_inches()
    place = (left / total_width, 1 - (top + TILE) / total_height, TILE / total_width, TILE / total_height)
    axes: Axes = figure.add_axes(place)
    axes.set_axis_off()
    axes.imshow(tiles.enlarge(tile.picture), interpolation="nearest", aspect="equal")
    line, under = 0.145 / TILE, -0.06 / TILE
    if tile.heading:
        size = 9.5 * min(1.0, LETTERS_OF_A_TILE * tile.room / len(tile.heading))
        axes.text(0, 1.05, tile.heading, transform=axes.transAxes, ha="left", va="bottom", fontsize=size, color=INK,
                  fontweight="bold")  # fmt: skip
    if tile.share is not None:
        _bar(axes, tile.share, under)
        under -= 0.075 / TILE
    for number, (colour, words) in enumerate(tile.lines):
        axes.text(0, under - number * line, shortened(words, 24), transform=axes.transAxes, ha="left", va="top",
                  fontsize=8, color=colour, fontweight="normal" if colour == MUTED else "bold",
                  parse_math=False)  # fmt: skip


def _bar(axes: Axes, share: float, top: float) -> None:
    from matplotlib.patches import Rectangle

    height = 0.05 / TILE
    for left, width, colour in ((0.0, share, SOURCE), (share, 1 - share, DESTINATION)):
        axes.add_patch(
            Rectangle((left, top - height), width, height, transform=axes.transAxes, color=colour, clip_on=False, lw=0)
        )
