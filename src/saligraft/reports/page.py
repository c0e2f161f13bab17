"""One self-contained HTML page: it opens without server or network, in light and dark, wide and narrow."""

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import saligraft as sg
from saligraft.data import Split
from saligraft.io.files import write_atomic
from saligraft.reports import tiles
from saligraft.reports.gallery import GalleryRow, gallery_html, label_html, picture_html, valid_text

STYLE_SHEET = Path(__file__).with_name("page.css")
SHEET_TILE = 64  # longest side of an image on the contact sheet: twelve of them fill its column on a dense screen
EXACT_TILE = 32  # larger ones are compressed with loss, or 20 classes would fill megabytes


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; `body` and `intro` are HTML, `title` is text."""

    title: str
    body: str
    intro: str = ""


def page_html(title: str, lead: str, sections: Sequence[Section], *, kicker: str = "saligraft") -> str:
    """The whole page as text; `lead` is HTML, `title` and `kicker` are text."""
    body = "".join(_section_html(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,">'
        f"<style>\n{STYLE_SHEET.read_text(encoding='utf-8')}</style></head>\n"
        f'<body><main><header><p class="kicker">{escape(kicker)}</p><h1>{escape(title)}</h1>'
        f'<p class="lead">{lead}</p></header>\n{body}'
        f"<footer>Made by saligraft {escape(sg.__version__)}. Saliency Grafting: Park, Yang, Shin, Hwang and Yang, "
        "AAAI 2022.</footer></main></body></html>\n"
    )


def write_page(path: Path, html: str) -> Path:
    """Write the page, with the folders it needs, and give back where it is; what is not valid text is escaped."""
    text = valid_text(html)
    if text != html:
        warnings.warn(f"{valid_text(str(path))} holds names that are not UTF-8: they are escaped there", stacklevel=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    return path


def gallery_section(rows: Sequence[GalleryRow], intro: str, title: str = "What the network is trained on") -> Section:
    """The gallery with one line on where its pairs come from; `intro` is HTML."""
    return Section(title=title, body=gallery_html(rows), intro=intro)


def gallery_legend(rows: Sequence[GalleryRow]) -> str:
    """What the colours, and the bold label of two, stand for."""
    text = '<span class="source">Orange</span> is the source, <span class="destination">blue</span> the destination.'
    return text + (" The label in bold is the one trained with." if rows and len(rows[0].labels) > 1 else "")


def steps_section(row: GalleryRow) -> Section:
    """The method in five steps (saliency, mask, draw, graft, label), told with the pictures of one real row."""
    if row.source_saliency is None or row.salient is None or row.destination_saliency is None:
        raise ValueError("row must carry saliency and salient cells, got a row without")
    bars = "".join(label_html(row, label) for label in row.labels)
    steps = (
        ("Look", tiles.heat(row.source, row.source_saliency), "S = Σ<sub>c</sub> |A<sub>c</sub>|",
         f"Features that training computes anyway show where the network sees the {escape(row.source_class)}."),
        ("Select", tiles.chosen_cells(row.source, row.salient), "S″ = [softmax(S/T) &gt; σ]",
         "Every cell above the mean of the softmax counts as salient, and all of them alike."),
        ("Draw", tiles.chosen_cells(row.source, row.mask, row.salient), "M = P ⊙ S″,  P ~ Bern(p<sub>B</sub>)",
         "A coin is tossed for each, so that not always the same, easiest patch is pasted."),
        ("Graft", tiles.grafted(row.mixed, row.mask), "x̃ = M ⊙ x<sub>i</sub> + (1−M) ⊙ x<sub>j</sub>",
         f"The drawn cells move onto the {escape(row.destination_class)}, pixel for pixel."),
    )  # fmt: skip
    items = "".join(
        f'<li><div class="pictures">{picture_html(picture, name)}</div><h3>{i}. {name}</h3><p>{text}</p>'
        f'<div class="formula">{formula}</div></li>'
        for i, (name, picture, formula, text) in enumerate(steps, start=1)
    )
    last = (
        f'<li><div class="bars">{bars}</div><h3>5. Label</h3><p>What stays visible of each map weighs its class, '
        'not the area it fills.</p><div class="formula">λ = I<sub>i</sub> / (I<sub>i</sub> + I<sub>j</sub>)</div></li>'
    )
    return Section(
        title="Saliency Grafting in five steps",
        intro="One of the pairs below, from feature map to label.",
        body=f'<ol class="steps">{items}{last}</ol>',
    )


def contact_sheet_section(data: Split, per_class: int = 12) -> Section:
    """The first images of every class (of up to 20), one strip per class; large images are shown small."""
    exact = max(data.image_shape[1:]) <= EXACT_TILE
    strips = []
    for label, name in list(enumerate(data.classes))[:20]:
        images = data.take((data.labels == label).nonzero()[:per_class, 0]).images
        if len(images):
            strip = np.concatenate([tiles.to_picture(image) for image in _shrink(images.float() / 255)], axis=1)
            height, width = strip.shape[:2]
            source = f'class="crisp" src="{tiles.data_uri(strip)}"' if exact else f'src="{tiles.photo_uri(strip)}"'
            strips.append(
                f"<figure><figcaption>{escape(name)}</figcaption><img {source} "
                f'width="{width}" height="{height}" alt="{len(images)} images of {escape(name)}"></figure>'
            )
    size = "×".join(str(side) for side in data.image_shape[1:])
    intro = f"Some images of <code>{escape(data.name)}</code>, {len(data.classes)} classes, {size} pixels."
    return Section(title="The data", intro=intro, body=f'<div class="sheet">{"".join(strips)}</div>')


def _shrink(images: Tensor) -> Tensor:
    """Images (N,C,H,W) with a longer side of at most `SHEET_TILE` pixels."""
    longer = max(images.shape[2:])
    if longer <= SHEET_TILE:
        return images
    size = [max(1, round(side * SHEET_TILE / longer)) for side in images.shape[2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


def facts_html(facts: Mapping[str, str], code: Mapping[str, str] | None = None) -> str:
    """Facts as a list of pairs, then folded blocks of code (recipes, commands) under their titles."""
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    folded = "".join(
        f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
        for title, text in (code or {}).items()
    )
    return f'<dl class="facts">{pairs}</dl>{folded}'


def versions() -> dict[str, str]:
    """What this process runs on, for the section that says how a page came to be."""
    return {
        "Versions": f"saligraft {sg.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "Machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
    }


def _section_html(section: Section) -> str:
    intro = f'<p class="intro">{section.intro}</p>' if section.intro else ""
    return f"<section><h2>{escape(section.title)}</h2>{intro}{section.body}</section>\n"
