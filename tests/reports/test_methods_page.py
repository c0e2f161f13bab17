"""The page that compares methods."""

from dataclasses import replace

from tests.reports.comparisons import pair
from tests.reports.pages import assert_self_contained

from saligraft.reports.methods_page import comparison_section
from saligraft.reports.page import page_html


def test_every_picture_label_and_bar_stands_on_the_page() -> None:
    pairs = [pair(0), pair(1)]
    page = assert_self_contained(page_html("t", "l", [comparison_section(pairs)]))
    assert len(page.with_class("compared")) == 2
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 2 * (4 + 3 + 1)
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    for words in ("Grafts <i>", "n & m", "star <b> 12 %", "ring 88 %", "area 9 %", "Not shown: needs <scipy>"):
        assert page.text.count(words) >= 2, words
    widths = [attributes["style"] for tag, attributes in page.tags if tag == "i"]
    assert widths[:4] == ["width:12.4%", "width:62.5%", "width:100.0%", "width:100.0%"]


def test_a_group_is_as_wide_as_it_has_pictures() -> None:
    page = assert_self_contained(page_html("t", "l", [comparison_section([pair()])]))
    groups = [attributes["style"] for attributes in page.with_class("group")]
    assert groups[:3] == ["--n:4;--n4:4;--n3:3", "--n:3;--n4:3;--n3:3", "--n:1;--n4:1;--n3:1"]


def test_without_maps_the_pair_stands_alone() -> None:
    compared = pair()
    page = assert_self_contained(
        page_html("t", "l", [comparison_section([replace(compared, methods=compared.methods[1:2])])])
    )
    assert "where the network looks" not in page.text
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 3
