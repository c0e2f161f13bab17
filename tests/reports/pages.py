"""Reading a page as a browser does, and pairs to draw, for tests."""

from collections.abc import Collection
from html.parser import HTMLParser
from typing import Any

import numpy as np

from saligraft.reports.gallery import ComparedPair, MethodSamples, Sample
from saligraft.reports.page import environment

LOADING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Collects text, tags and every address that a browser would load; checks that tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"tags left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.addresses += [value or "" for name, value in attrs if name in LOADING]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def with_class(self, name: str) -> list[dict[str, str]]:
        return [attributes for _, attributes in self.tags if name in attributes.get("class", "").split()]


def assert_self_contained(html: str, links: Collection[str] = ()) -> Page:
    """No address leaves the file but the links: all others are `data:` or `#`, and no style or script loads any."""
    page = Page(html)
    assert all(address.startswith(("data:", "#")) or address in links for address in page.addresses)
    assert set(links) <= {attributes.get("href") for attributes in page.named("a")}
    assert not {"iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert not [words for words in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "sendBeacon") if words in html]
    assert "@import" not in html
    assert "url(" not in html.replace("url(#", "")
    return page


def part(macro: str, *values: Any) -> str:
    """One part of a page by itself."""
    module: Any = environment().get_template("parts.html").module
    return str(getattr(module, macro)(*values))


def compared_pair(seed: int = 0) -> ComparedPair:
    """A pair of noise with three methods: one that mixes, one that does not, one that is missing."""
    stream = np.random.default_rng(seed)

    def picture() -> np.ndarray:
        return stream.integers(0, 256, (32, 32, 3), dtype=np.uint8)

    samples = tuple(Sample(picture=picture(), source_weight=share, detail="area 9 %") for share in (0.124, 0.625, 1.0))
    mixing = MethodSamples(name="sg", title="Grafts <i>", note="n & m", samples=samples, maps=(picture(), picture()))
    alone = MethodSamples(name="co", title="Alone", note="", samples=(Sample(picture=picture(), source_weight=None),))
    missing = MethodSamples(name="pm", title="Missing", note="", missing="needs <scipy>")
    return ComparedPair(
        source=picture(), destination=picture(), source_class="star <b>", destination_class="ring",
        methods=(mixing, alone, missing),
    )  # fmt: skip
