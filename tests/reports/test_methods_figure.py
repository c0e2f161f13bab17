"""The comparison as PNG files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image
from tests.reports.comparisons import pair

from saligraft.reports import methods_figure
from saligraft.reports.figure import DESTINATION, SOURCE
from saligraft.reports.methods_figure import COLUMNS, save_comparison, save_method


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def of_colour(image: np.ndarray, colour: str) -> int:
    return int((np.abs(image - np.array(to_rgb(colour)) * 255).max(-1) <= 6).sum())


def test_pairs_stand_below_each_other_and_groups_stay_whole(tmp_path: Path) -> None:
    one, two = (pixels(save_comparison([pair(i) for i in range(n)], tmp_path / f"{n}.png", dpi=60)) for n in (1, 2))
    assert one.shape[1] == two.shape[1]
    assert two.shape[0] > 1.8 * one.shape[0]
    rows = methods_figure._wrapped([[None] * 4, [None] * 3, [None] * 2, [None] * 8])  # type: ignore[list-item]
    assert [len(row) for row in rows] == [7, 2, 8]
    assert max(map(len, rows)) <= COLUMNS


def test_bars_have_the_colours_of_source_and_destination_in_proportion(tmp_path: Path) -> None:
    compared, counts = pair(), []
    flat = np.full((32, 32, 3), 128, dtype=np.uint8)
    for weight in (0.25, 0.75):
        sample = replace(compared.methods[0].samples[0], source_weight=weight, picture=flat)
        method = replace(compared.methods[0], samples=(sample,), maps=())
        shown = replace(compared, methods=(method,), source=flat, destination=flat)
        image = pixels(save_method([shown], "sg", tmp_path / f"{weight}.png", dpi=200))
        counts.append((of_colour(image, SOURCE), of_colour(image, DESTINATION)))
    assert counts[1][0] > counts[0][0] + 500
    assert counts[0][1] > counts[1][1] + 500


def test_a_card_shows_its_method_alone_one_row_per_pair(tmp_path: Path) -> None:
    one = pixels(save_method([pair()], "co", tmp_path / "a" / "co.png", dpi=60))
    two = pixels(save_method([pair(), pair(1)], "co", tmp_path / "co.png", dpi=60))
    wide = pixels(save_method([pair()], "sg", tmp_path / "sg.png", dpi=60))
    assert two.shape[0] > 1.6 * one.shape[0]
    assert wide.shape[1] > 2 * one.shape[1]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one picture"):
        save_comparison([], tmp_path / "x.png")


@pytest.mark.parametrize("name", ["caf\udce9", "$\\foo$"])
def test_any_class_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    assert save_comparison([replace(pair(), source_class=name)], tmp_path / "a.png", dpi=40).is_file()
