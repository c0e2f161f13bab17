"""Plots against a parameter."""

from pathlib import Path

from saligraft.reports.plots import save_sweep
from saligraft.reports.statistics import Estimate, estimate


def draw(folder: Path) -> list[Path]:
    folder.mkdir()
    series = {"Saliency Grafting": [(0.2, estimate([48.0, 49.0])), (0.01, estimate([52.0]))]}
    levels = {"Plain training": Estimate(53.0, 0.5, 3)}
    return save_sweep(series, levels, folder / "figure", x_title="temperature T", y_title="error (%)")


def test_a_sweep_is_drawn_as_png_and_svg_and_again_with_the_same_bytes(tmp_path: Path) -> None:
    png, svg = draw(tmp_path / "a")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text(encoding="utf-8")
    for words in ("temperature T", "error (%)", "Saliency Grafting", "Plain training 53.00 ± 0.50"):
        assert words in text
    assert [path.read_bytes() for path in draw(tmp_path / "b")] == [png.read_bytes(), svg.read_bytes()]
