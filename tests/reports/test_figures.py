"""PNG files of pairs, and learning curves as SVG."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image
from tests.reports.pages import Page, assert_self_contained, compared_pair, part

from saligraft.methods import CutMix, SaliencyGrafting
from saligraft.reports import figures
from saligraft.reports.figures import (
    COLUMNS,
    CURVE_COLOURS,
    KIND_COLOURS,
    Curve,
    curves_svg,
    save_comparison,
    save_gallery,
    save_method,
    save_sweep,
    shortened,
)
from saligraft.reports.gallery import draw_rows
from saligraft.reports.page import TEMPLATES
from saligraft.reports.statistics import Estimate, estimate


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def of_colour(image: np.ndarray, kind: str) -> int:
    return int((np.abs(image - np.array(to_rgb(KIND_COLOURS[kind])) * 255).max(-1) <= 6).sum())


@pytest.mark.parametrize("method", [SaliencyGrafting(), CutMix()])
def test_a_gallery_opens_and_grows_with_its_rows(tmp_path: Path, method) -> None:
    images, labels = torch.rand(6, 3, 24, 24), torch.arange(6)
    saliency = torch.rand(6, 6, 6) if method.needs_saliency else None
    rows = draw_rows(method, images, labels, tuple("abcdef"), saliency=saliency, count=3)
    one, three = (pixels(save_gallery(rows[:count], tmp_path / "new" / f"{count}.png", dpi=80)) for count in (1, 3))
    assert one.std() > 10
    assert three.shape[0] > 2 * one.shape[0]


@pytest.mark.parametrize("name", ["caf\udce9", "$\\foo$", "", "a\nb", "x" * 80])
def test_any_class_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    rows = draw_rows(CutMix(), torch.rand(4, 3, 16, 20), torch.arange(4) % 2, (name, "ring"), count=1)
    assert save_gallery(rows, tmp_path / "a.png", dpi=40).is_file()
    assert save_comparison([replace(compared_pair(), source_class=name)], tmp_path / "b.png", dpi=40).is_file()


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        save_gallery([], tmp_path / "x.png")
    with pytest.raises(ValueError, match="at least one picture"):
        save_comparison([], tmp_path / "x.png")


def test_long_names_are_shortened_in_the_picture() -> None:
    assert shortened("star", 4) == "star"
    assert shortened("black footed albatross", 13) == "black…atross"
    assert shortened("slaty backed gull", 11) != shortened("slaty backed tern", 11)
    assert len(shortened("x" * 40, 13)) == 13


def test_pairs_are_below_each_other_and_groups_stay_together(tmp_path: Path) -> None:
    one, two = (
        pixels(save_comparison([compared_pair(i) for i in range(n)], tmp_path / f"{n}.png", dpi=60)) for n in (1, 2)
    )
    assert one.shape[1] == two.shape[1]
    assert two.shape[0] > 1.8 * one.shape[0]
    rows = figures._wrapped([[None] * 4, [None] * 3, [None] * 2, [None] * 8])  # type: ignore[list-item]
    assert [len(row) for row in rows] == [7, 2, 8]
    assert max(map(len, rows)) <= COLUMNS


def test_bars_have_the_colours_of_source_and_destination_in_proportion(tmp_path: Path) -> None:
    pair, counts = compared_pair(), []
    flat = np.full((32, 32, 3), 128, dtype=np.uint8)
    for weight in (0.25, 0.75):
        sample = replace(pair.methods[0].samples[0], source_weight=weight, picture=flat)
        method = replace(pair.methods[0], samples=(sample,), maps=())
        shown = replace(pair, methods=(method,), source=flat, destination=flat)
        image = pixels(save_method([shown], "sg", tmp_path / f"{weight}.png", dpi=200))
        counts.append((of_colour(image, "source"), of_colour(image, "destination")))
    assert counts[1][0] > counts[0][0] + 500
    assert counts[0][1] > counts[1][1] + 500


def test_a_card_shows_only_its_method_one_row_per_pair(tmp_path: Path) -> None:
    one = pixels(save_method([compared_pair()], "co", tmp_path / "a" / "co.png", dpi=60))
    two = pixels(save_method([compared_pair(), compared_pair(1)], "co", tmp_path / "co.png", dpi=60))
    wide = pixels(save_method([compared_pair()], "sg", tmp_path / "sg.png", dpi=60))
    assert two.shape[0] > 1.6 * one.shape[0]
    assert wide.shape[1] > 2 * one.shape[1]


CURVES = (
    Curve(name="Plain <training>", runs=((80.0, 50.0, 40.0), (82.0, 54.0, 42.0))),
    Curve(name="CutMix", runs=((70.0, 45.0, 40.5), (74.0, 47.0, 41.5))),
)


def lines(svg: str, curve: int) -> list[str]:
    """The points of the paths with the colour of one curve."""
    pattern = rf'd="([^"]*)"[^>]*style="fill: none; stroke: var\(--curve-{curve}\)'
    return [re.sub(r"[ML\s]+", " ", path).strip() for path in re.findall(pattern, svg)]


def test_mean_and_standard_error_over_seeds() -> None:
    assert CURVES[0].mean == pytest.approx([81.0, 52.0, 41.0])
    assert CURVES[0].standard_error == pytest.approx([1.0, 2.0, 1.0])
    assert Curve(name="one", runs=((3.0, 2.0),)).standard_error == pytest.approx([0.0, 0.0])


def test_curves_are_named_and_have_a_point_per_epoch_in_both_drawings() -> None:
    html = part("curves", CURVES)
    page = assert_self_contained(html)
    assert len(page.named("svg")) == 2
    assert page.text.count("Plain <training>") == page.text.count("CutMix") == 2
    assert page.named("div")[0]["aria-label"] == (
        "test error (%) by epoch: Plain <training> ends at 41.0; CutMix ends at 41.0"
    )
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids)) > 0
    for curve in (1, 2):
        assert [len(points.split()) for points in lines(html, curve)] == [6, 6]
        assert html.count(f"fill: var(--curve-{curve}); fill-opacity: 0.16") == 2


def test_a_single_seed_has_no_band_and_a_single_epoch_is_drawn() -> None:
    svg = curves_svg([Curve(name="one", runs=((30.0,),))], "error", width=940, height=400)
    assert "fill-opacity" not in svg
    assert "one" in Page(svg).text


def test_a_drawing_depends_on_its_curves_alone_and_carries_no_colour_of_its_own() -> None:
    first, second = (curves_svg(CURVES, "error", width=940, height=400) for _ in range(2))
    assert first == second
    assert not re.findall(r"#[0-9a-f]{6};", first)
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    for colour, variable in figures.VARIABLES.items():
        assert f"{variable}: light-dark({colour}," in style


def test_names_at_the_ends_do_not_overlap() -> None:
    crowd = [Curve(name=f"m{i}", runs=((50.0, 20.0 + 0.1 * i),)) for i in range(8)]
    svg = curves_svg(crowd, "error", width=940, height=400)
    heights = sorted(float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>m\d</text>', svg))
    assert len(heights) == 8
    assert all(low + 30 <= high for low, high in itertools.pairwise(heights))
    assert 0 < heights[0] < heights[-1] < 400


def test_long_names_beside_curves_are_wrapped() -> None:
    names = [f"Saliency Grafting, network wrn-10-{width}, 240 epochs" for width in (1, 2)]
    svg = curves_svg([Curve(name=name, runs=((30.0, 20.0),)) for name in names], "error", width=940, height=400)
    texts = re.findall(r">([^<>]+)</text>", svg)
    for width in (1, 2):
        assert f"network wrn-10-{width}," in texts
    assert max(map(len, texts)) <= 22


@pytest.mark.parametrize("values", [(50.0, math.nan), (math.inf, 40.0), (0.0, 0.0), (1e-9, 2e-9), (100.0, 1e6)])
def test_unusual_values_can_be_drawn(values: tuple[float, ...]) -> None:
    assert "<svg" in curves_svg([Curve(name="odd", runs=(values,))], "error", width=400, height=340)


def test_wrong_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one curve"):
        curves_svg([], "error", width=400, height=340)
    with pytest.raises(ValueError, match="equally long"):
        Curve(name="x", runs=((1.0,), (1.0, 2.0)))
    with pytest.raises(ValueError, match="at least one value"):
        Curve(name="x", runs=())


def test_bold_text_is_made_to_fit_its_room(tmp_path: Path) -> None:
    """W is the widest letter: the white gap between pictures, and the margin, must stay white."""
    flat = np.full((32, 32, 3), 255, dtype=np.uint8)
    pair = replace(compared_pair(), source=flat, destination=flat, source_class="W" * 18, methods=())
    image = pixels(save_comparison([pair], tmp_path / "wide.png", dpi=200))
    gap = slice(
        round(200 * (figures.MARGIN + figures.TILE)) + 2, round(200 * (figures.MARGIN + figures.TILE + figures.GAP)) - 2
    )
    assert (image[:, gap] == 255).all()


def sweep(folder: Path) -> list[Path]:
    folder.mkdir()
    series = {"Saliency Grafting": [(0.2, estimate([48.0, 49.0])), (0.01, estimate([52.0]))]}
    levels = {"Plain training": Estimate(53.0, 0.5, 3)}
    return save_sweep(series, levels, folder / "figure", x_title="temperature T", y_title="error (%)")


def test_a_sweep_is_drawn_as_png_and_svg_and_again_with_the_same_bytes(tmp_path: Path) -> None:
    png, svg = sweep(tmp_path / "a")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text(encoding="utf-8")
    for words in (
        "temperature T",
        "error (%)",
        "Saliency Grafting",
        "Plain training 53.00 ± 0.50",
        "error of 1 to 3 seeds",
    ):
        assert words in text
    assert [path.read_bytes() for path in sweep(tmp_path / "b")] == [png.read_bytes(), svg.read_bytes()]


def test_levels_at_one_height_and_bars_at_one_place_all_show(tmp_path: Path) -> None:
    pair = estimate([48.0, 49.0])
    series = {name: [(1, pair), (2, pair), (4, pair)] for name in ("a", "b")}
    levels = {"c": Estimate(53.0, 0.5, 2), "d": Estimate(53.0, 0.5, 2)}
    png, svg = save_sweep(series, levels, tmp_path / "figure", x_title="k", y_title="error (%)")
    image = pixels(png)
    for colour in (*reversed(CURVE_COLOURS[1:3]), CURVE_COLOURS[3]):
        assert (np.abs(image - np.array(to_rgb(colour)) * 255).max(-1) <= 6).sum() > 100, colour
    pale = 0.4 * np.array(to_rgb(CURVE_COLOURS[0])) * 255 + 0.6 * 255
    assert (np.abs(image - pale).max(-1) <= 6).sum() > 1000
    text = svg.read_text(encoding="utf-8")
    assert "mean ± standard error of 2 seeds" in text
    assert re.findall(r">(\d)</text>", text) == ["1", "2", "4"]
