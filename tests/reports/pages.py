"""Reading a page as a browser would, for tests."""

from html.parser import HTMLParser

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background"}
VOID = {"meta", "link", "img", "br", "line", "circle", "polyline", "polygon"}


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
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self.addresses += [value or "" for name, value in attrs if name in LOADING]
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

    def with_class(self, name: str) -> list[dict[str, str]]:
        return [attributes for _, attributes in self.tags if name in attributes.get("class", "").split()]


def assert_self_contained(html: str) -> Page:
    """No address leaves the file: every one is `data:`, and neither style nor script loads anything."""
    page = Page(html)
    assert all(address.startswith("data:") for address in page.addresses)
    assert not {"script", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    assert "@import" not in html
    assert "url(" not in html
    return page
