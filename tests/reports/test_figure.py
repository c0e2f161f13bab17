"""The gallery as one PNG."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saligraft.methods import CutMix, SaliencyGrafting
from saligraft.reports.figure import save_gallery, shortened
from saligraft.reports.gallery import draw_rows


@pytest.mark.parametrize("method", [SaliencyGrafting(), CutMix()])
def test_png_opens_and_grows_with_its_rows(tmp_path: Path, method) -> None:
    images, labels = torch.rand(6, 3, 24, 24), torch.arange(6)
    saliency = torch.rand(6, 6, 6) if method.needs_saliency else None
    rows = draw_rows(method, images, labels, tuple("abcdef"), saliency=saliency, count=3)
    heights = []
    for count in (1, 3):
        path = save_gallery(rows[:count], tmp_path / "new" / f"{count}.png", dpi=80)
        with Image.open(path) as picture:
            picture.load()
            heights.append(picture.height)
            assert np.asarray(picture).std() > 10
    assert heights[1] > 2 * heights[0]


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        save_gallery([], tmp_path / "x.png")


def test_long_names_are_shortened_in_the_picture() -> None:
    assert shortened("star", 4) == "star"
    assert shortened("black footed albatross", 13) == "black footed…"
    assert len(shortened("x" * 40, 13)) == 13


@pytest.mark.parametrize("name", ["caf\udce9", "$\\foo$", "a$b^", "", "a\nb", "a · b"])
def test_any_class_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    rows = draw_rows(CutMix(), torch.rand(4, 3, 16, 16), torch.arange(4) % 2, (name, "ring"), count=1)
    assert save_gallery(rows, tmp_path / "a.png", dpi=40).is_file()
