"""Plots of a metric against a parameter, as PNG and SVG."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from saligraft.reports.figures import CURVE_COLOURS, GRID_LINE, MUTED
from saligraft.reports.statistics import Estimate

Point = tuple[float, Estimate]


def save_sweep(
    series: Mapping[str, Sequence[Point]], levels: Mapping[str, Estimate], path: Path, *, x_title: str, y_title: str
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
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.name}):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot(xlabel=x_title, ylabel=y_title)
        colours = itertools.cycle(reversed(CURVE_COLOURS[:3]))
        for name, points in series.items():
            x, values = zip(*sorted(points), strict=True)
            errors = [0.0 if value.seeds == 1 else value.standard_error for value in values]
            means = [value.mean for value in values]
            axes.errorbar(x, means, yerr=errors, marker="o", capsize=3, label=name, color=next(colours))
        for (name, level), style in zip(levels.items(), itertools.cycle(("--", ":", "-."))):
            axes.axhline(level.mean, color=MUTED, linestyle=style, label=f"{name} {level}")
        axes.grid(color=GRID_LINE)
        axes.legend(frameon=False)
        files = [path.with_suffix(".png"), path.with_suffix(".svg")]
        figure.savefig(files[0], dpi=150, metadata={"Software": None})
        figure.savefig(files[1], metadata={"Date": None})
    return files
