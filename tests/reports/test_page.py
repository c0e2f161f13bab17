"""The page stands alone and holds what it is given."""

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.reports.pages import assert_self_contained

from saligraft.data import load
from saligraft.methods import CutMix, SaliencyGrafting
from saligraft.reports import page
from saligraft.reports.gallery import draw_rows


@pytest.fixture(scope="module")
def rows():
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8) % 4
    saliency = torch.rand(8, 8, 8) ** 3
    return draw_rows(SaliencyGrafting(), images, labels, ("a", "b", "c", "d"), saliency=saliency, count=4)


def test_the_whole_page_is_self_contained(rows) -> None:
    data = load("shapes", per_class=2)
    sections = [
        page.steps_section(rows[0]),
        page.gallery_section(rows, page.gallery_legend(rows)),
        page.contact_sheet_section(data),
        page.Section(title="Facts", body=page.facts_html({"a <b>": "1 & 2"}, {"recipe": "x = '<y>'"})),
    ]
    html = page.page_html("Title <1>", "A <b>lead</b>.", sections)
    parsed = assert_self_contained(html)
    assert "Title <1>" in parsed.text
    assert "a <b> 1 & 2" in parsed.text
    assert "x = '<y>'" in parsed.text
    assert len([tag for tag, _ in parsed.tags if tag == "article"]) == len(rows)
    assert all(name in parsed.text for name in data.classes)
    for row in rows:
        for label in row.labels:
            assert row.in_words(label).split(" · ")[0] in parsed.text
    assert all(attributes.get("alt") for tag, attributes in parsed.tags if tag == "img")


@pytest.mark.parametrize(("size", "tile"), [((96, 192), (32, 64)), ((40, 64), (40, 64)), ((32, 32), (32, 32))])
def test_large_images_are_small_on_the_contact_sheet(size: tuple[int, int], tile: tuple[int, int]) -> None:
    data = load("shapes", size=size, per_class=3)
    sheet = page.contact_sheet_section(data, per_class=2).body
    pictures = [attributes for tag, attributes in assert_self_contained(sheet).tags if tag == "img"]
    assert len(pictures) == len(data.classes)
    for attributes in pictures:
        payload = base64.b64decode(attributes["src"].partition(",")[2])
        with Image.open(io.BytesIO(payload)) as picture:
            assert (picture.height, picture.width) == (tile[0], 2 * tile[1])
            assert (attributes["height"], attributes["width"]) == (str(picture.height), str(picture.width))
            assert picture.format == ("PNG" if size == (32, 32) else "JPEG")


def test_style_serves_light_and_dark_and_narrow_screens() -> None:
    html = page.page_html("t", "l", [])
    assert "prefers-color-scheme: dark" in html
    assert "max-width: 560px" in html
    assert 'name="viewport"' in html


def test_every_colour_variable_of_the_style_is_defined_in_both_schemes() -> None:
    import re

    style = page.STYLE_SHEET.read_text(encoding="utf-8")
    dark = style.split("prefers-color-scheme: dark")[1].split("}")[0]
    light = style.split("@media")[0]
    for name in set(re.findall(r"var\((--[a-z0-9-]+)\)", style)) - {"--c", "--panels", "--n", "--n4", "--n3"}:
        assert f"{name}:" in light, name
        assert f"{name}:" in dark, name


def test_the_steps_need_a_row_with_saliency() -> None:
    rows = draw_rows(CutMix(), torch.rand(4, 3, 16, 16), torch.arange(4), tuple("abcd"), count=1)
    with pytest.raises(ValueError, match="row must carry saliency"):
        page.steps_section(rows[0])


def test_write_page_makes_its_folder(tmp_path) -> None:
    path = page.write_page(tmp_path / "a" / "b.html", page.page_html("ü", "", []))
    assert "<h1>ü</h1>" in path.read_text(encoding="utf-8")


def test_what_is_not_valid_text_is_escaped_with_a_warning(tmp_path: Path) -> None:
    html = page.page_html("caf\udce9 <", "", [page.Section(title="\ud800", body="all of it")])
    with pytest.warns(UserWarning, match="page.html holds names that are not UTF-8: they are escaped there"):
        path = page.write_page(tmp_path / "page.html", html)
    text = assert_self_contained(path.read_text(encoding="utf-8")).text
    assert "caf\\udce9 <" in text
    assert "\\ud800 all of it" in text
