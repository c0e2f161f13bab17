"""The page that compares methods: one block per pair, one group of pictures per method, real text and CSS bars."""

from collections.abc import Sequence
from html import escape

from saligraft.reports import tiles
from saligraft.reports.comparison import ComparedPair, MethodSamples, Sample
from saligraft.reports.gallery import picture_html
from saligraft.reports.page import Section

COLUMNS = 8  # pictures side by side on a wide screen


def comparison_section(pairs: Sequence[ComparedPair]) -> Section:
    """All pairs, one below the other."""
    intro = (
        '<span class="source">Orange</span> is the source, <span class="destination">blue</span> the destination; '
        "an orange line surrounds what shows the source. Draws in which only one of the two shows are left out."
    )
    return Section(title="The same pairs for all", intro=intro, body="".join(map(_pair_html, pairs)))


def _pair_html(pair: ComparedPair) -> str:
    heading = f"{escape(pair.source_class)} onto {escape(pair.destination_class)}"
    groups = "".join(_method_html(pair, method) for method in pair.methods)
    return f'<article class="compared" aria-label="{heading}">{_originals_html(pair)}{groups}</article>'


def _originals_html(pair: ComparedPair) -> str:
    pictures = [("source", "Source", pair.source_class, pair.source)]
    pictures.append(("destination", "Destination", pair.destination_class, pair.destination))
    names = (("Saliency", "of the source"), ("Saliency", "of the destination"))
    pictures += [("", *name, picture) for name, picture in zip(names, pair.maps, strict=False)]
    figures = "".join(
        f'<figure class="{kind}">{picture_html(tiles.enlarge(picture), f"{title}: {words}")}'
        f"<figcaption>{escape(words)}</figcaption></figure>"
        for kind, title, words, picture in pictures
    )
    note = "source, destination" + (", and where the network looks" if pair.maps else "")
    return _group_html("The pair", note, len(pictures), figures, kind=" originals")


def _method_html(pair: ComparedPair, method: MethodSamples) -> str:
    if method.missing:
        return _group_html(method.title, "", 2, f'<p class="missing">Not shown: {escape(method.missing)}</p>')
    figures = "".join(_sample_html(pair, method, sample) for sample in method.samples)
    return _group_html(method.title, method.note, len(method.samples), figures)


def _group_html(title: str, note: str, count: int, body: str, kind: str = "") -> str:
    spans = f"--n:{min(count, COLUMNS)};--n4:{min(count, 4)};--n3:{min(count, 3)}"
    alone = " twos" if count % 3 == 1 and count > 1 else ""  # on narrow screens a row of three would leave one over
    heading = f"<h3>{escape(title)} <span>{escape(note)}</span></h3>"
    return f'<div class="group{kind}{alone}" style="{spans}">{heading}{body}</div>'


def _sample_html(pair: ComparedPair, method: MethodSamples, sample: Sample) -> str:
    words = pair.in_words(sample)
    spoken = " · ".join(text for _, text in words)
    share = 100 * pair.shares(sample)[0][2]
    lines = "".join(f'<span class="{kind}">{escape(text)}</span>' for kind, text in words)
    detail = f'<span class="detail">{escape(sample.detail)}</span>' if sample.detail else ""
    return (
        f"<figure>{picture_html(sample.picture, f'{method.title}: {spoken}')}"
        f'<figcaption><div class="bar" role="img" aria-label="{escape(spoken)}">'
        f'<i style="width:{share:.1f}%"></i></div>'
        f'<div class="share">{lines}{detail}</div></figcaption></figure>'
    )
