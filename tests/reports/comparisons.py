"""Pairs to draw, without any method."""

import numpy as np

from saligraft.reports.comparison import ComparedPair, MethodSamples, Sample


def pair(seed: int = 0) -> ComparedPair:
    stream = np.random.default_rng(seed)

    def picture() -> np.ndarray:
        return stream.integers(0, 256, (32, 32, 3), dtype=np.uint8)

    draws = tuple(Sample(picture=picture(), source_weight=weight, detail="area 9 %") for weight in (0.124, 0.625, 1.0))
    grafting = MethodSamples(name="sg", title="Grafts <i>", note="n & m", samples=draws, maps=(picture(), picture()))
    alone = MethodSamples(name="co", title="Alone", note="", samples=(Sample(picture=picture(), source_weight=None),))
    gone = MethodSamples(name="pm", title="Gone", note="", missing="needs <scipy>")
    return ComparedPair(
        source=picture(), destination=picture(), source_class="star <b>", destination_class="ring",
        methods=(grafting, alone, gone),
    )  # fmt: skip
