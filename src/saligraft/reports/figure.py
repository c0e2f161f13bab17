"""The gallery as one PNG through matplotlib, for a README or a slide."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from saligraft.reports.gallery import GalleryRow, Label, panels, valid_text

PAPER, INK, MUTED = "#ffffff", "#1d1f24", "#666b76"
SOURCE, DESTINATION = "#d9590b", "#1f6fd0"
TILE, GAP, LABELS = 1.0, 0.10, 2.55  # inches: a picture, the space between, the column of labels
WORDS_THAT_FIT = 31  # bold letters of the usual size in the column of labels
HEADER, CAPTION, MARGIN = 0.26, 0.25, 0.12


def save_gallery(rows: Sequence[GalleryRow], path: Path, *, dpi: int = 200) -> Path:
    """Draw the rows and write the PNG, with the folders it needs."""
    if not rows:
        raise ValueError("rows must hold at least one row, got none")
    columns = len(panels(rows[0]))
    width = 2 * MARGIN + columns * (TILE + GAP) + LABELS
    height = 2 * MARGIN + HEADER + len(rows) * (TILE + CAPTION + GAP)
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    for number, row in enumerate(rows):
        top = MARGIN + HEADER + number * (TILE + CAPTION + GAP)
        _draw_row(figure, row, top, heading=number == 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, facecolor=PAPER)
    return path


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    place = (left / total_width, 1 - (top + height) / total_height, width / total_width, height / total_height)
    axes: Axes = figure.add_axes(place)
    axes.set_axis_off()
    return axes


def _draw_row(figure: Figure, row: GalleryRow, top: float, *, heading: bool) -> None:
    for place, panel in enumerate(panels(row)):
        axes = _axes(figure, MARGIN + place * (TILE + GAP), top, TILE, TILE)
        axes.imshow(panel.picture, interpolation="nearest", aspect="equal")
        colour = {"source": SOURCE, "destination": DESTINATION}.get(panel.kind, MUTED)
        weight = "bold" if panel.kind else "normal"
        axes.text(0.5, -0.05, shortened(panel.detail, 13), transform=axes.transAxes, ha="center", va="top",
                  fontsize=9.5, color=colour, fontweight=weight, parse_math=False)  # fmt: skip
        if heading:
            axes.text(
                0.5, 1.07, panel.title, transform=axes.transAxes, ha="center", va="bottom", fontsize=10.5, color=INK
            )
    left = MARGIN + len(panels(row)) * (TILE + GAP) + 0.12
    axes = _axes(figure, left, top, LABELS - 0.12, TILE)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    if heading:
        axes.text(0, 1.07, "Label", transform=axes.transAxes, ha="left", va="bottom", fontsize=10.5, color=INK)
    slots = (0.60, 0.06) if len(row.labels) > 1 else (0.33,)
    for label, bottom in zip(row.labels, slots, strict=True):
        _draw_label(axes, row, label, bottom)


def _draw_label(axes: Axes, row: GalleryRow, label: Label, bottom: float) -> None:
    share = 1.0 if row.source_class == row.destination_class else label.source_weight
    strength = 1.0 if label.used else 0.45
    axes.barh(bottom, share, height=0.09, left=0, color=SOURCE, alpha=strength, align="edge")
    axes.barh(bottom, 1 - share, height=0.09, left=share, color=DESTINATION, alpha=strength, align="edge")
    axes.text(0, bottom + 0.29, label.name, fontsize=9, color=MUTED, va="bottom")
    words = _words(row, label)
    size = 10 * min(1.0, WORDS_THAT_FIT / len(words))
    axes.text(0, bottom + 0.13, words, fontsize=size, color=INK, va="bottom",
              fontweight="bold" if label.used else "normal", parse_math=False)  # fmt: skip


def _words(row: GalleryRow, label: Label) -> str:
    short = replace(
        row, source_class=shortened(row.source_class, 14), destination_class=shortened(row.destination_class, 14)
    )
    return short.in_words(label)


def shortened(text: str, length: int) -> str:
    """The text, or its beginning with an ellipsis: a PNG cannot break lines where a name is long."""
    text = valid_text(text)
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
