"""Pages are complete in themselves and show what they are given, escaped."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.reports.pages import Page, assert_self_contained, compared_pair, part

from saligraft.data import ImageData, load
from saligraft.reports.gallery import class_strips
from saligraft.reports.page import TEMPLATES, typed_command, write_page


def methods_page(folder: Path, pairs: list) -> Page:
    values: dict[str, Any] = {"data": "d <&>", "network": "n", "purposes": {}, "facts": {"a <b>": "1 & 2"}}
    path = write_page(folder / "new" / "methods.html", "methods.html", title="Title <1>", pairs=pairs, **values)
    return assert_self_contained(path.read_text(encoding="utf-8"))


def test_the_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/saligraft", "train", "--set", "schedule.milestones=[100, 150]", "--seed=1"])
    assert typed_command() == "saligraft train --set 'schedule.milestones=[100, 150]' --seed=1"


def test_the_comparison_shows_every_picture_label_and_bar(tmp_path: Path) -> None:
    page = methods_page(tmp_path, [compared_pair(0), compared_pair(1)])
    assert len(page.with_class("compared")) == 2
    assert len(page.named("img")) == 2 * (4 + 3 + 1)
    assert all(attributes.get("alt") for attributes in page.named("img"))
    for words in ("Grafts <i>", "n & m", "star <b> 12 %", "ring 88 %", "area 9 %", "Not shown: needs <scipy>"):
        assert page.text.count(words) >= 2, words
    for words in ("Title <1>", "d <&>", "a <b> 1 & 2"):
        assert words in page.text
    widths = [attributes["style"] for attributes in page.named("i")]
    assert widths[:4] == ["width:12.4%", "width:62.5%", "width:100.0%", "width:100.0%"]
    groups = [attributes["style"] for attributes in page.with_class("group")]
    assert groups[:3] == ["--n:4;--n4:4;--n3:3", "--n:3;--n4:3;--n3:3", "--n:1;--n4:1;--n3:1"]


def test_without_maps_the_pair_is_shown_alone(tmp_path: Path) -> None:
    page = methods_page(tmp_path, [replace(compared_pair(), methods=compared_pair().methods[1:2])])
    assert "where the network looks" not in page.text
    assert len(page.named("img")) == 3


@pytest.mark.parametrize("name", ['"><script>', "", "{{ 1 }}"])
def test_class_names_are_escaped(name: str, tmp_path: Path) -> None:
    page = methods_page(tmp_path, [replace(compared_pair(), source_class=name)])
    assert f"{name}\u00a012\u00a0%" in page.words
    assert page.named("article")[0]["aria-label"] == f"{name} onto ring"


def test_text_that_is_not_utf8_is_escaped_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="methods.html holds names that are not UTF-8: they are escaped"):
        page = methods_page(tmp_path, [replace(compared_pair(), source_class="caf\udce9 <")])
    assert "caf\\udce9 < 12 %" in page.text


@pytest.mark.parametrize(("size", "kind"), [(32, "PNG"), (48, "JPEG")])
def test_strips_of_classes_can_be_opened(size: int, kind: str) -> None:
    data = load("shapes", size=size, per_class=2)
    assert isinstance(data, ImageData)
    page = assert_self_contained(part("class_strips", data, class_strips(data)))
    assert all(name in page.text for name in data.classes)
    assert f"10 classes, {size}×{size} pixels" in page.text
    for attributes in page.named("img"):
        with Image.open(io.BytesIO(base64.b64decode(attributes["src"].partition(",")[2]))) as picture:
            assert picture.format == kind
            assert (attributes["width"], attributes["height"]) == (str(picture.width), str(picture.height))


def test_facts_and_code_are_escaped_and_kept_as_they_are() -> None:
    page = Page(part("facts", {"a <b>": "1 & 2"}, {"recipe": "x = '<y>'\n  z"}))
    assert "a <b> 1 & 2" in page.text
    assert "x = '<y>'\n  z" in page.words


def test_the_style_covers_light_and_dark_and_narrow_screens(tmp_path: Path) -> None:
    html = write_page(tmp_path / "p.html", "base.html", title="ü").read_text(encoding="utf-8")
    for words in ("color-scheme: light dark", "max-width: 560px", 'name="viewport"', "<h1>ü</h1>"):
        assert words in html


def test_titles_break_between_words_and_in_long_names_only(tmp_path: Path) -> None:
    title = "<b> WRN-10-2 on a-data-set-with-a-long-name"
    html = write_page(tmp_path / "p.html", "base.html", title=title).read_text(encoding="utf-8")
    assert '<h1>&lt;b&gt; <span class="whole">WRN-10-2</span> on a-data-set-with-a-long-name</h1>' in html


def test_every_colour_variable_of_the_styles_is_defined_in_both_schemes() -> None:
    styles = {path.name: path.read_text(encoding="utf-8") for path in TEMPLATES.glob("*.css")}
    colours = re.findall(r"^  (--[a-z0-9-]+): light-dark\(#\w{6}, #\w{6}\);$", styles["page.css"], flags=re.MULTILINE)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", "".join(styles.values())))
    assert used - set(colours) <= {"--c", "--panels", "--n", "--n4", "--n3"}
