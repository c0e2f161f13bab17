"""What `make docs` adds to MkDocs: pages from outside docs/, notebooks, the list of results, and links for the site."""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parent.parent
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}  # file of the repository -> page
WIDE = ("paper_map.md", "command-line.md", "assumptions.md", "results/README.md")  # pages of wide tables
LOG = get_plugin_logger("build_hooks")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """List every table and figure of docs/results/ below Results: the paper's tables first, by their number."""
    assert config.nav is not None
    (results,) = (entry["Results"] for entry in config.nav if "Results" in entry)
    entries = []
    for table in ROOT.glob("docs/results/*/table.md"):
        number = re.search(r"\(Table (\d+)\)", table.read_text(encoding="utf-8").splitlines()[0])
        name = table.parent.name
        if number:
            more = name.partition("-with-")[2].replace("-", " ")  # of a table in another setting
            place, title = (0, int(number[1])), f"Table {number[1]}{', ' * bool(more)}{more}"
        elif name.startswith("figure-"):
            place, title = (1, 0), f"Figure: {name.removeprefix('figure-')}"
        else:
            place, title = (2, 0), name.replace("-", " ").capitalize()
        entries.append((place, title, table.relative_to(ROOT / "docs").as_posix()))
    results += [{title: path} for _, title, path in sorted(entries)]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that lie outside docs/, and each notebook as a page with its pictures."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, "", page)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        notebook = Path(str(file.abs_src_path))
        text, resources = MarkdownExporter().from_filename(str(notebook))
        page = File.generated(config, f"{dirname(file.src_uri)}/{notebook.stem}.md", content=text)
        files.append(page)
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"{dirname(file.src_uri)}/{name}", content=picture))


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Show diagrams as the pictures made from them, and leave out links to files that are not on the site."""
    if page.file.src_uri == "index.md":
        page.meta["title"] = "Saliency Grafting for PyTorch"  # of the browser's tab
    if page.file.src_uri.endswith("/table.md") or page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]  # room for the columns
    if page.file.src_uri.endswith("/table.md"):
        folder = Path(str(page.file.abs_src_path)).parent
        beside = sorted(path.name for path in folder.iterdir() if path.suffix != ".md")
        markdown += "\n\nFiles: " + ", ".join(f"[{name}]({name})" for name in beside)
        if "figure.png" in beside:
            markdown = markdown.replace("\n| ", "\n![Figure](figure.png)\n\n| ", 1)
    for number, diagram in enumerate(re.findall(r"```mermaid\n.*?```", markdown, flags=re.DOTALL), start=1):
        picture = f"images/{page.file.name}-{number}.svg"
        arrows = set(re.findall(r"^ +(\w+).* --.*?> (\w+)", diagram, flags=re.MULTILINE))
        svg = (ROOT / "docs" / picture).read_text(encoding="utf-8")
        if arrows != set(re.findall(r'data-id="L_(\w+)_(\w+)_\d"', svg)):
            LOG.warning(f"{picture} is not the diagram in {page.file.src_uri}: run `make diagrams`")
        markdown = markdown.replace(diagram, f"![Diagram]({picture})")
    if page.file.src_uri in PAGES.values():
        return markdown
    return _relinked(markdown, f"docs/{dirname(page.file.src_uri)}", page.file.src_uri)


def on_post_page(output: str, page: Page, **_: object) -> None:
    """Warn, and so fail the strict build, if a page would load something from the network."""
    for url in re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?://[^\"' >]+)", output):
        LOG.warning(f"{page.file.src_uri} loads {url}")


def _relinked(markdown: str, folder: str, page: str) -> str:
    """Links of a file in `folder` of the repository, as links of `page`; text alone where the site has no target."""

    def relink(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        path = normpath(join(folder, target))
        path = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"{mark}[{text}]({relpath(path, dirname(page) or '.')}{anchor or ''})" if path else text

    return LINK.sub(relink, markdown)


class ExampleSections(griffe.Extension):
    """Reads `Example:` in docstrings as code, where griffe knows only `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
