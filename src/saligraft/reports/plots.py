"""Learning curves as inline SVG: the mean over seeds with a band, coloured by the page's own style sheet.

Colours come from CSS variables (`--curve-1` …), so that one drawing serves light and dark; text is real text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean, stdev

COLOURS = 6  # --curve-1 … --curve-6 in page.css


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line: `runs` holds one sequence of values per seed, one value per epoch."""

    name: str
    runs: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.runs or not self.runs[0]:
            raise ValueError(f"runs of {self.name!r} must hold at least one value, got {self.runs}")
        if len({len(run) for run in self.runs}) > 1:
            raise ValueError(f"runs of {self.name!r} must be equally long, got {[len(run) for run in self.runs]}")

    def mean(self) -> list[float]:
        """The mean over seeds, epoch by epoch."""
        return [fmean(values) for values in zip(*self.runs, strict=True)]

    def standard_error(self) -> list[float]:
        """The standard error over seeds, epoch by epoch; zero for a single seed."""
        count = len(self.runs)
        if count == 1:
            return [0.0] * len(self.runs[0])
        return [stdev(values) / math.sqrt(count) for values in zip(*self.runs, strict=True)]


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where values land: the size of the drawing, its margins, and the ranges of both axes."""

    width: int
    height: int
    left: int
    right: int
    epochs: int
    low: float
    high: float
    top: int = 36
    bottom: int = 40

    def x(self, epoch: float) -> float:
        span = max(self.epochs - 1, 1)
        return self.left + (epoch - 1) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        return self.top + (self.high - value) / (self.high - self.low) * (self.height - self.top - self.bottom)


def learning_curves(curves: Sequence[Curve], *, unit: str = "test error (%)") -> str:
    """The curves twice, for wide and for narrow screens; the style sheet shows the one that fits."""
    if not curves:
        raise ValueError("curves must hold at least one curve, got none")
    return (
        '<div class="curves">'
        f'<div class="wide">{_drawing(curves, unit, width=940, height=400, right=170)}</div>'
        f'<div class="narrow">{_drawing(curves, unit, width=400, height=340, right=14)}</div>'
        "</div>"
    )


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that span low to high."""
    if not high > low:
        high = low + 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _drawing(curves: Sequence[Curve], unit: str, *, width: int, height: int, right: int) -> str:
    means, errors = [curve.mean() for curve in curves], [curve.standard_error() for curve in curves]
    values = [
        v + s * e for ms, es in zip(means, errors, strict=True) for v, e in zip(ms, es, strict=True) for s in (-1, 1)
    ]
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    ticks = nice_ticks(max(0.0, min(finite)), max(finite))
    frame = _Frame(
        width=width, height=height, left=44, right=right, epochs=max(len(mean) for mean in means),
        low=ticks[0], high=ticks[-1],
    )  # fmt: skip
    lines = "".join(
        _line(frame, curve, mean, error, _colour(i))
        for i, (curve, mean, error) in enumerate(zip(curves, means, errors, strict=True))
    )
    direct = right >= 100  # room for names at the lines' ends; otherwise a legend below
    names = _end_names(frame, curves, means) if direct else ""
    legend = "" if direct else _legend(curves, means)
    summary = "; ".join(f"{curve.name} ends at {mean[-1]:.1f}" for curve, mean in zip(curves, means, strict=True))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(unit)} by epoch: {escape(summary)}">'
        f"{_axes(frame, ticks, unit)}{lines}{names}</svg>{legend}"
    )


def _axes(frame: _Frame, ticks: Sequence[float], unit: str) -> str:
    end = frame.width - frame.right
    out = [
        f'<line class="grid" x1="{frame.left}" x2="{end}" y1="{frame.y(tick):.1f}" y2="{frame.y(tick):.1f}"/>'
        f'<text class="tick" x="{frame.left - 8}" y="{frame.y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks
    ]
    whole = [tick for tick in nice_ticks(1, max(frame.epochs, 2)) if tick == int(tick) and 1 < tick <= frame.epochs]
    for epoch in [1.0, *whole]:
        x, y = frame.x(epoch), frame.height - frame.bottom
        out.append(f'<text class="tick" x="{x:.1f}" y="{y + 18}" text-anchor="middle">{epoch:g}</text>')
    out.append(f'<text class="axis" x="{end}" y="{frame.height - 4}" text-anchor="end">epoch</text>')
    out.append(f'<text class="axis" x="4" y="14">{escape(unit)}</text>')
    return "".join(out)


def _line(frame: _Frame, curve: Curve, mean: Sequence[float], error: Sequence[float], colour: str) -> str:
    points = [(frame.x(i), value, spread) for i, (value, spread) in enumerate(zip(mean, error, strict=True), start=1)]
    points = [point for point in points if math.isfinite(point[1])]
    if not points:
        return ""
    upper = [f"{x:.1f},{frame.y(min(v + s, frame.high)):.1f}" for x, v, s in points]
    lower = [f"{x:.1f},{frame.y(max(v - s, frame.low)):.1f}" for x, v, s in reversed(points)]
    middle = " ".join(f"{x:.1f},{frame.y(v):.1f}" for x, v, _ in points)
    band = f'<polygon class="band" points="{" ".join(upper + lower)}"/>' if len(curve.runs) > 1 else ""
    x, value, _ = points[-1]
    return (
        f'<g style="--c:{colour}"><title>{escape(curve.name)}</title>{band}'
        f'<polyline class="mean" points="{middle}"/><circle cx="{x:.1f}" cy="{frame.y(value):.1f}" r="4"/></g>'
    )


def _end_names(frame: _Frame, curves: Sequence[Curve], means: Sequence[Sequence[float]]) -> str:
    """Names beside the last points, pushed apart downwards where lines end close together."""
    order = sorted(range(len(curves)), key=lambda i: frame.y(means[i][-1]))
    gap, floor, places = 34.0, frame.height - frame.bottom - 16.0, dict[int, float]()
    previous = -math.inf
    for rank, i in enumerate(order):
        room_below = gap * (len(order) - 1 - rank)
        wanted = max(frame.y(means[i][-1]), previous + gap)
        previous = places[i] = max(min(wanted, floor - room_below), previous + gap)
    x = frame.width - frame.right + 14
    return "".join(
        f'<g style="--c:{_colour(i)}"><text class="name" x="{x}" y="{places[i]:.1f}">{escape(curves[i].name)}</text>'
        f'<text class="value" x="{x}" y="{places[i] + 15:.1f}">{means[i][-1]:.1f}</text></g>'
        for i in order
    )


def _legend(curves: Sequence[Curve], means: Sequence[Sequence[float]]) -> str:
    items = "".join(
        f'<li style="--c:{_colour(i)}"><i></i>{escape(curve.name)} <span>{mean[-1]:.1f}</span></li>'
        for i, (curve, mean) in enumerate(zip(curves, means, strict=True))
    )
    return f'<ul class="legend">{items}</ul>'


def _colour(place: int) -> str:
    return f"var(--curve-{place % COLOURS + 1})"
